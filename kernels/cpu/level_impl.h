/* The loops of one level, in the order they need each other, and its table. */
#include "kernels/cpu/weights_impl.h"

#include "kernels/cpu/linear_impl.h"

#include "kernels/cpu/rows_impl.h"

#include "kernels/cpu/attention_impl.h"

#include "kernels/cpu/train_level_impl.h"

const struct cpu_level LEVEL_TABLE = {
    .name = LEVEL_NAME,
    .matvec = matvec,
    .matmul = matmul,
    .dequant = dequant,
    .rmsnorm = rmsnorm,
    .silu_mul = silu_mul,
    .scale = scale_all,
    .rotate = rotate,
    .narrow = narrow,
    .attention = attention,
    .train = &train_loops,
};
