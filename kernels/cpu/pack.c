/* Puts rows as files have them into panels (layout.h). */
#include "base/dequant.h"
#include "kernels/cpu/layout.h"

#include <string.h>

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

/* --- one row of a panel ----------------------------------------------------------------------- */

static uint8_t *put_half(uint8_t *to, const uint8_t *block, int at, int lane) {
    if (at < 0) return to;
    memcpy(to + 2 * lane, block + at, 2);
    return to + 2 * LANES;
}

/* bits is a constant for the compiler. */
static inline __attribute__((always_inline)) void put_words(uint8_t *to, const uint8_t *codes,
                                                            int n, int bits, int shift) {
    int per_word = 32 / bits;
    uint32_t mask = (1u << bits) - 1;
    for (int at = 0; at < n; at += per_word, to += 4 * LANES) {
        uint32_t word = 0;
#pragma GCC unroll 32
        for (int i = 0; i < per_word; i++)
            word |= ((uint32_t)codes[at + i] >> shift & mask) << (8 * (i % 4) + i / 4 * bits);
        memcpy(to, &word, 4);
    }
}

static uint8_t *put_plane(uint8_t *to, const uint8_t *codes, int n, struct plane plane, int lane) {
    switch (plane.bits) {
    case 8: put_words(to + 4 * lane, codes, n, 8, plane.shift); break;
    case 4: put_words(to + 4 * lane, codes, n, 4, plane.shift); break;
    case 2: put_words(to + 4 * lane, codes, n, 2, plane.shift); break;
    default: put_words(to + 4 * lane, codes, n, 1, plane.shift); break;
    }
    return to + n * plane.bits / 8 * LANES;
}

static void put_block(enum dtype type, uint8_t *to, const uint8_t *block, int lane) {
    const struct layout *l = &layouts[type];
    int n = dtype_info(type)->block;
    uint8_t codes[QUANT_BLOCK_MAX];
    quant_block_codes(type, block, codes);
    to = put_half(to, block, l->d, lane);
    to = put_half(to, block, l->min, lane);
    for (int i = 0; i < l->scale_words; i++, to += 4 * LANES)
        memcpy(to + 4 * lane, block + l->scales + 4 * i, 4);
    for (int i = 0; i < 2 && l->planes[i].bits; i++)
        to = put_plane(to, codes, n, l->planes[i], lane);
}

/* Elements from … end-1 of a row. */
static void put_plain(enum dtype type, uint8_t *panel, const uint8_t *row, int32_t from,
                      int32_t end, int lane) {
    size_t r = (size_t)lane;
    for (size_t k = (size_t)from; k < (size_t)end; k++) {
        if (type == DTYPE_F32) memcpy(panel + 4 * (LANES * k + r), row + 4 * k, 4);
        else if (type == DTYPE_F16) memcpy(panel + 2 * (LANES * k + r), row + 2 * k, 2);
        else memcpy(panel + 4 * (LANES * (k / 2) + r) + 2 * (k % 2), row + 2 * k, 2);
    }
}

static void put_part(const struct panels *w, uint8_t *panel, const uint8_t *row, int32_t k,
                     int32_t end, int lane) {
    if (!dtype_is_quantised(w->type)) {
        put_plain(w->type, panel, row, k, end, lane);
        return;
    }
    const struct dtype_info *info = dtype_info(w->type);
    for (; k < end; k += info->block) {
        size_t at = dtype_row_bytes(w->type, k);
        put_block(w->type, panel + LANES * at, row + at, lane);
    }
}

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

/* Rows of one panel go to one member, so that no two write to one cache line, and a chunk of them
 * together, so that it is written while it is in the first-level cache. */
static void put_slice(void *arg, int member, int n_members) {
    const struct put_job *job = arg;
    const struct panels *w = &job->w;
    int64_t from, to, first = job->row / LANES, last = (job->row + job->n - 1) / LANES;
    team_slice(last - first + 1, 1, member, n_members, &from, &to);
    for (int64_t p = first + from; p < first + to; p++) {
        uint8_t *panel = (uint8_t *)(uintptr_t)w->data + (size_t)p * w->panel_bytes;
        for (int32_t k = 0; k < w->cols; k += K_CHUNK) {
            int32_t end = w->cols - k < K_CHUNK ? w->cols : k + K_CHUNK;
            for (int lane = 0; lane < LANES; lane++) {
                int64_t i = p * LANES + lane - job->row;
                if (i >= 0 && i < job->n)
                    put_part(w, panel, job->from + (size_t)i * job->stride, k, end, lane);
            }
        }
    }
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
