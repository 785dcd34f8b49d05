/* kernels/cuda/norm.h: the norm of a row by a block, for the operations that end with one. */
#ifndef TPD_KERNELS_CUDA_NORM_H
#define TPD_KERNELS_CUDA_NORM_H

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/four.h"

/* Threads of a block, and so the order of a row's sum: by its length alone. */
static inline unsigned norm_threads(int32_t d) {
    unsigned threads = (unsigned)align_to((size_t)(d + 3) / 4, WARP_SIZE);
    return threads > 512 ? 512 : threads;
}

/* x[d] += scale * y (when add; y(i) gives elements i … i+3), then out = x * g / sqrt(mean(x^2) + eps). whole: x, g
 * and out may be read four at a time. The second pass finds the row in the first-level cache. scratch:
 * WARP_SIZE floats. */
template <class Y>
static __device__ __forceinline__ void norm_row(ptr<float> out, ptr<float> x, bool add, Y y, float scale,
                                                ptr<const float> g, int32_t d, float eps, bool whole,
                                                sptr<float> scratch) {
    int32_t first = 4 * (int32_t)threadIdx.x, step = 4 * (int32_t)blockDim.x;
    float sum = 0;
    for (int32_t i = first; i < d; i += step) {
        float4 v = load_four(x, i, d, whole);
        if (add) {
            float4 a = y(i);
            v = make_float4(fmaf(scale, a.x, v.x), fmaf(scale, a.y, v.y), fmaf(scale, a.z, v.z),
                            fmaf(scale, a.w, v.w));
            store_four(x, i, d, whole, v);
        }
        sum = fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, fmaf(v.w, v.w, sum))));
    }
    sum = block_sum(sum, scratch);
    float r = 1.0f / sqrtf(sum / (float)d + eps);
    for (int32_t i = first; i < d; i += step) {
        float4 v = load_four(x, i, d, whole), w = load_four(g, i, d, whole);
        v = make_float4(v.x * r * w.x, v.y * r * w.y, v.z * r * w.z, v.w * r * w.w);
        store_four(out, i, d, whole, v);
    }
}

#endif
