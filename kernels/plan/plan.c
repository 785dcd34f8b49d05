/* kernels/plan: the operations as bookkeeping. Nothing is computed and no device memory is touched;
 * memory in use, bytes moved and FLOPs are counted, so that running the real model code on it
 * answers "will it fit, how fast". It checks what the other backends take on trust: every address
 * that an operation is given must lie, with its whole extent, in one live allocation. */
#include "kernels/plan/plan.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct allocation {
    dev_addr at;
    size_t bytes;
    enum mem_kind kind;
    int32_t *ints; /* MEM_BUFFERS: what was uploaded, so that attention knows its rows' positions */
};

struct plan_ctx {
    struct kctx base;
    struct plan_counts counts;
    size_t limit;
    struct allocation *live; /* ascending by address */
    size_t n_live, capacity;
    dev_addr next;
    struct plan_scratch scratch;
};

static struct plan_ctx *plan_of(struct kctx *c) {
    return (struct plan_ctx *)c;
}

/* The allocation that holds [at, at + bytes), or NULL. */
static struct allocation *find(struct plan_ctx *p, dev_addr at, size_t bytes) {
    size_t low = 0, high = p->n_live;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (p->live[mid].at <= at) low = mid + 1;
        else high = mid;
    }
    if (low == 0) return NULL;
    struct allocation *a = &p->live[low - 1];
    return at - a->at <= a->bytes && bytes <= a->bytes - (at - a->at) ? a : NULL;
}

/* Counts an operand; a stray one marks the context. */
static void touch(struct kctx *c, dev_addr at, size_t bytes, uint64_t *counter, const char *op) {
    if (bytes == 0) return;
    if (!find(plan_of(c), at, bytes)) {
        struct error e;
        error_set(&e, ERR_INTERNAL, "%s: %zu bytes at address %#llx are in no live allocation", op,
                  bytes, (unsigned long long)at);
        kctx_fail(c, &e);
    }
    *counter += bytes;
}

void plan_reads(struct kctx *c, dev_addr at, size_t bytes, const char *op) {
    touch(c, at, bytes, &plan_of(c)->counts.bytes_read, op);
}

void plan_writes(struct kctx *c, dev_addr at, size_t bytes, const char *op) {
    touch(c, at, bytes, &plan_of(c)->counts.bytes_written, op);
}

void plan_work(struct kctx *c, uint64_t flops) {
    plan_of(c)->counts.flops += flops;
    plan_of(c)->counts.ops++;
}

struct plan_scratch *plan_scratch_of(struct kctx *c) { return &plan_of(c)->scratch; }

static void note_peak(struct plan_counts *counts) {
    if (mem_used(&counts->use) > mem_used(&counts->peak)) counts->peak = counts->use;
}

void plan_scratch_set(struct kctx *c, size_t bytes) {
    struct plan_counts *counts = &plan_of(c)->counts;
    if (counts->use.bytes[MEM_SCRATCH] == bytes) return;
    counts->use.bytes[MEM_SCRATCH] = bytes;
    note_peak(counts);
}

static size_t bytes_left(const struct plan_ctx *p) {
    size_t used = mem_used(&p->counts.use);
    return p->limit > used ? p->limit - used : 0;
}

static int plan_mem_alloc(struct kctx *c, enum mem_kind kind, size_t bytes, dev_addr *out,
                          struct error *e) {
    struct plan_ctx *p = plan_of(c);
    bytes = (bytes + 255) / 256 * 256;
    if (p->limit && bytes > bytes_left(p)) {
        error_set(e, ERR_MEMORY, "%zu bytes are needed, %zu of %zu are free", bytes, bytes_left(p),
                  p->limit);
        error_note_number(e, "needed", (int64_t)bytes);
        error_note_number(e, "free", (int64_t)bytes_left(p));
        return -(int)ERR_MEMORY;
    }
    if (p->n_live == p->capacity) {
        size_t capacity = p->capacity ? 2 * p->capacity : 64;
        struct allocation *grown = realloc(p->live, capacity * sizeof *grown);
        if (!grown) return error_set(e, ERR_MEMORY, "no memory for the plan's own table");
        p->live = grown;
        p->capacity = capacity;
    }
    int32_t *ints = kind == MEM_BUFFERS ? calloc(1, bytes) : NULL;
    if (kind == MEM_BUFFERS && !ints)
        return error_set(e, ERR_MEMORY, "no memory for the integers of a step");
    p->live[p->n_live++] = (struct allocation){p->next, bytes, kind, ints};
    *out = p->next;
    p->next += bytes + 4096; /* a gap, so that running over an end is seen */
    p->counts.use.bytes[kind] += bytes;
    note_peak(&p->counts);
    return 0;
}

