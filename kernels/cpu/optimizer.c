/* Copies, bf16 and back, dropout, sums of squares, AdamW: loops over elements. */
#include "kernels/cpu/scratch.h"

#include <string.h>

struct elements_call {
    struct cpu_ctx *c;
    float *out, *m, *v;
    const float *x;
    int64_t n;
    const struct adamw_params *params;
    float a;
};

static void axpy_slice(void *arg, int member, int n_members) {
    const struct elements_call *call = arg;
    int64_t from, to;
    team_slice(call->n, LANES, member, n_members, &from, &to);
    if (from < to)
        call->c->level->train->axpy(call->out + from, call->x + from, (size_t)(to - from), call->a);
}

void cpu_axpy(struct kctx *base, dev_addr y, dev_addr x, size_t n, float a) {
    struct cpu_ctx *c = cpu_of(base);
    if (kctx_failed(base) || n == 0) return;
    struct elements_call call = {
        .c = c, .out = cpu_at(c, y), .x = cpu_at(c, x), .n = (int64_t)n, .a = a};
    cpu_parallel(c, n, axpy_slice, &call);
}

static void copy_slice(void *arg, int member, int n_members) {
    const struct elements_call *call = arg;
    int64_t from, to;
    team_slice(call->n, 64, member, n_members, &from, &to);
    memcpy((char *)call->out + from, (const char *)call->x + from, (size_t)(to - from));
}

void cpu_copy(struct kctx *base, dev_addr to, dev_addr from, size_t bytes) {
    struct cpu_ctx *c = cpu_of(base);
    if (kctx_failed(base) || bytes == 0) return;
    struct elements_call call = {
        .c = c, .out = cpu_at(c, to), .x = cpu_at(c, from), .n = (int64_t)bytes};
    cpu_parallel(c, bytes / 4, copy_slice, &call);
}

static void narrow_slice(void *arg, int member, int n_members) {
    const struct elements_call *call = arg;
    int64_t from, to;
    team_slice(call->n, 2 * LANES, member, n_members, &from, &to);
    if (from < to)
        call->c->level->train->narrow((uint16_t *)(void *)call->out + from, call->x + from,
                                      (size_t)(to - from));
}

void cpu_narrow(struct kctx *base, dev_addr to, dev_addr from, size_t n) {
    struct cpu_ctx *c = cpu_of(base);
    if (kctx_failed(base) || n == 0) return;
    struct elements_call call = {
        .c = c, .out = cpu_at(c, to), .x = cpu_at(c, from), .n = (int64_t)n};
    cpu_parallel(c, n, narrow_slice, &call);
}

static void widen_slice(void *arg, int member, int n_members) {
    const struct elements_call *call = arg;
    int64_t from, to;
    team_slice(call->n, 2 * LANES, member, n_members, &from, &to);
    if (from < to)
        call->c->level->train->widen(call->out + from, (const uint16_t *)(const void *)call->x + from,
                                     (size_t)(to - from));
}

void cpu_widen(struct kctx *base, dev_addr to, dev_addr from, size_t n) {
    struct cpu_ctx *c = cpu_of(base);
    if (kctx_failed(base) || n == 0) return;
    struct elements_call call = {
        .c = c, .out = cpu_at(c, to), .x = cpu_at(c, from), .n = (int64_t)n};
    cpu_parallel(c, n, widen_slice, &call);
}

/* --- dropout ---------------------------------------------------------------------------------- */

struct dropout_call {
    struct cpu_ctx *c;
    float *out;
    const float *x;
    int32_t T, cols;
    uint64_t row_stride, first, seed;
    uint64_t below; /* of 2^32 values of a draw, those that drop */
    float by;
};

static void dropout_slice(void *arg, int member, int n_members) {
    const struct dropout_call *call = arg;
    int64_t from, to;
    team_slice(call->T, 1, member, n_members, &from, &to);
    for (int64_t t = from; t < to; t++)
        call->c->level->train->dropout(
            call->out + t * call->cols, call->x + t * call->cols, call->cols, call->seed,
            call->first + (uint64_t)t * call->row_stride, call->below, call->by);
}

void cpu_dropout(struct kctx *base, dev_addr out, dev_addr x, int32_t T, int32_t cols,
                 int32_t row_stride, int32_t col, float p, uint64_t seed, uint64_t first) {
    struct cpu_ctx *c = cpu_of(base);
    if (kctx_failed(base)) return;
    struct dropout_call call = {.c = c,
                                .out = cpu_at(c, out),
                                .x = cpu_at(c, x),
                                .T = T,
                                .cols = cols,
                                .row_stride = (uint64_t)row_stride,
                                .first = first + (uint64_t)col,
                                .seed = seed,
                                .below = (uint64_t)((double)p * 0x1p32),
                                .by = p < 1 ? 1 / (1 - p) : 0};
    cpu_parallel(c, 4 * (size_t)T * (size_t)cols, dropout_slice, &call);
}

/* --- the step --------------------------------------------------------------------------------- */

/* Pieces (SQUARES_PIECE) are summed by members and added up in their order. */
struct squares_call {
    struct cpu_ctx *c;
    const float *x;
    double *pieces;
    size_t n;
    int64_t n_pieces;
};

static void squares_slice(void *arg, int member, int n_members) {
    const struct squares_call *call = arg;
    int64_t from, to;
    team_slice(call->n_pieces, 1, member, n_members, &from, &to);
    for (int64_t i = from; i < to; i++) {
        size_t at = (size_t)i * SQUARES_PIECE, left = call->n - at;
        call->pieces[i] = call->c->level->train->sum_squares(
            call->x + at, left < SQUARES_PIECE ? left : SQUARES_PIECE);
    }
}

void cpu_sum_squares(struct kctx *base, dev_addr out, dev_addr x, size_t n) {
    struct cpu_ctx *c = cpu_of(base);
    int64_t n_pieces = (int64_t)squares_pieces(n);
    if (kctx_failed(base) || n == 0 || !cpu_scratch(c, sum_squares_scratch(n))) return;
    struct squares_call call = {c, cpu_at(c, x), (double *)cpu_scratch_of(c, 0), n, n_pieces};
    cpu_parallel(c, n, squares_slice, &call);
    double sum = 0;
    for (int64_t i = 0; i < n_pieces; i++) sum += call.pieces[i];
    float *to = cpu_at(c, out);
    *to = (float)((double)*to + sum);
}

static void adamw_slice(void *arg, int member, int n_members) {
    const struct elements_call *call = arg;
    int64_t from, to;
    team_slice(call->n, LANES, member, n_members, &from, &to);
    if (from < to)
        call->c->level->train->adamw(call->out + from, call->x + from, call->m + from,
                                     call->v + from, (size_t)(to - from), call->params, call->a);
}

void cpu_adamw(struct kctx *base, dev_addr p, dev_addr g, dev_addr m, dev_addr v, size_t n,
               const struct adamw_params *params, float grad_scale) {
    struct cpu_ctx *c = cpu_of(base);
    if (kctx_failed(base) || n == 0) return;
    struct elements_call call = {.c = c,
                                 .out = cpu_at(c, p),
                                 .x = cpu_at(c, g),
                                 .m = cpu_at(c, m),
                                 .v = cpu_at(c, v),
                                 .n = (int64_t)n,
                                 .params = params,
                                 .a = grad_scale};
    cpu_parallel(c, 4 * n, adamw_slice, &call);
}
