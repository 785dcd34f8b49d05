/* Promises of serve/engine.h, with a model that is a hash (fake_runner.h). */
#include "tests/unit/engine_jobs.h"
#include "tests/unit/fake_runner.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct tokenizer *tokenizer;
static struct fake_runner *runner; /* of the engine that runs; freed by its join */
static _Atomic int state_seen;     /* the last on_state, plus one */

static void on_state(void *user, enum engine_state state, const struct error *error) {
    (void)user;
    if ((state == ENGINE_FAILED) != (error != NULL)) abort();
    atomic_store(&state_seen, (int)state + 1);
}

static struct engine_options options_of(int32_t slots, int32_t max_queue) {
    return (struct engine_options){.tokenizer = tokenizer,
                                   .tp = 1,
                                   .slots = slots,
                                   .max_queue = max_queue,
                                   .step_rows = 16,
                                   .kv_type = -1,
                                   .on_state = on_state};
}

static struct engine *start(int32_t slots, int32_t max_queue) {
    struct engine_options options = options_of(slots, max_queue);
    struct engine *engine;
    struct error e = {0};
    atomic_store(&state_seen, 0);
    runner = fake_runner_new();
    if (engine_start_on(&engine, &runner->base, &options, &e) != 0) fail_msg("%s", e.message);
    return engine;
}

/* No request is left and no block is taken. */
static void assert_idle(struct engine *engine) {
    struct engine_stats stats;
    engine_stats(engine, &stats);
    assert_int_equal(stats.kv_used, 0);
    assert_int_equal(stats.slots_busy, 0);
    assert_int_equal(stats.queue, 0);
}

static void finish(struct engine *engine) {
    engine_stop(engine, true);
    engine_join(engine);
}

/* What greedy decoding must give: n tokens after the prompt, or fewer up to an end token. */
static size_t expect(const token_id *prompt, size_t n_prompt, size_t n, token_id *out) {
    token_id tokens[FAKE_CTX + 1];
    memcpy(tokens, prompt, n_prompt * sizeof *tokens);
    for (size_t i = 0; i < n; i++) {
        out[i] = tokens[n_prompt + i] = fake_next(tokens, n_prompt + i);
        if (out[i] == FAKE_EOS) return i + 1;
    }
    return n;
}

static void assert_tokens(const struct gen_event *end, const struct gen_request *r, size_t n) {
    token_id expected[FAKE_CTX];
    assert_int_equal(end->n_tokens, n);
    assert_int_equal(end->n_completion, n);
    expect(r->prompt, r->n_prompt, n, expected);
    for (size_t i = 0; i < n; i++) assert_int_equal(end->tokens[i].id, expected[i]);
}

static size_t random_prompt(token_id *out, size_t max, unsigned *seed) {
    size_t n = 1 + (size_t)rand_r(seed) % max;
    for (size_t i = 0; i < n; i++) out[i] = 10 + rand_r(seed) % (FAKE_VOCAB - 10);
    return n;
}

static const token_id hello[] = {0, 40, 41, 42, 43};
enum { HELLO = sizeof hello / sizeof *hello };

/* --- tokens ---------------------------------------------------------------------------------- */

static void a_request_gets_the_models_tokens_and_an_account_of_them(void **state) {
    (void)state;
    struct engine *engine = start(2, 0);
    struct job *job = job_new(hello, HELLO, 20);
    job_submit(job, engine);
    const struct gen_event *end = job_wait(job);
    assert_tokens(end, job->request, 20);
    assert_int_equal(end->finish, FINISH_LENGTH);
    assert_int_equal(end->n_prompt, HELLO);
    assert_int_equal(end->stop_token, -1);
    assert_null(end->stop);
    assert_true(end->timings.tokens_per_s > 0);
    assert_true(job->n_pieces > 1);
    struct engine_stats stats;
    assert_idle(engine);
    engine_stats(engine, &stats);
    assert_int_equal(stats.state, ENGINE_READY);
    assert_int_equal(stats.prompt_tokens, HELLO);
    assert_int_equal(stats.completion_tokens, 20);
    assert_true(stats.decode_tokens_per_s > 0 && stats.prefill_tokens_per_s > 0);
    assert_int_equal(stats.kv_blocks, 2 * FAKE_CTX / stats.block_size);
    job_free(job);
    finish(engine);
}

static void max_tokens_is_exact(void **state) {
    (void)state;
    struct engine *engine = start(2, 0);
    for (int64_t n = 0; n < 4; n++)
        for (int stream = 0; stream < 2; stream++) {
            struct job *job = job_new(hello, HELLO, n);
            job->request->stream = stream;
            job_submit(job, engine);
            const struct gen_event *end = job_wait(job);
            assert_tokens(end, job->request, (size_t)n);
            assert_int_equal(end->finish, FINISH_LENGTH);
            job_free(job);
        }
    finish(engine);
}

