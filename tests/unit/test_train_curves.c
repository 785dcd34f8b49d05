/* Thirty steps of a job have the losses that transformers and PEFT have with the same data in the same order
 * and the same settings (tests/golden/make_curves.py): full and LoRA, packed or not, at tp 1 and 2, with
 * sequence parallel. And a job on a published model starts at the loss that others found for it. */
#include "tests/unit/model_runner.h"

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "train/trainer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define TOKENIZER "tests/data/models/tiny-chat" /* records are ids: only its end of text is asked for */

enum { STEPS = 30 };

struct curve {
    int n;
    double loss[STEPS], norm[STEPS], lr[STEPS];
};

struct scene {
    char dir[64], data[96];
    struct jobs *jobs;
    struct tokenizer *tokenizer;
    int64_t job;
};

static void scene_open(struct scene *s, const json_t *records) {
    struct error e = {0};
    const json_t *record;
    size_t i;
    *s = (struct scene){.dir = "/tmp/tpd-test-XXXXXX"};
    assert_non_null(mkdtemp(s->dir));
    snprintf(s->data, sizeof s->data, "%s/data.jsonl", s->dir);
    FILE *f = fopen(s->data, "w");
    assert_non_null(f);
    json_array_foreach((json_t *)records, i, record) {
        json_dumpf(record, f, JSON_COMPACT);
        fputc('\n', f);
    }
    fclose(f);
    if (jobs_open(&s->jobs, s->dir, &e)) fail_msg("%s", e.message);
    if (tokenizer_open(&s->tokenizer, TOKENIZER, &e)) fail_msg("%s", e.message);
}

static void scene_close(struct scene *s) {
    jobs_close(s->jobs);
    tokenizer_free(s->tokenizer);
    dir_remove(s->dir, NULL);
}

static void submit(struct scene *s, const json_t *settings) {
    struct error e = {0};
    struct job_spec spec;
    bool existing;
    json_t *json = json_deep_copy(settings);
    json_object_set_new(json, "name", json_string("curve"));
    json_object_set_new(json, "data", json_string(s->data));
    json_object_set_new(json, "compute", json_string("f32")); /* the goldens are */
    if (job_spec_parse(&spec, json, &e)) fail_msg("%s", e.message);
    if (jobs_submit(s->jobs, &spec, &s->job, &existing, &e)) fail_msg("%s", e.message);
    job_spec_free(&spec);
    json_decref(json);
}

static void drive(struct runner *r, void *arg) {
    struct scene *s = arg;
    struct error e = {0};
    struct trainer *t;
    struct trainer_options o = {.model = r->model,
                                .tokenizer = s->tokenizer,
                                .jobs = s->jobs,
                                .state_dir = s->dir,
                                .threads = 1};
    if (trainer_new(&t, &o, &e)) fail_msg("%s", e.message);
    for (bool over = false; !over;) {
        struct job job;
        trainer_unit(t, r->ranks);
        if (jobs_get(s->jobs, s->job, NULL, &job, &e)) fail_msg("%s", e.message);
        if (job.state == JOB_FAILED) fail_msg("%s", job.error);
        over = job.state == JOB_DONE;
        job_free_fields(&job);
    }
    trainer_stop(t, r->ranks);
    trainer_free(t);
}

static double number(const json_t *object, const char *key) {
    return json_number_value(json_object_get(object, key));
}

static struct curve read_curve(const struct scene *s) {
    struct curve c = {0};
    struct job_event *events;
    size_t n;
    struct error e = {0};
    if (jobs_events(s->jobs, s->job, 0, 1000, &events, &n, &e)) fail_msg("%s", e.message);
    for (size_t i = 0; i < n; i++) {
        const json_t *fields = events[i].fields;
        const char *kind = json_string_value(json_object_get(fields, "event"));
        if (strcmp(kind, "step") != 0 || c.n == STEPS) continue;
        c.loss[c.n] = number(fields, "loss");
        c.norm[c.n] = number(fields, "grad_norm");
        c.lr[c.n++] = number(fields, "lr");
    }
    jobs_events_free(events, n);
    return c;
}

static struct curve learn(const char *model, const json_t *records, const json_t *settings, int tp) {
    struct scene s;
    struct runner_options o = {.tp = tp, .device = RANK_CPU};
    scene_open(&s, records);
    submit(&s, settings);
    runner_run(model, &o, drive, &s);
    struct curve c = read_curve(&s);
    scene_close(&s);
    return c;
}

/* --- curves of others ----------------------------------------------------------------------------- */

static double element(const json_t *facts, const char *key, size_t i) {
    return json_number_value(json_array_get(json_object_get(facts, key), i));
}