static void plan_mem_free(struct kctx *c, dev_addr addr) {
    struct plan_ctx *p = plan_of(c);
    struct allocation *a = find(p, addr, 0);
    assert(a && a->at == addr);
    p->counts.use.bytes[a->kind] -= a->bytes;
    free(a->ints);
    memmove(a, a + 1, (size_t)(p->live + p->n_live - (a + 1)) * sizeof *a);
    p->n_live--;
}

static int plan_mem_export(struct kctx *c, dev_addr addr, const struct mem_share *share,
                           struct mem_handle *out, struct error *e) {
    (void)c, (void)addr, (void)share, (void)out;
    return error_set(e, ERR_INTERNAL, "a plan has no memory that could be exported");
}

static void plan_mem_use(struct kctx *c, struct mem_use *use) {
    struct plan_ctx *p = plan_of(c);
    *use = p->counts.use;
    use->total = p->limit;
    use->free = bytes_left(p);
}

static void plan_figures(const struct kctx *c, struct device_figures *out) {
    *out = ((const struct plan_ctx *)c)->scratch.device;
}

static void plan_upload(struct kctx *c, dev_addr to, const void *from, size_t bytes) {
    plan_writes(c, to, bytes, "upload");
    plan_work(c, 0);
    const struct allocation *a = find(plan_of(c), to, bytes);
    if (a && a->ints && bytes) memcpy((char *)a->ints + (to - a->at), from, bytes);
}

static void plan_download(struct kctx *c, void *to, dev_addr from, size_t bytes) {
    plan_reads(c, from, bytes, "download");
    memset(to, 0, bytes);
    plan_work(c, 0);
}

static int plan_wait(struct kctx *c, struct error *e) {
    if (!kctx_failed(c)) return 0;
    if (e) *e = c->error;
    int code = -(int)c->error.kind;
    c->error = (struct error){0};
    return code;
}

static int plan_weight_new(struct kctx *c, enum dtype type, int32_t rows, int32_t cols,
                           struct weight *out, struct error *e) {
    *out = (struct weight){.type = type, .rows = rows, .cols = cols};
    out->bytes = plan_weight_bytes(c, type, rows, cols);
    return plan_mem_alloc(c, MEM_WEIGHTS, out->bytes, &out->data, e);
}

static void plan_weight_put(struct kctx *c, const struct weight *w, int32_t row, int32_t n,
                            const void *from, size_t stride) {
    (void)from;
    (void)stride;
    size_t row_bytes = dtype_row_bytes(w->type, w->cols);
    assert(row >= 0 && n >= 0 && row + n <= w->rows);
    plan_writes(c, w->data + (size_t)row * row_bytes, (size_t)n * row_bytes, "weight_put");
    plan_scratch_put(c, w, n);
    plan_work(c, 0);
}

static void plan_weight_layout(const struct weight *w, struct weight_layout *out) {
    (void)w;
    *out = (struct weight_layout){0};
}

static void plan_weight_free(struct kctx *c, struct weight *w) {
    plan_mem_free(c, w->data);
    *w = (struct weight){0};
}

