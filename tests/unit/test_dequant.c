/* Dequantisation gives the numbers that the format's own reference gives. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/dtype.h"
#include "base/file.h"

#include <stdio.h>
#include <stdlib.h>

static void golden(void **state) {
    enum dtype type = (enum dtype)(intptr_t)*state;
    const struct dtype_info *info = dtype_info(type);
    char path[128];
    char *raw, *want;
    size_t raw_size, want_size;
    snprintf(path, sizeof path, "tests/data/dequant/%s.bin", info->name);
    assert_int_equal(file_read(path, 1 << 20, &raw, &raw_size, NULL), 0);
    snprintf(path, sizeof path, "tests/data/dequant/%s.f32", info->name);
    assert_int_equal(file_read(path, 1 << 20, &want, &want_size, NULL), 0);
    size_t n = want_size / 4;
    assert_true(n > 0 && dtype_row_bytes(type, (int64_t)n) == raw_size);
    float *got = malloc(n * sizeof *got);
    dtype_row_to_f32(type, raw, got, (int64_t)n);
    for (size_t i = 0; i < n; i++)
        if (got[i] != ((const float *)want)[i])
            fail_msg("%s: element %zu is %.9g, not %.9g", info->name, i, (double)got[i],
                     (double)((const float *)want)[i]);
    free(got);
    free(raw);
    free(want);
}

static void f32_rows_are_copied(void **state) {
    (void)state;
    float in[3] = {1.5f, -2, 0}, out[3];
    dtype_row_to_f32(DTYPE_F32, in, out, 3);
    assert_memory_equal(in, out, sizeof in);
}

#define GOLDEN(type) \
    {"golden " #type, golden, NULL, NULL, (void *)(intptr_t)DTYPE_##type}

int main(void) {
    const struct CMUnitTest tests[] = {
        GOLDEN(F16),  GOLDEN(BF16), GOLDEN(Q8_0), GOLDEN(Q4_0), GOLDEN(Q4_1), GOLDEN(Q5_0),
        GOLDEN(Q5_1), GOLDEN(Q2_K), GOLDEN(Q3_K), GOLDEN(Q4_K), GOLDEN(Q5_K), GOLDEN(Q6_K),
        cmocka_unit_test(f32_rows_are_copied),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
