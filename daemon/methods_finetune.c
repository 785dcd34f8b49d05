/* The methods of fine-tune jobs but watch. Each does its work on the worker pool: the store waits
 * for the disk, and paths are looked at. */
#include "daemon/job_paths.h"
#include "daemon/methods.h"
#include "daemon/results.h"
#include "daemon/training.h"

#include "base/file.h"
#include "train/dataset.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LOG_LIMIT = 1000 }; /* events of an answer when the client names no limit */

struct job_call {
    job_work *work;
    bool changes; /* the queue: the trainer is told */
    json_t *result;
    int rc;
    struct error error;
};

static void in_thread(struct call *call) {
    struct job_call *c = call->state;
    c->rc = c->work(call->server->training, call->params, &c->result, &c->error);
}

static void afterwards(struct call *call) {
    struct job_call *c = call->state;
    call->state = NULL;
    if (c->rc == 0) {
        if (c->changes) training_wake(call->server);
        call_result(call, c->result);
    } else call_fail(call, &c->error);
    free(c);
}

void training_call(struct call *call, job_work *work, bool changes) {
    struct job_call *c = calloc(1, sizeof *c);
    if (!c) {
        struct error e;
        error_set(&e, ERR_MEMORY, "no memory for the request");
        call_fail(call, &e);
        return;
    }
    c->work = work;
    c->changes = changes;
    call->state = c;
    call_in_thread(call, in_thread, afterwards);
}

static int no_memory(struct error *e) {
    return error_set(e, ERR_MEMORY, "no memory for the answer");
}

/* --- submit ----------------------------------------------------------------------------------- */

static int resolve(char **path, const char *data_dir, const char *field, struct error *e) {
    char *real;
    if (!*path) return 0;
    int rc = job_data_path(&real, data_dir, *path, field, e);
    if (rc != 0) return rc;
    free(*path);
    *path = real;
    return 0;
}

/* Without `out` the result goes to a directory of the job's name. */
static int resolve_out(struct job_spec *spec, const char *state_dir, struct error *e) {
    char standard[128], *real;
    snprintf(standard, sizeof standard, "%s/%s", spec->method == TRAIN_FULL ? "models" : "adapters",
             spec->name);
    int rc = job_out_path(&real, state_dir, spec->out ? spec->out : standard, e);
    if (rc != 0) return rc;
    free(spec->out);
    spec->out = real;
    return 0;
}

static int answer_job(struct training *t, int64_t id, json_t **result, struct error *e) {
    struct job job;
    int rc = jobs_get(t->jobs, id, NULL, &job, e);
    if (rc != 0) return rc;
    *result = job_json(&job, false);
    job_free_fields(&job);
    return *result ? 0 : no_memory(e);
}

/* Whether a job would find nothing to read: then *job is the one that left nothing. What goes wrong
 * here is said by the job. */
static bool has_no_news(struct training *t, const struct job_spec *spec, int64_t *job) {
    struct data_part known;
    struct job before = {0};
    if (!spec->since_last || jobs_live_once(t->jobs, spec->once)) return false;
    if (jobs_learnt(t->jobs, spec->name, spec->data, &known, job, NULL) || *job == 0) return false;
    if (jobs_get(t->jobs, *job, NULL, &before, NULL)) return false; /* it was deleted */
    job_free_fields(&before);
    return !dataset_has_news(spec->data, &known);
}

static json_t *failed_before(struct training *t, const char *once, int64_t id) {
    struct job job;
    json_t *json = NULL;
    if (!once || jobs_last_once(t->jobs, once, id, &job, NULL)) return NULL;
    if (job.state == JOB_FAILED) json = job_json(&job, false);
    job_free_fields(&job);
    return json;
}

static int enqueue(struct training *t, struct job_spec *spec, json_t **result, struct error *e) {
    int64_t id;
    bool existing = true, no_news = has_no_news(t, spec, &id);
    int rc = no_news ? 0 : jobs_submit(t->jobs, spec, &id, &existing, e);
    if (rc == 0) rc = answer_job(t, id, result, e);
    if (rc != 0) return rc;
    json_object_set_new(*result, "existing", json_boolean(existing));
    if (no_news) json_object_set_new(*result, "nothing_new", json_true());
    json_t *before = existing ? NULL : failed_before(t, spec->once, id);
    if (before) json_object_set_new(*result, "previous", before);
    if (!existing) results_prune(t, spec->name);
    return 0;
}

int training_submit(struct training *t, const json_t *params, json_t **result, struct error *e) {
    struct job_spec spec;
    json_t *none = json_object();
    int rc = job_spec_parse(&spec, params ? params : none, e);
    json_decref(none);
    if (rc != 0) return rc;
    rc = resolve(&spec.data, t->data_dir, "data", e);
    if (rc == 0) rc = resolve(&spec.eval_data, t->data_dir, "eval_data", e);
    if (rc == 0) rc = resolve_out(&spec, t->state_dir, e);
    if (rc == 0) rc = enqueue(t, &spec, result, e);
    job_spec_free(&spec);
    return rc;
}

