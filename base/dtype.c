#include "base/dtype.h"

#include <assert.h>
#include <string.h>
#include <strings.h>

static const struct dtype_info infos[DTYPE_COUNT] = {
    [DTYPE_F32] = {"f32", 1, 4},      [DTYPE_F16] = {"f16", 1, 2},
    [DTYPE_BF16] = {"bf16", 1, 2},    [DTYPE_Q8_0] = {"q8_0", 32, 34},
    [DTYPE_Q4_0] = {"q4_0", 32, 18},  [DTYPE_Q4_1] = {"q4_1", 32, 20},
    [DTYPE_Q5_0] = {"q5_0", 32, 22},  [DTYPE_Q5_1] = {"q5_1", 32, 24},
    [DTYPE_Q2_K] = {"q2_k", 256, 84}, [DTYPE_Q3_K] = {"q3_k", 256, 110},
    [DTYPE_Q4_K] = {"q4_k", 256, 144}, [DTYPE_Q5_K] = {"q5_k", 256, 176},
    [DTYPE_Q6_K] = {"q6_k", 256, 210},
};

const struct dtype_info *dtype_info(enum dtype type) {
    assert((unsigned)type < DTYPE_COUNT);
    return &infos[type];
}

bool dtype_is_quantised(enum dtype type) { return infos[type].block > 1; }

size_t dtype_row_bytes(enum dtype type, int64_t cols) {
    const struct dtype_info *info = dtype_info(type);
    assert(cols % info->block == 0);
    return (size_t)(cols / info->block) * (size_t)info->block_bytes;
}

int dtype_from_name(const char *name) {
    for (int i = 0; i < DTYPE_COUNT; i++)
        if (strcasecmp(infos[i].name, name) == 0) return i;
    return -1;
}

float bf16_to_f32(uint16_t value) {
    uint32_t bits = (uint32_t)value << 16;
    float out;
    memcpy(&out, &bits, 4);
    return out;
}

uint16_t f32_to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if ((bits & 0x7FFFFFFF) > 0x7F800000) return (uint16_t)(bits >> 16 | 0x40); /* NaN stays NaN */
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

float f16_to_f32(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, exp = half >> 10 & 31, man = half & 0x3FF;
    uint32_t bits;
    float out;
    if (exp == 0) {
        out = (float)man * 0x1p-24f;
        return sign ? -out : out;
    }
    bits = sign | (exp == 31 ? 0x7F800000 : (exp + 112) << 23) | man << 13;
    memcpy(&out, &bits, 4);
    return out;
}

uint16_t f32_to_f16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    uint32_t sign = bits >> 16 & 0x8000, abs = bits & 0x7FFFFFFF;
    if (abs > 0x7F800000) return (uint16_t)(sign | 0x7E00);
    if (abs >= 0x477FF000) return (uint16_t)(sign | 0x7C00); /* rounds to over 65504 */
    if (abs < 0x38800000) { /* subnormal: the float adder rounds to even at 2^-24 for us */
        float magic = 0.5f, x;
        memcpy(&x, &abs, 4);
        x += magic;
        memcpy(&bits, &x, 4);
        return (uint16_t)(sign | (bits - 0x3F000000));
    }
    return (uint16_t)(sign | (abs - 0x38000000 + 0xFFF + (abs >> 13 & 1)) >> 13);
}
