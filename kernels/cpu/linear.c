/* y = x w^T: rounds x to what the weights are multiplied with, cuts the panels of all jobs for the team. */
#include "kernels/cpu/bf16.h"
#include "kernels/cpu/int8.h"
#include "kernels/cpu/train.h"

#include <stdlib.h>

/* x as a linear's jobs read it; of what no job reads, words is NULL. */
struct narrow {
    struct x8 x8;
    struct x16 x16;
};

struct linear_call {
    struct cpu_ctx *c;
    const struct linear_job *jobs;
    int n_jobs;
    int32_t first_row; /* of jobs[].y that this call fills */
    const float *x;
    int32_t T, cols;
    bool int8, bf16;      /* some job reads x in it */
    struct narrow narrow; /* of all members; with one row each has a copy of its own */
};

static int64_t panels_of(const struct linear_job *job) {
    return round_up(job->w->rows, LANES) / LANES;
}

static bool takes_int8(const struct cpu_ctx *c, const struct linear_job *job) {
    return c->narrow_activations && dtype_is_quantised(job->w->type);
}

static bool takes_bf16(const struct cpu_ctx *c, const struct linear_job *job) {
    return c->narrow_activations && c->bf16 && job->w->type == DTYPE_BF16;
}

static void linear_panels(const struct linear_call *call, const struct linear_job *job,
                          const struct narrow *x, int32_t from, int32_t to, uint8_t *scratch) {
    const struct cpu_ctx *c = call->c;
    struct panels w = cpu_panels(c, job->w);
    const float *bias = job->bias ? cpu_at(c, job->bias) : NULL;
    float *y = (float *)cpu_at(c, job->y) + (size_t)call->first_row * (size_t)w.rows;
    bool one = call->T == 1;
    if (takes_int8(c, job)) {
        if (one) c->int8->matvec(&w, from, to, &x->x8, bias, y);
        else c->int8->matmul(&w, from, to, &x->x8, bias, y, scratch);
    } else if (takes_bf16(c, job)) {
        if (one) c->bf16->matvec(&w, from, to, &x->x16, bias, y);
        else c->bf16->matmul(&w, from, to, &x->x16, bias, y, scratch);
    } else {
        if (one) c->level->matvec(&w, from, to, call->x, bias, y);
        else c->level->matmul(&w, from, to, call->x, call->T, bias, y, scratch);
    }
}

/* --- x rounded -------------------------------------------------------------------------------- */

/* Bytes of a row; a whole number of cache lines. */
static size_t x8_row_bytes(int32_t cols) { return (x8_row_words(cols) * 4 + 63) / 64 * 64; }
static size_t x16_row_bytes(int32_t cols) { return x16_row_words(cols) * 4; }

static size_t narrow_row_bytes(const struct linear_call *call) {
    return (call->int8 ? x8_row_bytes(call->cols) : 0) + (call->bf16 ? x16_row_bytes(call->cols) : 0);
}

/* Rows in groups as even as can be. */
static int32_t group_rows(int32_t n, int most) {
    int32_t groups = (n + most - 1) / most;
    return (n + groups - 1) / groups;
}

/* Where n rows of x will stand. */
static struct narrow narrow_at(const struct linear_call *call, uint8_t *room, int32_t n) {
    struct narrow to = {0};
    if (call->int8)
        to.x8 = (struct x8){(uint32_t *)(void *)room, n, group_rows(n, call->c->int8->rows), call->cols};
    if (call->int8) room += (size_t)n * x8_row_bytes(call->cols);
    if (call->bf16)
        to.x16 = (struct x16){(uint32_t *)(void *)room, n, group_rows(n, call->c->bf16->rows), call->cols};
    return to;
}

/* One row each member rounds for itself: it takes less time than waiting for another. */
static struct narrow narrow(const struct linear_call *call, int member, int n_members,
                            uint8_t *scratch) {
    struct narrow to = call->narrow;
    int64_t from = 0, end = 1;
    if (call->T == 1) to = narrow_at(call, scratch, 1);
    else team_slice(call->T, 1, member, n_members, &from, &end);
    if (call->int8) call->c->int8->quantise(&to.x8, call->x, (int32_t)from, (int32_t)end);
    if (call->bf16) call->c->bf16->prepare(&to.x16, call->x, (int32_t)from, (int32_t)end);
    if (call->T > 1 && n_members > 1) team_barrier(call->c->team);
    return to;
}

