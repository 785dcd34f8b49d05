/* half precision for simulated devices; the compiler's own type rounds to nearest even. */
#ifndef TPD_CUSIM_CUDA_FP16_H
#define TPD_CUSIM_CUDA_FP16_H

#include "cuda_runtime.h"

struct __half {
    uint16_t bits;
};

static inline float __half2float(__half h) {
    unsigned sign = (unsigned)(h.bits & 0x8000) << 16, exponent = h.bits >> 10 & 31;
    unsigned fraction = h.bits & 0x3FF;
    if (exponent == 31) return __uint_as_float(sign | 0x7F800000u | fraction << 13);
    if (exponent == 0) return (sign ? -1.0f : 1.0f) * (float)fraction * 0x1p-24f;
    return __uint_as_float(sign | (exponent + 112) << 23 | fraction << 13);
}
static inline __half __float2half(float x) {
    unsigned u = __float_as_uint(x), sign = u >> 16 & 0x8000, a = u & 0x7FFFFFFFu;
    if (a > 0x7F800000u) return {(uint16_t)(sign | 0x7FFF)};
    if (a >= 0x477FF000u) return {(uint16_t)(sign | 0x7C00)};
    if (a < 0x38800000u) { /* subnormal: let the float unit round */
        float scaled = std::nearbyint(__uint_as_float(a) * 0x1p24f);
        return {(uint16_t)(sign | (unsigned)scaled)};
    }
    a += 0xFFFu + (a >> 13 & 1);
    return {(uint16_t)(sign | (a - 0x38000000u) >> 13)};
}
static inline __half __float2half_rn(float x) { return __float2half(x); }

#endif
