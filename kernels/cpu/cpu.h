/* kernels/cpu/cpu.h: inside of the CPU backend.
 *
 * Files in reading order: context.c (open, dispatch), memory.c (device memory), pack.c (the layout
 * of weights), linear.c, attention.c and rows.c (operations: they cut the work for the team), and
 * the level_*.c files (the loops, one source compiled for each instruction set; see vec.h). Products of
 * rounded activations are in int8.h and bf16.h, and on tiles in amx.h. What training adds begins at
 * train.h.
 */
#ifndef TPD_KERNELS_CPU_CPU_H
#define TPD_KERNELS_CPU_CPU_H

#include "kernels/kernels.h"

/* Weights stand in panels of 16 rows (outputs): what 16 lanes need at one k is side by side, so no
 * sum crosses lanes. */
enum { LANES = 16 };

/* Sums over k run in chunks: y = (c0 + c1) + c2 …, each chunk one fused chain from 0 in ascending
 * k. Every path keeps to this order; it is why a row's bits do not depend on T or the team. */
enum { K_CHUNK = 256 };

struct cpu_train;

struct panels {
    enum dtype type;
    int32_t rows, cols;
    size_t panel_bytes;
    const uint8_t *data;
};

/* Rows of x as a product has rounded them (int8.h, bf16.h), in groups of group_rows, the last one what is left. A
 * group begins at words + its first row * the words of a row. */
struct narrow_rows {
    uint32_t *words;
    int32_t n_rows, group_rows, cols;
};
/* Rows and columns of x that are rounded at once: row … row_end-1, col … col_end-1. col is a multiple of 32, and
 * col_end too or all. */
struct narrow_part {
    int32_t row, row_end, col, col_end;
};

/* The first row of the group that a row is in; how many a group has that begins there. */
static inline int32_t group_first(const struct narrow_rows *x, int32_t row) {
    return row / x->group_rows * x->group_rows;
}
static inline int32_t group_size(const struct narrow_rows *x, int32_t first) {
    return x->n_rows - first < x->group_rows ? x->n_rows - first : x->group_rows;
}

struct attention_job {
    float *out;
    size_t out_stride;
    const float *q;
    int32_t H;
    const struct kv_view *kv;
    const void *k, *v;
    const int32_t *pos, *seq, *blocks;
    int32_t max_blocks, window;
    float scale;
};
/* What one member does in one go: a run of rows of one sequence, for a run of heads that read the
 * same KV head; n_rows * n_heads <= ATTENTION_QUERIES, or ATTENTION16_QUERIES in bf16. */
struct attention_unit {
    int32_t row, n_rows, head, n_heads, kv_head;
};
enum { ATTENTION_QUERIES = 48, ATTENTION16_QUERIES = 192, ATTENTION_TILE = 64 /* positions */ };

/* One instruction set's loops. All pointers are host pointers. */
struct cpu_level {
    const char *name;
    /* y[from*16 …] for panels from … to-1. */
    void (*matvec)(const struct panels *w, int32_t from, int32_t to, const float *x,
                   const float *bias, float *y);
    /* The same for T rows of x [T, cols], y [T, rows]. scratch: MATMUL_SCRATCH bytes. */
    void (*matmul)(const struct panels *w, int32_t from, int32_t to, const float *x, int32_t T,
                   const float *bias, float *y, void *scratch);
    /* out[k][16] for k_from … k_to-1 of one panel; k_from is a multiple of 32. */
    void (*dequant)(const struct panels *w, int32_t panel, int32_t k_from, int32_t k_to,
                    float *out);
    /* x += scale * y where y is not NULL; out = x * g / sqrt(mean(x^2) + eps). */
    void (*rmsnorm)(float *out, float *x, const float *y, float scale, const float *g, int32_t d,
                    float eps);
    void (*silu_mul)(float *out, const float *gate, const float *up, size_t n);
    void (*scale)(float *x, size_t n, float s);
    /* x[e] rotated; out may be x. */
    void (*rotate)(float *out, const float *x, const float *cos_sin, int32_t e);
    /* n floats to kv type. */
    void (*narrow)(enum dtype type, void *out, const float *x, int32_t n);
    /* scratch: attention_scratch(e) bytes. */
    void (*attention)(const struct attention_job *job, const struct attention_unit *unit,
                      void *scratch);
    const struct cpu_train *train; /* train.h */
};

extern const struct cpu_level cpu_level_portable, cpu_level_avx2, cpu_level_avx512;

enum { MATMUL_X_FLOATS = 96 * 1024, MATMUL_W_FLOATS = 2 * K_CHUNK * LANES };
enum { MATMUL_SCRATCH = (MATMUL_X_FLOATS + MATMUL_W_FLOATS) * 4 };

static inline int32_t round_up(int32_t n, int32_t to) { return (n + to - 1) / to * to; }

/* The larger of struct attention_room and of what bf16 takes (struct room, attention_bf16_avx512.c). */
static inline size_t attention_scratch(int32_t e) {
    size_t lane_e = (size_t)round_up(e, LANES), chunk_e = (size_t)round_up(e, K_CHUNK);
    size_t full_e = (size_t)round_up(e, 2 * LANES);
    size_t f32 = 2 * ATTENTION_TILE * lane_e + ATTENTION_QUERIES * (chunk_e + lane_e + K_CHUNK + 2);
    size_t bf16 = (ATTENTION_TILE + 1) * full_e + ATTENTION16_QUERIES * (full_e / 2 + full_e + LANES + 1) +
                  6 * (ATTENTION_TILE + ATTENTION_TILE / 2);
    return sizeof(float) * (f32 > bf16 ? f32 : bf16);
}

