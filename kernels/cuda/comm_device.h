/* kernels/cuda/comm_device.h: flags in peer memory, and what collectives are made of on the device.
 *
 * A flag is a line of its own (LINE bytes) at its reader, with one writer: a number that only grows. A
 * block of a rank meets the block of the same index on all others, and no other; so a kernel's blocks need
 * not wait for each other, but all must be live (LAUNCH_RESIDENT).
 *
 * The numbers live in device memory (the counters), not in arguments, so that a captured graph goes on
 * counting when it is replayed. Between two kernels they are the same for all blocks, launched or not. */
#ifndef TPD_KERNELS_CUDA_COMM_DEVICE_H
#define TPD_KERNELS_CUDA_COMM_DEVICE_H

#include "kernels/cuda/comm.h"
#include "kernels/cuda/cuda.h"

#ifdef TPD_CUSIM
enum { COMM_BLOCKS = 3, COMM_THREADS = 32, RING_TILE_BYTES = 256, POLLS = 16 };
#else
enum { COMM_BLOCKS = 32, COMM_THREADS = 512, RING_TILE_BYTES = 32 << 10, POLLS = 256 };
#endif
enum { LINE = 128, RING_DEPTH = 4, SLOTS = 2 };
enum ring_flag { RING_PARTIAL, RING_RESULT, RING_CREDIT, RING_FLAGS };

/* A rank's region:
 *     meeting flags  [COMM_BLOCKS, CUDA_COMM_RANKS] lines
 *     ring flags     [COMM_BLOCKS, RING_FLAGS] lines
 *     lanes          [COMM_BLOCKS, RING_DEPTH] tiles of fp32
 *     slots          [SLOTS] of slot_bytes */
enum { MEETING_BYTES = COMM_BLOCKS * CUDA_COMM_RANKS * LINE };
enum { RING_FLAG_BYTES = COMM_BLOCKS * RING_FLAGS * LINE };
enum { LANE_BYTES = COMM_BLOCKS * RING_DEPTH * RING_TILE_BYTES };
static inline size_t comm_region_bytes(size_t slot_bytes) {
    return MEETING_BYTES + RING_FLAG_BYTES + LANE_BYTES + SLOTS * slot_bytes;
}

/* A line of counters for each block, in the rank's own device memory; nobody else's. */
enum comm_counter { COUNT_MEETINGS, COUNT_PIECES, COUNT_TILES, COUNT_FAILED };

/* What a kernel knows of its world. */
struct comm_team {
    int32_t rank, n;
    uint32_t signature;
    uint64_t deadline_ns;
    uint64_t slot_bytes;
    uint64_t counters, abort_word;
    uint64_t region[CUDA_COMM_RANKS];
};

static __device__ __forceinline__ ptr<uint32_t> meeting_flag(const comm_team &t, int at, int from) {
    return ptr<uint32_t>(t.region[at] +
                         (uint64_t)((int)blockIdx.x * CUDA_COMM_RANKS + from) * LINE);
}

static __device__ __forceinline__ ptr<uint32_t> ring_flag(const comm_team &t, int at, ring_flag which) {
    return ptr<uint32_t>(t.region[at] + MEETING_BYTES +
                         (uint64_t)((int)blockIdx.x * RING_FLAGS + which) * LINE);
}

static __device__ __forceinline__ ptr<float> ring_lane(const comm_team &t, int at, uint32_t number) {
    return ptr<float>(t.region[at] + MEETING_BYTES + RING_FLAG_BYTES +
                      (uint64_t)(blockIdx.x * RING_DEPTH + number % RING_DEPTH) * RING_TILE_BYTES);
}

static __device__ __forceinline__ uint64_t comm_slot(const comm_team &t, int at, uint32_t number) {
    return t.region[at] + MEETING_BYTES + RING_FLAG_BYTES + LANE_BYTES +
           (number % SLOTS) * t.slot_bytes;
}

static __device__ __forceinline__ ptr<uint32_t> comm_counters(const comm_team &t, unsigned block) {
    return ptr<uint32_t>(t.counters + (uint64_t)block * LINE);
}

/* --- waiting ---------------------------------------------------------------------------------------- */

static __device__ __forceinline__ bool comm_is_aborted(const comm_team &t) {
    return flag_load_acquire(ptr<uint32_t>(t.abort_word)) != 0;
}

static __device__ __forceinline__ void comm_give_up(const comm_team &t, cuda_comm_reason why,
                                                    int peer) {
    flag_store_release(ptr<uint32_t>(t.abort_word),
                       (uint32_t)why << 16 | (uint32_t)t.rank << 8 | (uint32_t)peer);
}

