/* kernels/cuda/train.h: the operations of training, as in kernels.h.
 *
 * Files in reading order: tile.h (64 x 64 products within a block), train_product.cu (matmul, linear_dx, linear
 * in bf16), train_attention.cu and train_attention_dx.cu, train_rows.cu (norms, rotation, activation, sums over
 * rows), train_loss.cu (cross entropy, embedding), train_elements.cu (dropout, sums of squares, AdamW).
 *
 * Bits repeat: every sum has one order, and nothing is added by atomics. */
#ifndef TPD_KERNELS_CUDA_TRAIN_H
#define TPD_KERNELS_CUDA_TRAIN_H

#include "kernels/cuda/cuda.h"

void cuda_matmul(struct kctx *c, dev_addr out, int32_t M, int32_t N, int32_t K, dev_addr a, bool ta,
                 dev_addr b, bool tb, float alpha, float beta);
void cuda_linear_dx(struct kctx *c, const struct linear_job *jobs, int n_jobs, dev_addr dx, int32_t T,
                    bool accumulate);
void cuda_bf16_products(struct kctx *c, bool on);
void cuda_col_sum(struct kctx *c, dev_addr out, dev_addr x, int32_t T, int32_t n);
void cuda_rmsnorm_dx(struct kctx *c, dev_addr dx, dev_addr dg, dev_addr dy, dev_addr x, dev_addr g,
                     int32_t T, int32_t d, float eps);
void cuda_rope_rows(struct kctx *c, dev_addr x, int32_t heads, dev_addr cos_sin, int32_t T, int32_t e,
                    bool inverse);
void cuda_attention_rows(struct kctx *c, dev_addr out, int32_t out_stride, dev_addr lse, dev_addr q, int32_t H,
                         dev_addr k, dev_addr v, int32_t K, const int32_t *kv_of_head, int32_t e,
                         dev_addr first, int32_t T, float scale, int32_t window);
void cuda_attention_rows_dx(struct kctx *c, dev_addr dq, dev_addr dk, dev_addr dv, dev_addr dout, dev_addr out,
                            int32_t out_stride, dev_addr lse, dev_addr q, int32_t H, dev_addr k, dev_addr v,
                            int32_t K, const int32_t *kv_of_head, int32_t e, dev_addr first, int32_t T,
                            float scale, int32_t window);
void cuda_silu_mul_dx(struct kctx *c, dev_addr dgate, dev_addr dup, dev_addr dout, dev_addr gate, dev_addr up,
                      int32_t T, int32_t F);
void cuda_ce_stats(struct kctx *c, dev_addr stats, dev_addr logits, dev_addr labels, int32_t T, int32_t V,
                   int32_t first_row);
void cuda_ce_grad(struct kctx *c, dev_addr loss, dev_addr logits, dev_addr stats, int32_t n, dev_addr labels,
                  dev_addr weight, int32_t T, int32_t V, int32_t first_row);
void cuda_embed_rows(struct kctx *c, dev_addr out, dev_addr table, dev_addr ids, int32_t T, int32_t d,
                     int32_t V, int32_t first_row, float scale);
void cuda_embed_grad(struct kctx *c, dev_addr grad, dev_addr dx, dev_addr ids, int32_t T, int32_t d, int32_t V,
                     int32_t first_row, float scale);
void cuda_train_narrow(struct kctx *c, dev_addr to, dev_addr from, size_t n);
void cuda_widen(struct kctx *c, dev_addr to, dev_addr from, size_t n);
void cuda_axpy(struct kctx *c, dev_addr y, dev_addr x, size_t n, float a);
void cuda_dropout(struct kctx *c, dev_addr out, dev_addr x, int32_t T, int32_t cols, int32_t row_stride,
                  int32_t col, float p, uint64_t seed, uint64_t first);
void cuda_sum_squares(struct kctx *c, dev_addr out, dev_addr x, size_t n);
void cuda_adamw(struct kctx *c, dev_addr p, dev_addr g, dev_addr m, dev_addr v, size_t n,
                const struct adamw_params *params, float grad_scale);

#endif
