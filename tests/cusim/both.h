/* What the tests of the CUDA operations share: a CPU context and one of a simulated device (gpu), the same memory and matrices on all, random numbers, and comparing. */
#ifndef TPD_TESTS_CUSIM_BOTH_H
#define TPD_TESTS_CUSIM_BOTH_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

extern "C" {
#include <cmocka.h>
}

#include "kernels/cuda/table.h"
#include "kernels/kernels.h"
#include "sim.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

static struct kctx *cpu, *gpu;
static struct kctx *by_library, *by_own_kernels; /* what gpu may be: without and with same_bits */
static uint64_t state = 1;

static inline uint32_t random_u32() {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 32);
}
static inline int random_int(int from, int to) { return from + (int)(random_u32() % (uint32_t)(to - from + 1)); }
static inline float random_float() { return (float)(int32_t)random_u32() * 0x1p-31f; }
static std::vector<float> random_floats(size_t n) {
    std::vector<float> x(n);
    for (float &v : x) v = random_float();
    return x;
}

static inline int open_both(void **) {
    const char *seed = getenv("CUSIM_SEED"); /* other shapes and numbers, too */
    if (seed) state = strtoull(seed, nullptr, 0);
    struct error e;
    struct cpu_options on_cpu = {};
    on_cpu.cores.n = 1;
    core_set_allowed(&on_cpu.cores);
    on_cpu.cores.n = 1;
    if (kernels_cpu_open(&cpu, 0, &on_cpu, &e)) return -1;
    const struct cuda_table *table = cuda_table_load(&e);
    struct cuda_options on_gpu = {}, exact = {};
    exact.same_bits = true;
    if (!table || table->open(&by_library, 0, &on_gpu, &e) || table->open(&by_own_kernels, 0, &exact, &e)) {
        fprintf(stderr, "%s\n", e.message);
        return -1;
    }
    gpu = by_library;
    return 0;
}

static inline int close_both(void **) {
    cpu->ops->close(cpu);
    by_library->ops->close(by_library);
    by_own_kernels->ops->close(by_own_kernels);
    return 0;
}

/* The same memory on both. */
struct both {
    dev_addr at[2];
    size_t bytes;
    dev_addr on(struct kctx *c) const { return at[c == gpu]; }
};

static inline struct both put(const void *from, size_t bytes) {
    struct both b = {{0, 0}, bytes};
    struct error e;
    struct kctx *contexts[2] = {cpu, gpu};
    for (int i = 0; i < 2; i++) {
        if (contexts[i]->ops->mem_alloc(contexts[i], MEM_ACTIVATIONS, bytes + 16, &b.at[i], &e))
            fail_msg("%s", e.message);
        if (from) contexts[i]->ops->upload(contexts[i], b.at[i], from, bytes);
    }
    return b;
}

static inline struct both put(const std::vector<float> &x) { return put(x.data(), x.size() * 4); }
static inline struct both put(const std::vector<int32_t> &x) { return put(x.data(), x.size() * 4); }
static inline struct both room(size_t floats) { return put(nullptr, floats * 4); }

static inline void drop(std::initializer_list<struct both> list) {
    for (const struct both &b : list) {
        cpu->ops->mem_free(cpu, b.at[0]);
        gpu->ops->mem_free(gpu, b.at[1]);
    }
}

template <class T> static std::vector<T> get(struct kctx *c, const struct both &b) {
    std::vector<T> x(b.bytes / sizeof(T));
    struct error e;
    c->ops->download(c, x.data(), b.on(c), b.bytes);
    if (c->ops->wait(c, &e)) fail_msg("%s (%s)", e.message, cusim::last_fault().c_str());
    return x;
}

static inline void same(const char *what, const struct both &b, double tolerance) {
    std::vector<float> want = get<float>(cpu, b), got = get<float>(gpu, b);
    for (size_t i = 0; i < want.size(); i++)
        if (!(std::fabs((double)got[i] - want[i]) <= tolerance * (1 + std::fabs((double)want[i]))))
            fail_msg("%s, element %zu of %zu: %.9g, not %.9g", what, i, want.size(), (double)got[i],
                     (double)want[i]);
}

/* Runs f on both. */
template <class F> static void run(F f) {
    f(cpu, cpu->ops);
    f(gpu, gpu->ops);
}

/* Runs f once for each way of making products. */
template <class F> static void each_way(F f) {
    for (struct kctx *one : {by_library, by_own_kernels}) {
        gpu = one;
        f();
    }
    gpu = by_library;
}

/* --- weights ---------------------------------------------------------------------------------------- */

static inline void put16(uint8_t *at, uint16_t v) { memcpy(at, &v, 2); }

/* A legal row, values of about 1: random bytes, but for the block's own scales. */
static inline void random_row(enum dtype type, int32_t cols, uint8_t *row) {
    static const struct {
        int d, min;
    } places[DTYPE_COUNT] = {{0, -1}, {0, -1}, {0, -1}, {0, -1}, {0, -1},  {0, 2},    {0, -1},
                             {0, 2},  {80, 82}, {108, -1}, {0, 2}, {0, 2}, {208, -1}};
    const struct dtype_info *info = dtype_info(type);
    for (int32_t k = 0; k < cols; k += info->block, row += info->block_bytes) {
        for (int i = 0; i < info->block_bytes; i++) row[i] = (uint8_t)random_u32();
        float size = info->block == 256 ? 1.0f / 512 : 1.0f / 16, x = random_float();
        if (type == DTYPE_F32) memcpy(row, &x, 4);
        else if (type == DTYPE_BF16) put16(row, f32_to_bf16(x));
        else if (type == DTYPE_F16) put16(row, f32_to_f16(x));
        else {
            put16(row + places[type].d, f32_to_f16(size * random_float()));
            if (places[type].min >= 0) put16(row + places[type].min, f32_to_f16(size * random_float()));
        }
    }
}

struct weights {
    struct weight on[2];
};

static inline struct weights random_weights(enum dtype type, int32_t rows, int32_t cols) {
    struct weights w = {};
    struct error e;
    size_t stride = dtype_row_bytes(type, cols);
    std::vector<uint8_t> bytes(stride * (size_t)rows);
    for (int32_t i = 0; i < rows; i++) random_row(type, cols, &bytes[(size_t)i * stride]);
    struct kctx *contexts[2] = {cpu, gpu};
    for (int i = 0; i < 2; i++) {
        struct kctx *c = contexts[i];
        if (c->ops->weight_new(c, type, rows, cols, &w.on[i], &e)) fail_msg("%s", e.message);
        c->ops->weight_put(c, &w.on[i], 0, rows, bytes.data(), stride);
    }
    return w;
}

static inline void drop(struct weights *w) {
    cpu->ops->weight_free(cpu, &w->on[0]);
    gpu->ops->weight_free(gpu, &w->on[1]);
}

#endif
