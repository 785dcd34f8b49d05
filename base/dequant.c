#include "base/dequant.h"

#include <assert.h>
#include <string.h>

static uint16_t read_u16(const uint8_t *p) {
    uint16_t v;
    memcpy(&v, p, 2);
    return v;
}

static float read_f16(const uint8_t *p) { return f16_to_f32(read_u16(p)); }

int quant_run(enum dtype type) {
    return type == DTYPE_Q2_K || type == DTYPE_Q3_K || type == DTYPE_Q6_K ? 16 : 32;
}

/* --- codes ------------------------------------------------------------------------------------ */

/* n bytes hold codes i (low nibble) and i + n (high nibble). */
static void nibbles(const uint8_t *from, int n, uint8_t *codes) {
    for (int i = 0; i < n; i++) {
        codes[i] = from[i] & 15;
        codes[i + n] = from[i] >> 4;
    }
}

static void codes_q8_0(const uint8_t *quants, uint8_t *codes) {
    for (int i = 0; i < 32; i++) codes[i] = quants[i] ^ 0x80; /* int8 + 128 */
}

/* The fifth bits of 32 codes stand in one little-endian word. */
static void codes_q5(const uint8_t *high, const uint8_t *low, uint8_t *codes) {
    nibbles(low, 16, codes);
    for (int i = 0; i < 32; i++) codes[i] |= (uint8_t)((high[i / 8] >> (i % 8) & 1) << 4);
}

/* 2-bit codes: each half of 128 is 32 bytes of four, 32 apart. */
static void crumbs(const uint8_t *from, uint8_t *codes) {
    for (int half = 0; half < 2; half++)
        for (int j = 0; j < 4; j++)
            for (int i = 0; i < 32; i++)
                codes[128 * half + 32 * j + i] = from[32 * half + i] >> (2 * j) & 3;
}

static void codes_q3_k(const uint8_t *high, const uint8_t *low, uint8_t *codes) {
    crumbs(low, codes);
    for (int i = 0; i < 256; i++) codes[i] |= (uint8_t)((high[i % 32] >> (i / 32) & 1) << 2);
}

static void codes_q4_k(const uint8_t *low, uint8_t *codes) {
    for (int j = 0; j < 4; j++) nibbles(low + 32 * j, 32, codes + 64 * j);
}

static void codes_q5_k(const uint8_t *high, const uint8_t *low, uint8_t *codes) {
    codes_q4_k(low, codes);
    for (int i = 0; i < 256; i++) codes[i] |= (uint8_t)((high[i % 32] >> (i / 32) & 1) << 4);
}

static void codes_q6_k(const uint8_t *low, const uint8_t *high, uint8_t *codes) {
    for (int half = 0; half < 2; half++) nibbles(low + 64 * half, 64, codes + 128 * half);
    uint8_t two[QUANT_BLOCK_MAX];
    crumbs(high, two);
    for (int i = 0; i < 256; i++) codes[i] |= (uint8_t)(two[i] << 4);
}

void quant_block_codes(enum dtype type, const uint8_t *b, uint8_t *codes) {
    switch (type) {
    case DTYPE_Q8_0: codes_q8_0(b + 2, codes); return;
    case DTYPE_Q4_0: nibbles(b + 2, 16, codes); return;
    case DTYPE_Q4_1: nibbles(b + 4, 16, codes); return;
    case DTYPE_Q5_0: codes_q5(b + 2, b + 6, codes); return;
    case DTYPE_Q5_1: codes_q5(b + 4, b + 8, codes); return;
    case DTYPE_Q2_K: crumbs(b + 16, codes); return;
    case DTYPE_Q3_K: codes_q3_k(b, b + 32, codes); return;
    case DTYPE_Q4_K: codes_q4_k(b + 16, codes); return;
    case DTYPE_Q5_K: codes_q5_k(b + 16, b + 48, codes); return;
    case DTYPE_Q6_K: codes_q6_k(b, b + 128, codes); return;
    case DTYPE_F32:
    case DTYPE_F16:
    case DTYPE_BF16:
    case DTYPE_COUNT: break;
    }
    assert(!"a quantised type");
}

/* --- scales ----------------------------------------------------------------------------------- */

