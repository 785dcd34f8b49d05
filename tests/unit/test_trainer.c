/* Jobs from data to result: they learn, what they leave can be loaded, and one that was stopped at any
 * unit ends with the same bits as one that was left alone. */
#include "tests/unit/model_runner.h"

#include "base/file.h"
#include "model/adapter.h"
#include "train/trainer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define MODEL "tests/data/models/tiny-chat"

struct scene {
    char dir[64], data[96];
    struct jobs *jobs;
    struct tokenizer *tokenizer;
    int64_t job;
    int stop_after; /* units; 0 = never */
    int units;      /* done */
};

static void make_data(struct scene *s) {
    snprintf(s->data, sizeof s->data, "%s/data.jsonl", s->dir);
    FILE *f = fopen(s->data, "w");
    assert_non_null(f);
    for (int i = 0; i < 24; i++)
        fprintf(f, "{\"prompt\": \"Say number %d. \", \"completion\": \"The number is %d, dear.\"}\n", i,
                i);
    fclose(f);
}

static void scene_open(struct scene *s) {
    struct error e = {0};
    *s = (struct scene){0};
    strcpy(s->dir, "/tmp/tpd-test-XXXXXX");
    assert_non_null(mkdtemp(s->dir));
    make_data(s);
    if (jobs_open(&s->jobs, s->dir, &e)) fail_msg("%s", e.message);
    if (tokenizer_open(&s->tokenizer, MODEL, &e)) fail_msg("%s", e.message);
}

static void scene_close(struct scene *s) {
    jobs_close(s->jobs);
    tokenizer_free(s->tokenizer);
    dir_remove(s->dir, NULL);
}

/* `more` is added to the job's keys. */
static void submit(struct scene *s, const char *more) {
    struct error e = {0};
    char text[1024];
    snprintf(text, sizeof text,
             "{\"name\": \"t\", \"data\": \"%s\", \"epochs\": 2, \"batch_size\": 2, \"grad_accum\": 2, "
             "\"seq_len\": 64, \"lr\": 0.01, \"eval_fraction\": 0.1, \"eval_every\": 3, "
             "\"save_every\": 2%s}",
             s->data, more);
    json_t *json = json_loads(text, 0, NULL);
    assert_non_null(json);
    struct job_spec spec;
    bool existing;
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
    for (s->units = 0;;) {
        if (s->stop_after && s->units >= s->stop_after) break;
        if (trainer_unit(t, r->ranks)) s->units++;
        struct job job;
        if (jobs_get(s->jobs, s->job, NULL, &job, &e)) fail_msg("%s", e.message);
        enum job_state state = job.state;
        job_free_fields(&job);
        if (state == JOB_DONE || state == JOB_FAILED || state == JOB_PAUSED) break;
    }
    trainer_stop(t, r->ranks);
    trainer_free(t);
}

static void run_at(struct scene *s, int tp) {
    struct runner_options o = {.tp = tp, .device = RANK_CPU};
    runner_run(MODEL, &o, drive, s);
}

static struct job job_of(struct scene *s) {
    struct job job;
    struct error e = {0};
    if (jobs_get(s->jobs, s->job, NULL, &job, &e)) fail_msg("%s", e.message);
    return job;
}

static void expect_done(struct scene *s) {
    struct job job = job_of(s);
    if (job.state != JOB_DONE)
        fail_msg("the job is %s: %s", job_state_name(job.state), job.error ? job.error : "");
    job_free_fields(&job);
}

/* The first step's loss and the last. */
static void losses(struct scene *s, double *first, double *last, int *steps) {
    struct job_event *events;
    size_t n;
    struct error e = {0};
    if (jobs_events(s->jobs, s->job, 0, 1000, &events, &n, &e)) fail_msg("%s", e.message);
    *first = *last = NAN;
    *steps = 0;
    for (size_t i = 0; i < n; i++) {
        const char *kind = json_string_value(json_object_get(events[i].fields, "event"));
        if (strcmp(kind, "step") != 0) continue;
        *last = json_number_value(json_object_get(events[i].fields, "loss"));
        if (isnan(*first)) *first = *last;
        (*steps)++;
    }
    jobs_events_free(events, n);
}

static void a_lora_job_learns_and_leaves_an_adapter_that_loads(void **state) {
    (void)state;
    struct scene s;
    struct error e = {0};
    scene_open(&s);
    submit(&s, "");
    run_at(&s, 2);
    expect_done(&s);
    double first, last;
    int steps;
    losses(&s, &first, &last, &steps);
    assert_true(steps >= 4);
    if (!(last < 0.7 * first)) fail_msg("the loss went from %f to %f", first, last);
    struct model *model;
    struct adapter *adapter;
    char path[128];
    snprintf(path, sizeof path, "%s/adapters/t", s.dir);
    if (model_open(&model, MODEL, &e)) fail_msg("%s", e.message);
    if (adapter_open(&adapter, model, path, &e)) fail_msg("%s", e.message);
    adapter_close(adapter);
    model_free(model);
    scene_close(&s);
}

