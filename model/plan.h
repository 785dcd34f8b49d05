/* model/plan.h: who holds what. The split of a model over n ranks, as data, apart from the forward
 * code. Made once by shard_plan_make; the same on every rank. Any thread. */
#ifndef TPD_MODEL_PLAN_H
#define TPD_MODEL_PLAN_H

#include "model/config.h"

enum { PLAN_MAX_RANKS = 64 };

/* Rank r has query heads head[r] … head[r+1]-1, KV heads kv_first[r] … kv_first[r]+kv_count[r]-1
 * (a KV head that two ranks need is held by both), FFN columns ffn[r] … ffn[r+1]-1 and vocabulary
 * rows vocab[r] … vocab[r+1]-1. */
struct shard_plan {
    int n;
    int32_t head[PLAN_MAX_RANKS + 1];
    int32_t kv_first[PLAN_MAX_RANKS], kv_count[PLAN_MAX_RANKS];
    int32_t ffn[PLAN_MAX_RANKS + 1];
    int32_t vocab[PLAN_MAX_RANKS + 1];
};

/* ffn_grain: FFN columns are a multiple of it (a quant block of down_proj) and are dealt in runs of it. n must be
 * from 1 to the number of query heads, else ERR_CONFIG saying so. A rank but the first may get no FFN columns at
 * all. */
int shard_plan_make(struct shard_plan *out, const struct model_config *config, int n,
                    int32_t ffn_grain, struct error *e);

/* Whether a rank's first KV head is also with the rank before it; and whether any rank's is. */
bool shard_plan_shares_first_kv(const struct shard_plan *plan, int rank);
bool shard_plan_shares_kv(const struct shard_plan *plan);

#endif
