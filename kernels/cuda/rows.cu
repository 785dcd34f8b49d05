/* Operations on rows: embedding, norms, rotary positions, activations. None reuses what it reads, so the
 * bytes are the floor of their time. */
#include "kernels/cuda/four.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/quant.h"

/* --- embedding -------------------------------------------------------------------------------------- */

/* A thread for each unit of 32 columns. Bytes: T rows as stored, 4 * T * d out. FLOPs: 3 * T * d. */
template <enum dtype type>
__global__ void k_embed(ptr<float> out, struct matrix_view table, ptr<const int32_t> ids, int32_t T,
                        int32_t first_row, float scale) {
    int32_t d = table.cols, units = (d + UNIT - 1) / UNIT;
    int64_t mine = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (mine >= (int64_t)T * units) return;
    int32_t t = (int32_t)(mine / units), u = (int32_t)(mine % units);
    int64_t row = (int64_t)ids[t] - first_row;
    bool here = row >= 0 && row < table.rows;
    float values[UNIT];
    if (here) matrix_values<type>(table, (int32_t)row, u, values);
    for (int i = 0; i < UNIT && u * UNIT + i < d; i++)
        out[(int64_t)t * d + u * UNIT + i] = here ? scale * values[i] : 0.0f;
}

template <enum dtype type>
static void embed(struct cuda_context *c, dev_addr out, const struct weight *table, dev_addr ids,
                  int32_t T, int32_t first_row, float scale) {
    struct matrix_view view = matrix_view(table);
    size_t units = (size_t)T * (((size_t)table->cols + UNIT - 1) / UNIT);
    LAUNCH(k_embed<type>, blocks_for(units, 64), 64, 0, c->stream, ptr<float>(out), view,
           ptr<const int32_t>(ids), T, first_row, scale);
}

void cuda_embed(struct kctx *base, dev_addr out, const struct weight *table, dev_addr ids, int32_t T,
                int32_t first_row, float scale) {
    if (T <= 0 || table->cols <= 0 || !cuda_begin(base)) return;
    struct cuda_context *c = cuda_of(base);
    with_type(table->type, [&](auto type) {
        embed<decltype(type)::value>(c, out, table, ids, T, first_row, scale);
    });
    cuda_launched(c, "embed");
}

/* --- norms ------------------------------------------------------------------------------------------ */

/* A block for each row; x += scale * y first where there is a y. Bytes: 8 * T * d (with y: 16 * T * d).
 * FLOPs: 4 (6) * T * d. */
__global__ void k_rmsnorm(ptr<float> out, ptr<float> x, ptr<const float> y, float scale,
                          ptr<const float> g, int32_t d, float eps, bool whole) {
    SHARED(float, scratch, WARP_SIZE);
    int64_t at = (int64_t)blockIdx.x * d;
    bool add = (bool)y;
    auto part = [&](int32_t i) { return load_four(y + at, i, d, whole); };
    norm_row(out + at, x + at, add, part, scale, g, d, eps, whole, scratch);
}

static void norm(struct kctx *base, dev_addr out, dev_addr x, dev_addr y, float scale, dev_addr g,
                 int32_t T, int32_t d, float eps, const char *what) {
    if (T <= 0 || d <= 0 || !cuda_begin(base)) return;
    struct cuda_context *c = cuda_of(base);
    unsigned threads = norm_threads(d);
    bool whole = d % 4 == 0 && (out | x | y | g) % 16 == 0;
    LAUNCH(k_rmsnorm, (unsigned)T, threads, 0, c->stream, ptr<float>(out), ptr<float>(x),
           ptr<const float>(y), scale, ptr<const float>(g), d, eps, whole);
    cuda_launched(c, what);
}

void cuda_rmsnorm(struct kctx *base, dev_addr out, dev_addr x, dev_addr g, int32_t T, int32_t d,
                  float eps) {
    norm(base, out, x, 0, 0, g, T, d, eps, "rmsnorm");
}
void cuda_add_rmsnorm(struct kctx *base, dev_addr out, dev_addr x, dev_addr y, float scale, dev_addr g,
                      int32_t T, int32_t d, float eps) {
    norm(base, out, x, y, scale, g, T, d, eps, "add_rmsnorm");
}
void cuda_head_norm(struct kctx *base, dev_addr x, dev_addr g, int32_t T, int32_t heads, int32_t e,
                    float eps) {
    norm(base, x, x, 0, 0, g, T * heads, e, eps, "head_norm");
}

