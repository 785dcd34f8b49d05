/* The arena of a rank on CUDA: what is reserved is used, what is needed beyond comes and goes, what is not there
 * is an answer; and scratch memory is as large as plans say. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

extern "C" {
#include <cmocka.h>
}

#include "kernels/cuda/sizes.h"
#include "kernels/cuda/table.h"
#include "sim.h"

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

static uint64_t state = 1;
static int random_int(int from, int to) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return from + (int)((state >> 33) % (uint64_t)(to - from + 1));
}

static struct kctx *open_gpu(size_t limit, bool same_bits) {
    struct error e;
    struct kctx *c;
    struct cuda_options options = {};
    options.memory_limit = limit;
    options.same_bits = same_bits;
    const struct cuda_table *table = cuda_table_load(&e);
    if (!table || table->open(&c, 0, &options, &e)) fail_msg("%s", e.message);
    return c;
}

static dev_addr take(struct kctx *c, enum mem_kind kind, size_t bytes) {
    dev_addr at;
    struct error e;
    if (c->ops->mem_alloc(c, kind, bytes, &at, &e)) fail_msg("%s", e.message);
    assert_int_equal(at % 256, 0);
    return at;
}

static struct mem_use use_of(struct kctx *c) {
    struct mem_use use;
    c->ops->mem_use(c, &use);
    return use;
}

static void must_wait(struct kctx *c) {
    struct error e;
    if (c->ops->wait(c, &e)) fail_msg("%s (%s)", e.message, cusim::last_fault().c_str());
}

/* Allocations of the driver's, where it is a simulated one. */
static size_t stretches(void) {
#ifdef TPD_CUSIM
    return cusim::live_allocations();
#else
    return 0;
#endif
}

static const size_t KIB = 1 << 10;

static void what_is_reserved_is_cut_into_pieces(void **) {
    struct kctx *c = open_gpu(0, true);
    struct error e;
    struct mem_use planned = {};
    planned.bytes[MEM_WEIGHTS] = 96 * KIB;
    planned.bytes[MEM_KV] = 128 * KIB;
    planned.bytes[MEM_ACTIVATIONS] = 32 * KIB;
    planned.bytes[MEM_SCRATCH] = 8 * KIB;
    size_t before = stretches();
    assert_int_equal(c->ops->mem_reserve(c, &planned, &e), 0);
    assert_int_equal(use_of(c).bytes[MEM_SCRATCH], 8 * KIB);
    size_t reserved = stretches();
    if (before) assert_int_equal(reserved, before + 2);
    std::vector<dev_addr> weights;
    for (int i = 0; i < 3; i++) weights.push_back(take(c, MEM_WEIGHTS, 32 * KIB - 100 * (size_t)i));
    assert_true(weights[1] - weights[0] == 32 * KIB && weights[2] - weights[1] == 32 * KIB);
    dev_addr kv = take(c, MEM_KV, 128 * KIB), x = take(c, MEM_ACTIVATIONS, 32 * KIB);
    assert_int_equal(stretches(), reserved);
    assert_int_equal(use_of(c).bytes[MEM_KV], 128 * KIB);
    /* One piece more than was planned is a stretch more, for as long as it is there. */
    dev_addr more = take(c, MEM_ACTIVATIONS, 500);
    if (before) assert_int_equal(stretches(), reserved + 1);
    c->ops->mem_free(c, more);
    assert_int_equal(stretches(), reserved);
    for (dev_addr at : {kv, x, weights[0], weights[1], weights[2]}) c->ops->mem_free(c, at);
    must_wait(c);
    assert_int_equal(use_of(c).bytes[MEM_WEIGHTS] + use_of(c).bytes[MEM_KV], 0);
    c->ops->close(c);
}

static void pieces_are_cleared_whoever_had_them(void **) {
    struct kctx *c = open_gpu(0, true);
    std::vector<float> ones(700, 1), got(700, 1);
    dev_addr kept = take(c, MEM_KV, 256), at = take(c, MEM_KV, 2800);
    c->ops->upload(c, at, ones.data(), 2800);
    c->ops->mem_free(c, at);
    dev_addr again = take(c, MEM_ACTIVATIONS, 2800);
    assert_int_equal(again, at);
    c->ops->download(c, got.data(), again, 2800);
    must_wait(c);
    for (float x : got) assert_true(x == 0);
    c->ops->mem_free(c, again);
    c->ops->mem_free(c, kept);
    c->ops->close(c);
}

