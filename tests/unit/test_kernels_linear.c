/* linear and embed: right for every type and shape, and a row's bits are its own. */
#include "tests/unit/matrix_fixture.h"

static void check_linear(const struct matrix *m, const float *x, const float *bias, const float *y,
                         int32_t T) {
    int32_t cols = m->w.cols;
    for (int32_t t = 0; t < T; t++)
        for (int32_t n = 0; n < m->w.rows; n++) {
            double want = bias ? (double)bias[n] : 0, size = fabs(want);
            for (int32_t k = 0; k < cols; k++) {
                double term = (double)x[t * cols + k] * (double)m->values[n * cols + k];
                want += term;
                size += fabs(term);
            }
            assert_near(dtype_info(m->w.type)->name, y[t * m->w.rows + n], want,
                        1e-6 * size + 1e-9);
        }
}

static int32_t random_cols(enum dtype type) {
    int block = dtype_info(type)->block;
    return block * random_int(1, block == 1 ? 700 : block == 32 ? 20 : 4);
}

static void linear_of_type(struct kctx *c, enum dtype type, int32_t T) {
    int32_t cols = random_cols(type);
    struct matrix a = matrix_new(c, type, random_int(1, 90), cols);
    struct matrix b = matrix_new(c, (enum dtype)(T % 3), random_int(1, 40), cols);
    float *x = random_floats((size_t)(T * cols));
    matrix_check_two(c, &a, &b, x, T, check_linear, check_linear);
    free(x);
    matrix_free(c, &a);
    matrix_free(c, &b);
}

static void linear_right(struct kctx *c) {
    for (int type = 0; type < DTYPE_COUNT; type++)
        for (int i = 0; i < 4; i++)
            linear_of_type(c, (enum dtype)type, i == 0 ? 1 : random_int(2, 40));
}

/* Row i of a call with T rows has the bits of a call with that row alone. */
static void rows_independent(struct kctx *c) {
    enum { T = 401 };
    static const int32_t counts[] = {1, 2, 3, 7, 12, 13, 25, 64, 384, 400};
    for (int type = 0; type < DTYPE_COUNT; type++) {
        int32_t cols = dtype_info((enum dtype)type)->block == 1 ? 611 : 768;
        struct matrix m = matrix_new(c, (enum dtype)type, 50, cols);
        float *x = random_floats((size_t)(T * cols));
        matrix_check_rows_alone(c, &m, x, T, counts, sizeof counts / sizeof *counts);
        free(x);
        matrix_free(c, &m);
    }
}

static void embed_right(struct kctx *c) {
    for (int type = 0; type < DTYPE_COUNT; type++) {
        int32_t cols = random_cols((enum dtype)type), ids[6];
        struct matrix m = matrix_new(c, (enum dtype)type, 37, cols);
        for (int i = 0; i < 4; i++) ids[i] = 1000 + random_int(0, 36);
        ids[4] = 999;
        ids[5] = 1037;
        size_t bytes = (size_t)(6 * cols) * 4;
        dev_addr d_ids = to_device(c, ids, sizeof ids), out = to_device(c, NULL, bytes);
        c->ops->embed(c, out, &m.w, d_ids, 6, 1000, 2);
        float *got = from_device(c, out, bytes);
        for (int i = 0; i < 6; i++)
            for (int32_t k = 0; k < cols; k++)
                assert_true(got[i * cols + k] ==
                            (i < 4 ? 2 * m.values[(ids[i] - 1000) * cols + k] : 0));
        free(got);
        matrix_free(c, &m);
        c->ops->mem_free(c, d_ids);
        c->ops->mem_free(c, out);
    }
}

static void linear_is_right_for_every_type_and_shape(void **state) {
    (void)state;
    on_every_level(linear_right);
}
static void a_rows_bits_do_not_depend_on_the_rows_beside_it(void **state) {
    (void)state;
    on_every_level(rows_independent);
}
static void embed_gives_the_files_numbers(void **state) {
    (void)state;
    on_every_level(embed_right);
}

static void bits_do_not_depend_on_the_team(void **state) {
    (void)state;
    matrix_check_teams(DTYPE_Q4_K, 333, 512, 9, false);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_is_right_for_every_type_and_shape),
        cmocka_unit_test(a_rows_bits_do_not_depend_on_the_rows_beside_it),
        cmocka_unit_test(bits_do_not_depend_on_the_team),
        cmocka_unit_test(embed_gives_the_files_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