/* So that the kernels behind this one leave the slots alone, from which peers may still read. */
static __device__ __forceinline__ void comm_note_failed(const comm_team &t) {
    comm_counters(t, 0)[COUNT_FAILED] = 1u;
}

/* Where a block begins: false when an earlier kernel of this rank failed. One thread looks for all, since
 * another block may be failing just now. */
struct comm_numbers {
    uint32_t meeting, piece, tile;
};
static __device__ __forceinline__ bool comm_begin(const comm_team &t, comm_numbers *numbers,
                                                  sptr<uint32_t> verdict) {
    ptr<uint32_t> own = comm_counters(t, blockIdx.x);
    *numbers = {own[COUNT_MEETINGS], own[COUNT_PIECES], own[COUNT_TILES]};
    if (threadIdx.x == 0) verdict[0] = comm_counters(t, 0)[COUNT_FAILED];
    __syncthreads();
    uint32_t failed = verdict[0];
    return failed == 0;
}

/* One thread waits until the flag has reached number. */
static inline __device__ bool comm_await(const comm_team &t, ptr<uint32_t> flag, uint32_t number, int peer) {
    uint64_t since = 0;
    for (uint32_t polls = 1;; polls++) {
        uint32_t value = flag_load_acquire(flag);
        if ((int32_t)(value - number) >= 0) return true;
        if (polls % POLLS == 0) {
            if (comm_is_aborted(t)) return false;
            uint64_t now = device_nanoseconds();
            if (since == 0) since = now;
            if (now - since > t.deadline_ns) {
                comm_give_up(t, CUDA_COMM_LATE, peer);
                return false;
            }
        }
        spin_pause();
    }
}

/* The same for the whole block: what the writer of the flag did before is seen by all threads. */
static inline __device__ bool comm_block_await(const comm_team &t, ptr<uint32_t> flag, uint32_t number,
                                        int peer, sptr<uint32_t> verdict) {
    __syncthreads();
    if (threadIdx.x == 0) {
        bool fine = comm_await(t, flag, number, peer);
        if (!fine) comm_note_failed(t);
        verdict[0] = fine ? 1u : 0u;
    }
    __syncthreads();
    uint32_t fine = verdict[0];
    return fine != 0;
}

/* The block has done what the flag tells of. */
static inline __device__ void comm_block_signal(ptr<uint32_t> flag, uint32_t number) {
    __syncthreads();
    if (threadIdx.x == 0) flag_store_release(flag, number);
}

/* The block meets its like on all ranks: what they did before, all threads see afterwards. False when the
 * world is aborted, of which lane n has a look beside the waiting ones.
 *
 * Beside the flag stands the signature of the call, in one of two words by the meeting's parity: a rank
 * writes the word again two meetings later, and so after all have come to the meeting between, and so
 * after they have compared. */
static inline __device__ bool comm_meet(const comm_team &t, uint32_t number, sptr<uint32_t> verdict) {
    int lane = (int)threadIdx.x;
    __syncthreads();
    if (lane < WARP_SIZE) {
        bool fine = true;
        if (lane < t.n) {
            ptr<uint32_t> theirs = meeting_flag(t, lane, t.rank), mine = meeting_flag(t, t.rank, lane);
            theirs[1 + number % 2] = t.signature;
            flag_store_release(theirs, number);
            fine = comm_await(t, mine, number, lane);
            if (fine && mine[1 + number % 2] != t.signature) {
                comm_give_up(t, CUDA_COMM_MISMATCH, lane);
                fine = false;
            }
        } else if (lane == t.n) fine = !comm_is_aborted(t);
        unsigned all = __ballot_sync(ALL_LANES, fine);
        if (lane == 0) {
            if (all != ALL_LANES) comm_note_failed(t);
            verdict[0] = all == ALL_LANES ? 1u : 0u;
        }
    }
    __syncthreads();
    uint32_t fine = verdict[0];
    return fine != 0;
}

/* The last thing that a kernel does. Blocks that were not launched count along. */
static inline __device__ void comm_count(const comm_team &t, uint32_t meetings, uint32_t pieces) {
    __syncthreads();
    if (threadIdx.x != 0) return;
    ptr<uint32_t> own = comm_counters(t, blockIdx.x);
    uint32_t met = own[COUNT_MEETINGS] + meetings, staged = own[COUNT_PIECES] + pieces;
    for (unsigned b = blockIdx.x; b < COMM_BLOCKS; b += gridDim.x) {
        ptr<uint32_t> counters = comm_counters(t, b);
        counters[COUNT_MEETINGS] = met;
        counters[COUNT_PIECES] = staged;
    }
}

