/* The host's side of collectives: regions, peer access and its test, abort and reset. */
#include "kernels/cuda/comm_device.h"

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <vector>

struct cuda_comm_world {
    int n;
    size_t slot_bytes;
    uint64_t deadline_ns;
    /* One word that every kernel and the host can reach: 0, or the reason for giving up. */
    void *abort_host;
    uint64_t abort_device;
    std::mutex lock; /* guards what is below against open and close */
    struct cuda_comm *ends[CUDA_COMM_RANKS];
    /* A peer's kernel may still read the slots of an end that is closed: memory is kept for as long as the
     * world. */
    std::vector<uint64_t> device_memory;
    std::vector<void *> pinned_memory;
    /* Written by the row's rank (reaches) or the column's (carries) in a step of connecting, read in the
     * next. */
    bool enabled[CUDA_COMM_RANKS][CUDA_COMM_RANKS];
    bool carries[CUDA_COMM_RANKS][CUDA_COMM_RANKS];
};

static void *host_of(uint64_t address) { return reinterpret_cast<void *>(address); }

static int runtime_error(const struct cuda_comm *comm, const char *what, cudaError_t rc,
                         struct error *e) {
    return error_set(e, ERR_DEVICE, "%s: %s failed: %s", comm->ctx->name, what, cudaGetErrorString(rc));
}

/* --- the world ----------------------------------------------------------------------------------------- */

static void world_free(struct cuda_comm_world *world) {
    if (!world) return;
    for (uint64_t at : world->device_memory) cudaFree(host_of(at));
    for (void *at : world->pinned_memory) cudaFreeHost(at);
    cudaFreeHost(world->abort_host);
    delete world;
}

static int world_new(struct cuda_comm_world **out, int n, size_t slot_bytes, int deadline_ms,
                     struct error *e) {
    *out = nullptr;
    if (n > CUDA_COMM_RANKS)
        return error_set(e, ERR_CONFIG, "%d ranks on CUDA devices: there can be %d at most", n,
                         CUDA_COMM_RANKS);
    auto *world = new cuda_comm_world{};
    world->n = n;
    world->slot_bytes = align_to(slot_bytes, LINE);
    world->deadline_ns = (uint64_t)deadline_ms * 1000000;
    void *address = nullptr;
    cudaError_t rc = cudaHostAlloc(&world->abort_host, LINE, cudaHostAllocPortable | cudaHostAllocMapped);
    if (rc == cudaSuccess) rc = cudaHostGetDevicePointer(&address, world->abort_host, 0);
    if (rc != cudaSuccess) {
        cudaGetLastError();
        world_free(world);
        return error_set(e, ERR_DEVICE, "pinned memory for the ranks' abort word: %s",
                         cudaGetErrorString(rc));
    }
    world->abort_device = (uint64_t)address;
    __atomic_store_n(static_cast<uint32_t *>(world->abort_host), 0u, __ATOMIC_SEQ_CST);
    *out = world;
    return 0;
}

static uint32_t abort_word(const struct cuda_comm_world *world) {
    return __atomic_load_n(static_cast<uint32_t *>(world->abort_host), __ATOMIC_ACQUIRE);
}

static void world_abort(struct cuda_comm_world *world) {
    uint32_t none = 0;
    __atomic_compare_exchange_n(static_cast<uint32_t *>(world->abort_host), &none,
                                (uint32_t)CUDA_COMM_TOLD << 16, false, __ATOMIC_SEQ_CST,
                                __ATOMIC_SEQ_CST);
}

static struct cuda_comm_failure world_failure(const struct cuda_comm_world *world) {
    uint32_t word = abort_word(world);
    return {(cuda_comm_reason)(word >> 16), (int)(word >> 8 & 255), (int)(word & 255)};
}

static void world_withdraw(struct cuda_comm_world *world) {
    std::lock_guard<std::mutex> hold(world->lock);
    for (struct cuda_comm *end : world->ends)
        if (end) cudaStreamSynchronize(end->ctx->stream);
}

/* --- a rank's end --------------------------------------------------------------------------------------- */

