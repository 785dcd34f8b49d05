/* Framing: bytes in any portions become the same lines, and an endless line stays small. */
#include "daemon/line_buffer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void expect_line(struct line_buffer *b, const char *text) {
    char *line;
    size_t size;
    assert_int_equal(line_buffer_next(b, &line, &size), LINE_WHOLE);
    assert_int_equal(size, strlen(text));
    assert_memory_equal(line, text, size);
}

static void expect_none(struct line_buffer *b) {
    char *line;
    size_t size;
    assert_int_equal(line_buffer_next(b, &line, &size), LINE_NONE);
}

static void lines_come_whole_however_they_are_cut(void **state) {
    (void)state;
    static const char text[] = "one\ntwo\r\n\n\r\nlast one\n";
    for (size_t step = 1; step < sizeof text; step++) {
        struct line_buffer b;
        const char *const lines[] = {"one", "two", "", "", "last one"};
        int n = 0;
        line_buffer_init(&b, 100);
        for (size_t at = 0; at < sizeof text - 1; at += step) {
            size_t part = sizeof text - 1 - at < step ? sizeof text - 1 - at : step;
            assert_true(line_buffer_add(&b, text + at, part));
            char *line;
            size_t size;
            while (line_buffer_next(&b, &line, &size) == LINE_WHOLE) {
                assert_int_equal(size, strlen(lines[n]));
                assert_memory_equal(line, lines[n], size);
                n++;
            }
            line_buffer_shrink(&b);
        }
        assert_int_equal(n, 5);
        assert_null(b.data);
        line_buffer_free(&b);
    }
}

static void a_line_may_be_as_long_as_the_limit_and_no_longer(void **state) {
    (void)state;
    struct line_buffer b;
    char *line;
    size_t size;
    line_buffer_init(&b, 4);
    assert_true(line_buffer_add(&b, "1234\n12345\n", 11));
    expect_line(&b, "1234");
    assert_int_equal(line_buffer_next(&b, &line, &size), LINE_TOO_LONG);
    expect_none(&b);
    assert_true(line_buffer_add(&b, "1234", 4));
    expect_none(&b);
    assert_true(line_buffer_add(&b, "5", 1));
    assert_int_equal(line_buffer_next(&b, &line, &size), LINE_TOO_LONG);
    line_buffer_free(&b);
}

static void what_was_taken_makes_room(void **state) {
    (void)state;
    struct line_buffer b;
    line_buffer_init(&b, 1000);
    for (int i = 0; i < 10000; i++) {
        assert_true(line_buffer_add(&b, "0123456789\n01234", 16));
        char *line;
        size_t size;
        while (line_buffer_next(&b, &line, &size) == LINE_WHOLE) {}
        assert_true(b.capacity <= 1024);
    }
    line_buffer_free(&b);
}

static void the_rest_of_an_ended_stream_can_be_taken(void **state) {
    (void)state;
    struct line_buffer b;
    char *line;
    line_buffer_init(&b, 100);
    assert_true(line_buffer_add(&b, "whole\nhalf", 10));
    expect_line(&b, "whole");
    expect_none(&b);
    assert_int_equal(line_buffer_rest(&b, &line), 4);
    assert_memory_equal(line, "half", 4);
    assert_int_equal(line_buffer_waiting(&b), 0);
    line_buffer_free(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_come_whole_however_they_are_cut),
        cmocka_unit_test(a_line_may_be_as_long_as_the_limit_and_no_longer),
        cmocka_unit_test(what_was_taken_makes_room),
        cmocka_unit_test(the_rest_of_an_ended_stream_can_be_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
