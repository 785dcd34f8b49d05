/* Backward of norms, rotation and activation, and sums over rows. */
#include "kernels/cuda/four.h"
#include "kernels/cuda/train.h"

/* --- sums over rows ------------------------------------------------------------------------------------- */

/* Rows are cut into chunks at fixed places. A block has a chunk and 128 columns; its warps take every eighth
 * row. */
enum { CHUNK_COLS = 4 * WARP_SIZE, SUM_WARPS = 8 };

/* out[chunk, n] = (add: +=) the sum over the chunk's rows of x, or with y of x * y * r[row]. Bytes: 4 (with y
 * 8) * T * n. FLOPs: 1 (3) * T * n. */
__global__ void k_col_sum(ptr<float> out, ptr<const float> x, ptr<const float> y, ptr<const float> r,
                          int32_t T, int32_t n, bool whole, bool add) {
    SHARED(float, sums, SUM_WARPS * CHUNK_COLS);
    int lane = (int)threadIdx.x % WARP_SIZE, warp = (int)threadIdx.x / WARP_SIZE;
    int32_t col = (int32_t)blockIdx.x * CHUNK_COLS, i = col + 4 * lane;
    int32_t from = (int32_t)blockIdx.y * CHUNK_ROWS, to = min(T, from + CHUNK_ROWS);
    float4 sum = make_float4(0, 0, 0, 0);
    for (int32_t t = from + warp; t < to && i < n; t += SUM_WARPS) {
        float4 v = load_four(x + (int64_t)t * n, i, n, whole);
        if (y) {
            float4 u = load_four(y + (int64_t)t * n, i, n, whole);
            float by = r[t];
            v = each_of([=](float a, float b) { return a * b * by; }, v, u);
        }
        sum = each_of([](float a, float b) { return a + b; }, sum, v);
    }
    sptr<float> mine = sums + (warp * CHUNK_COLS + 4 * lane);
    mine[0] = sum.x, mine[1] = sum.y, mine[2] = sum.z, mine[3] = sum.w;
    __syncthreads();
    for (int32_t j = (int32_t)threadIdx.x; j < CHUNK_COLS && col + j < n; j += (int32_t)blockDim.x) {
        float total = 0;
        UNROLL
        for (int w = 0; w < SUM_WARPS; w++) {
            float part = sums[w * CHUNK_COLS + j];
            total += part;
        }
        int64_t at = (int64_t)blockIdx.y * n + col + j;
        if (add) out[at] += total;
        else out[at] = total;
    }
}

/* out[n] += the chunks' sums in their order. Bytes: 4 * n_chunks * n. */
__global__ void k_add_chunks(ptr<float> out, ptr<const float> chunks, int32_t n_chunks, int32_t n) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float sum = out[i];
    for (int32_t chunk = 0; chunk < n_chunks; chunk++) {
        float part = chunks[(int64_t)chunk * n + i];
        sum += part;
    }
    out[i] = sum;
}

/* chunks: col_sum_bytes of scratch. */
static void sum_columns(struct cuda_context *c, dev_addr out, dev_addr x, dev_addr y, dev_addr r, int32_t T,
                        int32_t n, dev_addr chunks) {
    unsigned n_chunks = blocks_for((size_t)T, CHUNK_ROWS);
    dim3 grid(blocks_for((size_t)n, CHUNK_COLS), n_chunks);
    bool whole = n % 4 == 0 && (x | y) % 16 == 0, add = n_chunks == 1;
    LAUNCH(k_col_sum, grid, SUM_WARPS * WARP_SIZE, 0, c->stream, ptr<float>(add ? out : chunks),
           ptr<const float>(x), ptr<const float>(y), ptr<const float>(r), T, n, whole, add);
    if (!add)
        LAUNCH(k_add_chunks, blocks_for((size_t)n, 128), 128, 0, c->stream, ptr<float>(out),
               ptr<const float>(chunks), (int32_t)n_chunks, n);
}

