/* Calls of tools, in the ways that models write them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "text/tool_calls.h"

static json_t *tools;

static int setup(void **state) {
    (void)state;
    tools = json_loads("[{\"type\":\"function\",\"function\":{\"name\":\"weather\",\"parameters\":{}}},"
                       "{\"name\":\"add\"}]", 0, NULL);
    return tools ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    json_decref(tools);
    return 0;
}

/* want: the calls as JSON, and the content before them. */
static void reads(const char *text, const char *want, const char *content) {
    size_t n;
    json_t *calls = tool_calls_read(text, strlen(text), tools, &n);
    json_t *wanted = json_loads(want, 0, NULL);
    assert_non_null(wanted);
    if (!json_equal(calls, wanted)) {
        char *got = json_dumps(calls, 0);
        fail_msg("%s\ngives %s\nnot   %s", text, got, want);
    }
    assert_int_equal(n, strlen(content));
    assert_memory_equal(text, content, n);
    json_decref(calls);
    json_decref(wanted);
    /* While it is being written, nothing is told as content that is none in the end. */
    for (size_t i = 0; i <= strlen(text); i++) {
        size_t safe = tool_calls_content(text, i, tools);
        assert_true(safe <= i);
        assert_true(safe <= n);
    }
}

#define PARIS "[{\"name\":\"weather\",\"arguments\":\"{\\\"city\\\":\\\"Paris\\\"}\"}]"

static void every_family_is_read(void **state) {
    (void)state;
    reads("<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>", PARIS, "");
    reads("I look.\n\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>",
          PARIS, "I look.");
    reads("[{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}]", PARIS, "");
    reads("<|tool_call|>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}]", PARIS, "");
    reads("<tool_call>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}]", PARIS, "");
    reads("[TOOL_CALLS] [{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}, \"id\": \"abcdefghi\"}]", PARIS, "");
    reads("{\"name\": \"weather\", \"parameters\": {\"city\": \"Paris\"}}", PARIS, "");
    reads("<|python_tag|>{\"type\": \"function\", \"name\": \"weather\", \"parameters\": {\"city\": \"Paris\"}}", PARIS, "");
    reads(" weather{\"city\": \"Paris\"}", PARIS, "");
    reads("[TOOL_CALLS]weather{\"city\": \"Paris\"}", PARIS, "");
    reads("{\"name\": \"weather\", \"arguments\": \"{\\\"city\\\":\\\"Paris\\\"}\"}", PARIS, "");
}

static void several_calls_are_read(void **state) {
    (void)state;
    const char *two = "[{\"name\":\"add\",\"arguments\":\"{\\\"a\\\":1}\"},{\"name\":\"add\",\"arguments\":\"{\\\"a\\\":2}\"}]";
    reads("<tool_call>{\"name\":\"add\",\"arguments\":{\"a\":1}}</tool_call>\n<tool_call>{\"name\":\"add\","
          "\"arguments\":{\"a\":2}}</tool_call>", two, "");
    reads("[{\"name\":\"add\",\"arguments\":{\"a\":1}}, {\"name\":\"add\",\"arguments\":{\"a\":2}}]", two, "");
    reads("{\"name\":\"add\",\"parameters\":{\"a\":1}}; {\"name\":\"add\",\"parameters\":{\"a\":2}}", two, "");
    reads("add{\"a\":1}add{\"a\":2}", two, "");
}

static void an_unended_tag_still_gives_its_whole_calls(void **state) {
    (void)state;
    reads("<tool_call>{\"name\":\"add\",\"arguments\":{\"a\":1}}</tool_call><tool_call>{\"name\":\"add\",\"arg",
          "[{\"name\":\"add\",\"arguments\":\"{\\\"a\\\":1}\"}]", "");
}

static void what_is_no_call_stays_text(void **state) {
    (void)state;
    static const char *const texts[] = {
        "", "Paris is nice.", "{\"city\": \"Paris\"}", "[1, 2, 3]", "[]",
        "{\"name\": \"Paris\", \"arguments\": {}}", /* JSON that was asked for, about something else */
        "{\"name\": \"weather\"}", "{\"name\": \"weather\", \"arguments\": {}} is how it is called",
        "{\"name\": \"weather\", \"arguments\": {\"city\":", "<tool_call>", "<tool_call>nothing</tool_call>",
        "<tool_cal", "weather is fine", "add", "[{\"name\":\"add\",\"arguments\":{}}, 3]", "a < b",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) reads(texts[i], "[]", texts[i]);
}

static void content_is_told_as_soon_as_it_is_sure(void **state) {
    (void)state;
    assert_int_equal(tool_calls_content("Hello", 5, tools), 5);
    assert_int_equal(tool_calls_content("Hello ", 6, tools), 5);
    assert_int_equal(tool_calls_content("Hello <to", 9, tools), 5);
    assert_int_equal(tool_calls_content("Hello <b", 8, tools), 8);
    assert_int_equal(tool_calls_content("wea", 3, tools), 0);
    assert_int_equal(tool_calls_content("weak", 4, tools), 4);
    assert_int_equal(tool_calls_content("{\"a", 3, tools), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_family_is_read),
        cmocka_unit_test(several_calls_are_read),
        cmocka_unit_test(an_unended_tag_still_gives_its_whole_calls),
        cmocka_unit_test(what_is_no_call_stays_text),
        cmocka_unit_test(content_is_told_as_soon_as_it_is_sure),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
