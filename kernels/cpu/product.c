/* matmul, linear_dx, and linear in bf16: cuts the output into rectangles, one for each member. */
#include "kernels/cpu/train.h"

struct product_call {
    struct cpu_ctx *c;
    const struct product *product;
    int32_t M, N;
    int n_down, n_across; /* rectangles */
};

enum { ROW_GRAIN = 12, COL_GRAIN = 32 };

static void product_slice(void *arg, int member, int n_members) {
    const struct product_call *call = arg;
    int n = n_members == 1 ? 1 : call->n_down * call->n_across;
    int down = n == 1 ? 1 : call->n_down, across = n / down;
    int64_t r0, r1, c0, c1;
    if (member >= n) return;
    team_slice(call->M, ROW_GRAIN, member / across, down, &r0, &r1);
    team_slice(call->N, COL_GRAIN, member % across, across, &c0, &c1);
    if (r0 == r1 || c0 == c1) return;
    struct product_part part = {(int32_t)r0, (int32_t)(r1 - r0), (int32_t)c0, (int32_t)(c1 - c0)};
    call->c->level->train->product(call->product, &part, cpu_scratch_of(call->c, member));
}

static int64_t part_of(int32_t n, int32_t grain, int parts) {
    int64_t grains = (n + grain - 1) / grain;
    return (grains + parts - 1) / parts * grain;
}

/* The cheapest way to deal a rectangle to the team. Beside its products a member copies its rows of
 * a and its columns of b; copying is weighed as so many columns or rows more. */
static void deal(struct product_call *call, int team) {
    enum { COPY_A = 8, COPY_B = 32 };
    int64_t best = INT64_MAX;
    for (int down = 1; down <= team; down++) {
        int across = team / down;
        int64_t rows = part_of(call->M, ROW_GRAIN, down),
                cols = part_of(call->N, COL_GRAIN, across);
        int64_t cost = (rows + COPY_B) * (cols + COPY_A);
        if (cost < best) {
            best = cost;
            call->n_down = down;
            call->n_across = across;
        }
    }
}

static void run_product(struct cpu_ctx *c, struct product *p, int32_t M, int32_t N) {
    p->bf16 = c->bf16_products;
    if (M == 0 || N == 0 || !cpu_scratch(c, PRODUCT_SCRATCH)) return;
    struct product_call call = {.c = c, .product = p, .M = M, .N = N};
    size_t work = (size_t)M * (size_t)N;
    for (int i = 0; i < p->n_terms; i++) work += (size_t)M * (size_t)N * (size_t)p->terms[i].n_k;
    deal(&call, team_size(c->team));
    cpu_parallel(c, work, product_slice, &call);
}

void cpu_matmul(struct kctx *base, dev_addr out, int32_t M, int32_t N, int32_t K, dev_addr a,
                bool ta, dev_addr b, bool tb, float alpha, float beta) {
    struct cpu_ctx *c = cpu_of(base);
    if (kctx_failed(base)) return;
    struct product_term term = {.n_k = K,
                                .a = cpu_at(c, a),
                                .a_stride = (size_t)(ta ? M : K),
                                .a_turned = ta,
                                .b = cpu_at(c, b),
                                .b_stride = (size_t)(tb ? K : N),
                                .b_turned = tb};
    struct product p = {&term, 1, cpu_at(c, out), (size_t)N, alpha, beta, NULL, false};
    run_product(c, &p, M, N);
}

void cpu_linear_bf16(struct kctx *base, const struct linear_job *jobs, int n_jobs, dev_addr x,
                     int32_t T) {
    struct cpu_ctx *c = cpu_of(base);
    for (int i = 0; i < n_jobs; i++) {
        const struct weight *w = jobs[i].w;
        struct product_term term = {.n_k = w->cols,
                                    .a = cpu_at(c, x),
                                    .a_stride = (size_t)w->cols,
                                    .b_turned = true,
                                    .w = cpu_panels(c, w)};
        struct product p = {&term, 1, cpu_at(c, jobs[i].y), (size_t)w->rows, 1, 0,
                            jobs[i].bias ? cpu_at(c, jobs[i].bias) : NULL, false};
        run_product(c, &p, T, w->rows);
    }
}

void cpu_linear_dx(struct kctx *base, const struct linear_job *jobs, int n_jobs, dev_addr dx,
                   int32_t T, bool accumulate) {
    enum { JOBS_MAX = 8 };
    struct cpu_ctx *c = cpu_of(base);
    struct product_term terms[JOBS_MAX];
    int32_t cols = jobs[0].w->cols;
    if (kctx_failed(base)) return;
    for (int from = 0; from < n_jobs; from += JOBS_MAX) {
        struct product p = {terms, 0, cpu_at(c, dx), (size_t)cols, 1, accumulate || from > 0,
                            NULL, false};
        for (; p.n_terms < JOBS_MAX && from + p.n_terms < n_jobs; p.n_terms++) {
            const struct linear_job *job = &jobs[from + p.n_terms];
            terms[p.n_terms] = (struct product_term){.n_k = job->w->rows,
                                                     .a = cpu_at(c, job->y),
                                                     .a_stride = (size_t)job->w->rows,
                                                     .w = cpu_panels(c, job->w)};
        }
        run_product(c, &p, T, cols);
    }
}
