/* The forward pass gives the logits that transformers computed, for every architecture, variant and
 * quantisation in tests/data, at every tp, whole or in chunks. See tests/golden/README.md. TPD_TEST_ONLY and
 * TPD_TEST_TP choose some. */
#include "tests/unit/model_runner.h"

#include "base/file.h"
#include "base/json.h"

#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const double tolerance = 2e-4;

struct golden {
    const char *dir;
    char *model;
    json_t *expected;
    struct file_map logits;
};

static void golden_open(struct golden *g, const char *dir, const char *model) {
    struct error e = {0};
    g->dir = dir;
    g->model = strdup(model);
    char path[640];
    snprintf(path, sizeof path, "%s/expected.json", dir);
    g->expected = json_read_file(path, 1 << 20, &e);
    if (!g->expected) fail_msg("%s", e.message);
    snprintf(path, sizeof path, "%s/expected.f32", dir);
    if (file_map_open(&g->logits, path, &e)) fail_msg("%s", e.message);
}

static void golden_close(struct golden *g) {
    json_decref(g->expected);
    file_map_close(&g->logits);
    free(g->model);
}

static double worst_row(const float *got, const float *want, size_t n) {
    double worst = 0;
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)got[i] - want[i]);
        if (!(d <= worst)) worst = d; /* a NaN is the worst of all */
    }
    return worst;
}

static int32_t argmax(const float *row, size_t n) {
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (row[i] > row[best]) best = i;
    return (int32_t)best;
}

/* One prompt whole (in chunks of the runner's max_rows), then its greedy tokens one by one. */
static void check_prompt(struct runner *r, const struct golden *g, const json_t *prompt,
                         const char *label, double *worst) {
    size_t vocab = (size_t)json_integer_value(json_object_get(g->expected, "vocab"));
    assert_int_equal(vocab, model_config(r->model)->vocab);
    const json_t *ids = json_object_get(prompt, "ids"), *greedy = json_object_get(prompt, "greedy");
    const json_t *rows = json_object_get(prompt, "rows");
    int32_t n = (int32_t)json_array_size(ids), steps = (int32_t)json_array_size(greedy);
    const float *want = (const float *)g->logits.data +
                        json_integer_value(json_object_get(prompt, "offset"));
    int32_t *tokens = malloc((size_t)(n + steps) * sizeof *tokens);
    float *got = malloc((size_t)(n + steps) * vocab * sizeof *got);
    for (int32_t i = 0; i < n; i++)
        tokens[i] = (int32_t)json_integer_value(json_array_get(ids, (size_t)i));
    for (int32_t i = 0; i < steps; i++)
        tokens[n + i] = (int32_t)json_integer_value(json_array_get(greedy, (size_t)i));
    if (runner_feed(r, tokens, 0, n, n, got)) fail_msg("%s: %s", label, r->error.message);
    for (int32_t i = 0; i + 1 < steps; i++)
        if (runner_feed(r, tokens + n + i, n + i, 1, 0, got + (size_t)(n + i) * vocab))
            fail_msg("%s: %s", label, r->error.message);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        int64_t row = json_integer_value(json_array_get(rows, i));
        double d = worst_row(got + (size_t)row * vocab, want + i * vocab, vocab);
        if (!(d <= tolerance))
            fail_msg("%s: the logits at position %lld are off by %g", label, (long long)row, d);
        if (d > *worst) *worst = d;
    }
    for (int32_t i = 0; i < steps; i++)
        if (argmax(got + (size_t)(n - 1 + i) * vocab, vocab) != tokens[n + i])
            fail_msg("%s: greedy token %d is not the expected one", label, i);
    free(tokens);
    free(got);
}

struct body_arg {
    struct golden *g;
    const char *label;
    double worst;
};

static void check_all_prompts(struct runner *r, void *arg) {
    struct body_arg *a = arg;
    size_t i;
    json_t *prompt;
    json_array_foreach(json_object_get(a->g->expected, "prompts"), i, prompt)
        check_prompt(r, a->g, prompt, a->label, &a->worst);
}

static void check_golden(const char *dir, const char *model) {
    struct golden g;
    golden_open(&g, dir, model);
    struct model *m;
    struct error e = {0};
    if (model_open(&m, model, &e)) fail_msg("%s", e.message);
    int heads = model_config(m)->n_heads;
    model_free(m);
    const int tps[] = {1, 2, 3, 4, heads};
    double worst = 0;
    for (size_t i = 0; i < sizeof tps / sizeof *tps; i++) {
        if (tps[i] > heads || (i == 4 && heads <= 4) || !runner_wants_number("TPD_TEST_TP", tps[i])) continue;
        /* Chunks of 5 rows cut prompts in odd places; larger ones go through each layer in parts of 7. */
        for (int32_t chunk = 5; chunk <= 64; chunk += 59) {
            char label[700];
            snprintf(label, sizeof label, "%s, tp %d, chunks of %d", model, tps[i], chunk);
            struct body_arg arg = {&g, label, 0};
            struct runner_options o = {.tp = tps[i], .device = RANK_CPU, .max_rows = chunk, .part_rows = 7};
            /* dynamic scaling looks at the prompt's length, so chunks must not change it */
            runner_run(model, &o, check_all_prompts, &arg);
            if (arg.worst > worst) worst = arg.worst;
        }
    }
    print_message("%-60s worst logit difference %.2g\n", model, worst);
    golden_close(&g);
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Every entry of dir that has an expected.json (or, in a gguf folder, NAME.gguf). */
static void check_folder(const char *dir) {
    DIR *d = opendir(dir);
    if (!d) fail_msg("%s is missing", dir);
    char *names[256];
    size_t n = 0;
    for (struct dirent *entry; (entry = readdir(d)) && n < 256;)
        if (entry->d_name[0] != '.') names[n++] = strdup(entry->d_name);
    closedir(d);
    qsort(names, n, sizeof *names, by_name);
    size_t checked = 0;
    for (size_t i = 0; i < n; i++) {
        char path[512], expected[600], gguf[600];
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        snprintf(expected, sizeof expected, "%s/expected.f32", path);
        snprintf(gguf, sizeof gguf, "%s/model.gguf", path);
        if (path_exists(expected) && runner_wants("TPD_TEST_ONLY", names[i])) {
            check_golden(path, path_exists(gguf) ? gguf : path);
            checked++;
        }
        free(names[i]);
    }
    assert_true(checked > 0 || getenv("TPD_TEST_ONLY"));
}

static void architectures_match_transformers(void **state) {
    (void)state;
    check_folder("tests/data/models");
}

static void gguf_files_match_transformers_on_the_dequantised_weights(void **state) {
    (void)state;
    check_folder("tests/data/gguf");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(architectures_match_transformers),
        cmocka_unit_test(gguf_files_match_transformers_on_the_dequantised_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
