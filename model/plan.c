#include "model/plan.h"

#include <stdlib.h>

/* --- heads --------------------------------------------------------------------------------------- */

/* KV heads that query heads from … to-1 read. */
static int32_t kv_heads_of(const struct model_config *c, int32_t from, int32_t to) {
    int32_t group = c->n_heads / c->n_kv_heads;
    return (to - 1) / group - from / group + 1;
}

/* What query heads from … to-1 cost a rank. A query head has its rows of q and columns of o, and looks over the
 * context of each row of a prompt; a KV head has as many rows of k and v, and its cache is read for each token.
 * Neither is dearer as a rule, so both count alike. */
static int32_t cost_of(const struct model_config *c, int32_t from, int32_t to) {
    return to - from + kv_heads_of(c, from, to);
}

/* The least sum of squared costs of `rank + 1` ranks that have heads 0 … to-1 between them, and where the last
 * of them begins; INT64_MAX: no deal. */
struct deal {
    int64_t squares;
    int32_t from;
};

/* Fills deals [n, n_heads + 1] with those in which no rank costs more than most. */
static bool deal_at_most(const struct model_config *c, int n, int32_t most, struct deal *deals) {
    int32_t heads = c->n_heads;
    for (int32_t r = 0; r < n; r++)
        for (int32_t to = 0; to <= heads; to++) {
            struct deal *d = &deals[r * (heads + 1) + to];
            *d = (struct deal){INT64_MAX, 0};
            for (int32_t from = to - 1; from >= r && cost_of(c, from, to) <= most; from--) {
                int64_t cost = cost_of(c, from, to);
                int64_t before = r == 0 ? (from == 0 ? 0 : INT64_MAX) : d[-(heads + 1) + from - to].squares;
                if (before == INT64_MAX || before + cost * cost >= d->squares) continue;
                *d = (struct deal){before + cost * cost, from};
            }
        }
    return deals[n * (heads + 1) - 1].squares != INT64_MAX;
}

/* Neighbouring heads, so that the rank with the most to do has as little as can be (the others wait for it at the
 * end of each layer's attention), and then as evenly as can be. A rank may share a KV head with its neighbours:
 * 9 query and 3 KV heads go to two ranks as 5 and 4, with two KV heads each. */
static int deal_heads(struct shard_plan *p, const struct model_config *c, struct error *e) {
    size_t row = (size_t)c->n_heads + 1;
    struct deal *deals = malloc((size_t)p->n * row * sizeof *deals);
    if (!deals) return error_set(e, ERR_MEMORY, "no memory to deal %d heads", c->n_heads);
    int32_t share = (c->n_heads + p->n - 1) / p->n, most = cost_of(c, 0, share); /* some rank has that */
    while (!deal_at_most(c, p->n, most, deals)) most++;
    p->head[p->n] = c->n_heads;
    for (int r = p->n - 1; r >= 0; r--) {
        p->head[r] = deals[(size_t)r * row + (size_t)p->head[r + 1]].from;
        p->kv_first[r] = p->head[r] / (c->n_heads / c->n_kv_heads);
        p->kv_count[r] = kv_heads_of(c, p->head[r], p->head[r + 1]);
    }
    free(deals);
    return 0;
}

bool shard_plan_shares_first_kv(const struct shard_plan *p, int rank) {
    return rank > 0 && p->kv_first[rank - 1] + p->kv_count[rank - 1] > p->kv_first[rank];
}

bool shard_plan_shares_kv(const struct shard_plan *p) {
    for (int r = 1; r < p->n; r++)
        if (shard_plan_shares_first_kv(p, r)) return true;
    return false;
}

/* --- the rest ------------------------------------------------------------------------------------ */

/* FFN columns, evenly, in whole grains; the lower ranks get what is over, since rank 0, which holds biases, must have
 * some. Ranks meet after the attention and again after the FFN: more columns here would not make up for fewer heads
 * there. */
static void deal_ffn(struct shard_plan *p, const struct model_config *c, int32_t grain) {
    int64_t grains = c->ffn / grain;
    for (int32_t r = 0; r < p->n; r++) p->ffn[r] = (int32_t)((grains * r + p->n - 1) / p->n * grain);
    p->ffn[p->n] = c->ffn;
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
    int err = deal_heads(out, config, e);
    if (err) return err;
    deal_ffn(out, config, ffn_grain);
    deal_vocab(out, config);
    return 0;
}
