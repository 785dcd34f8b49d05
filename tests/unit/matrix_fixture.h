/* tests/unit/matrix_fixture.h: weights on the device beside their values, and what linear makes of them. */
#ifndef TPD_TESTS_MATRIX_FIXTURE_H
#define TPD_TESTS_MATRIX_FIXTURE_H

#include "tests/unit/kernels_fixture.h"

/* A weight on the device and its values in fp32 [rows, cols]. */
struct matrix {
    struct weight w;
    float *values;
};

/* Bytes from one row of a file to the next, which need not touch. */
static inline size_t matrix_stride(enum dtype type, int32_t cols) {
    return dtype_row_bytes(type, cols) + 3;
}

/* The matrix that file has, its rows matrix_stride apart. */
static inline struct matrix matrix_of(struct kctx *c, enum dtype type, int32_t rows, int32_t cols,
                                      const uint8_t *file) {
    struct matrix m;
    struct error e;
    size_t stride = matrix_stride(type, cols);
    m.values = malloc((size_t)rows * (size_t)cols * sizeof(float) + 1);
    for (int32_t i = 0; i < rows; i++)
        dtype_row_to_f32(type, file + (size_t)i * stride, m.values + (size_t)i * (size_t)cols, cols);
    if (c->ops->weight_new(c, type, rows, cols, &m.w, &e) != 0) fail_msg("%s", e.message);
    int32_t half = rows / 3; /* in two pieces, the second from the middle of a panel */
    c->ops->weight_put(c, &m.w, 0, half, file, stride);
    c->ops->weight_put(c, &m.w, half, rows - half, file + (size_t)half * stride, stride);
    return m;
}

/* Random rows, to be freed. */
static inline uint8_t *matrix_file(enum dtype type, int32_t rows, int32_t cols) {
    size_t stride = matrix_stride(type, cols);
    uint8_t *file = malloc((size_t)rows * stride);
    for (int32_t i = 0; i < rows; i++) random_row(type, cols, file + (size_t)i * stride);
    return file;
}

/* A matrix of random rows. */
static inline struct matrix matrix_new(struct kctx *c, enum dtype type, int32_t rows, int32_t cols) {
    uint8_t *file = matrix_file(type, rows, cols);
    struct matrix m = matrix_of(c, type, rows, cols, file);
    free(file);
    return m;
}

static inline void matrix_free(struct kctx *c, struct matrix *m) {
    c->ops->weight_free(c, &m->w);
    free(m->values);
}

/* The outputs of all T rows of x by m; freed by the caller. */
static inline float *matrix_outputs(struct kctx *c, const struct matrix *m, const float *x, int32_t T) {
    size_t bytes = (size_t)(T * m->w.rows) * 4;
    dev_addr dx = to_device(c, x, (size_t)(T * m->w.cols) * 4), dy = to_device(c, NULL, bytes);
    struct linear_job job = {&m->w, 0, dy};
    c->ops->linear(c, &job, 1, dx, T);
    float *y = from_device(c, dy, bytes);
    c->ops->mem_free(c, dx);
    c->ops->mem_free(c, dy);
    return y;
}

typedef void matrix_check(const struct matrix *m, const float *x, const float *bias, const float *y,
                          int32_t T);

/* One call with two jobs, a with a bias; check_b may be NULL. */
static inline void matrix_check_two(struct kctx *c, const struct matrix *a, const struct matrix *b,
                                    const float *x, int32_t T, matrix_check *check_a,
                                    matrix_check *check_b) {
    float *bias = random_floats((size_t)a->w.rows);
    size_t a_bytes = (size_t)(T * a->w.rows) * 4, b_bytes = (size_t)(T * b->w.rows) * 4;
    dev_addr dx = to_device(c, x, (size_t)(T * a->w.cols) * 4);
    dev_addr db = to_device(c, bias, (size_t)a->w.rows * 4);
    dev_addr ya = to_device(c, NULL, a_bytes), yb = to_device(c, NULL, b_bytes);
    struct linear_job jobs[2] = {{&a->w, db, ya}, {&b->w, 0, yb}};
    c->ops->linear(c, jobs, 2, dx, T);
    float *got_a = from_device(c, ya, a_bytes), *got_b = from_device(c, yb, b_bytes);
    check_a(a, x, bias, got_a, T);
    if (check_b) check_b(b, x, NULL, got_b, T);
    free(got_a);
    free(got_b);
    free(bias);
    dev_addr all[] = {dx, db, ya, yb};
    for (int i = 0; i < 4; i++) c->ops->mem_free(c, all[i]);
}

/* Any run of x's T rows has the bits that it has among all. */
static inline void matrix_check_rows_alone(struct kctx *c, const struct matrix *m, const float *x, int32_t T,
                                           const int32_t *counts, size_t n_counts) {
    int32_t rows = m->w.rows;
    float *all = matrix_outputs(c, m, x, T);
    for (size_t i = 0; i < n_counts; i++) {
        int32_t at = random_int(0, T - counts[i]);
        float *some = matrix_outputs(c, m, x + at * m->w.cols, counts[i]);
        assert_memory_equal(some, all + at * rows, (size_t)(counts[i] * rows) * 4);
        free(some);
    }
    free(all);
}

/* Activations are rounded when that is asked for, where this changes anything, and no longer than that. */
static inline void matrix_check_switch(struct kctx *c, const struct matrix *m, const float *x, int32_t T,
                                       bool changes) {
    size_t bytes = (size_t)(T * m->w.rows) * 4;
    float *before = matrix_outputs(c, m, x, T);
    c->ops->narrow_activations(c, true);
    float *rounded = matrix_outputs(c, m, x, T);
    c->ops->narrow_activations(c, false);
    float *after = matrix_outputs(c, m, x, T);
    assert_memory_equal(before, after, bytes);
    assert_int_equal(memcmp(before, rounded, bytes) != 0, changes);
    free(before);
    free(rounded);
    free(after);
}

/* Teams of 1 to 3 give the same bits. */
static inline void matrix_check_teams(enum dtype type, int32_t rows, int32_t cols, int32_t T, bool narrow) {
    float *first = NULL;
    for (int n_cores = 1; n_cores <= 3; n_cores++) {
        random_state = 7;
        struct kctx *c = open_ctx(n_cores, 0, false);
        c->ops->narrow_activations(c, narrow);
        struct matrix m = matrix_new(c, type, rows, cols);
        float *x = random_floats((size_t)(T * cols)), *y = matrix_outputs(c, &m, x, T);
        if (first) assert_memory_equal(first, y, (size_t)(T * rows) * 4);
        if (first) free(y);
        else first = y;
        free(x);
        matrix_free(c, &m);
        c->ops->close(c);
    }
    free(first);
}

#endif
