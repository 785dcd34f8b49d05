/* daemon/sampling_params.h: the sampling parameters of a request. */
#ifndef TPD_DAEMON_SAMPLING_PARAMS_H
#define TPD_DAEMON_SAMPLING_PARAMS_H

#include "daemon/schema.h"
#include "serve/engine.h"

#include <jansson.h>

/* What everything that generates takes, for its schema; log-probabilities are asked for in different
 * ways. */
#define SAMPLING_PARAMS                                                                            \
    {"max_tokens", PARAM_INT, false, -1, 1e9, NULL},                                               \
    {"temperature", PARAM_NUMBER, false, 0, 1000, NULL},                                           \
    {"top_k", PARAM_INT, false, -1, 1e9, NULL},                                                    \
    {"top_p", PARAM_NUMBER, false, 0, 1, NULL},                                                    \
    {"min_p", PARAM_NUMBER, false, 0, 1, NULL},                                                    \
    {"repetition_penalty", PARAM_NUMBER, false, 0.01, 100, NULL},                                  \
    {"presence_penalty", PARAM_NUMBER, false, -100, 100, NULL},                                    \
    {"frequency_penalty", PARAM_NUMBER, false, -100, 100, NULL},                                   \
    {"penalty_last_n", PARAM_INT, false, -1, 1e9, NULL},                                           \
    {"logit_bias", PARAM_OBJECT, false, 0, 0, NULL},                                               \
    {"seed", PARAM_INT, false, -9223372036854775808.0, 9223372036854775807.0, NULL},               \
    {"stop", PARAM_STRINGS, false, 0, 0, NULL},                                                    \
    {"stop_token_ids", PARAM_IDS, false, 0, 0, NULL},                                              \
    {"ignore_eos", PARAM_BOOL, false, 0, 0, NULL},                                                 \
    {"json_schema", PARAM_ANY, false, 0, 0, NULL},                                                 \
    {"grammar", PARAM_STRING, false, 0, 0, NULL},                                                  \
    {"speculative", PARAM_CHOICE, false, 0, 0, "off|draft|ngram|auto"},                                  \
    {"adapter", PARAM_STRING, false, 0, 0, NULL}

/* Fills *out from params that the schema has checked; draws a seed when there is none. On failure
 * nothing is left to free. vocab: ids of logit_bias and stop_token_ids must be below it. */
int sampling_read(struct sampling *out, const json_t *params, int32_t vocab, struct error *e);
/* A copy that owns its own memory, with another seed. */
int sampling_copy(struct sampling *out, const struct sampling *from, uint64_t seed,
                  struct error *e);

#endif