/* --- values ----------------------------------------------------------------------------------------- */

static __device__ __forceinline__ float comm_widen(float x) { return x; }
static __device__ __forceinline__ float comm_widen(__nv_bfloat16 x) { return __bfloat162float(x); }
static __device__ __forceinline__ void comm_narrow(float *to, float x) { *to = x; }
static __device__ __forceinline__ void comm_narrow(__nv_bfloat16 *to, float x) {
    *to = __float2bfloat16_rn(x);
}

/* N elements at once: 16 bytes, or one. */
template <class T, int N> static __device__ __forceinline__ void pack_load(float *v, ptr<const T> at) {
    T part[N];
    if constexpr (N == 1) part[0] = at[0];
    else {
        uint4 all = load16<uint4>(at);
        memcpy(part, &all, sizeof part);
    }
    UNROLL
    for (int i = 0; i < N; i++) v[i] = comm_widen(part[i]);
}

template <class T, int N> static __device__ __forceinline__ void pack_store(ptr<T> at, const float *v) {
    T part[N];
    UNROLL
    for (int i = 0; i < N; i++) comm_narrow(&part[i], v[i]);
    if constexpr (N == 1) at[0] = part[0];
    else {
        uint4 all;
        memcpy(&all, part, sizeof all);
        store16(at, all);
    }
}

/* The part of [0, total) elements that is this block's: whole packs of 16 bytes, however a rank reads
 * them, so that all ranks cut alike. */
template <class T>
static __device__ __forceinline__ void comm_block_slice(int64_t total, int64_t *from, int64_t *to) {
    constexpr int64_t PACK = 16 / sizeof(T);
    int64_t grid = gridDim.x, share = (total + PACK * grid - 1) / (PACK * grid) * PACK;
    *from = share * blockIdx.x < total ? share * blockIdx.x : total;
    *to = *from + share < total ? *from + share : total;
}

/* sum = a[0] + a[1] + …, in this order; a(p) is where rank p's elements are. */
template <class T, int N, class F>
static __device__ __forceinline__ void comm_sum(float *sum, int n, F a) {
    pack_load<T, N>(sum, a(0));
    for (int p = 1; p < n; p++) {
        float v[N];
        pack_load<T, N>(v, a(p));
        UNROLL
        for (int i = 0; i < N; i++) sum[i] += v[i];
    }
}

/* row = i / width and col = i % width, by the fast division where it is enough. */
static __device__ __forceinline__ void comm_divide(int64_t i, int64_t width, int64_t *row,
                                                   int64_t *col) {
    if ((i | width) >> 32 == 0) {
        *row = (uint32_t)i / (uint32_t)width;
        *col = (uint32_t)i % (uint32_t)width;
    } else {
        *row = i / width;
        *col = i % width;
    }
}

/* --- for the files of collectives ------------------------------------------------------------------- */

struct cuda_comm {
    struct cuda_comm_world *world;
    struct cuda_context *ctx;
    int rank;
    bool direct;
    int blocks; /* of the largest grid; the same on all ranks */
    struct comm_team team;
    uint64_t own_region; /* device memory; the world's, as all memory here */
    void *pinned_region; /* when staged */
};

/* The team for a call. */
static inline struct comm_team comm_team_for(const struct cuda_comm *comm, uint32_t signature) {
    struct comm_team team = comm->team;
    team.signature = signature;
    return team;
}

/* Blocks for a message: one for each per_block bytes, at most what the device holds. */
static inline unsigned comm_grid(const struct cuda_comm *comm, int64_t bytes) {
    enum { PER_BLOCK = COMM_THREADS * 32 };
    int64_t blocks = (bytes + PER_BLOCK - 1) / PER_BLOCK;
    return blocks < 1 ? 1u : blocks > comm->blocks ? (unsigned)comm->blocks : (unsigned)blocks;
}

void cuda_comm_one_shot(struct cuda_comm *comm, const struct cuda_comm_call *call);
void cuda_comm_two_shot(struct cuda_comm *comm, const struct cuda_comm_call *call);
void cuda_comm_ring(struct cuda_comm *comm, const struct cuda_comm_call *call);
void cuda_comm_reduce_scatter(struct cuda_comm *comm, const struct cuda_comm_call *call);
void cuda_comm_all_gather(struct cuda_comm *comm, const struct cuda_comm_call *call);
void cuda_comm_barrier(struct cuda_comm *comm, uint32_t signature);
void cuda_comm_reduce_norm(struct cuda_comm *comm, const struct cuda_comm_call *call,
                           const struct cuda_comm_norm *norm);

#endif
