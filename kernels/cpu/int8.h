/* kernels/cpu/int8.h: quantised weights times activations that are int8 as well.
 *
 * A row of x is cut into blocks of 32, each with a scale of its own (the largest magnitude is 127);
 * blocks lie at multiples of 32 columns, which divide every weight type's block. For each block of x
 * the products with the weights' codes are summed in integers, exactly; the sum times both scales is
 * added to the output, one fused step a run of codes that share a scale, in ascending k, from 0, the
 * bias last. So a row's bits depend on nothing but the row and the weights; levels that fuse give
 * the same bits.
 *
 * Weights with a minimum (w = d code + m) add m times the sum of x's block. Where the codes' zero
 * lies amid (w = d (code - z)), the integer sum begins at -z times the sum of x's codes. */
#ifndef TPD_KERNELS_CPU_INT8_H
#define TPD_KERNELS_CPU_INT8_H

#include "kernels/cpu/cpu.h"

/* What a row has for each block, in words of 4 bytes. */
enum {
    X8_CODES = 0,     /* 8 words, 4 codes each */
    X8_SCALE = 8,     /* f32 */
    X8_SUM = 9,       /* f32: scale times the sum of the codes */
    X8_MINUS = 10,    /* minus the sum of the codes, i32 */
    X8_MINUS_LOW = 11, /* minus that of the first 16 */
    X8_WORDS = 12
};
enum { X8_BLOCK = 32 };

/* Words of a row (struct narrow_rows). Block b of a group has word i of each of its rows side by side, so that a
 * product reads on in one direction. */
static inline size_t x8_row_words(int32_t cols) { return (size_t)(cols / X8_BLOCK) * X8_WORDS; }
/* What the group of row `first` has from column k, a multiple of 32, on. */
static inline uint32_t *group8_at(const struct narrow_rows *x, int32_t first, int32_t k) {
    return x->words + (size_t)first * x8_row_words(x->cols) +
           (size_t)(k / X8_BLOCK * X8_WORDS) * (size_t)group_size(x, first);
}

/* One instruction set's loops. */
struct cpu_int8 {
    int rows; /* a group has so many at most */
    /* Rounds a part of x [n_rows, cols]. */
    void (*quantise)(const struct narrow_rows *to, const float *x, const struct narrow_part *part);
    /* y[from*16 …] for panels from … to-1; x has one row. */
    void (*matvec)(const struct panels *w, int32_t from, int32_t to, const struct narrow_rows *x,
                   const float *bias, float *y);
    /* y [n_rows, rows of w]. scratch: INT8_SCRATCH bytes. */
    void (*matmul)(const struct panels *w, int32_t from, int32_t to, const struct narrow_rows *x,
                   const float *bias, float *y, void *scratch);
};

extern const struct cpu_int8 cpu_int8_portable, cpu_int8_avx2, cpu_int8_avxvnni, cpu_int8_avx512;

enum {
    X8_ROWS_MAX = 192,         /* rows quantised at once */
    X8_BYTES = 1024 * 1024,    /* or fewer, where they would take more */
    INT8_CHUNK = 768,          /* k whose codes are unpacked at once: with INT8_PANELS half of 48 KB */
    INT8_PANELS = 2,           /* panels unpacked at once */
    INT8_SCRATCH = INT8_PANELS * (INT8_CHUNK * LANES + 2 * INT8_CHUNK / 16 * LANES * 4 +
                                  X8_ROWS_MAX * LANES * 4)
};

#endif
