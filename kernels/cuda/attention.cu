/* Attention over paged keys and values: tiles of 32 positions, online softmax, nothing of T x T.
 *
 * A query's sums depend on its position (and the window) alone. Positions are cut into splits of 256 at
 * fixed places; within a split tiles follow one another, and splits are merged in their order by one
 * function, whether one block goes through all of them (prompts) or each has a block of its own and a
 * second kernel merges (decode, so that a single long sequence fills the device). How many queries a block
 * takes moves no bit. */
#include "kernels/cuda/quant.h"

enum { TILE = WARP_SIZE, SPLIT = ATTENTION_SPLIT };
enum { WARPS = 4, RUNS_MAX = 128 };

/* Heads head … head+n-1 read the KV head kv. */
struct head_run {
    int16_t head, n, kv;
};
struct head_runs {
    int32_t n;
    struct head_run at[RUNS_MAX];
};

struct attention_view {
    uint64_t q, k, v, pos, seq, blocks;
    uint64_t out, partial; /* partial [T, H, n_splits, 2 + e]: maximum, sum, weighted sum of values */
    int32_t T, H, K, e, block_size, max_blocks, window, n_splits;
    int64_t out_stride;
    int32_t rows_per_block;
    float scale;
};

/* --- a query's running state -------------------------------------------------------------------------- */

/* Lane l has elements l, l + 32, … of acc. */
template <int NJ> struct softmax_state {
    float max, sum;
    float acc[NJ];
};

template <int NJ> static __device__ __forceinline__ void state_clear(struct softmax_state<NJ> &s) {
    s.max = -INFINITY;
    s.sum = 0;
    UNROLL
    for (int j = 0; j < NJ; j++) s.acc[j] = 0;
}

/* into := into and then next. A next that saw nothing changes no bit; the first that saw something is
 * taken over as it is. */
static __device__ __forceinline__ void merge_weights(float into_max, float next_max, float *max,
                                                     float *into_weight, float *next_weight) {
    *max = fmaxf(into_max, next_max);
    *into_weight = expf(into_max - *max);
    *next_weight = expf(next_max - *max);
}
static __device__ __forceinline__ float merged(float into, float into_weight, float next,
                                               float next_weight) {
    return fmaf(into, into_weight, next * next_weight);
}

template <int NJ>
static __device__ __forceinline__ void state_merge(struct softmax_state<NJ> &into,
                                                   const struct softmax_state<NJ> &next) {
    if (next.max == -INFINITY) return;
    float max, a, b;
    merge_weights(into.max, next.max, &max, &a, &b);
    into.max = max;
    into.sum = merged(into.sum, a, next.sum, b);
    UNROLL
    for (int j = 0; j < NJ; j++) into.acc[j] = merged(into.acc[j], a, next.acc[j], b);
}

/* --- tiles ---------------------------------------------------------------------------------------------- */

/* Numbers of the cache from element `at` on: 16 bytes of them, or of q8 sixteen, half a block. */
static __device__ __forceinline__ void element_values(ptr<const float> cache, int64_t at, float *out) {
    float4 four = load16<float4>(cache + at);
    out[0] = four.x, out[1] = four.y, out[2] = four.z, out[3] = four.w;
}
static __device__ __forceinline__ float half_value(__half x) { return __half2float(x); }
static __device__ __forceinline__ float half_value(__nv_bfloat16 x) { return __bfloat162float(x); }
template <class KV>
static __device__ __forceinline__ void element_values(ptr<const KV> cache, int64_t at, float *out) {
    uint4 four = load16<uint4>(cache + at);
    KV eight[8];
    memcpy(eight, &four, sizeof eight);
    UNROLL
    for (int i = 0; i < 8; i++) out[i] = half_value(eight[i]);
}
/* Blocks of 34 bytes are aligned to two: the neighbours' loads fill the lines. */
static __device__ __forceinline__ void element_values(ptr<const struct q8> cache, int64_t at, float *out) {
    ptr<const uint16_t> block = as<const uint16_t>(cache) + at / Q8_BLOCK * (Q8_BLOCK_BYTES / 2);
    ptr<const uint16_t> codes = block + (1 + at % Q8_BLOCK / 2);
    uint16_t scale_bits = block[0];
    float scale = half_bits_to_float(scale_bits);
    UNROLL
    for (int i = 0; i < 8; i++) {
        uint16_t two = codes[i];
        out[2 * i] = (float)(int8_t)(two & 0xFF) * scale;
        out[2 * i + 1] = (float)(int8_t)(two >> 8) * scale;
    }
}
static __device__ __forceinline__ float one_value(ptr<const float> cache, int64_t at) { return cache[at]; }
static __device__ __forceinline__ float one_value(ptr<const struct q8>, int64_t) { return 0; } /* never: heads
                                                                                          are whole blocks */
