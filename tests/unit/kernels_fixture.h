/* tests/unit/kernels_fixture.h: contexts of every level this machine has, and random inputs. */
#ifndef TPD_TESTS_KERNELS_FIXTURE_H
#define TPD_TESTS_KERNELS_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "kernels/cpu/layout.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline struct kctx *open_options(int n_cores, const struct cpu_options *wanted) {
    struct cpu_options options = *wanted;
    struct core_set allowed;
    core_set_allowed(&allowed);
    options.cores.n = n_cores;
    for (int i = 0; i < n_cores; i++) options.cores.cpus[i] = allowed.cpus[i % allowed.n];
    struct kctx *c;
    struct error e;
    if (kernels_cpu_open(&c, 0, &options, &e) != 0) fail_msg("%s", e.message);
    return c;
}
static inline struct kctx *open_ctx(int n_cores, size_t limit, bool alias) {
    return open_options(n_cores,
                        &(struct cpu_options){.memory_limit = limit, .debug_alias = alias});
}

/* Runs body(ctx) at one level, where this machine has it, with one core and with two, plain and under
 * the alias. */
static __attribute__((noinline, unused)) void on_level(const char *level, void (*body)(struct kctx *c)) {
    setenv("TPD_CPU_CAP", level, 1);
    for (int n_cores = 1; n_cores <= 2 && strcmp(kernels_cpu_level(), level) == 0; n_cores++) {
        struct kctx *c = open_ctx(n_cores, 0, n_cores == 2);
        body(c);
        c->ops->close(c);
    }
    unsetenv("TPD_CPU_CAP");
}
/* At each, but for avxvnni: it differs from avx2 in int8 products alone; avx512bf16 from
 * avx512 in products of bf16, which nobody gets who has not asked. */
static inline void on_every_level(void (*body)(struct kctx *c)) {
    on_level("portable", body);
    on_level("avx2", body);
    on_level("avx512", body);
}

static uint64_t random_state = 1;

static inline uint32_t random_u32(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 32);
}
static inline int random_int(int from, int to) {
    return from + (int)(random_u32() % (uint32_t)(to - from + 1));
}
static inline float random_float(void) { /* -1 … 1 */
    return (float)(int32_t)random_u32() * 0x1p-31f;
}
static inline float *random_floats(size_t n) {
    float *x = malloc((n + 1) * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = random_float();
    return x;
}

/* A legal row of any type, values of about 1. */
static inline void random_row(enum dtype type, int32_t cols, uint8_t *row) {
    const struct dtype_info *info = dtype_info(type);
    if (!dtype_is_quantised(type)) {
        for (int32_t i = 0; i < cols; i++) {
            float x = random_float();
            uint16_t half = type == DTYPE_F16 ? f32_to_f16(x) : f32_to_bf16(x);
            if (type == DTYPE_F32)
                memcpy(row + 4 * i, &x, 4);
            else
                memcpy(row + 2 * i, &half, 2);
        }
        return;
    }
    const struct layout *l = &layouts[type];
    float size = l->scale_words ? 1.0f / 512 : 1.0f / 16;
    for (int32_t k = 0; k < cols; k += info->block, row += info->block_bytes) {
        for (int i = 0; i < info->block_bytes; i++) row[i] = (uint8_t)random_u32();
        uint16_t d = f32_to_f16(size * random_float()), min = f32_to_f16(size * random_float());
        memcpy(row + l->d, &d, 2);
        if (l->min >= 0) memcpy(row + l->min, &min, 2);
    }
}

static inline dev_addr to_device(struct kctx *c, const void *from, size_t bytes) {
    dev_addr a;
    struct error e;
    if (c->ops->mem_alloc(c, MEM_ACTIVATIONS, bytes, &a, &e) != 0) fail_msg("%s", e.message);
    if (from) c->ops->upload(c, a, from, bytes);
    return a;
}
/* A copy to be freed by the caller. */
static inline void *from_device(struct kctx *c, dev_addr a, size_t bytes) {
    void *to = malloc(bytes + 1);
    struct error e;
    c->ops->download(c, to, a, bytes);
    if (c->ops->wait(c, &e) != 0) fail_msg("%s", e.message);
    return to;
}

static inline void assert_near(const char *what, float got, double want, double tolerance) {
    if (!(fabs((double)got - want) <= tolerance))
        fail_msg("%s at level %s: %.9g, not %.9g", what, kernels_cpu_level(), (double)got, want);
}

#endif
