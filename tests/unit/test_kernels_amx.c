/* Products on AMX tiles. The loops run with tiles in C (soft_tiles.h) on every machine; as they are compiled for
 * AMX, they run on it where there is any, else on a CPU with AVX-512 that traps its instructions. */
#include "base/dtype.h"
#include "tests/unit/matrix_fixture.h"
#include "tests/unit/soft_tiles.h"

#include <float.h>
#include <sys/wait.h>
#include <unistd.h>

/* A level, its products without tiles, and two ways to make them on tiles. */
struct way {
    const char *level;
    const struct cpu_int8 *plain, *int8;
    const struct cpu_bf16 *bf16;
};
static const struct way soft_ways[] = {
    {"portable", &cpu_int8_portable, &soft_int8_portable, &soft_bf16_portable},
    {"avx512", &cpu_int8_avx512, &soft_int8_avx512, &soft_bf16_avx512},
};
static const struct way amx = {"amx", &cpu_int8_avx512, &cpu_int8_amx, &cpu_bf16_amx};
static const struct way trapped = {"avx512bf16", &cpu_int8_avx512, &cpu_int8_amx, &cpu_bf16_amx};

static void one_way(const struct way *way, void (*body)(const struct way *way)) {
    setenv("TPD_CPU_CAP", way->level, 1);
    if (strcmp(kernels_cpu_level(), way->level) == 0) body(way);
    unsetenv("TPD_CPU_CAP");
}

static void all_ways(void (*body)(const struct way *way)) {
    for (size_t i = 0; i < sizeof soft_ways / sizeof *soft_ways; i++) one_way(&soft_ways[i], body);
    if (amx_usable()) {
        one_way(&amx, body);
    } else {
        print_message("[          ] this machine has no AMX: its tiles are in C\n");
        soft_tiles_trap(true);
        one_way(&trapped, body);
        soft_tiles_trap(false);
    }
}

/* Members of a team take no signals. */
static struct kctx *open_way(const struct way *way, int n_cores) {
    struct kctx *c = open_ctx(way == &trapped ? 1 : n_cores, 0, false);
    c->ops->narrow_activations(c, true);
    cpu_of(c)->int8 = way->int8;
    cpu_of(c)->bf16 = way->bf16;
    return c;
}

/* A few columns that are a hundred times the others, blocks of zeros, a row that is no number. */
static float *activations(int32_t T, int32_t cols) {
    float *x = random_floats((size_t)(T * cols));
    for (int32_t i = 0; i < T * cols; i++) {
        if (i % 61 == 7) x[i] *= 100;
        if (i / 32 % 7 == 3) x[i] = 0;
    }
    if (T > 3) x[2 * cols + 1] = NAN;
    return x;
}

/* The fp32 sums where NaNs are one value. */
static void assert_same(const float *got, const float *want, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!(isnan(got[i]) && isnan(want[i])) && memcmp(&got[i], &want[i], 4) != 0)
            fail_msg("output %zu at level %s: %.9g, not %.9g", i, kernels_cpu_level(), (double)got[i],
                     (double)want[i]);
}

/* --- int8 ------------------------------------------------------------------------------------- */

/* Row lengths that end amid a chunk and amid four runs, and beyond a chunk. */
static int32_t some_cols(enum dtype type) {
    int32_t block = dtype_info(type)->block;
    return block == 256 ? 256 * random_int(1, 5) : 32 * random_int(1, 40);
}

static void same_integers(const struct way *way) {
    static const int32_t counts[] = {1, 6, 7, 17, 33, 195};
    struct kctx *c = open_way(way, 2);
    for (int type = 0; type < DTYPE_COUNT; type++) {
        if (!dtype_is_quantised((enum dtype)type)) continue;
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
            int32_t T = counts[i];
            struct matrix m = matrix_new(c, (enum dtype)type, random_int(1, 50), some_cols((enum dtype)type));
            float *x = activations(T, m.w.cols);
            cpu_of(c)->int8 = way->plain;
            float *want = matrix_outputs(c, &m, x, T);
            cpu_of(c)->int8 = way->int8;
            float *got = matrix_outputs(c, &m, x, T);
            assert_same(got, want, (size_t)(T * m.w.rows));
            free(x), free(want), free(got);
            matrix_free(c, &m);
        }
    }
    c->ops->close(c);
}

static void quantised_weights_give_the_bits_they_give_without_tiles(void **state) {
    (void)state;
    all_ways(same_integers);
}

/* --- bf16 ------------------------------------------------------------------------------------- */

static float flushed(float x) { return fabsf(x) < FLT_MIN ? copysignf(0, x) : x; }
static float rounded(float x) { return flushed(bf16_to_f32(f32_to_bf16(x))); }