static void scales_q2_k(const uint8_t *b, float *scale, float *offset) {
    float d = read_f16(b + 80), dmin = read_f16(b + 82);
    for (int i = 0; i < 16; i++) {
        scale[i] = d * (float)(b[i] & 15);
        offset[i] = -(dmin * (float)(b[i] >> 4));
    }
}

/* 16 scales of 6 bits, biased by 32: low nibbles in 8 bytes, then the high pairs of bits in 4. */
static void scales_q3_k(const uint8_t *b, float *scale, float *offset) {
    float d = read_f16(b + 108);
    const uint8_t *s = b + 96;
    for (int i = 0; i < 16; i++) {
        int low = i < 8 ? s[i] & 15 : s[i - 8] >> 4;
        int high = s[8 + i % 4] >> (2 * (i / 4)) & 3;
        scale[i] = d * (float)((low | high << 4) - 32);
        offset[i] = -4 * scale[i];
    }
}

/* 8 scales and 8 minima of 6 bits in 12 bytes: the first four of each whole, the low nibbles of the
 * others in the last four bytes and their high bits on top of the first eight. */
static void scales_q4_k(const uint8_t *b, float *scale, float *offset) {
    float d = read_f16(b), dmin = read_f16(b + 2);
    const uint8_t *s = b + 4;
    for (int i = 0; i < 8; i++) {
        int sc = i < 4 ? s[i] & 63 : (s[i + 4] & 15) | s[i - 4] >> 6 << 4;
        int m = i < 4 ? s[i + 4] & 63 : s[i + 4] >> 4 | s[i] >> 6 << 4;
        scale[i] = d * (float)sc;
        offset[i] = -(dmin * (float)m);
    }
}

static void scales_q6_k(const uint8_t *b, float *scale, float *offset) {
    float d = read_f16(b + 208);
    for (int i = 0; i < 16; i++) {
        scale[i] = d * (float)(int8_t)b[192 + i];
        offset[i] = -32 * scale[i];
    }
}

void quant_block_scales(enum dtype type, const uint8_t *b, float *scale, float *offset) {
    switch (type) {
    case DTYPE_Q8_0: *scale = read_f16(b), *offset = -128 * *scale; return;
    case DTYPE_Q4_0: *scale = read_f16(b), *offset = -8 * *scale; return;
    case DTYPE_Q5_0: *scale = read_f16(b), *offset = -16 * *scale; return;
    case DTYPE_Q4_1:
    case DTYPE_Q5_1: *scale = read_f16(b), *offset = read_f16(b + 2); return;
    case DTYPE_Q2_K: scales_q2_k(b, scale, offset); return;
    case DTYPE_Q3_K: scales_q3_k(b, scale, offset); return;
    case DTYPE_Q4_K:
    case DTYPE_Q5_K: scales_q4_k(b, scale, offset); return;
    case DTYPE_Q6_K: scales_q6_k(b, scale, offset); return;
    case DTYPE_F32:
    case DTYPE_F16:
    case DTYPE_BF16:
    case DTYPE_COUNT: break;
    }
    assert(!"a quantised type");
}

/* --- rows ------------------------------------------------------------------------------------- */

static void plain_to_f32(enum dtype type, const uint8_t *row, float *out, int64_t cols) {
    if (type == DTYPE_F32)
        memcpy(out, row, (size_t)cols * 4);
    else if (type == DTYPE_F16)
        for (int64_t i = 0; i < cols; i++) out[i] = read_f16(row + 2 * i);
    else
        for (int64_t i = 0; i < cols; i++) out[i] = bf16_to_f32(read_u16(row + 2 * i));
}

void dtype_row_to_f32(enum dtype type, const void *row, float *out, int64_t cols) {
    if (!dtype_is_quantised(type)) {
        plain_to_f32(type, row, out, cols);
        return;
    }
    const struct dtype_info *info = dtype_info(type);
    int run = quant_run(type);
    const uint8_t *block = row;
    assert(cols % info->block == 0);
    for (int64_t at = 0; at < cols; at += info->block, block += info->block_bytes) {
        uint8_t codes[QUANT_BLOCK_MAX];
        float scale[QUANT_RUNS_MAX], offset[QUANT_RUNS_MAX];
        quant_block_codes(type, block, codes);
        quant_block_scales(type, block, scale, offset);
        for (int i = 0; i < info->block; i++)
            out[at + i] = scale[i / run] * (float)codes[i] + offset[i / run];
    }
}
