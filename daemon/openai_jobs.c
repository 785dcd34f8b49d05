/* /v1/fine_tuning/jobs, on the job store: a job made here is a LoRA that is loaded under a name of its
 * own when it is done; every job is listed, whoever made it. The worker pool does the work. */
#include "base/json.h"
#include "daemon/openai.h"
#include "daemon/schema.h"
#include "daemon/training.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { PAGE = 1000, EVENTS = 20 /* where no limit is given, as OpenAI has it */, MAX_SUFFIX = 40 };

static const double base_lr = 2e-4; /* what learning_rate_multiplier multiplies */

static int no_memory(struct error *e) {
    return error_set(e, ERR_MEMORY, "no memory for the answer");
}

static const char *text_of(const json_t *object, const char *key) {
    return json_string_value(json_object_get(object, key));
}

/* --- a job as OpenAI shows it --- */

static const char *status_word(const struct job *job) {
    static const char *const words[] = {"queued", "running", "paused",
                                        "succeeded", "failed", "cancelled"};
    return words[job->state];
}

static json_t *time_or_null(double seconds) {
    return seconds > 0 ? json_integer((json_int_t)seconds) : json_null();
}

/* The id of an uploaded file, or the path of one that was not uploaded; null where there is none. */
static json_t *file_of(const json_t *spec, const char *key) {
    const char *path = text_of(spec, key), *upload = path ? strstr(path, "/uploads/file-") : NULL;
    if (!path) return json_null();
    if (!upload) return json_string(path);
    upload += strlen("/uploads/");
    return json_stringn(upload, strcspn(upload, "/"));
}

static json_t *error_of(const struct job *job) {
    return job->error ? json_pack("{s:s, s:s, s:n}", "code", "job_failed", "message", job->error,
                                  "param")
                      : json_null();
}

/* Tokens of every step that a job has done. */
static json_int_t trained_tokens(struct jobs *jobs, int64_t id) {
    struct job_event *events;
    struct error ignored;
    json_int_t sum = 0;
    int64_t after = 0;
    size_t n = PAGE;
    while (n == PAGE && jobs_events(jobs, id, after, PAGE, &events, &n, &ignored) == 0) {
        for (size_t i = 0; i < n; i++) {
            const char *kind = text_of(events[i].fields, "event");
            if (kind && strcmp(kind, "step") == 0)
                sum += json_integer_value(json_object_get(events[i].fields, "tokens"));
            after = events[i].cursor;
        }
        jobs_events_free(events, n);
    }
    return sum;
}

static json_t *job_shape(struct training *t, const struct job *job) {
    const json_t *spec = job->spec;
    char id[32];
    bool done = job->state == JOB_DONE;
    const char *as = text_of(json_object_get(spec, "activate"), "as");
    json_t *hyper = json_pack("{s:O, s:O, s:f}", "n_epochs", json_object_get(spec, "epochs"),
                              "batch_size", json_object_get(spec, "batch_size"),
                              "learning_rate_multiplier",
                              json_number_value(json_object_get(spec, "lr")) / base_lr);
    snprintf(id, sizeof id, "ftjob-%lld", (long long)job->id);
    json_t *json = json_pack(
        "{s:s, s:s, s:s, s:I, s:o, s:s, s:o, s:o, s:[], s:s, s:o, s:O*, s:s}", "object",
        "fine_tuning.job", "id", id, "model", openai_base_name(t->server), "created_at",
        (json_int_t)job->created, "finished_at", time_or_null(job->ended), "status",
        status_word(job), "training_file", file_of(spec, "data"), "validation_file",
        file_of(spec, "eval_data"), "result_files", "organization_id", "tpd", "error",
        error_of(job), "seed", json_object_get(spec, "seed"), "name", job->name);
    if (!json || !hyper) {
        json_decref(json);
        json_decref(hyper);
        return NULL;
    }
    bool usable = done && job->activated == 1 && as;
    const char *model = usable && strcmp(as, "default") != 0 ? as : job->name;
    json_object_set_new(json, "fine_tuned_model", usable ? json_string(model) : json_null());
    json_object_set_new(json, "trained_tokens",
                        done ? json_integer(trained_tokens(t->jobs, job->id)) : json_null());
    json_object_set_new(json, "method",
                        json_pack("{s:s, s:{s:O}}", "type", "supervised", "supervised",
                                  "hyperparameters", hyper));
    json_object_set_new(json, "hyperparameters", hyper);
    json_object_set_new(json, "step", json_integer(job->step));
    json_object_set_new(json, "steps", json_integer(job->steps));
    return json;
}

