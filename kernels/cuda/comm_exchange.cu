/* Scatter and gather. Direct: ranks read each other's buffers where they lie, between two meetings.
 * Staged: what a rank gives goes through its slot in pieces, and one meeting a piece is enough (see
 * k_one_shot). */
#include "kernels/cuda/comm_device.h"

/* --- reduce-scatter ---------------------------------------------------------------------------------- */

struct scatter {
    uint64_t x[CUDA_COMM_RANKS]; /* [rows, cols] of each rank; when staged only its own */
    uint64_t out;                /* [rows, width] */
    int64_t rows, cols;
    int64_t first, width; /* columns of this rank */
};

/* Moves: n times the own part in. */
template <class T, int N>
__global__ void __launch_bounds__(COMM_THREADS) k_scatter_direct(comm_team t, scatter s) {
    SHARED(uint32_t, verdict, 1);
    comm_numbers own;
    if (!comm_begin(t, &own, verdict) || !comm_meet(t, own.meeting + 1, verdict)) return;
    int64_t packs = s.width / N, stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < s.rows * packs; i += stride) {
        int64_t row, pack;
        comm_divide(i, packs, &row, &pack);
        int64_t at = row * s.cols + s.first + pack * N;
        float sum[N];
        comm_sum<T, N>(sum, t.n, [&](int p) { return ptr<const T>(s.x[p]) + at; });
        pack_store<T, N>(ptr<T>(s.out) + i * N, sum);
    }
    if (!comm_meet(t, own.meeting + 2, verdict)) return;
    comm_count(t, 2, 0);
}

/* Elements begin … begin + count - 1 of x [rows, cols]. out may lie in x: a piece is in the slot before its
 * sums are written. */
template <class T>
__global__ void __launch_bounds__(COMM_THREADS)
    k_scatter_staged(comm_team t, scatter s, int64_t begin, int64_t count) {
    SHARED(uint32_t, verdict, 1);
    comm_numbers own;
    if (!comm_begin(t, &own, verdict)) return;
    int64_t from, to;
    comm_block_slice<T>(count, &from, &to);
    ptr<const T> x = ptr<const T>(s.x[t.rank]) + begin;
    ptr<T> mine = ptr<T>(comm_slot(t, t.rank, own.piece));
    for (int64_t i = from + threadIdx.x; i < to; i += blockDim.x) {
        T v = x[i];
        mine[i] = v;
    }
    if (!comm_meet(t, own.meeting + 1, verdict)) return;
    for (int64_t i = from + threadIdx.x; i < to; i += blockDim.x) {
        int64_t row, col;
        comm_divide(begin + i, s.cols, &row, &col);
        col -= s.first;
        if (col < 0 || col >= s.width) continue;
        float sum[1];
        comm_sum<T, 1>(sum, t.n, [&](int p) { return ptr<const T>(comm_slot(t, p, own.piece)) + i; });
        pack_store<T, 1>(ptr<T>(s.out) + row * s.width + col, sum);
    }
    comm_count(t, 1, 1);
}

template <class T> static void reduce_scatter(struct cuda_comm *comm, const struct cuda_comm_call *call) {
    constexpr int N = 16 / sizeof(T);
    comm_team t = comm_team_for(comm, call->signature);
    cudaStream_t stream = comm->ctx->stream;
    const int64_t *offsets = call->shape.offsets;
    scatter s = {{}, call->out, call->shape.rows, offsets[t.n], offsets[t.rank], 0};
    s.width = offsets[t.rank + 1] - s.first;
    bool packed = s.out % 16 == 0 && s.cols % N == 0 && s.first % N == 0 && s.width % N == 0;
    for (int p = 0; p < t.n; p++) {
        s.x[p] = call->at[p];
        packed = packed && s.x[p] % 16 == 0;
    }
    int64_t total = s.rows * s.cols, slot = (int64_t)(t.slot_bytes / sizeof(T));
    if (comm->direct) {
        unsigned grid = comm_grid(comm, total * (int64_t)sizeof(T) / t.n);
        if (packed)
            LAUNCH_RESIDENT((k_scatter_direct<T, N>), grid, COMM_THREADS, 0, stream, t, s);
        else LAUNCH_RESIDENT((k_scatter_direct<T, 1>), grid, COMM_THREADS, 0, stream, t, s);
    } else
        for (int64_t begin = 0; begin < total; begin += slot) {
            int64_t count = total - begin < slot ? total - begin : slot;
            unsigned grid = comm_grid(comm, count * (int64_t)sizeof(T));
            LAUNCH_RESIDENT((k_scatter_staged<T>), grid, COMM_THREADS, 0, stream, t, s, begin, count);
        }
    cuda_launched(comm->ctx, "reduce-scatter");
}

void cuda_comm_reduce_scatter(struct cuda_comm *comm, const struct cuda_comm_call *call) {
    if (call->type == DTYPE_F32) reduce_scatter<float>(comm, call);
    else reduce_scatter<__nv_bfloat16>(comm, call);
}

/* --- all-gather -------------------------------------------------------------------------------------- */

/* Rank p's x is [rows, offsets[p + 1] - offsets[p]], out [rows, offsets[n]]. Lengths in units of 1, 2, 4 or
 * 16 bytes. */
struct gather {
    uint64_t x[CUDA_COMM_RANKS]; /* when staged only this rank's */
    uint64_t out;
    int64_t rows;
    int64_t offsets[CUDA_COMM_RANKS + 1];
    int32_t skip; /* the rank whose part is in out already; -1: none's */
};

