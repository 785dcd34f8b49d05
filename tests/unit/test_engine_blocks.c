/* Promises of serve/engine.h about the KV cache: who begins anew loses and repeats nothing, what was
 * computed is shared, and all blocks come back. The model is a hash that reads its tokens through
 * the block tables (fake_runner.h), so a wrong block is a wrong answer. */
#include "tests/unit/fake_engine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BLOCK = 32 };

static struct engine *start_with(int32_t slots, size_t blocks) {
    struct engine_options options = fake_options(slots, 0);
    struct engine *engine;
    struct error e = {0};
    options.kv_memory = blocks * FAKE_BLOCK_BYTES;
    options.debug_alias = true; /* checks the books after each step */
    fake_runner = fake_runner_new();
    if (engine_start_on(&engine, &fake_runner->base, &options, &e) != 0) fail_msg("%s", e.message);
    return engine;
}

static struct engine_stats stats_of(struct engine *engine) {
    struct engine_stats stats;
    engine_stats(engine, &stats);
    return stats;
}

static void fill(token_id *prompt, size_t n, token_id first) {
    for (size_t i = 0; i < n; i++) prompt[i] = 20 + (token_id)i % 97;
    prompt[0] = first;
}

static struct job *ask(struct engine *engine, const token_id *prompt, size_t n, int64_t tokens) {
    struct job *job = job_new(prompt, n, tokens);
    job_submit(job, engine);
    return job;
}

/* Checks its tokens (and in job_wait that its pieces make them up); returns n_cached. */
static int64_t finish_job(struct job *job) {
    const struct gen_event *end = job_wait(job);
    if (end->finish == FINISH_ERROR) fail_msg("%s", end->error.message);
    assert_tokens(end, job->request, (size_t)job->request->sampling.max_tokens);
    int64_t cached = end->n_cached;
    job_free(job);
    return cached;
}

/* With a draft model that is wrong now and then: whoever begins anew, shares or lets go, it reads what the
 * model has computed, and its guesses come true but for those. */
static void a_draft_models_keys_are_those_of_the_models_tokens(void **state) {
    (void)state;
    enum { JOBS = 14 };
    struct engine_options options = fake_options(6, 0);
    struct engine *engine;
    struct error e = {0};
    struct job *jobs[JOBS];
    token_id prompt[90];
    options.kv_memory = (FAKE_CTX / BLOCK + 4) * FAKE_BLOCK_BYTES;
    options.debug_alias = true;
    fake_runner = fake_runner_new();
    fake_runner_draft(fake_runner);
    if (engine_start_on(&engine, &fake_runner->base, &options, &e) != 0) fail_msg("%s", e.message);
    for (int i = 0; i < JOBS; i++) {
        fill(prompt, 90, 200 + i / 3); /* three each begin alike */
        jobs[i] = job_new(prompt, 50 + 3 * (size_t)i, 120);
        jobs[i]->request->sampling.speculative = i % 3 == 2 ? SPECULATIVE_OFF : SPECULATIVE_DRAFT;
        job_submit(jobs[i], engine);
    }
    for (int i = 0; i < JOBS; i++) finish_job(jobs[i]);
    struct engine_stats stats = stats_of(engine);
    assert_true(stats.preemptions > 0 && stats.prefix_hits > 0);
    assert_true(stats.accepted_tokens > stats.guessed_tokens / 2 && stats.accepted_tokens < stats.guessed_tokens);
    assert_int_equal(atomic_load(&fake_runner->draft_faults), 0);
    /* Without it the requests go on. */
    atomic_store(&fake_runner->draft_breaks, true);
    fill(prompt, 20, 300);
    finish_job(ask(engine, prompt, 20, 60));
    assert_idle(engine);
    fake_engine_finish(engine);
}

static void requests_that_had_to_begin_anew_lose_and_repeat_nothing(void **state) {
    (void)state;
    enum { JOBS = 12 };
    struct engine *engine = start_with(6, FAKE_CTX / BLOCK + 3);
    struct job *jobs[JOBS];
    token_id prompt[60];
    for (int i = 0; i < JOBS; i++) {
        fill(prompt, 60, 200 + i);
        jobs[i] = ask(engine, prompt, 20 + 3 * (size_t)i, 150);
    }
    for (int i = 0; i < JOBS; i++) finish_job(jobs[i]);
    assert_true(stats_of(engine).preemptions > 0);
    assert_idle(engine);
    fake_engine_finish(engine);
}

