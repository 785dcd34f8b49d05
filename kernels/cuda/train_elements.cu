/* Operations on flat arrays: bf16 and back, axpy, dropout, sums of squares, AdamW. A thread has four or eight
 * elements, 16 bytes an access; none reuses what it reads, so the bytes are the floor of their time. */
#include "kernels/cuda/four.h"
#include "kernels/cuda/train.h"

enum { THREADS = 256 };

/* Which four elements of n a thread has; whole: it may take them at once. */
struct four_of {
    int64_t at;
    bool there, whole;
};
static __device__ __forceinline__ struct four_of my_four(size_t n, bool aligned) {
    int64_t at = 4 * ((int64_t)blockIdx.x * blockDim.x + threadIdx.x);
    return {at, at < (int64_t)n, aligned && at + 4 <= (int64_t)n};
}

/* --- bf16 --------------------------------------------------------------------------------------------- */

static __device__ __forceinline__ uint32_t bf16_bits(float x) {
    __nv_bfloat16 rounded = __float2bfloat16_rn(x);
    uint16_t bits;
    memcpy(&bits, &rounded, sizeof bits);
    return bits;
}
static __device__ __forceinline__ float bf16_value(uint32_t bits) { return __uint_as_float(bits << 16); }

/* Eight elements a thread. Bytes: 6 * n. */
__global__ void k_narrow_eight(ptr<uint16_t> to, ptr<const float> from, size_t n, bool aligned) {
    int64_t i = 8 * ((int64_t)blockIdx.x * blockDim.x + threadIdx.x);
    if (aligned && i + 8 <= (int64_t)n) {
        float4 a = load16<float4>(from + i), b = load16<float4>(from + (i + 4));
        store16(to + i, make_uint4(bf16_bits(a.x) | bf16_bits(a.y) << 16, bf16_bits(a.z) | bf16_bits(a.w) << 16,
                                   bf16_bits(b.x) | bf16_bits(b.y) << 16, bf16_bits(b.z) | bf16_bits(b.w) << 16));
        return;
    }
    for (int64_t j = i; j < i + 8 && j < (int64_t)n; j++) {
        float x = from[j];
        to[j] = (uint16_t)bf16_bits(x);
    }
}

void cuda_train_narrow(struct kctx *base, dev_addr to, dev_addr from, size_t n) {
    if (n == 0 || !cuda_begin(base)) return;
    struct cuda_context *c = cuda_of(base);
    bool aligned = (to | from) % 16 == 0;
    LAUNCH(k_narrow_eight, blocks_for(n, 8 * THREADS), THREADS, 0, c->stream, ptr<uint16_t>(to),
           ptr<const float>(from), n, aligned);
    cuda_launched(c, "narrow");
}

/* Eight elements a thread. Bytes: 6 * n. */
__global__ void k_widen_eight(ptr<float> to, ptr<const uint16_t> from, size_t n, bool aligned) {
    int64_t i = 8 * ((int64_t)blockIdx.x * blockDim.x + threadIdx.x);
    if (aligned && i + 8 <= (int64_t)n) {
        uint4 v = load16<uint4>(from + i);
        store16(to + i, make_float4(bf16_value(v.x & 0xFFFF), bf16_value(v.x >> 16), bf16_value(v.y & 0xFFFF),
                                    bf16_value(v.y >> 16)));
        store16(to + (i + 4), make_float4(bf16_value(v.z & 0xFFFF), bf16_value(v.z >> 16),
                                          bf16_value(v.w & 0xFFFF), bf16_value(v.w >> 16)));
        return;
    }
    for (int64_t j = i; j < i + 8 && j < (int64_t)n; j++) {
        uint16_t bits = from[j];
        to[j] = bf16_value(bits);
    }
}

void cuda_widen(struct kctx *base, dev_addr to, dev_addr from, size_t n) {
    if (n == 0 || !cuda_begin(base)) return;
    struct cuda_context *c = cuda_of(base);
    bool aligned = (to | from) % 16 == 0;
    LAUNCH(k_widen_eight, blocks_for(n, 8 * THREADS), THREADS, 0, c->stream, ptr<float>(to),
           ptr<const uint16_t>(from), n, aligned);
    cuda_launched(c, "widen");
}

