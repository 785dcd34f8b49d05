/* Backward of attention over packed sequences. Scores are made again tile by tile, once for dq (a block has rows
 * and goes along the keys) and once for dk and dv (a block has keys and goes along the rows and heads that read
 * them), so that every sum has one owner and one order. */
#include "kernels/cuda/train_attention.h"
#include "kernels/cuda/train.h"

/* A warp for each row and head. Bytes: 8 * T * H * e. FLOPs: 2 * T * H * e. */
__global__ void k_attention_dot(struct rows_attention a) {
    int64_t mine = (int64_t)blockIdx.x * (blockDim.x / WARP_SIZE) + threadIdx.x / WARP_SIZE;
    if (mine >= (int64_t)a.T * a.H) return;
    int64_t at = mine / a.H * a.out_stride + mine % a.H * a.e;
    float sum = 0;
    for (int32_t i = (int32_t)threadIdx.x % WARP_SIZE; i < a.e; i += WARP_SIZE) {
        float x = ptr<const float>(a.dout)[at + i], y = ptr<const float>(a.out)[at + i];
        sum = fmaf(x, y, sum);
    }
    sum = warp_sum(sum);
    if (threadIdx.x % WARP_SIZE == 0) ptr<float>(a.dot)[mine] = sum;
}

static __device__ __forceinline__ void read_rows(const struct rows_attention &a, struct tile_rows &rows,
                                                 int32_t row, int32_t head) {
    UNROLL
    for (int i = 0; i < 4; i++) {
        rows.first[i] = a.T;
        rows.lse[i] = rows.dot[i] = 0;
        if (row + i >= a.T) continue;
        rows.first[i] = first_key(a, row + i);
        rows.lse[i] = ptr<const float>(a.lse)[(int64_t)(row + i) * a.H + head];
        rows.dot[i] = ptr<const float>(a.dot)[(int64_t)(row + i) * a.H + head];
    }
}

/* The matrices of a head and of the KV head that it reads. */
struct head_sources {
    struct tile_source q, k, v, dout;
};
static __device__ __forceinline__ struct head_sources sources_of(const struct rows_attention &a, int32_t head) {
    int32_t kv = a.kv_of_head[head];
    int64_t q_stride = (int64_t)a.H * a.e, kv_stride = (int64_t)a.K * a.e;
    return {head_source(a.q, q_stride, head, a), head_source(a.k, kv_stride, kv, a),
            head_source(a.v, kv_stride, kv, a), head_source(a.dout, a.out_stride, head, a)};
}

/* p = exp(scale q k - lse) and ds = p (dout v - dot) scale of one tile; 0 where a row does not see a key. */
static __device__ __forceinline__ void slopes(const struct rows_attention &a, const struct head_sources &m,
                                              const struct tile_rows &rows, int32_t row0, int32_t key0,
                                              struct tile_sums &p, struct tile_sums &ds, sptr<float> of_a,
                                              sptr<float> of_b) {
    tile_clear(p);
    tile_clear(ds);
    tile_rows_by_rows(p, m.q, row0, m.k, key0, of_a, of_b);
    tile_rows_by_rows(ds, m.dout, row0, m.v, key0, of_a, of_b);
    int32_t row = row0 + tile_row(), key = key0 + tile_col();
    UNROLL
    for (int i = 0; i < 4; i++)
        UNROLL
        for (int j = 0; j < 4; j++) {
            bool seen = is_seen(rows, i, row + i, key + j);
            p.at[i][j] = seen ? expf(p.at[i][j] * a.scale - rows.lse[i]) : 0.0f;
            ds.at[i][j] = seen ? p.at[i][j] * (ds.at[i][j] - rows.dot[i]) * a.scale : 0.0f;
        }
}

/* The thread's elements of a tile into x [T, heads, e]. */
template <int NC>
static __device__ __forceinline__ void write_tile(uint64_t x, const struct tile_sums *s,
                                                  const struct rows_attention &a, int32_t row0, int32_t heads,
                                                  int32_t head) {
    bool aligned = a.e % 4 == 0 && x % 16 == 0;
    UNROLL
    for (int i = 0; i < 4; i++) {
        int32_t row = row0 + tile_row() + i;
        if (row >= a.T) continue;
        ptr<float> to = ptr<float>(x) + ((int64_t)row * heads + head) * a.e;
        UNROLL
        for (int c = 0; c < NC; c++) {
            int32_t col = c * TILE + tile_col();
            if (col >= a.e) continue;
            store_four(to, col, a.e, aligned,
                       make_float4(s[c].at[i][0], s[c].at[i][1], s[c].at[i][2], s[c].at[i][3]));
        }
    }
}

