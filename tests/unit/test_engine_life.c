/* Promises of serve/engine.h about many requests, failures, start and end, with a model that is a
 * hash (fake_runner.h). */
#include "tests/unit/fake_engine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static size_t random_prompt(token_id *out, size_t max, unsigned *seed) {
    size_t n = 1 + (size_t)rand_r(seed) % max;
    for (size_t i = 0; i < n; i++) out[i] = 10 + rand_r(seed) % (FAKE_VOCAB - 10);
    return n;
}

/* --- company --------------------------------------------------------------------------------- */

struct client {
    struct engine *engine;
    unsigned seed;
    bool cancels;
    pthread_t thread;
};

/* Many requests, a few at a time, each checked against what the model says of it alone. */
static void *run_client(void *arg) {
    struct client *c = arg;
    enum { ROUNDS = 12, AT_ONCE = 4 };
    for (int round = 0; round < ROUNDS; round++) {
        struct job *jobs[AT_ONCE];
        for (int i = 0; i < AT_ONCE; i++) {
            token_id prompt[60];
            size_t n = random_prompt(prompt, 60, &c->seed);
            jobs[i] = job_new(prompt, n, rand_r(&c->seed) % 40);
            jobs[i]->request->stream = rand_r(&c->seed) % 2;
            jobs[i]->request->group = c->seed;
            job_submit(jobs[i], c->engine);
        }
        for (int i = 0; i < AT_ONCE && c->cancels; i++) {
            if (rand_r(&c->seed) % 3 == 0) usleep((useconds_t)(rand_r(&c->seed) % 300));
            if (rand_r(&c->seed) % 2) engine_cancel(c->engine, jobs[i]->request);
            if (rand_r(&c->seed) % 4 == 0) {
                engine_hold(c->engine, jobs[i]->request, true);
                engine_hold(c->engine, jobs[i]->request, false);
            }
        }
        for (int i = 0; i < AT_ONCE; i++) {
            const struct gen_event *end = job_wait(jobs[i]);
            size_t wanted = (size_t)jobs[i]->request->sampling.max_tokens;
            if (end->finish == FINISH_CANCELLED) {
                assert_true(c->cancels && end->n_tokens <= wanted);
                assert_tokens(end, jobs[i]->request, end->n_tokens);
            } else {
                assert_int_equal(end->finish, FINISH_LENGTH);
                assert_tokens(end, jobs[i]->request, wanted);
            }
            job_free(jobs[i]);
        }
    }
    return NULL;
}

static void run_clients(bool cancels) {
    enum { CLIENTS = 4 };
    struct engine *engine = fake_engine_start(3, 0);
    struct client clients[CLIENTS];
    for (int i = 0; i < CLIENTS; i++) {
        clients[i] = (struct client){engine, 100u + (unsigned)i, cancels, 0};
        pthread_create(&clients[i].thread, NULL, run_client, &clients[i]);
    }
    for (int i = 0; i < CLIENTS; i++) pthread_join(clients[i].thread, NULL);
    assert_idle(engine);
    fake_engine_finish(engine);
}

static void requests_of_several_threads_get_what_each_would_get_alone(void **state) {
    (void)state;
    run_clients(false);
}

static void cancels_and_holds_at_any_moment_leave_whole_answers_and_no_blocks(void **state) {
    (void)state;
    run_clients(true);
}

static void a_seed_gives_the_same_tokens_in_any_company(void **state) {
    (void)state;
    struct engine *engine = fake_engine_start(4, 0);
    struct job *alone = NULL, *other_seed = NULL;
    for (int company = 0; company < 2; company++) {
        struct job *jobs[9];
        unsigned seed = 8;
        for (int i = 0; i < (company ? 9 : 1); i++) {
            token_id prompt[30];
            size_t n = random_prompt(prompt, 30, &seed);
            if (i == company * 4) memcpy(prompt, hello, sizeof hello), n = HELLO;
            jobs[i] = job_new(prompt, n, 30);
            jobs[i]->request->sampling.temperature = 1.5;
            jobs[i]->request->sampling.seed = 77;
        }
        for (int i = 0; i < (company ? 9 : 1); i++) job_submit(jobs[i], engine);
        for (int i = 0; i < (company ? 9 : 1); i++) job_wait(jobs[i]);
        if (!company) {
            alone = jobs[0];
            continue;
        }
        for (size_t k = 0; k < 30; k++)
            assert_int_equal(jobs[4]->tokens[k].id, alone->tokens[k].id);
        for (int i = 0; i < 9; i++) job_free(jobs[i]);
    }
    other_seed = job_new(hello, HELLO, 30);
    other_seed->request->sampling.temperature = 1.5;
    other_seed->request->sampling.seed = 78;
    job_submit(other_seed, engine);
    job_wait(other_seed);
    bool differs = false;
    for (size_t k = 0; k < 30; k++) differs |= other_seed->tokens[k].id != alone->tokens[k].id;
    assert_true(differs);
    job_free(other_seed);
    job_free(alone);
    fake_engine_finish(engine);
}

