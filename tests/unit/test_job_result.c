/* The end of a job: which weights are its result and where it goes, what becomes of its adapter, and what
 * is said when it ends badly. */
#include "tests/unit/job_scene.h"

#include "base/file.h"
#include "formats/store.h"
#include "train/cache.h"
#include "train/dataset.h"

#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* --- the best weights -------------------------------------------------------------------------------- */

/* So high a rate that the eval loss does not go down to the end. */
#define RESTLESS \
    ", \"lr\": 0.05, \"schedule\": \"constant\", \"compute\": \"f32\", \"eval_every\": 1, \"keep\": 1, " \
    "\"max_steps\": 4"

static char *path_in(struct scene *s, const char *format, ...) {
    static char path[300];
    char name[200];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    snprintf(path, sizeof path, "%s/%s", s->dir, name);
    return path;
}

/* The step of the lowest eval loss, and the last; the lowest loss. */
static int64_t best_step(struct scene *s, int64_t *last, double *lowest) {
    struct job_event *events;
    size_t n;
    struct error e = {0};
    int64_t best = 0;
    *lowest = INFINITY;
    if (jobs_events(s->jobs, s->job, 0, 100000, &events, &n, &e)) fail_msg("%s", e.message);
    for (size_t i = 0; i < n; i++) {
        const json_t *loss = json_object_get(events[i].fields, "eval_loss");
        if (!json_is_number(loss)) continue;
        *last = json_integer_value(json_object_get(events[i].fields, "step"));
        if (json_number_value(loss) >= *lowest) continue;
        *lowest = json_number_value(loss);
        best = *last;
    }
    jobs_events_free(events, n);
    return best;
}

/* Whether the result is what a checkpoint holds. */
static bool result_is_of_step(struct scene *s, int64_t step) {
    struct error e = {0};
    struct store *result, *checkpoint;
    bool same = true;
    if (store_open(&result, path_in(s, SCENE_RESULT), &e)) fail_msg("%s", e.message);
    if (store_open(&checkpoint, path_in(s, "jobs/1/step-%lld/tensors.safetensors", (long long)step), &e))
        fail_msg("%s", e.message);
    for (size_t i = 0; i < store_count(result); i++) {
        const struct store_tensor *a = store_at(result, i), *b = store_find(checkpoint, a->name);
        assert_non_null(b);
        same = same && a->bytes == b->bytes && memcmp(a->data, b->data, a->bytes) == 0;
    }
    store_close(result);
    store_close(checkpoint);
    return same;
}

static void the_best_weights_are_the_result(void **state) {
    (void)state;
    struct scene s;
    double lowest;
    int64_t last, best;
    scene_open(&s);
    scene_submit(&s, RESTLESS);
    scene_run(&s, 2);
    scene_expect_done(&s);
    best = best_step(&s, &last, &lowest);
    assert_true(best > 0 && best < last);
    assert_true(result_is_of_step(&s, best));
    assert_false(result_is_of_step(&s, last));
    struct job job = scene_job(&s);
    assert_true(fabs(job.eval_loss - lowest) < 1e-9);
    job_free_fields(&job);
    for (int64_t step = 1; step < last; step++) /* one newest and the best stay */
        assert_int_equal(path_is_dir(path_in(&s, "jobs/1/step-%lld", (long long)step)), step == best);
    scene_close(&s);
}

static void the_last_weights_are_the_result_where_they_are_asked_for(void **state) {
    (void)state;
    struct scene s;
    double lowest;
    int64_t last, best;
    scene_open(&s);
    scene_submit(&s, RESTLESS ", \"result\": \"last\"");
    scene_run(&s, 1);
    scene_expect_done(&s);
    best = best_step(&s, &last, &lowest);
    assert_true(best < last && result_is_of_step(&s, last));
    scene_close(&s);
}