static void what_is_not_there_is_an_answer_and_the_rank_goes_on(void **) {
    enum { LIMIT = 1 << 20 };
    struct kctx *c = open_gpu(LIMIT, false);
    struct error e;
    dev_addr x = take(c, MEM_ACTIVATIONS, LIMIT / 2), y;
    assert_int_equal(c->ops->mem_alloc(c, MEM_KV, LIMIT / 2 + 1, &y, &e), -(int)ERR_MEMORY);
    assert_true(y == 0 && std::strcmp(e.notes[0].key, "needed") == 0 && e.notes[0].number > LIMIT / 2);
    assert_true(std::strcmp(e.notes[1].key, "free") == 0 && e.notes[1].number == LIMIT / 2);
    assert_int_equal(c->ops->mem_alloc(c, MEM_KV, SIZE_MAX, &y, &e), -(int)ERR_MEMORY);
    struct mem_use planned = {};
    planned.bytes[MEM_WEIGHTS] = planned.bytes[MEM_KV] = LIMIT / 3;
    assert_int_equal(c->ops->mem_reserve(c, &planned, &e), -(int)ERR_MEMORY);
    assert_non_null(std::strstr(e.message, "the memory that the plan reckons"));
    /* An operation that finds no scratch memory fails what it belongs to; the next one is another matter. */
    y = take(c, MEM_KV, LIMIT / 4);
    c->ops->bf16_products(c, true);
    enum { N = 700 }; /* a factor in bf16 alone is 980 kB */
    c->ops->matmul(c, x, 1, 1, N * N, x, false, x, false, 1, 0);
    assert_int_equal(c->ops->wait(c, &e), -(int)ERR_MEMORY);
    c->ops->matmul(c, y, 8, 8, 8, x, false, x, false, 1, 0);
    must_wait(c);
    c->ops->bf16_products(c, false);
    c->ops->mem_free(c, x);
    c->ops->mem_free(c, y);
    c->ops->close(c);
}

static void handles_open_the_stretch_of_weights_and_no_other(void **) {
    struct kctx *c = open_gpu(0, true);
    struct mem_handle a, b;
    struct error e;
    dev_addr first = take(c, MEM_WEIGHTS, 1000), second = take(c, MEM_WEIGHTS, 5000), kv = take(c, MEM_KV, 1000);
    assert_int_equal(c->ops->mem_export(c, first, nullptr, &a, &e), 0);
    assert_int_equal(c->ops->mem_export(c, second, nullptr, &b, &e), 0);
    assert_memory_equal(a.ipc, b.ipc, sizeof a.ipc);
    assert_int_equal(b.offset - a.offset, second - first);
    assert_true(a.kind == MEM_HANDLE_CUDA && a.bytes >= 1000 && b.bytes >= 5000);
#ifdef TPD_CUSIM
    uint64_t named;
    memcpy(&named, b.ipc, sizeof named); /* as tests/cusim makes them */
    assert_int_equal(named + b.offset, second);
#endif
    /* Not the cache, in which other people's prompts are, and not what is no allocation. */
    assert_int_equal(c->ops->mem_export(c, kv, nullptr, &b, &e), -(int)ERR_INTERNAL);
    assert_int_equal(c->ops->mem_export(c, second + 256, nullptr, &b, &e), -(int)ERR_INTERNAL);
    for (dev_addr at : {first, second, kv}) c->ops->mem_free(c, at);
    c->ops->close(c);
}

#ifdef TPD_CUSIM
static void expect_fault(struct kctx *c, const char *words) {
    struct error e;
    assert_int_equal(c->ops->wait(c, &e), -(int)ERR_DEVICE);
    if (cusim::last_fault().find(words) == std::string::npos) fail_msg("%s", cusim::last_fault().c_str());
    cusim::clear_fault();
}

