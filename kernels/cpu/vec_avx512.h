/* 16 floats or ints in an AVX-512 register: see vec.h. */
#include <immintrin.h>

#define LEVEL_NAME "avx512"
#define LEVEL_TABLE cpu_level_avx512
#define MATMUL_ROWS 12   /* rows x 2 panels of accumulators: 24 of 32 registers */
#define MATVEC_STREAMS 4
#define INT8_ROWS 6 /* rows x 2 panels of integer sums and as many of totals: 24 of 32 registers */
#define INT8_SIDE 2
#define INT8_FEW_GROUPS 5 /* see int8_few_impl.h */

typedef __m512 vf;
typedef __m512i vi;

INLINE vf v_zero(void) { return _mm512_setzero_ps(); }
INLINE vf v_set1(float x) { return _mm512_set1_ps(x); }
INLINE vf v_load(const float *p) { return _mm512_loadu_ps(p); }
INLINE void v_store(float *p, vf a) { _mm512_storeu_ps(p, a); }
INLINE vf v_load_n(const float *p, int n) {
    return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
}
INLINE void v_store_n(float *p, vf a, int n) {
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), a);
}
INLINE vf v_add(vf a, vf b) { return _mm512_add_ps(a, b); }
INLINE vf v_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
INLINE vf v_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
INLINE vf v_div(vf a, vf b) { return _mm512_div_ps(a, b); }
INLINE vf v_max(vf a, vf b) { return _mm512_max_ps(a, b); }
INLINE vf v_min(vf a, vf b) { return _mm512_min_ps(a, b); }
INLINE vf v_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
INLINE vf v_sqrt(vf a) { return _mm512_sqrt_ps(a); }
INLINE vf v_zip_low(vf a, vf b) {
    return _mm512_permutex2var_ps(
        a, _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23), b);
}
INLINE vf v_zip_high(vf a, vf b) {
    return _mm512_permutex2var_ps(
        a, _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31), b);
}

INLINE void i_store(void *p, vi a) { _mm512_storeu_si512(p, a); }
INLINE vi i_load(const void *p) { return _mm512_loadu_si512(p); }
INLINE vi i_set1(int x) { return _mm512_set1_epi32(x); }
INLINE vi i_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
INLINE vi i_and(vi a, vi b) { return _mm512_and_si512(a, b); }
INLINE vi i_or(vi a, vi b) { return _mm512_or_si512(a, b); }
INLINE vi i_srl(vi a, int n) { return (vi)((__v16su)a >> n); }
INLINE vi i_sll(vi a, int n) { return (vi)((__v16su)a << n); }
INLINE vi i_sra(vi a, int n) { return (vi)((__v16si)a >> n); }
INLINE vf v_from_i(vi a) { return _mm512_cvtepi32_ps(a); }
INLINE vi i_round(vf a) { return _mm512_cvtps_epi32(a); }
INLINE vf v_cast(vi a) { return _mm512_castsi512_ps(a); }
INLINE vi i_cast(vf a) { return _mm512_castps_si512(a); }

INLINE vi i_sub(vi a, vi b) { return _mm512_sub_epi32(a, b); }
INLINE vi i_max(vi a, vi b) { return _mm512_max_epi32(a, b); }
INLINE int i_highest(vi a) { return _mm512_reduce_max_epi32(a); }
INLINE void i_store_bytes(void *p, vi a) { _mm_storeu_si128(p, _mm512_cvtepi32_epi8(a)); }
INLINE vi i_dot(vi sum, vi a, vi b) { return _mm512_dpbusd_epi32(sum, a, b); }
INLINE vi i_dot8_begin(vi minus_sum) { return i_sll(minus_sum, 7); }
INLINE vi i_dot8(vi sum, vi a, vi b) { return i_dot(sum, a, b); }

INLINE vi i_bytes(const void *p) { return _mm512_cvtepi8_epi32(_mm_loadu_si128(p)); }
INLINE float one_f16(uint16_t half) { return _cvtsh_ss(half); }
INLINE vf v_f16(const void *p) { return _mm512_cvtph_ps(_mm256_loadu_si256(p)); }
INLINE void v_store_f16(void *p, vf a) {
    _mm256_storeu_si256(p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}
INLINE vf v_bf16(const void *p) {
    return v_cast(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p)), 16));
}

