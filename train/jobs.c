#include "train/jobs_private.h"

#include "base/file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define JOB_COLUMNS                                                                                \
    "id, name, state, spec, step, steps, loss, eval_loss, error, result, created, started, ended,"  \
    " deadline, part_from, part_to, part_hash, eval_loss_before, activated, verdict"

static const char *const sql[SQL_COUNT] = {
    [SQL_INSERT] = "INSERT INTO jobs(name, state, spec, once, created, deadline)"
                   " VALUES(?1, 'queued', ?2, ?3, ?4, ?5)",
    [SQL_FIND_ONCE] = "SELECT id FROM jobs WHERE once = ?1"
                      " AND state IN ('queued', 'running', 'paused')",
    [SQL_LAST_ONCE] = "SELECT " JOB_COLUMNS " FROM jobs WHERE once = ?1 AND id < ?2"
                      " ORDER BY id DESC LIMIT 1",
    [SQL_GET_ID] = "SELECT " JOB_COLUMNS " FROM jobs WHERE id = ?1",
    [SQL_GET_NAME] = "SELECT " JOB_COLUMNS " FROM jobs WHERE name = ?1 ORDER BY id DESC LIMIT 1",
    [SQL_LIST] = "SELECT " JOB_COLUMNS " FROM jobs ORDER BY id DESC",
    [SQL_NEXT] = "SELECT " JOB_COLUMNS " FROM jobs WHERE state = 'queued' ORDER BY id LIMIT 1",
    [SQL_TAKE] = "UPDATE jobs SET state = 'running',"
                 " started = CASE started WHEN 0 THEN ?2 ELSE started END WHERE id = ?1",
    [SQL_MOVE] = "UPDATE jobs SET state = ?2, error = ?3, result = coalesce(?4, result),"
                 " ended = ?5 WHERE id = ?1",
    [SQL_DONE] = "UPDATE jobs SET state = 'done', error = NULL, result = ?2, ended = ?3,"
                 " eval_loss = coalesce(?4, eval_loss), eval_loss_before = ?5, activated = ?6,"
                 " verdict = ?7 WHERE id = ?1",
    [SQL_KEEP] = "INSERT OR REPLACE INTO kept(key, text) VALUES(?1, ?2)",
    [SQL_KEPT] = "SELECT text FROM kept WHERE key = ?1",
    [SQL_RESULT] = "SELECT result FROM jobs WHERE name = ?1 AND state = 'done'"
                   " AND result IS NOT NULL ORDER BY id DESC LIMIT 1",
    [SQL_RUNNING] = "SELECT " JOB_COLUMNS " FROM jobs WHERE state = 'running' ORDER BY id LIMIT 1",
    [SQL_DELETE] = "DELETE FROM jobs WHERE id = ?1",
    [SQL_DELETE_EVENTS] = "DELETE FROM events WHERE job = ?1",
    [SQL_PROGRESS] = "UPDATE jobs SET step = ?2, steps = ?3, loss = coalesce(?4, loss),"
                     " eval_loss = coalesce(?5, eval_loss) WHERE id = ?1",
    [SQL_DEADLINE] = "UPDATE jobs SET deadline = ?2 WHERE id = ?1",
    [SQL_LATE] = "SELECT id FROM jobs WHERE state IN ('queued', 'running') AND deadline > 0"
                 " AND deadline <= ?1 ORDER BY id LIMIT 1",
    [SQL_PART] = "UPDATE jobs SET part_from = ?2, part_to = ?3, part_hash = ?4 WHERE id = ?1",
    [SQL_LEARNT] = "SELECT bytes, hash, job FROM learnt WHERE name = ?1 AND data = ?2",
    /* A job that was paused for long must not take back what a later one has learnt. */
    [SQL_LEARN] = "INSERT INTO learnt(name, data, bytes, hash, job) VALUES(?1, ?2, ?3, ?4, ?5)"
                  " ON CONFLICT(name, data) DO UPDATE SET bytes = excluded.bytes,"
                  " hash = excluded.hash, job = excluded.job WHERE job < excluded.job",
    [SQL_LOG] = "INSERT INTO events(job, time, fields) SELECT ?1, ?2, ?3"
                " WHERE EXISTS (SELECT 1 FROM jobs WHERE id = ?1)",
    [SQL_EVENTS] = "SELECT cursor, time, fields FROM events WHERE job = ?1 AND cursor > ?2"
                   " ORDER BY cursor LIMIT ?3",
};

