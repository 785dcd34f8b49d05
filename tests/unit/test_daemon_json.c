/* Answers are JSON whatever is in them: any bytes, any numbers. */
#include "base/json.h"
#include "daemon/json_out.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void written(struct json_out *out, const char *text) {
    assert_false(out->failed);
    assert_int_equal(out->size, strlen(text));
    assert_memory_equal(out->data, text, out->size);
    json_out_free(out);
}

static void commas_come_by_themselves(void **state) {
    (void)state;
    struct json_out out = {0};
    json_out_open(&out, '{');
    json_out_key(&out, "a");
    json_out_open(&out, '[');
    json_out_int(&out, -9223372036854775807 - 1);
    json_out_null(&out);
    json_out_open(&out, '[');
    json_out_close(&out, ']');
    json_out_open(&out, '{');
    json_out_close(&out, '}');
    json_out_close(&out, ']');
    json_out_key(&out, "b");
    json_out_string(&out, "x");
    json_out_close(&out, '}');
    written(&out, "{\"a\":[-9223372036854775808,null,[],{}],\"b\":\"x\"}");
}

static void numbers_are_finite(void **state) {
    (void)state;
    struct json_out out = {0};
    const double numbers[] = {0.5, NAN, INFINITY, -INFINITY, 1e300, -1.5f};
    json_out_open(&out, '[');
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) json_out_number(&out, numbers[i]);
    json_out_close(&out, ']');
    written(&out, "[0.5,0,0,0,1e+300,-1.5]");
}

static void any_text_is_a_valid_string(void **state) {
    (void)state;
    struct json_out out = {0};
    json_out_text(&out, "a\"\\\n\r\t\0\x1f\x7f/", 10);
    written(&out, "\"a\\\"\\\\\\n\\r\\t\\u0000\\u001f\x7f/\"");
    json_out_text(&out, "\xe3\x81\x82\xe3\x81", 5); /* cut in the middle of a character */
    written(&out, "\"\xe3\x81\x82\xef\xbf\xbd\xef\xbf\xbd\"");
    json_out_text(&out, "\xed\xa0\x80\xf5\xc0\x80", 6); /* a surrogate, bytes of no character */
    written(&out, "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"");
    json_out_text(&out, "", 0);
    written(&out, "\"\"");
}

/* What is written can be read, and valid text comes back as it was. */
static void random_bytes_can_be_read_back(void **state) {
    (void)state;
    unsigned seed = 3;
    for (int round = 0; round < 2000; round++) {
        char text[64];
        struct error e;
        size_t n = (size_t)rand_r(&seed) % sizeof text;
        for (size_t i = 0; i < n; i++) text[i] = (char)rand_r(&seed);
        struct json_out out = {0};
        json_out_text(&out, text, n);
        json_t *value = json_read(out.data, out.size, &e);
        if (!value) fail_msg("%s", e.message);
        json_t *same = json_stringn(text, n);
        if (same) assert_true(json_equal(value, same));
        json_decref(same);
        json_decref(value);
        json_out_free(&out);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(commas_come_by_themselves),
        cmocka_unit_test(numbers_are_finite),
        cmocka_unit_test(any_text_is_a_valid_string),
        cmocka_unit_test(random_bytes_can_be_read_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
