/* linear with activations in int8: what it sums, how far that is from fp32, and that a row's bits are
 * its own, on every instruction set. */
#include "tests/unit/matrix_fixture.h"

static const char *const levels[] = {"portable", "avx2", "avxvnni", "avx512", "amx"};
enum { N_LEVELS = 5, BLOCK = 32 };

static void on_every_int8_level(void (*body)(struct kctx *c)) {
    for (int i = 0; i < N_LEVELS; i++) on_level(levels[i], body);
}

/* Nothing but the highest codes (and the lowest, in a file of signed bytes). */
static void extreme_row(enum dtype type, int32_t cols, uint8_t *row) {
    const struct dtype_info *info = dtype_info(type);
    const struct layout *l = &layouts[type];
    const uint16_t one = 0x1111;
    for (int32_t k = 0; k < cols; k += info->block, row += info->block_bytes) {
        memset(row, type != DTYPE_Q8_0 ? 0xFF : k % 64 ? 0x7F : 0x80, (size_t)info->block_bytes);
        memcpy(row + l->d, &one, 2);
        if (l->min >= 0) memcpy(row + l->min, &one, 2);
    }
}

/* Random rows, one extreme. */
static struct matrix matrix_extreme(struct kctx *c, enum dtype type, int32_t rows, int32_t cols) {
    uint8_t *file = matrix_file(type, rows, cols);
    if (dtype_is_quantised(type)) extreme_row(type, cols, file);
    struct matrix m = matrix_of(c, type, rows, cols, file);
    free(file);
    return m;
}

static bool quantised(enum dtype type) { return dtype_is_quantised(type); }

/* Row lengths that end in a chunk's middle, and beyond a chunk. */
static int32_t some_cols(enum dtype type) {
    int32_t block = dtype_info(type)->block;
    return block == 256 ? 256 * random_int(1, 5) : BLOCK * random_int(1, 40);
}

/* Activations as models have them: a few columns that are a hundred times the others, blocks of
 * zeros, blocks of extremes. */
static float *activations(int32_t T, int32_t cols) {
    float *x = random_floats((size_t)(T * cols));
    for (int32_t i = 0; i < T * cols; i++) {
        if (i % 61 == 7) x[i] *= 100;
        if (i / BLOCK % 7 == 3) x[i] = 0;
        if (i / BLOCK % 7 == 5) x[i] = x[i] < 0 ? -1 : 1;
    }
    return x;
}

/* y = what int8.h promises, in double; far = how far that may be from the product in fp32. */
static double expected(const float *x, const float *w, int32_t cols, double *size, double *exact,
                       double *far) {
    double y = 0;
    *size = *exact = *far = 0;
    for (int32_t k = 0; k < cols; k += BLOCK) {
        float most = 0;
        for (int i = 0; i < BLOCK; i++) most = fmaxf(most, fabsf(x[k + i]));
        for (int i = 0; i < BLOCK && most > 0; i++) {
            double scale = (double)(most / 127), weight = (double)w[k + i];
            double code = nearbyint((double)(x[k + i] * (127 / most)));
            y += scale * code * weight;
            *size += fabs(scale * 127 * weight);
            *exact += (double)x[k + i] * weight;
            *far += scale * 0.5001 * fabs(weight);
        }
    }
    return y;
}

static void check_rows(const struct matrix *m, const float *x, const float *bias, const float *y,
                       int32_t T) {
    for (int32_t t = 0; t < T; t++)
        for (int32_t n = 0; n < m->w.rows; n++) {
            double size, exact, far, b = bias ? (double)bias[n] : 0;
            const float *w = m->values + (size_t)n * (size_t)m->w.cols;
            double want = expected(x + t * m->w.cols, w, m->w.cols, &size, &exact, &far) + b;
            float got = y[t * m->w.rows + n];
            assert_near(dtype_info(m->w.type)->name, got, want, 2e-6 * size + 1e-9);
            assert_near("against fp32", got, exact + b, far + 2e-6 * size + 1e-9);
        }
}

static void one_linear(struct kctx *c, enum dtype type, int32_t T) {
    int32_t cols = some_cols(type);
    struct matrix a = matrix_extreme(c, type, random_int(1, 90), cols);
    struct matrix b = matrix_extreme(c, T % 2 ? DTYPE_BF16 : DTYPE_Q8_0, random_int(1, 40), cols);
    float *x = activations(T, cols);
    matrix_check_two(c, &a, &b, x, T, check_rows, quantised(b.w.type) ? check_rows : NULL);
    free(x);
    matrix_free(c, &a);
    matrix_free(c, &b);
}