static void compare(const struct curve *got, const json_t *facts, const char *what) {
    assert_int_equal(got->n, STEPS);
    for (size_t i = 0; i < STEPS; i++) {
        double loss = element(facts, "losses", i), norm = element(facts, "norms", i);
        if (!(fabs(got->loss[i] - loss) <= 1e-3))
            fail_msg("%s: the loss of step %zu is %f, not %f", what, i + 1, got->loss[i], loss);
        if (!(fabs(got->norm[i] / norm - 1) <= 5e-3))
            fail_msg("%s: the norm of step %zu is %f, not %f", what, i + 1, got->norm[i], norm);
        assert_true(fabs(got->lr[i] - element(facts, "lr", i)) <= 1e-9);
    }
}

/* What another order of addition comes to after thirty steps. */
static void agree(const struct curve *a, const struct curve *b, const char *what) {
    assert_int_equal(a->n, b->n);
    for (int i = 0; i < a->n; i++)
        if (!(fabs(a->loss[i] - b->loss[i]) <= 2e-4))
            fail_msg("%s: the losses of step %d are %f and %f", what, i + 1, a->loss[i], b->loss[i]);
}

static void check(const char *name) {
    char path[128], model[128];
    struct error e = {0};
    snprintf(path, sizeof path, "tests/data/curves/%s.json", name);
    json_t *facts = json_read_file(path, 1 << 20, &e);
    if (!facts) fail_msg("%s", e.message);
    snprintf(model, sizeof model, "tests/data/%s",
             json_string_value(json_object_get(facts, "model")));
    json_t *job = json_object_get(facts, "job"), *records = json_object_get(facts, "records");
    struct curve one = learn(model, records, job, 1), two = learn(model, records, job, 2);
    json_object_set_new(job, "sequence_parallel", json_true());
    struct curve rows = learn(model, records, job, 2);
    compare(&one, facts, name);
    compare(&two, facts, name);
    agree(&one, &two, name);
    agree(&two, &rows, name);
    json_decref(facts);
}

static void full_fine_tuning_has_the_losses_of_transformers(void **state) {
    (void)state;
    check("full");
    check("full-packed");
}

static void lora_has_the_losses_of_peft(void **state) {
    (void)state;
    check("lora");
    check("lora-packed");
}

/* --- where a published model starts --------------------------------------------------------------- */

static char stories[512];

static int find_stories(void **state) {
    (void)state;
    const char *shared = getenv("TPD_SHARED");
    snprintf(stories, sizeof stories, "%s/cases/models", shared ? shared : "../shared");
    return 0;
}

static json_t *read_line(FILE *f) {
    char line[1 << 16];
    return fgets(line, sizeof line, f) ? json_loads(line, 0, NULL) : NULL;
}

/* Each text by itself, whole and packed with all others. */
static void a_job_starts_at_the_known_losses_of_a_published_model(void **state) {
    (void)state;
    char path[600], model[600];
    snprintf(path, sizeof path, "%s/stories260K.loss.jsonl", stories);
    snprintf(model, sizeof model, "%s/stories260K-hf", stories);
    FILE *f = fopen(path, "r");
    if (!f) {
        print_message("skipped: %s is not there\n", path);
        skip();
    }
    json_t *line, *all = json_array();
    json_t *job = json_pack("{s:s, s:i, s:i, s:i, s:i, s:f}", "method", "full", "max_steps", 1,
                            "batch_size", 4, "seq_len", 512, "eval_fraction", 0, "lr", 1e-5);
    double sum = 0;
    size_t count = 0;
    while ((line = read_line(f))) {
        json_t *ids = json_object_get(line, "ids"), *record = json_pack("{s:O}", "input_ids", ids);
        json_t *one = json_pack("[o]", record);
        struct curve c = learn(model, one, job, 2);
        double known = number(line, "mean_nll");
        if (!(fabs(c.loss[0] - known) <= 1e-3))
            fail_msg("%s: the first loss is %f, not %f",
                     json_string_value(json_object_get(line, "id")), c.loss[0], known);
        size_t n = json_array_size(json_object_get(line, "nll"));
        sum += known * (double)n;
        count += n;
        json_array_append(all, record);
        json_decref(one);
        json_decref(line);
    }
    fclose(f);
    assert_true(count > 0);
    struct curve c = learn(model, all, job, 1);
    assert_true(fabs(c.loss[0] - sum / (double)count) <= 1e-3);
    json_object_set_new(job, "method", json_string("lora")); /* B begins at zero */
    c = learn(model, all, job, 1);
    assert_true(fabs(c.loss[0] - sum / (double)count) <= 1e-3);
    json_decref(job);
    json_decref(all);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(full_fine_tuning_has_the_losses_of_transformers),
        cmocka_unit_test(lora_has_the_losses_of_peft),
        cmocka_unit_test_setup(a_job_starts_at_the_known_losses_of_a_published_model, find_stories),
    };
    log_setup(LOG_WARN, false);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
