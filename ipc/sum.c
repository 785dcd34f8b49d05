#include "ipc/sum.h"

#include <string.h>

/* Blocks stay in the first-level cache beside their sources. LANES is a count that the compiler
 * knows, so that it writes vector code for the whole lanes. */
enum { BLOCK = 1024, LANES = 32 };

static void add(float *restrict out, const float *restrict a, const float *restrict b, size_t n) {
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (size_t j = i; j < i + LANES; j++) out[j] = a[j] + b[j];
    for (; i < n; i++) out[i] = a[i] + b[i];
}

static void accumulate(float *restrict out, const float *restrict a, size_t n) {
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (size_t j = i; j < i + LANES; j++) out[j] += a[j];
    for (; i < n; i++) out[i] += a[i];
}

static float widen(uint16_t half) {
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* As f32_to_bf16 of base/dtype.h, in a form for vector code. */
static uint16_t narrow(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    return (uint16_t)((bits & 0x7FFFFFFF) > 0x7F800000 ? bits >> 16 | 0x40 : rounded);
}

/* The block at src as floats: itself, or widened into buf. */
static const float *as_f32(float *restrict buf, const void *src, enum dtype type, size_t n) {
    if (type == DTYPE_F32) return src;
    const uint16_t *restrict half = src;
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (size_t j = i; j < i + LANES; j++) buf[j] = widen(half[j]);
    for (; i < n; i++) buf[i] = widen(half[i]);
    return buf;
}

static void to_bf16(uint16_t *restrict out, const float *restrict in, size_t n) {
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (size_t j = i; j < i + LANES; j++) out[j] = narrow(in[j]);
    for (; i < n; i++) out[i] = narrow(in[i]);
}

static const void *at(const void *base, size_t element, enum dtype type) {
    return (const uint8_t *)base + element * (type == DTYPE_F32 ? 4 : 2);
}

void sum_all(void *out, const void *const *src, int n_src, size_t n, enum dtype type) {
    size_t size = type == DTYPE_F32 ? 4 : 2;
    if (n_src == 1) {
        memcpy(out, src[0], n * size);
        return;
    }
    float total[BLOCK], a[BLOCK], b[BLOCK];
    for (size_t i = 0; i < n; i += BLOCK) {
        size_t m = n - i < BLOCK ? n - i : BLOCK;
        float *sum = type == DTYPE_F32 ? (float *)out + i : total;
        add(sum, as_f32(a, at(src[0], i, type), type, m), as_f32(b, at(src[1], i, type), type, m),
            m);
        for (int s = 2; s < n_src; s++) accumulate(sum, as_f32(a, at(src[s], i, type), type, m), m);
        if (type != DTYPE_F32) to_bf16((uint16_t *)out + i, total, m);
    }
}

void sum_pair(float *out, const void *a, enum dtype a_type, const void *b, enum dtype b_type,
              size_t n) {
    float wide_a[BLOCK], wide_b[BLOCK];
    for (size_t i = 0; i < n; i += BLOCK) {
        size_t m = n - i < BLOCK ? n - i : BLOCK;
        add(out + i, as_f32(wide_a, at(a, i, a_type), a_type, m),
            as_f32(wide_b, at(b, i, b_type), b_type, m), m);
    }
}

void sum_onto(void *x, enum dtype x_type, const void *a, enum dtype a_type, size_t n) {
    float sum[BLOCK];
    for (size_t i = 0; i < n; i += BLOCK) {
        size_t m = n - i < BLOCK ? n - i : BLOCK;
        sum_pair(sum, at(a, i, a_type), a_type, at(x, i, x_type), x_type, m);
        if (x_type == DTYPE_F32) memcpy((float *)x + i, sum, m * sizeof *sum);
        else to_bf16((uint16_t *)x + i, sum, m);
    }
}
