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
 * of cores. They may differ between devices and between instruction sets. Shapes are in elements.
 * Notation: T rows of the step, d hidden size, H query heads and K KV heads of this rank, e head size,
 * F FFN columns of this rank, V vocabulary rows of this rank.
 *
 * Errors: only memory and wait return them. A failing operation marks the context (kctx_fail) and
 * later operations do nothing until the error is taken by wait.
 */
#ifndef TPD_KERNELS_KERNELS_H
#define TPD_KERNELS_KERNELS_H

#include "base/dtype.h"
#include "base/error.h"
#include "base/thread.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef uint64_t dev_addr; /* 0 is no memory */

/* What memory is for: the plan and `model.info` report by it. */
enum mem_kind {
    MEM_WEIGHTS, /* what is served, adapters included */
    MEM_KV,
    MEM_ACTIVATIONS,
    MEM_PARAMETERS, /* what is trained: fp32 masters, or an adapter's A and B */
    MEM_GRADIENTS,
    MEM_OPTIMIZER, /* AdamW's moments */
    MEM_BUFFERS,   /* the integers of a step */
    MEM_SCRATCH,   /* what operations work in beside their operands; the backend's own */
    MEM_KIND_COUNT
};
/* "weights", "kv", … */
const char *mem_kind_name(enum mem_kind kind);

struct mem_use {
    size_t bytes[MEM_KIND_COUNT]; /* in use now */
    size_t total;                 /* what the device has; 0 = unknown */
    size_t free;                  /* what it has left */
};
/* In use for whatever purpose. */
size_t mem_used(const struct mem_use *use);

/* On what of a device the size of its matrices and of its scratch memory depends: what a plan must know of it,
 * to count what it will take. */
enum device_kind { DEVICE_CPU, DEVICE_CUDA };
struct device_figures {
    enum device_kind kind;
    bool bf16;      /* bf16_products does something */
    int cores;      /* CPU: of the rank's team */
    int int8_rows;  /* CPU: a group of rows in int8 */
    int bf16_rows;  /* and in bf16; 0: no such products */
    int n_sms;      /* CUDA: multiprocessors */
    bool same_bits; /* CUDA: as struct cuda_options */
    size_t converted_tile; /* CUDA: elements of a matrix that training converts at a time */
    size_t blas_bytes;     /* CUDA: cuBLAS's workspace */
    size_t scratch_grain;  /* CUDA: scratch memory grows by */
};

/* How another process may open an allocation (mem_export). */
struct mem_share {
    const char *name; /* of shared memory on the CPU, as shm_open takes it; shorter than MEM_NAME_MAX */
    unsigned mode;    /* its permissions */
    uint32_t gid;     /* its group */
};
enum mem_handle_kind {
    MEM_HANDLE_SHM, /* name is for shm_open, for reading */
    MEM_HANDLE_CUDA /* ipc is a cudaIpcMemHandle_t, device the number of its device in this process */
};
enum { MEM_NAME_MAX = 96, MEM_IPC_BYTES = 64 };
struct mem_handle {
    enum mem_handle_kind kind;
    char name[MEM_NAME_MAX];
    uint8_t ipc[MEM_IPC_BYTES];
    int device;
    size_t offset, bytes; /* the allocation in what the handle opens */
};

/* How a matrix stands in memory, for those who map it: up to five arrays with four axes. Element
 * (panel, block, lane, word) of an array begins at offset + the sum of index * stride, in bytes, from the
 * matrix's data. Row r is lane r % lanes of panel r / lanes; column c is in block c / columns. Rows and
 * columns behind the matrix's own hold zeros.
 *   values      the elements themselves, one or two words a block
 *   scale, minimum   one of a block
 *   sub_scales  the block's packed sub-scales, as the file has them
 *   codes       `bits` bits of each code; they belong at bit `shift` of the code as base/dequant.h has it.
 *               There may be two such arrays. Code i of a word stands at bit i * bits; by_bytes: in byte
 *               i % 4, at bit i / 4 * bits of it. */