/* What the instruction promises, 32 columns at a time: one chain of the even ones, one of the odd ones. */
static float tile_sum(const float *x, const float *w, int32_t cols) {
    float sum = 0;
    for (int32_t k = 0; k < cols; k += 32) {
        float even = 0, odd = 0;
        for (int32_t i = k; i < k + 32 && i < cols; i += 2) {
            even = flushed(fmaf(rounded(x[i]), flushed(w[i]), even));
            if (i + 1 < cols) odd = flushed(fmaf(rounded(x[i + 1]), flushed(w[i + 1]), odd));
        }
        sum = flushed(sum + flushed(even + odd));
    }
    return sum;
}

static void check_bf16(const struct matrix *m, const float *x, const float *bias, const float *y, int32_t T) {
    int32_t cols = m->w.cols;
    for (int32_t t = 0; t < T; t++)
        for (int32_t n = 0; n < m->w.rows; n++) {
            const float *row = x + t * cols, *w = m->values + (size_t)n * (size_t)cols;
            float got = y[t * m->w.rows + n], want = tile_sum(row, w, cols);
            if (bias) want += bias[n];
            double size = 0;
            for (int32_t k = 0; k < cols; k++) size += fabs((double)row[k] * (double)w[k]);
            if (strcmp(kernels_cpu_level(), amx.level) != 0) assert_same(&got, &want, 1);
            else assert_near("by instructions", got, (double)want, 1e-6 * size);
        }
}

/* Rows and columns that fill neither panels nor steps nor pairs, and more than a chunk. */
static void sums_of_bf16(const struct way *way) {
    for (int i = 0; i < 24; i++) {
        struct kctx *c = open_way(way, 1 + i % 3);
        int32_t T = i % 4 == 0 ? 1 : random_int(2, 70), cols = random_int(1, i < 20 ? 300 : 1300);
        struct matrix a = matrix_new(c, DTYPE_BF16, random_int(1, 120), cols);
        struct matrix b = matrix_new(c, DTYPE_BF16, random_int(1, 40), cols);
        float *x = random_floats((size_t)(T * cols));
        for (int32_t k = 0; k < T * cols; k += 37) x[k] *= k % 2 ? 100 : 1e-38f;
        matrix_check_two(c, &a, &b, x, T, check_bf16, check_bf16);
        free(x);
        matrix_free(c, &a);
        matrix_free(c, &b);
        c->ops->close(c);
    }
}

static void rows_alone(const struct way *way) {
    static const int32_t counts[] = {1, 2, 15, 16, 17, 32, 33, 64};
    struct kctx *c = open_way(way, 2);
    for (int32_t cols = 333; cols < 800; cols += 333) {
        struct matrix m = matrix_new(c, DTYPE_BF16, 50, cols);
        float *x = random_floats((size_t)(100 * cols));
        for (int32_t k = 0; k < 100 * cols; k += 29) x[k] *= 1e-38f;
        matrix_check_rows_alone(c, &m, x, 100, counts, sizeof counts / sizeof *counts);
        free(x);
        matrix_free(c, &m);
    }
    c->ops->close(c);
}

static void sums_of_bf16_are_in_the_order_of_tiles(void **state) {
    (void)state;
    all_ways(sums_of_bf16);
}
static void one_row_of_bf16_has_the_bits_it_has_among_many(void **state) {
    (void)state;
    all_ways(rows_alone);
}

/* --- tiles ------------------------------------------------------------------------------------ */

static void given_back(const struct way *way) {
    struct kctx *c = open_way(way, 1);
    struct matrix a = matrix_new(c, DTYPE_Q4_K, 40, 512), b = matrix_new(c, DTYPE_BF16, 40, 512);
    float *x = activations(20, 512);
    for (int32_t T = 1; T <= 20; T += 19) {
        free(matrix_outputs(c, &a, x, T));
        assert_false(soft_tiles_in_use());
        free(matrix_outputs(c, &b, x, T));
        assert_false(soft_tiles_in_use());
    }
    free(x);
    matrix_free(c, &a);
    matrix_free(c, &b);
    c->ops->close(c);
}

static void a_thread_gives_its_tiles_back_after_each_product(void **state) {
    (void)state;
    all_ways(given_back);
}

/* Tiles 0, 1 and 2 of 2 rows: c [2, 2] += a [2, 2 words] b [2 words, 2]. */
static struct tile_shapes small_shapes(void) {
    struct tile_shapes s = {.palette = 1};
    for (int i = 0; i < 3; i++) tile_shape(&s, i, 2, 8);
    return s;
}