static void sums_right(struct kctx *c) {
    c->ops->narrow_activations(c, true);
    for (int type = 0; type < DTYPE_COUNT; type++)
        for (int i = 0; i < 3 && quantised((enum dtype)type); i++)
            one_linear(c, (enum dtype)type, i == 0 ? 1 : random_int(2, 20));
}

static void rows_independent(struct kctx *c) {
    enum { T = 401, ROWS = 50 };
    static const int32_t counts[] = {1, 2, 3, 5, 6, 7, 8, 13, 64, 193, 400};
    c->ops->narrow_activations(c, true);
    for (int type = 0; type < DTYPE_COUNT; type++) {
        if (!quantised((enum dtype)type)) continue;
        struct matrix m = matrix_extreme(c, (enum dtype)type, ROWS, 1024);
        float *x = activations(T, m.w.cols);
        matrix_check_rows_alone(c, &m, x, T, counts, sizeof counts / sizeof *counts);
        free(x);
        matrix_free(c, &m);
    }
}

static void switched_off(struct kctx *c) {
    struct matrix m = matrix_extreme(c, DTYPE_Q4_0, 33, 256);
    float *x = activations(5, 256);
    matrix_check_switch(c, &m, x, 5, true);
    free(x);
    matrix_free(c, &m);
}

static void not_finite(struct kctx *c) {
    enum { T = 7, ROWS = 40, COLS = 256 };
    c->ops->narrow_activations(c, true);
    struct matrix m = matrix_extreme(c, DTYPE_Q8_0, ROWS, COLS);
    for (int32_t n = 1; n <= T; n += T - 1) { /* 1, then T */
        float *x = random_floats(T * COLS);
        x[70] = n == 1 ? NAN : INFINITY;
        x[71] = 1e-35f;
        float *y = matrix_outputs(c, &m, x, n);
        for (int32_t i = 0; i < n * ROWS; i++) assert_true(isfinite(y[i]) == (i >= ROWS));
        free(y);
        free(x);
    }
    matrix_free(c, &m);
}

static void a_block_of_x_is_rounded_to_its_scale_and_summed_exactly(void **state) {
    (void)state;
    on_every_int8_level(sums_right);
}
static void a_rows_bits_do_not_depend_on_the_rows_beside_it(void **state) {
    (void)state;
    on_every_int8_level(rows_independent);
}
static void it_is_off_until_asked_for(void **state) {
    (void)state;
    on_every_int8_level(switched_off);
}
static void a_row_that_is_no_number_says_so_and_spoils_no_other(void **state) {
    (void)state;
    on_every_int8_level(not_finite);
}

/* Portable code does not fuse; all others have the same bits, whatever the team. */
static void bits_depend_neither_on_the_team_nor_on_the_instruction_set(void **state) {
    (void)state;
    enum { T = 9, ROWS = 333 };
    for (int type = 0; type < DTYPE_COUNT; type++) {
        float *first = NULL;
        if (!quantised((enum dtype)type)) continue;
        for (int i = 1; i < N_LEVELS; i++) {
            setenv("TPD_CPU_CAP", levels[i], 1);
            for (int n_cores = 1; n_cores <= 3; n_cores++) {
                if (strcmp(kernels_cpu_level(), levels[i]) != 0) continue;
                random_state = 7;
                struct kctx *c = open_ctx(n_cores, 0, false);
                c->ops->narrow_activations(c, true);
                struct matrix m = matrix_extreme(c, (enum dtype)type, ROWS, 512);
                float *x = activations(T, 512), *y = matrix_outputs(c, &m, x, T);
                if (first) assert_memory_equal(first, y, T * ROWS * 4);
                if (first) free(y);
                else first = y;
                free(x);
                matrix_free(c, &m);
                c->ops->close(c);
            }
        }
        free(first);
    }
    unsetenv("TPD_CPU_CAP");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_block_of_x_is_rounded_to_its_scale_and_summed_exactly),
        cmocka_unit_test(a_rows_bits_do_not_depend_on_the_rows_beside_it),
        cmocka_unit_test(bits_depend_neither_on_the_team_nor_on_the_instruction_set),
        cmocka_unit_test(it_is_off_until_asked_for),
        cmocka_unit_test(a_row_that_is_no_number_says_so_and_spoils_no_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