static void plan_embed(struct kctx *c, dev_addr out, const struct weight *table, dev_addr ids,
                       int32_t T, int32_t first_row, float scale) {
    (void)first_row;
    (void)scale;
    plan_reads(c, ids, (size_t)T * 4, "embed");
    plan_reads(c, table->data, dtype_row_bytes(table->type, table->cols), "embed");
    plan_writes(c, out, plan_floats(T, table->cols), "embed");
    plan_scratch_embed(c);
    plan_work(c, (uint64_t)T * (uint64_t)table->cols);
}

static void plan_rmsnorm(struct kctx *c, dev_addr out, dev_addr x, dev_addr g, int32_t T, int32_t d,
                         float eps) {
    (void)eps;
    plan_reads(c, x, plan_floats(T, d), "rmsnorm");
    plan_reads(c, g, plan_floats(1, d), "rmsnorm");
    plan_writes(c, out, plan_floats(T, d), "rmsnorm");
    plan_work(c, 4 * (uint64_t)T * (uint64_t)d);
}

static void plan_add_rmsnorm(struct kctx *c, dev_addr out, dev_addr x, dev_addr y, float scale,
                             dev_addr g, int32_t T, int32_t d, float eps) {
    (void)scale;
    plan_reads(c, y, plan_floats(T, d), "add_rmsnorm");
    plan_writes(c, x, plan_floats(T, d), "add_rmsnorm");
    plan_rmsnorm(c, out, x, g, T, d, eps);
}

static void plan_linear(struct kctx *c, const struct linear_job *jobs, int n_jobs, dev_addr x,
                        int32_t T) {
    for (int i = 0; i < n_jobs; i++) {
        const struct weight *w = jobs[i].w;
        assert(w->cols == jobs[0].w->cols);
        plan_reads(c, w->data, w->bytes, "linear (weight)");
        if (jobs[i].bias) plan_reads(c, jobs[i].bias, plan_floats(1, w->rows), "linear (bias)");
        plan_writes(c, jobs[i].y, plan_floats(T, w->rows), "linear (output)");
        plan_work(c, 2 * (uint64_t)T * (uint64_t)w->rows * (uint64_t)w->cols);
    }
    plan_reads(c, x, plan_floats(T, jobs[0].w->cols), "linear (input)");
    plan_scratch_linear(c, jobs, n_jobs, T);
}

static void plan_head_norm(struct kctx *c, dev_addr x, dev_addr g, int32_t T, int32_t heads,
                           int32_t e, float eps) {
    (void)eps;
    plan_reads(c, g, plan_floats(1, e), "head_norm");
    plan_reads(c, x, plan_floats(T, heads * e), "head_norm");
    plan_writes(c, x, plan_floats(T, heads * e), "head_norm");
    plan_work(c, 4 * (uint64_t)T * (uint64_t)heads * (uint64_t)e);
}

static void plan_rope_table(struct kctx *c, dev_addr cos_sin, const struct rope_freqs *f,
                            dev_addr pos, dev_addr len, int32_t T) {
    plan_reads(c, f->inv_freq, plan_floats(1, f->head_dim / 2), "rope_table");
    plan_reads(c, pos, (size_t)T * 4, "rope_table");
    plan_reads(c, len, (size_t)T * 4, "rope_table");
    plan_writes(c, cos_sin, plan_floats(T, f->head_dim), "rope_table");
    plan_work(c, 2 * (uint64_t)T * (uint64_t)f->head_dim);
}

static size_t kv_row_bytes(const struct kv_view *kv) {
    return (size_t)kv->n_heads * dtype_row_bytes(kv->type, kv->head_dim);
}

