/* All-reduce in place: one-shot, two-shot, ring. Each element is ((x0 + x1) + x2) + … in fp32, rounded once,
 * whichever way it goes. docs/collectives.md says why nothing is overwritten before it is read. */
#include "kernels/cuda/comm_device.h"

static const char *const what = "all-reduce";

/* --- one-shot ---------------------------------------------------------------------------------------- */

/* x[count] through the slots. A block copies its part into the slot of its rank, meets its like, and sums
 * that part of all slots. The slot is written again two pieces later: by then the piece between has been
 * met for, so all ranks had started it, and had ended the kernel that read this slot.
 * Moves: 2 sizes within the device, n - 1 sizes in from peers. */
template <class T, int N>
__global__ void __launch_bounds__(COMM_THREADS) k_one_shot(comm_team t, ptr<T> x, int64_t count) {
    SHARED(uint32_t, verdict, 1);
    comm_numbers own;
    if (!comm_begin(t, &own, verdict)) return;
    int64_t from, to, first, stride = (int64_t)blockDim.x * N;
    comm_block_slice<T>(count, &from, &to);
    first = from + (int64_t)threadIdx.x * N;
    ptr<T> mine = ptr<T>(comm_slot(t, t.rank, own.piece));
    for (int64_t i = first; i < to; i += stride) {
        float v[N];
        pack_load<T, N>(v, ptr<const T>(x + i));
        pack_store<T, N>(mine + i, v);
    }
    if (!comm_meet(t, own.meeting + 1, verdict)) return;
    for (int64_t i = first; i < to; i += stride) {
        float sum[N];
        comm_sum<T, N>(sum, t.n,
                       [&](int p) { return ptr<const T>(comm_slot(t, p, own.piece)) + i; });
        pack_store<T, N>(x + i, sum);
    }
    comm_count(t, 1, 1);
}

template <class T> static void one_shot(struct cuda_comm *comm, const struct cuda_comm_call *call) {
    constexpr int N = 16 / sizeof(T);
    comm_team t = comm_team_for(comm, call->signature);
    cudaStream_t stream = comm->ctx->stream;
    int64_t count = call->shape.offsets[comm->team.n];
    int64_t slot = (int64_t)(t.slot_bytes / sizeof(T));
    for (int64_t done = 0; done < count; done += slot) {
        int64_t part = count - done < slot ? count - done : slot;
        ptr<T> x = ptr<T>(call->at[comm->rank]) + done;
        unsigned grid = comm_grid(comm, part * (int64_t)sizeof(T));
        if (call->at[comm->rank] % 16 == 0 && part % N == 0)
            LAUNCH_RESIDENT((k_one_shot<T, N>), grid, COMM_THREADS, 0, stream, t, x, part);
        else LAUNCH_RESIDENT((k_one_shot<T, 1>), grid, COMM_THREADS, 0, stream, t, x, part);
    }
    cuda_launched(comm->ctx, what);
}

void cuda_comm_one_shot(struct cuda_comm *comm, const struct cuda_comm_call *call) {
    if (call->type == DTYPE_F32) one_shot<float>(comm, call);
    else one_shot<__nv_bfloat16>(comm, call);
}

/* --- two-shot ---------------------------------------------------------------------------------------- */

struct buffers {
    uint64_t at[CUDA_COMM_RANKS];
};

/* Elements first … first + width - 1 of x are this rank's, which reads them from all and writes their sum to
 * all. No other rank touches them. A peer's input is final when its kernel has started, which the first
 * meeting says; the second one says that nobody writes here any more.
 * Moves: (n - 1) / n sizes in, as many out. */
template <class T, int N>
__global__ void __launch_bounds__(COMM_THREADS)
    k_two_shot(comm_team t, buffers x, int64_t first, int64_t width) {
    SHARED(uint32_t, verdict, 1);
    comm_numbers own;
    if (!comm_begin(t, &own, verdict) || !comm_meet(t, own.meeting + 1, verdict)) return;
    int64_t stride = (int64_t)gridDim.x * blockDim.x * N;
    for (int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N; i < width; i += stride) {
        int64_t at = first + i;
        float sum[N];
        comm_sum<T, N>(sum, t.n, [&](int p) { return ptr<const T>(x.at[p]) + at; });
        for (int p = 0; p < t.n; p++) pack_store<T, N>(ptr<T>(x.at[p]) + at, sum);
    }
    if (!comm_meet(t, own.meeting + 2, verdict)) return;
    comm_count(t, 2, 0);
}