/* The driver sees one allocation; its pieces are checked all the same. */
static void an_operation_that_leaves_its_memory_is_found(void **) {
    struct kctx *c = open_gpu(0, true);
    dev_addr x = take(c, MEM_ACTIVATIONS, 400), y = take(c, MEM_ACTIVATIONS, 400);
    assert_int_equal(y - x, 512);
    c->ops->scale(c, x, 101, 2);
    expect_fault(c, "of a piece of 400 bytes: out of bounds");
    c->ops->axpy(c, y, x, 128 + 10, 1); /* through the gap, into its neighbour */
    expect_fault(c, "out of bounds");
    c->ops->mem_free(c, y);
    c->ops->scale(c, y, 100, 2);
    expect_fault(c, "in a piece that was freed");
    c->ops->mem_free(c, x);
    c->ops->close(c);
}
#endif

/* --- scratch memory is what plans say ------------------------------------------------------------------- */

/* Runs an operation on a new context of the device and on a plan for it: both end with as much scratch, or the
 * plan with up to slack bytes more. */
template <class F> static void same_scratch(const char *what, bool same_bits, F f, size_t slack = 0) {
    struct kctx *gpu = open_gpu(0, same_bits), *plan;
    struct device_figures figures;
    struct error e;
    gpu->ops->figures(gpu, &figures);
    if (kernels_plan_open(&plan, 0, 0, &figures, &e)) fail_msg("%s", e.message);
    size_t least = use_of(plan).bytes[MEM_SCRATCH]; /* cuBLAS's, which the device takes with its first product */
    for (struct kctx *c : {gpu, plan}) {
        f(c, c->ops);
        if (c->ops->wait(c, &e)) fail_msg("%s: %s (%s)", what, e.message, cusim::last_fault().c_str());
    }
    size_t has = use_of(gpu).bytes[MEM_SCRATCH], said = use_of(plan).bytes[MEM_SCRATCH];
    if (has > said || has + least + slack < said)
        fail_msg("%s: %zu bytes of scratch were planned, %zu are there", what, said, has);
    gpu->ops->close(gpu);
    plan->ops->close(plan);
}

static struct weight matrix(struct kctx *c, enum dtype type, int32_t rows, int32_t cols) {
    struct weight w;
    struct error e;
    if (c->ops->weight_new(c, type, rows, cols, &w, &e)) fail_msg("%s", e.message);
    std::vector<uint8_t> zeros(dtype_row_bytes(type, cols) * (size_t)rows);
    c->ops->weight_put(c, &w, 0, rows, zeros.data(), dtype_row_bytes(type, cols));
    return w;
}

static dev_addr floats(struct kctx *c, int64_t rows, int64_t cols) {
    return take(c, MEM_ACTIVATIONS, (size_t)(rows * cols) * 4);
}

static void products_take_the_scratch_memory_that_was_planned(void **) {
    static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16, DTYPE_Q8_0, DTYPE_Q4_0};
    for (int i = 0; i < 24; i++) {
        enum dtype type = types[i % 5];
        int32_t T = random_int(1, 70), rows = random_int(1, 60), cols = 32 * random_int(1, 8);
        bool bf16 = random_int(0, 1), same_bits = i % 6 == 5, turned = random_int(0, 1);
        same_scratch("products", same_bits, [=](struct kctx *c, const struct kernels *ops) {
            struct weight w = matrix(c, type, rows, cols);
            struct linear_job job = {&w, 0, floats(c, T, rows)};
            dev_addr x = floats(c, T, cols), out = floats(c, T, rows), b = floats(c, rows, cols);
            ops->bf16_products(c, bf16);
            if (i % 3 != 1) ops->linear(c, &job, 1, x, T);
            if (i % 3 != 2) ops->linear_dx(c, &job, 1, x, T, true);
            if (i % 2) ops->matmul(c, out, T, rows, cols, x, false, b, turned, 1, 0);
        });
    }
}