static const char *const state_names[] = {
    [JOB_QUEUED] = "queued", [JOB_RUNNING] = "running", [JOB_PAUSED] = "paused",
    [JOB_DONE] = "done",     [JOB_FAILED] = "failed",   [JOB_CANCELLED] = "cancelled",
};

const char *job_state_name(enum job_state state) {
    return state_names[state];
}

bool job_state_ended(enum job_state state) {
    return state == JOB_DONE || state == JOB_FAILED || state == JOB_CANCELLED;
}

static bool may_move(enum job_state from, enum job_state to) {
    switch (to) {
    case JOB_QUEUED: return from == JOB_RUNNING || from == JOB_PAUSED;
    case JOB_RUNNING: return false; /* jobs_take alone */
    case JOB_PAUSED: return from == JOB_QUEUED || from == JOB_RUNNING;
    case JOB_CANCELLED: return !job_state_ended(from);
    case JOB_DONE:
    case JOB_FAILED: return from == JOB_RUNNING;
    }
    return false;
}

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* --- statements and transactions; under the mutex --------------------------------------------- */

static sqlite3_stmt *statement(struct jobs *jobs, enum jobs_statement which) {
    sqlite3_stmt *s = jobs->statements[which];
    sqlite3_reset(s);
    sqlite3_clear_bindings(s);
    return s;
}

static void bind_text(sqlite3_stmt *s, int at, const char *text) {
    if (text) sqlite3_bind_text(s, at, text, -1, SQLITE_TRANSIENT);
}

/* NaN is SQL's NULL. */
static void bind_number(sqlite3_stmt *s, int at, double number) {
    if (isfinite(number)) sqlite3_bind_double(s, at, number);
}

/* Runs a statement that gives no rows. */
static int run(struct jobs *jobs, sqlite3_stmt *s, const char *doing, struct error *e) {
    int rc = sqlite3_step(s) == SQLITE_DONE ? 0 : jobs_fail(jobs, doing, e);
    sqlite3_reset(s);
    return rc;
}

/* durable: on the disk when the transaction ends. Numbers of a running job need not be: they are
 * written again from the checkpoint on. */
static int begin(struct jobs *jobs, bool durable, const char *doing, struct error *e) {
    pthread_mutex_lock(&jobs->mutex);
    int rc = jobs_exec(jobs, durable ? "PRAGMA synchronous=FULL" : "PRAGMA synchronous=NORMAL",
                       doing, e);
    if (rc == 0) rc = jobs_exec(jobs, "BEGIN IMMEDIATE", doing, e);
    if (rc != 0) pthread_mutex_unlock(&jobs->mutex);
    return rc;
}

/* Commits when rc is 0, else takes all back; tells the listener of what is now true. */
static int end(struct jobs *jobs, int rc, const char *doing, struct error *e) {
    if (rc == 0) rc = jobs_exec(jobs, "COMMIT", doing, e);
    if (rc != 0) sqlite3_exec(jobs->db, "ROLLBACK", NULL, NULL, NULL);
    pthread_mutex_unlock(&jobs->mutex);
    if (rc == 0 && jobs->listener) jobs->listener(jobs->listener_user);
    return rc;
}

/* --- rows ------------------------------------------------------------------------------------- */

static int no_memory(struct error *e) {
    return error_set(e, ERR_MEMORY, "no memory for jobs");
}

/* A copy of a column; NULL when it holds none. */
static char *column_text(sqlite3_stmt *s, int at) {
    const char *text = (const char *)sqlite3_column_text(s, at);
    return text ? strdup(text) : NULL;
}

static double column_number(sqlite3_stmt *s, int at) {
    return sqlite3_column_type(s, at) == SQLITE_NULL ? NAN : sqlite3_column_double(s, at);
}

static int read_state(const struct jobs *jobs, sqlite3_stmt *s, int at, enum job_state *out,
                      struct error *e) {
    const char *name = (const char *)sqlite3_column_text(s, at);
    for (int i = 0; name && i < (int)(sizeof state_names / sizeof *state_names); i++)
        if (strcmp(state_names[i], name) == 0) {
            *out = (enum job_state)i;
            return 0;
        }
    return error_bad_file(e, jobs->path, NULL, NULL, "a job is in a state that does not exist (%s)",
                          name ? name : "none");
}