static void operations_in_c_are_those_of_the_manual(void **state) {
    (void)state;
    const int8_t a[16] = {1, -2, 3, -4, 5, 6, 7, 8, -128, -128, -128, -128, 127, 127, 127, 127};
    const int8_t b[16] = {1, 1, 1, 1, -128, -128, -128, -128, 2, 0, 0, 0, 127, 127, 127, 127};
    int32_t c[4] = {10, 20, 30, 40};
    struct tile_shapes s = small_shapes();
    soft_tile_config(&s);
    soft_tile_load(0, c, 8);
    soft_tile_load(1, a, 8);
    soft_tile_load(2, b, 8);
    soft_tile_dot_int8(0, 1, 2);
    soft_tile_store(0, c, 8);
    const int32_t want[4] = {10 - 2 + 10, 20 + 256 + 26 * 127, 30 - 512 + 254, 40 + 65536 + 4 * 127 * 127};
    assert_memory_equal(c, want, sizeof c);

    /* Row 0: even columns 1 and 2^-24, odd ones 2^-24 and -1: each chain rounds by itself before they meet.
     * Row 1: a product that is denormal, one that is infinite. */
    const float fa[8] = {1, 0x1p-24f, 0x1p-24f, -1, 0x1p-70f, 0, 0x1p100f, 0};
    const float fb[8] = {1, 1, 0, 0, 1, 1, 0, 0}, fd[8] = {0x1p-70f, 1, 0, 0, 0x1p100f, 1, 0, 0};
    uint16_t ha[8], hb[8];
    float sums[4] = {0, 0x1p-130f, 0, 0};
    for (int i = 0; i < 8; i++) {
        ha[i] = f32_to_bf16(fa[i]);
        hb[i] = f32_to_bf16(i % 4 < 2 ? fb[i] : fd[i - 2]);
    }
    soft_tile_load(0, sums, 8);
    soft_tile_load(1, ha, 8);
    soft_tile_load(2, hb, 8);
    soft_tile_dot_bf16(0, 1, 2);
    soft_tile_store(0, sums, 8);
    assert_true(sums[0] == 1.0f + (0x1p-24f - 1));
    assert_true(sums[1] == 0x1p76f - 1);
    assert_true(sums[2] == 0x1p100f);
    assert_true(sums[3] == INFINITY);
    soft_tile_release();
}

static void a_denormal_is_zero(void **state) {
    (void)state;
    struct tile_shapes s = small_shapes();
    const uint16_t tiny[8] = {1, 1, 1, 1, 1, 1, 1, 1}, one = f32_to_bf16(1), small = f32_to_bf16(0x1p-70f);
    const uint16_t ones[8] = {one, one, one, one, one, one, one, one};
    const uint16_t smalls[8] = {small, small, small, small, small, small, small, small};
    float sums[4] = {0x1p-130f, 0x1p-127f, -0x1p-140f, 1};
    const float want[4] = {0, 0, 0, 1};
    soft_tile_config(&s);
    for (int i = 0; i < 2; i++) {
        soft_tile_load(0, sums, 8);
        soft_tile_load(1, i ? smalls : tiny, 8);
        soft_tile_load(2, i ? smalls : ones, 8);
        soft_tile_dot_bf16(0, 1, 2);
        float got[4];
        soft_tile_store(0, got, 8);
        for (int j = 0; j < 4; j++) assert_true(got[j] == want[j]);
    }
    soft_tile_release();
}

/* Whether a child that does this is ended by abort. */
static bool aborts(void (*body)(void)) {
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        if (!freopen("/dev/null", "w", stderr)) _exit(1);
        body();
        _exit(0);
    }
    int status;
    return waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static void shaped(int tile, int rows, int row_bytes) {
    struct tile_shapes s = small_shapes();
    tile_shape(&s, tile, rows, row_bytes);
    soft_tile_config(&s);
    soft_tile_dot_int8(0, 1, 2);
}
static void as_it_should_be(void) { shaped(1, 2, 8); }
static void no_shapes(void) { soft_tile_zero(0); }
static void no_shape(void) { shaped(2, 0, 0); }
static void too_many_rows(void) { shaped(3, 17, 8); }
static void too_many_bytes(void) { shaped(3, 2, 68); }
static void too_many_tiles(void) { shaped(8, 2, 8); }
static void rows_that_differ(void) { shaped(1, 3, 8); }
static void columns_that_differ(void) { shaped(2, 2, 12); }
static void depths_that_differ(void) { shaped(1, 2, 4); }
static void after_release(void) {
    shaped(1, 2, 8);
    soft_tile_release();
    soft_tile_dot_int8(0, 1, 2);
}

static void wrong_shapes_abort(void **state) {
    (void)state;
    void (*const wrong[])(void) = {no_shapes,      no_shape,         too_many_rows,       too_many_bytes,
                                   too_many_tiles, rows_that_differ, columns_that_differ, depths_that_differ,
                                   after_release};
    assert_false(aborts(as_it_should_be));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (!aborts(wrong[i])) fail_msg("case %zu went on", i);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operations_in_c_are_those_of_the_manual),
        cmocka_unit_test(a_denormal_is_zero),
        cmocka_unit_test(wrong_shapes_abort),
        cmocka_unit_test(quantised_weights_give_the_bits_they_give_without_tiles),
        cmocka_unit_test(sums_of_bf16_are_in_the_order_of_tiles),
        cmocka_unit_test(one_row_of_bf16_has_the_bits_it_has_among_many),
        cmocka_unit_test(a_thread_gives_its_tiles_back_after_each_product),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