static void a_stopped_job_knows_which_was_the_best(void **state) {
    (void)state;
    struct scene whole, pieces;
    size_t n, m;
    const char *more = RESTLESS ", \"lora\": {\"r\": 4}";
    scene_open(&whole);
    scene_submit(&whole, more);
    scene_run(&whole, 1);
    scene_expect_done(&whole);
    char *want = scene_read(&whole, SCENE_RESULT, &n);
    for (int piece = 5; piece < 9; piece++) {
        scene_open(&pieces);
        scene_submit(&pieces, more);
        scene_run_in_pieces(&pieces, piece, 1);
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

/* Every unit of a step, the optimizer's slices among them. */
static void a_fully_trained_job_may_be_stopped_at_each_unit(void **state) {
    (void)state;
    struct scene s;
    size_t n, m;
    const char *more = ", \"method\": \"full\", \"max_steps\": 1, \"batch_size\": 1, \"grad_accum\": 1,"
                       " \"eval_fraction\": 0";
    scene_open(&s);
    scene_submit(&s, more);
    scene_run(&s, 1);
    scene_expect_done(&s);
    char *want = scene_read(&s, "models/t/model.safetensors", &n);
    int units = s.units;
    scene_close(&s);
    for (int at = 3; at < units; at++) {
        scene_open(&s);
        scene_submit(&s, more);
        s.stop_after = at;
        scene_run(&s, 1);
        jobs_recover(s.jobs, NULL);
        s.stop_after = 0;
        scene_run(&s, 1);
        scene_expect_done(&s);
        char *got = scene_read(&s, "models/t/model.safetensors", &m);
        if (m != n || memcmp(got, want, n) != 0) fail_msg("stopped after unit %d: other bits", at);
        free(got);
        scene_close(&s);
    }
    free(want);
}

/* --- its place ---------------------------------------------------------------------------------------- */

#define SHORT ", \"max_steps\": 1, \"lora\": {\"r\": 2}"

static void expect_result(struct scene *s, const char *name) {
    struct job job = scene_job(s);
    scene_expect_done(s);
    assert_string_equal(job.result, path_in(s, "%s", name));
    job_free_fields(&job);
    assert_true(path_exists(path_in(s, "%s/adapter_config.json", name)));
}

static void a_result_never_takes_the_place_of_what_is_there(void **state) {
    (void)state;
    struct scene s;
    scene_open(&s);
    scene_submit(&s, SHORT);
    assert_int_equal(dir_make(path_in(&s, "adapters/t/mine"), NULL), 0);
    scene_run(&s, 1);
    expect_result(&s, "adapters/t-1");
    assert_true(path_is_dir(path_in(&s, "adapters/t/mine")));
    scene_submit(&s, SHORT ", \"out\": null");
    fclose(fopen(path_in(&s, "adapters/t-2"), "w"));
    scene_run(&s, 1);
    expect_result(&s, "adapters/t-2-2");
    scene_close(&s);
}

static void a_job_that_died_behind_its_result_finds_it_again(void **state) {
    (void)state;
    struct scene s;
    scene_open(&s);
    scene_submit(&s, SHORT);
    s.stop_after = 1000000;
    scene_run(&s, 1);
    int units = s.units;
    expect_result(&s, "adapters/t");
    scene_submit(&s, SHORT);
    dir_remove(path_in(&s, "adapters/t"), NULL);
    s.stop_after = units - 1; /* the result is there, the job is not done */
    scene_run(&s, 1);
    assert_true(path_is_dir(path_in(&s, "adapters/t")));
    jobs_recover(s.jobs, NULL);
    s.stop_after = 0;
    scene_run(&s, 1);
    expect_result(&s, "adapters/t");
    assert_false(path_exists(path_in(&s, "adapters/t-2")));
    scene_close(&s);
}

static void a_link_that_leads_out_is_not_followed(void **state) {
    (void)state;
    struct scene s;
    char more[200], outside[64] = "/tmp/tpd-test-XXXXXX";
    assert_non_null(mkdtemp(outside));
    scene_open(&s);
    snprintf(more, sizeof more, SHORT ", \"out\": \"%s/sub/x\"", s.dir);
    scene_submit(&s, more);
    assert_int_equal(symlink(outside, path_in(&s, "sub")), 0);
    scene_run(&s, 1);
    expect_result(&s, "adapters/t-1");
    assert_int_equal(rmdir(outside), 0); /* empty */
    scene_close(&s);
}

/* --- its use ------------------------------------------------------------------------------------------- */

/* Adapters of nobody's: what is asked, and what to answer. */
struct fake {
    struct scene *scene;
    char path[300]; /* of what the adapter would replace */
    int asked, activated, changes; /* changes: answer so often that something else is there now */
    enum error_kind fail;
};

static void fake_incumbent(void *user, const char *as, struct incumbent *out) {
    struct fake *f = user;
    assert_string_equal(as, "default");
    f->asked++;
    *out = (struct incumbent){.version = (uint64_t)f->asked};
    snprintf(out->path, sizeof out->path, "%s", f->path);
    snprintf(out->label, sizeof out->label, "%s", *f->path ? "adapter old" : "the base");
}

static int fake_activate(void *user, struct ranks *ranks, const struct activation *a, struct error *e) {
    struct fake *f = user;
    (void)ranks;
    assert_int_equal(a->instead_of, f->asked);
    assert_int_equal(a->job, f->scene->job);
    if (f->changes-- > 0) return 1;
    if (f->fail) return error_set(e, f->fail, "the ranks are full");
    f->activated++;
    int err = jobs_done(f->scene->jobs, a->job, a->outcome, "adapters", "kept", e);
    if (!err) adapter_close(a->adapter);
    return err;
}

static void run_judged(struct scene *s, struct fake *f, const char *more) {
    struct activator a = {fake_incumbent, fake_activate, f};
    char text[600];
    snprintf(text, sizeof text, ", \"activate\": {}%s", more);
    f->scene = s;
    s->activator = &a;
    scene_submit(s, text);
    scene_run(s, 2);
    scene_expect_done(s);
}

static void a_better_adapter_is_used_and_one_that_is_no_better_is_not(void **state) {
    (void)state;
    struct scene s;
    struct fake f = {0};
    char *kept;
    scene_open(&s);
    run_judged(&s, &f, "");
    struct job first = scene_job(&s);
    assert_int_equal(f.activated, 1);
    assert_int_equal(first.activated, 1);
    assert_true(first.eval_loss < first.eval_loss_before);
    assert_non_null(strstr(first.verdict, "the base"));
    assert_int_equal(jobs_kept(s.jobs, "adapters", &kept, NULL), 0);
    assert_string_equal(kept, "kept");
    free(kept);

    /* the same job again, against its own result: no better, by the same number */
    f = (struct fake){0};
    strcpy(f.path, first.result);
    run_judged(&s, &f, "");
    struct job second = scene_job(&s);
    assert_int_equal(f.activated, 0);
    assert_int_equal(second.activated, 0);
    assert_true(fabs(second.eval_loss_before - first.eval_loss) < 1e-6);
    assert_non_null(strstr(second.verdict, "adapter old"));
    job_free_fields(&first);
    job_free_fields(&second);
    scene_close(&s);
}

static void an_adapter_of_other_rank_scale_and_targets_is_judged_as_it_is_served(void **state) {
    (void)state;
    struct scene s;
    struct fake f = {0};
    scene_open(&s);
    run_judged(&s, &f, ", \"lora\": {\"r\": 3, \"alpha\": 11, \"rslora\": true, \"targets\": [\"o_proj\","
                       " \"down_proj\", \"k_proj\"]}");
    struct job first = scene_job(&s);
    f = (struct fake){0};
    strcpy(f.path, first.result);
    run_judged(&s, &f, SHORT);
    struct job second = scene_job(&s);
    assert_true(fabs(second.eval_loss_before - first.eval_loss) < 1e-6);
    job_free_fields(&first);
    job_free_fields(&second);
    scene_close(&s);
}

static void it_is_judged_again_when_something_else_is_used_meanwhile(void **state) {
    (void)state;
    struct scene s;
    struct fake f = {.changes = 2};
    scene_open(&s);
    run_judged(&s, &f, "");
    assert_int_equal(f.asked, 3);
    assert_int_equal(f.activated, 1);
    scene_close(&s);
}

static void an_activation_that_fails_leaves_the_job_done_and_says_why(void **state) {
    (void)state;
    struct scene s;
    struct fake f = {.fail = ERR_MEMORY};
    scene_open(&s);
    run_judged(&s, &f, "");
    struct job job = scene_job(&s);
    assert_int_equal(job.activated, 0);
    assert_string_equal(job.verdict, "not activated: the ranks are full");
    assert_non_null(job.result);
    job_free_fields(&job);
    f = (struct fake){.path = "/nowhere"};
    run_judged(&s, &f, SHORT);
    job = scene_job(&s);
    assert_int_equal(job.activated, 0);
    assert_non_null(strstr(job.verdict, "/nowhere"));
    job_free_fields(&job);
    scene_close(&s);
}

/* --- bad ends ------------------------------------------------------------------------------------------ */

static void cancel_now(struct scene *s) {
    if (scene_events(s, "checkpoint", NULL) > 0) jobs_move(s->jobs, s->job, JOB_CANCELLED, NULL, NULL, NULL);
}

static void a_loss_that_is_no_number_goes_back_once_and_then_fails(void **state) {
    (void)state;
    struct scene s;
    json_t *last;
    scene_open(&s);
    scene_submit(&s, ", \"lr\": 10, \"clip\": 0, \"schedule\": \"constant\", \"betas\": [0.99, 0], \"eps\": 1e-30,"
                     " \"warmup_ratio\": 0, \"epochs\": 99, \"lora\": {\"alpha\": 1e6}, \"save_every\": 1, \"eval_fraction\": 0");
    scene_run(&s, 1);
    struct job job = scene_job(&s);
    assert_int_equal(job.state, JOB_FAILED);
    assert_non_null(strstr(job.error, "not a number"));
    job_free_fields(&job);
    assert_int_equal(scene_events(&s, "rollback", &last), 1);
    assert_true(json_integer_value(json_object_get(last, "step")) <
                json_integer_value(json_object_get(last, "from")));
    json_decref(last);
    scene_close(&s);
}

static void a_cancelled_job_leaves_no_result(void **state) {
    (void)state;
    struct scene s;
    scene_open(&s);
    scene_submit(&s, "");
    s.after_unit = cancel_now;
    scene_run(&s, 1);
    struct job job = scene_job(&s);
    assert_int_equal(job.state, JOB_CANCELLED);
    assert_null(job.result);
    assert_false(path_exists(path_in(&s, "adapters/t")));
    job_free_fields(&job);
    scene_close(&s);
}

/* --- data ----------------------------------------------------------------------------------------------- */

static void reading_is_given_up_when_nobody_waits_for_it(void **state) {
    (void)state;
    struct scene s;
    struct error e = {0};
    _Atomic bool stop = true;
    struct dataset *d;
    scene_open(&s);
    struct dataset_options o = {.tokenizer = s.tokenizer, .cache_dir = s.dir, .vocab = 1 << 20, .eos = -1,
                                .seq_len = 64, .threads = 2, .want = {.stop = &stop}};
    assert_int_equal(dataset_open(&d, s.data, &o, &e), -(int)ERR_CANCELLED);
    stop = false;
    assert_int_equal(dataset_open(&d, s.data, &o, &e), 0);
    dataset_close(d);
    scene_close(&s);
}

static void make_cache(struct scene *s, const char *name, size_t size, time_t used) {
    int fd = open(path_in(s, "%s", name), O_WRONLY | O_CREAT, 0600);
    assert_true(fd >= 0 && ftruncate(fd, (off_t)size) == 0);
    const struct timespec times[2] = {{.tv_sec = used}, {.tv_sec = used}};
    assert_int_equal(futimens(fd, times), 0);
    close(fd);
}

static void caches_that_were_unused_the_longest_go_first(void **state) {
    (void)state;
    struct scene s;
    scene_open(&s);
    make_cache(&s, "old.tokens", 100, 10);
    make_cache(&s, "middle.tokens", 100, 20);
    make_cache(&s, "new.tokens", 100, 30);
    make_cache(&s, "open.tokens", 500, 50);
    make_cache(&s, "half.tokens.part", 100, 50);
    make_cache(&s, "other", 1000, 1);
    cache_trim(s.dir, 1000, (struct timespec){.tv_sec = 50});
    assert_true(path_exists(path_in(&s, "old.tokens")));
    assert_false(path_exists(path_in(&s, "half.tokens.part")));
    cache_trim(s.dir, 650, (struct timespec){.tv_sec = 50});
    assert_false(path_exists(path_in(&s, "old.tokens")));
    assert_false(path_exists(path_in(&s, "middle.tokens")));
    assert_true(path_exists(path_in(&s, "new.tokens")));
    cache_trim(s.dir, 1, (struct timespec){.tv_sec = 50});
    assert_true(path_exists(path_in(&s, "open.tokens")) && path_exists(path_in(&s, "other")));
    scene_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_best_weights_are_the_result),
        cmocka_unit_test(the_last_weights_are_the_result_where_they_are_asked_for),
        cmocka_unit_test(a_stopped_job_knows_which_was_the_best),
        cmocka_unit_test(a_fully_trained_job_may_be_stopped_at_each_unit),
        cmocka_unit_test(a_result_never_takes_the_place_of_what_is_there),
        cmocka_unit_test(a_job_that_died_behind_its_result_finds_it_again),
        cmocka_unit_test(a_link_that_leads_out_is_not_followed),
        cmocka_unit_test(a_better_adapter_is_used_and_one_that_is_no_better_is_not),
        cmocka_unit_test(an_adapter_of_other_rank_scale_and_targets_is_judged_as_it_is_served),
        cmocka_unit_test(it_is_judged_again_when_something_else_is_used_meanwhile),
        cmocka_unit_test(an_activation_that_fails_leaves_the_job_done_and_says_why),
        cmocka_unit_test(a_loss_that_is_no_number_goes_back_once_and_then_fails),
        cmocka_unit_test(a_cancelled_job_leaves_no_result),
        cmocka_unit_test(reading_is_given_up_when_nobody_waits_for_it),
        cmocka_unit_test(caches_that_were_unused_the_longest_go_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