/* --- context ---------------------------------------------------------------------------------- */

struct region; /* one allocation */

/* Address space that weights are taken from: next … end is free, huge pages are asked for below huge. */
struct cpu_pool {
    uint8_t *next, *end, *huge;
};

struct cpu_memory {
    size_t limit, used[MEM_KIND_COUNT];
    struct region *regions;
    int n_regions, max_regions;
    struct cpu_pool pool;
    /* Debug mode: two reservations of the same size, alias for addresses, real for bytes. */
    uint8_t *alias, *real;
    size_t reserved, next;
};

struct cpu_int8; /* int8.h */
struct cpu_bf16; /* bf16.h */

struct cpu_ctx {
    struct kctx base;
    const struct cpu_level *level;
    const struct cpu_int8 *int8;
    const struct cpu_bf16 *bf16; /* NULL where the CPU does not multiply bf16 */
    bool bf16_products, narrow_activations; /* see kernels.h */
    struct team *team;
    uint64_t to_real; /* handed-out address + to_real = host address; 0 but in debug mode */
    struct cpu_memory memory;
    uint8_t *scratch; /* scratch_bytes for each member */
    size_t scratch_bytes;
    uint8_t *narrow; /* the rows of x that a linear has rounded, for all members */
    size_t narrow_bytes;
};

static inline struct cpu_ctx *cpu_of(struct kctx *c) { return (struct cpu_ctx *)c; }

/* The only way from an address to a pointer. */
static inline void *cpu_at(const struct cpu_ctx *c, dev_addr addr) {
    return (void *)(uintptr_t)(addr + c->to_real);
}

/* Runs fn on the team, or on the caller alone where the work (in elementary operations) is too
 * small to share. Each item is done whole by one member. */
void cpu_parallel(struct cpu_ctx *c, size_t work, team_fn *fn, void *arg);
/* At least bytes of scratch for each member, kept; NULL after kctx_fail. How much each operation asks for,
 * scratch.h says. */
uint8_t *cpu_scratch(struct cpu_ctx *c, size_t bytes);
/* At least bytes at c->narrow, kept; false after kctx_fail. */
bool cpu_narrow_room(struct cpu_ctx *c, size_t bytes);
static inline uint8_t *cpu_scratch_of(const struct cpu_ctx *c, int member) {
    return c->scratch + c->scratch_bytes * (size_t)member;
}

/* --- operations: as in kernels.h -------------------------------------------------------------- */

int cpu_memory_open(struct cpu_ctx *c, size_t limit, bool debug_alias, struct error *e);
void cpu_memory_close(struct cpu_ctx *c);
int cpu_mem_alloc(struct kctx *c, enum mem_kind kind, size_t bytes, dev_addr *out,
                  struct error *e);
void cpu_mem_free(struct kctx *c, dev_addr addr);
void cpu_mem_use(struct kctx *c, struct mem_use *use);
void cpu_figures(const struct kctx *c, struct device_figures *out);
/* Counts scratch memory that grows from `was` bytes; false when the rank may not hold as much. */
bool cpu_memory_scratch(struct cpu_ctx *c, size_t was, size_t bytes);
int cpu_mem_export(struct kctx *c, dev_addr addr, const struct mem_share *share,
                   struct mem_handle *out, struct error *e);

int cpu_weight_new(struct kctx *c, enum dtype type, int32_t rows, int32_t cols,
                   struct weight *out, struct error *e);
void cpu_weight_put(struct kctx *c, const struct weight *w, int32_t row, int32_t n,
                    const void *from, size_t stride);
void cpu_weight_free(struct kctx *c, struct weight *w);
void cpu_weight_layout(const struct weight *w, struct weight_layout *out);
struct panels cpu_panels(const struct cpu_ctx *c, const struct weight *w);
void cpu_narrow_activations(struct kctx *c, bool on);

void cpu_linear(struct kctx *c, const struct linear_job *jobs, int n_jobs, dev_addr x, int32_t T);
void cpu_attention(struct kctx *c, dev_addr out, int32_t out_stride, dev_addr q, int32_t H,
                   const int32_t *kv_of_head, const struct kv_view *kv,
                   const struct step_rows *rows, float scale, int32_t window);

void cpu_embed(struct kctx *c, dev_addr out, const struct weight *table, dev_addr ids, int32_t T,
               int32_t first_row, float scale);
void cpu_rmsnorm(struct kctx *c, dev_addr out, dev_addr x, dev_addr g, int32_t T, int32_t d,
                 float eps);
void cpu_add_rmsnorm(struct kctx *c, dev_addr out, dev_addr x, dev_addr y, float scale, dev_addr g,
                     int32_t T, int32_t d, float eps);
void cpu_head_norm(struct kctx *c, dev_addr x, dev_addr g, int32_t T, int32_t heads, int32_t e,
                   float eps);
void cpu_rope_table(struct kctx *c, dev_addr cos_sin, const struct rope_freqs *f, dev_addr pos,
                    dev_addr len, int32_t T);
void cpu_rope_kv(struct kctx *c, dev_addr q, int32_t H, dev_addr k, dev_addr v, dev_addr cos_sin,
                 const struct kv_view *kv, const struct step_rows *rows);
void cpu_silu_mul(struct kctx *c, dev_addr out, dev_addr gate, dev_addr up, int32_t T, int32_t F);
void cpu_gather_rows(struct kctx *c, dev_addr out, dev_addr x, dev_addr index, int32_t n,
                     int32_t d);
void cpu_scale(struct kctx *c, dev_addr x, size_t n, float s);

#endif
