#include "daemon/training.h"

#include "base/file.h"
#include "base/log.h"
#include "daemon/adapters.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void deliver_change(struct letter *letter) {
    struct training *t = (struct training *)((char *)letter - offsetof(struct training, letter));
    atomic_store(&t->posted, false);
    watches_look(t);
    adapters_sweep(t->server);
}

/* Any thread. One letter is on its way at most: it says only that there is news. */
static void on_change(void *user) {
    struct training *t = user;
    if (!atomic_exchange(&t->posted, true)) mailbox_post(&t->server->mailbox, &t->letter);
}

/* On rank 0's thread. */
static void on_event(void *user, int64_t job) {
    (void)job;
    on_change(user);
}

static int choose_data_dir(struct training *t, struct error *e) {
    const char *given = t->server->config->data_dir;
    t->data_dir = *given ? strdup(given) : path_join(t->state_dir, "data");
    if (!t->data_dir) return error_set(e, ERR_MEMORY, "no memory for jobs");
    if (!*given) return dir_make(t->data_dir, e);
    if (path_is_dir(given)) return 0;
    return error_set(e, ERR_CONFIG, "data_dir: %s is no directory", given);
}

int training_open(struct server *server, const char *state_dir, struct error *e) {
    struct training *t = calloc(1, sizeof *t);
    if (!t) return error_set(e, ERR_MEMORY, "no memory for jobs");
    server->training = t;
    t->server = server;
    t->letter.deliver = deliver_change;
    pthread_mutex_init(&t->mutex, NULL);
    t->state_dir = realpath(state_dir, NULL);
    if (!t->state_dir) return error_set(e, ERR_IO, "%s: cannot find out where it is", state_dir);
    int rc = choose_data_dir(t, e);
    if (rc == 0) rc = jobs_open(&t->jobs, t->state_dir, e);
    if (rc != 0) return rc;
    int again = jobs_recover(t->jobs, e);
    if (again > 0) log_info("%d fine-tune jobs that were running go on", again);
    return again < 0 ? again : 0;
}

void training_listen(struct server *server) {
    jobs_listen(server->training->jobs, on_change, server->training);
}

void training_quiet(struct server *server) {
    jobs_listen(server->training->jobs, NULL, NULL);
}

/* Any thread. */
static void on_work(void *user) {
    struct training *t = user;
    pthread_mutex_lock(&t->mutex);
    if (t->engine) engine_wake(t->engine);
    pthread_mutex_unlock(&t->mutex);
}

int training_background(struct server *server, int n_threads, struct engine_background *out,
                        struct error *e) {
    struct training *t = server->training;
    t->activator = adapters_activator(server);
    const struct trainer_options options = {
        .model = server->model,
        .tokenizer = server->tokenizer,
        .chat = server->chat,
        .jobs = t->jobs,
        .state_dir = t->state_dir,
        .threads = n_threads,
        .activator = &t->activator,
        .on_work = on_work,
        .on_event = on_event,
        .user = t,
    };
    int rc = trainer_new(&t->trainer, &options, e);
    if (rc != 0) return rc;
    *out = (struct engine_background){.unit = trainer_unit,
                                      .stop = trainer_stop,
                                      .arg = t->trainer,
                                      .share = (double)server->config->train_share / 100};
    return 0;
}

void training_started(struct server *server) {
    struct training *t = server->training;
    pthread_mutex_lock(&t->mutex);
    t->engine = server->engine;
    free(t->model_path);
    t->model_path = strdup(model_path(server->model));
    pthread_mutex_unlock(&t->mutex);
    on_work(t); /* it may have been called for before */
}

struct trainer *training_end(struct server *server) {
    struct training *t = server->training;
    struct trainer *trainer = t->trainer;
    t->trainer = NULL;
    pthread_mutex_lock(&t->mutex);
    t->engine = NULL;
    free(t->model_path);
    t->model_path = NULL;
    pthread_mutex_unlock(&t->mutex);
    return trainer;
}

