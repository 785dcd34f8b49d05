/* kernels/cuda/cuda.h: inside of the CUDA backend.
 *
 * context.cu opens a device, memory.cu has its memory, bus.cu what crosses the bus, scratch.cu what operations work in
 * beside their operands, weights.cu the matrices.
 * Operations are in the other .cu files, each kernel with the bytes it moves and the FLOPs it does, in
 * the words of kernels.h. An operation only enqueues on the context's stream:
 *
 *     void cuda_x(struct kctx *base, …) {
 *         if (!cuda_begin(base)) return;
 *         struct cuda_context *c = cuda_of(base);
 *         LAUNCH(k_x, grid, block, 0, c->stream, ptr<float>(out), …);
 *         cuda_launched(c, "x");
 *     }
 *
 * Sums follow the promise of kernels.h: how a row is summed depends on its own length (and position)
 * alone. Where the compiler could fuse a product and a sum in one place and not in another, the code says
 * fmaf; the build has -fmad=false.
 */
#ifndef TPD_KERNELS_CUDA_CUDA_H
#define TPD_KERNELS_CUDA_CUDA_H

#include "base/carve.h"
#include "kernels/kernels.h"

#include "kernels/cuda/port.h"
#include "kernels/cuda/sizes.h"

#include <cublas_v2.h>

struct cuda_allocation {
    dev_addr at;
    size_t bytes; /* a multiple of CARVE_ALIGN */
    enum mem_kind kind;
};

/* The rank's arena: what mem_reserve takes from the device at once (two stretches, see stretch_of in
 * memory.cu), and further stretches where more is needed later. All allocations and all scratch memory are
 * pieces of it. */
struct cuda_memory {
    size_t limit; /* bytes this rank may hold; 0 = no limit but the device's */
    size_t used[MEM_KIND_COUNT];
    size_t device_total, device_free; /* as of the last time that a stretch came or went */
    struct carve arena;
    struct cuda_allocation *live;
    int n_live, max_live;
};

/* Pinned host memory through which everything goes up. A segment is filled piece by piece; when the
 * writer comes back to it after a turn, it waits for the copies out of it (its event). */
#ifdef TPD_CUSIM
enum { UPLOAD_SEGMENTS = 4, UPLOAD_SEGMENT_BYTES = 16 << 10, DOWNLOAD_BYTES = 64 << 10 };
#else
enum { UPLOAD_SEGMENTS = 16, UPLOAD_SEGMENT_BYTES = 1 << 20, DOWNLOAD_BYTES = 4 << 20 };
#endif
struct upload_ring {
    uint8_t *host;
    cudaEvent_t copied[UPLOAD_SEGMENTS];
    int segment;
    size_t filled; /* bytes of this segment */
};

/* Downloads land in pinned memory; wait copies them to where they were asked for. */
enum { DOWNLOADS_MAX = 64 };
struct download {
    void *to;
    size_t from, bytes;
};
struct download_buffer {
    uint8_t *host;
    size_t filled;
    int n;
    struct download pending[DOWNLOADS_MAX];
};

/* Recorded steps (graph.cu). */
enum { GRAPHS_MAX = 128 };
struct cuda_graph {
    uint64_t key;
    cudaGraphExec_t ready; /* NULL: seen once */
};
struct cuda_graphs {
    struct cuda_graph of[GRAPHS_MAX], *recording;
    int n;
    bool broken; /* no further ones */
};

struct cuda_context {
    struct kctx base;
    int device;
    char name[96]; /* "cuda:0 (NVIDIA H100 80GB HBM3)" */
    int n_sms;     /* multiprocessors */
    size_t shared_max; /* bytes of shared memory that a block may ask for */
    bool same_bits;    /* struct cuda_options */
    bool bf16;         /* bf16_products: only without same_bits */
    cudaStream_t stream;
    cublasHandle_t blas;
    struct cuda_memory memory;
    struct upload_ring up;
    struct download_buffer down;
    dev_addr scratch, blas_workspace; /* MEM_SCRATCH; 0: not yet needed */
    size_t scratch_bytes;
    struct cuda_graphs graphs;

    void (*waited)(void *arg); /* or NULL; by wait, when the stream is idle (ipc/ looks for its failures) */
    void *waited_arg;
};

static inline struct cuda_context *cuda_of(struct kctx *c) { return (struct cuda_context *)c; }

/* --- what every operation uses -------------------------------------------------------------------- */

/* Makes the rank's device the thread's; false when the context has failed: the operation does nothing. */
bool cuda_begin(struct kctx *c);
/* Marks the context when rc is an error: "cuda:0 (…): WHAT failed: …". Returns rc == cudaSuccess. */
bool cuda_check(struct cuda_context *c, cudaError_t rc, const char *what);
bool cuda_check_blas(struct cuda_context *c, cublasStatus_t rc, const char *what);
/* The same for the launches before it. */
static inline bool cuda_launched(struct cuda_context *c, const char *what) {
    return cuda_check(c, cudaGetLastError(), what);
}
/* At least bytes of device memory, 256-byte aligned, for one operation: the next one that asks gets the
 * same. It is not cleared. Where mem_reserve was not told of as much (sizes.h), it grows by a
 * synchronisation, and moves: what was recorded with the old address must not run again. 0 after kctx_fail. */