template <class KV> static __device__ __forceinline__ float one_value(ptr<const KV> cache, int64_t at) {
    KV x = cache[at];
    return half_value(x);
}

/* Floats from one position of a tile to the next: whole fours, and odd, so that lanes that read one column
 * of 32 positions meet 32 banks. */
static __device__ __host__ __forceinline__ int32_t tile_stride(int32_t e) { return (e + 3) / 4 * 4 + 1; }

/* Positions base … base+31 of a sequence; zeros where they are outside low … high. */
template <class KV>
static __device__ void load_tile(const struct attention_view &a, sptr<float> tile, ptr<const KV> cache,
                                 int32_t seq, int32_t kv, int32_t base, int32_t low, int32_t high) {
    constexpr int per_load = 16 / sizeof(KV);
    int32_t e = a.e, whole = (e + 3) / 4 * 4, stride = tile_stride(e);
    bool wide = e % per_load == 0;
    int32_t step = wide ? per_load : 1, n = (wide ? e : whole) / step;
    for (int32_t i = (int32_t)threadIdx.x; i < TILE * n; i += (int32_t)blockDim.x) {
        int32_t p = i / n, d = i % n * step, position = base + p;
        float values[per_load];
        UNROLL
        for (int j = 0; j < per_load; j++) values[j] = 0;
        if (position >= low && position <= high) {
            int32_t block = ptr<const int32_t>(a.blocks)[(int64_t)seq * a.max_blocks +
                                                         position / a.block_size];
            int64_t row = ((int64_t)block * a.K + kv) * a.block_size + position % a.block_size;
            if (wide) element_values(cache, row * e + d, values);
            else if (d < e) values[0] = one_value(cache, row * e + d);
        }
        UNROLL
        for (int j = 0; j < per_load; j++)
            if (j < step) tile[p * stride + d + j] = values[j];
    }
}

/* --- the block ------------------------------------------------------------------------------------------- */

/* The queries of a block: rows from … to-1 of one sequence, times the heads of a run. Query i of a warp is
 * number i * WARPS + warp of the block, row by row. */
template <int QW, int NJ> struct queries {
    int32_t row[QW], head[QW], pos[QW]; /* row < 0: none */
    struct softmax_state<NJ> part[QW], all[QW];
};

/* One tile for the warp's queries: scores (a lane has a position), then their softmax into p. */
template <int QW, int NJ>
static __device__ void score_tile(const struct attention_view &a, struct queries<QW, NJ> &own,
                                  sptr<float> tile, sptr<float> q, sptr<float> p, int warp, int lane,
                                  int32_t base) {
    int32_t whole = (a.e + 3) / 4 * 4, stride = tile_stride(a.e);
    float score[QW];
    UNROLL
    for (int i = 0; i < QW; i++) score[i] = 0;
    for (int32_t d = 0; d < whole; d += 4) {
        float k[4];
        UNROLL
        for (int j = 0; j < 4; j++) k[j] = tile[lane * stride + d + j];
        UNROLL
        for (int i = 0; i < QW; i++) {
            if (own.row[i] < 0) continue;
            float4 four = load4(q + ((i * WARPS + warp) * whole + d));
            score[i] = fmaf(four.x, k[0], score[i]);
            score[i] = fmaf(four.y, k[1], score[i]);
            score[i] = fmaf(four.z, k[2], score[i]);
            score[i] = fmaf(four.w, k[3], score[i]);
        }
    }
    UNROLL
    for (int i = 0; i < QW; i++) {
        if (own.row[i] < 0) continue;
        struct softmax_state<NJ> &s = own.part[i];
        int32_t position = base + lane;
        bool seen = position <= own.pos[i] && (a.window <= 0 || position > own.pos[i] - a.window);
        float x = seen ? score[i] * a.scale : -INFINITY;
        float max = fmaxf(s.max, warp_max(x));
        float weight = 0;
        if (max != -INFINITY) {
            float keep = expf(s.max - max);
            weight = expf(x - max);
            float sum = warp_sum(weight);
            s.sum = fmaf(s.sum, keep, sum);
            s.max = max;
            UNROLL
            for (int j = 0; j < NJ; j++) s.acc[j] *= keep;
        }
        p[(warp * QW + i) * TILE + lane] = weight;
    }
    __syncwarp();
}

