/* kernels/cpu/layout.h: how weights stand in memory.
 *
 * A panel is 16 rows of the matrix. Plain types: for each k, 16 elements (bf16: for each pair of
 * k, 16 pairs, so that a lane's word has both: what products of bf16 read, see bf16.h). Quantised
 * types: for each block of the file, the fields of its 16 rows, each field 16 lanes wide, in the order
 *     scale f16[16] · minimum f16[16] · packed sub-scales u32[n][16] · planes u32[n][16]
 * Codes are unsigned; the weight of code 0 is 0 or the least, never amid. A plane holds some bits of
 * every code: word i, lane r has codes i*n … i*n+n-1 of row r, code c of them in byte c % 4 at bit
 * c / 4 * bits. So one load, a shift and a mask give four bytes of codes for each of 16 rows, which is
 * what the integer products multiply; and one more shift gives 16 codes of one k. It is the file's
 * bits in another order, not one byte more (the last panel is filled up with zeros). */
#ifndef TPD_KERNELS_CPU_LAYOUT_H
#define TPD_KERNELS_CPU_LAYOUT_H

#include "kernels/cpu/cpu.h"

struct plane {
    int bits;  /* 8, 4, 2 or 1 of each code */
    int shift; /* which */
};

struct layout {
    int d, min;             /* where the file's block has its f16 scale and minimum; -1 = none */
    int scales, scale_words; /* where it has packed sub-scales, in words of 4 bytes */
    struct plane planes[2]; /* bits 0 = no plane */
};

extern const struct layout layouts[DTYPE_COUNT];

static inline size_t layout_panel_bytes(enum dtype type, int32_t cols) {
    if (type == DTYPE_BF16) cols = round_up(cols, 2);
    return LANES * dtype_row_bytes(type, cols);
}

/* Puts n rows, as files have them, into lanes first … first+n-1 of a panel; the other lanes keep what they
 * hold. row has a readable row for every lane. */
void pack_rows(const struct panels *w, uint8_t *panel, const uint8_t *const row[LANES], int first, int n);

#endif