dev_addr cuda_scratch(struct cuda_context *c, size_t bytes);
/* Makes all scratch memory, cuBLAS's workspace with it, as large as a plan reckons. */
int cuda_scratch_reserve(struct cuda_context *c, size_t bytes, struct error *e);
/* Gives cuBLAS its workspace, before the first product; false after kctx_fail. */
bool cuda_blas_ready(struct cuda_context *c);
/* Marks the context with ERR_INTERNAL: a call that no caller should make. */
void cuda_refuse(struct cuda_context *c, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Recorded steps know addresses: called before any is given back. */
void cuda_graphs_forget(struct cuda_context *c);

/* --- products for other operations ----------------------------------------------------------------- */

/* out[T, rows] = x[T, cols] w[rows, cols]^T + beta * out by cuBLAS; x and w of one type (f32, f16, bf16),
 * out f32. ldo, ldw: elements from one row of out and of w to the next. */
void cuda_product(struct cuda_context *c, dev_addr out, int32_t ldo, dev_addr x, dev_addr w, int32_t ldw,
                  enum dtype type, int32_t T, int32_t rows, int32_t cols, float beta);
/* out[n] = x[n] as f16 (what is too large becomes its largest) or bf16. */
void cuda_narrow(struct cuda_context *c, dev_addr out, enum dtype type, dev_addr x, size_t n);
/* out = rows row … row+n-1 of w as bf16 [n, cols] (f32 when as_f32): a tile of a quantised matrix for a
 * product, or a matrix of any other type. */
void cuda_dequantise(struct cuda_context *c, dev_addr out, bool as_f32, const struct weight *w,
                     int32_t row, int32_t n);

/* --- operations: as in kernels.h -------------------------------------------------------------------- */

void cuda_memory_open(struct cuda_context *c, size_t limit);
void cuda_memory_close(struct cuda_context *c);
int cuda_bus_open(struct cuda_context *c, struct error *e);
void cuda_bus_close(struct cuda_context *c);
int cuda_mem_alloc(struct kctx *c, enum mem_kind kind, size_t bytes, dev_addr *out, struct error *e);
void cuda_mem_free(struct kctx *c, dev_addr addr);
int cuda_mem_reserve(struct kctx *c, const struct mem_use *planned, struct error *e);
void cuda_mem_use(struct kctx *c, struct mem_use *use);
/* A piece of the arena that is not cleared; cuda_mem_free gives it back. */
int cuda_piece_take(struct cuda_context *c, enum mem_kind kind, size_t bytes, dev_addr *out,
                    struct error *e);
int cuda_mem_export(struct kctx *c, dev_addr addr, const struct mem_share *share,
                    struct mem_handle *out, struct error *e);
void cuda_upload(struct kctx *c, dev_addr to, const void *from, size_t bytes);
void cuda_download(struct kctx *c, void *to, dev_addr from, size_t bytes);
int cuda_wait(struct kctx *c, struct error *e);

int cuda_weight_new(struct kctx *c, enum dtype type, int32_t rows, int32_t cols, struct weight *out,
                    struct error *e);
void cuda_weight_put(struct kctx *c, const struct weight *w, int32_t row, int32_t n, const void *from,
                     size_t stride);
void cuda_weight_free(struct kctx *c, struct weight *w);
void cuda_weight_layout(const struct weight *w, struct weight_layout *out);

void cuda_embed(struct kctx *c, dev_addr out, const struct weight *table, dev_addr ids, int32_t T,
                int32_t first_row, float scale);
void cuda_rmsnorm(struct kctx *c, dev_addr out, dev_addr x, dev_addr g, int32_t T, int32_t d,
                  float eps);
void cuda_add_rmsnorm(struct kctx *c, dev_addr out, dev_addr x, dev_addr y, float scale, dev_addr g,
                      int32_t T, int32_t d, float eps);
void cuda_linear(struct kctx *c, const struct linear_job *jobs, int n_jobs, dev_addr x, int32_t T);
void cuda_head_norm(struct kctx *c, dev_addr x, dev_addr g, int32_t T, int32_t heads, int32_t e,
                    float eps);
void cuda_rope_table(struct kctx *c, dev_addr cos_sin, const struct rope_freqs *f, dev_addr pos,
                     dev_addr len, int32_t T);
void cuda_rope_kv(struct kctx *c, dev_addr q, int32_t H, dev_addr k, dev_addr v, dev_addr cos_sin,
                  const struct kv_view *kv, const struct step_rows *rows);
void cuda_attention(struct kctx *c, dev_addr out, int32_t out_stride, dev_addr q, int32_t H,
                    const int32_t *kv_of_head, const struct kv_view *kv, const struct step_rows *rows,
                    float scale, int32_t window);
void cuda_silu_mul(struct kctx *c, dev_addr out, dev_addr gate, dev_addr up, int32_t T, int32_t F);
void cuda_gather_rows(struct kctx *c, dev_addr out, dev_addr x, dev_addr index, int32_t n, int32_t d);
void cuda_scale(struct kctx *c, dev_addr x, size_t n, float s);
void cuda_candidates(struct kctx *c, dev_addr out, dev_addr work, dev_addr logits, dev_addr wishes,
                     int32_t T, int32_t V, int32_t first_row);
void cuda_copy(struct kctx *c, dev_addr to, dev_addr from, size_t bytes);

enum replay cuda_replay_state(struct kctx *c, uint64_t key);
void cuda_replay_begin(struct kctx *c, uint64_t key);
void cuda_replay_end(struct kctx *c);
void cuda_replay_run(struct kctx *c, uint64_t key);

/* Fills in the operations of training (train_table.cu). */
void cuda_train_table(struct kernels *k);

#endif
