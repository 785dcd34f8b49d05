/* Operations on rows: embedding, norms, rotary positions, activations. Each cuts its rows (or
 * elements) for the team; the arithmetic is in the level. */
#include "kernels/cpu/scratch.h"

#include <math.h>
#include <string.h>

static size_t area(int32_t rows, int32_t cols) { return (size_t)rows * (size_t)cols; }

/* --- embedding -------------------------------------------------------------------------------- */

struct embed_call {
    struct cpu_ctx *c;
    struct panels table;
    const int32_t *ids;
    float *out;
    int32_t T, first_row;
    float scale;
};

static void embed_row(const struct embed_call *call, int32_t row, float *out, float *scratch) {
    const struct panels *w = &call->table;
    for (int32_t k = 0; k < w->cols; k += K_CHUNK) {
        int32_t end = k + K_CHUNK < w->cols ? k + K_CHUNK : w->cols;
        call->c->level->dequant(w, row / LANES, k, end, scratch);
        for (int32_t i = k; i < end; i++)
            out[i] = call->scale * scratch[(i - k) * LANES + row % LANES];
    }
}

static void embed_slice(void *arg, int member, int n_members) {
    const struct embed_call *call = arg;
    int64_t from, to;
    team_slice(call->T, 1, member, n_members, &from, &to);
    for (int64_t t = from; t < to; t++) {
        float *out = call->out + (size_t)t * (size_t)call->table.cols;
        int64_t row = (int64_t)call->ids[t] - call->first_row;
        if (row < 0 || row >= call->table.rows)
            memset(out, 0, (size_t)call->table.cols * sizeof *out);
        else
            embed_row(call, (int32_t)row, out, (float *)cpu_scratch_of(call->c, member));
    }
}

void cpu_embed(struct kctx *base, dev_addr out, const struct weight *table, dev_addr ids, int32_t T,
               int32_t first_row, float scale) {
    struct cpu_ctx *c = cpu_of(base);
    if (kctx_failed(base) || !cpu_scratch(c, EMBED_SCRATCH)) return;
    struct embed_call call = {c,         cpu_panels(c, table), cpu_at(c, ids), cpu_at(c, out), T,
                              first_row, scale};
    cpu_parallel(c, LANES * area(T, table->cols), embed_slice, &call);
}

/* --- norms ------------------------------------------------------------------------------------ */

struct norm_call {
    const struct cpu_level *level;
    float *out, *x;
    const float *y, *g;
    int32_t T, d;
    float scale, eps;
};

static void norm_slice(void *arg, int member, int n_members) {
    const struct norm_call *n = arg;
    int64_t from, to;
    team_slice(n->T, 1, member, n_members, &from, &to);
    for (int64_t t = from; t < to; t++) {
        size_t at = (size_t)t * (size_t)n->d;
        n->level->rmsnorm(n->out + at, n->x + at, n->y ? n->y + at : NULL, n->scale, n->g, n->d,
                          n->eps);
    }
}

static void norm(struct cpu_ctx *c, struct norm_call call) {
    call.level = c->level;
    cpu_parallel(c, area(call.T, call.d), norm_slice, &call);
}

void cpu_rmsnorm(struct kctx *base, dev_addr out, dev_addr x, dev_addr g, int32_t T, int32_t d,
                 float eps) {
    struct cpu_ctx *c = cpu_of(base);
    if (kctx_failed(base)) return;
    norm(c, (struct norm_call){.out = cpu_at(c, out), .x = cpu_at(c, x), .g = cpu_at(c, g), .T = T,
                               .d = d, .eps = eps});
}

void cpu_add_rmsnorm(struct kctx *base, dev_addr out, dev_addr x, dev_addr y, float scale,
                     dev_addr g, int32_t T, int32_t d, float eps) {
    struct cpu_ctx *c = cpu_of(base);
    if (kctx_failed(base)) return;
    norm(c, (struct norm_call){.out = cpu_at(c, out), .x = cpu_at(c, x), .y = cpu_at(c, y),
                               .scale = scale, .g = cpu_at(c, g), .T = T, .d = d, .eps = eps});
}

void cpu_head_norm(struct kctx *base, dev_addr x, dev_addr g, int32_t T, int32_t heads, int32_t e,
                   float eps) {
    struct cpu_ctx *c = cpu_of(base);
    if (kctx_failed(base)) return;
    norm(c, (struct norm_call){.out = cpu_at(c, x), .x = cpu_at(c, x), .g = cpu_at(c, g),
                               .T = T * heads, .d = e, .eps = eps});
}

/* --- rotary positions ------------------------------------------------------------------------- */

struct rope_table_call {
    const struct rope_freqs *f;
    const float *inv_freq;
    const int32_t *pos, *len;
    float *out;
    int32_t T;
};

/* Dynamic scaling in the precision of the reference: the base in double, the powers rounded to
 * fp32. */
static float dynamic_inv_freq(const struct rope_freqs *f, int32_t len, int32_t i) {
    double e = f->head_dim, factor = f->ntk_factor;
    double base = (double)f->base * pow(factor * len / f->original_len - (factor - 1), e / (e - 2));
    float power = (float)pow((double)(float)base, (double)(2 * (float)i / (float)f->head_dim));
    return 1.0f / power;
}