static void plan_rope_kv(struct kctx *c, dev_addr q, int32_t H, dev_addr k, dev_addr v,
                         dev_addr cos_sin, const struct kv_view *kv, const struct step_rows *rows) {
    int32_t T = rows->n_rows, e = kv->head_dim;
    plan_reads(c, rows->pos, (size_t)T * 4, "rope_kv");
    plan_reads(c, rows->seq, (size_t)T * 4, "rope_kv");
    plan_reads(c, rows->blocks, (size_t)rows->n_seqs * (size_t)rows->max_blocks * 4, "rope_kv");
    plan_reads(c, cos_sin, plan_floats(T, e), "rope_kv");
    plan_reads(c, v, plan_floats(T, kv->n_heads * e), "rope_kv");
    plan_writes(c, q, plan_floats(T, H * e), "rope_kv");
    plan_writes(c, k, plan_floats(T, kv->n_heads * e), "rope_kv");
    plan_writes(c, kv->k, (size_t)T * kv_row_bytes(kv), "rope_kv (cache)");
    plan_writes(c, kv->v, (size_t)T * kv_row_bytes(kv), "rope_kv (cache)");
    plan_work(c, 6 * (uint64_t)T * (uint64_t)(H + kv->n_heads) * (uint64_t)e);
}

/* The n integers at address `at`, as they were uploaded; NULL where that was not kept. */
static const int32_t *uploaded(struct kctx *c, dev_addr at, int32_t n) {
    const struct allocation *a = find(plan_of(c), at, (size_t)n * 4);
    return a && a->ints ? a->ints + (at - a->at) / 4 : NULL;
}

/* Positions that the rows see, row by row (pairs) and sequence by sequence (cached: a sequence's rows
 * share what they read). */
struct seen {
    uint64_t pairs, cached;
};

static int64_t at_most(int64_t n, int32_t window) {
    return window > 0 && n > window ? window : n;
}

/* Where positions were not kept, the rows are a prompt from its start. */
static struct seen rows_see(struct kctx *c, const struct step_rows *rows, int32_t window) {
    struct seen out = {0, 0};
    int32_t T = rows->n_rows;
    const int32_t *pos = uploaded(c, rows->pos, T), *seq = uploaded(c, rows->seq, T);
    for (int32_t t = 0; t < T; t++) {
        int64_t sees = (pos ? pos[t] : t) + 1;
        bool last = t + 1 == T || (seq && seq[t + 1] != seq[t]);
        out.pairs += (uint64_t)at_most(sees, window);
        if (last) out.cached += (uint64_t)at_most(sees, window > 0 ? window + T - 1 : 0);
    }
    return out;
}

static void plan_attention(struct kctx *c, dev_addr out, int32_t out_stride, dev_addr q, int32_t H,
                           const int32_t *kv_of_head, const struct kv_view *kv,
                           const struct step_rows *rows, float scale, int32_t window) {
    (void)scale;
    int32_t T = rows->n_rows, e = kv->head_dim;
    struct seen seen = rows_see(c, rows, window);
    assert(out_stride >= H * e);
    for (int32_t h = 0; h < H; h++) assert(kv_of_head[h] >= 0 && kv_of_head[h] < kv->n_heads);
    plan_reads(c, q, plan_floats(T, H * e), "attention");
    plan_reads(c, kv->k, seen.cached * kv_row_bytes(kv), "attention (cache)");
    plan_reads(c, kv->v, seen.cached * kv_row_bytes(kv), "attention (cache)");
    plan_writes(c, out, plan_floats(T - 1, out_stride) + plan_floats(1, H * e), "attention");
    plan_scratch_attention(c, H, kv_of_head, kv, rows);
    plan_work(c, 4 * seen.pairs * (uint64_t)H * (uint64_t)e);
}

static void plan_silu_mul(struct kctx *c, dev_addr out, dev_addr gate, dev_addr up, int32_t T,
                          int32_t F) {
    plan_reads(c, gate, plan_floats(T, F), "silu_mul");
    plan_reads(c, up, plan_floats(T, F), "silu_mul");
    plan_writes(c, out, plan_floats(T, F), "silu_mul");
    plan_work(c, 5 * (uint64_t)T * (uint64_t)F);
}

static void plan_gather_rows(struct kctx *c, dev_addr out, dev_addr x, dev_addr index, int32_t n,
                             int32_t d) {
    plan_reads(c, index, (size_t)n * 4, "gather_rows");
    plan_reads(c, x, plan_floats(1, d), "gather_rows");
    plan_writes(c, out, plan_floats(n, d), "gather_rows");
    plan_work(c, 0);
}