enum { ARRAY_AXES = 4, LAYOUT_ARRAYS = 5 };
struct weight_array {
    const char *name;
    const char *type; /* "f32", "f16", "bf16", "u8", "u32" */
    int bits, shift;  /* of codes; else 0 */
    size_t offset;
    size_t shape[ARRAY_AXES], stride[ARRAY_AXES];
};
struct weight_layout {
    int32_t lanes, columns;
    bool by_bytes;
    int n_arrays;
    struct weight_array arrays[LAYOUT_ARRAYS];
};

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
 * of a sequence is in its block p / block_size, at p % block_size. type: f32, f16, bf16,
 * or Q8_0 (e a multiple of 32: a vector is whole blocks). */
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

/* One optimizer step of AdamW; c1 and c2 are its bias corrections. */
struct adamw_params {
    float lr, beta1, beta2, eps, weight_decay, c1, c2;
};

/* What is asked of a row of logits: the two sums below, 0 saving the work, and which logits are the best ones: the
 * highest, or, where cold is not 0, those who arrive first in the race of these bits (serve/logits.h), with
 * e^(l * cold) as rates. It lies like this in device memory, too. */
struct candidates_wish {
    float factor[2];
    float cold;
    uint32_t bits[2]; /* the low word first */
};
enum { CANDIDATES_WISH_WORDS = 5 };

/* The best of a row of logits (or of a rank's part of it), and what the rest amounts to: for choosing a token
 * without all of them. It lies like this in device memory, too. */
enum { CANDIDATES = 128, CANDIDATES_BYTES = 8 * CANDIDATES + 32, CANDIDATES_SLICE = 4096 };
struct candidates {
    double sum[2];          /* of e^((l - max) * factor), over all logits; what is in it where factor is 0 is not said */
    float max;              /* -INFINITY where there are none */
    int32_t n;              /* how many: CANDIDATES, or all there are */
    int32_t strange;        /* not 0: some logit is not finite, and nothing else here means anything */
    int32_t of;             /* of how many logits */
    int32_t id[CANDIDATES]; /* the best first, of equals the lowest id; of a race in about that order */
    float logit[CANDIDATES];
};

/* How many of them the operation needs a row as room to work in: a slice of the logits gives one, and as many as
 * fit into a slice become one, until there is one. */
static inline size_t candidates_work(int32_t n) {
    const size_t slice = CANDIDATES_SLICE, fan_in = CANDIDATES_SLICE / CANDIDATES;
    size_t all = 0;
    for (size_t lists = ((size_t)n + slice - 1) / slice; lists > 1; lists = (lists + fan_in - 1) / fan_in)
        all += lists;
    return all;
}

/* The candidates of a row from those of parts of it (at most 64) that do not overlap. */
void candidates_join(struct candidates *out, const struct candidates *parts, int n, const struct candidates_wish *wish);

/* In a race of bits the id with e^x as rate arrives the earlier, the higher this is (the Gumbel-max trick): infinite
 * for what is there at once. Devices reckon it of l * cold, in fp32. */
double race_key(const uint32_t bits[2], int32_t id, double x);

/* What can be done of a step that came before: run its operations as they are, record them for the next
 * time, or run what was recorded. */
enum replay { REPLAY_PLAIN, REPLAY_RECORD, REPLAY_RUN };

struct kctx;

struct kernels {
    const char *name; /* "cpu", "cuda", "plan" */
    bool counts_only; /* host memory given to upload and weight_put is not read: it may be NULL (but
                         for MEM_BUFFERS) */

