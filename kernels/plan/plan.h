/* kernels/plan/plan.h: inside of the plan backend. plan.c has the context, memory and the forward's
 * operations, plan_train.c those of training. */
#ifndef TPD_KERNELS_PLAN_PLAN_H
#define TPD_KERNELS_PLAN_PLAN_H

#include "kernels/kernels.h"

/* Count an operand; one that is not whole in one live allocation marks the context. op names the
 * operation in the message. An operand that is updated in place counts as both. */
void plan_reads(struct kctx *c, dev_addr at, size_t bytes, const char *op);
void plan_writes(struct kctx *c, dev_addr at, size_t bytes, const char *op);
/* Counts one operation. */
void plan_work(struct kctx *c, uint64_t flops);

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
