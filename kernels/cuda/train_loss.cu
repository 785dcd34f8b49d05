/* Vocabulary-parallel cross entropy, and the embedding's rows and gradient. */
#include "kernels/cuda/four.h"
#include "kernels/cuda/train.h"

enum { THREADS = 256 };

/* --- cross entropy -------------------------------------------------------------------------------------- */

/* The largest of some logits and the sum of e^(l - max). Of none: -inf and 0. */
struct running_sum {
    float max, sum;
};

static __device__ __forceinline__ struct running_sum joined(struct running_sum a, struct running_sum b) {
    float max = fmaxf(a.max, b.max);
    if (max == -INFINITY) return {max, a.sum + b.sum};
    return {max, a.sum * expf(a.max - max) + b.sum * expf(b.max - max)};
}

static __device__ __forceinline__ struct running_sum warp_joined(struct running_sum s) {
    for (int by = WARP_SIZE / 2; by > 0; by /= 2) {
        struct running_sum other;
        other.max = __shfl_xor_sync(ALL_LANES, s.max, by);
        other.sum = __shfl_xor_sync(ALL_LANES, s.sum, by);
        s = joined(s, other);
    }
    return s;
}

static __device__ __forceinline__ void take(struct running_sum &s, float x) {
    if (x > s.max) {
        s.sum *= expf(s.max - x);
        s.max = x;
    }
    s.sum += s.max == -INFINITY ? 0.0f : expf(x - s.max);
}

/* A block for each row, one pass. Bytes: 4 * T * V. FLOPs: an exponential and 3 an element. */
__global__ void k_ce_stats(ptr<float> stats, ptr<const float> logits, ptr<const int32_t> labels, int32_t V,
                           int32_t first_row, bool aligned) {
    SHARED(float, maxima, THREADS / WARP_SIZE);
    SHARED(float, sums, THREADS / WARP_SIZE);
    int64_t t = blockIdx.x;
    int lane = (int)threadIdx.x % WARP_SIZE, warp = (int)threadIdx.x / WARP_SIZE;
    ptr<const float> row = logits + t * V;
    struct running_sum s = {-INFINITY, 0};
    for (int32_t i = 4 * (int32_t)threadIdx.x; i < V; i += 4 * (int32_t)blockDim.x) {
        float4 v = load_four(row, i, V, aligned);
        take(s, v.x);
        if (i + 1 < V) take(s, v.y);
        if (i + 2 < V) take(s, v.z);
        if (i + 3 < V) take(s, v.w);
    }
    s = warp_joined(s);
    if (lane == 0) {
        maxima[warp] = s.max;
        sums[warp] = s.sum;
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int w = 1; w < THREADS / WARP_SIZE; w++) {
        struct running_sum other = {maxima[w], sums[w]};
        s = joined(s, other);
    }
    int32_t label = labels[t];
    int64_t mine = (int64_t)label - first_row;
    float at_label = 0;
    if (label >= 0 && mine >= 0 && mine < V) at_label = row[mine];
    stats[3 * t] = s.max;
    stats[3 * t + 1] = s.sum;
    stats[3 * t + 2] = at_label;
}

void cuda_ce_stats(struct kctx *base, dev_addr stats, dev_addr logits, dev_addr labels, int32_t T, int32_t V,
                   int32_t first_row) {
    if (T <= 0 || !cuda_begin(base)) return;
    struct cuda_context *c = cuda_of(base);
    bool aligned = V % 4 == 0 && logits % 16 == 0;
    LAUNCH(k_ce_stats, (unsigned)T, THREADS, 0, c->stream, ptr<float>(stats), ptr<const float>(logits),
           ptr<const int32_t>(labels), V, first_row, aligned);
    cuda_launched(c, "ce_stats");
}

/* The whole vocabulary's row, from the stats of all shards: returns the loss; max, and what makes of e^(l -
 * max) the gradient. */