    /* --- memory ------------------------------------------------------------------------------ */
    /* 256-byte aligned, zeroed. ERR_MEMORY with needed and free. Lives until close or mem_free. */
    int (*mem_alloc)(struct kctx *c, enum mem_kind kind, size_t bytes, dev_addr *out,
                     struct error *e);
    void (*mem_free)(struct kctx *c, dev_addr addr);
    /* Takes from the device at once what a plan says will be allocated, by kind; what is needed beyond that
     * is taken as it comes. Scratch memory is as large from then on. NULL where each allocation is the
     * system's own and nothing is gained. ERR_MEMORY with needed and free, and then nothing was taken. */
    int (*mem_reserve)(struct kctx *c, const struct mem_use *planned, struct error *e);
    void (*mem_use)(struct kctx *c, struct mem_use *use);
    void (*figures)(const struct kctx *c, struct device_figures *out);
    /* Lets other processes map what is at addr (as mem_alloc gave it), without a copy that stays; asked
     * again, says the same. It ends with mem_free: who has mapped it by then keeps the pages. Between
     * operations only: what is there may move to other pages, though not to another address. */
    int (*mem_export)(struct kctx *c, dev_addr addr, const struct mem_share *share,
                      struct mem_handle *out, struct error *e);
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
    void (*weight_layout)(const struct weight *w, struct weight_layout *out);

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
    /* From here on linear rounds its input to what the device multiplies faster with a weight: int8
     * where it is quantised (each 32 columns with a scale of their own), bf16 where it is bf16; each row
     * by itself, so that a row's bits still depend on the row alone. Likewise attention on a cache that is
     * not f32 rounds q, k, v and the softmax's weights to bf16 where that is faster. Off at first; serving
     * turns it on for its step, training never sees it. NULL where the device has no such products. */
    void (*narrow_activations)(struct kctx *c, bool on);
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
    /* out[T] struct candidates of logits [T, V], whose first column is the id first_row. wishes [T] struct
     * candidates_wish. work: room for T * candidates_work(V) more of out. NULL where logits lie in the host's
     * memory anyway. */
    void (*candidates)(struct kctx *c, dev_addr out, dev_addr work, dev_addr logits, dev_addr wishes,
                       int32_t T, int32_t V, int32_t first_row);

    /* --- steps that come again (all four, or NULL where nothing is gained by it) --------------- */
    /* A step of one key has the same operations with the same arguments each time: only what memory holds
     * differs. The key is an address inside memory that the step uses, at most 4096 behind its beginning.
     * The most that can be done with the next step of this key. */
    enum replay (*replay_state)(struct kctx *c, uint64_t key);
    /* Around the operations, which are recorded and not run; what becomes of it, replay_state says then.
     * Between the two nothing is uploaded, downloaded, allocated, freed or waited for. */
    void (*replay_begin)(struct kctx *c, uint64_t key);
    void (*replay_end)(struct kctx *c);
    /* Enqueues all that was recorded for this key. */
    void (*replay_run)(struct kctx *c, uint64_t key);

    /* --- training ---------------------------------------------------------------------------- */
    /* Gradients are named d…; "+=" adds to what is there. All fp32. A training step holds whole
     * packed sequences: first[t] is the row where the sequence of row t begins, so that row t sees
     * rows first[t] … t and nothing of its neighbours. */

