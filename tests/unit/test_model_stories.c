/* The published stories260K model, in every form it comes in and at every tp, says what others'
 * programs made it say. Reads $TPD_SHARED; skipped where that is absent. */
#include "tests/unit/model_runner.h"

#include "base/file.h"
#include "base/json.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char models_dir[512];
static const char *const forms[] = {"stories260K-hf", "stories260K-hf-bf16",
                                    "stories260K-hf-sharded-untied", "stories260K.gguf"};
static const int tps[] = {1, 2, 3, 4, 8};

/* The JSON lines of a file of models_dir, as one array. */
static json_t *read_lines(const char *name) {
    char path[600];
    snprintf(path, sizeof path, "%s/%s", models_dir, name);
    struct error e = {0};
    char *text;
    size_t size;
    if (file_read(path, 16 << 20, &text, &size, &e)) fail_msg("%s", e.message);
    json_t *lines = json_array();
    for (char *at = text, *end; *at; at = end + (*end == '\n')) {
        end = at + strcspn(at, "\n");
        json_t *value = end > at ? json_read(at, (size_t)(end - at), &e) : NULL;
        if (value) json_array_append_new(lines, value);
    }
    free(text);
    return lines;
}

static int32_t *ids_of(const json_t *array, int32_t *n, size_t room) {
    *n = (int32_t)json_array_size(array);
    int32_t *ids = malloc(((size_t)*n + room) * sizeof *ids);
    for (int32_t i = 0; i < *n; i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(array, (size_t)i));
    return ids;
}

static int32_t argmax(const float *row, int32_t n) {
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (row[i] > row[best]) best = i;
    return best;
}

static void feed(struct runner *r, const int32_t *ids, int32_t pos, int32_t n, bool prompt,
                 float *out) {
    if (runner_feed(r, ids, pos, n, prompt ? n : 0, out)) fail_msg("%s", r->error.message);
}

static bool rounded(const struct runner *r) { return strstr(model_path(r->model), "bf16"); }

static void check_greedy(struct runner *r, const json_t *line) {
    int32_t vocab = model_config(r->model)->vocab, n, steps;
    int32_t *want = ids_of(json_object_get(line, "greedy_ids"), &steps, 0);
    int32_t *ids = ids_of(json_object_get(line, "prompt_ids"), &n, 0);
    const json_t *sure = json_object_get(line, "first_index_margin_lt_0.02");
    if (json_is_integer(sure)) steps = (int32_t)json_integer_value(sure);
    float *logits = malloc((size_t)n * (size_t)vocab * sizeof *logits);
    feed(r, ids, 0, n, true, logits);
    const float *last = logits + (size_t)(n - 1) * (size_t)vocab;
    for (int32_t i = 0; i < steps; i++) {
        int32_t token = argmax(last, vocab);
        /* Rounding the weights to bf16 moves logits by some hundredths (transformers computes the
         * same from that file): where the two best are nearer than that, the story may turn. */
        if (token != want[i] && rounded(r) && last[token] - last[want[i]] < 0.05f) break;
        if (token != want[i])
            fail_msg("%s of %s at tp %d: token %d is %d, not %d",
                     json_string_value(json_object_get(line, "id")), model_path(r->model),
                     r->plan.n, i, token, want[i]);
        feed(r, &token, n + i, 1, false, logits);
        last = logits;
    }
    free(logits);
    free(ids);
    free(want);
}

static void check_all_greedy(struct runner *r, void *lines) {
    size_t i;
    json_t *line;
    json_array_foreach((json_t *)lines, i, line) check_greedy(r, line);
}

static void for_each_form_and_tp(runner_body *body, json_t *lines) {
    for (size_t f = 0; f < sizeof forms / sizeof *forms; f++)
        for (size_t t = 0; t < sizeof tps / sizeof *tps; t++) {
            char path[600];
            snprintf(path, sizeof path, "%s/%s", models_dir, forms[f]);
            struct runner_options o = {.tp = tps[t], .device = RANK_CPU};
            runner_run(path, &o, body, lines);
        }
    json_decref(lines);
}

static void greedy_tokens_are_the_published_ones(void **state) {
    (void)state;
    if (!path_is_dir(models_dir)) skip();
    for_each_form_and_tp(check_all_greedy, read_lines("stories260K.greedy.jsonl"));
}

static void check_loss(struct runner *r, const json_t *line) {
    int32_t vocab = model_config(r->model)->vocab, n;
    int32_t *ids = ids_of(json_object_get(line, "ids"), &n, 0);
    const json_t *nll = json_object_get(line, "nll");
    float *logits = malloc((size_t)n * (size_t)vocab * sizeof *logits);
    feed(r, ids, 0, n, true, logits);
    double allowed = rounded(r) ? 0.1 : 1e-4;
    for (int32_t i = 0; i + 1 < n; i++) {
        const float *row = logits + (size_t)i * (size_t)vocab;
        double sum = 0, max = row[argmax(row, vocab)];
        for (int32_t k = 0; k < vocab; k++) sum += exp(row[k] - max);
        double got = max + log(sum) - row[ids[i + 1]];
        double want = json_number_value(json_array_get(nll, (size_t)i));
        if (!(fabs(got - want) <= allowed))
            fail_msg("%s of %s at tp %d: row %d has loss %f, not %f",
                     json_string_value(json_object_get(line, "id")), model_path(r->model),
                     r->plan.n, i, got, want);
    }
    free(logits);
    free(ids);
}

static void check_all_losses(struct runner *r, void *lines) {
    size_t i;
    json_t *line;
    json_array_foreach((json_t *)lines, i, line) check_loss(r, line);
}

static void losses_are_the_published_ones(void **state) {
    (void)state;
    if (!path_is_dir(models_dir)) skip();
    for_each_form_and_tp(check_all_losses, read_lines("stories260K.loss.jsonl"));
}

int main(void) {
    const char *shared = getenv("TPD_SHARED");
    snprintf(models_dir, sizeof models_dir, "%s/cases/models", shared ? shared : "../shared");
    if (!path_is_dir(models_dir)) printf("skipping: %s is not here\n", models_dir);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_tokens_are_the_published_ones),
        cmocka_unit_test(losses_are_the_published_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