static void comm_close(struct cuda_comm *comm) {
    if (!comm) return;
    struct cuda_comm_world *world = comm->world;
    cudaSetDevice(comm->ctx->device);
    if (comm->ctx->stream) cudaStreamSynchronize(comm->ctx->stream);
    comm->ctx->waited = nullptr;
    std::lock_guard<std::mutex> hold(world->lock);
    if (world->ends[comm->rank] == comm) world->ends[comm->rank] = nullptr;
    delete comm;
}

/* Cleared device memory; the stream is idle afterwards. */
static cudaError_t new_memory(struct cuda_comm *comm, uint64_t *out, size_t bytes) {
    void *at = nullptr;
    cudaError_t rc = cudaMalloc(&at, bytes);
    *out = (uint64_t)at;
    if (rc == cudaSuccess) {
        std::lock_guard<std::mutex> hold(comm->world->lock);
        comm->world->device_memory.push_back(*out);
    }
    if (rc == cudaSuccess) rc = cudaMemsetAsync(at, 0, bytes, comm->ctx->stream);
    return rc == cudaSuccess ? cudaStreamSynchronize(comm->ctx->stream) : rc;
}

static int comm_open(struct cuda_comm **out, struct cuda_comm_world *world, int rank, struct kctx *c,
                     struct error *e) {
    *out = nullptr;
    auto *comm = new cuda_comm{};
    comm->world = world;
    comm->ctx = cuda_of(c);
    comm->rank = rank;
    comm->team.rank = rank;
    comm->team.n = world->n;
    comm->team.deadline_ns = world->deadline_ns;
    comm->team.slot_bytes = world->slot_bytes;
    comm->team.abort_word = world->abort_device;
    cudaError_t rc = cudaSetDevice(comm->ctx->device);
    if (rc == cudaSuccess) rc = new_memory(comm, &comm->own_region, comm_region_bytes(world->slot_bytes));
    if (rc == cudaSuccess) rc = new_memory(comm, &comm->team.counters, COMM_BLOCKS * LINE);
    if (rc != cudaSuccess) {
        cudaGetLastError();
        int code = runtime_error(comm, "memory for collectives", rc, e);
        comm_close(comm);
        return code;
    }
    std::lock_guard<std::mutex> hold(world->lock);
    world->ends[rank] = comm;
    *out = comm;
    return 0;
}

static void comm_on_wait(struct cuda_comm *comm, void (*fn)(void *arg), void *arg) {
    comm->ctx->waited = fn;
    comm->ctx->waited_arg = arg;
}

/* --- connecting ------------------------------------------------------------------------------------------ */

static bool same_device(const struct cuda_comm *a, const struct cuda_comm *b) {
    return a->ctx->device == b->ctx->device;
}

static int comm_enable(struct cuda_comm *comm, struct error *e) {
    struct cuda_comm_world *world = comm->world;
    cudaError_t rc = cudaSetDevice(comm->ctx->device);
    for (int p = 0; p < world->n && rc == cudaSuccess; p++) {
        struct cuda_comm *peer = world->ends[p];
        if (!peer) return error_set(e, ERR_INTERNAL, "rank %d has no end of the world yet", p);
        bool *enabled = &world->enabled[comm->rank][p];
        if ((*enabled = same_device(comm, peer))) continue;
        int can = 0;
        rc = cudaDeviceCanAccessPeer(&can, comm->ctx->device, peer->ctx->device);
        if (rc != cudaSuccess || !can) continue;
        cudaError_t given = cudaDeviceEnablePeerAccess(peer->ctx->device, 0);
        *enabled = given == cudaSuccess || given == cudaErrorPeerAccessAlreadyEnabled;
        if (given != cudaSuccess) cudaGetLastError(); /* it is no error of the next operation */
    }
    return rc == cudaSuccess ? 0 : runtime_error(comm, "asking for peer access", rc, e);
}

/* Rank from writes words of its own into the part of rank at's first slot that is for it. */
enum { PATTERN_WORDS = 16 };
struct pattern_places {
    uint64_t region[CUDA_COMM_RANKS]; /* 0: not reached */
};

static __device__ __forceinline__ uint32_t pattern_word(int from, int at, int i) {
    return 0x9E3779B9u * (uint32_t)(from * 1031 + at * 131 + i + 1);
}