static void a_fully_trained_model_is_a_directory_that_loads(void **state) {
    (void)state;
    struct scene s;
    struct error e = {0};
    scene_open(&s);
    submit(&s, ", \"method\": \"full\", \"lr\": 0.002");
    run_at(&s, 2);
    expect_done(&s);
    double first, last;
    int steps;
    losses(&s, &first, &last, &steps);
    assert_true(last < first);
    struct model *model;
    char path[128];
    snprintf(path, sizeof path, "%s/models/t", s.dir);
    if (model_open(&model, path, &e)) fail_msg("%s", e.message);
    model_free(model);
    scene_close(&s);
}

static char *read_result(struct scene *s, size_t *size) {
    char path[160], *text;
    struct error e = {0};
    snprintf(path, sizeof path, "%s/adapters/t/adapter_model.safetensors", s->dir);
    if (file_read(path, 64 << 20, &text, size, &e)) fail_msg("%s", e.message);
    return text;
}

/* Stops and starts again and again, as a daemon does. */
static void run_in_pieces(struct scene *s, int piece, int tp) {
    for (int i = 0; i < 1000; i++) {
        struct job job = job_of(s);
        enum job_state state = job.state;
        job_free_fields(&job);
        if (state == JOB_DONE || state == JOB_FAILED) return;
        s->stop_after = piece + 7 * i;
        run_at(s, tp);
        jobs_recover(s->jobs, NULL);
    }
    fail_msg("the job does not end");
}

static void a_job_stopped_at_any_unit_ends_with_the_same_bits(void **state) {
    (void)state;
    struct scene whole, pieces;
    const char *more = ", \"lora\": {\"r\": 4, \"dropout\": 0.1}";
    scene_open(&whole);
    submit(&whole, more);
    run_at(&whole, 1);
    expect_done(&whole);
    size_t n, m;
    char *want = read_result(&whole, &n);
    int pieces_of[] = {3, 11, 25};
    for (size_t i = 0; i < 3; i++) {
        scene_open(&pieces);
        submit(&pieces, more);
        run_in_pieces(&pieces, pieces_of[i], 1);
        expect_done(&pieces);
        char *got = read_result(&pieces, &m);
        assert_int_equal(m, n);
        assert_memory_equal(got, want, n);
        free(got);
        scene_close(&pieces);
    }
    free(want);
    scene_close(&whole);
}

static void broken_data_fails_the_job_with_its_line(void **state) {
    (void)state;
    struct scene s;
    scene_open(&s);
    FILE *f = fopen(s.data, "a");
    fprintf(f, "{\"prompt\": \"no completion\"}\n");
    fclose(f);
    submit(&s, "");
    run_at(&s, 1);
    struct job job = job_of(&s);
    assert_int_equal(job.state, JOB_FAILED);
    assert_non_null(strstr(job.error, "data.jsonl"));
    assert_non_null(strstr(job.error, "25"));
    job_free_fields(&job);
    scene_close(&s);
}

static void checkpointing_gives_the_same_result(void **state) {
    (void)state;
    size_t n, m;
    struct scene a, b;
    scene_open(&a);
    submit(&a, "");
    run_at(&a, 2);
    expect_done(&a);
    scene_open(&b);
    submit(&b, ", \"grad_checkpointing\": true");
    run_at(&b, 2);
    expect_done(&b);
    char *x = read_result(&a, &n), *y = read_result(&b, &m);
    assert_int_equal(n, m);
    assert_memory_equal(x, y, n);
    free(x);
    free(y);
    scene_close(&a);
    scene_close(&b);
}

/* Stopped in between, too: what is kept are whole tensors. */
static void sequence_parallel_gives_the_same_result(void **state) {
    (void)state;
    size_t n, m;
    struct scene a, b;
    scene_open(&a);
    submit(&a, "");
    run_at(&a, 2);
    expect_done(&a);
    scene_open(&b);
    submit(&b, ", \"sequence_parallel\": true");
    run_in_pieces(&b, 11, 2);
    expect_done(&b);
    char *x = read_result(&a, &n), *y = read_result(&b, &m);
    assert_int_equal(n, m);
    assert_memory_equal(x, y, n);
    free(x);
    free(y);
    scene_close(&a);
    scene_close(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lora_job_learns_and_leaves_an_adapter_that_loads),
        cmocka_unit_test(a_fully_trained_model_is_a_directory_that_loads),
        cmocka_unit_test(a_job_stopped_at_any_unit_ends_with_the_same_bits),
        cmocka_unit_test(broken_data_fails_the_job_with_its_line),
        cmocka_unit_test(checkpointing_gives_the_same_result),
        cmocka_unit_test(sequence_parallel_gives_the_same_result),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