static __device__ __forceinline__ int64_t gather_width(const gather &g, int p) {
    return g.offsets[p + 1] - g.offsets[p];
}

/* Moves: the others' parts in. */
template <class U>
__global__ void __launch_bounds__(COMM_THREADS) k_gather_direct(comm_team t, gather g, int n) {
    SHARED(uint32_t, verdict, 1);
    comm_numbers own;
    if (!comm_begin(t, &own, verdict) || !comm_meet(t, own.meeting + 1, verdict)) return;
    int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int turn = 0; turn < n; turn++) {
        int p = (t.rank + turn) % n; /* not all from the same one at once */
        int64_t width = gather_width(g, p), total = g.rows * width;
        if (p == g.skip) continue;
        for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < total; i += stride) {
            int64_t row, col;
            comm_divide(i, width, &row, &col);
            U v = ptr<const U>(g.x[p])[i];
            ptr<U>(g.out)[row * g.offsets[n] + g.offsets[p] + col] = v;
        }
    }
    if (!comm_meet(t, own.meeting + 2, verdict)) return;
    comm_count(t, 2, 0);
}

/* Units begin … begin + count - 1 of each rank's x, as far as it goes. */
template <class U>
__global__ void __launch_bounds__(COMM_THREADS)
    k_gather_staged(comm_team t, gather g, int n, int64_t begin, int64_t count) {
    SHARED(uint32_t, verdict, 1);
    comm_numbers own;
    if (!comm_begin(t, &own, verdict)) return;
    int64_t from, to, left = g.rows * gather_width(g, t.rank) - begin;
    comm_block_slice<U>(count, &from, &to);
    ptr<const U> x = ptr<const U>(g.x[t.rank]) + begin;
    ptr<U> mine = ptr<U>(comm_slot(t, t.rank, own.piece));
    for (int64_t i = from + threadIdx.x; i < to && i < left; i += blockDim.x) {
        U v = x[i];
        mine[i] = v;
    }
    if (!comm_meet(t, own.meeting + 1, verdict)) return;
    for (int p = 0; p < n; p++) {
        int64_t width = gather_width(g, p);
        left = g.rows * width - begin;
        if (p == g.skip) continue;
        for (int64_t i = from + threadIdx.x; i < to && i < left; i += blockDim.x) {
            int64_t row, col;
            comm_divide(begin + i, width, &row, &col);
            U v = ptr<const U>(comm_slot(t, p, own.piece))[i];
            ptr<U>(g.out)[row * g.offsets[n] + g.offsets[p] + col] = v;
        }
    }
    comm_count(t, 1, 1);
}

template <class U> static void all_gather(struct cuda_comm *comm, const comm_team &t, const gather &g) {
    cudaStream_t stream = comm->ctx->stream;
    int n = t.n;
    comm_team team = t;
    gather all = g;
    int64_t widest = 0, slot = (int64_t)(t.slot_bytes / sizeof(U));
    for (int p = 0; p < n; p++) widest = max(widest, g.offsets[p + 1] - g.offsets[p]);
    int64_t longest = g.rows * widest;
    if (comm->direct) {
        unsigned grid = comm_grid(comm, g.rows * g.offsets[n] * (int64_t)sizeof(U));
        LAUNCH_RESIDENT((k_gather_direct<U>), grid, COMM_THREADS, 0, stream, team, all, n);
    } else
        for (int64_t begin = 0; begin < longest; begin += slot) {
            int64_t count = longest - begin < slot ? longest - begin : slot;
            unsigned grid = comm_grid(comm, count * (int64_t)sizeof(U));
            LAUNCH_RESIDENT((k_gather_staged<U>), grid, COMM_THREADS, 0, stream, team, all, n, begin,
                            count);
        }
    cuda_launched(comm->ctx, "all-gather");
}

/* The longest unit that all lengths and addresses are whole multiples of. Only direct: when staged a rank
 * knows its own addresses alone, and all must cut alike. */
static size_t common_unit(const struct cuda_comm *comm, const struct cuda_comm_call *call) {
    size_t all = call->out, element = (size_t)call->element;
    for (int p = 0; p < comm->team.n; p++) all |= call->at[p];
    for (int p = 0; p <= comm->team.n; p++) all |= (size_t)call->shape.offsets[p] * element;
    return comm->direct && all % 16 == 0 ? 16 : element;
}

void cuda_comm_all_gather(struct cuda_comm *comm, const struct cuda_comm_call *call) {
    comm_team t = comm_team_for(comm, call->signature);
    size_t element = (size_t)call->element, unit = common_unit(comm, call);
    gather g = {{}, call->out, call->shape.rows, {}, -1};
    for (int p = 0; p < t.n; p++) g.x[p] = call->at[p];
    for (int p = 0; p <= t.n; p++)
        g.offsets[p] = call->shape.offsets[p] * (int64_t)element / (int64_t)unit;
    uint64_t own = g.out + (uint64_t)call->shape.offsets[t.rank] * element;
    if (g.x[t.rank] == own && (g.rows == 1 || t.n == 1)) g.skip = t.rank;
    switch (unit) {
    case 16: return all_gather<uint4>(comm, t, g);
    case 4: return all_gather<uint32_t>(comm, t, g);
    case 2: return all_gather<uint16_t>(comm, t, g);
    default: return all_gather<uint8_t>(comm, t, g);
    }
}