void cuda_col_sum(struct kctx *base, dev_addr out, dev_addr x, int32_t T, int32_t n) {
    if (T <= 0 || n <= 0 || !cuda_begin(base)) return;
    struct cuda_context *c = cuda_of(base);
    size_t bytes = col_sum_bytes(T, n);
    dev_addr chunks = bytes ? cuda_scratch(c, bytes) : 0;
    if (bytes && !chunks) return;
    sum_columns(c, out, x, 0, 0, T, n, chunks);
    cuda_launched(c, "col_sum");
}

/* --- rmsnorm -------------------------------------------------------------------------------------------- */

/* A block for each row; r[row] too where r is not 0. The second pass finds the row in the first-level cache.
 * Bytes: 16 * T * d. FLOPs: 10 * T * d. */
__global__ void k_rmsnorm_dx(ptr<float> dx, ptr<const float> dy, ptr<const float> x, ptr<const float> g,
                             ptr<float> r, int32_t d, float eps, bool whole) {
    SHARED(float, scratch, WARP_SIZE);
    int64_t at = (int64_t)blockIdx.x * d;
    int32_t first = 4 * (int32_t)threadIdx.x, step = 4 * (int32_t)blockDim.x;
    float square = 0, dot = 0;
    for (int32_t i = first; i < d; i += step) {
        float4 v = load_four(x + at, i, d, whole), a = load_four(dy + at, i, d, whole);
        float4 w = load_four(g, i, d, whole);
        square = fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, fmaf(v.w, v.w, square))));
        dot = fmaf(w.x * a.x, v.x, fmaf(w.y * a.y, v.y, fmaf(w.z * a.z, v.z, fmaf(w.w * a.w, v.w, dot))));
    }
    square = block_sum(square, scratch);
    dot = block_sum(dot, scratch);
    float by = 1.0f / sqrtf(square / (float)d + eps), back = dot / (float)d * by * by;
    for (int32_t i = first; i < d; i += step) {
        float4 v = load_four(x + at, i, d, whole), a = load_four(dy + at, i, d, whole);
        float4 w = load_four(g, i, d, whole), old = load_four(dx + at, i, d, whole);
        a = each_of([=](float p, float q, float s) { return (p * q - s * back) * by; }, w, a, v);
        store_four(dx + at, i, d, whole, each_of([](float p, float q) { return p + q; }, old, a));
    }
    if (r && threadIdx.x == 0) r[blockIdx.x] = by;
}

void cuda_rmsnorm_dx(struct kctx *base, dev_addr dx, dev_addr dg, dev_addr dy, dev_addr x, dev_addr g,
                     int32_t T, int32_t d, float eps) {
    if (T <= 0 || d <= 0 || !cuda_begin(base)) return;
    struct cuda_context *c = cuda_of(base);
    struct factor_bytes bytes = rmsnorm_dx_bytes(T, d);
    dev_addr r = dg ? cuda_scratch(c, bytes.first + bytes.second) : 0;
    if (dg && !r) return;
    unsigned threads = (unsigned)min((size_t)512, align_to((size_t)(d + 3) / 4, WARP_SIZE));
    bool whole = d % 4 == 0 && (dx | dy | x | g) % 16 == 0;
    LAUNCH(k_rmsnorm_dx, (unsigned)T, threads, 0, c->stream, ptr<float>(dx), ptr<const float>(dy),
           ptr<const float>(x), ptr<const float>(g), ptr<float>(r), d, eps, whole);
    if (dg) sum_columns(c, dg, x, dy, r, T, d, r + bytes.first);
    cuda_launched(c, "rmsnorm_dx");
}

/* --- rotation ------------------------------------------------------------------------------------------- */

/* A thread has four pairs of a row's head. Bytes: 8 * T * heads * e; cosines and sines are read once for each
 * row. FLOPs: 3 * T * heads * e. */
