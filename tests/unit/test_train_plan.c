/* The plan backend on training's operations: they cost what they should, and an operand that runs
 * over its allocation is named. */
#include "kernels/kernels.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { T = 20, D = 64, F = 96, V = 50, H = 4, K = 2, E = 16, OPERANDS = 12 };
static const int32_t kv_of_head[H] = {0, 0, 1, 1};

static struct kctx *open_plan(void) {
    struct kctx *c;
    struct error e;
    if (kernels_plan_open(&c, 0, 0, NULL, &e) != 0) fail_msg("%s", e.message);
    return c;
}

static dev_addr block(struct kctx *c, size_t bytes) {
    dev_addr at;
    struct error e;
    if (c->ops->mem_alloc(c, MEM_ACTIVATIONS, bytes, &at, &e) != 0) fail_msg("%s", e.message);
    return at;
}

/* An operation on operands x[0], x[1] …, of that many bytes; sizes are multiples of 256, as
 * allocations are. */
struct operation {
    const char *name;
    void (*run)(struct kctx *c, const dev_addr *x);
    size_t bytes[OPERANDS];
};

static void run_matmul(struct kctx *c, const dev_addr *x) {
    c->ops->matmul(c, x[0], T, F, D, x[1], true, x[2], false, 1, 1);
}
static void run_linear_dx(struct kctx *c, const dev_addr *x) {
    struct weight w = {DTYPE_F32, F, D, x[0], F * D * 4, 0};
    c->ops->linear_dx(c, &(struct linear_job){&w, 0, x[1]}, 1, x[2], T, true);
}
static void run_col_sum(struct kctx *c, const dev_addr *x) {
    c->ops->col_sum(c, x[0], x[1], T, D);
}
static void run_rmsnorm_dx(struct kctx *c, const dev_addr *x) {
    c->ops->rmsnorm_dx(c, x[0], x[1], x[2], x[3], x[4], T, D, 1e-5f);
}
static void run_rope_rows(struct kctx *c, const dev_addr *x) {
    c->ops->rope_rows(c, x[0], H, x[1], T, E, true);
}
static void run_attention_rows(struct kctx *c, const dev_addr *x) {
    c->ops->attention_rows(c, x[0], H * E, x[1], x[2], H, x[3], x[4], K, kv_of_head, E, x[5], 64, 1,
                           0);
}
static void run_attention_rows_dx(struct kctx *c, const dev_addr *x) {
    c->ops->attention_rows_dx(c, x[0], x[1], x[2], x[3], x[4], H * E, x[5], x[6], H, x[7], x[8], K,
                              kv_of_head, E, x[9], 64, 1, 0);
}
static void run_silu_mul_dx(struct kctx *c, const dev_addr *x) {
    c->ops->silu_mul_dx(c, x[0], x[1], x[2], x[3], x[4], T, D);
}
static void run_ce_stats(struct kctx *c, const dev_addr *x) {
    c->ops->ce_stats(c, x[0], x[1], x[2], 64, V, 0);
}
static void run_ce_grad(struct kctx *c, const dev_addr *x) {
    c->ops->ce_grad(c, x[0], x[1], x[2], 2, x[3], x[4], 64, V, 0);
}
static void run_embed_rows(struct kctx *c, const dev_addr *x) {
    c->ops->embed_rows(c, x[0], x[1], x[2], 64, D, V, 0, 1);
}
static void run_embed_grad(struct kctx *c, const dev_addr *x) {
    c->ops->embed_grad(c, x[0], x[1], x[2], 64, D, V, 0, 1);
}
static void run_copy(struct kctx *c, const dev_addr *x) {
    c->ops->copy(c, x[0], x[1], 512);
}
static void run_axpy(struct kctx *c, const dev_addr *x) {
    c->ops->axpy(c, x[0], x[1], 128, 2);
}
static void run_dropout(struct kctx *c, const dev_addr *x) {
    c->ops->dropout(c, x[0], x[1], T, D, D, 0, 0.1f, 1, 1);
}
static void run_sum_squares(struct kctx *c, const dev_addr *x) {
    c->ops->sum_squares(c, x[0], x[1], 128);
}
static void run_adamw(struct kctx *c, const dev_addr *x) {
    struct adamw_params params = {.c1 = 1, .c2 = 1};
    c->ops->adamw(c, x[0], x[1], x[2], x[3], 128, &params, 1);
}

