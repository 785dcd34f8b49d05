/* Parts of products in int8 (int8.h) that do not depend on how their integers are summed: codes out of
 * panels (layout.h, weights_impl.h), and what a block of x has beside its own. */
#include "kernels/cpu/int8.h"

#include <string.h>

INLINE vi x_word(const uint32_t *x) { return i_set1((int)*x); }
INLINE vf x_float(const uint32_t *x) {
    float f;
    memcpy(&f, x, 4);
    return v_set1(f);
}

/* Cache lines that a panel has for X8_BLOCK k, about. */
INLINE int32_t panel8_lines(const struct panels *w) {
    return (int32_t)(w->panel_bytes / (size_t)(w->cols / X8_BLOCK) / 64) + 1;
}

/* --- codes: bytes_TYPE gives codes 4i … 4i+3 of a run (weights_impl.h) --------------------------- */

INLINE vi each_byte(vi a, int mask) { return i_and(a, i_set1(mask * 0x01010101)); }

INLINE vi bytes_q8_0(const struct run *r, int i) { return word_at(r->low, i); }
INLINE vi bytes_q4_0(const struct run *r, int i) {
    vi word = word_at(r->low, i / 2);
    return each_byte(i % 2 ? i_srl(word, 4) : word, 15);
}
INLINE vi bytes_q4_1(const struct run *r, int i) { return bytes_q4_0(r, i); }
INLINE vi bytes_q4_k(const struct run *r, int i) { return bytes_q4_0(r, i); }
INLINE vi bytes_q5_0(const struct run *r, int i) {
    return i_or(bytes_q4_0(r, i), each_byte(i_moved(r->high, i, 4), 16));
}
INLINE vi bytes_q5_1(const struct run *r, int i) { return bytes_q5_0(r, i); }
INLINE vi bytes_q5_k(const struct run *r, int i) { return bytes_q5_0(r, i); }
INLINE vi bytes_q2_k(const struct run *r, int i) { return each_byte(i_srl(r->high, 2 * i), 3); }
INLINE vi bytes_q3_k(const struct run *r, int i) {
    return i_or(each_byte(i_srl(i_load(r->low), 2 * i), 3), each_byte(i_moved(r->high, i, 2), 4));
}
INLINE vi bytes_q6_k(const struct run *r, int i) {
    return i_or(bytes_q4_0(r, i), each_byte(i_moved(r->high, 2 * i, 4), 48));
}

/* Where the code of weight 0 lies: at 1 << zero, or at 0, and a minimum is added. */
enum { MIN = -1, EIGHT_BITS = 7 };

/* type, suffix, k of a run, k of a block, its bytes, zero */
#define INT8_TYPES(X)                                                                          \
    X(DTYPE_Q8_0, q8_0, 32, 32, 34, EIGHT_BITS) X(DTYPE_Q4_0, q4_0, 32, 32, 18, 3)             \
    X(DTYPE_Q4_1, q4_1, 32, 32, 20, MIN) X(DTYPE_Q5_0, q5_0, 32, 32, 22, 4)                    \
    X(DTYPE_Q5_1, q5_1, 32, 32, 24, MIN) X(DTYPE_Q2_K, q2_k, 16, 256, 84, MIN)                 \
    X(DTYPE_Q3_K, q3_k, 16, 256, 110, 2) X(DTYPE_Q4_K, q4_k, 32, 256, 144, MIN)                \
    X(DTYPE_Q5_K, q5_k, 32, 256, 176, MIN) X(DTYPE_Q6_K, q6_k, 16, 256, 210, 5)

/* Minus the sum of x's codes over a run: the block's, or that of its half (0 or 1). Words of x are
 * n apart. */
INLINE vi minus_sum(const uint32_t *x, size_t n, int run, int half) {
    vi all = x_word(x + X8_MINUS * n);
    if (run == X8_BLOCK) return all;
    vi low = x_word(x + X8_MINUS_LOW * n);
    return half ? i_sub(all, low) : low;
}
/* Its scale times the sum. */
INLINE vf scaled_sum(const uint32_t *x, size_t n, int run, int half) {
    if (run == X8_BLOCK) return x_float(x + X8_SUM * n);
    vi sum = i_sub(i_set1(0), minus_sum(x, n, run, half));
    return v_mul(v_from_i(sum), x_float(x + X8_SCALE * n));
}
/* The output so far and a run's integer sum. */
INLINE vf total_add(vf total, vi sum, vf scale, vf x_scale) {
    return v_fma(v_from_i(sum), v_mul(scale, x_scale), total);
}