/* --- rotary positions --------------------------------------------------------------------------------- */

/* Dynamic scaling in the precision of the reference: the base in double, the powers rounded to fp32. */
static __device__ float dynamic_inv_freq(const struct rope_freqs &f, int32_t len, int32_t i) {
    double e = f.head_dim, factor = f.ntk_factor;
    double base = (double)f.base * pow(factor * len / f.original_len - (factor - 1), e / (e - 2));
    float power = (float)pow((double)(float)base, (double)(2 * (float)i / (float)f.head_dim));
    return 1.0f / power;
}

/* Once a step. Bytes: 4 * T * e out. FLOPs: a sine and a cosine for each pair. */
__global__ void k_rope_table(ptr<float> out, struct rope_freqs f, ptr<const int32_t> pos,
                             ptr<const int32_t> len, int32_t T) {
    int32_t half = f.head_dim / 2;
    int64_t mine = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (mine >= (int64_t)T * half) return;
    int64_t t = mine / half;
    int32_t i = (int32_t)(mine % half), n = 0, p = pos[t];
    if (f.ntk_factor > 0) n = len[t];
    float freq = ptr<const float>(f.inv_freq)[i];
    if (n > f.original_len && f.ntk_factor > 0) freq = dynamic_inv_freq(f, n, i);
    float angle = (float)p * freq;
    out[t * f.head_dim + i] = cosf(angle) * f.scale;
    out[t * f.head_dim + half + i] = sinf(angle) * f.scale;
}

void cuda_rope_table(struct kctx *base, dev_addr cos_sin, const struct rope_freqs *freqs, dev_addr pos,
                     dev_addr len, int32_t T) {
    if (T <= 0 || !cuda_begin(base)) return;
    struct cuda_context *c = cuda_of(base);
    struct rope_freqs f = *freqs;
    LAUNCH(k_rope_table, blocks_for((size_t)T * (size_t)(f.head_dim / 2), 128), 128, 0, c->stream,
           ptr<float>(cos_sin), f, ptr<const int32_t>(pos), ptr<const int32_t>(len), T);
    cuda_launched(c, "rope_table");
}

struct rope_call {
    int32_t H, K, e, block_size, max_blocks;
};

static __device__ __forceinline__ void cache_store(ptr<float> to, int64_t i, float x) { to[i] = x; }
static __device__ __forceinline__ void cache_store(ptr<__half> to, int64_t i, float x) {
    to[i] = __float2half_rn(x);
}
static __device__ __forceinline__ void cache_store(ptr<__nv_bfloat16> to, int64_t i, float x) {
    to[i] = __float2bfloat16_rn(x);
}

static __device__ __forceinline__ void cache_store(ptr<struct q8>, int64_t, float) {} /* block by block */

/* Row t of k and v into the cache, a warp for each block. One that holds a number which is not finite is all NaN
 * when it is read. */
static __device__ void quantise_row(ptr<const float> k, ptr<const float> v, ptr<uint8_t> k_cache,
                                    ptr<uint8_t> v_cache, int64_t t, int64_t block, int32_t at,
                                    const struct rope_call &call) {
    int lane = (int)threadIdx.x % WARP_SIZE, n_warps = (int)blockDim.x / WARP_SIZE;
    int32_t of_row = call.K * call.e / Q8_BLOCK;
    for (int32_t i = (int32_t)threadIdx.x / WARP_SIZE; i < 2 * of_row; i += n_warps) {
        bool is_k = i < of_row;
        int32_t element = (is_k ? i : i - of_row) * Q8_BLOCK, head = element / call.e;
        int64_t to = ((block * call.K + head) * call.block_size + at) * call.e + element % call.e;
        float x = (is_k ? k : v)[t * call.K * call.e + element + lane];
        float largest = warp_max(fabsf(x));
        bool finite = !__any_sync(ALL_LANES, x * 0.0f != 0.0f);
        __half scale = __float2half_rn(largest / 127.0f);
        uint16_t bits;
        memcpy(&bits, &scale, sizeof bits);
        float inverse = finite && bits ? 127.0f / largest : 0.0f;
        ptr<uint8_t> out = (is_k ? k_cache : v_cache) + to / Q8_BLOCK * Q8_BLOCK_BYTES;
        if (lane == 0) as<uint16_t>(out)[0] = finite ? bits : (uint16_t)0x7E00;
        out[2 + lane] = inverse > 0 ? (uint8_t)(int8_t)rintf(x * inverse) : (uint8_t)0;
    }
}

