/* y = x w^T: cuts the panels of all jobs for the team. */
#include "kernels/cpu/int8.h"
#include "kernels/cpu/train.h"

#include <stdlib.h>

struct linear_call {
    struct cpu_ctx *c;
    const struct linear_job *jobs;
    int n_jobs;
    int32_t first_row; /* of jobs[].y that this call fills */
    const float *x;
    int32_t T, cols;
    bool int8;     /* some job reads x in int8 */
    struct x8 x8;  /* of all members; with one row each has a copy of its own */
};

static int64_t panels_of(const struct linear_job *job) {
    return round_up(job->w->rows, LANES) / LANES;
}

static bool takes_int8(const struct cpu_ctx *c, const struct linear_job *job) {
    return c->int8_on && dtype_is_quantised(job->w->type);
}

static void linear_panels(const struct linear_call *call, const struct linear_job *job,
                          const struct x8 *x8, int32_t from, int32_t to, uint8_t *scratch) {
    const struct cpu_ctx *c = call->c;
    struct panels w = cpu_panels(c, job->w);
    const float *bias = job->bias ? cpu_at(c, job->bias) : NULL;
    float *y = (float *)cpu_at(c, job->y) + (size_t)call->first_row * (size_t)w.rows;
    if (takes_int8(c, job)) {
        if (call->T == 1) c->int8->matvec(&w, from, to, x8, bias, y);
        else c->int8->matmul(&w, from, to, x8, bias, y, scratch);
    } else {
        if (call->T == 1) c->level->matvec(&w, from, to, call->x, bias, y);
        else c->level->matmul(&w, from, to, call->x, call->T, bias, y, scratch);
    }
}

/* One row each member quantises for itself: it takes less time than waiting for another. */
static struct x8 quantise(const struct linear_call *call, int member, int n_members,
                          uint8_t *scratch) {
    struct x8 x8 = call->x8;
    int64_t from = 0, to = 1;
    if (call->T == 1) x8.words = (uint32_t *)(void *)scratch;
    else team_slice(call->T, 1, member, n_members, &from, &to);
    call->c->int8->quantise(&x8, call->x, (int32_t)from, (int32_t)to);
    if (call->T > 1 && n_members > 1) team_barrier(call->c->team);
    return x8;
}

/* A member's part is a run in the list of all panels of all jobs; the matrix product takes them by
 * two. */
static void linear_slice(void *arg, int member, int n_members) {
    const struct linear_call *call = arg;
    uint8_t *scratch = cpu_scratch_of(call->c, member);
    struct x8 x8 = {0};
    int64_t total = 0, from, to, first = 0;
    if (call->int8) x8 = quantise(call, member, n_members, scratch);
    for (int i = 0; i < call->n_jobs; i++) total += panels_of(&call->jobs[i]);
    team_slice(total, call->T == 1 ? 1 : 2, member, n_members, &from, &to);
    for (int i = 0; i < call->n_jobs; i++) {
        int64_t n = panels_of(&call->jobs[i]);
        int64_t a = from > first ? from - first : 0, b = to - first < n ? to - first : n;
        if (a < b)
            linear_panels(call, &call->jobs[i], &x8, (int32_t)a, (int32_t)b, scratch);
        first += n;
    }
}

/* Room for n rows of x, kept; false after kctx_fail. */
static bool x8_room(struct cpu_ctx *c, int32_t n, int32_t cols) {
    size_t bytes = (size_t)n * x8_row_words(cols) * 4;
    if (bytes <= c->x8_bytes) return true;
    free(c->x8);
    c->x8_bytes = (bytes + 4095) / 4096 * 4096;
    c->x8 = aligned_alloc(4096, c->x8_bytes);
    if (c->x8) return true;
    struct error e;
    c->x8_bytes = 0;
    error_set(&e, ERR_MEMORY, "no memory for %zu bytes of activations in int8", bytes);
    kctx_fail(&c->base, &e);
    return false;
}

/* How many rows are quantised at once: their x stays in the second-level cache while all weights
 * pass by. */
static int32_t x8_rows(const struct cpu_ctx *c, int32_t cols, int32_t T) {
    int32_t n = (int32_t)(X8_BYTES / (x8_row_words(cols) * 4));
    n = n < X8_ROWS_MAX ? n / c->int8->rows * c->int8->rows : X8_ROWS_MAX;
    if (n < c->int8->rows) n = c->int8->rows;
    return n < T ? n : T;
}

/* Groups as even as can be. */
static struct x8 x8_groups(const struct cpu_ctx *c, int32_t n, int32_t cols) {
    int32_t groups = (n + c->int8->rows - 1) / c->int8->rows;
    return (struct x8){c->x8, n, (n + groups - 1) / groups, cols};
}

void cpu_linear(struct kctx *base, const struct linear_job *jobs, int n_jobs, dev_addr x,
                int32_t T) {
    struct cpu_ctx *c = cpu_of(base);
    if (kctx_failed(base) || T == 0 || n_jobs == 0) return;
    if (c->bf16) {
        cpu_linear_bf16(base, jobs, n_jobs, x, T);
        return;
    }
    struct linear_call call = {.c = c, .jobs = jobs, .n_jobs = n_jobs, .cols = jobs[0].w->cols};
    size_t work = 0, scratch = MATMUL_SCRATCH;
    for (int i = 0; i < n_jobs; i++) {
        work += (size_t)jobs[i].w->rows * (size_t)jobs[i].w->cols;
        call.int8 |= takes_int8(c, &jobs[i]);
    }
    int32_t at_once = T;
    if (call.int8) {
        at_once = x8_rows(c, call.cols, T);
        if (!x8_room(c, at_once, call.cols)) return;
        if (scratch < x8_row_words(call.cols) * 4) scratch = x8_row_words(call.cols) * 4;
        if (scratch < INT8_SCRATCH) scratch = INT8_SCRATCH;
    }
    if (!cpu_scratch(c, scratch)) return;
    for (int32_t t = 0; t < T; t += at_once) {
        call.first_row = t;
        call.T = T - t < at_once ? T - t : at_once;
        call.x = (const float *)cpu_at(c, x) + (size_t)t * (size_t)call.cols;
        if (call.int8) call.x8 = x8_groups(c, call.T, call.cols);
        cpu_parallel(c, work * (size_t)call.T, linear_slice, &call);
    }
}
