/* Scratch memory, which operations of the other backends keep for as long as the context: as large as the
 * largest that any asked for. What each asks for is said by the functions that they call themselves. */
#include "kernels/cpu/scratch.h"
#include "kernels/cuda/sizes.h"
#include "kernels/plan/plan.h"

/* --- who needs how much ---------------------------------------------------------------------------- */

static void cpu_needs(struct kctx *c, size_t member, size_t shared) {
    struct plan_scratch *s = plan_scratch_of(c);
    member = scratch_round(member);
    shared = scratch_round(shared);
    if (member > s->member) s->member = member;
    if (shared > s->shared) s->shared = shared;
    plan_scratch_set(c, s->member * (size_t)s->device.cores + s->shared);
}

static void cuda_needs(struct kctx *c, size_t bytes) {
    struct plan_scratch *s = plan_scratch_of(c);
    bytes = align_to(bytes, s->device.scratch_grain);
    if (bytes > s->member) s->member = bytes;
    plan_scratch_set(c, s->member + (s->device.same_bits ? 0 : s->device.blas_bytes));
}

static void cuda_needs_both(struct kctx *c, struct factor_bytes b) { cuda_needs(c, b.first + b.second); }

static bool on_cuda(struct kctx *c) { return plan_scratch_of(c)->device.kind == DEVICE_CUDA; }

/* --- matrices --------------------------------------------------------------------------------------- */

size_t plan_weight_bytes(struct kctx *c, enum dtype type, int32_t rows, int32_t cols) {
    return on_cuda(c) ? matrix_bytes(type, rows, cols) : kernels_cpu_weight_bytes(type, rows, cols);
}

void plan_scratch_put(struct kctx *c, const struct weight *w, int32_t n) {
    if (on_cuda(c)) cuda_needs(c, cuda_put_scratch(w->type, w->cols, n));
}

void plan_scratch_embed(struct kctx *c) {
    if (!on_cuda(c)) cpu_needs(c, EMBED_SCRATCH, 0);
}

static void cpu_linear_needs(struct kctx *c, const struct linear_job *jobs, int n_jobs, int32_t T) {
    const struct plan_scratch *s = plan_scratch_of(c);
    struct narrow_groups g = {0, 0};
    for (int i = 0; i < n_jobs && s->narrow; i++) {
        if (dtype_is_quantised(jobs[i].w->type)) g.int8 = s->device.int8_rows;
        if (jobs[i].w->type == DTYPE_BF16) g.bf16 = s->device.bf16_rows;
    }
    struct linear_scratch needed = linear_scratch(g, jobs[0].w->cols, T);
    cpu_needs(c, s->bf16 ? PRODUCT_SCRATCH : needed.member, s->bf16 ? 0 : needed.narrow);
}

void plan_scratch_linear(struct kctx *c, const struct linear_job *jobs, int n_jobs, int32_t T) {
    const struct plan_scratch *s = plan_scratch_of(c);
    if (T <= 0 || n_jobs <= 0) return;
    if (!on_cuda(c)) {
        cpu_linear_needs(c, jobs, n_jobs, T);
        return;
    }
    for (int i = 0; i < n_jobs; i++) {
        const struct weight *w = jobs[i].w;
        if (w->rows <= 0 || linear_by_own(s->device.same_bits, s->bf16, w->cols, T)) continue;
        cuda_needs_both(c, linear_bytes(w->type, w->rows, w->cols, T, s->bf16));
    }
}

void plan_scratch_matmul(struct kctx *c, int32_t M, int32_t N, int32_t K, bool tb) {
    const struct plan_scratch *s = plan_scratch_of(c);
    if (M <= 0 || N <= 0) return;
    if (!on_cuda(c)) cpu_needs(c, PRODUCT_SCRATCH, 0);
    else if (s->bf16 && K > 0)
        cuda_needs_both(c, matmul_bytes(s->device.converted_tile, M, K, tb ? N : K, tb ? K : N));
}

void plan_scratch_linear_dx(struct kctx *c, const struct linear_job *jobs, int n_jobs, int32_t T) {
    const struct plan_scratch *s = plan_scratch_of(c);
    if (T <= 0 || jobs[0].w->cols <= 0) return;
    if (!on_cuda(c)) cpu_needs(c, PRODUCT_SCRATCH, 0);
    for (int i = 0; i < n_jobs && on_cuda(c); i++) {
        const struct weight *w = jobs[i].w;
        if (w->rows > 0)
            cuda_needs_both(c, linear_dx_bytes(s->device.converted_tile, w->type, w->rows, w->cols, T,
                                               s->bf16));
    }
}

