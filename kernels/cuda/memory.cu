/* Memory of a device: one arena a rank.
 *
 * mem_reserve takes from the device what the plan reckons, at once; allocations are pieces of that. What
 * jobs and adapters need later comes from what is free of it, or from further stretches, which go back to
 * the device with their last piece. The simulator is told of each piece (PIECE_NEW), so that it sees an access that
 * leaves one although the driver sees one allocation. */
#include "kernels/cuda/cuda.h"

#include <cstdlib>
#include <cstring>

#ifdef TPD_CUSIM
static const size_t STRETCH_BYTES = 64 << 10;
#else
static const size_t STRETCH_BYTES = 64 << 20; /* a further stretch at least, where there is as much */
#endif

/* An exported handle opens a whole allocation of the driver's, for writing too. So weights, which tensor.export
 * gives away, have stretches of their own, and nobody gets at the caches of other people's prompts. */
enum { STRETCH_WEIGHTS, STRETCH_REST };

static int stretch_of(enum mem_kind kind) { return kind == MEM_WEIGHTS ? STRETCH_WEIGHTS : STRETCH_REST; }

static void *at(dev_addr address) { return reinterpret_cast<void *>(address); }

static void look_at_device(struct cuda_memory *m) {
    cudaMemGetInfo(&m->device_free, &m->device_total);
}

/* Bytes that the arena may still grow by. */
static size_t room_to_grow(const struct cuda_memory *m) {
    if (m->limit == 0) return m->device_free;
    size_t held = carve_held(&m->arena), mine = m->limit > held ? m->limit - held : 0;
    return mine < m->device_free ? mine : m->device_free;
}

static size_t bytes_left(const struct cuda_memory *m) {
    return carve_free_bytes(&m->arena) + room_to_grow(m);
}

void cuda_memory_open(struct cuda_context *c, size_t limit) {
    c->memory.limit = limit;
    look_at_device(&c->memory);
}

void cuda_memory_close(struct cuda_context *c) {
    struct carve *arena = &c->memory.arena;
    for (int i = 0; i < arena->n; i++) cudaFree(at(arena->stretches[i].at));
    carve_close(arena);
    free(c->memory.live);
}

/* --- stretches ------------------------------------------------------------------------------------- */

static int memory_short(struct cuda_context *c, size_t needed, struct error *e) {
    size_t left = bytes_left(&c->memory);
    error_set(e, ERR_MEMORY, "rank %d on %s is out of memory: %zu bytes needed, %zu free",
              c->base.rank, c->name, needed, left);
    error_note_number(e, "needed", (int64_t)needed);
    error_note_number(e, "free", (int64_t)left);
    return -(int)ERR_MEMORY;
}

/* bytes: a multiple of CARVE_ALIGN. */
static int stretch_new(struct cuda_context *c, int tag, size_t bytes, struct error *e) {
    struct cuda_memory *m = &c->memory;
    void *got = nullptr;
    cudaSetDevice(c->device);
    cudaError_t rc = cudaMalloc(&got, bytes);
    if (rc == cudaErrorMemoryAllocation) {
        cudaGetLastError(); /* it would be taken for a launch's */
        return memory_short(c, bytes, e);
    }
    if (rc != cudaSuccess)
        return error_set(e, ERR_DEVICE, "%s: allocating %zu bytes failed: %s", c->name, bytes,
                         cudaGetErrorString(rc));
    if (!carve_add(&m->arena, reinterpret_cast<dev_addr>(got), bytes, tag)) {
        cudaFree(got);
        return error_set(e, ERR_MEMORY, "no host memory for the books of rank %d's memory", c->base.rank);
    }
    look_at_device(m);
    return 0;
}

static void stretch_free(struct cuda_context *c, const struct carve_stretch *stretch) {
    cudaFree(at(stretch->at));
    carve_drop(&c->memory.arena, stretch);
    look_at_device(&c->memory);
}

/* Makes room for a piece. */
static int grow(struct cuda_context *c, int tag, size_t bytes, struct error *e) {
    struct cuda_memory *m = &c->memory;
    cudaSetDevice(c->device);
    look_at_device(m);
    size_t room = room_to_grow(m) / CARVE_ALIGN * CARVE_ALIGN;
    if (bytes > room) return memory_short(c, bytes, e);
    size_t wanted = bytes < STRETCH_BYTES ? STRETCH_BYTES : bytes;
    if (wanted > room) wanted = room;
    int rc = stretch_new(c, tag, wanted, e);
    /* The driver's granularity may leave less than it says is free. */
    return rc == -(int)ERR_MEMORY && wanted > bytes ? stretch_new(c, tag, bytes, e) : rc;
}

/* Makes one free run of so many bytes. */
static int reserve(struct cuda_context *c, int tag, size_t bytes, struct error *e) {
    struct cuda_memory *m = &c->memory;
    if (bytes <= carve_longest(&m->arena, tag)) return 0;
    look_at_device(m);
    return bytes > room_to_grow(m) ? memory_short(c, bytes, e) : stretch_new(c, tag, bytes, e);
}

static void free_empty_stretches(struct cuda_context *c) {
    struct carve *arena = &c->memory.arena;
    for (int i = arena->n - 1; i >= 0; i--)
        if (arena->stretches[i].n_pieces == 0) stretch_free(c, &arena->stretches[i]);
}