static json_t *read_json(const struct jobs *jobs, sqlite3_stmt *s, int at, struct error *e) {
    const char *text = (const char *)sqlite3_column_text(s, at);
    json_t *value = json_read(text ? text : "", text ? strlen(text) : 0, e);
    if (value) return value;
    if (!e || e->kind == ERR_PARSE)
        error_bad_file(e, jobs->path, NULL, NULL, "the text of a job is not JSON");
    return NULL;
}

static int read_job(const struct jobs *jobs, sqlite3_stmt *s, struct job *out, struct error *e) {
    *out = (struct job){.id = sqlite3_column_int64(s, 0)};
    const char *name = (const char *)sqlite3_column_text(s, 1);
    snprintf(out->name, sizeof out->name, "%s", name ? name : "");
    int rc = read_state(jobs, s, 2, &out->state, e);
    if (rc != 0) return rc;
    out->step = sqlite3_column_int64(s, 4);
    out->steps = sqlite3_column_int64(s, 5);
    out->loss = column_number(s, 6);
    out->eval_loss = column_number(s, 7);
    out->created = sqlite3_column_double(s, 10);
    out->started = sqlite3_column_double(s, 11);
    out->ended = sqlite3_column_double(s, 12);
    out->deadline = sqlite3_column_double(s, 13);
    out->part = (struct data_part){sqlite3_column_int64(s, 14), sqlite3_column_int64(s, 15),
                                   (uint64_t)sqlite3_column_int64(s, 16)};
    out->spec = read_json(jobs, s, 3, e);
    if (!out->spec) return -1;
    out->error = column_text(s, 8);
    out->result = column_text(s, 9);
    out->eval_loss_before = column_number(s, 17);
    out->activated = sqlite3_column_type(s, 18) == SQLITE_NULL ? -1 : sqlite3_column_int(s, 18);
    out->verdict = column_text(s, 19);
    return 0;
}

void job_free_fields(struct job *job) {
    json_decref(job->spec);
    free(job->error);
    free(job->result);
    free(job->verdict);
    *job = (struct job){0};
}

static int not_found(struct error *e, int64_t id, const char *name) {
    if (name && id == 0) return error_set(e, ERR_NOT_FOUND, "no job is named \"%s\"", name);
    return error_set(e, ERR_NOT_FOUND, "there is no job %lld", (long long)id);
}

/* The one row that s gives, or ERR_NOT_FOUND. */
static int one_job(const struct jobs *jobs, sqlite3_stmt *s, int64_t id, const char *name,
                   struct job *out, struct error *e) {
    int step = sqlite3_step(s);
    int rc = step == SQLITE_ROW    ? read_job(jobs, s, out, e)
             : step == SQLITE_DONE ? not_found(e, id, name)
                                   : jobs_fail(jobs, "read a job", e);
    sqlite3_reset(s);
    return rc;
}

static int get_job(struct jobs *jobs, int64_t id, const char *name, struct job *out,
                   struct error *e) {
    sqlite3_stmt *s = statement(jobs, id ? SQL_GET_ID : SQL_GET_NAME);
    if (id) sqlite3_bind_int64(s, 1, id);
    else bind_text(s, 1, name);
    *out = (struct job){0};
    return one_job(jobs, s, id, name, out, e);
}

/* *changed: false when the job is not there (any more). */
static int add_event(struct jobs *jobs, int64_t id, const json_t *fields, bool *added,
                     struct error *e) {
    char *text = fields ? json_dumps(fields, JSON_COMPACT) : NULL;
    if (!text) return no_memory(e);
    sqlite3_stmt *s = statement(jobs, SQL_LOG);
    sqlite3_bind_int64(s, 1, id);
    sqlite3_bind_double(s, 2, now_s());
    bind_text(s, 3, text);
    int rc = run(jobs, s, "log an event", e);
    if (added) *added = sqlite3_changes(jobs->db) > 0;
    free(text);
    return rc;
}

/* Every change of state is an event of the job's log, written with it. */
static int add_state_event(struct jobs *jobs, int64_t id, enum job_state state, const char *error,
                           struct error *e) {
    json_t *fields = json_pack("{s:s, s:s, s:s*}", "event", "state", "state", job_state_name(state),
                               "error", error);
    int rc = add_event(jobs, id, fields, NULL, e);
    json_decref(fields);
    return rc;
}

/* --- open and close --------------------------------------------------------------------------- */

static int prepare_all(struct jobs *jobs, struct error *e) {
    for (int i = 0; i < SQL_COUNT; i++)
        if (sqlite3_prepare_v3(jobs->db, sql[i], -1, SQLITE_PREPARE_PERSISTENT,
                               &jobs->statements[i], NULL) != SQLITE_OK)
            return jobs_fail(jobs, "read its tables", e);
    return 0;
}

