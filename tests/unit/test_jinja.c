/* Templates render as jinja2 renders them when transformers sets it up; a fault is the same exception
 * with the same words, and says line and column; no template takes more than its share. */
#include "base/file.h"
#include "text/jinja/jinja.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

static json_t *variables_read(void) {
    struct error e = {0};
    json_t *json = json_read_file("tests/data/templates/variables.json", 1 << 20, &e);
    if (!json) fail_msg("%s", e.message);
    return json;
}

static int64_t note(const struct error *e, const char *key) {
    for (int i = 0; i < e->n_notes; i++)
        if (!strcmp(e->notes[i].key, key)) return e->notes[i].number;
    return -1;
}

static int render(const char *template, size_t size, const json_t *variables,
                  struct jinja_output *out, struct error *e) {
    struct tm now = {.tm_year = 125, .tm_mday = 5, .tm_hour = 9, .tm_min = 7, .tm_sec = 3};
    struct jinja *t;
    timegm(&now); /* finds the day of the year */
    int rc = jinja_compile(&t, template, size, e);
    if (rc != 0) return rc;
    rc = jinja_render(t, variables, &now, out, e);
    jinja_free(t);
    return rc;
}

static int render_text(const char *template, struct jinja_output *out, struct error *e) {
    json_t *none = json_object();
    int rc = render(template, strlen(template), none, out, e);
    json_decref(none);
    return rc;
}

/* Whether a case comes out otherwise than expected; then it is shown. */
static bool differs(const json_t *line, const json_t *standard) {
    const json_t *template = json_object_get(line, "template");
    const json_t *expected = json_object_get(line, "expected");
    const json_t *variables = json_object_get(line, "variables");
    const char *fault = json_string_value(json_object_get(line, "error"));
    struct jinja_output out = {0};
    struct error e = {0};
    int rc = render(json_string_value(template), json_string_length(template),
                    variables ? variables : standard, &out, &e);
    bool wrong;
    if (fault) wrong = rc == 0 || (strchr(fault, ':') ? strcmp(e.message, fault) != 0
                                                      : !strstr(e.message, "Error: "));
    else
        wrong = rc != 0 || out.text.size != json_string_length(expected) ||
                (out.text.size &&
                 memcmp(out.text.data, json_string_value(expected), out.text.size) != 0);
    if (fault && rc != 0) wrong = wrong || note(&e, "line") < 1 || note(&e, "column") < 1;
    if (wrong)
        print_message("%s: %s\n  expected %s\n  got      %s%.*s\n",
                      json_string_value(json_object_get(line, "about")), json_string_value(template),
                      fault ? fault : json_string_value(expected), rc ? e.message : "",
                      (int)out.text.size, out.text.size ? out.text.data : "");
    jinja_output_free(&out);
    return wrong;
}

static void templates_render_as_jinja2_does(void **state) {
    (void)state;
    json_t *standard = variables_read();
    FILE *file = fopen("tests/data/templates/cases.jsonl", "r");
    char *text = NULL;
    size_t capacity = 0, n = 0, wrong = 0;
    ssize_t size;
    assert_non_null(file);
    while ((size = getline(&text, &capacity, file)) > 0) {
        struct error e = {0};
        json_t *line = json_read(text, (size_t)size, &e);
        if (!line) fail_msg("%s", e.message);
        wrong += differs(line, standard);
        json_decref(line);
        n++;
    }
    free(text);
    fclose(file);
    json_decref(standard);
    print_message("%zu templates, %zu wrong\n", n, wrong);
    assert_int_equal(wrong, 0);
    assert_true(n > 500);
}

static void a_fault_says_where(void **state) {
    (void)state;
    static const struct {
        const char *template;
        int line, column;
    } cases[] = {
        {"a\nbb {{ nope.x }}", 2, 12},
        {"a\n\xC3\xA9\xC3\xA9{{ raise_exception('x') }}", 2, 21},
        {"{% if true %}\n  {{ 1 +\n 'a' }}\n{% endif %}", 2, 8},
        {"line\n\n{% bogus %}", 3, 4},
        {"{{ 'a\n", 1, 4},
        {"{% for x in [1] %}\n{{ x", 2, 5},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct jinja_output out = {0};
        struct error e = {0};
        assert_true(render_text(cases[i].template, &out, &e) != 0);
        print_message("%s\n", e.message);
        assert_int_equal(note(&e, "line"), cases[i].line);
        assert_int_equal(note(&e, "column"), cases[i].column);
        jinja_output_free(&out);
    }
}

