/* bench_train_kernels: GFLOP/s of the products and the attention of training, at the shapes of
 * SmolLM2-135M, on one core and on all.
 *
 * Every figure is the best of several calls, since other work on the machine only ever slows one
 * down. FLOPs are counted as the plan backend counts them. */
#include "kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>

enum { CALLS = 7, HIDDEN = 576, FFN = 1536, HEADS = 9, KV_HEADS = 3, HEAD_SIZE = 64 };
static const int32_t kv_of_head[HEADS] = {0, 0, 0, 1, 1, 1, 2, 2, 2};

static void check(int code, const struct error *e) {
    if (code == 0) return;
    fprintf(stderr, "bench_train_kernels: %s\n", e->message);
    exit(EXIT_FAILED);
}

static float random_float(void) {
    static uint32_t state = 1;
    state = state * 1664525u + 1013904223u;
    return (float)(int32_t)state * 0x1p-31f;
}

static dev_addr floats(struct kctx *c, size_t n) {
    dev_addr at;
    struct error e;
    float *x = malloc(n * sizeof *x);
    check(c->ops->mem_alloc(c, MEM_ACTIVATIONS, n * sizeof *x, &at, &e), &e);
    for (size_t i = 0; i < n; i++) x[i] = random_float();
    c->ops->upload(c, at, x, n * sizeof *x);
    free(x);
    return at;
}

/* One way to call an operation again and again. */
struct work {
    void (*call)(struct kctx *c, const struct work *w);
    double flops;
    int32_t T, M, N, K;
    bool ta, tb;
    struct linear_job job;
    dev_addr x[10];
};

static void print_speed(struct kctx *c, const struct work *w) {
    int64_t best = INT64_MAX;
    for (int i = 0; i < CALLS; i++) {
        int64_t start = clock_ns();
        w->call(c, w);
        int64_t ns = clock_ns() - start;
        if (ns < best) best = ns;
    }
    struct error e;
    check(c->ops->wait(c, &e), &e);
    printf(" %8.1f", w->flops / (double)best);
    fflush(stdout);
}

/* --- products --------------------------------------------------------------------------------- */

static void call_matmul(struct kctx *c, const struct work *w) {
    c->ops->matmul(c, w->x[0], w->M, w->N, w->K, w->x[1], w->ta, w->x[2], w->tb, 1, 0);
}

/* The three products of a linear layer [out, in] on T rows, and the two thin ones of LoRA. */
static void print_products(struct kctx *c, int32_t T, int32_t in, int32_t out) {
    const struct {
        const char *name;
        int32_t M, N, K;
        bool ta, tb;
    } forms[] = {{"y = x w^T", T, out, in, false, true},
                 {"dx = dy w", T, in, out, false, false},
                 {"dw = dy^T x", out, in, T, true, false},
                 {"z = x a^T (rank 16)", T, 16, in, false, true},
                 {"da = dz^T x (rank 16)", 16, in, T, true, false}};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        size_t M = (size_t)forms[i].M, N = (size_t)forms[i].N, K = (size_t)forms[i].K;
        struct work w = {.call = call_matmul,
                         .flops = 2.0 * (double)M * (double)N * (double)K,
                         .M = forms[i].M,
                         .N = forms[i].N,
                         .K = forms[i].K,
                         .ta = forms[i].ta,
                         .tb = forms[i].tb,
                         .x = {floats(c, M * N), floats(c, M * K), floats(c, K * N)}};
        printf("%-24s T %4d  %4d -> %4d", forms[i].name, T, in, out);
        print_speed(c, &w);
        printf("\n");
        for (int j = 0; j < 3; j++) c->ops->mem_free(c, w.x[j]);
    }
}

static void call_linear_dx(struct kctx *c, const struct work *w) {
    c->ops->linear_dx(c, &w->job, 1, w->x[0], w->T, false);
}

