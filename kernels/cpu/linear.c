/* y = x w^T: rounds x to what the weights are multiplied with, cuts the panels of all jobs for the team. */
#include "kernels/cpu/scratch.h"

/* x as a linear's jobs read it; of what no job reads, words is NULL. */
struct narrow {
    struct narrow_rows x8, x16;
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

/* In groups of at most `most` rows, as even as can be. */
static struct narrow_rows rows_at(uint8_t *room, int32_t n, int most, int32_t cols) {
    int32_t groups = (n + most - 1) / most;
    return (struct narrow_rows){(uint32_t *)(void *)room, n, (n + groups - 1) / groups, cols};
}

/* Where n rows of x will stand. */
static struct narrow narrow_at(const struct linear_call *call, uint8_t *room, int32_t n) {
    struct narrow to = {0};
    if (call->int8) {
        to.x8 = rows_at(room, n, call->c->int8->rows, call->cols);
        room += (size_t)n * x8_row_bytes(call->cols);
    }
    if (call->bf16) {
        const struct cpu_bf16 *b = call->c->bf16;
        to.x16 = rows_at(room, n, n <= b->few ? b->few : b->rows, call->cols);
    }
    return to;
}

/* What a member rounds of T rows: a run of them, which most often it has written itself; of a few a run of their
 * columns, since rows of a group lie between each other in the same cache lines. */
static struct narrow_part part_of(const struct linear_call *call, int member, int n_members) {
    enum { FEW = 48, COLS = 32 };
    bool few = call->T <= FEW;
    int64_t from, end;
    team_slice(few ? call->cols : call->T, few ? COLS : 1, member, n_members, &from, &end);
    return few ? (struct narrow_part){0, call->T, (int32_t)from, (int32_t)end}
               : (struct narrow_part){(int32_t)from, (int32_t)end, 0, call->cols};
}

/* One row each member rounds for itself: it takes less time than waiting for another. */
static struct narrow narrow(const struct linear_call *call, int member, int n_members,
                            uint8_t *scratch) {
    struct narrow to = call->narrow;
    bool one = call->T == 1;
    if (one) to = narrow_at(call, scratch, 1);
    struct narrow_part part = part_of(call, one ? 0 : member, one ? 1 : n_members);
    if (call->int8) call->c->int8->quantise(&to.x8, call->x, &part);
    if (call->bf16) call->c->bf16->prepare(&to.x16, call->x, &part);
    if (call->T > 1 && n_members > 1) team_barrier(call->c->team);
    return to;
}

/* How many rows a group has at most in what x is rounded to; 0: not rounded to that. */
static struct narrow_groups narrow_groups(const struct cpu_ctx *c, bool int8, bool bf16) {
    return (struct narrow_groups){int8 ? c->int8->rows : 0, bf16 ? c->bf16->rows : 0};
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

void cpu_linear(struct kctx *base, const struct linear_job *jobs, int n_jobs, dev_addr x,
                int32_t T) {
    struct cpu_ctx *c = cpu_of(base);
    if (kctx_failed(base) || T == 0 || n_jobs == 0) return;
    if (c->bf16_products) {
        cpu_linear_bf16(base, jobs, n_jobs, x, T);
        return;
    }
    struct linear_call call = {.c = c, .jobs = jobs, .n_jobs = n_jobs, .cols = jobs[0].w->cols, .T = T};
    size_t work = 0;
    for (int i = 0; i < n_jobs; i++) {
        work += (size_t)jobs[i].w->rows * (size_t)jobs[i].w->cols;
        call.int8 |= takes_int8(c, &jobs[i]);
        call.bf16 |= takes_bf16(c, &jobs[i]);
    }
    struct linear_scratch needed =
        linear_scratch(narrow_groups(c, call.int8, call.bf16), call.cols, T);
    int32_t at_once = needed.rows;
    if (!cpu_narrow_room(c, needed.narrow) || !cpu_scratch(c, needed.member)) return;
    for (int32_t t = 0; t < T; t += at_once) {
        call.first_row = t;
        call.T = T - t < at_once ? T - t : at_once;
        call.x = (const float *)cpu_at(c, x) + (size_t)t * (size_t)call.cols;
        call.narrow = narrow_at(&call, c->narrow, call.T);
        cpu_parallel(c, work * (size_t)call.T, linear_slice, &call);
    }
}