static void sums_take_the_scratch_memory_that_was_planned(void **) {
    for (int i = 0; i < 12; i++) {
        int32_t T = random_int(1, 600), d = random_int(1, 40);
        same_scratch("sums", true, [=](struct kctx *c, const struct kernels *ops) {
            dev_addr x = floats(c, T, d), dx = floats(c, T, d), g = floats(c, 1, d), dg = floats(c, 1, d);
            if (i % 3 == 0) ops->col_sum(c, g, x, T, d);
            if (i % 3 == 1) ops->rmsnorm_dx(c, dx, i % 2 ? dg : 0, x, x, g, T, d, 1e-5f);
            if (i % 3 == 2) ops->sum_squares(c, g, x, (size_t)T * (size_t)d);
        });
    }
}

static void attention_takes_no_more_scratch_memory_than_was_planned(void **) {
    enum { H = 4, K = 2, E = 8, BLOCK = 16, BLOCKS = 40 };
    static const int32_t kv_of_head[H] = {0, 0, 1, 1};
    for (int32_t T = 1; T <= 3; T++)
        same_scratch("attention", true, [=](struct kctx *c, const struct kernels *ops) {
            std::vector<int32_t> pos((size_t)T, BLOCK * BLOCKS - 1), seq, blocks;
            for (int32_t t = 0; t < T; t++) seq.push_back(t);
            for (int32_t i = 0; i < T * BLOCKS; i++) blocks.push_back(i % BLOCKS);
            struct step_rows rows = {T, T, BLOCKS, take(c, MEM_BUFFERS, 4 * (size_t)T),
                                     take(c, MEM_BUFFERS, 4 * (size_t)T), take(c, MEM_BUFFERS, 4 * blocks.size())};
            ops->upload(c, rows.pos, pos.data(), 4 * (size_t)T);
            ops->upload(c, rows.seq, seq.data(), 4 * (size_t)T);
            ops->upload(c, rows.blocks, blocks.data(), 4 * blocks.size());
            size_t half = 4 * (size_t)T * BLOCKS * BLOCK * K * E;
            struct kv_view kv = {DTYPE_F32, T * BLOCKS, BLOCK, K, E, take(c, MEM_KV, half), take(c, MEM_KV, half)};
            ops->attention(c, floats(c, T, H * E), H * E, floats(c, T, H * E), H, kv_of_head, &kv, &rows, 1, 0);
        });
    /* Few rows are split among more blocks, each with a part of dk and dv, and a plan counts those of fewer rows
     * too: for as many blocks as find room at once, twice. */
    size_t slack = 2 * 2 * 4 * (size_t)E * ROWS_TILE * 2 * 4;
    for (int i = 0; i < 6; i++) {
        int32_t T = random_int(1, 200);
        auto backward = [=](struct kctx *c, const struct kernels *ops) {
            dev_addr q = floats(c, T, H * E), k = floats(c, T, K * E), lse = floats(c, T, H);
            dev_addr first = take(c, MEM_BUFFERS, 4 * (size_t)T);
            std::vector<int32_t> zeros((size_t)T);
            ops->upload(c, first, zeros.data(), 4 * (size_t)T);
            ops->attention_rows_dx(c, floats(c, T, H * E), floats(c, T, K * E), floats(c, T, K * E), q, q, H * E, lse,
                                   q, H, k, k, K, kv_of_head, E, first, T, 1, 0);
        };
        same_scratch("attention of rows", true, backward, slack);
    }
}

int main() {
    const char *seed = getenv("CUSIM_SEED");
    if (seed) state = strtoull(seed, nullptr, 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_reserved_is_cut_into_pieces),
        cmocka_unit_test(pieces_are_cleared_whoever_had_them),
        cmocka_unit_test(what_is_not_there_is_an_answer_and_the_rank_goes_on),
        cmocka_unit_test(handles_open_the_stretch_of_weights_and_no_other),
#ifdef TPD_CUSIM
        cmocka_unit_test(an_operation_that_leaves_its_memory_is_found),
#endif
        cmocka_unit_test(products_take_the_scratch_memory_that_was_planned),
        cmocka_unit_test(sums_take_the_scratch_memory_that_was_planned),
        cmocka_unit_test(attention_takes_no_more_scratch_memory_than_was_planned),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
