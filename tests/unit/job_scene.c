#include "tests/unit/job_scene.h"

#include "base/file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static void make_data(struct scene *s) {
    snprintf(s->data, sizeof s->data, "%s/data.jsonl", s->dir);
    FILE *f = fopen(s->data, "w");
    assert_non_null(f);
    for (int i = 0; i < 24; i++)
        fprintf(f, "{\"prompt\": \"Say number %d. \", \"completion\": \"The number is %d, dear.\"}\n", i,
                i);
    fclose(f);
}

void scene_open(struct scene *s) {
    struct error e = {0};
    *s = (struct scene){0};
    strcpy(s->dir, "/tmp/tpd-test-XXXXXX");
    assert_non_null(mkdtemp(s->dir));
    make_data(s);
    if (jobs_open(&s->jobs, s->dir, &e)) fail_msg("%s", e.message);
    if (tokenizer_open(&s->tokenizer, SCENE_MODEL, &e)) fail_msg("%s", e.message);
}

void scene_close(struct scene *s) {
    jobs_close(s->jobs);
    tokenizer_free(s->tokenizer);
    dir_remove(s->dir, NULL);
}

void scene_submit(struct scene *s, const char *more) {
    struct error e = {0};
    json_t *json = json_pack("{s:s, s:s, s:i, s:i, s:i, s:i, s:f, s:f, s:i, s:i}", "name", "t", "data",
                             s->data, "epochs", 2, "batch_size", 2, "grad_accum", 2, "seq_len", 64,
                             "lr", 0.01, "eval_fraction", 0.1, "eval_every", 3, "save_every", 2);
    char text[1024];
    snprintf(text, sizeof text, "{\"name\": \"t\"%s}", more);
    json_t *others = json_loads(text, 0, NULL);
    assert_non_null(others);
    json_object_update(json, others);
    json_decref(others);
    struct job_spec spec;
    bool existing;
    if (job_spec_parse(&spec, json, &e)) fail_msg("%s", e.message);
    if (jobs_submit(s->jobs, &spec, &s->job, &existing, &e)) fail_msg("%s", e.message);
    job_spec_free(&spec);
    json_decref(json);
}

static bool is_over(struct scene *s) {
    struct job job = scene_job(s);
    enum job_state state = job.state;
    job_free_fields(&job);
    return job_state_ended(state) || state == JOB_PAUSED;
}

static void drive(struct runner *r, void *arg) {
    struct scene *s = arg;
    struct error e = {0};
    struct trainer *t;
    struct trainer_options o = {.model = r->model,
                                .tokenizer = s->tokenizer,
                                .jobs = s->jobs,
                                .state_dir = s->dir,
                                .threads = 1,
                                .activator = s->activator};
    if (trainer_new(&t, &o, &e)) fail_msg("%s", e.message);
    s->units = 0;
    do {
        if (s->stop_after && s->units >= s->stop_after) break;
        if (trainer_unit(t, r->ranks)) s->units++;
        if (s->after_unit) s->after_unit(s);
    } while (!is_over(s));
    trainer_stop(t, r->ranks);
    trainer_free(t);
}

void scene_run(struct scene *s, int tp) {
    struct runner_options o = {.tp = tp, .device = RANK_CPU};
    runner_run(SCENE_MODEL, &o, drive, s);
}

struct job scene_job(struct scene *s) {
    struct job job;
    struct error e = {0};
    if (jobs_get(s->jobs, s->job, NULL, &job, &e)) fail_msg("%s", e.message);
    return job;
}

void scene_expect_done(struct scene *s) {
    struct job job = scene_job(s);
    if (job.state != JOB_DONE)
        fail_msg("the job is %s: %s", job_state_name(job.state), job.error ? job.error : "");
    job_free_fields(&job);
}

int scene_events(struct scene *s, const char *kind, json_t **last) {
    struct job_event *events;
    size_t n;
    struct error e = {0};
    int found = 0;
    if (last) *last = NULL;
    if (jobs_events(s->jobs, s->job, 0, 100000, &events, &n, &e)) fail_msg("%s", e.message);
    for (size_t i = 0; i < n; i++) {
        const char *what = json_string_value(json_object_get(events[i].fields, "event"));
        if (strcmp(what, kind) != 0) continue;
        found++;
        if (!last) continue;
        json_decref(*last);
        *last = json_incref(events[i].fields);
    }
    jobs_events_free(events, n);
    return found;
}

char *scene_read(struct scene *s, const char *name, size_t *size) {
    char path[300], *text;
    struct error e = {0};
    snprintf(path, sizeof path, "%s/%s", s->dir, name);
    if (file_read(path, 64 << 20, &text, size, &e)) fail_msg("%s", e.message);
    return text;
}

void scene_run_in_pieces(struct scene *s, int piece, int tp) {
    for (int i = 0; i < 1000; i++) {
        if (is_over(s)) return;
        s->stop_after = piece + 7 * i;
        scene_run(s, tp);
        jobs_recover(s->jobs, NULL);
    }
    fail_msg("the job does not end");
}
