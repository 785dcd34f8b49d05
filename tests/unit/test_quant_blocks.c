/* Blocks that quant_row makes: what comes back is near, nearer than plain rounding, and the same each time. */
#include "tiny_files.h"

#include "model/quant_blocks.h"

#include <math.h>

enum { COLS = 2048 };

/* About normal, with a few large values, as weights are. */
static void draw(float *x, uint32_t seed) {
    for (int i = 0; i < COLS; i++) {
        float sum = 0;
        for (int k = 0; k < 12; k++) {
            seed = seed * 1664525 + 1013904223;
            sum += (float)(seed >> 8) / (float)(1 << 24);
        }
        x[i] = 0.05f * (sum - 6) * (i % 97 == 0 ? 4 : 1);
    }
}

static double error_of(enum dtype type, const float *x) {
    uint8_t out[COLS * 2];
    float back[COLS];
    double sum = 0;
    assert_true(quant_row(type, x, COLS, out));
    dtype_row_to_f32(type, out, back, COLS);
    for (int i = 0; i < COLS; i++) sum += (double)(back[i] - x[i]) * (double)(back[i] - x[i]);
    return sqrt(sum / COLS);
}

/* Scales from the extremes, as a plain quantiser takes them: steps from the least to the largest of 32. */
static double plain_error(const float *x, int steps, bool symmetric) {
    double sum = 0;
    for (int at = 0; at < COLS; at += 32) {
        float low = x[at], high = x[at];
        for (int i = at; i < at + 32; i++) low = fminf(low, x[i]), high = fmaxf(high, x[i]);
        if (symmetric) high = fmaxf(-low, high), low = -high;
        float step = (high - low) / (float)steps;
        for (int i = at; i < at + 32; i++) {
            float back = low + step * roundf((x[i] - low) / step);
            sum += (double)(back - x[i]) * (double)(back - x[i]);
        }
    }
    return sqrt(sum / COLS);
}

static void what_comes_back_is_near(void **state) {
    (void)state;
    float x[COLS];
    draw(x, 1);
    assert_true(error_of(DTYPE_Q8_0, x) < 1.02 * plain_error(x, 254, true));
    assert_true(error_of(DTYPE_Q4_1, x) < 0.97 * plain_error(x, 15, false));
    assert_true(error_of(DTYPE_Q4_0, x) < 0.97 * plain_error(x, 14, true));
}

static void flat_and_empty_blocks_come_back(void **state) {
    (void)state;
    static const enum dtype types[] = {DTYPE_Q8_0, DTYPE_Q4_0, DTYPE_Q4_1};
    static const float values[] = {0, 0.5f, -0.25f, 1e-30f, -1e30f};
    float x[COLS], back[COLS];
    uint8_t out[COLS * 2];
    for (size_t t = 0; t < 3; t++)
        for (size_t v = 0; v < 5; v++) {
            for (int i = 0; i < COLS; i++) x[i] = values[v];
            assert_true(quant_row(types[t], x, COLS, out));
            dtype_row_to_f32(types[t], out, back, COLS);
            for (int i = 0; i < COLS; i++) {
                assert_true(isfinite(back[i]));
                if (v < 4) assert_true(fabsf(back[i] - x[i]) <= 0.01f * fabsf(x[i]) + 1e-6f);
            }
        }
}

static void what_is_no_number_is_told(void **state) {
    (void)state;
    float x[COLS];
    uint8_t out[COLS * 2];
    draw(x, 2);
    x[COLS - 1] = NAN;
    assert_false(quant_row(DTYPE_Q4_1, x, COLS, out));
    x[COLS - 1] = -INFINITY;
    assert_false(quant_row(DTYPE_Q8_0, x, COLS, out));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_comes_back_is_near),
        cmocka_unit_test(flat_and_empty_blocks_come_back),
        cmocka_unit_test(what_is_no_number_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