static buffers buffers_of(const struct cuda_comm *comm, const struct cuda_comm_call *call,
                          bool *aligned) {
    buffers b = {};
    *aligned = true;
    for (int p = 0; p < comm->team.n; p++) {
        b.at[p] = call->at[p];
        if (call->at[p] % 16 != 0) *aligned = false;
    }
    return b;
}

template <class T> static void two_shot(struct cuda_comm *comm, const struct cuda_comm_call *call) {
    constexpr int N = 16 / sizeof(T);
    comm_team t = comm_team_for(comm, call->signature);
    const int64_t *offsets = call->shape.offsets;
    int64_t first = offsets[t.rank], width = offsets[t.rank + 1] - first;
    bool aligned;
    buffers x = buffers_of(comm, call, &aligned);
    /* The grid must be the same on all ranks, whose widths differ. */
    unsigned grid = comm_grid(comm, offsets[t.n] * (int64_t)sizeof(T) / t.n);
    cudaStream_t stream = comm->ctx->stream;
    if (aligned && first % N == 0 && width % N == 0)
        LAUNCH_RESIDENT((k_two_shot<T, N>), grid, COMM_THREADS, 0, stream, t, x, first, width);
    else LAUNCH_RESIDENT((k_two_shot<T, 1>), grid, COMM_THREADS, 0, stream, t, x, first, width);
    cuda_launched(comm->ctx, what);
}

void cuda_comm_two_shot(struct cuda_comm *comm, const struct cuda_comm_call *call) {
    if (call->type == DTYPE_F32) two_shot<float>(comm, call);
    else two_shot<__nv_bfloat16>(comm, call);
}

/* --- ring -------------------------------------------------------------------------------------------- */

/* Every block is a ring of its own, for each grid-th tile. A tile's sum grows along 0 … n - 1, each rank
 * writing it as fp32 into the lane of the next; the last one writes the result into its own buffer and
 * into that of rank 0, from where it goes on to n - 2. */
struct ring_run {
    uint64_t x, next_x; /* this rank's buffer, and that of the next one */
    int64_t count;      /* elements */
    int64_t tile;       /* elements of a whole tile */
    int32_t prev, next;
};

template <class T, int N>
static __device__ void ring_add(const comm_team &t, const ring_run &r, int64_t from, int64_t len,
                                uint32_t number) {
    bool last = t.rank == t.n - 1;
    ptr<T> x = ptr<T>(r.x) + from, result = ptr<T>(r.next_x) + from;
    ptr<float> in = ring_lane(t, t.rank, number), out = ring_lane(t, r.next, number);
    for (int64_t i = (int64_t)threadIdx.x * N; i < len; i += (int64_t)blockDim.x * N) {
        float v[N], sum[N];
        pack_load<T, N>(v, ptr<const T>(x + i));
        for (int j = 0; j < N; j++) {
            sum[j] = v[j];
            if (t.rank > 0) {
                float before = in[i + j];
                sum[j] = before + v[j];
            }
            if (!last) out[i + j] = sum[j];
        }
        if (last) {
            pack_store<T, N>(x + i, sum);
            pack_store<T, N>(result + i, sum);
        }
    }
}

/* The lane at the next rank is four tiles deep: a tile is written there when the one that it replaces has
 * been read (the credit). */
template <class T, int N>
static __device__ bool ring_reduce(const comm_team &t, const ring_run &r, int64_t from, int64_t len,
                                   uint32_t number, sptr<uint32_t> verdict) {
    bool last = t.rank == t.n - 1;
    if (t.rank > 0 &&
        !comm_block_await(t, ring_flag(t, t.rank, RING_PARTIAL), number, r.prev, verdict))
        return false;
    if (!last && !comm_block_await(t, ring_flag(t, t.rank, RING_CREDIT), number - RING_DEPTH, r.next,
                                   verdict))
        return false;
    ring_add<T, N>(t, r, from, len, number);
    comm_block_signal(ring_flag(t, r.next, last ? RING_RESULT : RING_PARTIAL), number);
    if (t.rank > 0) comm_block_signal(ring_flag(t, r.prev, RING_CREDIT), number);
    return true;
}