/* Room for n rows of x, kept; false after kctx_fail. */
static bool narrow_room(struct cpu_ctx *c, size_t bytes) {
    if (bytes <= c->narrow_bytes) return true;
    free(c->narrow);
    c->narrow_bytes = (bytes + 4095) / 4096 * 4096;
    c->narrow = aligned_alloc(4096, c->narrow_bytes);
    if (c->narrow) return true;
    struct error e;
    c->narrow_bytes = 0;
    error_set(&e, ERR_MEMORY, "no memory for %zu bytes of rounded activations", bytes);
    kctx_fail(&c->base, &e);
    return false;
}

/* How many rows are rounded at once: their x stays in the second-level cache while all weights
 * pass by. */
static int32_t rows_at_once(size_t bytes, size_t row_bytes, int32_t most, int group) {
    int32_t n = row_bytes == 0 || bytes / row_bytes > (size_t)most ? most : (int32_t)(bytes / row_bytes);
    return n < group ? group : n / group * group;
}

static int32_t narrow_rows(const struct linear_call *call) {
    const struct cpu_ctx *c = call->c;
    int32_t n = call->T;
    if (call->int8) {
        int32_t most = rows_at_once(X8_BYTES, x8_row_bytes(call->cols), X8_ROWS_MAX, c->int8->rows);
        n = n < most ? n : most;
    }
    if (call->bf16) {
        int32_t most = rows_at_once(X16_BYTES, x16_row_bytes(call->cols), X16_ROWS_MAX, c->bf16->rows);
        n = n < most ? n : most;
    }
    return n;
}

/* --- the team --------------------------------------------------------------------------------- */

/* A member's part is a run in the list of all panels of all jobs; the matrix product takes them by
 * two. */
static void linear_slice(void *arg, int member, int n_members) {
    const struct linear_call *call = arg;
    uint8_t *scratch = cpu_scratch_of(call->c, member);
    struct narrow x = {0};
    int64_t total = 0, from, to, first = 0;
    if (call->int8 || call->bf16) x = narrow(call, member, n_members, scratch);
    for (int i = 0; i < call->n_jobs; i++) total += panels_of(&call->jobs[i]);
    team_slice(total, call->T == 1 ? 1 : 2, member, n_members, &from, &to);
    for (int i = 0; i < call->n_jobs; i++) {
        int64_t n = panels_of(&call->jobs[i]);
        int64_t a = from > first ? from - first : 0, b = to - first < n ? to - first : n;
        if (a < b)
            linear_panels(call, &call->jobs[i], &x, (int32_t)a, (int32_t)b, scratch);
        first += n;
    }
}

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

void cpu_linear(struct kctx *base, const struct linear_job *jobs, int n_jobs, dev_addr x,
                int32_t T) {
    struct cpu_ctx *c = cpu_of(base);
    if (kctx_failed(base) || T == 0 || n_jobs == 0) return;
    if (c->bf16_products) {
        cpu_linear_bf16(base, jobs, n_jobs, x, T);
        return;
    }
    struct linear_call call = {.c = c, .jobs = jobs, .n_jobs = n_jobs, .cols = jobs[0].w->cols, .T = T};
    size_t work = 0, scratch = MATMUL_SCRATCH;
    for (int i = 0; i < n_jobs; i++) {
        work += (size_t)jobs[i].w->rows * (size_t)jobs[i].w->cols;
        call.int8 |= takes_int8(c, &jobs[i]);
        call.bf16 |= takes_bf16(c, &jobs[i]);
    }
    int32_t at_once = narrow_rows(&call);
    size_t row_bytes = narrow_row_bytes(&call);
    scratch = larger(scratch, row_bytes);
    if (call.int8) scratch = larger(scratch, INT8_SCRATCH);
    if (call.bf16) scratch = larger(scratch, BF16_SCRATCH);
    if (!narrow_room(c, (size_t)at_once * row_bytes) || !cpu_scratch(c, scratch)) return;
    for (int32_t t = 0; t < T; t += at_once) {
        call.first_row = t;
        call.T = T - t < at_once ? T - t : at_once;
        call.x = (const float *)cpu_at(c, x) + (size_t)t * (size_t)call.cols;
        call.narrow = narrow_at(&call, c->narrow, call.T);
        cpu_parallel(c, work * (size_t)call.T, linear_slice, &call);
    }
}
