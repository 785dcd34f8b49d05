/* Vocabulary-parallel cross entropy, and the embedding's rows and gradient. */
#include "kernels/cpu/train.h"

#include <math.h>
#include <string.h>

struct ce_call {
    struct cpu_ctx *c;
    float *stats, *logits, *loss;
    const float *all_stats, *weight;
    const int32_t *labels;
    int32_t n, T, V, first_row;
};

static void stats_slice(void *arg, int member, int n_members) {
    const struct ce_call *call = arg;
    const struct cpu_train *loops = call->c->level->train;
    int64_t from, to;
    team_slice(call->T, 1, member, n_members, &from, &to);
    for (int64_t t = from; t < to; t++) {
        const float *row = call->logits + (size_t)t * (size_t)call->V;
        float *out = call->stats + 3 * t;
        int64_t label = (int64_t)call->labels[t] - call->first_row;
        out[0] = loops->row_max(row, call->V);
        out[1] = call->V ? (float)loops->sum_exp(row, call->V, out[0]) : 0;
        out[2] = call->labels[t] >= 0 && label >= 0 && label < call->V ? row[label] : 0;
    }
}

void cpu_ce_stats(struct kctx *base, dev_addr stats, dev_addr logits, dev_addr labels, int32_t T,
                  int32_t V, int32_t first_row) {
    struct cpu_ctx *c = cpu_of(base);
    if (kctx_failed(base)) return;
    struct ce_call call = {.c = c,
                           .stats = cpu_at(c, stats),
                           .logits = V ? cpu_at(c, logits) : NULL,
                           .labels = cpu_at(c, labels),
                           .T = T,
                           .V = V,
                           .first_row = first_row};
    cpu_parallel(c, 8 * (size_t)T * (size_t)(V + 1), stats_slice, &call);
}

/* One row: all shards' stats make the whole's; this shard's logits become their gradient. */
static void ce_row(const struct ce_call *call, int64_t t) {
    const struct cpu_train *loops = call->c->level->train;
    float *row = call->logits + (size_t)t * (size_t)call->V;
    const float *stats = call->all_stats + 3 * (size_t)t * (size_t)call->n;
    if (call->labels[t] < 0) {
        call->loss[t] = 0;
        if (call->V) memset(row, 0, (size_t)call->V * sizeof *row);
        return;
    }
    float max = stats[0];
    for (int32_t r = 1; r < call->n; r++) max = fmaxf(max, stats[3 * r]);
    double sum = 0, label = 0;
    for (int32_t r = 0; r < call->n; r++) {
        if (stats[3 * r + 1] != 0)
            sum += (double)stats[3 * r + 1] * exp((double)stats[3 * r] - max);
        label += stats[3 * r + 2];
    }
    call->loss[t] = (float)(log(sum) + max - label);
    if (call->V == 0) return;
    loops->softmax_grad(row, call->V, max, (float)(call->weight[t] / sum));
    int64_t mine = (int64_t)call->labels[t] - call->first_row;
    if (mine >= 0 && mine < call->V) row[mine] -= call->weight[t];
}

static void ce_slice(void *arg, int member, int n_members) {
    const struct ce_call *call = arg;
    int64_t from, to;
    team_slice(call->T, 1, member, n_members, &from, &to);
    for (int64_t t = from; t < to; t++) ce_row(call, t);
}

void cpu_ce_grad(struct kctx *base, dev_addr loss, dev_addr logits, dev_addr stats, int32_t n,
                 dev_addr labels, dev_addr weight, int32_t T, int32_t V, int32_t first_row) {
    struct cpu_ctx *c = cpu_of(base);
    if (kctx_failed(base)) return;
    struct ce_call call = {.c = c,
                           .loss = cpu_at(c, loss),
                           .logits = V ? cpu_at(c, logits) : NULL,
                           .all_stats = cpu_at(c, stats),
                           .weight = cpu_at(c, weight),
                           .labels = cpu_at(c, labels),
                           .n = n,
                           .T = T,
                           .V = V,
                           .first_row = first_row};
    cpu_parallel(c, 8 * (size_t)T * (size_t)(V + 1), ce_slice, &call);
}

/* --- embedding -------------------------------------------------------------------------------- */

struct table_call {
    struct cpu_ctx *c;
    float *out;
    const float *in;
    const int32_t *ids;
    int32_t T, d, V, first_row;
    float scale;
};

static void embed_rows_slice(void *arg, int member, int n_members) {
    const struct table_call *call = arg;
    int64_t from, to;
    size_t d = (size_t)call->d;
    team_slice(call->T, 1, member, n_members, &from, &to);
    for (int64_t t = from; t < to; t++) {
        float *out = call->out + (size_t)t * d;
        int64_t row = (int64_t)call->ids[t] - call->first_row;
        memset(out, 0, d * sizeof *out);
        if (row >= 0 && row < call->V)
            call->c->level->train->axpy(out, call->in + (size_t)row * d, d, call->scale);
    }
}

void cpu_embed_rows(struct kctx *base, dev_addr out, dev_addr table, dev_addr ids, int32_t T,
                    int32_t d, int32_t V, int32_t first_row, float scale) {
    struct cpu_ctx *c = cpu_of(base);
    if (kctx_failed(base)) return;
    struct table_call call = {
        c, cpu_at(c, out), V ? cpu_at(c, table) : NULL, cpu_at(c, ids), T, d, V, first_row, scale};
    cpu_parallel(c, (size_t)T * (size_t)d, embed_rows_slice, &call);
}

/* Members share the columns, so each sum runs over the rows in their order. */
static void embed_grad_slice(void *arg, int member, int n_members) {
    const struct table_call *call = arg;
    int64_t from, to;
    size_t d = (size_t)call->d;
    team_slice(call->d, LANES, member, n_members, &from, &to);
    if (from >= to) return;
    for (int32_t t = 0; t < call->T; t++) {
        int64_t row = (int64_t)call->ids[t] - call->first_row;
        if (row >= 0 && row < call->V)
            call->c->level->train->axpy(call->out + (size_t)row * d + from,
                                        call->in + (size_t)t * d + from, (size_t)(to - from),
                                        call->scale);
    }
}

void cpu_embed_grad(struct kctx *base, dev_addr grad, dev_addr dx, dev_addr ids, int32_t T,
                    int32_t d, int32_t V, int32_t first_row, float scale) {
    struct cpu_ctx *c = cpu_of(base);
    if (kctx_failed(base) || V == 0) return;
    struct table_call call = {c, cpu_at(c, grad), cpu_at(c, dx), cpu_at(c, ids), T, d,
                              V, first_row,       scale};
    cpu_parallel(c, (size_t)T * (size_t)d, embed_grad_slice, &call);
}
