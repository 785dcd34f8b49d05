#include "model/quant_blocks.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum { RUN = 32, LANES = 4, PARTS = RUN / LANES };
static const float half_max = 65504; /* the largest f16 */

/* Four numbers at once, in what every compiler of ours turns into vector instructions. */
typedef float vec __attribute__((vector_size(16)));
typedef int32_t mask __attribute__((vector_size(16)));

/* 32 numbers that share a scale, and how much an error in each weighs. */
struct run {
    vec x[PARTS], w[PARTS];
};

/* value = scale * code + offset */
struct fit {
    float scale, offset, error;
};

static inline vec all(float f) { return (vec){f, f, f, f}; }
static inline float sum(vec v) { return (v[0] + v[1]) + (v[2] + v[3]); }

/* To the nearest whole number within low … high. Exact below 2^22, which clamping first ensures. */
static inline vec code_of(vec v, float low, float high) {
    const vec magic = all(12582912.0f), lo = all(low), hi = all(high);
    mask under = v < lo, over = v > hi;
    v = (vec)((~(under | over) & (mask)v) | (under & (mask)lo) | (over & (mask)hi));
    return (v + magic) - magic;
}

/* An f16 that holds value, never an infinity. */
static float as_half(float value) {
    if (value > half_max) value = half_max;
    if (value < -half_max) value = -half_max;
    return f16_to_f32(f32_to_f16(value));
}

static void put_half(uint8_t *out, float value) {
    uint16_t bits = f32_to_f16(value);
    memcpy(out, &bits, sizeof bits);
}

static float inverse(float scale) {
    float inverse = 1 / scale;
    return isfinite(inverse) ? inverse : 0;
}

static void extremes(const float *x, float *low, float *high) {
    *low = *high = x[0];
    for (int i = 1; i < RUN; i++) {
        if (x[i] < *low) *low = x[i];
        if (x[i] > *high) *high = x[i];
    }
}

/* An error weighs more on a large value: those move a sum most. */
static void read_run(struct run *r, const float *x) {
    vec squares = all(0);
    memcpy(r->x, x, sizeof r->x);
    for (int i = 0; i < PARTS; i++) squares += r->x[i] * r->x[i];
    float level = sqrtf(sum(squares) / RUN);
    for (int i = 0; i < PARTS; i++)
        r->w[i] = all(level) + (vec)((mask)r->x[i] & (mask){INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX});
}

static float error_of(const struct run *r, float scale, float offset, float low, float high) {
    vec to_code = all(inverse(scale)), error = all(0);
    for (int i = 0; i < PARTS; i++) {
        vec code = code_of((r->x[i] - all(offset)) * to_code, low, high);
        vec d = code * all(scale) + all(offset) - r->x[i];
        error += r->w[i] * d * d;
    }
    return sum(error);
}

static void write_codes(const struct run *r, float scale, float offset, float low, float high,
                        int bias, uint8_t *codes) {
    vec to_code = all(inverse(scale));
    for (int i = 0; i < PARTS; i++) {
        vec code = code_of((r->x[i] - all(offset)) * to_code, low, high);
        for (int k = 0; k < LANES; k++) codes[LANES * i + k] = (uint8_t)((int)code[k] + bias);
    }
}

/* --- fits ----------------------------------------------------------------------------------------- */

/* Codes -8 … 7 and no offset: the codes that a scale gives say which scale suits them best. */
static void try_plain(const struct run *r, float scale, struct fit *best) {
    vec to_code = all(inverse(scale)), xc = all(0), cc = all(0);
    for (int i = 0; i < PARTS; i++) {
        vec code = code_of(r->x[i] * to_code, -8, 7);
        xc += r->w[i] * r->x[i] * code;
        cc += r->w[i] * code * code;
    }
    float squares = sum(cc);
    if (!(squares > 0)) return;
    struct fit fit = {.scale = as_half(sum(xc) / squares)};
    fit.error = error_of(r, fit.scale, 0, -8, 7);
    if (fit.error < best->error) *best = fit;
}

static struct fit fit_plain(const struct run *r, const float *x) {
    float low, high;
    extremes(x, &low, &high);
    float most = -low > high ? low : high; /* lies at code -8, of which there is one more */
    struct fit best = {.error = INFINITY};
    for (int i = -9; i <= 9; i++) try_plain(r, most / (-8 + 0.125f * (float)i), &best);
    try_plain(r, best.scale, &best);
    return isfinite(best.error) ? best : (struct fit){0};
}

