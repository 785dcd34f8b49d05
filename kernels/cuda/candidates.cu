/* Choosing tokens: the best logits of each row, or the first of a race, and what the others amount to. Rows are long
 * (the vocabulary) and few, so a block takes a slice of one: it holds the slice's logits in registers, finds the
 * threshold that CANDIDATES of them reach by trying bits, and leaves them sorted, as a list. Then blocks make one list
 * of up to 32 in the same way, until there is one. */
#include "kernels/cuda/four.h"
#include "kernels/cuda/cuda.h"
#include "kernels/race.h"

#include <cstddef>

enum { THREADS = 256, WARPS = THREADS / WARP_SIZE, EACH = CANDIDATES_SLICE / THREADS,
       FAN_IN = CANDIDATES_SLICE / CANDIDATES };
static_assert(sizeof(struct candidates) == CANDIDATES_BYTES, "as the device writes it");
static_assert((int)FAN_IN <= (int)WARP_SIZE, "a lane for each list");

/* What a logit is worth and its id as one number: the better candidate has the higher one, and 0 is none. */
static __device__ __forceinline__ uint64_t key_of(float x, int32_t id) {
    uint32_t bits = __float_as_uint(x + 0.0f); /* -0 is 0 */
    bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (uint64_t)bits << 32 | (0xFFFFFFFFu - (uint32_t)id);
}
static __device__ __forceinline__ int32_t id_of(uint64_t key) { return (int32_t)(0xFFFFFFFFu - (uint32_t)key); }

struct wish_view {
    float factor[2], cold;
    uint64_t bits;
};
static __device__ __forceinline__ wish_view wish_at(ptr<const float> wishes, int64_t t) {
    ptr<const float> at = wishes + t * CANDIDATES_WISH_WORDS;
    ptr<const uint32_t> bits = as<const uint32_t>(at) + 3;
    return {{at[0], at[1]}, at[2], (uint64_t)bits[1] << 32 | bits[0]};
}
static_assert(sizeof(struct candidates_wish) == 4 * CANDIDATES_WISH_WORDS &&
                  offsetof(struct candidates_wish, cold) == 8 && offsetof(struct candidates_wish, bits) == 12,
              "as wish_at has it");

/* race_key() of kernels.h in fp32. u is so near to 1 where it counts that 1 - u is what is taken. */
static __device__ float early(uint64_t bits, int32_t id, float x) {
    uint64_t own = RACE_BEGIN(bits, id);
    RACE_MIX(own);
    own = RACE_END(own);
    uint64_t rest = ((uint64_t)1 << 53) - 1 - own;
    if (rest == 0) return INFINITY;
    float time = rest >> 52 ? -logf((float)(own + 1) * 0x1p-53f) : -log1pf((float)rest * -0x1p-53f);
    return x - logf(time);
}

/* What a candidate is worth. */
static __device__ __forceinline__ uint64_t worth(const wish_view &wish, float logit, int32_t id) {
    return key_of(wish.cold > 0 ? early(wish.bits, id, logit * wish.cold) : logit, id);
}

/* A list in device memory (struct candidates). */
struct list_view {
    ptr<double> sum;
    ptr<float> max;
    ptr<int32_t> n, strange, of, id;
    ptr<float> logit;
};
static __device__ __forceinline__ list_view list_at(ptr<double> lists, int64_t i) {
    ptr<double> at = lists + i * (CANDIDATES_BYTES / 8);
    ptr<int32_t> word = as<int32_t>(at);
    return {at, as<float>(at) + 4, word + 5, word + 6, word + 7, word + 8, as<float>(at) + 8 + CANDIDATES};
}
static_assert(offsetof(struct candidates, max) == 16 && offsetof(struct candidates, of) == 28 &&
                  offsetof(struct candidates, logit) == 4 * (8 + CANDIDATES),
              "as list_at has it");

/* --- over a block ------------------------------------------------------------------------------------- */

/* The sum of x over the block, for all its threads. scratch: 2 * WARPS; turn tells two calls that follow each
 * other apart, so that one barrier does. */
static __device__ __forceinline__ int block_count(int x, sptr<int> scratch, int turn) {
    int lane = (int)threadIdx.x % WARP_SIZE, warp = (int)threadIdx.x / WARP_SIZE, sum = 0;
    x = warp_sum(x);
    sptr<int> mine = scratch + turn % 2 * WARPS;
    if (lane == 0) mine[warp] = x;
    __syncthreads();
    for (int w = 0; w < WARPS; w++) sum += mine[w];
    return sum;
}