/* --- axpy ---------------------------------------------------------------------------------------------- */

/* Bytes: 12 * n. FLOPs: 2 * n. */
__global__ void k_axpy(ptr<float> y, ptr<const float> x, size_t n, float a, bool aligned) {
    struct four_of f = my_four(n, aligned);
    if (!f.there) return;
    float4 u = load_four(x, f.at, (int64_t)n, f.whole), v = load_four(y, f.at, (int64_t)n, f.whole);
    v = each_of([=](float s, float t) { return fmaf(s, a, t); }, u, v);
    store_four(y, f.at, (int64_t)n, f.whole, v);
}

void cuda_axpy(struct kctx *base, dev_addr y, dev_addr x, size_t n, float a) {
    if (n == 0 || !cuda_begin(base)) return;
    struct cuda_context *c = cuda_of(base);
    bool aligned = (y | x) % 16 == 0;
    LAUNCH(k_axpy, blocks_for(n, 4 * THREADS), THREADS, 0, c->stream, ptr<float>(y), ptr<const float>(x), n,
           a, aligned);
    cuda_launched(c, "axpy");
}

/* --- dropout -------------------------------------------------------------------------------------------- */

/* kernels/cpu/train.h has the same generator: SplitMix64, entered anywhere. */
static __device__ __forceinline__ uint64_t counter_draw(uint64_t key, uint64_t i) {
    uint64_t x = key + (i + 1) * 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

struct dropout_call {
    uint64_t seed, first, row_stride, below; /* below: of 2^32 values of a draw, those that drop */
    int32_t cols;
    float by;
    bool whole;
};

/* Grid: rows of blocks along x, row t at y. Bytes: 8 * T * cols. */
__global__ void k_dropout(ptr<float> out, ptr<const float> x, struct dropout_call d, int32_t T) {
    int32_t i = 4 * (int32_t)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= d.cols) return;
    for (int32_t t = (int32_t)blockIdx.y; t < T; t += (int32_t)gridDim.y) {
        uint64_t index = d.first + (uint64_t)t * d.row_stride + (uint64_t)i;
        int64_t row = (int64_t)t * d.cols;
        float4 v = load_four(x + row, i, d.cols, d.whole);
        float *each[4] = {&v.x, &v.y, &v.z, &v.w};
        UNROLL
        for (int j = 0; j < 4; j++)
            *each[j] = counter_draw(d.seed, index + (uint64_t)j) >> 32 < d.below ? 0 : *each[j] * d.by;
        store_four(out + row, i, d.cols, d.whole, v);
    }
}

void cuda_dropout(struct kctx *base, dev_addr out, dev_addr x, int32_t T, int32_t cols, int32_t row_stride,
                  int32_t col, float p, uint64_t seed, uint64_t first) {
    if (T <= 0 || cols <= 0 || !cuda_begin(base)) return;
    struct cuda_context *c = cuda_of(base);
    struct dropout_call d = {seed, first + (uint64_t)col, (uint64_t)row_stride, (uint64_t)((double)p * 0x1p32),
                             cols, p < 1 ? 1 / (1 - p) : 0, cols % 4 == 0 && (out | x) % 16 == 0};
    dim3 grid(blocks_for((size_t)cols, 4 * 128), (unsigned)min(T, 65535));
    LAUNCH(k_dropout, grid, 128, 0, c->stream, ptr<float>(out), ptr<const float>(x), d, T);
    cuda_launched(c, "dropout");
}

/* --- sums of squares ------------------------------------------------------------------------------------ */

/* A block sums a piece (SQUARES_RUN); pieces are added up in one order by one block. */

/* Bytes: 4 * n. FLOPs: 2 * n, in double. */
__global__ void k_square_pieces(ptr<double> pieces, ptr<const float> x, size_t n, bool aligned) {
    SHARED(double, scratch, WARP_SIZE);
    int64_t from = (int64_t)blockIdx.x * SQUARES_RUN, to = min((int64_t)n, from + SQUARES_RUN);
    double sum = 0;
    for (int64_t i = from + 4 * (int64_t)threadIdx.x; i < to; i += 4 * (int64_t)blockDim.x) {
        float4 v = load_four(x, i, to, aligned && i + 4 <= to);
        sum += (double)v.x * v.x + (double)v.y * v.y + (double)v.z * v.z + (double)v.w * v.w;
    }
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) pieces[blockIdx.x] = sum;
}