int jobs_open(struct jobs **out, const char *state_dir, struct error *e) {
    *out = NULL;
    struct jobs *jobs = calloc(1, sizeof *jobs);
    if (!jobs) return no_memory(e);
    pthread_mutex_init(&jobs->mutex, NULL);
    jobs->path = path_join(state_dir, "tpd.db");
    int rc = jobs->path ? jobs_open_database(jobs, e) : no_memory(e);
    if (rc == 0) rc = prepare_all(jobs, e);
    if (rc == 0) *out = jobs;
    else jobs_close(jobs);
    return rc;
}

void jobs_close(struct jobs *jobs) {
    if (!jobs) return;
    for (int i = 0; i < SQL_COUNT; i++) sqlite3_finalize(jobs->statements[i]);
    sqlite3_close(jobs->db);
    pthread_mutex_destroy(&jobs->mutex);
    free(jobs->path);
    free(jobs);
}

void jobs_listen(struct jobs *jobs, void (*listener)(void *user), void *user) {
    pthread_mutex_lock(&jobs->mutex);
    jobs->listener = listener;
    jobs->listener_user = user;
    pthread_mutex_unlock(&jobs->mutex);
}

/* --- changes ---------------------------------------------------------------------------------- */

static int set_state(struct jobs *jobs, int64_t id, enum job_state to, const char *error,
                     const char *result, struct error *e) {
    sqlite3_stmt *s = statement(jobs, SQL_MOVE);
    sqlite3_bind_int64(s, 1, id);
    bind_text(s, 2, job_state_name(to));
    bind_text(s, 3, error);
    bind_text(s, 4, result);
    sqlite3_bind_double(s, 5, job_state_ended(to) ? now_s() : 0);
    int rc = run(jobs, s, "move a job", e);
    return rc == 0 ? add_state_event(jobs, id, to, error, e) : rc;
}

int jobs_recover(struct jobs *jobs, struct error *e) {
    int n = 0;
    int rc = begin(jobs, true, "queue jobs again", e);
    if (rc != 0) return rc;
    for (;;) {
        sqlite3_stmt *s = statement(jobs, SQL_RUNNING);
        int step = sqlite3_step(s);
        int64_t id = step == SQLITE_ROW ? sqlite3_column_int64(s, 0) : 0;
        sqlite3_reset(s);
        if (step != SQLITE_ROW && step != SQLITE_DONE) rc = jobs_fail(jobs, "find jobs", e);
        if (id == 0) break;
        rc = set_state(jobs, id, JOB_QUEUED, NULL, NULL, e);
        if (rc != 0) break;
        n++;
    }
    rc = end(jobs, rc, "queue jobs again", e);
    return rc == 0 ? n : rc;
}

static int find_once(struct jobs *jobs, const char *once, int64_t *id, struct error *e) {
    sqlite3_stmt *s = statement(jobs, SQL_FIND_ONCE);
    bind_text(s, 1, once);
    int step = sqlite3_step(s);
    *id = step == SQLITE_ROW ? sqlite3_column_int64(s, 0) : 0;
    sqlite3_reset(s);
    return step == SQLITE_ROW || step == SQLITE_DONE ? 0 : jobs_fail(jobs, "find a job", e);
}

static double deadline_in(double seconds) {
    return seconds > 0 ? now_s() + seconds : 0;
}

static int set_deadline(struct jobs *jobs, int64_t id, double seconds, struct error *e) {
    sqlite3_stmt *s = statement(jobs, SQL_DEADLINE);
    sqlite3_bind_int64(s, 1, id);
    sqlite3_bind_double(s, 2, deadline_in(seconds));
    return run(jobs, s, "set a job's deadline", e);
}

static int insert(struct jobs *jobs, const struct job_spec *spec, const char *text, int64_t *id,
                  struct error *e) {
    sqlite3_stmt *s = statement(jobs, SQL_INSERT);
    bind_text(s, 1, spec->name);
    bind_text(s, 2, text);
    bind_text(s, 3, spec->once);
    sqlite3_bind_double(s, 4, now_s());
    sqlite3_bind_double(s, 5, deadline_in(spec->deadline_s));
    int rc = run(jobs, s, "queue a job", e);
    if (rc != 0) return rc;
    *id = sqlite3_last_insert_rowid(jobs->db);
    return add_state_event(jobs, *id, JOB_QUEUED, NULL, e);
}