/* A block for each tile of rows and head, the longest first. With s keys seen by a row: bytes 12 * s / 64 * T *
 * H * e, most of it from the second-level cache. FLOPs: 6 * s * T * H * e. */
template <int NC> __global__ void __launch_bounds__(TILE_THREADS) k_attention_dq(struct rows_attention a) {
    SHARED(float, of_a, TILE_FACTOR);
    SHARED(float, of_b, TILE_FACTOR);
    SHARED(float, kept, TILE_KEPT);
    int32_t row0 = (int32_t)(gridDim.x - 1 - blockIdx.x) * TILE, head = (int32_t)blockIdx.y;
    int32_t end = min(a.T, row0 + TILE);
    struct head_sources m = sources_of(a, head);
    struct tile_rows rows;
    struct tile_sums dq[NC], p, ds;
    read_rows(a, rows, row0 + tile_row(), head);
    UNROLL
    for (int c = 0; c < NC; c++) tile_clear(dq[c]);
    for (int32_t key0 = first_key(a, row0) / TILE * TILE; key0 < end; key0 += TILE) {
        slopes(a, m, rows, row0, key0, p, ds, of_a, of_b);
        tile_keep(kept, ds);
        UNROLL
        for (int c = 0; c < NC; c++)
            for (int32_t step = 0; step < TILE && key0 + step < end; step += TILE_STEPS) {
                __syncthreads();
                tile_load(of_b, m.k, key0 + step, c * TILE);
                __syncthreads();
                tile_multiply_kept(dq[c], kept + step, of_b);
            }
    }
    write_tile<NC>(a.dq, dq, a, row0, a.H, head);
}

/* A block for each tile of keys, KV head and split of the heads that read it, the longest first: rows in their
 * order, head after head. Bytes 16 * s / 64 * T * H * e, most of it from the second-level cache. FLOPs: 8 * s * T *
 * H * e. */
template <int NC> __global__ void __launch_bounds__(TILE_THREADS) k_attention_dkv(struct rows_attention a) {
    SHARED(float, of_a, TILE_FACTOR);
    SHARED(float, of_b, TILE_FACTOR);
    SHARED(float, kept_p, TILE_KEPT);
    SHARED(float, kept_ds, TILE_KEPT);
    int32_t key0 = (int32_t)blockIdx.x * TILE, last = min(a.T, key0 + TILE) - 1, kv = (int32_t)blockIdx.y;
    int32_t split = (int32_t)blockIdx.z, skip = split * a.heads_per_split, left = a.heads_per_split;
    struct tile_sums dk[NC], dv[NC], p, ds;
    UNROLL
    for (int c = 0; c < NC; c++) {
        tile_clear(dk[c]);
        tile_clear(dv[c]);
    }
    for (int32_t head = 0; head < a.H && left > 0; head++) {
        if (a.kv_of_head[head] != kv || skip-- > 0) continue;
        left--;
        struct head_sources m = sources_of(a, head);
        for (int32_t row0 = key0; row0 < a.T && first_key(a, row0) <= last; row0 += TILE) {
            struct tile_rows rows;
            read_rows(a, rows, row0 + tile_row(), head);
            slopes(a, m, rows, row0, key0, p, ds, of_a, of_b);
            tile_keep(kept_p, p);
            tile_keep(kept_ds, ds);
            UNROLL
            for (int c = 0; c < NC; c++)
                for (int32_t step = 0; step < TILE && row0 + step < a.T; step += TILE_STEPS) {
                    __syncthreads();
                    tile_load(of_a, m.dout, row0 + step, c * TILE);
                    tile_load(of_b, m.q, row0 + step, c * TILE);
                    __syncthreads();
                    tile_multiply(dv[c], kept_p + step * TILE_STRIDE, of_a);
                    tile_multiply(dk[c], kept_ds + step * TILE_STRIDE, of_b);
                }
        }
    }
    uint64_t to_k = a.dk, to_v = a.dv, of_split = (uint64_t)a.T * (uint64_t)a.K * (uint64_t)a.e * 4;
    if (a.n_splits > 1) {
        to_k = a.partial + (uint64_t)split * of_split;
        to_v = to_k + (uint64_t)a.n_splits * of_split;
    }
    write_tile<NC>(to_k, dk, a, key0, a.K, kv);
    write_tile<NC>(to_v, dv, a, key0, a.K, kv);
}

