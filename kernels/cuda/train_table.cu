/* The operations of training in the table of the CUDA backend. */
#include "kernels/cuda/train.h"

void cuda_train_table(struct kernels *k) {
    k->matmul = cuda_matmul;
    k->linear_dx = cuda_linear_dx;
    k->col_sum = cuda_col_sum;
    k->rmsnorm_dx = cuda_rmsnorm_dx;
    k->rope_rows = cuda_rope_rows;
    k->attention_rows = cuda_attention_rows;
    k->attention_rows_dx = cuda_attention_rows_dx;
    k->silu_mul_dx = cuda_silu_mul_dx;
    k->ce_stats = cuda_ce_stats;
    k->ce_grad = cuda_ce_grad;
    k->embed_rows = cuda_embed_rows;
    k->embed_grad = cuda_embed_grad;
    k->bf16_products = cuda_bf16_products;
    k->narrow = cuda_train_narrow;
    k->widen = cuda_widen;
    k->axpy = cuda_axpy;
    k->dropout = cuda_dropout;
    k->sum_squares = cuda_sum_squares;
    k->adamw = cuda_adamw;
}
