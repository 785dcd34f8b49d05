/* The store of fine-tune jobs: legal moves only, nothing lost, strange files refused. */
#include "base/file.h"
#include "train/jobs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N_STATES = 6, N_THREADS = 4, JOBS_A_THREAD = 12 };

static char dir[64];

static int make_dir(void **state) {
    (void)state;
    strcpy(dir, "/tmp/tpd-jobs-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state) {
    (void)state;
    struct error e;
    return dir_remove(dir, &e);
}

static const char *db_path(void) {
    static char path[96];
    snprintf(path, sizeof path, "%s/tpd.db", dir);
    return path;
}

#define ok(expression)                                                                             \
    do {                                                                                           \
        struct error e = {0};                                                                      \
        if ((expression) < 0) fail_msg("%s: %s", #expression, e.message);                          \
    } while (0)

static struct jobs *open_jobs(void) {
    struct jobs *jobs;
    ok(jobs_open(&jobs, dir, &e));
    return jobs;
}

static void make_spec(struct job_spec *spec, const char *name, const char *once) {
    json_t *json = json_pack("{s:s, s:s}", "name", name, "data", "tickets.jsonl");
    ok(job_spec_parse(spec, json, &e));
    json_decref(json);
    free(spec->once);
    spec->once = once ? strdup(once) : NULL;
}

static int64_t submit_once(struct jobs *jobs, const char *name, const char *once, bool *existing) {
    struct job_spec spec;
    int64_t id;
    make_spec(&spec, name, once);
    ok(jobs_submit(jobs, &spec, &id, existing, &e));
    job_spec_free(&spec);
    return id;
}

static int64_t submit(struct jobs *jobs, const char *name) {
    bool existing;
    int64_t id = submit_once(jobs, name, NULL, &existing);
    assert_false(existing);
    return id;
}

static enum job_state state_of(struct jobs *jobs, int64_t id) {
    struct job job;
    ok(jobs_get(jobs, id, NULL, &job, &e));
    enum job_state state = job.state;
    job_free_fields(&job);
    return state;
}

static int64_t take(struct jobs *jobs) {
    struct job job;
    ok(jobs_take(jobs, &job, &e));
    assert_int_equal(job.state, JOB_RUNNING);
    int64_t id = job.id;
    job_free_fields(&job);
    return id;
}

static void move(struct jobs *jobs, int64_t id, enum job_state to) {
    ok(jobs_move(jobs, id, to, NULL, NULL, &e));
}

/* A new job in a state. Nothing else may be queued. */
static int64_t job_in(struct jobs *jobs, enum job_state state) {
    int64_t id = submit(jobs, job_state_name(state));
    if (state != JOB_QUEUED) assert_int_equal(take(jobs), id);
    if (state != JOB_QUEUED && state != JOB_RUNNING) move(jobs, id, state);
    assert_int_equal(state_of(jobs, id), state);
    return id;
}

static void only_legal_moves_are_made(void **unused) {
    (void)unused;
    static const bool legal[N_STATES][N_STATES] = {
        /* to:           queued running paused done failed cancelled */
        [JOB_QUEUED] = {0, 0, 1, 0, 0, 1},
        [JOB_RUNNING] = {1, 0, 1, 1, 1, 1},
        [JOB_PAUSED] = {1, 0, 0, 0, 0, 1},
    };
    struct jobs *jobs = open_jobs();
    for (int i = 0; i < N_STATES * N_STATES; i++) {
        enum job_state from = (enum job_state)(i / N_STATES), to = (enum job_state)(i % N_STATES);
        struct error e = {0};
        int64_t id = job_in(jobs, from);
        int rc = jobs_move(jobs, id, to, to == JOB_FAILED ? "it broke" : NULL, NULL, &e);
        if ((rc == 0) != legal[from][to])
            fail_msg("%s to %s: %d", job_state_name(from), job_state_name(to), rc);
        assert_int_equal(state_of(jobs, id), rc == 0 ? to : from);
        if (rc != 0) {
            assert_int_equal(e.kind, ERR_CONFLICT);
            assert_non_null(strstr(e.message, job_state_name(from)));
        }
        if (!job_state_ended(state_of(jobs, id))) move(jobs, id, JOB_CANCELLED);
    }
    struct error e;
    assert_int_not_equal(jobs_move(jobs, 12345, JOB_PAUSED, NULL, NULL, &e), 0);
    assert_int_equal(e.kind, ERR_NOT_FOUND);
    jobs_close(jobs);
}

static void a_job_tells_what_became_of_it(void **unused) {
    (void)unused;
    struct jobs *jobs = open_jobs();
    struct job job;
    int64_t id = submit(jobs, "one");
    ok(jobs_get(jobs, id, NULL, &job, &e));
    assert_true(isnan(job.loss) && isnan(job.eval_loss));
    assert_true(job.created > 1e9 && job.started == 0 && job.ended == 0);
    job_free_fields(&job);
    take(jobs);
    ok(jobs_progress(jobs, id, 3, 10, 2.5, NAN, &e));
    ok(jobs_progress(jobs, id, 4, 10, NAN, 1.25, &e));
    ok(jobs_move(jobs, id, JOB_DONE, NULL, "adapters/one", &e));
    jobs_close(jobs);
    jobs = open_jobs();
    ok(jobs_get(jobs, 0, "one", &job, &e));
    assert_int_equal(job.id, id);
    assert_int_equal(job.step, 4);
    assert_int_equal(job.steps, 10);
    assert_true(job.loss == 2.5 && job.eval_loss == 1.25);
    assert_string_equal(job.result, "adapters/one");
    assert_null(job.error);
    assert_true(job.started >= job.created && job.ended >= job.started);
    assert_string_equal(json_string_value(json_object_get(job.spec, "data")), "tickets.jsonl");
    job_free_fields(&job);
    id = job_in(jobs, JOB_RUNNING);
    ok(jobs_move(jobs, id, JOB_FAILED, "line 7 is no JSON", NULL, &e));
    ok(jobs_get(jobs, id, NULL, &job, &e));
    assert_string_equal(job.error, "line 7 is no JSON");
    job_free_fields(&job);
    jobs_close(jobs);
}

static void jobs_run_in_the_order_they_came(void **unused) {
    (void)unused;
    struct jobs *jobs = open_jobs();
    struct job job, *list;
    struct error e;
    size_t n;
    int64_t first = submit(jobs, "same"), second = submit(jobs, "same");
    ok(jobs_get(jobs, 0, "same", &job, &e));
    assert_int_equal(job.id, second); /* the newest of its name */
    job_free_fields(&job);
    ok(jobs_list(jobs, &list, &n, &e));
    assert_int_equal(n, 2);
    assert_int_equal(list[0].id, second);
    jobs_list_free(list, n);
    assert_int_equal(take(jobs), first);
    assert_int_equal(take(jobs), second);
    assert_int_not_equal(jobs_take(jobs, &job, &e), 0);
    assert_int_equal(e.kind, ERR_NOT_FOUND);
    assert_int_not_equal(jobs_get(jobs, 0, "other", &job, &e), 0);
    assert_int_equal(e.kind, ERR_NOT_FOUND);
    jobs_close(jobs);
}

static void a_key_is_for_one_live_job(void **unused) {
    (void)unused;
    struct jobs *jobs = open_jobs();
    bool existing;
    int64_t id = submit_once(jobs, "a", "nightly", &existing);
    assert_false(existing);
    assert_int_equal(submit_once(jobs, "b", "nightly", &existing), id);
    assert_true(existing);
    assert_int_not_equal(submit_once(jobs, "c", "weekly", &existing), id);
    assert_false(existing);
    assert_int_equal(take(jobs), id);
    assert_int_equal(submit_once(jobs, "a", "nightly", &existing), id);
    move(jobs, id, JOB_PAUSED);
    assert_int_equal(submit_once(jobs, "a", "nightly", &existing), id);
    move(jobs, id, JOB_CANCELLED);
    assert_int_not_equal(submit_once(jobs, "a", "nightly", &existing), id);
    assert_false(existing);
    jobs_close(jobs);
}

static int64_t log_number(struct jobs *jobs, int64_t id, int i) {
    struct error e;
    return jobs_log(jobs, id, json_pack("{s:s, s:i}", "event", "step", "step", i), &e);
}

static void the_log_is_read_from_a_cursor_on(void **unused) {
    (void)unused;
    struct jobs *jobs = open_jobs();
    struct job_event *events;
    size_t n;
    int64_t id = submit(jobs, "a"), other = submit(jobs, "b"), after = 0;
    for (int i = 0; i < 50; i++) {
        assert_int_equal(log_number(jobs, id, i), 0);
        assert_int_equal(log_number(jobs, other, -1), 0);
    }
    int seen = 0;
    ok(jobs_events(jobs, id, 0, 1, &events, &n, &e));
    assert_int_equal(n, 1);
    assert_string_equal(json_string_value(json_object_get(events->fields, "state")), "queued");
    after = events->cursor;
    jobs_events_free(events, n);
    do {
        ok(jobs_events(jobs, id, after, 20, &events, &n, &e));
        assert_true(n <= 20);
        for (size_t i = 0; i < n; i++) {
            assert_true(events[i].cursor > after && events[i].time > 1e9);
            after = events[i].cursor;
            assert_int_equal(json_integer_value(json_object_get(events[i].fields, "step")), seen++);
        }
        jobs_events_free(events, n);
    } while (n > 0);
    assert_int_equal(seen, 50);
    assert_int_not_equal(log_number(jobs, 999, 0), 0); /* no such job: nothing is kept */
    jobs_close(jobs);
}

static void a_deleted_job_leaves_nothing(void **unused) {
    (void)unused;
    struct jobs *jobs = open_jobs();
    struct job job;
    struct error e;
    struct job_event *events;
    size_t n;
    int64_t id = submit(jobs, "a");
    for (int i = 0; i < 3; i++) {
        if (i == 1) take(jobs);
        if (i == 2) move(jobs, id, JOB_PAUSED);
        assert_int_not_equal(jobs_delete(jobs, id, &e), 0);
        assert_int_equal(e.kind, ERR_CONFLICT);
    }
    move(jobs, id, JOB_CANCELLED);
    ok(jobs_delete(jobs, id, &e));
    assert_int_not_equal(jobs_get(jobs, id, NULL, &job, &e), 0);
    assert_int_equal(e.kind, ERR_NOT_FOUND);
    ok(jobs_events(jobs, id, 0, 10, &events, &n, &e));
    assert_int_equal(n, 0);
    jobs_events_free(events, n);
    assert_int_not_equal(jobs_delete(jobs, id, &e), 0);
    assert_true(submit(jobs, "b") > id); /* a number is never given twice */
    jobs_close(jobs);
}

/* In a child that is killed right after its last change returned. */
static void change_and_die(int round) {
    struct jobs *jobs;
    struct error e;
    struct job job;
    if (jobs_open(&jobs, dir, &e) != 0) _exit(1);
    if (jobs_recover(jobs, &e) != (round > 0)) _exit(2);
    if (round == 0) submit(jobs, "survivor");
    if (jobs_take(jobs, &job, &e) != 0) _exit(3);
    for (int i = 0; i < 20; i++) log_number(jobs, job.id, i);
    jobs_progress(jobs, job.id, round, 100, 1.0, NAN, &e);
    kill(getpid(), SIGKILL);
}

static void what_was_told_survives_kill_9(void **unused) {
    (void)unused;
    struct job job;
    struct job_event *events;
    size_t n;
    for (int round = 0; round < 3; round++) {
        int status;
        pid_t child = fork();
        if (child == 0) change_and_die(round);
        assert_int_equal(waitpid(child, &status, 0), child);
        if (!WIFSIGNALED(status)) fail_msg("the child ended with %d", WEXITSTATUS(status));
    }
    struct jobs *jobs = open_jobs();
    ok(jobs_get(jobs, 0, "survivor", &job, &e));
    assert_int_equal(job.state, JOB_RUNNING);
    assert_int_equal(job.step, 2);
    struct error e;
    assert_int_equal(jobs_recover(jobs, &e), 1);
    assert_int_equal(jobs_recover(jobs, &e), 0);
    assert_int_equal(state_of(jobs, job.id), JOB_QUEUED);
    ok(jobs_events(jobs, job.id, 0, 1000, &events, &n, &e));
    assert_int_equal(n, 1 + 3 * 21 + 3); /* queued; 3 times running and its steps; 3 times queued */
    jobs_events_free(events, n);
    job_free_fields(&job);
    jobs_close(jobs);
}

static void *submit_and_run(void *arg) {
    struct jobs *jobs = arg;
    for (int i = 0; i < JOBS_A_THREAD; i++) {
        struct job job;
        struct error e;
        bool existing;
        struct job_spec spec;
        int64_t id;
        make_spec(&spec, "t", NULL);
        if (jobs_submit(jobs, &spec, &id, &existing, &e) != 0) return "submit";
        job_spec_free(&spec);
        if (jobs_take(jobs, &job, &e) != 0) return "take"; /* there is one for each */
        if (log_number(jobs, job.id, i) != 0) return "log";
        if (jobs_move(jobs, job.id, JOB_DONE, NULL, "x", &e) != 0) return "move";
        job_free_fields(&job);
    }
    return NULL;
}

static void count_call(void *user) {
    atomic_fetch_add((_Atomic int *)user, 1);
}

static void threads_share_the_store(void **unused) {
    (void)unused;
    struct jobs *jobs = open_jobs();
    pthread_t threads[N_THREADS];
    struct job *list;
    size_t n;
    _Atomic int calls = 0;
    jobs_listen(jobs, count_call, (void *)&calls);
    for (int i = 0; i < N_THREADS; i++) pthread_create(&threads[i], NULL, submit_and_run, jobs);
    for (int i = 0; i < N_THREADS; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        if (failed) fail_msg("%s failed", (char *)failed);
    }
    ok(jobs_list(jobs, &list, &n, &e));
    assert_int_equal(n, N_THREADS * JOBS_A_THREAD);
    for (size_t i = 0; i < n; i++) assert_int_equal(list[i].state, JOB_DONE);
    assert_int_equal(calls, 4 * n);
    jobs_list_free(list, n);
    jobs_close(jobs);
}

/* --- files that are not ours ------------------------------------------------------------------ */

static void write_db(const void *data, size_t size) {
    FILE *file = fopen(db_path(), "w");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, size, file), size);
    fclose(file);
}

