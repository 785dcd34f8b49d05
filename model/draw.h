/* model/draw.h: the weights that a model begins with when it has none. Private to model/. */
#ifndef TPD_MODEL_DRAW_H
#define TPD_MODEL_DRAW_H

#include "base/json.h"
#include "model/tensors.h"

/* Makes the tensors that the parsed config.json at path asks for (model_outline says which, and their
 * type): matrices normal with its initializer_range (default 0.02), norms one, biases zero, the
 * embedding's row of pad_token_id zero. */
int draw_weights(struct store **out, const json_t *config, const char *path, uint64_t seed,
                 struct error *e);

#endif