/* A live job was asked for again: it has until the new deadline, and goes on if it is paused. */
static int ask_again(struct jobs *jobs, int64_t id, const struct job_spec *spec, struct error *e) {
    struct job job;
    int rc = get_job(jobs, id, NULL, &job, e);
    if (rc == 0 && job.state != JOB_RUNNING) rc = set_deadline(jobs, id, spec->deadline_s, e);
    if (rc == 0 && job.state == JOB_PAUSED) rc = set_state(jobs, id, JOB_QUEUED, NULL, NULL, e);
    job_free_fields(&job);
    return rc;
}

int jobs_submit(struct jobs *jobs, const struct job_spec *spec, int64_t *id, bool *existing,
                struct error *e) {
    json_t *json = job_spec_json(spec);
    char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    if (!text) return no_memory(e);
    *id = 0;
    int rc = begin(jobs, true, "queue a job", e);
    if (rc == 0) {
        if (spec->once) rc = find_once(jobs, spec->once, id, e);
        *existing = rc == 0 && *id != 0;
        if (*existing) rc = ask_again(jobs, *id, spec, e);
        else if (rc == 0) rc = insert(jobs, spec, text, id, e);
        rc = end(jobs, rc, "queue a job", e);
    }
    free(text);
    return rc;
}

/* One job that is late, or 0. */
static int find_late(struct jobs *jobs, int64_t *id, struct error *e) {
    sqlite3_stmt *s = statement(jobs, SQL_LATE);
    sqlite3_bind_double(s, 1, now_s());
    int step = sqlite3_step(s);
    *id = step == SQLITE_ROW ? sqlite3_column_int64(s, 0) : 0;
    sqlite3_reset(s);
    return step == SQLITE_ROW || step == SQLITE_DONE ? 0 : jobs_fail(jobs, "find late jobs", e);
}

int jobs_pause_late(struct jobs *jobs, struct error *e) {
    int64_t id;
    int rc = begin(jobs, true, "pause late jobs", e);
    if (rc != 0) return rc;
    while ((rc = find_late(jobs, &id, e)) == 0 && id != 0) {
        json_t *note = json_pack("{s:s, s:s}", "event", "note", "note",
                                 "its deadline has come: the next submit with its key, or 'tpctl jobs "
                                 "resume', lets it go on");
        rc = add_event(jobs, id, note, NULL, e);
        json_decref(note);
        if (rc == 0) rc = set_state(jobs, id, JOB_PAUSED, NULL, NULL, e);
        if (rc != 0) break;
    }
    return end(jobs, rc, "pause late jobs", e);
}

int jobs_take(struct jobs *jobs, struct job *out, struct error *e) {
    *out = (struct job){0};
    int rc = begin(jobs, true, "start a job", e);
    if (rc != 0) return rc;
    sqlite3_stmt *s = statement(jobs, SQL_NEXT);
    int step = sqlite3_step(s);
    rc = step == SQLITE_ROW    ? read_job(jobs, s, out, e)
         : step == SQLITE_DONE ? error_set(e, ERR_NOT_FOUND, "no job is queued")
                               : jobs_fail(jobs, "find a job", e);
    sqlite3_reset(s);
    if (rc == 0) {
        double now = now_s();
        if (out->started == 0) out->started = now;
        out->state = JOB_RUNNING;
        s = statement(jobs, SQL_TAKE);
        sqlite3_bind_int64(s, 1, out->id);
        sqlite3_bind_double(s, 2, now);
        rc = run(jobs, s, "start a job", e);
    }
    if (rc == 0) rc = add_state_event(jobs, out->id, JOB_RUNNING, NULL, e);
    rc = end(jobs, rc, "start a job", e);
    if (rc != 0) job_free_fields(out);
    return rc;
}

/* What a job that is done has read is known to its name from now on. */
static int learn(struct jobs *jobs, const struct job *job, struct error *e) {
    if (job->part.to <= 0) return 0;
    sqlite3_stmt *s = statement(jobs, SQL_LEARN);
    bind_text(s, 1, job->name);
    bind_text(s, 2, json_string_value(json_object_get(job->spec, "data")));
    sqlite3_bind_int64(s, 3, job->part.to);
    sqlite3_bind_int64(s, 4, (int64_t)job->part.hash);
    sqlite3_bind_int64(s, 5, job->id);
    return run(jobs, s, "note what was learnt", e);
}

