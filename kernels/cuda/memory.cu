/* Memory of a device, and what crosses the bus. */
#include "kernels/cuda/cuda.h"

#include <cstdlib>
#include <cstring>

enum { ALIGNMENT = 256 };

static void *at(dev_addr address) { return reinterpret_cast<void *>(address); }

static size_t used_bytes(const struct cuda_memory *m) {
    size_t used = 0;
    for (int kind = 0; kind < MEM_KIND_COUNT; kind++) used += m->used[kind];
    return used;
}

static void look_at_device(struct cuda_memory *m) {
    cudaMemGetInfo(&m->device_free, &m->device_total);
}

static size_t bytes_left(const struct cuda_memory *m) {
    if (m->limit == 0) return m->device_free;
    size_t used = used_bytes(m), mine = m->limit > used ? m->limit - used : 0;
    return mine < m->device_free ? mine : m->device_free;
}

/* --- open and close ------------------------------------------------------------------------------- */

int cuda_memory_open(struct cuda_context *c, size_t limit, struct error *e) {
    c->memory.limit = limit;
    look_at_device(&c->memory);
    void *up = nullptr, *down = nullptr;
    cudaError_t rc = cudaHostAlloc(&up, (size_t)UPLOAD_SEGMENTS * UPLOAD_SEGMENT_BYTES,
                                   cudaHostAllocDefault);
    c->up.host = static_cast<uint8_t *>(up);
    if (rc == cudaSuccess) rc = cudaHostAlloc(&down, DOWNLOAD_BYTES, cudaHostAllocDefault);
    c->down.host = static_cast<uint8_t *>(down);
    for (int i = 0; i < UPLOAD_SEGMENTS && rc == cudaSuccess; i++)
        rc = cudaEventCreateWithFlags(&c->up.copied[i], cudaEventDisableTiming);
    if (rc == cudaSuccess) return 0;
    return error_set(e, ERR_MEMORY, "%s: no pinned host memory for rank %d: %s", c->name, c->base.rank,
                     cudaGetErrorString(rc));
}

void cuda_memory_close(struct cuda_context *c) {
    for (int i = 0; i < c->memory.n_live; i++) cudaFree(at(c->memory.live[i].at));
    free(c->memory.live);
    for (int i = 0; i < UPLOAD_SEGMENTS; i++)
        if (c->up.copied[i]) cudaEventDestroy(c->up.copied[i]);
    if (c->up.host) cudaFreeHost(c->up.host);
    if (c->down.host) cudaFreeHost(c->down.host);
}

/* --- allocations ---------------------------------------------------------------------------------- */

static int memory_short(struct cuda_context *c, size_t needed, struct error *e) {
    size_t left = bytes_left(&c->memory);
    error_set(e, ERR_MEMORY, "rank %d on %s is out of memory: %zu bytes needed, %zu free",
              c->base.rank, c->name, needed, left);
    error_note_number(e, "needed", (int64_t)needed);
    error_note_number(e, "free", (int64_t)left);
    return -(int)ERR_MEMORY;
}

static bool table_grow(struct cuda_memory *m) {
    if (m->n_live < m->max_live) return true;
    int max = m->max_live ? 2 * m->max_live : 256;
    void *grown = realloc(m->live, (size_t)max * sizeof *m->live);
    if (!grown) return false;
    m->live = static_cast<struct cuda_allocation *>(grown);
    m->max_live = max;
    return true;
}

int cuda_mem_alloc(struct kctx *base, enum mem_kind kind, size_t bytes, dev_addr *out,
                   struct error *e) {
    struct cuda_context *c = cuda_of(base);
    struct cuda_memory *m = &c->memory;
    void *got = nullptr;
    *out = 0;
    cudaSetDevice(c->device);
    look_at_device(m);
    if (bytes > bytes_left(m)) return memory_short(c, bytes, e);
    size_t rounded = align_to(bytes ? bytes : 1, ALIGNMENT);
    if (rounded > bytes_left(m) || !table_grow(m)) return memory_short(c, bytes, e);
    cudaError_t rc = cudaMalloc(&got, rounded);
    if (rc == cudaErrorMemoryAllocation) {
        cudaGetLastError(); /* it would be taken for a launch's */
        return memory_short(c, bytes, e);
    }
    if (rc == cudaSuccess) rc = cudaMemsetAsync(got, 0, rounded, c->stream);
    if (rc != cudaSuccess) {
        cudaFree(got);
        return error_set(e, ERR_DEVICE, "%s: allocating %zu bytes failed: %s", c->name, bytes,
                         cudaGetErrorString(rc));
    }
    m->live[m->n_live++] = {reinterpret_cast<dev_addr>(got), rounded, kind};
    m->used[kind] += rounded;
    look_at_device(m);
    *out = reinterpret_cast<dev_addr>(got);
    return 0;
}

void cuda_mem_free(struct kctx *base, dev_addr addr) {
    struct cuda_context *c = cuda_of(base);
    struct cuda_memory *m = &c->memory;
    if (!addr) return;
    int i = 0;
    while (i < m->n_live && m->live[i].at != addr) i++;
    if (i == m->n_live) {
        cuda_refuse(c, "rank %d frees device memory that it does not have", base->rank);
        return;
    }
    cudaSetDevice(c->device);
    cudaStreamSynchronize(c->stream);
    cuda_graphs_forget(c);
    cudaFree(at(addr));
    m->used[m->live[i].kind] -= m->live[i].bytes;
    m->live[i] = m->live[--m->n_live];
    look_at_device(m);
}