static void max_tokens_0_computes_nothing(void **state) {
    (void)state;
    struct engine *engine = start(2, 0);
    struct job *job = job_new(hello, HELLO, 0);
    job_submit(job, engine);
    job_wait(job);
    assert_int_equal(atomic_load(&runner->steps), 0);
    job_free(job);
    finish(engine);
}

static void the_contexts_end_is_an_end_by_length(void **state) {
    (void)state;
    struct engine *engine = start(2, 0);
    token_id prompt[FAKE_CTX];
    for (int i = 0; i < FAKE_CTX; i++) prompt[i] = 20 + i % 50;
    const int64_t wishes[] = {-1, 100000};
    for (int i = 0; i < 2; i++) {
        struct job *job = job_new(prompt, FAKE_CTX - 9, wishes[i]);
        job_submit(job, engine);
        const struct gen_event *end = job_wait(job);
        assert_tokens(end, job->request, 9);
        assert_int_equal(end->finish, FINISH_LENGTH);
        job_free(job);
    }
    finish(engine);
}

static int submit_error(struct engine *engine, const token_id *prompt, size_t n, int64_t max_tokens,
                        struct error *e) {
    struct job *job = job_new(prompt, n, max_tokens);
    int err = engine_submit(engine, job->request, e);
    if (!err) job_wait(job);
    job_free(job);
    return err;
}

static void prompts_that_cannot_be_are_refused_at_once(void **state) {
    (void)state;
    struct engine *engine = start(2, 0);
    struct error e = {0};
    token_id prompt[FAKE_CTX + 1];
    for (int i = 0; i <= FAKE_CTX; i++) prompt[i] = 20;
    assert_int_equal(submit_error(engine, prompt, FAKE_CTX + 1, 5, &e), -ERR_CONTEXT);
    assert_int_equal(e.notes[0].number, FAKE_CTX + 1);
    assert_int_equal(e.notes[1].number, FAKE_CTX);
    assert_int_equal(submit_error(engine, prompt, FAKE_CTX, 5, &e), -ERR_CONTEXT);
    assert_int_equal(submit_error(engine, prompt, FAKE_CTX, 0, &e), 0);
    assert_int_equal(submit_error(engine, prompt, FAKE_CTX - 1, 5, &e), 0);
    assert_int_equal(submit_error(engine, prompt, 0, 5, &e), -ERR_PARAMS);
    assert_int_equal(submit_error(engine, (token_id[]){-1}, 1, 5, &e), -ERR_PARAMS);
    assert_int_equal(submit_error(engine, (token_id[]){FAKE_VOCAB}, 1, 5, &e), -ERR_PARAMS);
    assert_non_null(strstr(e.message, "out of range"));
    assert_int_equal(submit_error(engine, (token_id[]){FAKE_VOCAB - 1}, 1, 5, &e), 0);
    assert_int_equal(submit_error(engine, hello, HELLO, -2, &e), -ERR_PARAMS);
    finish(engine);
}

/* --- ends ------------------------------------------------------------------------------------ */

static void an_end_token_ends_and_has_no_text(void **state) {
    (void)state;
    struct engine *engine = start(2, 0);
    const token_id prompt[] = {FAKE_ENDS, 50, 51};
    struct job *job = job_new(prompt, 3, 40);
    job_submit(job, engine);
    const struct gen_event *end = job_wait(job);
    assert_tokens(end, job->request, 10);
    assert_int_equal(end->finish, FINISH_STOP);
    assert_int_equal(end->stop_token, FAKE_EOS);
    char *text = strdup(end->text);
    job_free(job);

    /* ignore_eos goes on; the end token is counted and has no text. */
    job = job_new(prompt, 3, 15);
    job->request->sampling.ignore_eos = true;
    job_submit(job, engine);
    end = job_wait(job);
    assert_int_equal(end->n_tokens, 15);
    assert_int_equal(end->tokens[9].id, FAKE_EOS);
    assert_int_equal(end->finish, FINISH_LENGTH);
    assert_int_equal(end->stop_token, -1);
    assert_null(strstr(end->text, "<|im_end|>"));
    assert_memory_equal(end->text, text, strlen(text));
    job_free(job);
    free(text);
    finish(engine);
}