/* *job: the one that may move. */
static int check_move(struct jobs *jobs, int64_t id, enum job_state to, struct job *job,
                      struct error *e) {
    *job = (struct job){0};
    int rc = get_job(jobs, id, NULL, job, e);
    if (rc == 0 && !may_move(job->state, to)) {
        rc = error_set(e, ERR_CONFLICT, "job %lld is %s, so it cannot become %s", (long long)id,
                       job_state_name(job->state), job_state_name(to));
        error_note(e, "state", job_state_name(job->state));
    }
    return rc;
}

int jobs_move(struct jobs *jobs, int64_t id, enum job_state to, const char *error,
              const char *result, struct error *e) {
    struct job job;
    int rc = begin(jobs, true, "move a job", e);
    if (rc != 0) return rc;
    rc = check_move(jobs, id, to, &job, e);
    if (rc == 0) rc = set_state(jobs, id, to, error, result, e);
    if (rc == 0 && to == JOB_DONE) rc = learn(jobs, &job, e);
    if (rc == 0 && to == JOB_QUEUED && job.state == JOB_PAUSED)
        rc = set_deadline(jobs, id, json_number_value(json_object_get(job.spec, "deadline_s")), e);
    job_free_fields(&job);
    return end(jobs, rc, "move a job", e);
}

static int keep(struct jobs *jobs, const char *key, const char *text, struct error *e) {
    sqlite3_stmt *s = statement(jobs, SQL_KEEP);
    bind_text(s, 1, key);
    bind_text(s, 2, text);
    return run(jobs, s, "keep a text", e);
}

static int set_done(struct jobs *jobs, int64_t id, const struct job_outcome *o, struct error *e) {
    sqlite3_stmt *s = statement(jobs, SQL_DONE);
    sqlite3_bind_int64(s, 1, id);
    bind_text(s, 2, o->result);
    sqlite3_bind_double(s, 3, now_s());
    bind_number(s, 4, o->eval_loss);
    bind_number(s, 5, o->eval_loss_before);
    if (o->activated >= 0) sqlite3_bind_int(s, 6, o->activated);
    bind_text(s, 7, o->verdict);
    int rc = run(jobs, s, "end a job", e);
    if (rc != 0) return rc;
    json_t *fields = json_pack("{s:s, s:s}", "event", "state", "state", "done");
    if (o->activated >= 0) json_object_set_new(fields, "activated", json_boolean(o->activated));
    if (o->verdict) json_object_set_new(fields, "verdict", json_string(o->verdict));
    rc = add_event(jobs, id, fields, NULL, e);
    json_decref(fields);
    return rc;
}

int jobs_done(struct jobs *jobs, int64_t id, const struct job_outcome *outcome, const char *key,
              const char *text, struct error *e) {
    struct job job;
    int rc = begin(jobs, true, "end a job", e);
    if (rc != 0) return rc;
    rc = check_move(jobs, id, JOB_DONE, &job, e);
    if (rc == 0) rc = set_done(jobs, id, outcome, e);
    if (rc == 0) rc = learn(jobs, &job, e);
    if (rc == 0 && text) rc = keep(jobs, key, text, e);
    job_free_fields(&job);
    return end(jobs, rc, "end a job", e);
}

int jobs_keep(struct jobs *jobs, const char *key, const char *text, struct error *e) {
    int rc = begin(jobs, true, "keep a text", e);
    if (rc != 0) return rc;
    rc = keep(jobs, key, text, e);
    return end(jobs, rc, "keep a text", e);
}

int jobs_delete(struct jobs *jobs, int64_t id, struct error *e) {
    static const enum jobs_statement deletes[] = {SQL_DELETE_EVENTS, SQL_DELETE};
    struct job job = {0};
    int rc = begin(jobs, true, "delete a job", e);
    if (rc != 0) return rc;
    rc = get_job(jobs, id, NULL, &job, e);
    if (rc == 0 && !job_state_ended(job.state)) {
        rc = error_set(e, ERR_CONFLICT, "job %lld is %s: cancel it before you delete it",
                       (long long)id, job_state_name(job.state));
        error_note(e, "state", job_state_name(job.state));
    }
    for (int i = 0; rc == 0 && i < 2; i++) {
        sqlite3_stmt *s = statement(jobs, deletes[i]);
        sqlite3_bind_int64(s, 1, id);
        rc = run(jobs, s, "delete a job", e);
    }
    job_free_fields(&job);
    return end(jobs, rc, "delete a job", e);
}

