/* linear and embed: right for every type and shape, and a row's bits are its own. */
#include "tests/unit/kernels_fixture.h"

/* A weight on the device and its values in fp32 [rows, cols]. */
struct matrix {
    struct weight w;
    float *values;
};

static struct matrix matrix_new(struct kctx *c, enum dtype type, int32_t rows, int32_t cols) {
    struct matrix m;
    struct error e;
    size_t row_bytes = dtype_row_bytes(type, cols), stride = row_bytes + 3;
    uint8_t *file = malloc((size_t)rows * stride);
    m.values = malloc((size_t)rows * (size_t)cols * sizeof(float) + 1);
    for (int32_t i = 0; i < rows; i++) {
        random_row(type, cols, file + (size_t)i * stride);
        dtype_row_to_f32(type, file + (size_t)i * stride, m.values + (size_t)i * (size_t)cols,
                         cols);
    }
    if (c->ops->weight_new(c, type, rows, cols, &m.w, &e) != 0) fail_msg("%s", e.message);
    int32_t half = rows / 3; /* in two pieces, the second from the middle of a panel */
    c->ops->weight_put(c, &m.w, 0, half, file, stride);
    c->ops->weight_put(c, &m.w, half, rows - half, file + (size_t)half * stride, stride);
    free(file);
    return m;
}

static void matrix_free(struct kctx *c, struct matrix *m) {
    c->ops->weight_free(c, &m->w);
    free(m->values);
}

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
    float *x = random_floats((size_t)(T * cols)), *bias = random_floats((size_t)a.w.rows);
    size_t a_bytes = (size_t)(T * a.w.rows) * 4, b_bytes = (size_t)(T * b.w.rows) * 4;
    dev_addr dx = to_device(c, x, (size_t)(T * cols) * 4);
    dev_addr db = to_device(c, bias, (size_t)a.w.rows * 4);
    dev_addr ya = to_device(c, NULL, a_bytes), yb = to_device(c, NULL, b_bytes);
    struct linear_job jobs[2] = {{&a.w, db, ya}, {&b.w, 0, yb}};
    c->ops->linear(c, jobs, 2, dx, T);
    float *got_a = from_device(c, ya, a_bytes), *got_b = from_device(c, yb, b_bytes);
    check_linear(&a, x, bias, got_a, T);
    check_linear(&b, x, NULL, got_b, T);
    free(got_a);
    free(got_b);
    free(x);
    free(bias);
    matrix_free(c, &a);
    matrix_free(c, &b);
    dev_addr all[] = {dx, db, ya, yb};
    for (int i = 0; i < 4; i++) c->ops->mem_free(c, all[i]);
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
        dev_addr dx = to_device(c, x, (size_t)(T * cols) * 4), dy = to_device(c, NULL, T * 50 * 4);
        struct linear_job job = {&m.w, 0, dy};
        c->ops->linear(c, &job, 1, dx, T);
        float *all = from_device(c, dy, T * 50 * 4);
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
            int32_t at = random_int(0, T - counts[i]);
            c->ops->linear(c, &job, 1, dx + (dev_addr)(at * cols) * 4, counts[i]);
            float *some = from_device(c, dy, (size_t)counts[i] * 50 * 4);
            assert_memory_equal(some, all + at * 50, (size_t)counts[i] * 50 * 4);
            free(some);
        }
        free(all);
        free(x);
        matrix_free(c, &m);
        c->ops->mem_free(c, dx);
        c->ops->mem_free(c, dy);
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

/* One team member more changes no bit either. */
static void bits_do_not_depend_on_the_team(void **state) {
    (void)state;
    float *first = NULL;
    for (int n_cores = 1; n_cores <= 3; n_cores++) {
        random_state = 7;
        struct kctx *c = open_ctx(n_cores, 0, false);
        struct matrix m = matrix_new(c, DTYPE_Q4_K, 333, 512);
        float *x = random_floats(9 * 512);
        dev_addr dx = to_device(c, x, 9 * 512 * 4), dy = to_device(c, NULL, 9 * 333 * 4);
        struct linear_job job = {&m.w, 0, dy};
        c->ops->linear(c, &job, 1, dx, 9);
        float *y = from_device(c, dy, 9 * 333 * 4);
        if (first) assert_memory_equal(first, y, 9 * 333 * 4);
        if (first) free(y);
        else first = y;
        free(x);
        matrix_free(c, &m);
        c->ops->close(c);
    }
    free(first);
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