static void rope_table_slice(void *arg, int member, int n_members) {
    const struct rope_table_call *call = arg;
    const struct rope_freqs *f = call->f;
    int32_t half = f->head_dim / 2;
    int64_t from, to;
    team_slice(call->T, 1, member, n_members, &from, &to);
    for (int64_t t = from; t < to; t++) {
        float *out = call->out + (size_t)t * (size_t)f->head_dim;
        bool stretched = f->ntk_factor > 0 && call->len[t] > f->original_len;
        for (int32_t i = 0; i < half; i++) {
            float freq = stretched ? dynamic_inv_freq(f, call->len[t], i) : call->inv_freq[i];
            float angle = (float)call->pos[t] * freq;
            out[i] = cosf(angle) * f->scale;
            out[half + i] = sinf(angle) * f->scale;
        }
    }
}

void cpu_rope_table(struct kctx *base, dev_addr cos_sin, const struct rope_freqs *f, dev_addr pos,
                    dev_addr len, int32_t T) {
    struct cpu_ctx *c = cpu_of(base);
    if (kctx_failed(base)) return;
    struct rope_table_call call = {f,
                                   cpu_at(c, f->inv_freq),
                                   cpu_at(c, pos),
                                   len ? cpu_at(c, len) : NULL,
                                   cpu_at(c, cos_sin),
                                   T};
    cpu_parallel(c, 16 * area(T, f->head_dim), rope_table_slice, &call);
}

struct rope_kv_call {
    const struct cpu_level *level;
    const struct kv_view *kv;
    const int32_t *pos, *seq, *blocks;
    float *q, *k;
    const float *v, *cos_sin;
    uint8_t *k_cache, *v_cache;
    int32_t H, T, max_blocks;
};

static void rope_kv_row(const struct rope_kv_call *call, int64_t t) {
    const struct kv_view *kv = call->kv;
    int32_t e = kv->head_dim, K = kv->n_heads, pos = call->pos[t];
    const float *cos_sin = call->cos_sin + t * e;
    size_t vector = dtype_row_bytes(kv->type, e);
    int32_t block = call->blocks[(int64_t)call->seq[t] * call->max_blocks + pos / kv->block_size];
    for (int32_t h = 0; h < call->H; h++) {
        float *q = call->q + (t * call->H + h) * e;
        call->level->rotate(q, q, cos_sin, e);
    }
    for (int32_t h = 0; h < K; h++) {
        float *k = call->k + (t * K + h) * e;
        const float *v = call->v + (t * K + h) * e;
        int64_t at = ((int64_t)block * K + h) * kv->block_size + pos % kv->block_size;
        call->level->rotate(k, k, cos_sin, e);
        call->level->narrow(kv->type, call->k_cache + (size_t)at * vector, k, e);
        call->level->narrow(kv->type, call->v_cache + (size_t)at * vector, v, e);
    }
}

static void rope_kv_slice(void *arg, int member, int n_members) {
    const struct rope_kv_call *call = arg;
    int64_t from, to;
    team_slice(call->T, 1, member, n_members, &from, &to);
    for (int64_t t = from; t < to; t++) rope_kv_row(call, t);
}

void cpu_rope_kv(struct kctx *base, dev_addr q, int32_t H, dev_addr k, dev_addr v, dev_addr cos_sin,
                 const struct kv_view *kv, const struct step_rows *rows) {
    struct cpu_ctx *c = cpu_of(base);
    if (kctx_failed(base)) return;
    struct rope_kv_call call = {.level = c->level,
                                .kv = kv,
                                .pos = cpu_at(c, rows->pos),
                                .seq = cpu_at(c, rows->seq),
                                .blocks = cpu_at(c, rows->blocks),
                                .q = cpu_at(c, q),
                                .k = cpu_at(c, k),
                                .v = cpu_at(c, v),
                                .cos_sin = cpu_at(c, cos_sin),
                                .k_cache = cpu_at(c, kv->k),
                                .v_cache = cpu_at(c, kv->v),
                                .H = H,
                                .T = rows->n_rows,
                                .max_blocks = rows->max_blocks};
    cpu_parallel(c, area(rows->n_rows, (H + 2 * kv->n_heads) * kv->head_dim), rope_kv_slice, &call);
}

/* --- elements --------------------------------------------------------------------------------- */

struct silu_call {
    const struct cpu_level *level;
    float *out;
    const float *gate, *up;
    size_t n;
};

static void silu_slice(void *arg, int member, int n_members) {
    const struct silu_call *call = arg;
    int64_t from, to;
    team_slice((int64_t)call->n, LANES, member, n_members, &from, &to);
    call->level->silu_mul(call->out + from, call->gate + from, call->up + from,
                          (size_t)(to - from));
}

void cpu_silu_mul(struct kctx *base, dev_addr out, dev_addr gate, dev_addr up, int32_t T,
                  int32_t F) {
    struct cpu_ctx *c = cpu_of(base);
    if (kctx_failed(base)) return;
    struct silu_call call = {c->level, cpu_at(c, out), cpu_at(c, gate), cpu_at(c, up), area(T, F)};
    cpu_parallel(c, 2 * call.n, silu_slice, &call);
}

void cpu_gather_rows(struct kctx *base, dev_addr out, dev_addr x, dev_addr index, int32_t n,
                     int32_t d) {
    struct cpu_ctx *c = cpu_of(base);
    if (kctx_failed(base)) return;
    float *to = cpu_at(c, out);
    const float *from = cpu_at(c, x);
    const int32_t *rows = cpu_at(c, index);
    for (int32_t i = 0; i < n; i++)
        memcpy(to + area(i, d), from + area(rows[i], d), (size_t)d * sizeof *to);
}

void cpu_scale(struct kctx *base, dev_addr x, size_t n, float s) {
    struct cpu_ctx *c = cpu_of(base);
    if (kctx_failed(base)) return;
    if (s == 0)
        memset(cpu_at(c, x), 0, n * sizeof(float));
    else
        c->level->scale(cpu_at(c, x), n, s);
}