/* acc += p v: a lane has elements lane, lane + 32, … */
template <int QW, int NJ>
static __device__ void value_tile(const struct attention_view &a, struct queries<QW, NJ> &own,
                                  sptr<float> tile, sptr<float> p, int warp, int lane) {
    int32_t stride = tile_stride(a.e);
    for (int32_t at = 0; at < TILE; at++) {
        float v[NJ];
        UNROLL
        for (int j = 0; j < NJ; j++) {
            v[j] = 0;
            if (lane + WARP_SIZE * j < a.e) v[j] = tile[at * stride + lane + WARP_SIZE * j];
        }
        UNROLL
        for (int i = 0; i < QW; i++) {
            if (own.row[i] < 0) continue;
            float weight = p[(warp * QW + i) * TILE + at];
            UNROLL
            for (int j = 0; j < NJ; j++) own.part[i].acc[j] = fmaf(weight, v[j], own.part[i].acc[j]);
        }
    }
}

/* Which queries the warp has of this sequence, and their q into shared memory. */
template <int QW, int NJ>
static __device__ void take_queries(const struct attention_view &a, struct queries<QW, NJ> &own,
                                    const struct head_run &run, sptr<float> q, int32_t row0, int32_t from,
                                    int32_t to, int warp, int lane) {
    int32_t whole = (a.e + 3) / 4 * 4;
    UNROLL
    for (int i = 0; i < QW; i++) {
        int32_t number = i * WARPS + warp, row = row0 + number / run.n;
        bool here = row >= from && row < to;
        own.row[i] = here ? row : -1;
        own.head[i] = run.head + number % run.n;
        own.pos[i] = 0;
        if (here) own.pos[i] = ptr<const int32_t>(a.pos)[row];
        state_clear(own.part[i]);
        state_clear(own.all[i]);
        for (int32_t d = lane; d < whole && here; d += WARP_SIZE) {
            float x = 0;
            if (d < a.e) x = ptr<const float>(a.q)[((int64_t)row * a.H + own.head[i]) * a.e + d];
            q[number * whole + d] = x;
        }
    }
}

template <int NJ>
static __device__ void write_partial(const struct attention_view &a, const struct softmax_state<NJ> &s,
                                     int32_t row, int32_t head, int32_t split, int lane) {
    int64_t at = (((int64_t)row * a.H + head) * a.n_splits + split) * (2 + a.e);
    ptr<float> to = ptr<float>(a.partial) + at;
    if (lane == 0) {
        to[0] = s.max;
        to[1] = s.sum;
    }
    UNROLL
    for (int j = 0; j < NJ; j++)
        if (lane + WARP_SIZE * j < a.e) to[2 + lane + WARP_SIZE * j] = s.acc[j];
}

template <int NJ>
static __device__ void write_out(const struct attention_view &a, const struct softmax_state<NJ> &s,
                                 int32_t row, int32_t head, int lane) {
    ptr<float> to = ptr<float>(a.out) + (row * a.out_stride + (int64_t)head * a.e);
    UNROLL
    for (int j = 0; j < NJ; j++)
        if (lane + WARP_SIZE * j < a.e) to[lane + WARP_SIZE * j] = s.acc[j] / s.sum;
}

