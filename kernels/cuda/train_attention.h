/* kernels/cuda/train_attention.h: what forward and backward of attention over packed sequences share. Rows and
 * keys are cut into tiles of 64 at fixed places; nothing of T x T. */
#ifndef TPD_KERNELS_CUDA_TRAIN_ATTENTION_H
#define TPD_KERNELS_CUDA_TRAIN_ATTENTION_H

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/tile.h"

enum { TRAIN_HEADS_MAX = 256 };

struct rows_attention {
    uint64_t q, k, v, out, lse, first;    /* kernels.h */
    uint64_t dout, dot, dq, dk, dv;       /* dot [T, H]: sum of dout * out */
    uint64_t partial; /* [2, n_splits, T, K, e]: dk and dv of each split, where there are several */
    int32_t T, H, K, e, window;
    int32_t n_splits, heads_per_split; /* of the heads that read a KV head, so many at a time */
    int64_t out_stride;
    float scale;
    int16_t kv_of_head[TRAIN_HEADS_MAX];
};

/* Head `head` of x [T, heads, e], rows `stride` floats apart. */
static __device__ __forceinline__ struct tile_source head_source(uint64_t x, int64_t stride, int32_t head,
                                                                 const struct rows_attention &a) {
    uint64_t at = x + (uint64_t)head * (uint64_t)a.e * 4;
    return {at, stride, a.T, a.e, stride % 4 == 0 && at % 16 == 0};
}

/* The first key that a row sees: it never falls from row to row. */
static __device__ __forceinline__ int32_t first_key(const struct rows_attention &a, int32_t row) {
    int32_t first = ptr<const int32_t>(a.first)[row];
    return a.window > 0 && row - a.window >= first ? row - a.window + 1 : first;
}

/* The thread's four rows of a tile. */
struct tile_rows {
    int32_t first[4]; /* keys that each sees: first … row */
    float lse[4], dot[4];
};

static __device__ __forceinline__ bool is_seen(const struct tile_rows &r, int i, int32_t row, int32_t key) {
    return key <= row && key >= r.first[i];
}

/* e by columns of 64: calls f with the number as a constant. */
template <int n> struct count_constant {
    static constexpr int value = n;
};
template <class F> static inline void with_columns(int32_t e, F f) {
    if (e <= 64) f(count_constant<1>{});
    else if (e <= 128) f(count_constant<2>{});
    else f(count_constant<4>{});
}

/* Fills what both directions know; false after a refusal. */
bool rows_attention_view(struct cuda_context *c, struct rows_attention *a, int32_t H, int32_t K,
                         const int32_t *kv_of_head, int32_t e, int32_t T);

#endif