static void run_sql(const char *sql) {
    sqlite3 *db;
    assert_int_equal(sqlite3_open(db_path(), &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
}

static void refused(const char *says) {
    struct jobs *jobs;
    struct error e;
    assert_int_not_equal(jobs_open(&jobs, dir, &e), 0);
    assert_null(jobs);
    assert_int_equal(e.kind, ERR_BAD_FILE);
    if (!strstr(e.message, says) || !strstr(e.message, "tpd.db")) fail_msg("%s", e.message);
}

static void what_is_no_database_is_refused(void **unused) {
    (void)unused;
    char text[8192];
    memset(text, 'x', sizeof text);
    write_db(text, sizeof text);
    refused("move it away");
}

static void a_database_of_another_program_is_refused(void **unused) {
    (void)unused;
    run_sql("CREATE TABLE jobs(a); INSERT INTO jobs VALUES(1)");
    refused("another program");
}

static void a_newer_database_is_refused(void **unused) {
    (void)unused;
    jobs_close(open_jobs());
    run_sql("UPDATE schema_version SET version = 99");
    refused("newer tpd");
}

static void a_damaged_database_is_refused_or_read_but_never_crashes(void **unused) {
    (void)unused;
    struct jobs *jobs = open_jobs();
    struct error e;
    char *data;
    size_t size;
    for (int i = 0; i < 20; i++) submit(jobs, "a");
    jobs_close(jobs);
    assert_int_equal(file_read(db_path(), 1 << 20, &data, &size, &e), 0);
    srand(1);
    for (int round = 0; round < 60; round++) {
        char *copy = malloc(size);
        memcpy(copy, data, size);
        for (int i = 0; i < 40; i++) copy[(size_t)rand() % size] = (char)rand();
        write_db(copy, round % 4 ? size : (size_t)rand() % size);
        free(copy);
        struct job *list;
        size_t n;
        if (jobs_open(&jobs, dir, &e) == 0) {
            if (jobs_list(jobs, &list, &n, &e) == 0) jobs_list_free(list, n);
            jobs_recover(jobs, &e);
            jobs_close(jobs);
        } else assert_true(*e.message != '\0');
    }
    free(data);
}

static void a_directory_that_cannot_be_written_is_named(void **unused) {
    (void)unused;
    assert_int_equal(chmod(dir, 0555), 0);
    int status;
    pid_t child = fork();
    if (child == 0) {
        struct jobs *jobs;
        struct error e;
        if (geteuid() == 0 && seteuid(65534) != 0) _exit(1);
        if (jobs_open(&jobs, dir, &e) == 0) _exit(2);
        _exit(e.kind == ERR_NOT_PERMITTED && strstr(e.message, "tpd.db") ? 0 : 3);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    chmod(dir, 0755);
    assert_int_equal(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 0);
}

static void a_directory_that_is_not_there_is_named(void **unused) {
    (void)unused;
    struct jobs *jobs = open_jobs();
    struct error e;
    jobs_close(jobs);
    assert_int_equal(remove_dir(NULL), 0);
    assert_int_not_equal(jobs_open(&jobs, dir, &e), 0);
    assert_int_equal(e.kind, ERR_NOT_FOUND);
    assert_non_null(strstr(e.message, dir));
}

#define with_dir(test) cmocka_unit_test_setup_teardown(test, make_dir, remove_dir)

int main(void) {
    const struct CMUnitTest tests[] = {
        with_dir(only_legal_moves_are_made),
        with_dir(a_job_tells_what_became_of_it),
        with_dir(jobs_run_in_the_order_they_came),
        with_dir(a_key_is_for_one_live_job),
        with_dir(the_log_is_read_from_a_cursor_on),
        with_dir(a_deleted_job_leaves_nothing),
        with_dir(what_was_told_survives_kill_9),
        with_dir(threads_share_the_store),
        with_dir(what_is_no_database_is_refused),
        with_dir(a_database_of_another_program_is_refused),
        with_dir(a_newer_database_is_refused),
        with_dir(a_damaged_database_is_refused_or_read_but_never_crashes),
        with_dir(a_directory_that_cannot_be_written_is_named),
        with_dir(a_directory_that_is_not_there_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