/* Rows of one sequence. only >= 0: that split, its result to partial; else all splits, merged. */
template <class KV, int QW, int NJ>
static __device__ void attend(const struct attention_view &a, const struct head_run &run,
                              sptr<float> shared, int32_t row0, int32_t from, int32_t to, int32_t only) {
    int lane = (int)threadIdx.x % WARP_SIZE, warp = (int)threadIdx.x / WARP_SIZE;
    int32_t whole = (a.e + 3) / 4 * 4;
    sptr<float> q = shared, p = q + QW * WARPS * whole, tile = p + QW * WARPS * TILE;
    ptr<const int32_t> pos = ptr<const int32_t>(a.pos);
    int32_t high = pos[to - 1], low = pos[from], seq = ptr<const int32_t>(a.seq)[from];
    low = a.window > 0 && low >= a.window ? low - a.window + 1 : 0;
    int32_t first = low / SPLIT, last = high / SPLIT;
    if (only >= 0) {
        if (only < first || only > last) return;
        first = last = only;
    }
    struct queries<QW, NJ> own;
    take_queries(a, own, run, q, row0, from, to, warp, lane);
    for (int32_t split = first; split <= last; split++) {
        for (int32_t base = split * SPLIT; base < (split + 1) * SPLIT && base <= high; base += TILE) {
            if (base + TILE <= low) continue;
            __syncthreads();
            load_tile(a, tile, ptr<const KV>(a.k), seq, run.kv, base, low, high);
            __syncthreads();
            score_tile(a, own, tile, q, p, warp, lane, base);
            __syncthreads();
            load_tile(a, tile, ptr<const KV>(a.v), seq, run.kv, base, low, high);
            __syncthreads();
            value_tile(a, own, tile, p, warp, lane);
        }
        UNROLL
        for (int i = 0; i < QW; i++) {
            if (own.row[i] < 0) continue;
            if (only >= 0) write_partial(a, own.part[i], own.row[i], own.head[i], split, lane);
            state_merge(own.all[i], own.part[i]);
            state_clear(own.part[i]);
        }
    }
    UNROLL
    for (int i = 0; i < QW && only < 0; i++)
        if (own.row[i] >= 0) write_out(a, own.all[i], own.row[i], own.head[i], lane);
    __syncthreads();
}

/* Grid: groups of rows, runs of heads, and (decode) splits. A block reads the keys and values of its
 * sequence once for all its queries. With s positions seen by a row: bytes for decode 2 * s * K * e
 * elements of the cache a sequence, for prompts that for each group of rows; FLOPs 4 * s * H * e a row. */
template <class KV, int QW, int NJ>
__global__ void __launch_bounds__(WARPS *WARP_SIZE)
    k_attention(struct attention_view a, struct head_runs runs, bool split) {
    SHARED_DYN(float, shared);
    struct head_run run = runs.at[blockIdx.y];
    int32_t row0 = (int32_t)blockIdx.x * a.rows_per_block, end = min(row0 + a.rows_per_block, a.T);
    ptr<const int32_t> seq = ptr<const int32_t>(a.seq);
    for (int32_t from = row0, to; from < end; from = to) {
        int32_t mine = seq[from];
        for (to = from + 1; to < end; to++) {
            int32_t next = seq[to];
            if (next != mine) break;
        }
        attend<KV, QW, NJ>(a, run, shared, row0, from, to, split ? (int32_t)blockIdx.z : -1);
    }
}

/* A block for each row and head: merges the splits that the row sees. Bytes: 4 * (2 + e) a split. */
__global__ void k_attention_merge(struct attention_view a) {
    int32_t row = (int32_t)blockIdx.x, head = (int32_t)blockIdx.y;
    int32_t pos = ptr<const int32_t>(a.pos)[row];
    int32_t low = a.window > 0 && pos >= a.window ? pos - a.window + 1 : 0;
    ptr<const float> part =
        ptr<const float>(a.partial) + ((int64_t)row * a.H + head) * a.n_splits * (2 + a.e);
    for (int32_t d = (int32_t)threadIdx.x; d < a.e; d += (int32_t)blockDim.x) {
        struct softmax_state<1> all, next;
        state_clear(all);
        for (int32_t s = low / SPLIT; s <= pos / SPLIT; s++) {
            next.max = part[(int64_t)s * (2 + a.e)];
            next.sum = part[(int64_t)s * (2 + a.e) + 1];
            next.acc[0] = part[(int64_t)s * (2 + a.e) + 2 + d];
            state_merge(all, next);
        }
        (ptr<float>(a.out) + (row * a.out_stride + (int64_t)head * a.e))[d] = all.acc[0] / all.sum;
    }
}

/* --- the launch --------------------------------------------------------------------------------------------- */

