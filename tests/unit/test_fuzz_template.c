/* Chat templates of strangers: ours with bytes changed or pieces of two put together. Whatever they have
 * become, they compile or are refused, and render whole UTF-8 or fail with words, in bounded time. The
 * same seed gives the same templates; TPD_FUZZ_SECONDS makes it run on. */
#include "tests/unit/mutate.h"

#include "base/json.h"
#include "text/jinja/jinja.h"
#include "text/unicode.h"

#include <time.h>

enum { MAX_SEEDS = 1024, ROUNDS = 20000 };

static char *seeds[MAX_SEEDS];
static size_t n_seeds;
static json_t *variables;

static void read_seeds(void) {
    FILE *file = fopen("tests/data/templates/cases.jsonl", "r");
    char *text = NULL;
    size_t capacity = 0;
    struct error e = {0};
    assert_non_null(file);
    while (getline(&text, &capacity, file) > 0 && n_seeds < MAX_SEEDS) {
        json_t *line = json_read(text, strlen(text), &e);
        assert_non_null(line);
        seeds[n_seeds++] = strdup(json_string_value(json_object_get(line, "template")));
        json_decref(line);
    }
    free(text);
    fclose(file);
    variables = json_read_file("tests/data/templates/variables.json", 1 << 20, &e);
    assert_non_null(variables);
}

/* A piece of one template in the middle of another. */
static void splice(struct bytes *b) {
    const char *other = seeds[rnd(n_seeds)];
    size_t size = strlen(other), from = size ? rnd(size) : 0, n = size ? rnd(size - from + 1) : 0;
    size_t at = b->n ? rnd(b->n) : 0;
    if (b->n + n > sizeof b->data) return;
    memmove(b->data + at + n, b->data + at, b->n - at);
    memcpy(b->data + at, other + from, n);
    b->n += n;
}

static bool render(const struct bytes *b) {
    struct jinja *t;
    struct jinja_output out = {0};
    struct error e = {0};
    if (jinja_compile(&t, (const char *)b->data, b->n, &e) != 0) {
        assert_int_equal(e.kind, ERR_BAD_FILE);
        assert_true(*e.message);
        return false;
    }
    if (jinja_render(t, variables, NULL, &out, &e) != 0) assert_true(strstr(e.message, ": ") != NULL);
    else assert_int_equal(utf8_check(out.text.data, out.text.size), out.text.size);
    jinja_output_free(&out);
    jinja_free(t);
    return true;
}

static void mutated_templates_render_or_are_refused(void **state) {
    (void)state;
    static struct bytes seed_bytes, b;
    const char *seconds = getenv("TPD_FUZZ_SECONDS");
    time_t start = time(NULL);
    int compiled = 0;
    read_seeds();
    for (int i = 0; seconds ? time(NULL) - start < atoi(seconds) : i < ROUNDS; i++) {
        const char *seed_text = seeds[rnd(n_seeds)];
        seed_bytes.n = strlen(seed_text);
        memcpy(seed_bytes.data, seed_text, seed_bytes.n);
        if (rnd(3)) mutate(&b, &seed_bytes);
        else memcpy(b.data, seed_bytes.data, b.n = seed_bytes.n);
        for (uint64_t n = rnd(3); n > 0; n--) splice(&b);
        compiled += render(&b);
    }
    print_message("%d compiled\n", compiled);
    assert_true(compiled > 1000 || seconds);
    for (size_t i = 0; i < n_seeds; i++) free(seeds[i]);
    json_decref(variables);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mutated_templates_render_or_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