/* dk and dv from their splits, added in order. Bytes: 8 * (n_splits + 1) * T * K * e. */
__global__ void k_attention_add(struct rows_attention a) {
    int64_t n = (int64_t)a.T * a.K * a.e, i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    ptr<const float> of_k = ptr<const float>(a.partial) + i, of_v = of_k + n * a.n_splits;
    float k = 0, v = 0;
    for (int32_t split = 0; split < a.n_splits; split++) {
        float more_k = of_k[split * n], more_v = of_v[split * n];
        k += more_k;
        v += more_v;
    }
    ptr<float>(a.dk)[i] = k;
    ptr<float>(a.dv)[i] = v;
}

/* --- the launch ------------------------------------------------------------------------------------------ */

static void split_heads(const struct cuda_context *c, struct rows_attention *a) {
    static_assert((int)TILE == (int)ROWS_TILE, "as plans count");
    int32_t readers[TRAIN_HEADS_MAX] = {0}, most = 1;
    for (int32_t h = 0; h < a->H; h++) most = max(most, ++readers[a->kv_of_head[h]]);
    struct heads_split split = heads_split(c->n_sms, a->T, a->K, most);
    a->heads_per_split = split.heads;
    a->n_splits = split.n;
}

static void launch_dx(struct cuda_context *c, const struct rows_attention &a, unsigned tiles) {
    with_columns(a.e, [&](auto n) {
        auto *attention_dq = k_attention_dq<decltype(n)::value>;
        auto *attention_dkv = k_attention_dkv<decltype(n)::value>;
        dim3 of_rows(tiles, (unsigned)a.H), of_keys(tiles, (unsigned)a.K, (unsigned)a.n_splits);
        if (a.H > 0) LAUNCH(attention_dq, of_rows, TILE_THREADS, 0, c->stream, a);
        LAUNCH(attention_dkv, of_keys, TILE_THREADS, 0, c->stream, a);
    });
    size_t n = (size_t)a.T * (size_t)a.K * (size_t)a.e;
    if (a.n_splits > 1) LAUNCH(k_attention_add, blocks_for(n, 256), 256, 0, c->stream, a);
}

void cuda_attention_rows_dx(struct kctx *base, dev_addr dq, dev_addr dk, dev_addr dv, dev_addr dout, dev_addr out,
                            int32_t out_stride, dev_addr lse, dev_addr q, int32_t H, dev_addr k, dev_addr v,
                            int32_t K, const int32_t *kv_of_head, int32_t e, dev_addr first, int32_t T,
                            float scale, int32_t window) {
    if (T <= 0 || K <= 0 || !cuda_begin(base)) return;
    struct cuda_context *c = cuda_of(base);
    struct rows_attention a = {};
    if (!rows_attention_view(c, &a, H, K, kv_of_head, e, T)) return;
    a.q = q, a.k = k, a.v = v, a.out = out, a.lse = lse, a.first = first;
    a.dout = dout, a.dq = dq, a.dk = dk, a.dv = dv;
    a.out_stride = out_stride, a.scale = scale, a.window = window;
    unsigned tiles = blocks_for((size_t)T, TILE);
    split_heads(c, &a);
    struct factor_bytes bytes = rows_dx_bytes(T, H, K, e, a.n_splits);
    a.dot = cuda_scratch(c, bytes.first + bytes.second);
    if (!a.dot) return;
    a.partial = a.dot + bytes.first;
    if (H > 0) LAUNCH(k_attention_dot, blocks_for((size_t)T * (size_t)H, 4), 4 * WARP_SIZE, 0, c->stream, a);
    launch_dx(c, a, tiles);
    cuda_launched(c, "attention_rows_dx");
}