/* --- attention --------------------------------------------------------------------------------------- */

/* Steps of fewer rows follow, of which a GPU may split what it does not split of these. */
void plan_scratch_attention(struct kctx *c, int32_t H, const int32_t *kv_of_head, const struct kv_view *kv,
                            const struct step_rows *rows) {
    const struct plan_scratch *s = plan_scratch_of(c);
    int32_t e = kv->head_dim;
    if (rows->n_rows <= 0 || H <= 0) return;
    if (!on_cuda(c)) {
        cpu_needs(c, attention_scratch(e), 0);
        return;
    }
    int32_t runs = attention_runs(kv_of_head, H, attention_heads(e));
    int32_t splits = attention_splits(rows->max_blocks, kv->block_size);
    for (int32_t T = 1; T <= rows->n_seqs; T++)
        cuda_needs(c, attention_partial(s->device.n_sms, T, H, e, runs, splits));
}

void plan_scratch_rows(struct kctx *c, int32_t T, int32_t e) {
    if (T > 0 && !on_cuda(c)) cpu_needs(c, rows_attention_scratch(e), 0);
}

static int32_t most_readers(const int32_t *kv_of_head, int32_t H) {
    int32_t most = 1;
    for (int32_t h = 0, n = 0; h < H; h++) { /* heads that read one KV head stand together */
        n = h > 0 && kv_of_head[h] == kv_of_head[h - 1] ? n + 1 : 1;
        if (n > most) most = n;
    }
    return most;
}

/* Likewise: fewer rows are split more often. */
void plan_scratch_rows_dx(struct kctx *c, int32_t T, int32_t H, const int32_t *kv_of_head, int32_t K,
                          int32_t e) {
    int n_sms = plan_scratch_of(c)->device.n_sms;
    if (T <= 0 || K <= 0) return;
    if (!on_cuda(c)) {
        cpu_needs(c, rows_attention_scratch(e), 0);
        return;
    }
    int32_t most = most_readers(kv_of_head, H);
    for (int32_t n = ROWS_TILE; n < T + ROWS_TILE; n += ROWS_TILE) {
        int32_t rows = n < T ? n : T;
        cuda_needs_both(c, rows_dx_bytes(rows, H, K, e, heads_split(n_sms, rows, K, most).n));
    }
}

/* --- sums -------------------------------------------------------------------------------------------- */

void plan_scratch_col_sum(struct kctx *c, int32_t T, int32_t n) {
    if (on_cuda(c) && T > 0 && n > 0) cuda_needs(c, col_sum_bytes(T, n));
}

void plan_scratch_rmsnorm_dx(struct kctx *c, int32_t T, int32_t d, bool with_dg) {
    if (T <= 0 || d <= 0) return;
    if (!on_cuda(c)) cpu_needs(c, rmsnorm_dx_scratch(T), 0);
    else if (with_dg) cuda_needs_both(c, rmsnorm_dx_bytes(T, d));
}

void plan_scratch_sum_squares(struct kctx *c, size_t n) {
    if (n == 0) return;
    if (on_cuda(c)) cuda_needs(c, sum_squares_bytes(n));
    else cpu_needs(c, sum_squares_scratch(n), 0);
}

/* --- which device ------------------------------------------------------------------------------------- */

void kernels_cuda_figures(struct device_figures *out) {
    enum { H100_SMS = 132 };
    *out = (struct device_figures){.kind = DEVICE_CUDA,
                                   .bf16 = true,
                                   .n_sms = H100_SMS,
                                   .converted_tile = CONVERTED_TILE,
                                   .blas_bytes = BLAS_WORKSPACE_BYTES,
                                   .scratch_grain = SCRATCH_GRAIN};
}

void plan_scratch_open(struct kctx *c, const struct device_figures *device) {
    struct plan_scratch *s = plan_scratch_of(c);
    if (device) s->device = *device;
    else kernels_cpu_figures(&s->device, 1);
    if (on_cuda(c)) cuda_needs(c, 0);
}
