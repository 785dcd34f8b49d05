/* kernels/kernels.h: the list of operations that a device can do.
 *
 * model/, serve/ and train/ are written once on this table. Each rank has one context (`struct
 * kctx`): a device, its memory, its stream. An operation may only enqueue; nothing it writes can be
 * seen by the host before `download` and `wait`. Operations of one context run in the order of the
 * calls. Only the rank's own thread calls them.
 *
 * Three ways to do them: cpu/ runs at once on the calling rank and its team; cuda/ enqueues on the
 * rank's stream; plan/ touches no memory and counts bytes and FLOPs.
 *
 * Device memory is an address, not a pointer (`dev_addr`): host code cannot follow it. In debug mode
 * the CPU backend hands out addresses in an unreadable alias, so that a cast faults at once.
 *
 * Activations are fp32, row-major, dense: [rows, cols]. Sums are accumulated in fp32, each row by
 * itself and in one order: a row's bits depend neither on the rows beside it (T) nor on the number
 * of cores. They may differ between devices and between instruction sets. Shapes are in elements. Notation: T rows of the step, d hidden size, H query
 * heads and K KV heads of this rank, e head size, F FFN columns of this rank, V vocabulary rows of
 * this rank.
 *
 * Errors: only memory and wait return them. A failing operation marks the context (kctx_fail) and
 * later operations do nothing until the error is taken by wait.
 */
#ifndef TPD_KERNELS_KERNELS_H
#define TPD_KERNELS_KERNELS_H

#include "base/dtype.h"
#include "base/error.h"
#include "base/thread.h"

typedef uint64_t dev_addr; /* 0 is no memory */

/* What memory is for: the plan and `status` report by it. */
enum mem_kind { MEM_WEIGHTS, MEM_KV, MEM_ACTIVATIONS, MEM_BUFFERS, MEM_KIND_COUNT };

struct mem_use {
    size_t bytes[MEM_KIND_COUNT]; /* in use now */
    size_t total;                 /* what the device has; 0 = unknown */
    size_t free;                  /* what it has left */
};
/* In use for whatever purpose. */
size_t mem_used(const struct mem_use *use);

/* A weight matrix [rows, cols], out × in as the files store it. The backend chooses the layout of
 * data when weight_new is called; only it reads data. */
struct weight {
    enum dtype type;
    int32_t rows, cols;
    dev_addr data;
    size_t bytes;
    int32_t layout; /* private to the backend */
};

/* y[T, w->rows] = x w^T (+ bias). Jobs of one call share x. */
struct linear_job {
    const struct weight *w;
    dev_addr bias; /* [w->rows] f32, or 0 */
    dev_addr y;    /* [T, w->rows] f32 */
};

/* The keys and values of one layer on this rank. Both are [n_blocks, K, block_size, e]; position p
 * of a sequence is in its block p / block_size, at p % block_size. type: f32, f16 or bf16. */
struct kv_view {
    enum dtype type;
    int32_t n_blocks, block_size, n_heads, head_dim;
    dev_addr k, v;
};

/* Which sequence and position each row of a step has. Rows of a sequence stand together and
 * ascend by position. All arrays are in device memory. */
struct step_rows {
    int32_t n_rows, n_seqs, max_blocks;
    dev_addr pos;    /* [n_rows] i32 */
    dev_addr seq;    /* [n_rows] i32: 0 … n_seqs-1, ascending */
    dev_addr blocks; /* [n_seqs, max_blocks] i32: the sequence's block table */
};

/* Rotary frequencies. angle(p, i) = p * inv_freq[i]; cos and sin are multiplied by scale (yarn's
 * attention factor). With ntk_factor > 0 ("dynamic"): a row whose length n = len[row] exceeds
 * original_len uses base' = base * (ntk_factor * n / original_len - (ntk_factor - 1)) ^ (e/(e-2)). */
struct rope_freqs {
    int32_t head_dim;  /* e, even */
    float scale;
    float base;
    float ntk_factor;  /* 0 = off */
    int32_t original_len;
    dev_addr inv_freq; /* [e/2] f32 */
};

struct kctx;

struct kernels {
    const char *name; /* "cpu", "cuda", "plan" */

    /* --- memory ------------------------------------------------------------------------------ */
    /* 256-byte aligned, zeroed. ERR_MEMORY with needed and free. Lives until close or mem_free. */
    int (*mem_alloc)(struct kctx *c, enum mem_kind kind, size_t bytes, dev_addr *out,
                     struct error *e);
    void (*mem_free)(struct kctx *c, dev_addr addr);
    void (*mem_use)(struct kctx *c, struct mem_use *use);
    /* The host memory may be reused when upload returns; it is filled by the next wait after
     * download. */
    void (*upload)(struct kctx *c, dev_addr to, const void *from, size_t bytes);
    void (*download)(struct kctx *c, void *to, dev_addr from, size_t bytes);
    /* Blocks until all that was enqueued is done; returns and clears the context's error. */
    int (*wait)(struct kctx *c, struct error *e);

    /* --- weights ----------------------------------------------------------------------------- */
    /* Reserves a matrix. cols must be a multiple of the type's block. */
    int (*weight_new)(struct kctx *c, enum dtype type, int32_t rows, int32_t cols,
                      struct weight *out, struct error *e);
    /* Fills rows row … row+n-1 from host memory in file layout; row i begins at
     * from + i * stride bytes and has dtype_row_bytes(type, cols) bytes. */
    void (*weight_put)(struct kctx *c, const struct weight *w, int32_t row, int32_t n,
                       const void *from, size_t stride);
    void (*weight_free)(struct kctx *c, struct weight *w);