/* Codes 0 … 15 with an offset. */
static void try_affine(const struct run *r, float scale, float offset, struct fit *best) {
    vec to_code = all(inverse(scale)), w = all(0), x = all(0), c = all(0), cc = all(0), xc = all(0);
    for (int i = 0; i < PARTS; i++) {
        vec code = code_of((r->x[i] - all(offset)) * to_code, 0, 15), wc = r->w[i] * code;
        w += r->w[i];
        x += r->w[i] * r->x[i];
        c += wc;
        cc += wc * code;
        xc += wc * r->x[i];
    }
    float sw = sum(w), sx = sum(x), sc = sum(c), scc = sum(cc), sxc = sum(xc);
    float det = sw * scc - sc * sc;
    if (!(det > 0)) return;
    struct fit fit = {.scale = (sw * sxc - sx * sc) / det, .offset = (scc * sx - sc * sxc) / det};
    if (!(fit.scale > 0)) return;
    fit.scale = as_half(fit.scale);
    fit.offset = as_half(fit.offset);
    fit.error = error_of(r, fit.scale, fit.offset, 0, 15);
    if (fit.error < best->error) *best = fit;
}

static struct fit fit_affine(const struct run *r, const float *x) {
    float low, high;
    extremes(x, &low, &high);
    struct fit flat = {.offset = as_half(low)};
    flat.error = error_of(r, 0, flat.offset, 0, 15);
    struct fit best = flat;
    if (!(high > low)) return flat;
    for (int i = -10; i <= 10; i++)
        try_affine(r, (high - low) / (15 + 0.1f * (float)i), low, &best);
    for (int i = 0; i < 2; i++) try_affine(r, best.scale, best.offset, &best);
    return best;
}

/* --- blocks --------------------------------------------------------------------------------------- */

/* n bytes: code i in the low nibble, code i + n in the high one. */
static void put_nibbles(uint8_t *out, const uint8_t *codes, int n) {
    for (int i = 0; i < n; i++) out[i] = (uint8_t)(codes[i] | codes[i + n] << 4);
}

static void make_q8_0(const float *x, uint8_t *out) {
    struct run r;
    float low, high;
    extremes(x, &low, &high);
    float scale = as_half((-low > high ? -low : high) / 127);
    read_run(&r, x);
    put_half(out, scale);
    write_codes(&r, scale, 0, -127, 127, 0, out + 2);
}

static void make_q4_0(const float *x, uint8_t *out) {
    struct run r;
    uint8_t codes[RUN];
    read_run(&r, x);
    struct fit fit = fit_plain(&r, x);
    put_half(out, fit.scale);
    write_codes(&r, fit.scale, 0, -8, 7, 8, codes);
    put_nibbles(out + 2, codes, RUN / 2);
}

static void make_q4_1(const float *x, uint8_t *out) {
    struct run r;
    uint8_t codes[RUN];
    read_run(&r, x);
    struct fit fit = fit_affine(&r, x);
    put_half(out, fit.scale);
    put_half(out + 2, fit.offset);
    write_codes(&r, fit.scale, fit.offset, 0, 15, 0, codes);
    put_nibbles(out + 4, codes, RUN / 2);
}

bool quant_row_makes(enum dtype type) {
    return type == DTYPE_Q8_0 || type == DTYPE_Q4_0 || type == DTYPE_Q4_1;
}

bool quant_row(enum dtype type, const float *values, int64_t cols, uint8_t *out) {
    const struct dtype_info *info = dtype_info(type);
    assert(quant_row_makes(type) && cols % info->block == 0);
    void (*make)(const float *, uint8_t *) = type == DTYPE_Q8_0   ? make_q8_0
                                             : type == DTYPE_Q4_0 ? make_q4_0
                                                                  : make_q4_1;
    float odd = 0; /* stays 0 unless a value is infinite or no number */
    for (int64_t i = 0; i < cols; i++) odd += values[i] * 0;
    if (odd != 0 || isnan(odd)) return false;
    for (int64_t at = 0; at < cols; at += info->block, out += info->block_bytes)
        make(values + at, out);
    return true;
}