__global__ void k_add_pieces(ptr<float> out, ptr<const double> pieces, int32_t n) {
    SHARED(double, scratch, WARP_SIZE);
    double sum = 0;
    for (int32_t i = (int32_t)threadIdx.x; i < n; i += (int32_t)blockDim.x) {
        double piece = pieces[i];
        sum += piece;
    }
    sum = block_sum(sum, scratch);
    if (threadIdx.x != 0) return;
    float old = out[0];
    out[0] = (float)((double)old + sum);
}

void cuda_sum_squares(struct kctx *base, dev_addr out, dev_addr x, size_t n) {
    if (n == 0 || !cuda_begin(base)) return;
    struct cuda_context *c = cuda_of(base);
    unsigned n_pieces = blocks_for(n, SQUARES_RUN);
    bool aligned = x % 16 == 0;
    dev_addr pieces = cuda_scratch(c, sum_squares_bytes(n));
    if (!pieces) return;
    LAUNCH(k_square_pieces, n_pieces, THREADS, 0, c->stream, ptr<double>(pieces), ptr<const float>(x), n,
           aligned);
    LAUNCH(k_add_pieces, 1, THREADS, 0, c->stream, ptr<float>(out), ptr<const double>(pieces),
           (int32_t)n_pieces);
    cuda_launched(c, "sum_squares");
}

/* --- AdamW ----------------------------------------------------------------------------------------------- */

struct adamw_call {
    float beta1, new1, beta2, new2, keep, lr, by2, eps, grad_scale;
    bool aligned;
};

static __device__ __forceinline__ void adamw_one(const struct adamw_call &a, float *p, float g, float *m,
                                                 float *v) {
    g *= a.grad_scale;
    *m = fmaf(*m, a.beta1, g * a.new1);
    *v = fmaf(*v, a.beta2, g * g * a.new2);
    *p = *p * a.keep - a.lr * *m / (sqrtf(*v * a.by2) + a.eps);
}

/* Bytes: 28 * n. FLOPs: about 15 * n. */
__global__ void k_adamw(ptr<float> p, ptr<const float> g, ptr<float> m, ptr<float> v, size_t size,
                        struct adamw_call a) {
    struct four_of f = my_four(size, a.aligned);
    int64_t n = (int64_t)size;
    if (!f.there) return;
    float4 grad = load_four(g, f.at, n, f.whole), value = load_four(p, f.at, n, f.whole);
    float4 mean = load_four(m, f.at, n, f.whole), square = load_four(v, f.at, n, f.whole);
    adamw_one(a, &value.x, grad.x, &mean.x, &square.x);
    adamw_one(a, &value.y, grad.y, &mean.y, &square.y);
    adamw_one(a, &value.z, grad.z, &mean.z, &square.z);
    adamw_one(a, &value.w, grad.w, &mean.w, &square.w);
    store_four(p, f.at, n, f.whole, value);
    store_four(m, f.at, n, f.whole, mean);
    store_four(v, f.at, n, f.whole, square);
}

void cuda_adamw(struct kctx *base, dev_addr p, dev_addr g, dev_addr m, dev_addr v, size_t n,
                const struct adamw_params *params, float grad_scale) {
    if (n == 0 || !cuda_begin(base)) return;
    struct cuda_context *c = cuda_of(base);
    const struct adamw_params *a = params;
    struct adamw_call call = {a->beta1, 1 - a->beta1, a->beta2, 1 - a->beta2, 1 - a->lr * a->weight_decay,
                              a->lr / a->c1, 1 / a->c2, a->eps, grad_scale, (p | g | m | v) % 16 == 0};
    LAUNCH(k_adamw, blocks_for(n, 4 * THREADS), THREADS, 0, c->stream, ptr<float>(p), ptr<const float>(g),
           ptr<float>(m), ptr<float>(v), n, call);
    cuda_launched(c, "adamw");
}