static void stop_token_ids_work_with_ignore_eos_too(void **state) {
    (void)state;
    struct engine *engine = start(2, 0);
    token_id expected[20];
    expect(hello, HELLO, 20, expected);
    struct job *job = job_new(hello, HELLO, 20);
    struct sampling *s = &job->request->sampling;
    s->ignore_eos = true;
    s->stop_token_ids = malloc(sizeof(token_id));
    s->stop_token_ids[0] = expected[6];
    s->n_stop_token_ids = 1;
    job_submit(job, engine);
    const struct gen_event *end = job_wait(job);
    assert_tokens(end, job->request, 7);
    assert_int_equal(end->finish, FINISH_STOP);
    assert_int_equal(end->stop_token, expected[6]);
    job_free(job);
    finish(engine);
}

static void a_stop_string_ends_the_text_before_it(void **state) {
    (void)state;
    struct engine *engine = start(2, 0);
    struct job *whole = job_new(hello, HELLO, 40);
    job_submit(whole, engine);
    const char *text = job_wait(whole)->text;
    size_t size = strlen(text);
    for (size_t from = 3; from + 4 < size; from += 3) {
        char stop[5] = {0};
        memcpy(stop, text + from, 4);
        struct job *job = job_new(hello, HELLO, 40);
        job_stop_string(job, stop);
        job_submit(job, engine);
        const struct gen_event *end = job_wait(job);
        size_t at = (size_t)(strstr(text, stop) - text);
        assert_int_equal(end->text_size, at);
        assert_memory_equal(end->text, text, at);
        assert_int_equal(end->finish, FINISH_STOP);
        assert_string_equal(end->stop, stop);
        assert_int_equal(end->stop_token, -1);
        job_free(job);
    }
    job_free(whole);
    finish(engine);
}

/* --- echo, logprobs, score ------------------------------------------------------------------- */

/* Reports for tokens first … n-1, each scored by the model but the very first. */
static void assert_scored(const struct gen_event *end, const token_id *prompt, size_t first,
                          size_t n) {
    assert_int_equal(end->n_prompt_tokens, n - first);
    for (size_t i = first; i < n; i++) {
        const struct token_report *r = &end->prompt_tokens[i - first];
        assert_int_equal(r->id, prompt[i]);
        assert_int_equal(r->has_logprob, i > 0);
        if (i == 0) continue;
        assert_true(r->logprob <= 0 && r->logprob >= -100);
        assert_int_equal(r->n_top, 2);
        /* The fake's favourite is its best alternative: every row was the right one. */
        assert_int_equal(r->top[0].id, fake_next(prompt, i));
        assert_true(r->top[0].logprob >= r->top[1].logprob);
    }
}

static void scores_cover_every_token_in_bounded_steps(void **state) {
    (void)state;
    struct engine *engine = start(2, 0);
    token_id prompt[FAKE_CTX];
    unsigned seed = 4;
    for (int i = 0; i < FAKE_CTX; i++) prompt[i] = 10 + rand_r(&seed) % 300;
    const size_t lengths[] = {1, 2, 17, FAKE_CTX}, from[] = {0, 1, 9, 100};
    for (size_t i = 0; i < 4; i++) {
        struct job *job = job_new(prompt, lengths[i], -1);
        job->request->score = true;
        job->request->score_from = from[i];
        job->request->sampling.logprobs = 2;
        job_submit(job, engine);
        const struct gen_event *end = job_wait(job);
        assert_scored(end, prompt, from[i], lengths[i]);
        assert_int_equal(end->n_tokens, 0);
        assert_int_equal(end->finish, FINISH_LENGTH);
        job_free(job);
    }
    assert_in_range(atomic_load(&runner->largest_out), 1, 16);
    finish(engine);
}

static void echo_gives_the_prompt_first_and_its_logprobs(void **state) {
    (void)state;
    struct engine *engine = start(2, 0);
    struct job *plain = job_new(hello, HELLO, 8);
    job_submit(plain, engine);
    const struct gen_event *alone = job_wait(plain);
    char *prompt_text;
    size_t size;
    assert_int_equal(
        tokenizer_decode(tokenizer, hello + 1, HELLO - 1, false, &prompt_text, &size, NULL), 0);
    for (int64_t n = 0; n <= 8; n += 8) {
        struct job *job = job_new(hello, HELLO, n);
        job->request->sampling.echo = true;
        job->request->sampling.logprobs = 2;
        /* Filters of sampling do not touch the prompt's numbers. */
        job->request->sampling.temperature = n ? 1 : 0;
        job->request->sampling.top_k = 1;
        job_submit(job, engine);
        const struct gen_event *end = job_wait(job);
        assert_memory_equal(end->text, prompt_text, size);
        assert_string_equal(end->text + size, n ? alone->text : "");
        assert_scored(end, hello, 0, HELLO);
        assert_tokens(end, job->request, (size_t)n);
        if (n) assert_true(end->tokens[0].has_logprob && end->tokens[0].n_top == 2);
        job_free(job);
    }
    free(prompt_text);
    job_free(plain);
    finish(engine);
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
    struct engine *engine = start(3, 0);
    struct client clients[CLIENTS];
    for (int i = 0; i < CLIENTS; i++) {
        clients[i] = (struct client){engine, 100u + (unsigned)i, cancels, 0};
        pthread_create(&clients[i].thread, NULL, run_client, &clients[i]);
    }
    for (int i = 0; i < CLIENTS; i++) pthread_join(clients[i].thread, NULL);
    assert_idle(engine);
    finish(engine);
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
    struct engine *engine = start(4, 0);
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
    finish(engine);
}

