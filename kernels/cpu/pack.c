/* Matrices of panels (layout.h): making them, and who of the team puts which rows. */
#include "kernels/cpu/layout.h"

const struct layout layouts[DTYPE_COUNT] = {
    [DTYPE_Q8_0] = {0, -1, 0, 0, {{8, 0}}},
    [DTYPE_Q4_0] = {0, -1, 0, 0, {{4, 0}}},
    [DTYPE_Q4_1] = {0, 2, 0, 0, {{4, 0}}},
    [DTYPE_Q5_0] = {0, -1, 0, 0, {{1, 4}, {4, 0}}},
    [DTYPE_Q5_1] = {0, 2, 0, 0, {{1, 4}, {4, 0}}},
    [DTYPE_Q2_K] = {80, 82, 0, 4, {{2, 0}}},
    [DTYPE_Q3_K] = {108, -1, 96, 3, {{1, 2}, {2, 0}}},
    [DTYPE_Q4_K] = {0, 2, 4, 3, {{4, 0}}},
    [DTYPE_Q5_K] = {0, 2, 4, 3, {{1, 4}, {4, 0}}},
    [DTYPE_Q6_K] = {208, -1, 192, 4, {{2, 4}, {4, 0}}},
};

/* --- matrices --------------------------------------------------------------------------------- */

struct panels cpu_panels(const struct cpu_ctx *c, const struct weight *w) {
    return (struct panels){w->type, w->rows, w->cols, layout_panel_bytes(w->type, w->cols),
                           cpu_at(c, w->data)};
}

size_t kernels_cpu_weight_bytes(enum dtype type, int32_t rows, int32_t cols) {
    return (size_t)(round_up(rows, LANES) / LANES) * layout_panel_bytes(type, cols);
}

int cpu_weight_new(struct kctx *c, enum dtype type, int32_t rows, int32_t cols, struct weight *out,
                   struct error *e) {
    *out = (struct weight){.type = type, .rows = rows, .cols = cols};
    if (rows < 0 || cols < 0 || cols % dtype_info(type)->block != 0)
        return error_set(e, ERR_INTERNAL, "a %s matrix cannot have %d x %d elements",
                         dtype_info(type)->name, rows, cols);
    out->bytes = kernels_cpu_weight_bytes(type, rows, cols);
    return c->ops->mem_alloc(c, MEM_WEIGHTS, out->bytes, &out->data, e);
}

void cpu_weight_free(struct kctx *c, struct weight *w) {
    c->ops->mem_free(c, w->data);
    *w = (struct weight){0};
}

struct put_job {
    struct panels w;
    const uint8_t *from;
    size_t stride;
    int32_t row, n;
};

/* The rows of the job that stand in panel p; the others keep what they have. */
static void put_panel(const struct put_job *job, int64_t p) {
    const struct panels *w = &job->w;
    const uint8_t *rows[LANES];
    int64_t first = p * LANES < job->row ? job->row : p * LANES, end = job->row + job->n;
    if (end > (p + 1) * LANES) end = (p + 1) * LANES;
    for (int lane = 0; lane < LANES; lane++) {
        int64_t i = p * LANES + lane;
        i = (i < first || i >= end ? first : i) - job->row;
        rows[lane] = job->from + (size_t)i * job->stride;
    }
    uint8_t *panel = (uint8_t *)(uintptr_t)w->data + (size_t)p * w->panel_bytes;
    pack_rows(w, panel, rows, (int)(first - p * LANES), (int)(end - first));
}

/* Rows of one panel go to one member, so that no two write to one cache line. */
static void put_slice(void *arg, int member, int n_members) {
    const struct put_job *job = arg;
    int64_t from, to, first = job->row / LANES, last = (job->row + job->n - 1) / LANES;
    team_slice(last - first + 1, 1, member, n_members, &from, &to);
    for (int64_t p = first + from; p < first + to; p++) put_panel(job, p);
}

void cpu_weight_put(struct kctx *base, const struct weight *w, int32_t row, int32_t n,
                    const void *from, size_t stride) {
    struct cpu_ctx *c = cpu_of(base);
    if (kctx_failed(base) || n <= 0 || w->cols == 0) return;
    if (row < 0 || row > w->rows - n) {
        struct error e;
        error_set(&e, ERR_INTERNAL, "rows %d to %d put into a matrix of %d", row, row + n, w->rows);
        kctx_fail(base, &e);
        return;
    }
    struct put_job job = {cpu_panels(c, w), from, stride, row, n};
    cpu_parallel(c, (size_t)n * (size_t)w->cols, put_slice, &job);
}
