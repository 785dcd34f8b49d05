/* kernels/cpu/bf16.h: weights in bf16 times activations that are bf16 as well.
 *
 * A row of x is rounded to bf16 (to nearest even), its columns in pairs, as layout.h has those of the
 * weights: one product adds two columns to 16 outputs. An output is one chain of such products from 0
 * in ascending k, in fp32, the bias last. An instruction set may round within a product as it likes
 * (these flush what is denormal), but must do the same for one row and for many: so a row's bits depend
 * on nothing but the row and the weights.
 *
 * Where the CPU has no such products, x stays fp32 and linear_impl.h widens the weights. */
#ifndef TPD_KERNELS_CPU_BF16_H
#define TPD_KERNELS_CPU_BF16_H

#include "kernels/cpu/cpu.h"

/* Words of a row (struct narrow_rows, whose words are 64 bytes aligned here): 64 bytes hold 32 columns. What is
 * in a group is between prepare and matmul of one instruction set; columns beyond the last are 0. */
static inline size_t x16_row_words(int32_t cols) { return (size_t)round_up(cols, 32) / 2; }
/* What the group of row `first` has from column k, a multiple of 32, on. */
static inline uint32_t *group16_at(const struct narrow_rows *x, int32_t first, int32_t k) {
    return x->words + (size_t)first * x16_row_words(x->cols) + (size_t)(k / 2) * (size_t)group_size(x, first);
}

/* Attention with operands in bf16 (attention_bf16_avx512.c), for caches that are not f32; rows are as in struct
 * cpu_level. scratch: attention_scratch(e) bytes. */
void attention_bf16(const struct attention_job *job, const struct attention_unit *unit, void *scratch);

/* One instruction set's loops. The panels of w are as they stand in memory, 64 bytes for each pair of k:
 * 16 outputs by 2 k, which is also what a row of an AMX tile of TDPBF16PS's second operand holds (16 such
 * rows, 32 k, to a tile). An odd last column has 0 beside it. */
struct cpu_bf16 {
    int rows; /* a group has so many at most, */
    int few;  /* unless so many are all there are: these are one group */
    /* Rounds a part of x [n_rows, cols]. */
    void (*prepare)(const struct narrow_rows *to, const float *x, const struct narrow_part *part);
    /* y[from*16 …] for panels from … to-1; x has one row. */
    void (*matvec)(const struct panels *w, int32_t from, int32_t to, const struct narrow_rows *x,
                   const float *bias, float *y);
    /* y [n_rows, rows of w]. scratch: BF16_SCRATCH bytes. */
    void (*matmul)(const struct panels *w, int32_t from, int32_t to, const struct narrow_rows *x,
                   const float *bias, float *y, void *scratch);
};

extern const struct cpu_bf16 cpu_bf16_avx512;

enum {
    X16_ROWS_MAX = 192,      /* rows rounded at once */
    X16_BYTES = 1024 * 1024, /* or fewer, where they would take more */
    BF16_PANELS = 4,         /* panels whose sums a product keeps */
    BF16_SCRATCH = X16_ROWS_MAX * BF16_PANELS * LANES * 4
};

#endif