static void scores_that_had_to_begin_anew_report_each_token_once(void **state) {
    (void)state;
    enum { JOBS = 6 };
    struct engine *engine = start_with(6, FAKE_CTX / BLOCK);
    struct job *jobs[JOBS], *long_ones[2];
    token_id prompt[FAKE_CTX];
    for (int i = 0; i < 2; i++) {
        fill(prompt, 10, 300 + i);
        long_ones[i] = ask(engine, prompt, 10, 100);
    }
    for (int i = 0; i < JOBS; i++) {
        fill(prompt, 100, 200 + i);
        jobs[i] = job_new(prompt, 100, -1);
        jobs[i]->request->score = true;
        jobs[i]->request->score_from = (size_t)i * 17;
        job_submit(jobs[i], engine);
    }
    for (int i = 0; i < JOBS; i++) {
        const struct gen_event *end = job_wait(jobs[i]);
        assert_int_equal(end->finish, FINISH_LENGTH);
        assert_int_equal(end->n_prompt_tokens, 100 - i * 17);
        for (size_t k = 0; k < end->n_prompt_tokens; k++)
            assert_int_equal(end->prompt_tokens[k].id, jobs[i]->request->prompt[i * 17 + (int)k]);
        job_free(jobs[i]);
    }
    for (int i = 0; i < 2; i++) finish_job(long_ones[i]);
    assert_idle(engine);
    fake_engine_finish(engine);
}

static void what_was_computed_is_found_again_and_told(void **state) {
    (void)state;
    struct engine *engine = start_with(4, 40);
    token_id prompt[120];
    fill(prompt, 120, 50);
    assert_int_equal(finish_job(ask(engine, prompt, 100, 30)), 0);
    assert_int_equal(finish_job(ask(engine, prompt, 100, 30)), 96);
    assert_int_equal(finish_job(ask(engine, prompt, 70, 5)), 64);
    assert_int_equal(finish_job(ask(engine, prompt, 64, 5)), 32); /* its last token gives logits */
    /* The answer's own blocks too: the conversation goes on. */
    token_id whole[160];
    fake_expect(prompt, 100, 30, whole + 100);
    memcpy(whole, prompt, 100 * sizeof *prompt);
    for (int i = 130; i < 150; i++) whole[i] = 60;
    assert_int_equal(finish_job(ask(engine, whole, 150, 5)), 128);
    prompt[40] = 11;
    assert_int_equal(finish_job(ask(engine, prompt, 100, 5)), 32);
    struct engine_stats stats = stats_of(engine);
    assert_int_equal(stats.prefix_queries, 100 + 100 + 70 + 64 + 150 + 100);
    assert_int_equal(stats.prefix_hits, 96 + 64 + 32 + 128 + 32);
    fake_engine_finish(engine);
}

static void choices_of_one_prompt_compute_it_once(void **state) {
    (void)state;
    enum { N = 4, PROMPT = 161 };
    struct engine *engine = start_with(N, 40);
    struct job *jobs[N];
    token_id prompt[PROMPT];
    fill(prompt, PROMPT, 50);
    atomic_store(&fake_runner->closed, true);
    for (int i = 0; i < N; i++) jobs[i] = ask(engine, prompt, PROMPT, 4);
    atomic_store(&fake_runner->closed, false);
    for (int i = 0; i < N; i++) finish_job(jobs[i]);
    /* The last position is each one's own, and the tokens but for the last. */
    assert_int_equal(atomic_load(&fake_runner->rows), PROMPT + (N - 1) + N * 3);
    fake_engine_finish(engine);
}

static int nothing(void *arg, struct ranks *ranks, struct error *e) {
    (void)arg;
    (void)ranks;
    (void)e;
    return 0;
}

static void changed(void *arg, const struct error *error) {
    assert_null(error);
    atomic_store((_Atomic bool *)arg, true);
}