__global__ void k_rope_rows(ptr<float> x, ptr<const float> cos_sin, int32_t heads, int32_t e, int64_t n_fours,
                            float sign, bool whole) {
    int64_t mine = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (mine >= n_fours) return;
    int32_t half = e / 2, per_head = (half + 3) / 4, i = 4 * (int32_t)(mine % per_head);
    int64_t head = mine / per_head, row = head / heads;
    ptr<float> low = x + head * e, high = low + half;
    ptr<const float> cosines = cos_sin + row * e, sines = cosines + half;
    float4 a = load_four(low, i, half, whole), b = load_four(high, i, half, whole);
    float4 c = load_four(cosines, i, half, whole), s = load_four(sines, i, half, whole);
    s = each_of([=](float v) { return v * sign; }, s);
    float4 ac = each_of([](float p, float q) { return p * q; }, a, c);
    float4 bc = each_of([](float p, float q) { return p * q; }, b, c);
    store_four(low, i, half, whole, each_of([](float p, float q, float r) { return p - q * r; }, ac, b, s));
    store_four(high, i, half, whole, each_of([](float p, float q, float r) { return p + q * r; }, bc, a, s));
}

void cuda_rope_rows(struct kctx *base, dev_addr x, int32_t heads, dev_addr cos_sin, int32_t T, int32_t e,
                    bool inverse) {
    if (T <= 0 || heads <= 0 || !cuda_begin(base)) return;
    struct cuda_context *c = cuda_of(base);
    int64_t n_fours = (int64_t)T * heads * ((e / 2 + 3) / 4);
    bool whole = e % 8 == 0 && (x | cos_sin) % 16 == 0;
    float sign = inverse ? -1 : 1;
    LAUNCH(k_rope_rows, blocks_for((size_t)n_fours, 128), 128, 0, c->stream, ptr<float>(x),
           ptr<const float>(cos_sin), heads, e, n_fours, sign, whole);
    cuda_launched(c, "rope_rows");
}

/* --- activation ------------------------------------------------------------------------------------------ */

static __device__ __forceinline__ void silu_mul_dx_one(float dout, float gate, float up, float *dgate,
                                                       float *dup) {
    gate = gate < -80.0f ? -80.0f : gate; /* below, both are nothing */
    float s = 1.0f / (1.0f + expf(-gate));
    *dgate = dout * up * (s * (1.0f + gate * (1.0f - s)));
    *dup = dout * (gate * s);
}

/* Four elements a thread. Bytes: 20 * n. FLOPs: about 15 * n. */
__global__ void k_silu_mul_dx(ptr<float> dgate, ptr<float> dup, ptr<const float> dout, ptr<const float> gate,
                              ptr<const float> up, int64_t n, bool aligned) {
    int64_t i = 4 * ((int64_t)blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= n) return;
    bool whole = aligned && i + 4 <= n;
    float4 d = load_four(dout, i, n, whole), g = load_four(gate, i, n, whole), u = load_four(up, i, n, whole);
    float4 dg, du;
    silu_mul_dx_one(d.x, g.x, u.x, &dg.x, &du.x);
    silu_mul_dx_one(d.y, g.y, u.y, &dg.y, &du.y);
    silu_mul_dx_one(d.z, g.z, u.z, &dg.z, &du.z);
    silu_mul_dx_one(d.w, g.w, u.w, &dg.w, &du.w);
    store_four(dgate, i, n, whole, dg);
    store_four(dup, i, n, whole, du);
}

void cuda_silu_mul_dx(struct kctx *base, dev_addr dgate, dev_addr dup, dev_addr dout, dev_addr gate,
                      dev_addr up, int32_t T, int32_t F) {
    int64_t n = (int64_t)T * F;
    if (n <= 0 || !cuda_begin(base)) return;
    struct cuda_context *c = cuda_of(base);
    bool aligned = (dgate | dup | dout | gate | up) % 16 == 0;
    LAUNCH(k_silu_mul_dx, blocks_for((size_t)n, 4 * 256), 256, 0, c->stream, ptr<float>(dgate),
           ptr<float>(dup), ptr<const float>(dout), ptr<const float>(gate), ptr<const float>(up), n, aligned);
    cuda_launched(c, "silu_mul_dx");
}
