/* Published chat templates, from outside the repository: each conversation renders to the expected text,
 * or fails with the expected words. */
#include "tests/unit/tiny_files.h"

#include "base/file.h"
#include "base/json.h"
#include "text/jinja/jinja.h"

static char *source_of(const json_t *line, size_t *size) {
    const json_t *inside = json_object_get(line, "template");
    char name[256], *text = NULL;
    struct error e = {0};
    if (!json_object_get(line, "conversation")) { /* the template itself stands there */
        *size = json_string_length(inside);
        return strdup(json_string_value(inside));
    }
    snprintf(name, sizeof name, "templates/%s.jinja", json_string_value(inside));
    const char *path = shared_path(name);
    if (!path || file_read(path, 1 << 20, &text, size, &e) != 0) fail_msg("%s", e.message);
    return text;
}

static bool as_expected(const json_t *line) {
    const json_t *now = json_object_get(line, "now"), *expected = json_object_get(line, "expected");
    const char *fault = json_string_value(json_object_get(line, "error"));
    struct jinja_output out = {0};
    struct error e = {0};
    struct jinja *t = NULL;
    struct tm clock = {0};
    size_t size;
    if (json_is_string(now)) strptime(json_string_value(now), "%Y-%m-%dT%H:%M:%S", &clock);
    timegm(&clock);
    char *source = source_of(line, &size);
    int rc = jinja_compile(&t, source, size, &e);
    if (rc == 0) rc = jinja_render(t, json_object_get(line, "kwargs"), &clock, &out, &e);
    bool same = fault ? rc != 0 && !strcmp(e.message, fault)
                      : rc == 0 && out.text.size == json_string_length(expected) &&
                            (out.text.size == 0 ||
                             !memcmp(out.text.data, json_string_value(expected), out.text.size));
    if (!same)
        print_message("%s: %s\n%.*s\n", json_string_value(json_object_get(line, "id")), e.message,
                      (int)out.text.size, out.text.size ? out.text.data : "");
    jinja_output_free(&out);
    jinja_free(t);
    free(source);
    return same;
}

static void check_file(const char *name, int at_least) {
    const char *path = shared_path(name);
    if (!path) return;
    FILE *file = fopen(path, "r");
    char *text = NULL;
    size_t capacity = 0;
    ssize_t size;
    int n = 0, wrong = 0;
    assert_non_null(file);
    while ((size = getline(&text, &capacity, file)) > 0) {
        struct error e = {0};
        json_t *line = json_read(text, (size_t)size, &e);
        if (!line) fail_msg("%s", e.message);
        /* Where jinja2 itself does otherwise, or the clock is another, it is no case of ours. */
        if (!json_is_false(json_object_get(line, "jinja2_agrees"))) {
            wrong += !as_expected(line);
            n++;
        }
        json_decref(line);
    }
    free(text);
    fclose(file);
    print_message("%s: %d conversations, %d wrong\n", name, n, wrong);
    assert_int_equal(wrong, 0);
    assert_true(n >= at_least);
}

static void published_templates_render_as_expected(void **state) {
    (void)state;
    check_file("templates/expected.jsonl", 290);
    check_file("templates/hfjs_e2e.jsonl", 45);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_templates_render_as_expected),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