/* What the numbers are does not matter to the time: rows of zero bytes are legal in every type. */
static void print_linear_dx(struct kctx *c, enum dtype type, int32_t T, int32_t in, int32_t out) {
    struct weight weight;
    struct error e;
    size_t row = dtype_row_bytes(type, in);
    void *zeros = calloc((size_t)out, row);
    check(c->ops->weight_new(c, type, out, in, &weight, &e), &e);
    c->ops->weight_put(c, &weight, 0, out, zeros, row);
    struct work w = {.call = call_linear_dx,
                     .flops = 2.0 * T * in * out,
                     .T = T,
                     .job = {&weight, 0, floats(c, (size_t)T * (size_t)out)},
                     .x = {floats(c, (size_t)T * (size_t)in)}};
    printf("linear_dx %-14s T %4d  %4d -> %4d", dtype_info(type)->name, T, in, out);
    print_speed(c, &w);
    printf("\n");
    c->ops->mem_free(c, w.job.y);
    c->ops->mem_free(c, w.x[0]);
    c->ops->weight_free(c, &weight);
    free(zeros);
}

/* --- attention -------------------------------------------------------------------------------- */

/* x: dq dk dv dout out lse q k v first */
static void call_attention(struct kctx *c, const struct work *w) {
    c->ops->attention_rows(c, w->x[4], HEADS * HEAD_SIZE, w->x[5], w->x[6], HEADS, w->x[7], w->x[8],
                           KV_HEADS, kv_of_head, HEAD_SIZE, w->x[9], w->T, 0.125f, 0);
}
static void call_attention_dx(struct kctx *c, const struct work *w) {
    c->ops->attention_rows_dx(c, w->x[0], w->x[1], w->x[2], w->x[3], w->x[4], HEADS * HEAD_SIZE,
                              w->x[5], w->x[6], HEADS, w->x[7], w->x[8], KV_HEADS, kv_of_head,
                              HEAD_SIZE, w->x[9], w->T, 0.125f, 0);
}

static void print_attention(struct kctx *c, int32_t T) {
    size_t q = (size_t)T * HEADS * HEAD_SIZE, kv = (size_t)T * KV_HEADS * HEAD_SIZE;
    const size_t sizes[10] = {q, kv, kv, q, q, (size_t)T * HEADS, q, kv, kv, (size_t)T};
    double pairs = (double)T * (T + 1) / 2 * HEADS * HEAD_SIZE;
    struct work w = {.call = call_attention, .flops = 4 * pairs, .T = T};
    for (int i = 0; i < 10; i++) w.x[i] = floats(c, sizes[i]);
    c->ops->scale(c, w.x[9], (size_t)T, 0); /* one sequence: all begin at row 0 */
    printf("attention forward        T %4d             ", T);
    print_speed(c, &w);
    printf("\nattention backward       T %4d             ", T);
    w.call = call_attention_dx;
    w.flops = 10 * pairs;
    print_speed(c, &w);
    printf("\n");
    for (int i = 0; i < 10; i++) c->ops->mem_free(c, w.x[i]);
}

static void print_team(const struct core_set *cores, bool bf16) {
    struct cpu_options options = {.cores = *cores};
    struct kctx *c;
    struct error e;
    check(kernels_cpu_open(&c, 0, &options, &e), &e);
    c->ops->bf16_products(c, bf16);
    printf("%d core%s, %s%s: GFLOP/s\n", cores->n, cores->n == 1 ? "" : "s", kernels_cpu_level(),
           bf16 ? ", products in bf16 (where the CPU has it)" : "");
    print_products(c, 512, HIDDEN, FFN);
    print_products(c, 2048, HIDDEN, HIDDEN);
    static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_Q8_0, DTYPE_Q4_1};
    for (int i = 0; i < 4; i++) print_linear_dx(c, types[i], 512, HIDDEN, FFN);
    if (!bf16) print_attention(c, 512);
    if (!bf16) print_attention(c, 2048);
    printf("\n");
    c->ops->close(c);
}

int main(void) {
    struct core_set cores;
    core_set_allowed(&cores);
    struct core_set one = {.n = 1, .cpus = {cores.cpus[0]}};
    print_team(&one, false);
    print_team(&one, true);
    if (cores.n > 1) print_team(&cores, false);
    return 0;
}
