/* train/dataset_private.h: what dataset.c (opening) and epoch.c (micro-batches) share. */
#ifndef TPD_TRAIN_DATASET_PRIVATE_H
#define TPD_TRAIN_DATASET_PRIVATE_H

#include "train/cache.h"
#include "train/example.h"

struct dataset {
    struct cache cache;
    int32_t seq_len;
    bool cached, rewritten;
};

/* Example i: its marked tokens. */
static inline const token_id *dataset_example(const struct dataset *d, int64_t i, int32_t *n) {
    uint64_t from = i > 0 ? d->cache.ends[i - 1] : 0;
    *n = (int32_t)(d->cache.ends[i] - from);
    return d->cache.tokens + from;
}

#endif