void handle_finetune_submit(struct call *call) {
    training_call(call, training_submit, true);
}

/* --- list, get, log --------------------------------------------------------------------------- */

static int list(struct training *t, const json_t *params, json_t **result, struct error *e) {
    (void)params;
    struct job *jobs;
    size_t n;
    int rc = jobs_list(t->jobs, &jobs, &n, e);
    if (rc != 0) return rc;
    json_t *array = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(array, job_json(&jobs[i], false));
    jobs_list_free(jobs, n);
    *result = json_pack("{s:o}", "jobs", array);
    return *result ? 0 : no_memory(e);
}

void handle_finetune_list(struct call *call) {
    training_call(call, list, false);
}

static int get(struct training *t, const json_t *params, json_t **result, struct error *e) {
    struct job job;
    int rc = job_named(t->jobs, params, &job, e);
    if (rc != 0) return rc;
    *result = job_json(&job, true);
    job_free_fields(&job);
    return *result ? 0 : no_memory(e);
}

void handle_finetune_get(struct call *call) {
    training_call(call, get, false);
}

static int read_log(struct training *t, const json_t *params, json_t **result, struct error *e) {
    struct job job;
    struct job_event *events;
    size_t n;
    const json_t *limit_given = json_object_get(params, "limit");
    int64_t after = (int64_t)json_number_value(json_object_get(params, "after"));
    size_t limit = json_is_number(limit_given) ? (size_t)json_number_value(limit_given) : LOG_LIMIT;
    int rc = job_named(t->jobs, params, &job, e);
    if (rc != 0) return rc;
    int64_t id = job.id;
    job_free_fields(&job);
    rc = jobs_events(t->jobs, id, after, limit, &events, &n, e);
    if (rc != 0) return rc;
    json_t *array = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(array, job_event_json(&events[i]));
    *result = json_pack("{s:I, s:o, s:I, s:b}", "job", (json_int_t)id, "events", array, "after",
                        (json_int_t)(n ? events[n - 1].cursor : after), "more", n == limit);
    jobs_events_free(events, n);
    return *result ? 0 : no_memory(e);
}

void handle_finetune_log(struct call *call) {
    training_call(call, read_log, false);
}

/* --- cancel, pause, resume, delete ------------------------------------------------------------ */

int training_move(struct training *t, int64_t id, enum job_state to, struct error *e) {
    struct job job;
    int rc = jobs_get(t->jobs, id, NULL, &job, e);
    if (rc != 0) return rc;
    bool stays = to == JOB_QUEUED && job.state != JOB_PAUSED; /* no running one is queued again */
    if (stays)
        rc = error_set(e, ERR_CONFLICT, "job %lld is %s, and only a paused one can be resumed",
                       (long long)id, job_state_name(job.state));
    job_free_fields(&job);
    return rc == 0 ? jobs_move(t->jobs, id, to, NULL, NULL, e) : rc;
}

static int move(struct training *t, const json_t *params, enum job_state to, json_t **result,
                struct error *e) {
    struct job job;
    int rc = job_named(t->jobs, params, &job, e);
    if (rc != 0) return rc;
    int64_t id = job.id;
    job_free_fields(&job);
    rc = training_move(t, id, to, e);
    return rc == 0 ? answer_job(t, id, result, e) : rc;
}

static int cancel(struct training *t, const json_t *params, json_t **result, struct error *e) {
    return move(t, params, JOB_CANCELLED, result, e);
}

static int pause_job(struct training *t, const json_t *params, json_t **result, struct error *e) {
    return move(t, params, JOB_PAUSED, result, e);
}

static int resume(struct training *t, const json_t *params, json_t **result, struct error *e) {
    return move(t, params, JOB_QUEUED, result, e);
}

void handle_finetune_cancel(struct call *call) {
    training_call(call, cancel, true);
}

void handle_finetune_pause(struct call *call) {
    training_call(call, pause_job, true);
}

void handle_finetune_resume(struct call *call) {
    training_call(call, resume, true);
}

/* The job and its checkpoints; its result stays, unless that is to go, too. */
static int delete_job(struct training *t, const json_t *params, json_t **result, struct error *e) {
    struct job job;
    int rc = job_named(t->jobs, params, &job, e);
    if (rc != 0) return rc;
    int64_t id = job.id;
    char name[48];
    bool with_result = json_is_true(json_object_get(params, "result")) && job.result;
    if (with_result && job_state_ended(job.state)) rc = results_remove(t, &job, e);
    job_free_fields(&job);
    if (rc != 0) return rc;
    snprintf(name, sizeof name, "jobs/%lld", (long long)id);
    char *dir = path_join(t->state_dir, name);
    if (!dir) return no_memory(e);
    rc = jobs_delete(t->jobs, id, e);
    if (rc == 0) rc = dir_remove(dir, e);
    free(dir);
    if (rc == 0 && !(*result = json_pack("{s:I, s:b}", "job", (json_int_t)id, "deleted", 1)))
        rc = no_memory(e);
    return rc;
}

void handle_finetune_delete(struct call *call) {
    training_call(call, delete_job, true);
}
