/* kernels/plan/plan.h: inside of the plan backend. plan.c has the context, memory and the forward's
 * operations, plan_train.c those of training, plan_scratch.c what either takes beside its operands. */
#ifndef TPD_KERNELS_PLAN_PLAN_H
#define TPD_KERNELS_PLAN_PLAN_H

#include "kernels/kernels.h"

/* Count an operand; one that is not whole in one live allocation marks the context. op names the
 * operation in the message. An operand that is updated in place counts as both. */
void plan_reads(struct kctx *c, dev_addr at, size_t bytes, const char *op);
void plan_writes(struct kctx *c, dev_addr at, size_t bytes, const char *op);
/* Counts one operation. */
void plan_work(struct kctx *c, uint64_t flops);

/* Scratch memory of the device that is planned for; only plan_scratch.c looks inside. */
struct plan_scratch {
    struct device_figures device;
    bool bf16, narrow; /* bf16_products, narrow_activations */
    size_t member, shared; /* CPU: of each member, and of rounded rows; CUDA: member alone */
};
struct plan_scratch *plan_scratch_of(struct kctx *c);
/* It has come to so many bytes. */
void plan_scratch_set(struct kctx *c, size_t bytes);
void plan_scratch_open(struct kctx *c, const struct device_figures *device);
size_t plan_weight_bytes(struct kctx *c, enum dtype type, int32_t rows, int32_t cols);

/* What an operation asks for, and those of fewer rows that the plan stands for. */
void plan_scratch_put(struct kctx *c, const struct weight *w, int32_t n);
void plan_scratch_embed(struct kctx *c);
void plan_scratch_linear(struct kctx *c, const struct linear_job *jobs, int n_jobs, int32_t T);
void plan_scratch_matmul(struct kctx *c, int32_t M, int32_t N, int32_t K, bool tb);
void plan_scratch_linear_dx(struct kctx *c, const struct linear_job *jobs, int n_jobs, int32_t T);
void plan_scratch_attention(struct kctx *c, int32_t H, const int32_t *kv_of_head, const struct kv_view *kv,
                            const struct step_rows *rows);
void plan_scratch_rows(struct kctx *c, int32_t T, int32_t e);
void plan_scratch_rows_dx(struct kctx *c, int32_t T, int32_t H, const int32_t *kv_of_head, int32_t K,
                          int32_t e);
void plan_scratch_col_sum(struct kctx *c, int32_t T, int32_t n);
void plan_scratch_rmsnorm_dx(struct kctx *c, int32_t T, int32_t d, bool with_dg);
void plan_scratch_sum_squares(struct kctx *c, size_t n);

static inline size_t plan_floats(int64_t rows, int64_t cols) {
    return (size_t)rows * (size_t)cols * sizeof(float);
}

/* --- operations: as in kernels.h ------------------------------------------------------------- */

void plan_matmul(struct kctx *c, dev_addr out, int32_t M, int32_t N, int32_t K, dev_addr a, bool ta,
                 dev_addr b, bool tb, float alpha, float beta);
void plan_linear_dx(struct kctx *c, const struct linear_job *jobs, int n_jobs, dev_addr dx,
                    int32_t T, bool accumulate);
void plan_col_sum(struct kctx *c, dev_addr out, dev_addr x, int32_t T, int32_t n);
void plan_rmsnorm_dx(struct kctx *c, dev_addr dx, dev_addr dg, dev_addr dy, dev_addr x, dev_addr g,
                     int32_t T, int32_t d, float eps);
void plan_rope_rows(struct kctx *c, dev_addr x, int32_t heads, dev_addr cos_sin, int32_t T,
                    int32_t e, bool inverse);
void plan_attention_rows(struct kctx *c, dev_addr out, int32_t out_stride, dev_addr lse, dev_addr q,
                         int32_t H, dev_addr k, dev_addr v, int32_t K, const int32_t *kv_of_head,
                         int32_t e, dev_addr first, int32_t T, float scale, int32_t window);
void plan_attention_rows_dx(struct kctx *c, dev_addr dq, dev_addr dk, dev_addr dv, dev_addr dout,
                            dev_addr out, int32_t out_stride, dev_addr lse, dev_addr q, int32_t H,
                            dev_addr k, dev_addr v, int32_t K, const int32_t *kv_of_head, int32_t e,
                            dev_addr first, int32_t T, float scale, int32_t window);
void plan_silu_mul_dx(struct kctx *c, dev_addr dgate, dev_addr dup, dev_addr dout, dev_addr gate,
                      dev_addr up, int32_t T, int32_t F);
void plan_ce_stats(struct kctx *c, dev_addr stats, dev_addr logits, dev_addr labels, int32_t T,
                   int32_t V, int32_t first_row);
void plan_ce_grad(struct kctx *c, dev_addr loss, dev_addr logits, dev_addr stats, int32_t n,
                  dev_addr labels, dev_addr weight, int32_t T, int32_t V, int32_t first_row);
void plan_embed_rows(struct kctx *c, dev_addr out, dev_addr table, dev_addr ids, int32_t T,
                     int32_t d, int32_t V, int32_t first_row, float scale);
void plan_embed_grad(struct kctx *c, dev_addr grad, dev_addr dx, dev_addr ids, int32_t T, int32_t d,
                     int32_t V, int32_t first_row, float scale);
void plan_bf16_products(struct kctx *c, bool on);
void plan_narrow_activations(struct kctx *c, bool on);
void plan_narrow(struct kctx *c, dev_addr to, dev_addr from, size_t n);
void plan_widen(struct kctx *c, dev_addr to, dev_addr from, size_t n);
void plan_copy(struct kctx *c, dev_addr to, dev_addr from, size_t bytes);
void plan_axpy(struct kctx *c, dev_addr y, dev_addr x, size_t n, float a);
void plan_dropout(struct kctx *c, dev_addr out, dev_addr x, int32_t T, int32_t cols,
                  int32_t row_stride, int32_t col, float p, uint64_t seed, uint64_t first);
void plan_sum_squares(struct kctx *c, dev_addr out, dev_addr x, size_t n);
void plan_adamw(struct kctx *c, dev_addr p, dev_addr g, dev_addr m, dev_addr v, size_t n,
                const struct adamw_params *params, float grad_scale);

#endif