static __device__ float whole_row(ptr<const float> stats, int32_t n, float weight, float *max, float *by) {
    float most = stats[0];
    for (int32_t r = 1; r < n; r++) {
        float other = stats[3 * r];
        most = fmaxf(most, other);
    }
    double sum = 0, label = 0;
    for (int32_t r = 0; r < n; r++) {
        float of_max = stats[3 * r], of_sum = stats[3 * r + 1], of_label = stats[3 * r + 2];
        sum += (double)of_sum * exp((double)of_max - (double)most);
        label += (double)of_label;
    }
    *max = most;
    *by = (float)((double)weight / sum);
    return (float)(log(sum) + (double)most - label);
}

/* A block for each row. Bytes: 8 * T * V. FLOPs: an exponential and 3 an element. */
__global__ void k_ce_grad(ptr<float> loss, ptr<float> logits, ptr<const float> stats, int32_t n,
                          ptr<const int32_t> labels, ptr<const float> weights, int32_t V, int32_t first_row,
                          bool aligned) {
    SHARED(float, shared, 2);
    int64_t t = blockIdx.x;
    int32_t label = labels[t];
    float weight = weights[t];
    ptr<float> row = logits + t * V;
    if (threadIdx.x == 0) {
        float max = 0, by = 0, value = 0;
        if (label >= 0) value = whole_row(stats + 3 * t * n, n, weight, &max, &by);
        loss[t] = value;
        shared[0] = max;
        shared[1] = by;
    }
    __syncthreads();
    float max = shared[0], by = shared[1];
    int64_t mine = (int64_t)label - first_row;
    for (int32_t i = 4 * (int32_t)threadIdx.x; i < V; i += 4 * (int32_t)blockDim.x) {
        float4 v = make_float4(0, 0, 0, 0);
        if (label >= 0) {
            v = load_four(row, i, V, aligned);
            v = each_of([=](float x) { return expf(x - max) * by; }, v);
            float *each[4] = {&v.x, &v.y, &v.z, &v.w};
            UNROLL
            for (int j = 0; j < 4; j++)
                if (i + j == mine) *each[j] -= weight;
        }
        store_four(row, i, V, aligned, v);
    }
}

void cuda_ce_grad(struct kctx *base, dev_addr loss, dev_addr logits, dev_addr stats, int32_t n,
                  dev_addr labels, dev_addr weight, int32_t T, int32_t V, int32_t first_row) {
    if (T <= 0 || !cuda_begin(base)) return;
    struct cuda_context *c = cuda_of(base);
    bool aligned = V % 4 == 0 && logits % 16 == 0;
    LAUNCH(k_ce_grad, (unsigned)T, THREADS, 0, c->stream, ptr<float>(loss), ptr<float>(logits),
           ptr<const float>(stats), n, ptr<const int32_t>(labels), ptr<const float>(weight), V, first_row,
           aligned);
    cuda_launched(c, "ce_grad");
}

/* --- embedding ------------------------------------------------------------------------------------------ */

/* A block for each row. Bytes: 8 * T * d. FLOPs: T * d. */
__global__ void k_embed_rows(ptr<float> out, ptr<const float> table, ptr<const int32_t> ids, int32_t d,
                             int32_t V, int32_t first_row, float scale, bool whole) {
    int64_t t = blockIdx.x;
    int32_t id = ids[t];
    int64_t row = (int64_t)id - first_row;
    bool here = row >= 0 && row < V;
    for (int32_t i = 4 * (int32_t)threadIdx.x; i < d; i += 4 * (int32_t)blockDim.x) {
        float4 v = make_float4(0, 0, 0, 0);
        if (here) v = load_four(table + row * d, i, d, whole);
        store_four(out + t * d, i, d, whole, each_of([=](float x) { return x * scale; }, v));
    }
}

static unsigned threads_of_row(int32_t d, unsigned most) {
    unsigned threads = (unsigned)align_to((size_t)(d + 3) / 4, WARP_SIZE);
    return threads < most ? threads : most;
}