void cuda_mem_use(struct kctx *base, struct mem_use *use) {
    const struct cuda_memory *m = &cuda_of(base)->memory;
    for (int kind = 0; kind < MEM_KIND_COUNT; kind++) use->bytes[kind] = m->used[kind];
    use->total = m->limit && m->limit < m->device_total ? m->limit : m->device_total;
    use->free = bytes_left(m);
}

/* Each allocation is one of the driver's own, so a handle opens just that. */
int cuda_mem_export(struct kctx *base, dev_addr addr, const struct mem_share *share,
                    struct mem_handle *out, struct error *e) {
    struct cuda_context *c = cuda_of(base);
    const struct cuda_memory *m = &c->memory;
    cudaIpcMemHandle_t handle;
    static_assert(sizeof handle == MEM_IPC_BYTES, "as kernels.h says");
    (void)share;
    int i = 0;
    while (i < m->n_live && m->live[i].at != addr) i++;
    if (i == m->n_live)
        return error_set(e, ERR_INTERNAL, "rank %d exports device memory that it does not have",
                         base->rank);
    cudaSetDevice(c->device);
    cudaError_t rc = cudaIpcGetMemHandle(&handle, at(addr));
    if (rc != cudaSuccess) {
        cudaGetLastError();
        return error_set(e, ERR_DEVICE, "%s: the driver gives no handle for other processes: %s",
                         c->name, cudaGetErrorString(rc));
    }
    *out = {};
    out->kind = MEM_HANDLE_CUDA;
    memcpy(out->ipc, &handle, sizeof handle);
    out->device = c->device;
    out->bytes = m->live[i].bytes;
    return 0;
}

/* --- the bus -------------------------------------------------------------------------------------- */

/* Room for up to bytes (what fits of them) in the ring; waits only when the device is a turn behind. */
static uint8_t *ring_room(struct cuda_context *c, size_t *bytes) {
    struct upload_ring *r = &c->up;
    if (r->filled == UPLOAD_SEGMENT_BYTES) {
        if (!cuda_check(c, cudaEventRecord(r->copied[r->segment], c->stream), "upload")) return nullptr;
        r->segment = (r->segment + 1) % UPLOAD_SEGMENTS;
        r->filled = 0;
        if (!cuda_check(c, cudaEventSynchronize(r->copied[r->segment]), "upload")) return nullptr;
    }
    size_t room = UPLOAD_SEGMENT_BYTES - r->filled;
    if (*bytes > room) *bytes = room;
    uint8_t *to = r->host + (size_t)r->segment * UPLOAD_SEGMENT_BYTES + r->filled;
    /* The next piece begins where a DMA engine likes it. */
    size_t taken = align_to(*bytes, 64);
    r->filled += taken < room ? taken : room;
    return to;
}

void cuda_upload(struct kctx *base, dev_addr to, const void *from, size_t bytes) {
    if (!bytes || !cuda_begin(base)) return;
    struct cuda_context *c = cuda_of(base);
    for (size_t done = 0, n; done < bytes; done += n) {
        n = bytes - done;
        uint8_t *room = ring_room(c, &n);
        if (!room) return;
        memcpy(room, static_cast<const uint8_t *>(from) + done, n);
        cudaError_t rc = cudaMemcpyAsync(at(to + done), room, n, cudaMemcpyHostToDevice, c->stream);
        if (!cuda_check(c, rc, "upload")) return;
    }
}

void cuda_download(struct kctx *base, void *to, dev_addr from, size_t bytes) {
    if (!bytes || !cuda_begin(base)) return;
    struct cuda_context *c = cuda_of(base);
    struct download_buffer *d = &c->down;
    size_t taken = align_to(bytes, 64);
    void *landing = to; /* what does not fit goes there straight, and the call waits for it */
    if (d->n < DOWNLOADS_MAX && taken <= DOWNLOAD_BYTES - d->filled) {
        d->pending[d->n++] = {to, d->filled, bytes};
        landing = d->host + d->filled;
        d->filled += taken;
    }
    cuda_check(c, cudaMemcpyAsync(landing, at(from), bytes, cudaMemcpyDeviceToHost, c->stream),
               "download");
}

int cuda_wait(struct kctx *base, struct error *e) {
    struct cuda_context *c = cuda_of(base);
    struct download_buffer *d = &c->down;
    cudaSetDevice(c->device);
    cuda_check(c, cudaStreamSynchronize(c->stream), "the work of a step");
    if (c->waited) c->waited(c->waited_arg);
    for (int i = 0; i < d->n && !kctx_failed(base); i++)
        memcpy(d->pending[i].to, d->host + d->pending[i].from, d->pending[i].bytes);
    d->n = 0;
    d->filled = 0;
    if (!kctx_failed(base)) return 0;
    if (cudaFree(nullptr) != cudaSuccess) base->lost = true; /* what a device that is well always does */
    cudaGetLastError();
    int code = -(int)base->error.kind;
    if (e) *e = base->error;
    base->error.kind = ERR_NONE;
    return code;
}

void cuda_copy(struct kctx *base, dev_addr to, dev_addr from, size_t bytes) {
    if (!bytes || !cuda_begin(base)) return;
    struct cuda_context *c = cuda_of(base);
    cuda_check(c, cudaMemcpyAsync(at(to), at(from), bytes, cudaMemcpyDeviceToDevice, c->stream),
               "copy");
}