/* A block for each row, a thread for each pair of q and k and each element of v. Bytes: 8 * T * (H + K) * e
 * for q and k, 4 * T * K * e for v, and two rows of the cache. FLOPs: 3 * T * (H + K) * e. */
template <class KV>
__global__ void k_rope_kv(ptr<float> q, ptr<float> k, ptr<const float> v, ptr<const float> cos_sin,
                          ptr<KV> k_cache, ptr<KV> v_cache, ptr<const int32_t> pos,
                          ptr<const int32_t> seq, ptr<const int32_t> blocks, struct rope_call call) {
    int64_t t = blockIdx.x;
    int32_t H = call.H, K = call.K, e = call.e, half = e / 2;
    int32_t p = pos[t], s = seq[t];
    int32_t block = blocks[(int64_t)s * call.max_blocks + p / call.block_size];
    for (int32_t i = (int32_t)threadIdx.x; i < (H + K) * half; i += (int32_t)blockDim.x) {
        int32_t h = i / half, j = i % half;
        float cosine = cos_sin[t * e + j], sine = cos_sin[t * e + half + j];
        bool is_q = h < H;
        int64_t at = is_q ? (t * H + h) * e + j : (t * K + h - H) * e + j;
        float a = is_q ? q[at] : k[at], b = is_q ? q[at + half] : k[at + half];
        float first = a * cosine - b * sine, second = b * cosine + a * sine;
        if (is_q) {
            q[at] = first;
            q[at + half] = second;
        } else {
            int64_t to = (((int64_t)block * K + h - H) * call.block_size + p % call.block_size) * e + j;
            k[at] = first;
            k[at + half] = second;
            cache_store(k_cache, to, first);
            cache_store(k_cache, to + half, second);
        }
    }
    for (int32_t i = (int32_t)threadIdx.x; i < K * e; i += (int32_t)blockDim.x) {
        int64_t to = (((int64_t)block * K + i / e) * call.block_size + p % call.block_size) * e + i % e;
        float value = v[t * K * e + i];
        cache_store(v_cache, to, value);
    }
    if constexpr (std::is_same<KV, struct q8>::value) {
        __syncthreads(); /* k is whole */
        quantise_row(k, v, as<uint8_t>(k_cache), as<uint8_t>(v_cache), t, block, p % call.block_size, call);
    }
}

template <class KV>
static void rope_kv(struct cuda_context *c, dev_addr q, int32_t H, dev_addr k, dev_addr v,
                    dev_addr cos_sin, const struct kv_view *kv, const struct step_rows *rows) {
    struct rope_call call = {H, kv->n_heads, kv->head_dim, kv->block_size, rows->max_blocks};
    LAUNCH(k_rope_kv<KV>, (unsigned)rows->n_rows, 128, 0, c->stream, ptr<float>(q), ptr<float>(k),
           ptr<const float>(v), ptr<const float>(cos_sin), ptr<KV>(kv->k), ptr<KV>(kv->v),
           ptr<const int32_t>(rows->pos), ptr<const int32_t>(rows->seq),
           ptr<const int32_t>(rows->blocks), call);
}