template <class T, int N>
static __device__ bool ring_gather(const comm_team &t, const ring_run &r, int64_t from, int64_t len,
                                   uint32_t number, sptr<uint32_t> verdict) {
    if (t.rank == t.n - 1) return true;
    if (!comm_block_await(t, ring_flag(t, t.rank, RING_RESULT), number, r.prev, verdict)) return false;
    if (t.rank == t.n - 2) return true;
    ptr<T> x = ptr<T>(r.x) + from, to = ptr<T>(r.next_x) + from;
    for (int64_t i = (int64_t)threadIdx.x * N; i < len; i += (int64_t)blockDim.x * N) {
        float v[N];
        pack_load<T, N>(v, ptr<const T>(x + i));
        pack_store<T, N>(to + i, v);
    }
    comm_block_signal(ring_flag(t, r.next, RING_RESULT), number);
    return true;
}

/* A rank gathers n tiles behind its own reducing, so that the chain is full when results come. When it has
 * gathered all, nobody writes here any more: results come from one rank, in order, and the partial sums
 * of these tiles went by before.
 * Moves: a size and its fp32 form in, as much out. */
template <class T, int N>
__global__ void __launch_bounds__(COMM_THREADS) k_ring(comm_team t, ring_run r) {
    SHARED(uint32_t, verdict, 1);
    comm_numbers own;
    if (!comm_begin(t, &own, verdict) || !comm_meet(t, own.meeting + 1, verdict)) return;
    int64_t tiles = (r.count + r.tile - 1) / r.tile, grid = gridDim.x, mine = 0;
    if (blockIdx.x < tiles) mine = (tiles - blockIdx.x + grid - 1) / grid;
    for (int64_t i = 0; i < mine + t.n; i++) {
        int64_t from = (blockIdx.x + i * grid) * r.tile, back = (int64_t)t.n * grid * r.tile;
        int64_t left = r.count - from, left_back = left + back;
        uint32_t number = own.tile + (uint32_t)i + 1;
        if (i < mine &&
            !ring_reduce<T, N>(t, r, from, left < r.tile ? left : r.tile, number, verdict))
            return;
        if (i >= t.n && !ring_gather<T, N>(t, r, from - back, left_back < r.tile ? left_back : r.tile,
                                           number - (uint32_t)t.n, verdict))
            return;
    }
    __syncthreads();
    if (threadIdx.x == 0)
        comm_counters(t, blockIdx.x)[COUNT_TILES] = own.tile + (uint32_t)mine;
    comm_count(t, 1, 0);
}

template <class T> static void ring(struct cuda_comm *comm, const struct cuda_comm_call *call) {
    constexpr int N = 16 / sizeof(T);
    comm_team t = comm_team_for(comm, call->signature);
    int next = (t.rank + 1) % t.n;
    ring_run r = {call->at[t.rank], call->at[next], call->shape.offsets[t.n],
                  RING_TILE_BYTES / (int64_t)sizeof(float), (t.rank + t.n - 1) % t.n, next};
    unsigned grid = comm_grid(comm, r.count * (int64_t)sizeof(T));
    cudaStream_t stream = comm->ctx->stream;
    if (call->at[t.rank] % 16 == 0 && call->at[next] % 16 == 0 && r.count % N == 0)
        LAUNCH_RESIDENT((k_ring<T, N>), grid, COMM_THREADS, 0, stream, t, r);
    else LAUNCH_RESIDENT((k_ring<T, 1>), grid, COMM_THREADS, 0, stream, t, r);
    cuda_launched(comm->ctx, what);
}

void cuda_comm_ring(struct cuda_comm *comm, const struct cuda_comm_call *call) {
    if (call->type == DTYPE_F32) ring<float>(comm, call);
    else ring<__nv_bfloat16>(comm, call);
}

/* --- barrier ----------------------------------------------------------------------------------------- */

__global__ void __launch_bounds__(WARP_SIZE) k_barrier(comm_team t) {
    SHARED(uint32_t, verdict, 1);
    comm_numbers own;
    if (!comm_begin(t, &own, verdict) || !comm_meet(t, own.meeting + 1, verdict)) return;
    comm_count(t, 1, 0);
}

void cuda_comm_barrier(struct cuda_comm *comm, uint32_t signature) {
    comm_team t = comm_team_for(comm, signature);
    LAUNCH_RESIDENT(k_barrier, 1, WARP_SIZE, 0, comm->ctx->stream, t);
    cuda_launched(comm->ctx, "barrier");
}