static __device__ __forceinline__ ptr<uint32_t> pattern_at(uint64_t region, int from) {
    return ptr<uint32_t>(region + MEETING_BYTES + RING_FLAG_BYTES) + from * PATTERN_WORDS;
}

/* One block, a warp. */
__global__ void k_write_pattern(pattern_places to, int rank, int n) {
    for (int p = 0; p < n; p++)
        for (int i = (int)threadIdx.x; i < PATTERN_WORDS && to.region[p]; i += (int)blockDim.x)
            pattern_at(to.region[p], rank)[i] = pattern_word(rank, p, i);
}

/* wrong[p] words: of what p wrote here, and of what p wrote to itself as seen from here. */
__global__ void k_read_pattern(pattern_places at, int rank, int n, ptr<uint32_t> wrong) {
    for (int p = 0; p < n; p++) {
        if (!at.region[p]) continue;
        unsigned bad = 0;
        for (int i = (int)threadIdx.x; i < PATTERN_WORDS; i += (int)blockDim.x) {
            uint32_t came = pattern_at(at.region[rank], p)[i], seen = pattern_at(at.region[p], p)[i];
            bad |= came != pattern_word(p, rank, i) || seen != pattern_word(p, p, i);
        }
        int any = __any_sync(ALL_LANES, bad);
        if (threadIdx.x == 0) wrong[p] = any ? 1u : 0u;
    }
}

static pattern_places places_of(const struct cuda_comm *comm) {
    const struct cuda_comm_world *world = comm->world;
    pattern_places places = {};
    for (int p = 0; p < world->n; p++)
        if (world->enabled[comm->rank][p] && world->enabled[p][comm->rank])
            places.region[p] = world->ends[p]->own_region;
    return places;
}

static int comm_write_pattern(struct cuda_comm *comm, struct error *e) {
    pattern_places to = places_of(comm);
    int rank = comm->rank, n = comm->world->n;
    cudaSetDevice(comm->ctx->device);
    LAUNCH(k_write_pattern, 1, WARP_SIZE, 0, comm->ctx->stream, to, rank, n);
    cudaError_t rc = cudaStreamSynchronize(comm->ctx->stream);
    return rc == cudaSuccess ? 0 : runtime_error(comm, "writing a pattern to its peers", rc, e);
}

static int comm_read_pattern(struct cuda_comm *comm, struct error *e) {
    struct cuda_comm_world *world = comm->world;
    pattern_places at = places_of(comm);
    int rank = comm->rank, n = world->n;
    cudaStream_t stream = comm->ctx->stream;
    ptr<uint32_t> wrong = ptr<uint32_t>(comm->team.counters);
    uint32_t found[CUDA_COMM_RANKS] = {};
    size_t bytes = (size_t)n * sizeof *found;
    cudaSetDevice(comm->ctx->device);
    LAUNCH(k_read_pattern, 1, WARP_SIZE, 0, stream, at, rank, n, wrong);
    cudaError_t rc = cudaMemcpyAsync(found, host_of(comm->team.counters), bytes, cudaMemcpyDeviceToHost,
                                     stream);
    if (rc == cudaSuccess)
        rc = cudaMemsetAsync(host_of(comm->team.counters), 0, COMM_BLOCKS * LINE, stream);
    if (rc == cudaSuccess) rc = cudaStreamSynchronize(stream);
    for (int p = 0; p < n; p++) world->carries[p][rank] = at.region[p] && found[p] == 0;
    return rc == cudaSuccess ? 0 : runtime_error(comm, "reading its peers' patterns", rc, e);
}

/* What speaks against the direct way; false when nothing does. The same answer on all ranks. */
static bool find_obstacle(const struct cuda_comm_world *world, char *why, size_t size) {
    for (int a = 0; a < world->n; a++)
        for (int b = 0; b < world->n; b++) {
            const char *from = world->ends[a]->ctx->name, *to = world->ends[b]->ctx->name;
            if (!world->enabled[a][b])
                snprintf(why, size, "%s has no peer access to %s", from, to);
            else if (!world->carries[a][b])
                snprintf(why, size, "%s claims peer access to %s, but data does not arrive", from, to);
            else continue;
            return true;
        }
    return false;
}

