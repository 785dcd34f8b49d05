#include "model/plan.h"

#include <assert.h>

/* Query and KV heads. Up to n_kv_heads ranks, KV heads stay whole and their query heads follow them;
 * beyond, each rank holds one KV head and a share of its query heads. Either way no rank holds a KV
 * head that it does not need. */
static void deal_heads(struct shard_plan *p, const struct model_config *c) {
    int32_t n = p->n, kv = c->n_kv_heads, group = c->n_heads / kv;
    p->head[0] = 0;
    if (n <= kv) {
        for (int32_t r = 0; r < n; r++) {
            /* Rounded so that the larger shares go to the lower ranks. */
            int32_t from = kv - (int32_t)((int64_t)kv * (n - r) / n);
            int32_t to = kv - (int32_t)((int64_t)kv * (n - r - 1) / n);
            p->kv_first[r] = from;
            p->kv_count[r] = to - from;
            p->head[r + 1] = to * group;
        }
        return;
    }
    int32_t r = 0;
    for (int32_t k = 0; k < kv; k++) {
        int32_t ranks = n / kv + (k < n % kv);
        for (int32_t i = 0; i < ranks; i++, r++) {
            p->kv_first[r] = k;
            p->kv_count[r] = 1;
            p->head[r + 1] = p->head[r] + group / ranks + (i < group % ranks);
        }
    }
    assert(r == n && p->head[n] == c->n_heads);
}

/* FFN columns, so that each rank's attention and FFN weights together come out even: the level of
 * water poured over the attention shares (in columns of `hidden` weights, three matrices a column). */
static void deal_ffn(struct shard_plan *p, const struct model_config *c, int32_t grain) {
    int32_t n = p->n;
    double share[PLAN_MAX_RANKS], ffn[PLAN_MAX_RANKS];
    for (int32_t r = 0; r < n; r++)
        share[r] = 2.0 * (p->head[r + 1] - p->head[r] + p->kv_count[r]) * c->head_dim / 3;
    double low = 0, high = 0;
    for (int32_t r = 0; r < n; r++) high = share[r] > high ? share[r] : high;
    high += c->ffn;
    for (int step = 0; step < 200; step++) {
        double level = (low + high) / 2, poured = 0;
        for (int32_t r = 0; r < n; r++) {
            ffn[r] = level > share[r] ? level - share[r] : 0;
            poured += ffn[r];
        }
        if (poured < c->ffn) low = level;
        else high = level;
    }
    double sum = 0;
    p->ffn[0] = 0;
    for (int32_t r = 0; r < n; r++) {
        sum += ffn[r];
        int64_t at = (int64_t)(sum / grain + 0.5) * grain;
        if (at > c->ffn || r == n - 1) at = c->ffn;
        p->ffn[r + 1] = at > p->ffn[r] ? (int32_t)at : p->ffn[r];
    }
}

/* Vocabulary rows, evenly, in runs of 16 where there are enough (a cache line of logits). */
static void deal_vocab(struct shard_plan *p, const struct model_config *c) {
    int32_t grain = c->vocab >= 16 * p->n ? 16 : 1;
    for (int32_t r = 0; r < p->n; r++)
        p->vocab[r] = (int32_t)((int64_t)c->vocab * r / p->n / grain) * grain;
    p->vocab[p->n] = c->vocab;
}

int shard_plan_make(struct shard_plan *out, const struct model_config *config, int n,
                    int32_t ffn_grain, struct error *e) {
    int32_t most = config->n_heads < PLAN_MAX_RANKS ? config->n_heads : PLAN_MAX_RANKS;
    if (n < 1 || n > most)
        return error_set(e, ERR_CONFIG,
                         "tp %d is not possible for this model: it has %d query heads, so tp must "
                         "be from 1 to %d",
                         n, config->n_heads, most);
    *out = (struct shard_plan){.n = n};
    deal_heads(out, config);
    deal_ffn(out, config, ffn_grain);
    deal_vocab(out, config);
    return 0;
}
