/* Backward of norms, rotation and activation: cuts rows, or columns where rows are summed. */
#include "kernels/cpu/scratch.h"

static size_t area(int32_t rows, int32_t cols) {
    return (size_t)rows * (size_t)cols;
}

struct rows_call {
    struct cpu_ctx *c;
    float *a, *b;
    const float *x, *y, *g;
    float *r;
    int32_t T, d, heads, e;
    float eps;
    bool inverse;
};

/* --- sums over rows: members share the columns ------------------------------------------------ */

static void col_sum_slice(void *arg, int member, int n_members) {
    const struct rows_call *call = arg;
    int64_t from, to;
    team_slice(call->d, LANES, member, n_members, &from, &to);
    if (from < to)
        call->c->level->train->col_sum(call->a + from, call->x + from,
                                       call->y ? call->y + from : NULL, call->r, call->T,
                                       (size_t)call->d, (int32_t)(to - from));
}

void cpu_col_sum(struct kctx *base, dev_addr out, dev_addr x, int32_t T, int32_t n) {
    struct cpu_ctx *c = cpu_of(base);
    if (kctx_failed(base)) return;
    struct rows_call call = {.c = c, .a = cpu_at(c, out), .x = cpu_at(c, x), .T = T, .d = n};
    cpu_parallel(c, area(T, n), col_sum_slice, &call);
}

/* --- rmsnorm --------------------------------------------------------------------------------- */

static void norm_dx_slice(void *arg, int member, int n_members) {
    const struct rows_call *call = arg;
    int64_t from, to;
    team_slice(call->T, 1, member, n_members, &from, &to);
    for (int64_t t = from; t < to; t++) {
        size_t at = (size_t)t * (size_t)call->d;
        call->r[t] = call->c->level->train->rmsnorm_dx(call->a + at, call->y + at, call->x + at,
                                                       call->g, call->d, call->eps);
    }
}

void cpu_rmsnorm_dx(struct kctx *base, dev_addr dx, dev_addr dg, dev_addr dy, dev_addr x,
                    dev_addr g, int32_t T, int32_t d, float eps) {
    struct cpu_ctx *c = cpu_of(base);
    /* r of each row, between the two passes, in the first member's scratch */
    if (kctx_failed(base) || T == 0 || !cpu_scratch(c, rmsnorm_dx_scratch(T))) return;
    struct rows_call call = {.c = c,
                             .a = cpu_at(c, dx),
                             .x = cpu_at(c, x),
                             .y = cpu_at(c, dy),
                             .g = cpu_at(c, g),
                             .r = (float *)cpu_scratch_of(c, 0),
                             .T = T,
                             .d = d,
                             .eps = eps};
    cpu_parallel(c, 4 * area(T, d), norm_dx_slice, &call);
    if (!dg) return;
    call.a = cpu_at(c, dg);
    cpu_parallel(c, 2 * area(T, d), col_sum_slice, &call);
}

/* --- rotation, activation --------------------------------------------------------------------- */

static void rope_slice(void *arg, int member, int n_members) {
    const struct rows_call *call = arg;
    int64_t from, to;
    team_slice(call->T, 1, member, n_members, &from, &to);
    for (int64_t t = from; t < to; t++)
        call->c->level->train->rotate_heads(call->a + (size_t)t * area(call->heads, call->e),
                                            call->heads, call->x + (size_t)t * (size_t)call->e,
                                            call->e, call->inverse);
}

void cpu_rope_rows(struct kctx *base, dev_addr x, int32_t heads, dev_addr cos_sin, int32_t T,
                   int32_t e, bool inverse) {
    struct cpu_ctx *c = cpu_of(base);
    if (kctx_failed(base)) return;
    struct rows_call call = {.c = c,
                             .a = cpu_at(c, x),
                             .x = cpu_at(c, cos_sin),
                             .T = T,
                             .heads = heads,
                             .e = e,
                             .inverse = inverse};
    cpu_parallel(c, 2 * area(T, heads * e), rope_slice, &call);
}

struct silu_call {
    struct cpu_ctx *c;
    float *dgate, *dup;
    const float *dout, *gate, *up;
    int64_t n;
};

static void silu_slice(void *arg, int member, int n_members) {
    const struct silu_call *s = arg;
    int64_t from, to;
    team_slice(s->n, LANES, member, n_members, &from, &to);
    if (from < to)
        s->c->level->train->silu_mul_dx(s->dgate + from, s->dup + from, s->dout + from,
                                        s->gate + from, s->up + from, (size_t)(to - from));
}

void cpu_silu_mul_dx(struct kctx *base, dev_addr dgate, dev_addr dup, dev_addr dout, dev_addr gate,
                     dev_addr up, int32_t T, int32_t F) {
    struct cpu_ctx *c = cpu_of(base);
    if (kctx_failed(base)) return;
    struct silu_call call = {c,
                             cpu_at(c, dgate),
                             cpu_at(c, dup),
                             cpu_at(c, dout),
                             cpu_at(c, gate),
                             cpu_at(c, up),
                             (int64_t)area(T, F)};
    cpu_parallel(c, 16 * area(T, F), silu_slice, &call);
}