/* "ftjob-12" (or 12) in params names it. */
static int find_job(struct training *t, const json_t *params, struct job *job, struct error *e) {
    static const char prefix[] = "ftjob-";
    const char *name = text_of(params, "job");
    char *end = NULL;
    int64_t id = 0;
    if (name && strncmp(name, prefix, sizeof prefix - 1) == 0)
        id = strtoll(name + sizeof prefix - 1, &end, 10);
    if (id > 0 && *end == '\0') return jobs_get(t->jobs, id, NULL, job, e);
    return error_set(e, ERR_NOT_FOUND,
                     "no job \"%.100s\": GET /v1/fine_tuning/jobs lists those that are there",
                     name ? name : "");
}

static int answer(struct training *t, const json_t *params, json_t **result, struct error *e) {
    struct job job;
    int rc = find_job(t, params, &job, e);
    if (rc != 0) return rc;
    *result = job_shape(t, &job);
    job_free_fields(&job);
    return *result ? 0 : no_memory(e);
}

/* --- create --- */

static int set_number(json_t *spec, const char *key, const json_t *hyper, const char *name,
                      double times, double min, double max, struct error *e) {
    const json_t *value = json_object_get(hyper, name);
    const char *word = json_string_value(value);
    if (!value || json_is_null(value) || (word && strcmp(word, "auto") == 0)) return 0;
    double number = json_number_value(value);
    char field[80], expected[80];
    snprintf(field, sizeof field, "hyperparameters.%s", name);
    snprintf(expected, sizeof expected, "\"auto\" or a number from %g to %g", min, max);
    if (!json_is_number(value) || number < min || number > max)
        return schema_refuse(e, field, expected, value);
    json_t *set = json_is_integer(value) && times == 1 ? json_integer(json_integer_value(value))
                                                       : json_real(number * times);
    json_object_set_new(spec, key, set);
    return 0;
}

static int set_hyper(json_t *spec, const json_t *params, struct error *e) {
    static const struct param known[] = {{"n_epochs", PARAM_ANY, false, 0, 0, NULL},
                                         {"batch_size", PARAM_ANY, false, 0, 0, NULL},
                                         {"learning_rate_multiplier", PARAM_ANY, false, 0, 0, NULL},
                                         {NULL, 0, false, 0, 0, NULL}};
    const json_t *method = json_object_get(params, "method");
    const json_t *hyper = json_object_get(params, "hyperparameters");
    const char *type = text_of(method, "type");
    if (type && strcmp(type, "supervised") != 0)
        return schema_refuse(e, "method.type", "\"supervised\"", json_object_get(method, "type"));
    const json_t *inner = json_object_get(json_object_get(method, "supervised"), "hyperparameters");
    if (json_is_object(inner)) hyper = inner;
    if (!json_is_object(hyper)) return 0;
    int rc = schema_check(known, hyper, e);
    if (rc == 0) rc = set_number(spec, "epochs", hyper, "n_epochs", 1, 1, 1000, e);
    if (rc == 0) rc = set_number(spec, "batch_size", hyper, "batch_size", 1, 1, 65536, e);
    if (rc == 0)
        rc = set_number(spec, "lr", hyper, "learning_rate_multiplier", base_lr, 1e-6, 1e4, e);
    return rc;
}

static int set_file(struct training *t, json_t *spec, const char *key, const json_t *params,
                    const char *name, struct error *e) {
    const char *id = text_of(params, name);
    char *path;
    if (!id) return 0;
    int rc = openai_file_path(&path, t->data_dir, id, e);
    if (rc != 0) {
        error_note(e, "field", name);
        return rc;
    }
    json_object_set_new(spec, key, json_string(path));
    free(path);
    return 0;
}