/* The lowest key of the best CANDIDATES of all threads' keys, which are different ones; 1 where there are no
 * more than these. *n: how many reach it. */
static __device__ uint64_t threshold_of(const uint64_t (&key)[EACH], int *n, sptr<int> scratch) {
    int have = 0, turn = 0;
    UNROLL
    for (int j = 0; j < EACH; j++) have += key[j] != 0;
    *n = block_count(have, scratch, turn++);
    if (*n <= CANDIDATES) return 1;
    uint64_t reached = 0;
    for (int bit = 63; bit >= 0 && *n != CANDIDATES; bit--) {
        uint64_t tried = reached | (uint64_t)1 << bit;
        have = 0;
        UNROLL
        for (int j = 0; j < EACH; j++) have += key[j] >= tried;
        have = block_count(have, scratch, turn++);
        if (have < CANDIDATES) continue;
        reached = tried;
        *n = have;
    }
    return reached;
}

/* The best of all threads' keys, and their logits, become the list. */
static __device__ void write_best(const list_view &out, const uint64_t (&key)[EACH], const float (&logit)[EACH],
                                  sptr<int> scratch, sptr<uint64_t> kept, sptr<float> kept_logits) {
    int lane = (int)threadIdx.x % WARP_SIZE, warp = (int)threadIdx.x / WARP_SIZE, n;
    uint64_t least = threshold_of(key, &n, scratch);
    int mine = 0;
    UNROLL
    for (int j = 0; j < EACH; j++) mine += key[j] >= least;
    int before = mine;
    for (int by = 1; by < WARP_SIZE; by *= 2) {
        int other = __shfl_up_sync(ALL_LANES, before, (unsigned)by);
        if (lane >= by) before += other;
    }
    __syncthreads(); /* scratch is free */
    if (lane == WARP_SIZE - 1) scratch[warp] = before;
    __syncthreads();
    int at = before - mine;
    for (int w = 0; w < warp; w++) at += scratch[w];
    UNROLL
    for (int j = 0; j < EACH; j++) {
        if (key[j] < least) continue;
        kept[at] = key[j];
        kept_logits[at++] = logit[j];
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < CANDIDATES; i += THREADS) {
        int rank = i; /* what is behind the last one is 0, so that all of it is defined */
        uint64_t own = 0;
        float its_logit = 0;
        if (i < n) {
            own = kept[i];
            its_logit = kept_logits[i];
            rank = 0;
            for (int other = 0; other < n; other++) {
                uint64_t k = kept[other];
                rank += k > own;
            }
        }
        out.id[rank] = i < n ? id_of(own) : 0;
        out.logit[rank] = its_logit;
    }
    if (threadIdx.x == 0) out.n[0] = n;
}

/* --- the kernels -------------------------------------------------------------------------------------- */

/* A block for each slice of each row. Bytes: 4 * T * V. FLOPs: of each sum that is asked for an exponential in
 * double an element; of a race some 60 an element. */
__global__ void __launch_bounds__(THREADS)
    k_candidates_of_slice(ptr<double> lists, ptr<const float> logits, ptr<const float> wishes, int32_t V,
                          int32_t first_row) {
    SHARED(int, counts, 2 * WARPS);
    SHARED(uint64_t, kept, CANDIDATES);
    SHARED(float, kept_logits, CANDIDATES);
    SHARED(float, scratch, WARP_SIZE);
    SHARED(double, totals, WARP_SIZE);
    int64_t t = blockIdx.y;
    wish_view wish = wish_at(wishes, t);
    int32_t from = (int32_t)blockIdx.x * CANDIDATES_SLICE;
    list_view out = list_at(lists, t * gridDim.x + blockIdx.x);
    uint64_t key[EACH];
    float logit[EACH], strange = 0, max = -INFINITY;
    UNROLL
    for (int j = 0; j < EACH; j++) {
        int32_t i = from + j * THREADS + (int32_t)threadIdx.x;
        key[j] = 0;
        logit[j] = 0;
        if (i >= V) continue;
        logit[j] = logits[t * V + i];
        if (!(fabsf(logit[j]) < INFINITY)) strange = 1;
        max = fmaxf(max, logit[j]);
        key[j] = worth(wish, logit[j], first_row + i);
    }
    write_best(out, key, logit, counts, kept, kept_logits);
    max = block_max(max, scratch);
    strange = block_max(strange, scratch);
    for (int s = 0; s < 2; s++) {
        double factor = (double)wish.factor[s], sum = 0;
        UNROLL
        for (int j = 0; j < EACH; j++)
            if (factor > 0 && key[j]) sum += exp(((double)logit[j] - (double)max) * factor);
        sum = block_sum(sum, totals);
        if (threadIdx.x == 0) out.sum[s] = sum;
    }
    if (threadIdx.x != 0) return;
    out.max[0] = max;
    out.strange[0] = strange > 0;
    out.of[0] = V - from < CANDIDATES_SLICE ? V - from : CANDIDATES_SLICE;
}

