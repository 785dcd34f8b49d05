/* model/adapter_private.h: what adapters are made of. Private to model/. */
#ifndef TPD_MODEL_ADAPTER_PRIVATE_H
#define TPD_MODEL_ADAPTER_PRIVATE_H

#include "model/adapter.h"
#include "model/shard.h"

struct adapter_pair {
    const struct store_tensor *a, *b; /* NULL where the adapter leaves a matrix alone */
};

struct adapter {
    struct store *store;
    int32_t r;
    float scale; /* alpha / r, or alpha / sqrt(r) */
    size_t n_pairs;
    unsigned targets; /* bits of the matrices that have a pair */
    struct adapter_pair *pairs; /* [layers, MAT_COUNT] */
};

#endif