int cuda_mem_reserve(struct kctx *base, const struct mem_use *planned, struct error *e) {
    struct cuda_context *c = cuda_of(base);
    struct cuda_memory *m = &c->memory;
    size_t weights = carve_round(planned->bytes[MEM_WEIGHTS]), rest = 0;
    cudaSetDevice(c->device);
    for (int kind = 0; kind < MEM_KIND_COUNT; kind++)
        if (kind != MEM_WEIGHTS && kind != MEM_SCRATCH) rest += carve_round(planned->bytes[kind]);
    size_t scratch = carve_round(planned->bytes[MEM_SCRATCH]), has = m->used[MEM_SCRATCH];
    if (scratch > has) rest += scratch;
    int rc = reserve(c, STRETCH_WEIGHTS, weights, e);
    if (rc == 0) rc = reserve(c, STRETCH_REST, rest, e);
    if (rc == 0 && scratch > has) rc = cuda_scratch_reserve(c, scratch, e);
    if (rc == 0) return 0;
    free_empty_stretches(c);
    return error_prefix(e, "the memory that the plan reckons: ");
}

/* --- pieces ------------------------------------------------------------------------------------------ */

static bool table_grow(struct cuda_memory *m) {
    if (m->n_live < m->max_live) return true;
    int max = m->max_live ? 2 * m->max_live : 256;
    void *grown = realloc(m->live, (size_t)max * sizeof *m->live);
    if (!grown) return false;
    m->live = static_cast<struct cuda_allocation *>(grown);
    m->max_live = max;
    return true;
}

int cuda_piece_take(struct cuda_context *c, enum mem_kind kind, size_t bytes, dev_addr *out,
                    struct error *e) {
    struct cuda_memory *m = &c->memory;
    int tag = stretch_of(kind);
    *out = 0;
    if (bytes == 0) bytes = 1;
    if (bytes > SIZE_MAX - CARVE_ALIGN || !table_grow(m)) return memory_short(c, bytes, e);
    size_t rounded = carve_round(bytes);
    if (!carve_take(&m->arena, rounded, tag, out)) {
        int rc = grow(c, tag, rounded, e);
        if (rc) return rc;
        if (!carve_take(&m->arena, rounded, tag, out)) return memory_short(c, bytes, e);
    }
    PIECE_NEW(*out, bytes);
    m->live[m->n_live++] = {*out, rounded, kind};
    m->used[kind] += rounded;
    return 0;
}

int cuda_mem_alloc(struct kctx *base, enum mem_kind kind, size_t bytes, dev_addr *out,
                   struct error *e) {
    struct cuda_context *c = cuda_of(base);
    int code = cuda_piece_take(c, kind, bytes, out, e);
    if (code || bytes == 0) return code;
    cudaSetDevice(c->device);
    cudaError_t rc = cudaMemsetAsync(at(*out), 0, bytes, c->stream);
    if (rc == cudaSuccess) return 0;
    cuda_mem_free(base, *out);
    *out = 0;
    return error_set(e, ERR_DEVICE, "%s: clearing %zu bytes failed: %s", c->name, bytes,
                     cudaGetErrorString(rc));
}

static int find_piece(const struct cuda_memory *m, dev_addr addr) {
    int i = 0;
    while (i < m->n_live && m->live[i].at != addr) i++;
    return i < m->n_live ? i : -1;
}

void cuda_mem_free(struct kctx *base, dev_addr addr) {
    struct cuda_context *c = cuda_of(base);
    struct cuda_memory *m = &c->memory;
    if (!addr) return;
    int i = find_piece(m, addr);
    if (i < 0) {
        cuda_refuse(c, "rank %d frees device memory that it does not have", base->rank);
        return;
    }
    cudaSetDevice(c->device);
    cudaStreamSynchronize(c->stream); /* who gets the piece next need not wait for those who had it */
    cuda_graphs_forget(c);
    PIECE_END(addr);
    struct cuda_allocation piece = m->live[i];
    m->used[piece.kind] -= piece.bytes;
    m->live[i] = m->live[--m->n_live];
    const struct carve_stretch *empty = carve_give(&m->arena, piece.at, piece.bytes);
    if (empty) stretch_free(c, empty);
}

void cuda_mem_use(struct kctx *base, struct mem_use *use) {
    const struct cuda_memory *m = &cuda_of(base)->memory;
    for (int kind = 0; kind < MEM_KIND_COUNT; kind++) use->bytes[kind] = m->used[kind];
    use->total = m->limit && m->limit < m->device_total ? m->limit : m->device_total;
    use->free = bytes_left(m);
}

/* A handle opens a stretch as a whole. */
int cuda_mem_export(struct kctx *base, dev_addr addr, const struct mem_share *share,
                    struct mem_handle *out, struct error *e) {
    struct cuda_context *c = cuda_of(base);
    const struct cuda_memory *m = &c->memory;
    cudaIpcMemHandle_t handle;
    static_assert(sizeof handle == MEM_IPC_BYTES, "as kernels.h says");
    (void)share;
    int i = find_piece(m, addr);
    if (i < 0 || stretch_of(m->live[i].kind) != STRETCH_WEIGHTS)
        return error_set(e, ERR_INTERNAL, "rank %d exports device memory that is no weight of its own",
                         base->rank);
    const struct carve_stretch *stretch = carve_find(&m->arena, addr);
    cudaSetDevice(c->device);
    cudaError_t rc = cudaIpcGetMemHandle(&handle, at(stretch->at));
    if (rc != cudaSuccess) {
        cudaGetLastError();
        return error_set(e, ERR_DEVICE, "%s: the driver gives no handle for other processes: %s",
                         c->name, cudaGetErrorString(rc));
    }
    *out = {};
    out->kind = MEM_HANDLE_CUDA;
    memcpy(out->ipc, &handle, sizeof handle);
    out->device = c->device;
    out->offset = addr - stretch->at;
    out->bytes = m->live[i].bytes;
    return 0;
}