/* --- hold, cancel, failure, overload --------------------------------------------------------- */

static void a_held_request_rests_while_others_go_on(void **state) {
    (void)state;
    struct engine *engine = fake_engine_start(2, 0);
    struct job *held = job_new(hello, HELLO, 200), *other = job_new(hello, HELLO, 100);
    atomic_store(&fake_runner->closed, true);
    job_submit(held, engine);
    engine_hold(engine, held->request, true);
    atomic_store(&fake_runner->closed, false);
    /* At most the step that was under way is finished; then it rests. */
    job_submit(other, engine);
    job_wait(other);
    assert_false(job_has_ended(held));
    pthread_mutex_lock(&held->lock);
    assert_true(held->n_tokens <= 1);
    pthread_mutex_unlock(&held->lock);
    engine_hold(engine, held->request, false);
    assert_tokens(job_wait(held), held->request, 200);
    job_free(held);
    job_free(other);
    fake_engine_finish(engine);
}

static void a_held_request_can_be_cancelled(void **state) {
    (void)state;
    struct engine *engine = fake_engine_start(2, 0);
    struct job *job = job_new(hello, HELLO, 200);
    job_submit(job, engine);
    engine_hold(engine, job->request, true);
    engine_cancel(engine, job->request);
    assert_int_equal(job_wait(job)->finish, FINISH_CANCELLED);
    assert_idle(engine);
    job_free(job);
    fake_engine_finish(engine);
}

static void a_failed_step_ends_its_own_request_only(void **state) {
    (void)state;
    struct engine *engine = fake_engine_start(3, 0);
    struct job *good = job_new(hello, HELLO, 60);
    struct job *broken = job_new((token_id[]){40, 41, FAKE_BREAKS, 42}, 4, 60);
    struct job *nan = job_new((token_id[]){40, FAKE_NAN}, 2, 60);
    job_submit(good, engine);
    job_submit(broken, engine);
    job_submit(nan, engine);
    const struct gen_event *end = job_wait(broken);
    assert_int_equal(end->finish, FINISH_ERROR);
    assert_int_equal(end->error.kind, ERR_DEVICE);
    assert_non_null(strstr(end->error.message, "position 2"));
    end = job_wait(nan);
    assert_int_equal(end->finish, FINISH_ERROR);
    assert_int_equal(end->error.kind, ERR_DEVICE);
    assert_tokens(job_wait(good), good->request, 60);
    struct engine_stats stats;
    assert_idle(engine);
    engine_stats(engine, &stats);
    assert_int_equal(stats.requests_failed, 2);
    job_free(good);
    job_free(broken);
    job_free(nan);
    fake_engine_finish(engine);
}

static void too_many_requests_are_refused_and_those_taken_are_served(void **state) {
    (void)state;
    enum { SLOTS = 2, QUEUE = 3 };
    struct engine *engine = fake_engine_start(SLOTS, QUEUE);
    struct job *jobs[SLOTS + QUEUE];
    struct error e = {0};
    atomic_store(&fake_runner->closed, true);
    for (int i = 0; i < SLOTS + QUEUE; i++) {
        jobs[i] = job_new(hello, HELLO, 5);
        job_submit(jobs[i], engine);
    }
    assert_int_equal(submit_error(engine, hello, HELLO, 5, &e), -ERR_OVERLOADED);
    assert_string_equal(e.notes[0].key, "retry_after_s");
    atomic_store(&fake_runner->closed, false);
    for (int i = 0; i < SLOTS + QUEUE; i++) {
        assert_tokens(job_wait(jobs[i]), jobs[i]->request, 5);
        job_free(jobs[i]);
    }
    assert_int_equal(submit_error(engine, hello, HELLO, 5, &e), 0);
    fake_engine_finish(engine);
}

/* --- start and end --------------------------------------------------------------------------- */