/* --- hold, cancel, failure, overload --------------------------------------------------------- */

static void a_held_request_rests_while_others_go_on(void **state) {
    (void)state;
    struct engine *engine = start(2, 0);
    struct job *held = job_new(hello, HELLO, 200), *other = job_new(hello, HELLO, 100);
    atomic_store(&runner->closed, true);
    job_submit(held, engine);
    engine_hold(engine, held->request, true);
    atomic_store(&runner->closed, false);
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
    finish(engine);
}

static void a_held_request_can_be_cancelled(void **state) {
    (void)state;
    struct engine *engine = start(2, 0);
    struct job *job = job_new(hello, HELLO, 200);
    job_submit(job, engine);
    engine_hold(engine, job->request, true);
    engine_cancel(engine, job->request);
    assert_int_equal(job_wait(job)->finish, FINISH_CANCELLED);
    assert_idle(engine);
    job_free(job);
    finish(engine);
}

static void a_failed_step_ends_its_own_request_only(void **state) {
    (void)state;
    struct engine *engine = start(3, 0);
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
    finish(engine);
}

static void too_many_requests_are_refused_and_those_taken_are_served(void **state) {
    (void)state;
    enum { SLOTS = 2, QUEUE = 3 };
    struct engine *engine = start(SLOTS, QUEUE);
    struct job *jobs[SLOTS + QUEUE];
    struct error e = {0};
    atomic_store(&runner->closed, true);
    for (int i = 0; i < SLOTS + QUEUE; i++) {
        jobs[i] = job_new(hello, HELLO, 5);
        job_submit(jobs[i], engine);
    }
    assert_int_equal(submit_error(engine, hello, HELLO, 5, &e), -ERR_OVERLOADED);
    assert_string_equal(e.notes[0].key, "retry_after_s");
    atomic_store(&runner->closed, false);
    for (int i = 0; i < SLOTS + QUEUE; i++) {
        assert_tokens(job_wait(jobs[i]), jobs[i]->request, 5);
        job_free(jobs[i]);
    }
    assert_int_equal(submit_error(engine, hello, HELLO, 5, &e), 0);
    finish(engine);
}

/* --- start and end --------------------------------------------------------------------------- */

static void requests_wait_while_the_model_loads(void **state) {
    (void)state;
    struct engine_options options = options_of(2, 0);
    struct engine *engine;
    struct engine_stats stats;
    runner = fake_runner_new();
    atomic_store(&runner->closed, true);
    assert_int_equal(engine_start_on(&engine, &runner->base, &options, NULL), 0);
    engine_stats(engine, &stats);
    assert_int_equal(stats.state, ENGINE_LOADING);
    struct job *job = job_new(hello, HELLO, 5);
    job_submit(job, engine);
    engine_stats(engine, &stats);
    assert_int_equal(stats.queue, 1);
    atomic_store(&runner->closed, false);
    assert_tokens(job_wait(job), job->request, 5);
    assert_int_equal(atomic_load(&state_seen), ENGINE_READY + 1);
    job_free(job);
    finish(engine);
}

static void a_model_that_does_not_load_fails_those_who_wait_and_those_who_come(void **state) {
    (void)state;
    struct engine_options options = options_of(2, 0);
    struct engine *engine;
    struct error e = {0};
    runner = fake_runner_new();
    runner->load_fails = true;
    atomic_store(&runner->closed, true);
    assert_int_equal(engine_start_on(&engine, &runner->base, &options, NULL), 0);
    struct job *job = job_new(hello, HELLO, 5);
    job_submit(job, engine);
    atomic_store(&runner->closed, false);
    const struct gen_event *end = job_wait(job);
    assert_int_equal(end->finish, FINISH_ERROR);
    assert_int_equal(end->error.kind, ERR_BAD_FILE);
    assert_int_equal(submit_error(engine, hello, HELLO, 5, &e), -ERR_BAD_FILE);
    assert_int_equal(atomic_load(&state_seen), ENGINE_FAILED + 1);
    struct engine_stats stats;
    engine_stats(engine, &stats);
    assert_int_equal(stats.state, ENGINE_FAILED);
    job_free(job);
    finish(engine);
}