/* ft-SUFFIX-8hex: no other job's. */
static int set_name(json_t *spec, const json_t *params, struct error *e) {
    static const char allowed[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    const char *suffix = text_of(params, "suffix");
    char name[64];
    uint32_t number = 0;
    if (suffix && (strlen(suffix) > MAX_SUFFIX || strspn(suffix, allowed) != strlen(suffix)))
        return schema_refuse(e, "suffix", "at most 40 of the characters A-Z a-z 0-9 . _ -",
                             json_object_get(params, "suffix"));
    if (getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number)
        number = (uint32_t)clock_ns();
    snprintf(name, sizeof name, "ft-%s%s%08" PRIx32, suffix ? suffix : "", suffix ? "-" : "",
             number);
    json_object_set_new(spec, "name", json_string(name));
    json_object_set_new(spec, "activate", json_pack("{s:s, s:s}", "when", "always", "as", name));
    return 0;
}

static int make_spec(struct training *t, const json_t *params, json_t *spec, struct error *e) {
    const char *model = text_of(params, "model");
    if (model && strcmp(model, openai_base_name(t->server)) != 0)
        return schema_refuse(e, "model", "the base model (GET /v1/models), which is what learns",
                             json_object_get(params, "model"));
    if (json_array_size(json_object_get(params, "integrations")) > 0)
        return schema_refuse(e, "integrations", "left out: there are none",
                             json_object_get(params, "integrations"));
    json_object_set_new(spec, "method", json_string("lora"));
    int rc = set_name(spec, params, e);
    if (rc == 0) rc = set_file(t, spec, "data", params, "training_file", e);
    if (rc == 0) rc = set_file(t, spec, "eval_data", params, "validation_file", e);
    if (rc == 0) rc = set_hyper(spec, params, e);
    json_t *seed = json_object_get(params, "seed");
    if (rc == 0 && json_is_integer(seed)) json_object_set(spec, "seed", seed);
    json_t *own = json_object_get(params, "tpd"); /* keys of finetune.submit, as they are */
    if (rc == 0 && json_is_object(own)) json_object_update(spec, own);
    return rc;
}

static int create(struct training *t, const json_t *params, json_t **result, struct error *e) {
    json_t *spec = json_object(), *made = NULL;
    int rc = spec ? make_spec(t, params, spec, e) : no_memory(e);
    if (rc == 0) rc = training_submit(t, spec, &made, e);
    if (rc == 0) {
        char id[32];
        snprintf(id, sizeof id, "ftjob-%lld",
                 (long long)json_integer_value(json_object_get(made, "job")));
        json_t *named = json_pack("{s:s}", "job", id);
        rc = named ? answer(t, named, result, e) : no_memory(e);
        json_decref(named);
    }
    json_decref(made);
    json_decref(spec);
    return rc;
}

/* --- list, events, checkpoints --- */

/* Index behind the entry whose "id" is params.after; 0 without one. */
static size_t page_start(const json_t *params, json_t *const *entries, size_t n) {
    const char *after = text_of(params, "after");
    for (size_t i = 0; after && i < n; i++)
        if (strcmp(text_of(entries[i], "id"), after) == 0) return i + 1;
    return 0;
}

/* {"object": "list", …} of params.limit entries, which are given up. */
static json_t *page_of(const json_t *params, json_t **entries, size_t n) {
    const json_t *given = json_object_get(params, "limit");
    size_t limit = json_is_number(given) ? (size_t)json_number_value(given) : EVENTS;
    size_t from = page_start(params, entries, n);
    json_t *data = json_array();
    for (size_t i = from; i < n && i - from < limit; i++) json_array_append(data, entries[i]);
    for (size_t i = 0; i < n; i++) json_decref(entries[i]);
    return json_pack("{s:s, s:o, s:b}", "object", "list", "data", data, "has_more",
                     from + limit < n);
}

static int list(struct training *t, const json_t *params, json_t **result, struct error *e) {
    struct job *jobs;
    size_t n, made = 0;
    int rc = jobs_list(t->jobs, &jobs, &n, e);
    if (rc != 0) return rc;
    json_t **entries = calloc(n + 1, sizeof *entries);
    for (size_t i = 0; entries && i < n; i++)
        if ((entries[made] = job_shape(t, &jobs[i]))) made++;
    jobs_list_free(jobs, n);
    *result = entries ? page_of(params, entries, made) : NULL;
    free(entries);
    return *result ? 0 : no_memory(e);
}

static json_t *event_shape(int64_t job, const struct job_event *event) {
    char id[64], message[400];
    const char *kind = text_of(event->fields, "event"), *note = text_of(event->fields, "note");
    const char *state = text_of(event->fields, "state"), *error = text_of(event->fields, "error");
    const json_t *loss = json_object_get(event->fields, "loss");
    bool numbers = kind && (!strcmp(kind, "step") || !strcmp(kind, "eval"));
    long long step = (long long)json_integer_value(json_object_get(event->fields, "step"));
    snprintf(id, sizeof id, "ftevent-%lld-%lld", (long long)job, (long long)event->cursor);
    if (numbers && json_is_number(loss))
        snprintf(message, sizeof message, "%s %lld: loss %.4f", kind, step,
                 json_number_value(loss));
    else
        snprintf(message, sizeof message, "%s%s%s", error   ? error
                                                    : state ? "the job is "
                                                    : note  ? note
                                                    : kind  ? kind
                                                            : "event",
                 !error && state ? state : "", "");
    return json_pack("{s:s, s:s, s:I, s:s, s:s, s:s, s:O}", "object", "fine_tuning.job.event", "id",
                     id, "created_at", (json_int_t)event->time, "level", error ? "error" : "info",
                     "message", message, "type", numbers ? "metrics" : "message", "data",
                     event->fields);
}

/* Newest first, as OpenAI has it. */
static int events(struct training *t, const json_t *params, json_t **result, struct error *e) {
    struct job job;
    int rc = find_job(t, params, &job, e);
    if (rc != 0) return rc;
    struct job_event *page;
    json_t **entries = NULL;
    int64_t id = job.id, after = 0;
    size_t n = PAGE, all = 0;
    job_free_fields(&job);
    while (rc == 0 && n == PAGE && (rc = jobs_events(t->jobs, id, after, PAGE, &page, &n, e)) == 0) {
        json_t **grown = realloc(entries, (all + n + 1) * sizeof *entries);
        if (grown) entries = grown;
        else rc = no_memory(e);
        for (size_t i = 0; rc == 0 && i < n; i++) {
            after = page[i].cursor;
            if ((entries[all] = event_shape(id, &page[i]))) all++;
        }
        jobs_events_free(page, n);
    }
    for (size_t i = 0; i < all / 2; i++) {
        json_t *swap = entries[i];
        entries[i] = entries[all - 1 - i];
        entries[all - 1 - i] = swap;
    }
    if (rc == 0 && !(*result = page_of(params, entries, all))) rc = no_memory(e);
    free(entries);
    return rc;
}

/* A job's checkpoints are its own business: none can be used as a model. */
static int checkpoints(struct training *t, const json_t *params, json_t **result, struct error *e) {
    struct job job;
    int rc = find_job(t, params, &job, e);
    if (rc != 0) return rc;
    job_free_fields(&job);
    *result = json_pack("{s:s, s:[], s:b}", "object", "list", "data", "has_more", 0);
    return *result ? 0 : no_memory(e);
}

/* --- cancel, pause, resume --- */

static int move(struct training *t, const json_t *params, enum job_state to, json_t **result,
                struct error *e) {
    struct job job;
    int rc = find_job(t, params, &job, e);
    if (rc != 0) return rc;
    rc = training_move(t, job.id, to, e);
    job_free_fields(&job);
    return rc == 0 ? answer(t, params, result, e) : rc;
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

void handle_openai_job_create(struct call *call) { training_call(call, create, true); }
void handle_openai_job_list(struct call *call) { training_call(call, list, false); }
void handle_openai_job_get(struct call *call) { training_call(call, answer, false); }
void handle_openai_job_events(struct call *call) { training_call(call, events, false); }
void handle_openai_job_checkpoints(struct call *call) { training_call(call, checkpoints, false); }
void handle_openai_job_cancel(struct call *call) { training_call(call, cancel, true); }
void handle_openai_job_pause(struct call *call) { training_call(call, pause_job, true); }
void handle_openai_job_resume(struct call *call) { training_call(call, resume, true); }
