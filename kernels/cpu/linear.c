/* y = x w^T: cuts the panels of all jobs for the team. */
#include "kernels/cpu/train.h"

struct linear_call {
    struct cpu_ctx *c;
    const struct linear_job *jobs;
    int n_jobs;
    const float *x;
    int32_t T;
};

static int64_t panels_of(const struct linear_job *job) {
    return round_up(job->w->rows, LANES) / LANES;
}

static void linear_panels(const struct linear_call *call, const struct linear_job *job,
                          int32_t from, int32_t to, uint8_t *scratch) {
    const struct cpu_ctx *c = call->c;
    struct panels w = cpu_panels(c, job->w);
    const float *bias = job->bias ? cpu_at(c, job->bias) : NULL;
    float *y = cpu_at(c, job->y);
    if (call->T == 1)
        c->level->matvec(&w, from, to, call->x, bias, y);
    else
        c->level->matmul(&w, from, to, call->x, call->T, bias, y, scratch);
}

/* A member's part is a run in the list of all panels of all jobs; the matrix product takes them by
 * two. */
static void linear_slice(void *arg, int member, int n_members) {
    const struct linear_call *call = arg;
    int64_t total = 0, from, to, first = 0;
    for (int i = 0; i < call->n_jobs; i++) total += panels_of(&call->jobs[i]);
    team_slice(total, call->T == 1 ? 1 : 2, member, n_members, &from, &to);
    for (int i = 0; i < call->n_jobs; i++) {
        int64_t n = panels_of(&call->jobs[i]);
        int64_t a = from > first ? from - first : 0, b = to - first < n ? to - first : n;
        if (a < b)
            linear_panels(call, &call->jobs[i], (int32_t)a, (int32_t)b,
                          cpu_scratch_of(call->c, member));
        first += n;
    }
}

void cpu_linear(struct kctx *base, const struct linear_job *jobs, int n_jobs, dev_addr x,
                int32_t T) {
    struct cpu_ctx *c = cpu_of(base);
    if (kctx_failed(base) || T == 0 || !cpu_scratch(c, MATMUL_SCRATCH)) return;
    if (c->bf16) {
        cpu_linear_bf16(base, jobs, n_jobs, x, T);
        return;
    }
    struct linear_call call = {c, jobs, n_jobs, cpu_at(c, x), T};
    size_t work = 0;
    for (int i = 0; i < n_jobs; i++)
        work += (size_t)jobs[i].w->rows * (size_t)jobs[i].w->cols * (size_t)T;
    cpu_parallel(c, work, linear_slice, &call);
}