int jobs_progress(struct jobs *jobs, int64_t id, int64_t step, int64_t steps, double loss,
                  double eval_loss, struct error *e) {
    int rc = begin(jobs, false, "note a job's progress", e);
    if (rc != 0) return rc;
    sqlite3_stmt *s = statement(jobs, SQL_PROGRESS);
    sqlite3_bind_int64(s, 1, id);
    sqlite3_bind_int64(s, 2, step);
    sqlite3_bind_int64(s, 3, steps);
    bind_number(s, 4, loss);
    bind_number(s, 5, eval_loss);
    rc = run(jobs, s, "note a job's progress", e);
    if (rc == 0 && sqlite3_changes(jobs->db) == 0) rc = not_found(e, id, NULL);
    return end(jobs, rc, "note a job's progress", e);
}

int jobs_set_part(struct jobs *jobs, int64_t id, const struct data_part *part, struct error *e) {
    int rc = begin(jobs, true, "note what a job reads", e);
    if (rc != 0) return rc;
    sqlite3_stmt *s = statement(jobs, SQL_PART);
    sqlite3_bind_int64(s, 1, id);
    sqlite3_bind_int64(s, 2, part->from);
    sqlite3_bind_int64(s, 3, part->to);
    sqlite3_bind_int64(s, 4, (int64_t)part->hash);
    rc = run(jobs, s, "note what a job reads", e);
    return end(jobs, rc, "note what a job reads", e);
}

int jobs_log(struct jobs *jobs, int64_t id, json_t *fields, struct error *e) {
    bool added = false;
    int rc = begin(jobs, false, "log an event", e);
    if (rc == 0) {
        rc = add_event(jobs, id, fields, &added, e);
        if (rc == 0 && !added) rc = not_found(e, id, NULL);
        rc = end(jobs, rc, "log an event", e);
    }
    json_decref(fields);
    return rc;
}

/* --- reading ---------------------------------------------------------------------------------- */

int jobs_get(struct jobs *jobs, int64_t id, const char *name, struct job *out, struct error *e) {
    pthread_mutex_lock(&jobs->mutex);
    int rc = get_job(jobs, id, name, out, e);
    pthread_mutex_unlock(&jobs->mutex);
    if (rc != 0) job_free_fields(out);
    return rc;
}

bool jobs_live_once(struct jobs *jobs, const char *once) {
    int64_t id = 0;
    if (!once) return false;
    pthread_mutex_lock(&jobs->mutex);
    find_once(jobs, once, &id, NULL);
    pthread_mutex_unlock(&jobs->mutex);
    return id != 0;
}

int jobs_last_once(struct jobs *jobs, const char *once, int64_t before, struct job *out,
                   struct error *e) {
    *out = (struct job){0};
    pthread_mutex_lock(&jobs->mutex);
    sqlite3_stmt *s = statement(jobs, SQL_LAST_ONCE);
    bind_text(s, 1, once);
    sqlite3_bind_int64(s, 2, before);
    int rc = one_job(jobs, s, 0, NULL, out, e);
    pthread_mutex_unlock(&jobs->mutex);
    if (rc != 0) job_free_fields(out);
    return rc;
}

int jobs_learnt(struct jobs *jobs, const char *name, const char *data, struct data_part *out,
                int64_t *job, struct error *e) {
    *out = (struct data_part){0};
    *job = 0;
    pthread_mutex_lock(&jobs->mutex);
    sqlite3_stmt *s = statement(jobs, SQL_LEARNT);
    bind_text(s, 1, name);
    bind_text(s, 2, data);
    int step = sqlite3_step(s);
    if (step == SQLITE_ROW) {
        out->to = sqlite3_column_int64(s, 0);
        out->hash = (uint64_t)sqlite3_column_int64(s, 1);
        *job = sqlite3_column_int64(s, 2);
    }
    int rc = step == SQLITE_ROW || step == SQLITE_DONE ? 0 : jobs_fail(jobs, "read it", e);
    sqlite3_reset(s);
    pthread_mutex_unlock(&jobs->mutex);
    return rc;
}

int jobs_running(struct jobs *jobs, struct job *out, struct error *e) {
    *out = (struct job){0};
    pthread_mutex_lock(&jobs->mutex);
    sqlite3_stmt *s = statement(jobs, SQL_RUNNING);
    int step = sqlite3_step(s);
    int rc = step == SQLITE_ROW    ? read_job(jobs, s, out, e)
             : step == SQLITE_DONE ? error_set(e, ERR_NOT_FOUND, "no job runs")
                                   : jobs_fail(jobs, "read a job", e);
    sqlite3_reset(s);
    pthread_mutex_unlock(&jobs->mutex);
    if (rc != 0) job_free_fields(out);
    return rc;
}