static void generation_blocks_are_marked(void **state) {
    (void)state;
    struct jinja_output out = {0};
    struct error e = {0};
    assert_int_equal(render_text("ab{% for i in [1, 2] %}[{% generation %}\xC3\xA9{{ i }}"
                                 "{% endgeneration %}]{% endfor %}",
                                 &out, &e),
                     0);
    assert_int_equal(out.generated.n, 2);
    assert_int_equal(out.generated.at[0].from, 3);
    assert_int_equal(out.generated.at[0].to, 6);
    assert_int_equal(out.generated.at[1].from, 8);
    assert_int_equal(out.generated.at[1].to, 11);
    jinja_output_free(&out);
}

static void what_a_template_takes_is_bounded(void **state) {
    (void)state;
    static const char *const greedy[] = {
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% set ns = namespace(s='x' * 1000) %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}"
        "{% endfor %}",
        "{{ 'x' * 1000000000 }}",
        "{{ [1] * 1000000000 }}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = ns.l + ns.l %}"
        "{% endfor %}",
        "{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = [ns.l] %}{% endfor %}"
        "{{ ns.l }}",
        "{% set ns = namespace(l=[], m=[]) %}{% for i in range(9999) %}{% set ns.l = [ns.l] %}"
        "{% set ns.m = [ns.m] %}{% endfor %}{{ ns.l == ns.m }}",
        "{% for a in range(90000) %}{{ 'x' * 90000 }}{% endfor %}",
        "{{ 'a'.ljust(9999999999) }}",
        "{{ '%999999999d' % 1 }}{{ 'x' | indent(99999999999) | length }}{{ 'a'.zfill(9999999999) }}",
        "{{ [1, 2] | tojson(indent=99999999) }}{{ 9 ** 9 ** 9 }}",
        "{{ ('a' * 900000).replace('', 'b' * 900000) }}",
        "{{ ('a' * 9000000).rfind('a' * 4000000 ~ 'b') }}{{ ('a' * 9000000).split('a') }}",
    };
    for (size_t i = 0; i < sizeof greedy / sizeof *greedy; i++) {
        struct jinja_output out = {0};
        struct error e = {0};
        assert_true(render_text(greedy[i], &out, &e) != 0);
        print_message("%s\n", e.message);
        jinja_output_free(&out);
    }
}

static void what_is_nested_too_deeply_is_refused(void **state) {
    (void)state;
    static const char *const openers[] = {"(", "[", "-", "not ", "{1:", "1 if 1 else ", "a.b["};
    char *text = malloc(1 << 20);
    assert_non_null(text);
    for (size_t i = 0; i < sizeof openers / sizeof *openers; i++) {
        struct jinja_output out = {0};
        struct error e = {0};
        strcpy(text, "{{ ");
        char *at = text + 3;
        for (int n = 0; n < 20000; n++) at = stpcpy(at, openers[i]);
        assert_true(render_text(text, &out, &e) != 0);
        jinja_output_free(&out);
    }
    char *at = text;
    for (int n = 0; n < 20000; n++) at = stpcpy(at, "{% if 1 %}");
    struct jinja_output out = {0};
    struct error e = {0};
    assert_true(render_text(text, &out, &e) != 0);
    at = stpcpy(text, "{{ 1");
    for (int n = 0; n < 20000; n++) at = stpcpy(at, "+1"); /* leans to the left */
    strcpy(at, " }}");
    assert_true(render_text(text, &out, &e) != 0);
    jinja_output_free(&out);
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(templates_render_as_jinja2_does),
        cmocka_unit_test(a_fault_says_where),
        cmocka_unit_test(generation_blocks_are_marked),
        cmocka_unit_test(what_a_template_takes_is_bounded),
        cmocka_unit_test(what_is_nested_too_deeply_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
