/* The store of jobs from night to night: deadlines, the key that finds a job again, and what a name has
 * learnt of a file. */
#include "base/file.h"
#include "train/jobs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <sqlite3.h>

static char dir[64];
static struct jobs *jobs;

#define ok(expression)                                                                             \
    do {                                                                                           \
        struct error e = {0};                                                                      \
        if ((expression) < 0) fail_msg("%s: %s", #expression, e.message);                          \
    } while (0)

static int open_store(void **state) {
    (void)state;
    strcpy(dir, "/tmp/tpd-nights-XXXXXX");
    if (!mkdtemp(dir)) return -1;
    ok(jobs_open(&jobs, dir, &e));
    return 0;
}

static int close_store(void **state) {
    (void)state;
    jobs_close(jobs);
    return dir_remove(dir, NULL);
}

/* The daemon ends and begins again. */
static void restart(void) {
    jobs_close(jobs);
    ok(jobs_open(&jobs, dir, &e));
    ok(jobs_recover(jobs, &e));
}

static int64_t submit(const char *name, const char *once, double deadline_s) {
    json_t *json = json_pack("{s:s, s:s, s:f, s:b, s:s?}", "name", name, "data", "/d/tickets.jsonl",
                             "deadline_s", deadline_s, "since_last", 1, "once", once);
    struct job_spec spec;
    int64_t id;
    bool existing;
    ok(job_spec_parse(&spec, json, &e));
    ok(jobs_submit(jobs, &spec, &id, &existing, &e));
    job_spec_free(&spec);
    json_decref(json);
    return id;
}

static void take(void) {
    struct job job;
    ok(jobs_take(jobs, &job, &e));
    job_free_fields(&job);
}

/* Its numbers: the pointers are none any more. */
static struct job get(int64_t id) {
    struct job job;
    ok(jobs_get(jobs, id, NULL, &job, &e));
    struct job numbers = job;
    job_free_fields(&job);
    return numbers;
}

static void expect_learnt(const char *name, const char *data, int64_t bytes, int64_t job) {
    struct data_part part;
    int64_t by;
    ok(jobs_learnt(jobs, name, data, &part, &by, &e));
    assert_int_equal(part.to, bytes);
    assert_int_equal(by, job);
}

static void read_and_end(int64_t id, int64_t bytes, enum job_state how) {
    take();
    ok(jobs_set_part(jobs, id, &(struct data_part){0, bytes, UINT64_MAX - 5}, &e));
    ok(jobs_move(jobs, id, how, how == JOB_FAILED ? "line 7" : NULL, NULL, &e));
}

static void a_success_alone_moves_what_was_learnt(void **state) {
    (void)state;
    expect_learnt("n", "/d/tickets.jsonl", 0, 0);
    int64_t first = submit("n", NULL, 0);
    read_and_end(first, 100, JOB_DONE);
    expect_learnt("n", "/d/tickets.jsonl", 100, first);
    read_and_end(submit("n", NULL, 0), 200, JOB_FAILED);
    read_and_end(submit("n", NULL, 0), 200, JOB_CANCELLED);
    restart();
    expect_learnt("n", "/d/tickets.jsonl", 100, first);
    expect_learnt("n", "/d/other.jsonl", 0, 0);
    expect_learnt("m", "/d/tickets.jsonl", 0, 0);
    struct data_part part;
    int64_t by;
    ok(jobs_learnt(jobs, "n", "/d/tickets.jsonl", &part, &by, &e));
    assert_true(part.hash == UINT64_MAX - 5);
    ok(jobs_delete(jobs, first, &e)); /* what it taught stays */
    expect_learnt("n", "/d/tickets.jsonl", 100, first);
}

static void an_older_job_takes_nothing_back(void **state) {
    (void)state;
    int64_t old = submit("n", NULL, 0);
    take();
    ok(jobs_set_part(jobs, old, &(struct data_part){0, 100, 1}, &e));
    ok(jobs_move(jobs, old, JOB_PAUSED, NULL, NULL, &e));
    int64_t new = submit("n", NULL, 0);
    read_and_end(new, 200, JOB_DONE);
    ok(jobs_move(jobs, old, JOB_QUEUED, NULL, NULL, &e));
    take();
    ok(jobs_move(jobs, old, JOB_DONE, NULL, NULL, &e));
    expect_learnt("n", "/d/tickets.jsonl", 200, new);
}

static void what_a_job_reads_is_remembered(void **state) {
    (void)state;
    int64_t id = submit("n", NULL, 0);
    assert_int_equal(get(id).part.to, 0);
    take();
    ok(jobs_set_part(jobs, id, &(struct data_part){10, 100, UINT64_MAX}, &e));
    restart();
    struct job job = get(id);
    assert_int_equal(job.state, JOB_QUEUED);
    assert_int_equal(job.part.from, 10);
    assert_int_equal(job.part.to, 100);
    assert_true(job.part.hash == UINT64_MAX);
}

static void a_job_is_paused_at_its_deadline_and_its_key_resumes_it(void **state) {
    (void)state;
    int64_t id = submit("n", "k", 0.001), other = submit("m", NULL, 0);
    assert_true(get(id).deadline > 0);
    take();
    usleep(2000);
    ok(jobs_pause_late(jobs, &e));
    assert_int_equal(get(id).state, JOB_PAUSED);
    assert_int_equal(get(other).state, JOB_QUEUED);
    struct job_event *events;
    size_t n;
    ok(jobs_events(jobs, id, 0, 100, &events, &n, &e));
    assert_string_equal(json_string_value(json_object_get(events[n - 2].fields, "event")), "note");
    assert_string_equal(json_string_value(json_object_get(events[n - 1].fields, "state")), "paused");
    jobs_events_free(events, n);
    restart(); /* paused it stays */
    assert_int_equal(submit("n", "k", 3600), id);
    assert_int_equal(get(id).state, JOB_QUEUED);
    ok(jobs_pause_late(jobs, &e)); /* it has a deadline of its own */
    assert_int_equal(get(id).state, JOB_QUEUED);
}

static void a_deadline_that_comes_while_it_waits_pauses_it_too(void **state) {
    (void)state;
    int64_t id = submit("n", "k", 0.001);
    usleep(2000);
    assert_int_equal(submit("n", "k", 3600), id); /* the next night came first */
    ok(jobs_pause_late(jobs, &e));
    assert_int_equal(get(id).state, JOB_QUEUED);
    int64_t late = submit("m", NULL, 0.001);
    usleep(2000);
    ok(jobs_pause_late(jobs, &e));
    assert_int_equal(get(late).state, JOB_PAUSED);
    ok(jobs_move(jobs, late, JOB_QUEUED, NULL, NULL, &e)); /* by hand: its time counts anew */
    assert_true(get(late).deadline > 0);
}

static void a_running_job_keeps_its_deadline(void **state) {
    (void)state;
    int64_t id = submit("n", "k", 3600);
    take();
    double deadline = get(id).deadline;
    assert_int_equal(submit("n", "k", 7200), id);
    assert_true(get(id).deadline == deadline);
    assert_int_equal(get(id).state, JOB_RUNNING);
}

static void a_key_tells_what_became_of_its_last_job(void **state) {
    (void)state;
    struct job job;
    struct error e = {0};
    assert_false(jobs_live_once(jobs, NULL));
    assert_false(jobs_live_once(jobs, "k"));
    int64_t id = submit("n", "k", 0);
    assert_true(jobs_live_once(jobs, "k"));
    assert_int_equal(jobs_last_once(jobs, "k", id, &job, &e), -(int)ERR_NOT_FOUND);
    read_and_end(id, 5, JOB_FAILED);
    assert_false(jobs_live_once(jobs, "k"));
    ok(jobs_last_once(jobs, "k", submit("n", "k", 0), &job, &e));
    assert_int_equal(job.id, id);
    assert_string_equal(job.error, "line 7");
    job_free_fields(&job);
}

/* The tables as the first version made them, with a job that was queued. */
static void a_store_of_the_first_version_is_taken_over(void **state) {
    (void)state;
    static const char old[] =
        "CREATE TABLE jobs("
        " id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, state TEXT NOT NULL,"
        " spec TEXT NOT NULL, once TEXT, step INTEGER NOT NULL DEFAULT 0,"
        " steps INTEGER NOT NULL DEFAULT 0, loss REAL, eval_loss REAL, error TEXT, result TEXT,"
        " created REAL NOT NULL, started REAL NOT NULL DEFAULT 0, ended REAL NOT NULL DEFAULT 0);"
        "CREATE TABLE events("
        " cursor INTEGER PRIMARY KEY AUTOINCREMENT, job INTEGER NOT NULL, time REAL NOT NULL,"
        " fields TEXT NOT NULL);"
        "INSERT INTO jobs(name, state, spec, once, created) VALUES('n', 'queued',"
        " '{\"name\": \"n\", \"data\": \"/d/tickets.jsonl\"}', 'k', 1);"
        "CREATE TABLE schema_version(version INTEGER NOT NULL);"
        "INSERT INTO schema_version VALUES(1); PRAGMA application_id=1953522794;";
    char path[96];
    sqlite3 *db;
    jobs_close(jobs);
    snprintf(path, sizeof path, "%s/tpd.db", dir);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, old, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
    ok(jobs_open(&jobs, dir, &e));
    assert_int_equal(get(1).part.to, 0);
    assert_int_equal(submit("n", "k", 0), 1);
    read_and_end(1, 100, JOB_DONE);
    expect_learnt("n", "/d/tickets.jsonl", 100, 1);
}

#define STORE_TEST(f) cmocka_unit_test_setup_teardown(f, open_store, close_store)

int main(void) {
    const struct CMUnitTest tests[] = {
        STORE_TEST(a_success_alone_moves_what_was_learnt),
        STORE_TEST(an_older_job_takes_nothing_back),
        STORE_TEST(what_a_job_reads_is_remembered),
        STORE_TEST(a_job_is_paused_at_its_deadline_and_its_key_resumes_it),
        STORE_TEST(a_deadline_that_comes_while_it_waits_pauses_it_too),
        STORE_TEST(a_running_job_keeps_its_deadline),
        STORE_TEST(a_key_tells_what_became_of_its_last_job),
        STORE_TEST(a_store_of_the_first_version_is_taken_over),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