/* The text that the bound statement gives, or NULL. */
static int one_text(struct jobs *jobs, sqlite3_stmt *s, char **out, struct error *e) {
    int step = sqlite3_step(s);
    *out = step == SQLITE_ROW ? column_text(s, 0) : NULL;
    int rc = step == SQLITE_DONE ? 0 : step != SQLITE_ROW ? jobs_fail(jobs, "read a text", e)
             : *out              ? 0
                                 : no_memory(e);
    sqlite3_reset(s);
    return rc;
}

int jobs_kept(struct jobs *jobs, const char *key, char **out, struct error *e) {
    pthread_mutex_lock(&jobs->mutex);
    sqlite3_stmt *s = statement(jobs, SQL_KEPT);
    bind_text(s, 1, key);
    int rc = one_text(jobs, s, out, e);
    pthread_mutex_unlock(&jobs->mutex);
    return rc;
}

int jobs_result(struct jobs *jobs, const char *name, char **out, struct error *e) {
    pthread_mutex_lock(&jobs->mutex);
    sqlite3_stmt *s = statement(jobs, SQL_RESULT);
    bind_text(s, 1, name);
    int rc = one_text(jobs, s, out, e);
    pthread_mutex_unlock(&jobs->mutex);
    return rc || *out ? rc : not_found(e, 0, name);
}

/* Room for one more element of size bytes; NULL when memory ends (the old array stays). */
static void *grow(void *array, size_t n, size_t size) {
    bool full = n == 0 || (n >= 16 && (n & (n - 1)) == 0);
    return full ? realloc(array, (n ? 2 * n : 16) * size) : array;
}

int jobs_list(struct jobs *jobs, struct job **out, size_t *n, struct error *e) {
    *out = NULL;
    *n = 0;
    int rc = 0, step = SQLITE_DONE;
    pthread_mutex_lock(&jobs->mutex);
    sqlite3_stmt *s = statement(jobs, SQL_LIST);
    while (rc == 0 && (step = sqlite3_step(s)) == SQLITE_ROW) {
        struct job *more = grow(*out, *n, sizeof **out);
        if (!more) {
            rc = no_memory(e);
            break;
        }
        *out = more;
        rc = read_job(jobs, s, &more[(*n)++], e);
    }
    if (rc == 0 && step != SQLITE_DONE) rc = jobs_fail(jobs, "list jobs", e);
    sqlite3_reset(s);
    pthread_mutex_unlock(&jobs->mutex);
    if (rc == 0) return 0;
    jobs_list_free(*out, *n);
    *out = NULL;
    *n = 0;
    return rc;
}

void jobs_list_free(struct job *list, size_t n) {
    for (size_t i = 0; i < n; i++) job_free_fields(&list[i]);
    free(list);
}

int jobs_events(struct jobs *jobs, int64_t id, int64_t after, size_t max, struct job_event **out,
                size_t *n, struct error *e) {
    *out = NULL;
    *n = 0;
    int rc = 0, step = SQLITE_DONE;
    pthread_mutex_lock(&jobs->mutex);
    sqlite3_stmt *s = statement(jobs, SQL_EVENTS);
    sqlite3_bind_int64(s, 1, id);
    sqlite3_bind_int64(s, 2, after);
    sqlite3_bind_int64(s, 3, (int64_t)max);
    while (rc == 0 && (step = sqlite3_step(s)) == SQLITE_ROW) {
        struct job_event *more = grow(*out, *n, sizeof **out);
        if (!more) {
            rc = no_memory(e);
            break;
        }
        *out = more;
        struct job_event *event = &more[*n];
        event->cursor = sqlite3_column_int64(s, 0);
        event->time = sqlite3_column_double(s, 1);
        event->fields = read_json(jobs, s, 2, e);
        if (event->fields) ++*n;
        else rc = -1;
    }
    if (rc == 0 && step != SQLITE_DONE) rc = jobs_fail(jobs, "read a job's log", e);
    sqlite3_reset(s);
    pthread_mutex_unlock(&jobs->mutex);
    if (rc == 0) return 0;
    jobs_events_free(*out, *n);
    *out = NULL;
    *n = 0;
    return rc;
}

void jobs_events_free(struct job_event *events, size_t n) {
    for (size_t i = 0; i < n; i++) json_decref(events[i].fields);
    free(events);
}
