/* kernels/cpu/scratch.h: how much the operations work in beside their operands. Operations ask here, and
 * plans count here (kernels/plan), so that what is planned is what is taken. Of the others: PRODUCT_SCRATCH
 * and rows_attention_scratch (train.h), attention_scratch (cpu.h). */
#ifndef TPD_KERNELS_CPU_SCRATCH_H
#define TPD_KERNELS_CPU_SCRATCH_H

#include "kernels/cpu/bf16.h"
#include "kernels/cpu/int8.h"
#include "kernels/cpu/train.h"

enum { SCRATCH_PAGE = 4096 }; /* what is asked for is filled up to pages */

static inline size_t scratch_round(size_t bytes) {
    return (bytes + SCRATCH_PAGE - 1) / SCRATCH_PAGE * SCRATCH_PAGE;
}

/* What a linear rounds x to: rows that a group has at most of int8 and of bf16; 0: x is not rounded to that. */
struct narrow_groups {
    int int8, bf16;
};

/* Bytes of a rounded row; a whole number of cache lines. */
static inline size_t x8_row_bytes(int32_t cols) { return (x8_row_words(cols) * 4 + 63) / 64 * 64; }
static inline size_t x16_row_bytes(int32_t cols) { return x16_row_words(cols) * 4; }

/* How many rows are rounded at once: their x stays in the second-level cache while all weights pass by. */
static inline int32_t narrow_rows_of(size_t bytes, size_t row_bytes, int32_t most, int group, int32_t T) {
    int32_t n = row_bytes == 0 || bytes / row_bytes > (size_t)most ? most : (int32_t)(bytes / row_bytes);
    n = n < group ? group : n / group * group;
    return n < T ? n : T;
}

/* Bytes for each member of the team; for the rows of x that are rounded at once, which all members share; and
 * how many those are (all T where x is not rounded). */
struct linear_scratch {
    size_t member, narrow;
    int32_t rows;
};

static inline struct linear_scratch linear_scratch(struct narrow_groups g, int32_t cols, int32_t T) {
    struct linear_scratch s = {MATMUL_SCRATCH, 0, T};
    size_t row = 0; /* one row each member rounds for itself */
    if (g.int8) {
        s.rows = narrow_rows_of(X8_BYTES, x8_row_bytes(cols), X8_ROWS_MAX, g.int8, s.rows);
        row += x8_row_bytes(cols);
        if (s.member < INT8_SCRATCH) s.member = INT8_SCRATCH;
    }
    if (g.bf16) {
        s.rows = narrow_rows_of(X16_BYTES, x16_row_bytes(cols), X16_ROWS_MAX, g.bf16, s.rows);
        row += x16_row_bytes(cols);
        if (s.member < BF16_SCRATCH) s.member = BF16_SCRATCH;
    }
    if (s.member < row) s.member = row;
    s.narrow = (size_t)s.rows * row;
    return s;
}

/* A panel's rows of the table, dequantised. */
enum { EMBED_SCRATCH = K_CHUNK * LANES * sizeof(float) };

static inline size_t rmsnorm_dx_scratch(int32_t T) { return (size_t)T * sizeof(float); }

enum { SQUARES_PIECE = 1 << 16 };
static inline size_t squares_pieces(size_t n) { return (n + SQUARES_PIECE - 1) / SQUARES_PIECE; }
static inline size_t sum_squares_scratch(size_t n) { return squares_pieces(n) * sizeof(double); }

#endif