static cudaError_t pin_region(struct cuda_comm *comm) {
    struct cuda_comm_world *world = comm->world;
    size_t bytes = comm_region_bytes(world->slot_bytes);
    cudaError_t rc =
        cudaHostAlloc(&comm->pinned_region, bytes, cudaHostAllocPortable | cudaHostAllocMapped);
    if (rc != cudaSuccess) return rc;
    memset(comm->pinned_region, 0, bytes);
    std::lock_guard<std::mutex> hold(world->lock);
    world->pinned_memory.push_back(comm->pinned_region);
    return rc;
}

/* The grids are what all devices hold at once, with room beside them for other ranks of a device. */
static int resident_blocks(const struct cuda_comm_world *world) {
    int blocks = COMM_BLOCKS;
    for (int a = 0; a < world->n; a++) {
        int sharing = 1;
        for (int b = 0; b < world->n; b++)
            sharing += b != a && same_device(world->ends[a], world->ends[b]);
        int room = world->ends[a]->ctx->n_sms / (sharing > 1 ? 2 * sharing : 1);
        if (room < blocks) blocks = room > 1 ? room : 1;
    }
    return blocks;
}

/* A pinned region is made here and its peers' addresses are taken at the first call after it: all ranks have
 * passed a barrier by then. */
static void take_regions(struct cuda_comm *comm) {
    const struct cuda_comm_world *world = comm->world;
    for (int p = 0; p < world->n; p++) {
        const struct cuda_comm *peer = world->ends[p];
        void *address = host_of(peer->own_region);
        if (!comm->direct) cudaHostGetDevicePointer(&address, peer->pinned_region, 0);
        comm->team.region[p] = (uint64_t)address;
    }
}

static int comm_connect(struct cuda_comm *comm, bool *direct, char *why, size_t why_size,
                        struct error *e) {
    struct cuda_comm_world *world = comm->world;
    char text[256] = "";
    comm->direct = *direct = !find_obstacle(world, text, sizeof text);
    if (why_size) snprintf(why, why_size, "%s", text);
    comm->blocks = resident_blocks(world);
    cudaSetDevice(comm->ctx->device);
    cudaError_t rc;
    if (comm->direct) { /* the pattern lies in the lanes */
        rc = cudaMemsetAsync(host_of(comm->own_region), 0, comm_region_bytes(world->slot_bytes),
                             comm->ctx->stream);
        if (rc == cudaSuccess) rc = cudaStreamSynchronize(comm->ctx->stream);
    } else rc = pin_region(comm);
    return rc == cudaSuccess ? 0 : runtime_error(comm, "memory for collectives", rc, e);
}

/* --- after an abort --------------------------------------------------------------------------------------- */

/* More than any number that a kernel which gave up may have told its peers. */
enum { RESET_STEP = 1 << 20 };

static cudaError_t most_counted(const struct cuda_comm_world *world, uint32_t *most) {
    uint32_t counters[COMM_BLOCKS * LINE / 4];
    for (int r = 0; r < world->n; r++) {
        const struct cuda_comm *end = world->ends[r];
        if (!end) continue;
        cudaError_t rc = cudaSetDevice(end->ctx->device);
        if (rc == cudaSuccess)
            rc = cudaMemcpy(counters, host_of(end->team.counters), sizeof counters, cudaMemcpyDefault);
        if (rc != cudaSuccess) return rc;
        for (int b = 0; b < COMM_BLOCKS; b++)
            for (int kind = COUNT_MEETINGS; kind <= COUNT_TILES; kind++) {
                uint32_t n = counters[b * LINE / 4 + kind];
                if ((int32_t)(n - most[kind]) > 0) most[kind] = n;
            }
    }
    return cudaSuccess;
}