/* A block for each group of FAN_IN lists of a row: they become one. */
__global__ void __launch_bounds__(THREADS)
    k_candidates_of_lists(ptr<double> to, ptr<double> from, ptr<const float> wishes, int32_t n_lists) {
    SHARED(int, counts, 2 * WARPS);
    SHARED(uint64_t, kept, CANDIDATES);
    SHARED(float, kept_logits, CANDIDATES);
    int64_t t = blockIdx.y;
    wish_view wish = wish_at(wishes, t);
    int32_t first = (int32_t)blockIdx.x * FAN_IN;
    int32_t n = n_lists - first < FAN_IN ? n_lists - first : FAN_IN;
    ptr<double> lists = from + (t * n_lists + first) * (CANDIDATES_BYTES / 8);
    list_view out = list_at(to, t * gridDim.x + blockIdx.x);
    uint64_t key[EACH];
    float logit[EACH];
    UNROLL
    for (int j = 0; j < EACH; j++) {
        int i = j * THREADS + (int)threadIdx.x;
        key[j] = 0;
        logit[j] = 0;
        if (i / CANDIDATES >= n) continue;
        list_view list = list_at(lists, i / CANDIDATES);
        int32_t in_it = list.n[0], id = list.id[i % CANDIDATES];
        logit[j] = list.logit[i % CANDIDATES];
        if (i % CANDIDATES < in_it) key[j] = worth(wish, logit[j], id);
    }
    write_best(out, key, logit, counts, kept, kept_logits);
    if (threadIdx.x >= WARP_SIZE) return;
    int lane = (int)threadIdx.x;
    float mine = -INFINITY, strange = 0;
    int of = 0;
    if (lane < n) {
        list_view list = list_at(lists, lane);
        mine = list.max[0];
        strange = list.strange[0] ? 1.0f : 0.0f;
        of = list.of[0];
    }
    float max = warp_max(mine);
    strange = warp_max(strange);
    of = warp_sum(of);
    for (int s = 0; s < 2; s++) {
        double factor = (double)wish.factor[s], sum = 0;
        if (lane < n && factor > 0) sum = list_at(lists, lane).sum[s] * exp(((double)mine - (double)max) * factor);
        sum = warp_sum(sum);
        if (lane == 0) out.sum[s] = sum;
    }
    if (lane != 0) return;
    out.max[0] = max;
    out.strange[0] = strange > 0;
    out.of[0] = of;
}

void cuda_candidates(struct kctx *base, dev_addr out, dev_addr work, dev_addr logits, dev_addr wishes,
                     int32_t T, int32_t V, int32_t first_row) {
    if (T <= 0 || !cuda_begin(base)) return;
    struct cuda_context *c = cuda_of(base);
    unsigned lists = V > 0 ? blocks_for((size_t)V, CANDIDATES_SLICE) : 1;
    dev_addr from = lists > 1 ? work : out;
    LAUNCH(k_candidates_of_slice, dim3(lists, (unsigned)T), THREADS, 0, c->stream, ptr<double>(from),
           ptr<const float>(logits), ptr<const float>(wishes), V, first_row);
    while (lists > 1) {
        unsigned groups = blocks_for(lists, FAN_IN);
        dev_addr to = groups > 1 ? from + (dev_addr)T * lists * CANDIDATES_BYTES : out;
        LAUNCH(k_candidates_of_lists, dim3(groups, (unsigned)T), THREADS, 0, c->stream, ptr<double>(to),
               ptr<double>(from), ptr<const float>(wishes), (int32_t)lists);
        from = to;
        lists = groups;
    }
    cuda_launched(c, "candidates");
}
