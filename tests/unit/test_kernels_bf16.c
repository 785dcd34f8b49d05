/* linear with activations in bf16: what it sums, how far that is from fp32, and that a row's bits are its
 * own. Where the CPU has no such products, nothing changes. */
#include "base/dtype.h"
#include "tests/unit/matrix_fixture.h"

static float to_bf16(float x) { return bf16_to_f32(f32_to_bf16(x)); }

/* y is the product of x rounded to bf16, if that is asked, and close to that of x in any case. */
static void check_rows(const struct matrix *m, const float *x, const float *bias, const float *y, int32_t T,
                       bool rounds) {
    int32_t cols = m->w.cols;
    for (int32_t t = 0; t < T; t++)
        for (int32_t n = 0; n < m->w.rows; n++) {
            const float *w = m->values + (size_t)n * (size_t)cols, *row = x + t * cols;
            double sum = bias ? (double)bias[n] : 0, exact = sum, size = fabs(sum);
            for (int32_t k = 0; k < cols; k++) {
                double product = (double)row[k] * (double)w[k];
                sum += rounds ? (double)to_bf16(row[k]) * (double)w[k] : product;
                exact += product;
                size += fabs(product);
            }
            float got = y[t * m->w.rows + n];
            assert_near("rounded", got, sum, 2e-6 * size + 1e-9);
            assert_near("against fp32", got, exact, size / 256 + 1e-9);
        }
}
static void check_bf16(const struct matrix *m, const float *x, const float *bias, const float *y, int32_t T) {
    check_rows(m, x, bias, y, T, kernels_cpu_bf16());
}
static void check_f32(const struct matrix *m, const float *x, const float *bias, const float *y, int32_t T) {
    check_rows(m, x, bias, y, T, false);
}

/* Rows and columns that fill neither panels nor pairs, and more than a chunk. */
static void sums_right(struct kctx *c) {
    c->ops->narrow_activations(c, true);
    for (int i = 0; i < 40; i++) {
        int32_t T = i % 4 == 0 ? 1 : random_int(2, 20), cols = random_int(1, i < 30 ? 300 : 1300);
        struct matrix a = matrix_new(c, DTYPE_BF16, random_int(1, 200), cols);
        struct matrix b = matrix_new(c, i % 2 ? DTYPE_F16 : DTYPE_BF16, random_int(1, 40), cols);
        float *x = random_floats((size_t)(T * cols));
        for (int32_t k = 0; k < T * cols; k += 37) x[k] *= 100;
        matrix_check_two(c, &a, &b, x, T, check_bf16, i % 2 ? check_f32 : check_bf16);
        free(x);
        matrix_free(c, &a);
        matrix_free(c, &b);
    }
}

/* Quantised and bf16 weights read one x, each in its own type. */
static void beside_int8(struct kctx *c) {
    enum { COLS = 544 };
    struct matrix a = matrix_new(c, DTYPE_BF16, 70, COLS), b = matrix_new(c, DTYPE_Q8_0, 50, COLS);
    c->ops->narrow_activations(c, true);
    for (int32_t T = 1; T < 30; T += 7) {
        float *x = random_floats((size_t)(T * COLS));
        float *alone = matrix_outputs(c, &b, x, T);
        dev_addr dx = to_device(c, x, (size_t)(T * COLS) * 4);
        dev_addr ya = to_device(c, NULL, (size_t)(T * 70) * 4), yb = to_device(c, NULL, (size_t)(T * 50) * 4);
        struct linear_job jobs[2] = {{&a.w, 0, ya}, {&b.w, 0, yb}};
        c->ops->linear(c, jobs, 2, dx, T);
        float *got_a = from_device(c, ya, (size_t)(T * 70) * 4), *got_b = from_device(c, yb, (size_t)(T * 50) * 4);
        check_bf16(&a, x, NULL, got_a, T);
        assert_memory_equal(got_b, alone, (size_t)(T * 50) * 4);
        free(x), free(alone), free(got_a), free(got_b);
        dev_addr all[] = {dx, ya, yb};
        for (int i = 0; i < 3; i++) c->ops->mem_free(c, all[i]);
    }
    matrix_free(c, &a);
    matrix_free(c, &b);
}

static void rows_independent(struct kctx *c) {
    enum { T = 401, ROWS = 150 };
    static const int32_t counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 12, 13, 16, 24, 25, 64, 193, 400};
    c->ops->narrow_activations(c, true);
    for (int32_t cols = 333; cols < 3000; cols += 2222) {
        struct matrix m = matrix_new(c, DTYPE_BF16, ROWS, cols);
        float *x = random_floats((size_t)(T * cols));
        for (int32_t k = 0; k < T * cols; k += 29) x[k] *= 1e-38f; /* some that are denormal */
        matrix_check_rows_alone(c, &m, x, T, counts, sizeof counts / sizeof *counts);
        free(x);
        matrix_free(c, &m);
    }
}

static void switched_off(struct kctx *c) {
    struct matrix m = matrix_new(c, DTYPE_BF16, 33, 257);
    float *x = random_floats(5 * 257);
    matrix_check_switch(c, &m, x, 5, kernels_cpu_bf16());
    free(x);
    matrix_free(c, &m);
}

static void not_finite(struct kctx *c) {
    enum { T = 8, ROWS = 40, COLS = 255 };
    c->ops->narrow_activations(c, true);
    struct matrix m = matrix_new(c, DTYPE_BF16, ROWS, COLS);
    for (int32_t n = 1; n <= T; n += T - 1) { /* 1, then T */
        float *x = random_floats(T * COLS);
        x[70] = NAN;
        float *y = matrix_outputs(c, &m, x, n);
        for (int32_t i = 0; i < n * ROWS; i++) assert_true(isfinite(y[i]) == (i >= ROWS));
        free(y), free(x);
    }
    matrix_free(c, &m);
}

static void on_levels(void (*body)(struct kctx *c)) {
    on_level("amx", body);
    on_level("avx512bf16", body);
    on_level("avx512", body);
    on_level("portable", body);
}
static void x_is_rounded_to_bf16_and_summed_in_fp32(void **state) {
    (void)state;
    on_levels(sums_right);
}
static void each_weight_of_a_linear_reads_x_in_its_own_type(void **state) {
    (void)state;
    on_levels(beside_int8);
}
static void a_rows_bits_do_not_depend_on_the_rows_beside_it(void **state) {
    (void)state;
    on_levels(rows_independent);
}
static void it_is_off_until_asked_for(void **state) {
    (void)state;
    on_levels(switched_off);
}
static void a_row_that_is_no_number_says_so_and_spoils_no_other(void **state) {
    (void)state;
    on_levels(not_finite);
}

static void bits_do_not_depend_on_the_team(void **state) {
    (void)state;
    matrix_check_teams(DTYPE_BF16, 333, 577, 17, true);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(x_is_rounded_to_bf16_and_summed_in_fp32),
        cmocka_unit_test(each_weight_of_a_linear_reads_x_in_its_own_type),
        cmocka_unit_test(a_rows_bits_do_not_depend_on_the_rows_beside_it),
        cmocka_unit_test(bits_do_not_depend_on_the_team),
        cmocka_unit_test(it_is_off_until_asked_for),
        cmocka_unit_test(a_row_that_is_no_number_says_so_and_spoils_no_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