void cuda_embed_rows(struct kctx *base, dev_addr out, dev_addr table, dev_addr ids, int32_t T, int32_t d,
                     int32_t V, int32_t first_row, float scale) {
    if (T <= 0 || d <= 0 || !cuda_begin(base)) return;
    struct cuda_context *c = cuda_of(base);
    bool whole = d % 4 == 0 && (out | table) % 16 == 0;
    LAUNCH(k_embed_rows, (unsigned)T, threads_of_row(d, THREADS), 0, c->stream, ptr<float>(out),
           ptr<const float>(table), ptr<const int32_t>(ids), d, V, first_row, scale, whole);
    cuda_launched(c, "embed_rows");
}

/* A bit for each of the rows from … from+31 that has this id. Whole warps call it. */
static __device__ __forceinline__ unsigned matches(ptr<const int32_t> ids, int32_t T, int32_t from, int32_t id) {
    int32_t t = from + (int32_t)threadIdx.x % WARP_SIZE, other = -1;
    if (t < T) other = ids[t];
    return __ballot_sync(ALL_LANES, t < T && other == id);
}

/* A block for each row of dx; it works where its id stands for the first time, and then for all rows of that
 * id, in their order. Every warp looks for them itself: no barriers. Bytes: 4 * T * d, twice a row of the table an id, and ids from the caches. FLOPs: 2 * T * d. */
__global__ void k_embed_grad(ptr<float> grad, ptr<const float> dx, ptr<const int32_t> ids, int32_t T, int32_t d,
                             int32_t V, int32_t first_row, float scale, bool whole) {
    int32_t t0 = (int32_t)blockIdx.x, id = ids[t0];
    int64_t row = (int64_t)id - first_row;
    if (row < 0 || row >= V) return;
    for (int32_t from = 0; from < t0; from += WARP_SIZE)
        if (matches(ids, t0, from, id)) return;
    enum { FOURS = 4 };
    int32_t step = 4 * (int32_t)blockDim.x;
    for (int32_t col = 4 * (int32_t)(threadIdx.x / WARP_SIZE * WARP_SIZE); col < d; col += FOURS * step) {
        int32_t mine = col + 4 * (int32_t)(threadIdx.x % WARP_SIZE);
        float4 sum[FOURS];
        UNROLL
        for (int f = 0; f < FOURS; f++) {
            sum[f] = make_float4(0, 0, 0, 0);
            if (mine + f * step < d) sum[f] = load_four(grad + row * d, mine + f * step, d, whole);
        }
        for (int32_t from = t0 / WARP_SIZE * WARP_SIZE; from < T; from += WARP_SIZE)
            for (unsigned left = matches(ids, T, from, id); left; left &= left - 1) {
                int64_t t = from + __ffs((int)left) - 1;
                UNROLL
                for (int f = 0; f < FOURS; f++) {
                    if (mine + f * step >= d) continue;
                    float4 v = load_four(dx + t * d, mine + f * step, d, whole);
                    sum[f] = each_of([=](float a, float b) { return fmaf(a, scale, b); }, v, sum[f]);
                }
            }
        UNROLL
        for (int f = 0; f < FOURS; f++)
            if (mine + f * step < d) store_four(grad + row * d, mine + f * step, d, whole, sum[f]);
    }
}

void cuda_embed_grad(struct kctx *base, dev_addr grad, dev_addr dx, dev_addr ids, int32_t T, int32_t d,
                     int32_t V, int32_t first_row, float scale) {
    if (T <= 0 || d <= 0 || V <= 0 || !cuda_begin(base)) return;
    struct cuda_context *c = cuda_of(base);
    bool whole = d % 4 == 0 && (grad | dx) % 16 == 0;
    LAUNCH(k_embed_grad, (unsigned)T, threads_of_row(d, THREADS), 0, c->stream, ptr<float>(grad),
           ptr<const float>(dx), ptr<const int32_t>(ids), T, d, V, first_row, scale, whole);
    cuda_launched(c, "embed_grad");
}