#define Q  (64 * H * E * 4)
#define KV (64 * K * E * 4)
static const struct operation operations[] = {
    {"matmul", run_matmul, {T * F * 4, T *D * 4, D *F * 4}},
    {"linear_dx", run_linear_dx, {F * D * 4, T *F * 4, T *D * 4}},
    {"col_sum", run_col_sum, {D * 4, T *D * 4}},
    {"rmsnorm_dx", run_rmsnorm_dx, {T * D * 4, D * 4, T *D * 4, T *D * 4, D * 4}},
    {"rope_rows", run_rope_rows, {T * H * E * 4, T *E * 4}},
    {"attention_rows", run_attention_rows, {Q, 64 * H * 4, Q, KV, KV, 256}},
    {"attention_rows_dx", run_attention_rows_dx, {Q, KV, KV, Q, Q, 64 * H * 4, Q, KV, KV, 256}},
    {"silu_mul_dx", run_silu_mul_dx, {T * D * 4, T *D * 4, T *D * 4, T *D * 4, T *D * 4}},
    {"ce_stats", run_ce_stats, {64 * 3 * 4, 64 * V * 4, 256}},
    {"ce_grad", run_ce_grad, {256, 64 * V * 4, 64 * 2 * 3 * 4, 256, 256}},
    {"embed_rows", run_embed_rows, {64 * D * 4, V *D * 4, 256}},
    {"embed_grad", run_embed_grad, {V * D * 4, 64 * D * 4, 256}},
    {"copy", run_copy, {512, 512}},
    {"axpy", run_axpy, {512, 512}},
    {"dropout", run_dropout, {T * D * 4, T *D * 4}},
    {"sum_squares", run_sum_squares, {256, 512}},
    {"adamw", run_adamw, {512, 512, 512, 512}},
};

static int operand_count(const struct operation *op) {
    int n = 0;
    while (n < OPERANDS && op->bytes[n]) n++;
    return n;
}

static void operands_that_fit_pass_and_short_ones_are_named(void **state) {
    (void)state;
    struct kctx *c = open_plan();
    struct error e;
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++) {
        const struct operation *op = &operations[i];
        int n = operand_count(op);
        for (int short_one = -1; short_one < n; short_one++) {
            dev_addr x[OPERANDS];
            /* 256 bytes too late, it ends behind its block */
            for (int j = 0; j < n; j++) x[j] = block(c, op->bytes[j]) + (j == short_one ? 256 : 0);
            op->run(c, x);
            if (short_one < 0) {
                if (c->ops->wait(c, &e) != 0) fail_msg("%s: %s", op->name, e.message);
                assert_true(kernels_plan_counts(c)->bytes_written > 0);
                continue;
            }
            if (c->ops->wait(c, &e) == 0) fail_msg("%s: operand %d ran over", op->name, short_one);
            assert_int_equal(strncmp(e.message, op->name, strlen(op->name)), 0);
        }
    }
    c->ops->close(c);
}

static void costs_are_those_of_the_mathematics(void **state) {
    (void)state;
    struct kctx *c = open_plan();
    const struct plan_counts *counts = kernels_plan_counts(c);
    dev_addr x[OPERANDS];
    for (int i = 0; i < OPERANDS; i++) x[i] = block(c, 1 << 20);
    run_matmul(c, x);
    assert_int_equal(counts->flops, 2 * T * F * D);
    assert_int_equal(counts->bytes_written, T * F * 4);
    assert_int_equal(counts->bytes_read, (T * D + D * F + T * F) * 4); /* beta != 0: out too */
    kernels_plan_reset(c);
    run_linear_dx(c, x);
    assert_int_equal(counts->flops, 2 * T * F * D);
    kernels_plan_reset(c);
    run_attention_rows(c, x);
    assert_int_equal(counts->flops, 4 * (64 * 65 / 2) * H * E);
    kernels_plan_reset(c);
    c->ops->attention_rows(c, x[0], H * E, x[1], x[2], H, x[3], x[4], K, kv_of_head, E, x[5], 64, 1,
                           10);
    assert_int_equal(counts->flops, 4 * (10 * 11 / 2 + 54 * 10) * H * E);
    c->ops->close(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operands_that_fit_pass_and_short_ones_are_named),
        cmocka_unit_test(costs_are_those_of_the_mathematics),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
