/* bfloat16 for simulated devices: rounds to nearest even, as the hardware does. */
#ifndef TPD_CUSIM_CUDA_BF16_H
#define TPD_CUSIM_CUDA_BF16_H

#include "cuda_runtime.h"

struct __nv_bfloat16 {
    uint16_t bits;
};

static inline float __bfloat162float(__nv_bfloat16 x) {
    return __uint_as_float((unsigned)x.bits << 16);
}
static inline __nv_bfloat16 __float2bfloat16(float x) {
    unsigned u = __float_as_uint(x);
    if ((u & 0x7FFFFFFFu) > 0x7F800000u) return {0x7FFF};
    return {(uint16_t)((u + 0x7FFFu + (u >> 16 & 1)) >> 16)};
}
static inline __nv_bfloat16 __float2bfloat16_rn(float x) { return __float2bfloat16(x); }

#endif
