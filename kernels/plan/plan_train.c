/* The operations of training as bookkeeping. Sequences and token ids live in device memory, which
 * nobody reads here: a packed batch counts as one sequence, and every token as the shard's own. */
#include "kernels/plan/plan.h"

#include <assert.h>

static void updates(struct kctx *c, dev_addr at, size_t bytes, const char *op) {
    plan_reads(c, at, bytes, op);
    plan_writes(c, at, bytes, op);
}

static uint64_t times(int64_t a, int64_t b) {
    return (uint64_t)a * (uint64_t)b;
}

/* --- products -------------------------------------------------------------------------------- */

void plan_matmul(struct kctx *c, dev_addr out, int32_t M, int32_t N, int32_t K, dev_addr a, bool ta,
                 dev_addr b, bool tb, float alpha, float beta) {
    (void)ta, (void)alpha;
    plan_reads(c, a, plan_floats(M, K), "matmul (a)");
    plan_reads(c, b, plan_floats(K, N), "matmul (b)");
    if (beta != 0) plan_reads(c, out, plan_floats(M, N), "matmul (out)");
    plan_writes(c, out, plan_floats(M, N), "matmul (out)");
    plan_scratch_matmul(c, M, N, K, tb);
    plan_work(c, 2 * times(M, N) * (uint64_t)K);
}

void plan_linear_dx(struct kctx *c, const struct linear_job *jobs, int n_jobs, dev_addr dx,
                    int32_t T, bool accumulate) {
    size_t bytes = plan_floats(T, jobs[0].w->cols);
    uint64_t flops = 0;
    for (int i = 0; i < n_jobs; i++) {
        const struct weight *w = jobs[i].w;
        assert(w->cols == jobs[0].w->cols);
        plan_reads(c, w->data, w->bytes, "linear_dx (weight)");
        plan_reads(c, jobs[i].y, plan_floats(T, w->rows), "linear_dx (output)");
        flops += 2 * times(T, w->rows) * (uint64_t)w->cols;
    }
    if (accumulate) plan_reads(c, dx, bytes, "linear_dx (input)");
    plan_writes(c, dx, bytes, "linear_dx (input)");
    plan_scratch_linear_dx(c, jobs, n_jobs, T);
    plan_work(c, flops);
}

/* --- rows ------------------------------------------------------------------------------------ */

void plan_col_sum(struct kctx *c, dev_addr out, dev_addr x, int32_t T, int32_t n) {
    plan_reads(c, x, plan_floats(T, n), "col_sum");
    updates(c, out, plan_floats(1, n), "col_sum");
    plan_scratch_col_sum(c, T, n);
    plan_work(c, times(T, n));
}

void plan_rmsnorm_dx(struct kctx *c, dev_addr dx, dev_addr dg, dev_addr dy, dev_addr x, dev_addr g,
                     int32_t T, int32_t d, float eps) {
    (void)eps;
    plan_reads(c, dy, plan_floats(T, d), "rmsnorm_dx");
    plan_reads(c, x, plan_floats(T, d), "rmsnorm_dx");
    plan_reads(c, g, plan_floats(1, d), "rmsnorm_dx");
    updates(c, dx, plan_floats(T, d), "rmsnorm_dx");
    if (dg) updates(c, dg, plan_floats(1, d), "rmsnorm_dx (dg)");
    plan_scratch_rmsnorm_dx(c, T, d, dg != 0);
    plan_work(c, (dg ? 12u : 9u) * times(T, d));
}

void plan_rope_rows(struct kctx *c, dev_addr x, int32_t heads, dev_addr cos_sin, int32_t T,
                    int32_t e, bool inverse) {
    (void)inverse;
    plan_reads(c, cos_sin, plan_floats(T, e), "rope_rows");
    updates(c, x, plan_floats(T, heads * e), "rope_rows");
    plan_work(c, 3 * times(T, heads * e));
}

void plan_silu_mul_dx(struct kctx *c, dev_addr dgate, dev_addr dup, dev_addr dout, dev_addr gate,
                      dev_addr up, int32_t T, int32_t F) {
    plan_reads(c, dout, plan_floats(T, F), "silu_mul_dx");
    plan_reads(c, gate, plan_floats(T, F), "silu_mul_dx");
    plan_reads(c, up, plan_floats(T, F), "silu_mul_dx");
    plan_writes(c, dgate, plan_floats(T, F), "silu_mul_dx");
    plan_writes(c, dup, plan_floats(T, F), "silu_mul_dx");
    plan_work(c, 12 * times(T, F));
}

