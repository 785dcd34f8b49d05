/* What steps are taken to last, from what was measured of them: numbers that the test makes up. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "serve/pace.h"

static struct pace measured(int32_t rows, double seconds, int times) {
    struct pace p = {0};
    for (int i = 0; i < times; i++) pace_add(&p, rows, seconds);
    return p;
}

static void it_tells_what_it_was_told(void **state) {
    (void)state;
    struct pace p = {0};
    assert_true(pace_seconds(&p, 1, 0.1) == 0);
    for (int32_t rows = 1; rows <= 16; rows++) pace_add(&p, rows, rows * 1.5);
    for (int32_t rows = 1; rows <= 16; rows++) assert_true(pace_seconds(&p, rows, 0.1) == rows * 1.5);
}

static void one_slow_step_is_not_believed_and_a_new_pace_is_soon(void **state) {
    (void)state;
    struct pace p = measured(3, 2, 4);
    pace_add(&p, 3, 50);
    assert_true(pace_seconds(&p, 3, 0.1) == 2);
    for (int i = 0; i < 3; i++) pace_add(&p, 3, 7);
    assert_true(pace_seconds(&p, 3, 0.1) == 7);
    for (int i = 0; i < 100; i++) pace_add(&p, 3, i % 2 ? 1 : 3);
    double now = pace_seconds(&p, 3, 0.1);
    assert_true(now == 1 || now == 3);
}

static void between_two_sizes_and_beyond_them_it_goes_straight_on(void **state) {
    (void)state;
    struct pace p = measured(2, 4, 1);
    assert_true(pace_seconds(&p, 4, 0.25) == 6); /* a quarter of 4 for a row more */
    assert_true(pace_seconds(&p, 1, 0.25) == 4); /* no more than a larger one */
    pace_add(&p, 6, 12);
    assert_true(pace_seconds(&p, 4, 0.25) == 8);
    assert_true(pace_seconds(&p, 8, 0.25) == 16);
    pace_add(&p, 6, 1);
    pace_add(&p, 6, 1); /* faster than two rows: then no row costs anything */
    assert_true(pace_seconds(&p, 4, 0.25) == 4);
    assert_true(pace_seconds(&p, 100000, 0.25) == 1);
}

static void sizes_that_are_nearly_the_same_are_one(void **state) {
    (void)state;
    struct pace p = measured(100, 3, 3);
    double near = pace_seconds(&p, 101, 0.5);
    assert_true(near == 3);
    assert_true(pace_is_known(&p, 101));
    assert_false(pace_is_known(&p, 150));
    pace_add(&p, 1000000, 9);
    assert_true(pace_seconds(&p, 2000000, 0.5) == 9);
}

static void a_size_is_known_after_some_steps_and_not_for_ever(void **state) {
    (void)state;
    struct pace p = measured(1, 1, 2);
    assert_false(pace_is_known(&p, 1));
    pace_add(&p, 1, 1);
    assert_true(pace_is_known(&p, 1));
    assert_false(pace_is_known(&p, 2));
    for (int i = 0; i < 600; i++) pace_add(&p, 4, 2);
    assert_false(pace_is_known(&p, 1));
    pace_add(&p, 1, 5); /* what was long ago is forgotten with the first new one */
    assert_true(pace_seconds(&p, 1, 0.1) == 5);
    assert_false(pace_is_known(&p, 1));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_tells_what_it_was_told),
        cmocka_unit_test(one_slow_step_is_not_believed_and_a_new_pace_is_soon),
        cmocka_unit_test(between_two_sizes_and_beyond_them_it_goes_straight_on),
        cmocka_unit_test(sizes_that_are_nearly_the_same_are_one),
        cmocka_unit_test(a_size_is_known_after_some_steps_and_not_for_ever),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