void cuda_rope_kv(struct kctx *base, dev_addr q, int32_t H, dev_addr k, dev_addr v, dev_addr cos_sin,
                  const struct kv_view *kv, const struct step_rows *rows) {
    if (rows->n_rows <= 0 || !cuda_begin(base)) return;
    struct cuda_context *c = cuda_of(base);
    if (kv->type == DTYPE_F32) rope_kv<float>(c, q, H, k, v, cos_sin, kv, rows);
    else if (kv->type == DTYPE_F16) rope_kv<__half>(c, q, H, k, v, cos_sin, kv, rows);
    else if (kv->type == DTYPE_BF16) rope_kv<__nv_bfloat16>(c, q, H, k, v, cos_sin, kv, rows);
    else if (kv->type == DTYPE_Q8_0) rope_kv<struct q8>(c, q, H, k, v, cos_sin, kv, rows);
    else cuda_refuse(c, "a KV cache of type %s", dtype_info(kv->type)->name);
    cuda_launched(c, "rope_kv");
}

/* --- elements ------------------------------------------------------------------------------------------ */

static __device__ __forceinline__ float silu(float x) { return x / (1.0f + expf(-x)); }

/* Four elements a thread. Bytes: 12 * n. FLOPs: 5 * n. */
__global__ void k_silu_mul(ptr<float> out, ptr<const float> gate, ptr<const float> up, size_t n,
                           bool whole) {
    size_t i = 4 * ((size_t)blockIdx.x * blockDim.x + threadIdx.x);
    if (i + 4 <= n && whole) {
        float4 g = load16<float4>(gate + (int64_t)i), u = load16<float4>(up + (int64_t)i);
        store16(out + (int64_t)i, make_float4(silu(g.x) * u.x, silu(g.y) * u.y, silu(g.z) * u.z,
                                              silu(g.w) * u.w));
        return;
    }
    for (size_t j = i; j < i + 4 && j < n; j++) {
        float g = gate[(int64_t)j], u = up[(int64_t)j];
        out[(int64_t)j] = silu(g) * u;
    }
}

void cuda_silu_mul(struct kctx *base, dev_addr out, dev_addr gate, dev_addr up, int32_t T, int32_t F) {
    size_t n = (size_t)T * (size_t)F;
    if (n == 0 || !cuda_begin(base)) return;
    struct cuda_context *c = cuda_of(base);
    bool whole = (out | gate | up) % 16 == 0;
    LAUNCH(k_silu_mul, blocks_for(n, 4 * 128), 128, 0, c->stream, ptr<float>(out),
           ptr<const float>(gate), ptr<const float>(up), n, whole);
    cuda_launched(c, "silu_mul");
}

/* A block for each row. Bytes: 8 * n * d. */
__global__ void k_gather_rows(ptr<float> out, ptr<const float> x, ptr<const int32_t> index, int32_t d,
                              bool whole) {
    int64_t from = (int64_t)index[blockIdx.x] * d, to = (int64_t)blockIdx.x * d;
    for (int32_t i = 4 * (int32_t)threadIdx.x; i < d; i += 4 * (int32_t)blockDim.x) {
        float4 v = load_four(x + from, i, d, whole);
        store_four(out + to, i, d, whole, v);
    }
}

void cuda_gather_rows(struct kctx *base, dev_addr out, dev_addr x, dev_addr index, int32_t n,
                      int32_t d) {
    if (n <= 0 || d <= 0 || !cuda_begin(base)) return;
    struct cuda_context *c = cuda_of(base);
    bool whole = d % 4 == 0 && (out | x) % 16 == 0;
    LAUNCH(k_gather_rows, (unsigned)n, 128, 0, c->stream, ptr<float>(out), ptr<const float>(x),
           ptr<const int32_t>(index), d, whole);
    cuda_launched(c, "gather_rows");
}

/* Bytes: 8 * n. FLOPs: n. */
__global__ void k_scale(ptr<float> x, size_t n, float s) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[(int64_t)i] *= s;
}

void cuda_scale(struct kctx *base, dev_addr x, size_t n, float s) {
    if (n == 0 || !cuda_begin(base)) return;
    struct cuda_context *c = cuda_of(base);
    if (s == 0) {
        void *at = reinterpret_cast<void *>(x);
        cuda_check(c, cudaMemsetAsync(at, 0, n * sizeof(float), c->stream), "scale");
        return;
    }
    LAUNCH(k_scale, blocks_for(n, 256), 256, 0, c->stream, ptr<float>(x), n, s);
    cuda_launched(c, "scale");
}
