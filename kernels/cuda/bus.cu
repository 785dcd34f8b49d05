/* What crosses the bus: uploads through a ring of pinned memory, downloads that land in pinned memory and are
 * handed over by wait. */
#include "kernels/cuda/cuda.h"

#include <cstring>

static void *at(dev_addr address) { return reinterpret_cast<void *>(address); }

int cuda_bus_open(struct cuda_context *c, struct error *e) {
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

void cuda_bus_close(struct cuda_context *c) {
    for (int i = 0; i < UPLOAD_SEGMENTS; i++)
        if (c->up.copied[i]) cudaEventDestroy(c->up.copied[i]);
    if (c->up.host) cudaFreeHost(c->up.host);
    if (c->down.host) cudaFreeHost(c->down.host);
}

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