    /* out[M, N] = alpha * op(a) op(b) + beta * out; op(a) is [M, K]: a is [M, K], or [K, M] when ta;
     * b is [K, N], or [N, K] when tb. Dense rows. beta = 0 overwrites whatever out held. */
    void (*matmul)(struct kctx *c, dev_addr out, int32_t M, int32_t N, int32_t K, dev_addr a,
                   bool ta, dev_addr b, bool tb, float alpha, float beta);
    /* The backward of linear with respect to its input: dx[T, cols] = (accumulate: +=) the sum over
     * jobs of y_j w_j, where y_j [T, w_j->rows] holds the gradient of the job's output. Biases are
     * not looked at. Quantised weights are dequantised tile by tile. */
    void (*linear_dx)(struct kctx *c, const struct linear_job *jobs, int n_jobs, dev_addr dx,
                      int32_t T, bool accumulate);
    /* out[n] += sum over rows of x[T, n]: the gradient of a bias. */
    void (*col_sum)(struct kctx *c, dev_addr out, dev_addr x, int32_t T, int32_t n);
    /* With r = 1 / sqrt(mean(x^2) + eps), x^ = x r: dx += r (g dy - x^ mean(g dy x^)) and, when dg is
     * not 0, dg[d] += sum over rows of dy x^. T rows of d; heads of a head_norm are rows of e. */
    void (*rmsnorm_dx)(struct kctx *c, dev_addr dx, dev_addr dg, dev_addr dy, dev_addr x,
                       dev_addr g, int32_t T, int32_t d, float eps);
    /* Rotates x [T, heads, e] in place by cos_sin (rope_table), or back when inverse. */
    void (*rope_rows)(struct kctx *c, dev_addr x, int32_t heads, dev_addr cos_sin, int32_t T,
                      int32_t e, bool inverse);
    /* Causal attention inside each packed sequence, without a cache: out as in attention (row
     * stride out_stride), lse[T, H] = log of the sum of exp of the scaled scores (what backward
     * needs). k, v [T, K, e]. first: [T] i32 in device memory. Tiled, never T x T. */
    void (*attention_rows)(struct kctx *c, dev_addr out, int32_t out_stride, dev_addr lse,
                           dev_addr q, int32_t H, dev_addr k, dev_addr v, int32_t K,
                           const int32_t *kv_of_head, int32_t e, dev_addr first, int32_t T,
                           float scale, int32_t window);
    /* Its backward: D = sum(dout out), p = exp(scale q k - lse), dv = p dout, ds = p (dout v - D)
     * scale, dq = ds k, dk = ds q. Rows of dout and of out are out_stride apart. dq [T, H, e], dk and
     * dv [T, K, e] are overwritten. */
    void (*attention_rows_dx)(struct kctx *c, dev_addr dq, dev_addr dk, dev_addr dv, dev_addr dout,
                              dev_addr out, int32_t out_stride, dev_addr lse, dev_addr q, int32_t H,
                              dev_addr k, dev_addr v, int32_t K, const int32_t *kv_of_head,
                              int32_t e, dev_addr first, int32_t T, float scale, int32_t window);
    /* dgate = dout up s(gate)(1 + gate (1 - s(gate))), dup = dout silu(gate), s the logistic
     * function. dgate may be gate, dup may be up, dout may be either. */
    void (*silu_mul_dx)(struct kctx *c, dev_addr dgate, dev_addr dup, dev_addr dout, dev_addr gate,
                        dev_addr up, int32_t T, int32_t F);
    /* Vocabulary-parallel cross entropy, in two passes with one all-gather between them.
     * stats[T, 3] of this shard's logits [T, V]: max, sum of exp(l - max), and the logit of
     * labels[t] (or 0 when another shard has it; labels[t] < 0: none does). V = 0 gives -inf, 0, 0. */
    void (*ce_stats)(struct kctx *c, dev_addr stats, dev_addr logits, dev_addr labels, int32_t T,
                     int32_t V, int32_t first_row);
    /* stats[T, n, 3] of all n shards. loss[t] = -log softmax(label), 0 where labels[t] < 0; logits
     * become their gradient: (softmax - onehot) * weight[t] (0 where labels[t] < 0). */
    void (*ce_grad)(struct kctx *c, dev_addr loss, dev_addr logits, dev_addr stats, int32_t n,
                    dev_addr labels, dev_addr weight, int32_t T, int32_t V, int32_t first_row);
    /* out[T, d] = scale * table[ids[t] - first_row], or zeros where this shard lacks the row: embed on
     * a plain fp32 table [V, d]. */
    void (*embed_rows)(struct kctx *c, dev_addr out, dev_addr table, dev_addr ids, int32_t T,
                       int32_t d, int32_t V, int32_t first_row, float scale);
    /* grad[V, d] += scale * dx[t] at row ids[t] - first_row, where this shard has it. In a fixed
     * order whatever the team, so that bits repeat. */
    void (*embed_grad)(struct kctx *c, dev_addr grad, dev_addr dx, dev_addr ids, int32_t T,
                       int32_t d, int32_t V, int32_t first_row, float scale);
    /* From here on linear, matmul and linear_dx round their operands to bf16 where the device multiplies
     * that faster; sums stay fp32. Off at first; whoever turns it on turns it off again before others use
     * the context, so that serving never sees it. */
    void (*bf16_products)(struct kctx *c, bool on);
    /* to[n] bf16 = from[n], to the nearest, ties to even; and back. */
    void (*narrow)(struct kctx *c, dev_addr to, dev_addr from, size_t n);
    void (*widen)(struct kctx *c, dev_addr to, dev_addr from, size_t n);
    /* to = from, within the device. */
    void (*copy)(struct kctx *c, dev_addr to, dev_addr from, size_t bytes);
    /* y[n] += a * x[n] */
    void (*axpy)(struct kctx *c, dev_addr y, dev_addr x, size_t n, float a);
    /* out[n] = x[n] * (keep ? 1 / (1 - p) : 0), where keep is drawn from a counter-based generator
     * by (seed, first + index): the same for every rank and team that asks for the same range.
     * Element i of row t has index t * row_stride + col + i, rows of `cols` elements. */
    void (*dropout)(struct kctx *c, dev_addr out, dev_addr x, int32_t T, int32_t cols,
                    int32_t row_stride, int32_t col, float p, uint64_t seed, uint64_t first);
    /* *out (one f32 in device memory) += sum of x[i]^2, summed in double and in one order. */
    void (*sum_squares)(struct kctx *c, dev_addr out, dev_addr x, size_t n);
    /* AdamW (decoupled, bias-corrected) on n elements: g is multiplied by grad_scale first;
     * m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2;
     * p -= lr (m / c1 / (sqrt(v / c2) + eps) + wd p), c1 = 1 - b1^step, c2 = 1 - b2^step. */
    void (*adamw)(struct kctx *c, dev_addr p, dev_addr g, dev_addr m, dev_addr v, size_t n,
                  const struct adamw_params *params, float grad_scale);