/* --- attention ------------------------------------------------------------------------------- */

static uint64_t pairs(int32_t T, int32_t window) {
    int32_t w = window > 0 && window < T ? window : T;
    return times(w, w + 1) / 2 + times(T - w, w);
}

/* Rows of H * e floats, stride apart. */
static size_t strided(int32_t T, int32_t stride, int32_t H, int32_t e) {
    assert(stride >= H * e);
    return T == 0 ? 0 : plan_floats(T - 1, stride) + plan_floats(1, H * e);
}

void plan_attention_rows(struct kctx *c, dev_addr out, int32_t out_stride, dev_addr lse, dev_addr q,
                         int32_t H, dev_addr k, dev_addr v, int32_t K, const int32_t *kv_of_head,
                         int32_t e, dev_addr first, int32_t T, float scale, int32_t window) {
    (void)scale;
    for (int32_t h = 0; h < H; h++) assert(kv_of_head[h] >= 0 && kv_of_head[h] < K);
    plan_reads(c, first, (size_t)T * 4, "attention_rows (first)");
    plan_reads(c, q, plan_floats(T, H * e), "attention_rows (q)");
    plan_reads(c, k, plan_floats(T, K * e), "attention_rows (k)");
    plan_reads(c, v, plan_floats(T, K * e), "attention_rows (v)");
    plan_writes(c, out, strided(T, out_stride, H, e), "attention_rows (out)");
    plan_writes(c, lse, plan_floats(T, H), "attention_rows (lse)");
    plan_scratch_rows(c, T, e);
    plan_work(c, 4 * pairs(T, window) * times(H, e));
}

void plan_attention_rows_dx(struct kctx *c, dev_addr dq, dev_addr dk, dev_addr dv, dev_addr dout,
                            dev_addr out, int32_t out_stride, dev_addr lse, dev_addr q, int32_t H,
                            dev_addr k, dev_addr v, int32_t K, const int32_t *kv_of_head, int32_t e,
                            dev_addr first, int32_t T, float scale, int32_t window) {
    (void)scale;
    for (int32_t h = 0; h < H; h++) assert(kv_of_head[h] >= 0 && kv_of_head[h] < K);
    plan_reads(c, first, (size_t)T * 4, "attention_rows_dx (first)");
    plan_reads(c, lse, plan_floats(T, H), "attention_rows_dx (lse)");
    plan_reads(c, out, strided(T, out_stride, H, e), "attention_rows_dx (out)");
    plan_reads(c, dout, strided(T, out_stride, H, e), "attention_rows_dx (dout)");
    plan_reads(c, q, plan_floats(T, H * e), "attention_rows_dx (q)");
    plan_reads(c, k, plan_floats(T, K * e), "attention_rows_dx (k)");
    plan_reads(c, v, plan_floats(T, K * e), "attention_rows_dx (v)");
    plan_writes(c, dq, plan_floats(T, H * e), "attention_rows_dx (dq)");
    plan_writes(c, dk, plan_floats(T, K * e), "attention_rows_dx (dk)");
    plan_writes(c, dv, plan_floats(T, K * e), "attention_rows_dx (dv)");
    plan_scratch_rows_dx(c, T, H, kv_of_head, K, e);
    plan_work(c, 10 * pairs(T, window) * times(H, e)); /* the scores are computed again */
}

/* --- loss and embedding ---------------------------------------------------------------------- */

void plan_ce_stats(struct kctx *c, dev_addr stats, dev_addr logits, dev_addr labels, int32_t T,
                   int32_t V, int32_t first_row) {
    (void)first_row;
    plan_reads(c, logits, plan_floats(T, V), "ce_stats (logits)");
    plan_reads(c, labels, (size_t)T * 4, "ce_stats (labels)");
    plan_writes(c, stats, plan_floats(T, 3), "ce_stats");
    plan_work(c, 4 * times(T, V));
}