char *training_model_path(struct training *t) {
    pthread_mutex_lock(&t->mutex);
    char *path = t->model_path ? strdup(t->model_path) : NULL;
    pthread_mutex_unlock(&t->mutex);
    return path;
}

static void park_queued(struct jobs *jobs) {
    struct job *list;
    struct error e = {0};
    size_t n;
    if (jobs_list(jobs, &list, &n, &e) != 0) {
        log_warn("jobs that wait for the model before: %s", e.message);
        return;
    }
    for (size_t i = 0; i < n; i++)
        if (list[i].state == JOB_QUEUED && jobs_move(jobs, list[i].id, JOB_PAUSED, NULL, NULL, &e) == 0)
            log_info("job %lld is paused: it was meant for the model before; resume it to train this one",
                     (long long)list[i].id);
    jobs_list_free(list, n);
}

void training_note_model(struct server *server, const char *path) {
    static const char key[] = "model";
    struct jobs *jobs = server->training->jobs;
    struct error e = {0};
    char *real = realpath(path, NULL), *last = NULL;
    const char *now = real ? real : path;
    int rc = jobs_kept(jobs, key, &last, &e);
    bool same = last && strcmp(last, now) == 0;
    if (rc == 0 && last && !same) park_queued(jobs);
    if (rc == 0 && !same) rc = jobs_keep(jobs, key, now, &e);
    if (rc != 0) log_warn("the model is not remembered beside the jobs: %s", e.message);
    free(last);
    free(real);
}

void training_wake(struct server *server) {
    struct training *t = server->training;
    if (t->trainer) trainer_wake(t->trainer);
}

double training_tokens_per_s(const struct server *server) {
    struct training *t = server->training;
    return t->trainer ? trainer_tokens_per_s(t->trainer) : 0;
}

void training_close(struct server *server) {
    struct training *t = server->training;
    if (!t) return;
    if (t->trainer) trainer_free(t->trainer);
    jobs_close(t->jobs);
    pthread_mutex_destroy(&t->mutex);
    free(t->model_path);
    free(t->state_dir);
    free(t->data_dir);
    free(t);
    server->training = NULL;
}

/* --- as JSON ---------------------------------------------------------------------------------- */

static json_t *number_or_null(double number, bool there) {
    return there && isfinite(number) ? json_real(number) : json_null();
}

static json_t *text_or_null(const char *text) {
    json_t *value = text ? json_string(text) : NULL; /* NULL also when it is not UTF-8 */
    return value ? value : json_null();
}

json_t *job_json(const struct job *job, bool with_spec) {
    json_t *json = json_pack(
        "{s:I, s:s, s:s, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "job", (json_int_t)job->id,
        "name", job->name, "state", job_state_name(job->state), "step", (json_int_t)job->step,
        "steps", (json_int_t)job->steps, "loss", number_or_null(job->loss, true), "eval_loss",
        number_or_null(job->eval_loss, true), "error", text_or_null(job->error), "result",
        text_or_null(job->result), "created", json_real(job->created), "started",
        number_or_null(job->started, job->started > 0), "ended",
        number_or_null(job->ended, job->ended > 0), "deadline",
        number_or_null(job->deadline, job->deadline > 0), "eval_loss_before",
        number_or_null(job->eval_loss_before, true), "activated",
        job->activated < 0 ? json_null() : json_boolean(job->activated), "verdict",
        text_or_null(job->verdict));
    if (json && with_spec) json_object_set(json, "spec", job->spec);
    return json;
}

int job_named(struct jobs *jobs, const json_t *params, struct job *out, struct error *e) {
    const json_t *job = json_object_get(params, "job");
    const char *name = json_string_value(job);
    int64_t id = json_integer_value(job); /* 0 for a string */
    if (!name && id <= 0) return error_set(e, ERR_NOT_FOUND, "there is no job %lld", (long long)id);
    return jobs_get(jobs, id, name, out, e);
}

json_t *job_event_json(const struct job_event *event) {
    json_t *json =
        json_pack("{s:I, s:f}", "cursor", (json_int_t)event->cursor, "time", event->time);
    if (json) json_object_update_missing(json, event->fields);
    return json;
}
