/* Promises of serve/engine.h about one request, with a model that is a hash (fake_runner.h). */
#include "tests/unit/fake_engine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* --- tokens ---------------------------------------------------------------------------------- */

static void a_request_gets_the_models_tokens_and_an_account_of_them(void **state) {
    (void)state;
    struct engine *engine = fake_engine_start(2, 0);
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
    fake_engine_finish(engine);
}

static void max_tokens_is_exact(void **state) {
    (void)state;
    struct engine *engine = fake_engine_start(2, 0);
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
    fake_engine_finish(engine);
}

static void max_tokens_0_computes_nothing(void **state) {
    (void)state;
    struct engine *engine = fake_engine_start(2, 0);
    struct job *job = job_new(hello, HELLO, 0);
    job_submit(job, engine);
    job_wait(job);
    assert_int_equal(atomic_load(&fake_runner->steps), 0);
    job_free(job);
    fake_engine_finish(engine);
}

static void the_contexts_end_is_an_end_by_length(void **state) {
    (void)state;
    struct engine *engine = fake_engine_start(2, 0);
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
    fake_engine_finish(engine);
}

static void prompts_that_cannot_be_are_refused_at_once(void **state) {
    (void)state;
    struct engine *engine = fake_engine_start(2, 0);
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
    fake_engine_finish(engine);
}

/* --- ends ------------------------------------------------------------------------------------ */

static void an_end_token_ends_and_has_no_text(void **state) {
    (void)state;
    struct engine *engine = fake_engine_start(2, 0);
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
    fake_engine_finish(engine);
}

static void stop_token_ids_work_with_ignore_eos_too(void **state) {
    (void)state;
    struct engine *engine = fake_engine_start(2, 0);
    token_id expected[20];
    fake_expect(hello, HELLO, 20, expected);
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
    fake_engine_finish(engine);
}

static void a_stop_string_ends_the_text_before_it(void **state) {
    (void)state;
    struct engine *engine = fake_engine_start(2, 0);
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
    fake_engine_finish(engine);
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
    struct engine *engine = fake_engine_start(2, 0);
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
    assert_in_range(atomic_load(&fake_runner->largest_out), 1, 16);
    fake_engine_finish(engine);
}

static void echo_gives_the_prompt_first_and_its_logprobs(void **state) {
    (void)state;
    struct engine *engine = fake_engine_start(2, 0);
    struct job *plain = job_new(hello, HELLO, 8);
    job_submit(plain, engine);
    const struct gen_event *alone = job_wait(plain);
    char *prompt_text;
    size_t size;
    assert_int_equal(
        tokenizer_decode(fake_tokenizer, hello + 1, HELLO - 1, false, &prompt_text, &size, NULL),
        0);
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
    fake_engine_finish(engine);
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
    };
    return cmocka_run_group_tests(tests, fake_engine_setup, fake_engine_teardown);
}