static void nothing_from_before_a_change_or_of_another_adapter_is_found(void **state) {
    (void)state;
    struct engine *engine = start_with(4, 40);
    _Atomic bool done = false;
    token_id prompt[100];
    fill(prompt, 100, 50);
    for (int32_t adapter = -1; adapter < 2; adapter++)
        for (int again = 0; again < 2; again++) {
            struct job *job = job_new(prompt, 100, 5);
            job->request->adapter = adapter;
            job_submit(job, engine);
            assert_int_equal(finish_job(job), again ? 96 : 0);
        }
    assert_int_equal(engine_change(engine, nothing, changed, &done, NULL), 0);
    while (!atomic_load(&done)) {}
    assert_int_equal(finish_job(ask(engine, prompt, 100, 5)), 0);
    fake_engine_finish(engine);
}

static void what_a_failed_request_computed_is_not_found_again(void **state) {
    (void)state;
    struct engine *engine = start_with(4, 40);
    token_id prompt[100];
    fill(prompt, 100, 50);
    prompt[99] = FAKE_NAN;
    struct job *job = ask(engine, prompt, 100, 5);
    assert_int_equal(job_wait(job)->finish, FINISH_ERROR);
    job_free(job);
    prompt[99] = 60;
    assert_int_equal(finish_job(ask(engine, prompt, 100, 5)), 0);
    fake_engine_finish(engine);
}

static void all_blocks_are_free_or_cached_when_all_requests_have_ended(void **state) {
    (void)state;
    enum { JOBS = 40 };
    struct engine *engine = start_with(8, 20);
    struct job *jobs[JOBS];
    token_id prompt[90];
    unsigned seed = 4;
    for (int i = 0; i < JOBS; i++) {
        fill(prompt, 90, 50 + i % 5);
        jobs[i] = ask(engine, prompt, 1 + (size_t)rand_r(&seed) % 90, 1 + rand_r(&seed) % 60);
        if (rand_r(&seed) % 3 == 0) engine_cancel(engine, jobs[i]->request);
    }
    for (int i = 0; i < JOBS; i++) {
        const struct gen_event *end = job_wait(jobs[i]);
        assert_tokens(end, jobs[i]->request, end->n_tokens);
        job_free(jobs[i]);
    }
    struct engine_stats stats = stats_of(engine);
    assert_int_equal(stats.kv_blocks, 20);
    assert_int_equal(stats.kv_used, 0);
    assert_in_range(stats.kv_cached, 1, 20);
    fake_engine_finish(engine);
}

static void held_requests_keep_neither_slots_nor_blocks_from_others(void **state) {
    (void)state;
    struct engine *engine = start_with(2, FAKE_CTX / BLOCK);
    struct job *slow[2];
    token_id prompt[100];
    for (int i = 0; i < 2; i++) {
        fill(prompt, 100, 50 + i);
        slow[i] = ask(engine, prompt, 50, 100);
        job_wait_tokens(slow[i], 3); /* it is live; seldom it has ended before it is held */
        engine_hold(engine, slow[i]->request, true);
    }
    for (int i = 0; i < 3; i++) {
        fill(prompt, 100, 60 + i);
        finish_job(ask(engine, prompt, 100, 100));
    }
    for (int i = 0; i < 2; i++) engine_hold(engine, slow[i]->request, false);
    for (int i = 0; i < 2; i++) finish_job(slow[i]);
    fake_engine_finish(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_draft_models_keys_are_those_of_the_models_tokens),
        cmocka_unit_test(requests_that_had_to_begin_anew_lose_and_repeat_nothing),
        cmocka_unit_test(scores_that_had_to_begin_anew_report_each_token_once),
        cmocka_unit_test(what_was_computed_is_found_again_and_told),
        cmocka_unit_test(choices_of_one_prompt_compute_it_once),
        cmocka_unit_test(nothing_from_before_a_change_or_of_another_adapter_is_found),
        cmocka_unit_test(what_a_failed_request_computed_is_not_found_again),
        cmocka_unit_test(all_blocks_are_free_or_cached_when_all_requests_have_ended),
        cmocka_unit_test(held_requests_keep_neither_slots_nor_blocks_from_others),
    };
    return cmocka_run_group_tests(tests, fake_engine_setup, fake_engine_teardown);
}