INLINE float v_sum(vf a) {
    __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

INLINE float v_highest(vf a) { return _mm512_reduce_max_ps(a); }

INLINE void v_transpose(vf r[16]) {
    vf t[16];
    UNROLL for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    UNROLL for (int i = 0; i < 16; i += 4)
        UNROLL for (int j = 0; j < 2; j++) {
            __m512d a = _mm512_castps_pd(t[i + j]), b = _mm512_castps_pd(t[i + j + 2]);
            r[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
            r[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
        }
    /* Now quarter q of r[i + j] is column 4q + j of rows i … i+3. */
    UNROLL for (int j = 0; j < 4; j++) {
        vf even_low = _mm512_shuffle_f32x4(r[j], r[4 + j], 0x88);
        vf odd_low = _mm512_shuffle_f32x4(r[j], r[4 + j], 0xDD);
        vf even_high = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0x88);
        vf odd_high = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0xDD);
        t[j] = _mm512_shuffle_f32x4(even_low, even_high, 0x88);
        t[4 + j] = _mm512_shuffle_f32x4(odd_low, odd_high, 0x88);
        t[8 + j] = _mm512_shuffle_f32x4(even_low, even_high, 0xDD);
        t[12 + j] = _mm512_shuffle_f32x4(odd_low, odd_high, 0xDD);
    }
    UNROLL for (int i = 0; i < 16; i++) r[i] = t[i];
}

/* Codes become floats by looking them up: the permutation reads only the low bits of an index. */
#define VEC_LOOKS_UP
INLINE vf v_code4(vi a) {
    const vf table = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_permutexvar_ps(a, table);
}
INLINE vf v_code4s(vi a) {
    const vf table = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
    return _mm512_permutexvar_ps(a, table);
}
INLINE vf v_code2(vi a) {
    const vf table = _mm512_setr_ps(0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3);
    return _mm512_permutexvar_ps(a, table);
}
INLINE vf v_code3s(vi a) {
    const vf table = _mm512_setr_ps(-4, -3, -2, -1, 0, 1, 2, 3, -4, -3, -2, -1, 0, 1, 2, 3);
    return _mm512_permutexvar_ps(a, table);
}
INLINE vf v_code5(vi a) {
    const vf low = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const vf high = _mm512_setr_ps(16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31);
    return _mm512_permutex2var_ps(low, a, high);
}
INLINE vf v_code5s(vi a) {
    const vf low = _mm512_setr_ps(-16, -15, -14, -13, -12, -11, -10, -9, -8, -7, -6, -5, -4, -3,
                                  -2, -1);
    const vf high = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_permutex2var_ps(low, a, high);
}

/* Products of bf16 pairs, for functions marked BF16 alone: not every CPU of this level has them. */
#define VEC_BF16
#define BF16 __attribute__((target("avx512bf16")))
/* a's 16 values, then b's, rounded to even. */
BF16 INLINE vi i_bf16_joined(vf a, vf b) { return (vi)_mm512_cvtne2ps_pbh(b, a); }
/* Lane i: a's value in the low half, b's in the high one. */
BF16 INLINE vi i_bf16_pairs(vf a, vf b) {
    __m512i low = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(a));
    __m512i high = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(b));
    return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}
/* Of 32 bf16 in a and b each: word i has a's i-th in the low half and b's in the high one; i from 0, from 16. */
INLINE vi i_bf16_zip_low(vi a, vi b) {
    const __m512i index = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7,
                                           38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    return _mm512_permutex2var_epi16(a, index, b);
}
INLINE vi i_bf16_zip_high(vi a, vi b) {
    const __m512i index = _mm512_set_epi16(63, 31, 62, 30, 61, 29, 60, 28, 59, 27, 58, 26, 57, 25, 56, 24, 55, 23,
                                           54, 22, 53, 21, 52, 20, 51, 19, 50, 18, 49, 17, 48, 16);
    return _mm512_permutex2var_epi16(a, index, b);
}
/* The low halves of all lanes, then the high ones. */
INLINE vi i_halves_apart(vi a) {
    const __m512i low_then_high = _mm512_set_epi16(
        31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1, 30, 28, 26, 24, 22, 20, 18, 16, 14,
        12, 10, 8, 6, 4, 2, 0);
    return _mm512_permutexvar_epi16(low_then_high, a);
}
/* sum + both products of each lane's pairs. */
BF16 INLINE vf v_add_bf16_products(vf sum, vf a, vf b) {
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}

/* For powers of two: x - floor(x), 0 where x is infinite; a 2^floor(b). */
INLINE vf v_fraction(vf x) { return _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }
INLINE vf v_times_power(vf a, vf b) { return _mm512_scalef_ps(a, b); }
/* Lanes whose bit is not in `seen` are -inf. */
INLINE vf v_load_seen(const float *p, uint16_t seen) {
    return _mm512_mask_loadu_ps(_mm512_set1_ps(-__builtin_inff()), seen, p);
}
INLINE float v_first(vf a) { return _mm512_cvtss_f32(a); }
