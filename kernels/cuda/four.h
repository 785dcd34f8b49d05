/* kernels/cuda/four.h: four floats of a row at once, or one by one where a row does not begin at a multiple of
 * 16 bytes. A thread has the same elements either way, so that sums do not depend on it. */
#ifndef TPD_KERNELS_CUDA_FOUR_H
#define TPD_KERNELS_CUDA_FOUR_H

#include "kernels/cuda/port.h"

/* Elements i … i+3 of x[n], 0 behind its end. whole: all four are there, 16-byte aligned. */
static __device__ __forceinline__ float4 load_four(ptr<const float> x, int64_t i, int64_t n, bool whole) {
    if (whole) return load16<float4>(x + i);
    float4 v = make_float4(0, 0, 0, 0);
    if (i < n) v.x = x[i];
    if (i + 1 < n) v.y = x[i + 1];
    if (i + 2 < n) v.z = x[i + 2];
    if (i + 3 < n) v.w = x[i + 3];
    return v;
}
static __device__ __forceinline__ void store_four(ptr<float> x, int64_t i, int64_t n, bool whole,
                                                  float4 v) {
    if (whole) {
        store16(x + i, v);
        return;
    }
    if (i < n) x[i] = v.x;
    if (i + 1 < n) x[i + 1] = v.y;
    if (i + 2 < n) x[i + 2] = v.z;
    if (i + 3 < n) x[i + 3] = v.w;
}

/* f of each of the four, from as many operands as are given. */
template <class F> static __device__ __forceinline__ float4 each_of(F f, float4 a) {
    return make_float4(f(a.x), f(a.y), f(a.z), f(a.w));
}
template <class F> static __device__ __forceinline__ float4 each_of(F f, float4 a, float4 b) {
    return make_float4(f(a.x, b.x), f(a.y, b.y), f(a.z, b.z), f(a.w, b.w));
}
template <class F> static __device__ __forceinline__ float4 each_of(F f, float4 a, float4 b, float4 c) {
    return make_float4(f(a.x, b.x, c.x), f(a.y, b.y, c.y), f(a.z, b.z, c.z), f(a.w, b.w, c.w));
}

#endif
