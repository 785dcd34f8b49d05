/* daemon/sampling_params.h: the sampling parameters of a request. */
#ifndef TPD_DAEMON_SAMPLING_PARAMS_H
#define TPD_DAEMON_SAMPLING_PARAMS_H

#include "serve/engine.h"

#include <jansson.h>

/* Fills *out from params that the schema has checked; draws a seed when there is none. On failure
 * nothing is left to free. vocab: ids of logit_bias and stop_token_ids must be below it. */
int sampling_read(struct sampling *out, const json_t *params, int32_t vocab, struct error *e);
/* A copy that owns its own memory, with another seed. */
int sampling_copy(struct sampling *out, const struct sampling *from, uint64_t seed,
                  struct error *e);

#endif
