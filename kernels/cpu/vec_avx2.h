/* 16 floats or ints in two AVX2 registers: see vec.h. */
#include <immintrin.h>

#define LEVEL_NAME "avx2"
#define LEVEL_TABLE cpu_level_avx2
#define MATMUL_ROWS 3 /* rows x 2 panels of accumulators: 12 of 16 registers */
#define MATVEC_STREAMS 2
#define INT8_ROWS 3 /* rows of integer sums and of totals: 12 of 16 registers */
#define INT8_SIDE 1

typedef struct {
    __m256 a, b;
} vf;
typedef struct {
    __m256i a, b;
} vi;

INLINE __m256i low_lanes(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

INLINE vf v_set1(float x) { return (vf){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
INLINE vf v_zero(void) { return v_set1(0); }
INLINE vf v_load(const float *p) { return (vf){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
INLINE void v_store(float *p, vf x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
INLINE vf v_load_n(const float *p, int n) {
    return (vf){_mm256_maskload_ps(p, low_lanes(n)), _mm256_maskload_ps(p + 8, low_lanes(n - 8))};
}
INLINE void v_store_n(float *p, vf x, int n) {
    _mm256_maskstore_ps(p, low_lanes(n), x.a);
    _mm256_maskstore_ps(p + 8, low_lanes(n - 8), x.b);
}
#define PAIR(type, name, op) \
    INLINE type name(type x, type y) { return (type){op(x.a, y.a), op(x.b, y.b)}; }
PAIR(vf, v_add, _mm256_add_ps)
PAIR(vf, v_sub, _mm256_sub_ps)
PAIR(vf, v_mul, _mm256_mul_ps)
PAIR(vf, v_div, _mm256_div_ps)
PAIR(vf, v_max, _mm256_max_ps)
PAIR(vf, v_min, _mm256_min_ps)
PAIR(vi, i_add, _mm256_add_epi32)
PAIR(vi, i_sub, _mm256_sub_epi32)
PAIR(vi, i_max, _mm256_max_epi32)
PAIR(vi, i_and, _mm256_and_si256)
PAIR(vi, i_or, _mm256_or_si256)
#undef PAIR
INLINE vf v_fma(vf x, vf y, vf z) {
    return (vf){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
INLINE vf v_sqrt(vf x) { return (vf){_mm256_sqrt_ps(x.a), _mm256_sqrt_ps(x.b)}; }
INLINE vf zip_eight(__m256 x, __m256 y) {
    __m256 low = _mm256_unpacklo_ps(x, y), high = _mm256_unpackhi_ps(x, y);
    return (vf){_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31)};
}
INLINE vf v_zip_low(vf x, vf y) { return zip_eight(x.a, y.a); }
INLINE vf v_zip_high(vf x, vf y) { return zip_eight(x.b, y.b); }

INLINE vi i_load(const void *p) {
    const __m256i *q = p;
    return (vi){_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
INLINE void i_store(void *p, vi x) {
    __m256i *q = p;
    _mm256_storeu_si256(q, x.a);
    _mm256_storeu_si256(q + 1, x.b);
}
INLINE vi i_set1(int x) { return (vi){_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
#define SHIFT(name, lanes, op) \
    INLINE vi name(vi x, int n) { \
        return (vi){(__m256i)((lanes)x.a op n), (__m256i)((lanes)x.b op n)}; \
    }
SHIFT(i_srl, __v8su, >>)
SHIFT(i_sll, __v8su, <<)
SHIFT(i_sra, __v8si, >>)
#undef SHIFT
INLINE vf v_from_i(vi x) { return (vf){_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
INLINE vi i_round(vf x) { return (vi){_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
INLINE vf v_cast(vi x) { return (vf){_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
INLINE vi i_cast(vf x) { return (vi){_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }

INLINE int i_highest(vi x) {
    __m256i b = _mm256_max_epi32(x.a, x.b);
    __m128i c = _mm_max_epi32(_mm256_castsi256_si128(b), _mm256_extracti128_si256(b, 1));
    c = _mm_max_epi32(c, _mm_shuffle_epi32(c, 0x4E));
    return _mm_cvtsi128_si32(_mm_max_epi32(c, _mm_shuffle_epi32(c, 0xB1)));
}
INLINE void i_store_bytes(void *p, vi x) {
    __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xD8);
    _mm_storeu_si128(p, _mm_packs_epi16(_mm256_castsi256_si128(words),
                                        _mm256_extracti128_si256(words, 1)));
}
#ifdef __AVXVNNI__
INLINE vi i_dot(vi sum, vi x, vi y) {
    return (vi){_mm256_dpbusd_avx_epi32(sum.a, x.a, y.a), _mm256_dpbusd_avx_epi32(sum.b, x.b, y.b)};
}
INLINE vi i_dot8_begin(vi minus_sum) {
    return (vi){_mm256_slli_epi32(minus_sum.a, 7), _mm256_slli_epi32(minus_sum.b, 7)};
}
INLINE vi i_dot8(vi sum, vi x, vi y) { return i_dot(sum, x, y); }
#else
/* Sums of two products fit 16 bits when no code is above 127. */
INLINE __m256i dot_eight(__m256i sum, __m256i x, __m256i y) {
    __m256i pairs = _mm256_maddubs_epi16(x, y);
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
INLINE vi i_dot(vi sum, vi x, vi y) {
    return (vi){dot_eight(sum.a, x.a, y.a), dot_eight(sum.b, x.b, y.b)};
}
/* Codes less 128 are at most 128 in size; the sign goes over to the other factor. */
INLINE __m256i dot_eight_signed(__m256i sum, __m256i x, __m256i y) {
    x = _mm256_xor_si256(x, _mm256_set1_epi8(-128));
    return dot_eight(sum, _mm256_abs_epi8(x), _mm256_sign_epi8(y, x));
}
INLINE vi i_dot8_begin(vi minus_sum) {
    (void)minus_sum;
    return (vi){_mm256_setzero_si256(), _mm256_setzero_si256()};
}
INLINE vi i_dot8(vi sum, vi x, vi y) {
    return (vi){dot_eight_signed(sum.a, x.a, y.a), dot_eight_signed(sum.b, x.b, y.b)};
}
#endif

INLINE vi i_bytes(const void *p) {
    __m128i bytes = _mm_loadu_si128(p);
    return (vi){_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8))};
}
INLINE float one_f16(uint16_t half) { return _cvtsh_ss(half); }
INLINE vf v_f16(const void *p) {
    const __m128i *q = p;
    return (vf){_mm256_cvtph_ps(_mm_loadu_si128(q)), _mm256_cvtph_ps(_mm_loadu_si128(q + 1))};
}
INLINE void v_store_f16(void *p, vf x) {
    __m128i *q = p;
    _mm_storeu_si128(q, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(q + 1, _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
}
INLINE vf v_bf16(const void *p) {
    const __m128i *q = p;
    vi x = {_mm256_cvtepu16_epi32(_mm_loadu_si128(q)),
            _mm256_cvtepu16_epi32(_mm_loadu_si128(q + 1))};
    return v_cast(i_sll(x, 16));
}

INLINE float v_sum(vf x) {
    __m256 b = _mm256_add_ps(x.a, x.b);
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

INLINE float v_highest(vf x) {
    __m256 b = _mm256_max_ps(x.a, x.b);
    __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_max_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}

INLINE void transpose8(__m256 r[8]) {
    __m256 t[8];
    UNROLL for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    UNROLL for (int i = 0; i < 8; i += 4)
        UNROLL for (int j = 0; j < 2; j++) {
            __m256d a = _mm256_castps_pd(t[i + j]), b = _mm256_castps_pd(t[i + j + 2]);
            r[i + 2 * j] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, b));
            r[i + 2 * j + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, b));
        }
    /* Now half h of r[i + j] is column 4h + j of rows i … i+3. */
    UNROLL for (int j = 0; j < 4; j++) {
        t[j] = _mm256_permute2f128_ps(r[j], r[4 + j], 0x20);
        t[4 + j] = _mm256_permute2f128_ps(r[j], r[4 + j], 0x31);
    }
    UNROLL for (int i = 0; i < 8; i++) r[i] = t[i];
}

INLINE void v_transpose(vf r[16]) {
    __m256 q[4][8]; /* quarters: upper left, upper right, lower left, lower right */
    UNROLL for (int i = 0; i < 8; i++) {
        q[0][i] = r[i].a, q[1][i] = r[i].b;
        q[2][i] = r[i + 8].a, q[3][i] = r[i + 8].b;
    }
    for (int i = 0; i < 4; i++) transpose8(q[i]);
    UNROLL for (int i = 0; i < 8; i++) {
        r[i] = (vf){q[0][i], q[2][i]};
        r[i + 8] = (vf){q[1][i], q[3][i]};
    }
}