void plan_ce_grad(struct kctx *c, dev_addr loss, dev_addr logits, dev_addr stats, int32_t n,
                  dev_addr labels, dev_addr weight, int32_t T, int32_t V, int32_t first_row) {
    (void)first_row;
    plan_reads(c, stats, plan_floats(T, 3 * n), "ce_grad (stats)");
    plan_reads(c, labels, (size_t)T * 4, "ce_grad (labels)");
    plan_reads(c, weight, plan_floats(T, 1), "ce_grad (weight)");
    updates(c, logits, plan_floats(T, V), "ce_grad (logits)");
    plan_writes(c, loss, plan_floats(T, 1), "ce_grad (loss)");
    plan_work(c, 3 * times(T, V));
}

/* Which rows of the table are touched is not known: at most as many as there are tokens. */
static size_t table_rows(int32_t T, int32_t V, int32_t d) {
    return plan_floats(T < V ? T : V, d);
}

void plan_embed_rows(struct kctx *c, dev_addr out, dev_addr table, dev_addr ids, int32_t T,
                     int32_t d, int32_t V, int32_t first_row, float scale) {
    (void)first_row, (void)scale;
    plan_reads(c, ids, (size_t)T * 4, "embed_rows (ids)");
    plan_reads(c, table, table_rows(T, V, d), "embed_rows (table)");
    plan_writes(c, out, plan_floats(T, d), "embed_rows");
    plan_work(c, times(T, d));
}

void plan_embed_grad(struct kctx *c, dev_addr grad, dev_addr dx, dev_addr ids, int32_t T, int32_t d,
                     int32_t V, int32_t first_row, float scale) {
    (void)first_row, (void)scale;
    plan_reads(c, ids, (size_t)T * 4, "embed_grad (ids)");
    plan_reads(c, dx, plan_floats(T, d), "embed_grad (dx)");
    updates(c, grad, table_rows(T, V, d), "embed_grad");
    plan_work(c, 2 * times(T, d));
}

/* --- flat arrays ----------------------------------------------------------------------------- */

void plan_bf16_products(struct kctx *c, bool on) {
    struct plan_scratch *s = plan_scratch_of(c);
    s->bf16 = on && s->device.bf16;
}

void plan_narrow_activations(struct kctx *c, bool on) { plan_scratch_of(c)->narrow = on; }

void plan_narrow(struct kctx *c, dev_addr to, dev_addr from, size_t n) {
    plan_reads(c, from, n * sizeof(float), "narrow");
    plan_writes(c, to, n * sizeof(uint16_t), "narrow");
    plan_work(c, n);
}

void plan_widen(struct kctx *c, dev_addr to, dev_addr from, size_t n) {
    plan_reads(c, from, n * sizeof(uint16_t), "widen");
    plan_writes(c, to, n * sizeof(float), "widen");
    plan_work(c, n);
}

void plan_copy(struct kctx *c, dev_addr to, dev_addr from, size_t bytes) {
    plan_reads(c, from, bytes, "copy");
    plan_writes(c, to, bytes, "copy");
    plan_work(c, 0);
}

void plan_axpy(struct kctx *c, dev_addr y, dev_addr x, size_t n, float a) {
    (void)a;
    plan_reads(c, x, n * sizeof(float), "axpy (x)");
    updates(c, y, n * sizeof(float), "axpy (y)");
    plan_work(c, 2 * n);
}

void plan_dropout(struct kctx *c, dev_addr out, dev_addr x, int32_t T, int32_t cols,
                  int32_t row_stride, int32_t col, float p, uint64_t seed, uint64_t first) {
    (void)p, (void)seed, (void)first;
    assert(col >= 0 && col + cols <= row_stride);
    plan_reads(c, x, plan_floats(T, cols), "dropout");
    plan_writes(c, out, plan_floats(T, cols), "dropout");
    plan_work(c, times(T, cols));
}

void plan_sum_squares(struct kctx *c, dev_addr out, dev_addr x, size_t n) {
    plan_reads(c, x, n * sizeof(float), "sum_squares");
    updates(c, out, sizeof(float), "sum_squares");
    plan_scratch_sum_squares(c, n);
    plan_work(c, 2 * n);
}

void plan_adamw(struct kctx *c, dev_addr p, dev_addr g, dev_addr m, dev_addr v, size_t n,
                const struct adamw_params *params, float grad_scale) {
    (void)params, (void)grad_scale;
    plan_reads(c, g, n * sizeof(float), "adamw (g)");
    updates(c, p, n * sizeof(float), "adamw (p)");
    updates(c, m, n * sizeof(float), "adamw (m)");
    updates(c, v, n * sizeof(float), "adamw (v)");
    plan_work(c, 15 * n);
}
