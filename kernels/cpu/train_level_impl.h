/* The loops of training at one level, and their table. */
#include "kernels/cpu/product_impl.h"

#include "kernels/cpu/attention_rows_impl.h"

#include "kernels/cpu/train_impl.h"

static const struct cpu_train train_loops = {
    .product = block_product,
    .attention_tile = attention_tile,
    .attention_dq = attention_dq,
    .attention_dkv = attention_dkv,
    .col_sum = col_sum,
    .rmsnorm_dx = rmsnorm_dx,
    .rotate_heads = rotate_heads,
    .silu_mul_dx = silu_mul_dx,
    .axpy = axpy,
    .row_max = row_max,
    .sum_exp = sum_exp,
    .softmax_grad = softmax_grad,
    .dropout = dropout,
    .narrow = narrow_rows,
    .widen = widen_rows,
    .sum_squares = sum_squares,
    .adamw = adamw,
};