static void plan_scale(struct kctx *c, dev_addr x, size_t n, float s) {
    if (s != 0) plan_reads(c, x, n * sizeof(float), "scale");
    plan_writes(c, x, n * sizeof(float), "scale");
    plan_work(c, n);
}

static void plan_candidates(struct kctx *c, dev_addr out, dev_addr work, dev_addr logits, dev_addr wishes,
                            int32_t T, int32_t V, int32_t first_row) {
    size_t lists = (size_t)T * candidates_work(V) * CANDIDATES_BYTES;
    (void)first_row;
    plan_reads(c, logits, plan_floats(T, V), "candidates");
    plan_reads(c, wishes, plan_floats(T, CANDIDATES_WISH_WORDS), "candidates");
    plan_writes(c, work, lists, "candidates (work)");
    plan_writes(c, out, (size_t)T * CANDIDATES_BYTES, "candidates");
    plan_work(c, 2 * (uint64_t)T * (uint64_t)V);
}

static void plan_close(struct kctx *c) {
    struct plan_ctx *p = plan_of(c);
    for (size_t i = 0; i < p->n_live; i++) free(p->live[i].ints);
    free(p->live);
    free(p);
}

static const struct kernels plan_kernels = {
    .name = "plan",
    .counts_only = true,
    .mem_alloc = plan_mem_alloc,
    .mem_free = plan_mem_free,
    .mem_use = plan_mem_use,
    .figures = plan_figures,
    .mem_export = plan_mem_export,
    .upload = plan_upload,
    .download = plan_download,
    .wait = plan_wait,
    .weight_new = plan_weight_new,
    .weight_put = plan_weight_put,
    .weight_free = plan_weight_free,
    .weight_layout = plan_weight_layout,
    .embed = plan_embed,
    .rmsnorm = plan_rmsnorm,
    .add_rmsnorm = plan_add_rmsnorm,
    .linear = plan_linear,
    .head_norm = plan_head_norm,
    .rope_table = plan_rope_table,
    .rope_kv = plan_rope_kv,
    .attention = plan_attention,
    .silu_mul = plan_silu_mul,
    .gather_rows = plan_gather_rows,
    .scale = plan_scale,
    .candidates = plan_candidates,
    .matmul = plan_matmul,
    .linear_dx = plan_linear_dx,
    .col_sum = plan_col_sum,
    .rmsnorm_dx = plan_rmsnorm_dx,
    .rope_rows = plan_rope_rows,
    .attention_rows = plan_attention_rows,
    .attention_rows_dx = plan_attention_rows_dx,
    .silu_mul_dx = plan_silu_mul_dx,
    .ce_stats = plan_ce_stats,
    .ce_grad = plan_ce_grad,
    .embed_rows = plan_embed_rows,
    .embed_grad = plan_embed_grad,
    .bf16_products = plan_bf16_products,
    .narrow_activations = plan_narrow_activations,
    .narrow = plan_narrow,
    .widen = plan_widen,
    .copy = plan_copy,
    .axpy = plan_axpy,
    .dropout = plan_dropout,
    .sum_squares = plan_sum_squares,
    .adamw = plan_adamw,
    .close = plan_close,
};

int kernels_plan_open(struct kctx **out, int rank, size_t memory_limit,
                      const struct device_figures *device, struct error *e) {
    struct plan_ctx *p = calloc(1, sizeof *p);
    if (!p) return error_set(e, ERR_MEMORY, "no memory for a plan context");
    p->base.ops = &plan_kernels;
    p->base.rank = rank;
    p->limit = memory_limit;
    p->next = 1 << 20;
    plan_scratch_open(&p->base, device);
    *out = &p->base;
    return 0;
}

const struct plan_counts *kernels_plan_counts(const struct kctx *c) {
    return &((const struct plan_ctx *)c)->counts;
}

void kernels_plan_reset(struct kctx *c) {
    struct plan_ctx *p = plan_of(c);
    p->counts = (struct plan_counts){.use = p->counts.use, .peak = p->counts.peak};
}