static void draining_serves_all_and_takes_no_more(void **state) {
    (void)state;
    struct engine *engine = start(2, 0);
    struct job *jobs[6];
    struct error e = {0};
    atomic_store(&runner->closed, true);
    for (int i = 0; i < 6; i++) {
        jobs[i] = job_new(hello, HELLO, 30);
        job_submit(jobs[i], engine);
    }
    engine_stop(engine, true);
    assert_int_equal(submit_error(engine, hello, HELLO, 5, &e), -ERR_SHUTTING_DOWN);
    atomic_store(&runner->closed, false);
    for (int i = 0; i < 6; i++) {
        assert_tokens(job_wait(jobs[i]), jobs[i]->request, 30);
        job_free(jobs[i]);
    }
    engine_join(engine);
}

static void stopping_cancels_all_waiting_live_and_held(void **state) {
    (void)state;
    struct engine *engine = start(2, 0);
    _Atomic int joined = 0;
    runner->joined = &joined;
    struct job *jobs[6];
    atomic_store(&runner->closed, true);
    for (int i = 0; i < 6; i++) {
        jobs[i] = job_new(hello, HELLO, 200);
        job_submit(jobs[i], engine);
        if (i % 2) engine_hold(engine, jobs[i]->request, true);
    }
    engine_stop(engine, true);
    engine_stop(engine, false);
    atomic_store(&runner->closed, false);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(job_wait(jobs[i])->finish, FINISH_CANCELLED);
        job_free(jobs[i]);
    }
    engine_join(engine);
    assert_int_equal(atomic_load(&joined), 1);
}

static int start_error(size_t memory_left, int32_t ctx, struct error *e, int32_t *ctx_out,
                       int32_t *blocks_out) {
    struct engine_options options = options_of(4, 0);
    struct engine *engine;
    struct engine_stats stats;
    options.ctx = ctx;
    runner = fake_runner_new();
    runner->memory_left = memory_left;
    int err = engine_start_on(&engine, &runner->base, &options, e);
    if (err) return err;
    engine_stats(engine, &stats);
    *ctx_out = stats.ctx;
    *blocks_out = stats.kv_blocks;
    finish(engine);
    return 0;
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

static int open_tokenizer(void **state) {
    (void)state;
    return tokenizer_open(&tokenizer, "tests/data/models/tiny-chat", NULL);
}

static int close_tokenizer(void **state) {
    (void)state;
    tokenizer_free(tokenizer);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_gets_the_models_tokens_and_an_account_of_them),
        cmocka_unit_test(max_tokens_is_exact),
        cmocka_unit_test(max_tokens_0_computes_nothing),
        cmocka_unit_test(the_contexts_end_is_an_end_by_length),
        cmocka_unit_test(prompts_that_cannot_be_are_refused_at_once),
        cmocka_unit_test(an_end_token_ends_and_has_no_text),
        cmocka_unit_test(stop_token_ids_work_with_ignore_eos_too),
        cmocka_unit_test(a_stop_string_ends_the_text_before_it),
        cmocka_unit_test(scores_cover_every_token_in_bounded_steps),
        cmocka_unit_test(echo_gives_the_prompt_first_and_its_logprobs),
        cmocka_unit_test(requests_of_several_threads_get_what_each_would_get_alone),
        cmocka_unit_test(cancels_and_holds_at_any_moment_leave_whole_answers_and_no_blocks),
        cmocka_unit_test(a_seed_gives_the_same_tokens_in_any_company),
        cmocka_unit_test(a_held_request_rests_while_others_go_on),
        cmocka_unit_test(a_held_request_can_be_cancelled),
        cmocka_unit_test(a_failed_step_ends_its_own_request_only),
        cmocka_unit_test(too_many_requests_are_refused_and_those_taken_are_served),
        cmocka_unit_test(requests_wait_while_the_model_loads),
        cmocka_unit_test(a_model_that_does_not_load_fails_those_who_wait_and_those_who_come),
        cmocka_unit_test(draining_serves_all_and_takes_no_more),
        cmocka_unit_test(stopping_cancels_all_waiting_live_and_held),
        cmocka_unit_test(the_cache_is_as_large_as_wished_or_as_memory_allows),
    };
    return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}