/* Runs of at most `most` heads. */
static bool find_runs(struct head_runs *runs, const int32_t *kv_of_head, int32_t H, int32_t most) {
    runs->n = 0;
    for (int32_t h = 0; h < H;) {
        int32_t n = attention_run(kv_of_head, H, h, most);
        if (runs->n == RUNS_MAX) return false;
        runs->at[runs->n++] = {(int16_t)h, (int16_t)n, (int16_t)kv_of_head[h]};
        h += n;
    }
    return true;
}

template <class KV, int QW, int NJ>
static void attention(struct cuda_context *c, struct attention_view a, const int32_t *kv_of_head,
                      int32_t n_seqs) {
    struct head_runs runs;
    if (!find_runs(&runs, kv_of_head, a.H, attention_heads(a.e))) {
        cuda_refuse(c, "attention with more than %d runs of heads on a rank", RUNS_MAX);
        return;
    }
    int32_t most = 1;
    for (int i = 0; i < runs.n; i++) most = max(most, (int32_t)runs.at[i].n);
    a.rows_per_block = n_seqs == a.T ? 1 : QW * WARPS / most;
    size_t partial = n_seqs == a.T ? attention_partial(c->n_sms, a.T, a.H, a.e, runs.n, a.n_splits) : 0;
    bool split = partial > 0;
    if (split && !(a.partial = cuda_scratch(c, partial))) return;
    int32_t whole = (a.e + 3) / 4 * 4;
    size_t shared = sizeof(float) * (size_t)(QW * WARPS * (whole + TILE) + TILE * tile_stride(a.e));
    dim3 grid(blocks_for((size_t)a.T, (size_t)a.rows_per_block), (unsigned)runs.n,
              split ? (unsigned)a.n_splits : 1);
    auto *kernel = k_attention<KV, QW, NJ>;
    LAUNCH(kernel, grid, WARPS * WARP_SIZE, shared, c->stream, a, runs, split);
    if (!split) return;
    dim3 merge((unsigned)a.T, (unsigned)a.H);
    LAUNCH(k_attention_merge, merge, (unsigned)min(128, (a.e + 31) / 32 * 32), 0, c->stream, a);
}

template <class KV>
static void attention_of(struct cuda_context *c, const struct attention_view &a,
                         const int32_t *kv_of_head, int32_t n_seqs) {
    if (a.e <= 32) attention<KV, 4, 1>(c, a, kv_of_head, n_seqs);
    else if (a.e <= 64) attention<KV, 4, 2>(c, a, kv_of_head, n_seqs);
    else if (a.e <= 128) attention<KV, 4, 4>(c, a, kv_of_head, n_seqs);
    else if (a.e <= 256) attention<KV, 2, 8>(c, a, kv_of_head, n_seqs);
    else cuda_refuse(c, "attention with heads of %d elements: 256 is the most", a.e);
}

void cuda_attention(struct kctx *base, dev_addr out, int32_t out_stride, dev_addr q, int32_t H,
                    const int32_t *kv_of_head, const struct kv_view *kv, const struct step_rows *rows,
                    float scale, int32_t window) {
    if (rows->n_rows <= 0 || H <= 0 || !cuda_begin(base)) return;
    struct cuda_context *c = cuda_of(base);
    struct attention_view a = {};
    a.q = q, a.k = kv->k, a.v = kv->v, a.out = out;
    a.pos = rows->pos, a.seq = rows->seq, a.blocks = rows->blocks;
    a.T = rows->n_rows, a.H = H, a.K = kv->n_heads, a.e = kv->head_dim;
    a.block_size = kv->block_size, a.max_blocks = rows->max_blocks, a.window = window;
    a.n_splits = attention_splits(rows->max_blocks, kv->block_size);
    a.out_stride = out_stride;
    a.scale = scale;
    if (kv->type == DTYPE_F32) attention_of<float>(c, a, kv_of_head, rows->n_seqs);
    else if (kv->type == DTYPE_F16) attention_of<__half>(c, a, kv_of_head, rows->n_seqs);
    else if (kv->type == DTYPE_BF16) attention_of<__nv_bfloat16>(c, a, kv_of_head, rows->n_seqs);
    else if (kv->type == DTYPE_Q8_0) attention_of<struct q8>(c, a, kv_of_head, rows->n_seqs);
    else cuda_refuse(c, "attention over a KV cache of type %s", dtype_info(kv->type)->name);
    cuda_launched(c, "attention");
}