    void (*close)(struct kctx *c);
};

/* The part of a context that all backends share; a backend's own struct begins with it. */
struct kctx {
    const struct kernels *ops;
    int rank;
    struct error error; /* kind != ERR_NONE: failed */
    bool lost;          /* the device answers every call with an error, until the process ends */
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
/* "amx", "avx512bf16", "avx512", "avxvnni", "avx2", "portable": what run-time dispatch chose. The environment
 * variable TPD_CPU_CAP (one of these) lowers it. */
const char *kernels_cpu_level(void);
/* Whether that multiplies bf16 (see bf16_products). */
bool kernels_cpu_bf16(void);
/* The host pointer behind a CPU context's address: for ipc/ and for tests, never for model code. */
void *kernels_cpu_pointer(const struct kctx *c, dev_addr addr);
struct team *kernels_cpu_team(const struct kctx *c);

struct cuda_options {
    int device;           /* as CUDA numbers them; several ranks may share one */
    size_t memory_limit;  /* bytes this rank may hold; 0 = what the device has free */
    bool same_bits;       /* every product by kernels of our own: a row's bits never depend on T. Without
                           * it products of many rows go to cuBLAS, and a row in such a company has other
                           * last bits than alone (kernels/cuda/linear.cu says from how many on). */
};
/* Called on the rank's own thread. ERR_DEVICE, with what to do, when tpd-cuda.so or a driver is not
 * there. */
int kernels_cuda_open(struct kctx **out, int rank, const struct cuda_options *options,
                      struct error *e);

/* Bytes that the CPU backend takes for a matrix: rows are filled up to whole panels. */
size_t kernels_cpu_weight_bytes(enum dtype type, int32_t rows, int32_t cols);
/* Figures of this machine's CPU with so many cores a rank, and of a card with as many multiprocessors as an
 * H100, for plans without a context. */
void kernels_cpu_figures(struct device_figures *out, int cores);
void kernels_cuda_figures(struct device_figures *out);

/* What the operations of a plan context would have cost. */
struct plan_counts {
    struct mem_use use, peak; /* now, and when the most was in use */
    uint64_t bytes_read, bytes_written, flops, ops;
};
/* device: for which memory is counted; NULL: this machine's CPU, one core a rank. */
int kernels_plan_open(struct kctx **out, int rank, size_t memory_limit,
                      const struct device_figures *device, struct error *e);
const struct plan_counts *kernels_plan_counts(const struct kctx *c);
void kernels_plan_reset(struct kctx *c); /* zeroes all but memory */

#ifdef __cplusplus
}
#endif

#endif
