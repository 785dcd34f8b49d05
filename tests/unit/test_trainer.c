/* Jobs from data to result: they learn, what they leave can be loaded, and one that was stopped at any
 * unit ends with the same bits as one that was left alone. */
#include "tests/unit/job_scene.h"

#include "base/file.h"
#include "model/adapter.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

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
    scene_submit(&s, "");
    scene_run(&s, 2);
    scene_expect_done(&s);
    double first, last;
    int steps;
    losses(&s, &first, &last, &steps);
    assert_true(steps >= 4);
    if (!(last < 0.7 * first)) fail_msg("the loss went from %f to %f", first, last);
    struct model *model;
    struct adapter *adapter;
    char path[128];
    snprintf(path, sizeof path, "%s/adapters/t", s.dir);
    if (model_open(&model, SCENE_MODEL, &e)) fail_msg("%s", e.message);
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
    scene_submit(&s, ", \"method\": \"full\", \"lr\": 0.002");
    scene_run(&s, 2);
    scene_expect_done(&s);
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

static void a_job_stopped_at_any_unit_ends_with_the_same_bits(void **state) {
    (void)state;
    struct scene whole, pieces;
    const char *more = ", \"lora\": {\"r\": 4, \"dropout\": 0.1}";
    scene_open(&whole);
    scene_submit(&whole, more);
    scene_run(&whole, 1);
    scene_expect_done(&whole);
    size_t n, m;
    char *want = scene_read(&whole, SCENE_RESULT, &n);
    int pieces_of[] = {3, 11, 25};
    for (size_t i = 0; i < 3; i++) {
        scene_open(&pieces);
        scene_submit(&pieces, more);
        scene_run_in_pieces(&pieces, pieces_of[i], 1);
        scene_expect_done(&pieces);
        char *got = scene_read(&pieces, SCENE_RESULT, &m);
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
    scene_submit(&s, "");
    scene_run(&s, 1);
    struct job job = scene_job(&s);
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
    scene_submit(&a, "");
    scene_run(&a, 2);
    scene_expect_done(&a);
    scene_open(&b);
    scene_submit(&b, ", \"grad_checkpointing\": true");
    scene_run(&b, 2);
    scene_expect_done(&b);
    char *x = scene_read(&a, SCENE_RESULT, &n), *y = scene_read(&b, SCENE_RESULT, &m);
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
    scene_submit(&a, "");
    scene_run(&a, 2);
    scene_expect_done(&a);
    scene_open(&b);
    scene_submit(&b, ", \"sequence_parallel\": true");
    scene_run_in_pieces(&b, 11, 2);
    scene_expect_done(&b);
    char *x = scene_read(&a, SCENE_RESULT, &n), *y = scene_read(&b, SCENE_RESULT, &m);
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
