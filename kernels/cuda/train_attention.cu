/* Causal attention over packed sequences, forward: tiles of 64 rows against tiles of 64 keys, online softmax. */
#include "kernels/cuda/train_attention.h"
#include "kernels/cuda/train.h"

/* Over the 16 threads of a row. */
static __device__ __forceinline__ float row_max(float x) {
    for (int by = 8; by > 0; by /= 2) {
        float other = __shfl_xor_sync(ALL_LANES, x, by);
        x = fmaxf(x, other);
    }
    return x;
}
static __device__ __forceinline__ float row_sum(float x) {
    for (int by = 8; by > 0; by /= 2) x += __shfl_xor_sync(ALL_LANES, x, by);
    return x;
}

/* Scores become weights e^(score - max); keep[i]: by what all that row i has so far shrinks. */
static __device__ __forceinline__ void softmax_tile(const struct rows_attention &a, const struct tile_rows &rows,
                                                    struct tile_sums &s, int32_t row, int32_t key, float *max,
                                                    float *sum, float *keep) {
    UNROLL
    for (int i = 0; i < 4; i++) {
        float most = max[i], total = 0;
        UNROLL
        for (int j = 0; j < 4; j++) {
            s.at[i][j] = is_seen(rows, i, row + i, key + j) ? s.at[i][j] * a.scale : -INFINITY;
            most = fmaxf(most, s.at[i][j]);
        }
        most = row_max(most);
        bool none = most == -INFINITY;
        keep[i] = none ? 1.0f : expf(max[i] - most);
        UNROLL
        for (int j = 0; j < 4; j++) {
            s.at[i][j] = none ? 0.0f : expf(s.at[i][j] - most);
            total += s.at[i][j];
        }
        total = row_sum(total);
        sum[i] = fmaf(sum[i], keep[i], total);
        max[i] = most;
    }
}

/* A block for each tile of rows and head; the longest first. NC: columns of e, by 64. With s keys seen by a row:
 * bytes 8 * s / 64 * T * H * e, most of it from the second-level cache. FLOPs: 4 * s * T * H * e. */
template <int NC>
__global__ void __launch_bounds__(TILE_THREADS) k_attention_rows(struct rows_attention a) {
    SHARED(float, of_a, TILE_FACTOR);
    SHARED(float, of_b, TILE_FACTOR);
    SHARED(float, weights, TILE_KEPT);
    int32_t row0 = (int32_t)(gridDim.x - 1 - blockIdx.x) * TILE, head = (int32_t)blockIdx.y;
    int32_t row = row0 + tile_row(), end = min(a.T, row0 + TILE), kv = a.kv_of_head[head];
    struct tile_source q = head_source(a.q, (int64_t)a.H * a.e, head, a);
    struct tile_source k = head_source(a.k, (int64_t)a.K * a.e, kv, a);
    struct tile_source v = head_source(a.v, (int64_t)a.K * a.e, kv, a);
    struct tile_rows rows;
    struct tile_sums out[NC], s;
    float max[4], sum[4], keep[4];
    UNROLL
    for (int i = 0; i < 4; i++) {
        rows.first[i] = row + i < a.T ? first_key(a, row + i) : a.T;
        max[i] = -INFINITY;
        sum[i] = 0;
    }
    UNROLL
    for (int c = 0; c < NC; c++) tile_clear(out[c]);
    for (int32_t key0 = first_key(a, row0) / TILE * TILE; key0 < end; key0 += TILE) {
        tile_clear(s);
        tile_rows_by_rows(s, q, row0, k, key0, of_a, of_b);
        softmax_tile(a, rows, s, row, key0 + tile_col(), max, sum, keep);
        tile_keep(weights, s);
        UNROLL
        for (int c = 0; c < NC; c++) {
            UNROLL
            for (int i = 0; i < 16; i++) out[c].at[i / 4][i % 4] *= keep[i / 4];
            for (int32_t step = 0; step < TILE && key0 + step < end; step += TILE_STEPS) {
                __syncthreads();
                tile_load(of_b, v, key0 + step, c * TILE);
                __syncthreads();
                tile_multiply_kept(out[c], weights + step, of_b);
            }
        }
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        if (row + i >= a.T) continue;
        ptr<float> to = ptr<float>(a.out) + ((row + i) * a.out_stride + (int64_t)head * a.e);
        bool aligned = a.out_stride % 4 == 0 && a.e % 4 == 0 && a.out % 16 == 0;
        UNROLL
        for (int c = 0; c < NC; c++) {
            int32_t col = c * TILE + tile_col();
            float4 o = make_float4(out[c].at[i][0], out[c].at[i][1], out[c].at[i][2], out[c].at[i][3]);
            float by = 1.0f / sum[i];
            if (col < a.e) store_four(to, col, a.e, aligned, each_of([=](float x) { return x * by; }, o));
        }
        if (tile_col() == 0) ptr<float>(a.lse)[(int64_t)(row + i) * a.H + head] = max[i] + logf(sum[i]);
    }
}

bool rows_attention_view(struct cuda_context *c, struct rows_attention *a, int32_t H, int32_t K,
                         const int32_t *kv_of_head, int32_t e, int32_t T) {
    if (H > TRAIN_HEADS_MAX || K > TRAIN_HEADS_MAX || e > 4 * TILE) {
        cuda_refuse(c, "training with %d heads of %d elements on a rank: %d of %d are the most", H, e,
                    TRAIN_HEADS_MAX, 4 * TILE);
        return false;
    }
    a->T = T, a->H = H, a->K = K, a->e = e;
    for (int32_t h = 0; h < H; h++) a->kv_of_head[h] = (int16_t)kv_of_head[h];
    return true;
}

void cuda_attention_rows(struct kctx *base, dev_addr out, int32_t out_stride, dev_addr lse, dev_addr q, int32_t H,
                         dev_addr k, dev_addr v, int32_t K, const int32_t *kv_of_head, int32_t e,
                         dev_addr first, int32_t T, float scale, int32_t window) {
    if (T <= 0 || H <= 0 || !cuda_begin(base)) return;
    struct cuda_context *c = cuda_of(base);
    struct rows_attention a = {};
    if (!rows_attention_view(c, &a, H, K, kv_of_head, e, T)) return;
    a.q = q, a.k = k, a.v = v, a.out = out, a.lse = lse, a.first = first;
    a.out_stride = out_stride, a.scale = scale, a.window = window;
    dim3 grid(blocks_for((size_t)T, TILE), (unsigned)H);
    with_columns(e, [&](auto n) {
        auto *attention_rows = k_attention_rows<decltype(n)::value>;
        LAUNCH(attention_rows, grid, TILE_THREADS, 0, c->stream, a);
    });
    cuda_launched(c, "attention_rows");
}
