/* 16 floats or ints as the compiler's own vectors, for any machine: see vec.h. Sums are not fused
 * here, so bits differ from the other levels in the last place. */
#include <math.h>
#include <string.h>

#define LEVEL_NAME "portable"
#define LEVEL_TABLE cpu_level_portable
#define MATMUL_ROWS 2
#define MATVEC_STREAMS 1
#define INT8_ROWS 2
#define INT8_SIDE 1

#pragma GCC diagnostic ignored "-Wpsabi" /* vectors are only passed to inlined functions */

typedef float vf __attribute__((vector_size(64), aligned(16)));
typedef int32_t vi __attribute__((vector_size(64), aligned(16)));
typedef uint32_t vu __attribute__((vector_size(64), aligned(16)));

INLINE vf v_set1(float x) { return (vf){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }
INLINE vf v_zero(void) { return v_set1(0); }
INLINE vf v_load_n(const float *p, int n) {
    vf x = v_zero();
    memcpy(&x, p, (size_t)n * 4);
    return x;
}
INLINE void v_store_n(float *p, vf x, int n) { memcpy(p, &x, (size_t)n * 4); }
INLINE vf v_load(const float *p) { return v_load_n(p, 16); }
INLINE void v_store(float *p, vf x) { v_store_n(p, x, 16); }
INLINE vf v_add(vf x, vf y) { return x + y; }
INLINE vf v_sub(vf x, vf y) { return x - y; }
INLINE vf v_mul(vf x, vf y) { return x * y; }
INLINE vf v_div(vf x, vf y) { return x / y; }
INLINE vf v_cast(vi x) { return (vf)x; }
INLINE vf v_max(vf x, vf y) {
    vi m = x > y;
    return (vf)(((vi)x & m) | ((vi)y & ~m));
}
INLINE vf v_min(vf x, vf y) {
    vi m = x < y;
    return (vf)(((vi)x & m) | ((vi)y & ~m));
}
INLINE vf v_fma(vf x, vf y, vf z) { return x * y + z; }
INLINE vf v_sqrt(vf x) {
    for (int i = 0; i < 16; i++) x[i] = sqrtf(x[i]);
    return x;
}
INLINE vf v_zip_low(vf x, vf y) {
    vf z;
    for (int i = 0; i < 16; i++) z[i] = i % 2 ? y[i / 2] : x[i / 2];
    return z;
}
INLINE vf v_zip_high(vf x, vf y) {
    vf z;
    for (int i = 0; i < 16; i++) z[i] = i % 2 ? y[8 + i / 2] : x[8 + i / 2];
    return z;
}

INLINE vi i_load(const void *p) {
    vi x;
    memcpy(&x, p, 64);
    return x;
}
INLINE void i_store(void *p, vi x) { memcpy(p, &x, 64); }
INLINE vi i_set1(int x) { return (vi){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }
INLINE vi i_add(vi x, vi y) { return x + y; }
INLINE vi i_sub(vi x, vi y) { return x - y; }
INLINE vi i_max(vi x, vi y) {
    vi m = x > y;
    return (x & m) | (y & ~m);
}
INLINE vi i_and(vi x, vi y) { return x & y; }
INLINE vi i_or(vi x, vi y) { return x | y; }
INLINE vi i_srl(vi x, int n) { return (vi)((vu)x >> n); }
INLINE vi i_sll(vi x, int n) { return (vi)((vu)x << n); }
INLINE vi i_sra(vi x, int n) { return x >> n; }
INLINE vi i_cast(vf x) { return (vi)x; }
INLINE int i_highest(vi x) {
    int highest = x[0];
    for (int i = 1; i < 16; i++)
        if (x[i] > highest) highest = x[i];
    return highest;
}
INLINE void i_store_bytes(void *p, vi x) {
    int8_t byte[16];
    for (int i = 0; i < 16; i++) byte[i] = (int8_t)x[i];
    memcpy(p, byte, 16);
}
static __attribute__((noinline, unused)) vi i_dot(vi sum, vi x, vi y) { /* too long to repeat */
    for (int i = 0; i < 4; i++)
        sum += (vi)((vu)x >> (8 * i) & 255) * ((vi)((vu)y << (24 - 8 * i)) >> 24);
    return sum;
}
INLINE vi i_dot8_begin(vi minus_sum) { return minus_sum * 128; }
INLINE vi i_dot8(vi sum, vi x, vi y) { return i_dot(sum, x, y); }
INLINE vf v_from_i(vi x) { return __builtin_convertvector(x, vf); }
INLINE vi i_round(vf x) {
    const float shift = 12582912; /* 1.5 * 2^23: adding it rounds to even; for |x| < 2^22 */
    return __builtin_convertvector((x + shift) - shift, vi);
}

/* 16 signed bytes. */
INLINE vi i_bytes(const void *p) {
    int8_t byte[16];
    vi x;
    memcpy(byte, p, 16);
    for (int i = 0; i < 16; i++) x[i] = byte[i];
    return x;
}
INLINE float one_f16(uint16_t half) { return f16_to_f32(half); }
INLINE vf v_f16(const void *p) {
    uint16_t half[16];
    float x[16];
    memcpy(half, p, 32);
    for (int i = 0; i < 16; i++) x[i] = f16_to_f32(half[i]);
    return v_load(x);
}
INLINE void v_store_f16(void *p, vf x) {
    uint16_t half[16];
    for (int i = 0; i < 16; i++) half[i] = f32_to_f16(x[i]);
    memcpy(p, half, 32);
}
INLINE vf v_bf16(const void *p) {
    uint16_t half[16];
    vi x;
    memcpy(half, p, 32);
    for (int i = 0; i < 16; i++) x[i] = half[i];
    return v_cast(i_sll(x, 16));
}

INLINE float v_sum(vf x) {
    for (int n = 8; n > 0; n /= 2)
        for (int i = 0; i < n; i++) x[i] += x[i + n];
    return x[0];
}
INLINE float v_highest(vf x) {
    for (int n = 8; n > 0; n /= 2)
        for (int i = 0; i < n; i++)
            if (x[i + n] > x[i]) x[i] = x[i + n];
    return x[0];
}

INLINE void v_transpose(vf r[16]) {
    vf t[16];
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 16; j++) t[j][i] = r[i][j];
    memcpy(r, t, sizeof t);
}