static cudaError_t put_counters(const struct cuda_comm *end, const uint32_t *most) {
    uint32_t counters[COMM_BLOCKS * LINE / 4] = {}, line[MEETING_BYTES / 4] = {};
    uint32_t ring[RING_FLAG_BYTES / 4] = {};
    for (int b = 0; b < COMM_BLOCKS; b++)
        for (int kind = COUNT_MEETINGS; kind <= COUNT_TILES; kind++)
            counters[b * LINE / 4 + kind] = most[kind];
    for (int i = 0; i < MEETING_BYTES / LINE; i++) line[i * LINE / 4] = most[COUNT_MEETINGS];
    for (int i = 0; i < RING_FLAG_BYTES / LINE; i++) ring[i * LINE / 4] = most[COUNT_TILES];
    void *flags = end->pinned_region ? end->pinned_region : host_of(end->own_region);
    cudaError_t rc = cudaSetDevice(end->ctx->device);
    if (rc == cudaSuccess)
        rc = cudaMemcpy(host_of(end->team.counters), counters, sizeof counters, cudaMemcpyDefault);
    if (rc == cudaSuccess) rc = cudaMemcpy(flags, line, sizeof line, cudaMemcpyDefault);
    if (rc == cudaSuccess)
        rc = cudaMemcpy(static_cast<char *>(flags) + MEETING_BYTES, ring, sizeof ring,
                        cudaMemcpyDefault);
    return rc;
}

static int world_reset(struct cuda_comm_world *world, struct error *e) {
    world_withdraw(world);
    uint32_t most[COUNT_FAILED] = {};
    cudaError_t rc = most_counted(world, most);
    for (uint32_t &n : most) n += RESET_STEP;
    for (int r = 0; r < world->n && rc == cudaSuccess; r++)
        if (world->ends[r]) rc = put_counters(world->ends[r], most);
    if (rc != cudaSuccess)
        return error_set(e, ERR_DEVICE, "the CUDA ranks' flags cannot be reset: %s",
                         cudaGetErrorString(rc));
    __atomic_store_n(static_cast<uint32_t *>(world->abort_host), 0u, __ATOMIC_SEQ_CST);
    return 0;
}

/* Cut where out is full. */
static void world_names(struct cuda_comm_world *world, char *out, size_t size) {
    size_t at = 0;
    out[0] = 0;
    std::lock_guard<std::mutex> hold(world->lock);
    for (int r = 0; r < world->n && at < size; r++)
        if (world->ends[r])
            at += (size_t)snprintf(out + at, size - at, "%s%s", r ? "," : "",
                                   world->ends[r]->ctx->name);
}

#ifdef TPD_CUSIM
enum { TUNE_BYTES = 8 << 10 };
#else
enum { TUNE_BYTES = 16 << 20 };
#endif

/* --- the table -------------------------------------------------------------------------------------------- */

/* The peers' regions are known when all have connected, which is before the first call. */
template <void (*f)(struct cuda_comm *, const struct cuda_comm_call *)>
static void with_regions(struct cuda_comm *comm, const struct cuda_comm_call *call) {
    if (!cuda_begin(&comm->ctx->base)) return;
    if (!comm->team.region[0]) take_regions(comm);
    f(comm, call);
}

static void barrier(struct cuda_comm *comm, uint32_t signature) {
    if (!cuda_begin(&comm->ctx->base)) return;
    if (!comm->team.region[0]) take_regions(comm);
    cuda_comm_barrier(comm, signature);
}

static void reduce_norm(struct cuda_comm *comm, const struct cuda_comm_call *call,
                        const struct cuda_comm_norm *norm) {
    if (!cuda_begin(&comm->ctx->base)) return;
    if (!comm->team.region[0]) take_regions(comm);
    cuda_comm_reduce_norm(comm, call, norm);
}

extern "C" {
const struct cuda_comm_table cuda_comm_table = {
    world_new,          world_free,        world_abort,
    world_failure,      world_withdraw,    world_reset,
    world_names,        TUNE_BYTES,
    comm_open,          comm_close,        comm_on_wait,
    comm_enable,        comm_write_pattern, comm_read_pattern,
    comm_connect,       with_regions<cuda_comm_one_shot>,
    with_regions<cuda_comm_two_shot>,      with_regions<cuda_comm_ring>,
    with_regions<cuda_comm_reduce_scatter>, with_regions<cuda_comm_all_gather>,
    barrier,            reduce_norm};
}