    /* --- forward ----------------------------------------------------------------------------- */
    /* out[T, d] = scale * table[ids[t] - first_row], or zeros where this shard lacks the row. */
    void (*embed)(struct kctx *c, dev_addr out, const struct weight *table, dev_addr ids,
                  int32_t T, int32_t first_row, float scale);
    /* out[T, d] = x * g / sqrt(mean(x^2) + eps). */
    void (*rmsnorm)(struct kctx *c, dev_addr out, dev_addr x, dev_addr g, int32_t T, int32_t d,
                    float eps);
    /* x += scale * y, then out = rmsnorm(x): the residual and the next norm in one pass. */
    void (*add_rmsnorm)(struct kctx *c, dev_addr out, dev_addr x, dev_addr y, float scale,
                        dev_addr g, int32_t T, int32_t d, float eps);
    /* All jobs read x [T, cols]; each job's w has the same cols. */
    void (*linear)(struct kctx *c, const struct linear_job *jobs, int n_jobs, dev_addr x,
                   int32_t T);
    /* rmsnorm of each head of x [T, heads, e] with g [e], in place (qwen3). */
    void (*head_norm)(struct kctx *c, dev_addr x, dev_addr g, int32_t T, int32_t heads, int32_t e,
                      float eps);
    /* cos_sin[T, e]: e/2 cosines, then e/2 sines, for pos[t]; len[t] is the length that dynamic
     * scaling looks at. Once a step. */
    void (*rope_table)(struct kctx *c, dev_addr cos_sin, const struct rope_freqs *f, dev_addr pos,
                       dev_addr len, int32_t T);
    /* Rotates q [T, H, e] in place, k [T, K, e] likewise and into the cache, v [T, K, e] into the
     * cache. Half-split pairs (i, i + e/2). */
    void (*rope_kv)(struct kctx *c, dev_addr q, int32_t H, dev_addr k, dev_addr v, dev_addr cos_sin,
                    const struct kv_view *kv, const struct step_rows *rows);
    /* out[T, H, e] = softmax(scale * q k^T) v over the row's own sequence, positions <= its own and
     * (window > 0) > its own - window. Row t of out begins at out + 4 * t * out_stride (out_stride >=
     * H * e floats: what lies between is not written). kv_of_head[h] (host memory, H entries) is the
     * local KV head that query head h reads. Online softmax; no T x T anywhere. */
    void (*attention)(struct kctx *c, dev_addr out, int32_t out_stride, dev_addr q, int32_t H,
                      const int32_t *kv_of_head, const struct kv_view *kv,
                      const struct step_rows *rows, float scale, int32_t window);
    /* out[T, F] = silu(gate) * up; out may be gate. */
    void (*silu_mul)(struct kctx *c, dev_addr out, dev_addr gate, dev_addr up, int32_t T,
                     int32_t F);
    /* out[n, d] = x[index[i], :]: the rows whose logits are wanted. */
    void (*gather_rows)(struct kctx *c, dev_addr out, dev_addr x, dev_addr index, int32_t n,
                        int32_t d);
    /* x[n] *= s; s = 0 clears x, whatever it held. */
    void (*scale)(struct kctx *c, dev_addr x, size_t n, float s);

    void (*close)(struct kctx *c);
};

/* The part of a context that all backends share; a backend's own struct begins with it. */
struct kctx {
    const struct kernels *ops;
    int rank;
    struct error error; /* kind != ERR_NONE: failed */
};

static inline bool kctx_failed(const struct kctx *c) { return c->error.kind != ERR_NONE; }
/* Keeps the first error. */
void kctx_fail(struct kctx *c, const struct error *e);

/* --- backends ---------------------------------------------------------------------------------- */

struct cpu_options {
    struct core_set cores; /* the rank's cores; the caller is pinned to the first */
    size_t memory_limit;   /* bytes this rank may hold; 0 = what the machine has */
    bool debug_alias;      /* hand out unreadable addresses (also by TPD_DEBUG_ALIAS=1) */
};
/* Called on the rank's own thread, which becomes member 0 of its team. */
int kernels_cpu_open(struct kctx **out, int rank, const struct cpu_options *options,
                     struct error *e);
/* "avx512", "avx2", "portable": what run-time dispatch chose. The environment variable
 * TPD_CPU_CAP (portable, avx2, avx512) lowers it. */
const char *kernels_cpu_level(void);
/* The host pointer behind a CPU context's address: for ipc/ and for tests, never for model code. */
void *kernels_cpu_pointer(const struct kctx *c, dev_addr addr);
struct team *kernels_cpu_team(const struct kctx *c);

/* What the operations of a plan context would have cost. */
struct plan_counts {
    struct mem_use use;
    size_t peak[MEM_KIND_COUNT];
    uint64_t bytes_read, bytes_written, flops, ops;
};
int kernels_plan_open(struct kctx **out, int rank, size_t memory_limit, struct error *e);
const struct plan_counts *kernels_plan_counts(const struct kctx *c);
void kernels_plan_reset(struct kctx *c); /* zeroes all but memory in use */

#endif