static void requests_wait_while_the_model_loads(void **state) {
    (void)state;
    struct engine_options options = fake_options(2, 0);
    struct engine *engine;
    struct engine_stats stats;
    fake_runner = fake_runner_new();
    atomic_store(&fake_runner->closed, true);
    assert_int_equal(engine_start_on(&engine, &fake_runner->base, &options, NULL), 0);
    engine_stats(engine, &stats);
    assert_int_equal(stats.state, ENGINE_LOADING);
    struct job *job = job_new(hello, HELLO, 5);
    job_submit(job, engine);
    engine_stats(engine, &stats);
    assert_int_equal(stats.queue, 1);
    atomic_store(&fake_runner->closed, false);
    assert_tokens(job_wait(job), job->request, 5);
    assert_int_equal(atomic_load(&fake_state_seen), ENGINE_READY + 1);
    job_free(job);
    fake_engine_finish(engine);
}

static void a_model_that_does_not_load_fails_those_who_wait_and_those_who_come(void **state) {
    (void)state;
    struct engine_options options = fake_options(2, 0);
    struct engine *engine;
    struct error e = {0};
    fake_runner = fake_runner_new();
    fake_runner->load_fails = true;
    atomic_store(&fake_runner->closed, true);
    assert_int_equal(engine_start_on(&engine, &fake_runner->base, &options, NULL), 0);
    struct job *job = job_new(hello, HELLO, 5);
    job_submit(job, engine);
    atomic_store(&fake_runner->closed, false);
    const struct gen_event *end = job_wait(job);
    assert_int_equal(end->finish, FINISH_ERROR);
    assert_int_equal(end->error.kind, ERR_BAD_FILE);
    assert_int_equal(submit_error(engine, hello, HELLO, 5, &e), -ERR_BAD_FILE);
    assert_int_equal(atomic_load(&fake_state_seen), ENGINE_FAILED + 1);
    struct engine_stats stats;
    engine_stats(engine, &stats);
    assert_int_equal(stats.state, ENGINE_FAILED);
    job_free(job);
    fake_engine_finish(engine);
}

static void stopping_gives_a_load_up_without_failing(void **state) {
    (void)state;
    struct engine_options options = fake_options(2, 0);
    struct engine *engine;
    struct error e = {0};
    fake_runner = fake_runner_new();
    atomic_store(&fake_runner->closed, true); /* and stays so: the load would never end */
    atomic_store(&fake_state_seen, 0);
    assert_int_equal(engine_start_on(&engine, &fake_runner->base, &options, NULL), 0);
    struct job *job = job_new(hello, HELLO, 5);
    job_submit(job, engine);
    engine_stop(engine, false);
    assert_int_equal(job_wait(job)->finish, FINISH_CANCELLED);
    assert_int_equal(submit_error(engine, hello, HELLO, 5, &e), -ERR_SHUTTING_DOWN);
    job_free(job);
    engine_join(engine);
    assert_int_equal(atomic_load(&fake_state_seen), 0);
}

static void draining_serves_all_and_takes_no_more(void **state) {
    (void)state;
    struct engine *engine = fake_engine_start(2, 0);
    struct job *jobs[6];
    struct error e = {0};
    atomic_store(&fake_runner->closed, true);
    for (int i = 0; i < 6; i++) {
        jobs[i] = job_new(hello, HELLO, 30);
        job_submit(jobs[i], engine);
    }
    engine_stop(engine, true);
    assert_int_equal(submit_error(engine, hello, HELLO, 5, &e), -ERR_SHUTTING_DOWN);
    atomic_store(&fake_runner->closed, false);
    for (int i = 0; i < 6; i++) {
        assert_tokens(job_wait(jobs[i]), jobs[i]->request, 30);
        job_free(jobs[i]);
    }
    engine_join(engine);
}

static void stopping_cancels_all_waiting_live_and_held(void **state) {
    (void)state;
    struct engine *engine = fake_engine_start(2, 0);
    _Atomic int joined = 0;
    fake_runner->joined = &joined;
    struct job *jobs[6];
    atomic_store(&fake_runner->closed, true);
    for (int i = 0; i < 6; i++) {
        jobs[i] = job_new(hello, HELLO, 200);
        job_submit(jobs[i], engine);
        if (i % 2) engine_hold(engine, jobs[i]->request, true);
    }
    engine_stop(engine, true);
    engine_stop(engine, false);
    atomic_store(&fake_runner->closed, false);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(job_wait(jobs[i])->finish, FINISH_CANCELLED);
        job_free(jobs[i]);
    }
    engine_join(engine);
    assert_int_equal(atomic_load(&joined), 1);
}

static int start_with(double fraction, size_t memory_left, int32_t ctx, struct error *e,
                      int32_t *ctx_out, int32_t *blocks_out) {
    struct engine_options options = fake_options(4, 0);
    options.memory_fraction = fraction;
    struct engine *engine;
    struct engine_stats stats;
    options.ctx = ctx;
    fake_runner = fake_runner_new();
    fake_runner->memory_left = memory_left;
    int err = engine_start_on(&engine, &fake_runner->base, &options, e);
    if (err) return err;
    engine_stats(engine, &stats);
    *ctx_out = stats.ctx;
    *blocks_out = stats.kv_blocks;
    fake_engine_finish(engine);
    return 0;
}

static int start_error(size_t memory_left, int32_t ctx, struct error *e, int32_t *ctx_out,
                       int32_t *blocks_out) {
    return start_with(0, memory_left, ctx, e, ctx_out, blocks_out);
}

static void the_cache_gets_all_that_a_memory_fraction_leaves(void **state) {
    (void)state;
    struct error e = {0};
    int32_t ctx, blocks;
    assert_int_equal(start_with(0.5, 2 * 7 * FAKE_BLOCK_BYTES, 7 * 32, &e, &ctx, &blocks), 0);
    assert_int_equal(blocks, 7);
    assert_int_equal(start_with(0.5, 2 * 7 * FAKE_BLOCK_BYTES, 8 * 32, &e, &ctx, &blocks), -ERR_MEMORY);
    assert_non_null(strstr(e.message, "memory_fraction"));
    assert_int_equal(start_with(1, (size_t)1 << 30, 100, &e, &ctx, &blocks), 0);
    assert_int_equal(blocks, 4 * 4); /* what all slots can use */
}

static void the_cache_is_as_large_as_wished_or_as_memory_allows(void **state) {
    (void)state;
    struct error e = {0};
    int32_t ctx, blocks;
    const size_t much = (size_t)1 << 30;
    /* Activations and logits of the fake's largest step are under 60 000 bytes. */
    assert_int_equal(start_error(much, 0, &e, &ctx, &blocks), 0);
    assert_int_equal(ctx, FAKE_CTX);
    assert_int_equal(blocks, 4 * FAKE_CTX / 32);
    assert_int_equal(start_error(much, 100, &e, &ctx, &blocks), 0);
    assert_int_equal(ctx, 100);
    assert_int_equal(blocks, 4 * 4);
    assert_int_equal(start_error(much, FAKE_CTX + 1, &e, &ctx, &blocks), -ERR_CONFIG);
    assert_int_equal(start_error(0, 0, &e, &ctx, &blocks), -ERR_MEMORY);
    assert_string_equal(e.notes[0].key, "needed");
    assert_int_equal(start_error(50000, 128, &e, &ctx, &blocks), -ERR_MEMORY);

    /* 5 blocks fit: too few for the model's longest sequence, enough for a shorter one. */
    size_t base = 0;
    while (start_error(base, 0, &e, &ctx, &blocks) != 0) base += 2500;
    assert_true(ctx < FAKE_CTX && ctx % 32 == 0 && blocks * 32 >= ctx);
    assert_int_equal(start_error(base, FAKE_CTX, &e, &ctx, &blocks), -ERR_MEMORY);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_of_several_threads_get_what_each_would_get_alone),
        cmocka_unit_test(cancels_and_holds_at_any_moment_leave_whole_answers_and_no_blocks),
        cmocka_unit_test(a_seed_gives_the_same_tokens_in_any_company),
        cmocka_unit_test(a_held_request_rests_while_others_go_on),
        cmocka_unit_test(a_held_request_can_be_cancelled),
        cmocka_unit_test(a_failed_step_ends_its_own_request_only),
        cmocka_unit_test(too_many_requests_are_refused_and_those_taken_are_served),
        cmocka_unit_test(requests_wait_while_the_model_loads),
        cmocka_unit_test(a_model_that_does_not_load_fails_those_who_wait_and_those_who_come),
        cmocka_unit_test(stopping_gives_a_load_up_without_failing),
        cmocka_unit_test(draining_serves_all_and_takes_no_more),
        cmocka_unit_test(stopping_cancels_all_waiting_live_and_held),
        cmocka_unit_test(the_cache_gets_all_that_a_memory_fraction_leaves),
        cmocka_unit_test(the_cache_is_as_large_as_wished_or_as_memory_allows),
    };
    return cmocka_run_group_tests(tests, fake_engine_setup, fake_engine_teardown);
}
