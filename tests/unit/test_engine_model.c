/* The engine with real weights on real ranks: what tests/golden says the tiny models answer. */
#include "tests/unit/engine_jobs.h"

#include "base/json.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_IDS = 256 };

struct golden {
    token_id prompt[MAX_IDS], tokens[MAX_IDS]; /* tokens: with the end token, if there is one */
    size_t n_prompt, n_tokens;
    token_id end; /* or -1 */
    const char *text;
    const json_t *logprobs, *top;
};

struct subject {
    struct model *model;
    struct tokenizer *tokenizer;
    struct engine *engine;
    json_t *file;
    size_t n;
    struct golden goldens[16];
};

static size_t read_ids(const json_t *array, token_id *out) {
    for (size_t i = 0; i < json_array_size(array); i++)
        out[i] = (token_id)json_integer_value(json_array_get(array, i));
    return json_array_size(array);
}

static void read_goldens(struct subject *s, const char *path) {
    struct error e = {0};
    s->file = json_read_file(path, 1 << 20, &e);
    if (!s->file) fail_msg("%s", e.message);
    const json_t *prompts = json_object_get(s->file, "prompts");
    s->n = json_array_size(prompts);
    for (size_t i = 0; i < s->n; i++) {
        const json_t *p = json_array_get(prompts, i);
        struct golden *g = &s->goldens[i];
        g->n_prompt = read_ids(json_object_get(p, "ids"), g->prompt);
        g->n_tokens = read_ids(json_object_get(p, "tokens"), g->tokens);
        g->text = json_string_value(json_object_get(p, "text"));
        g->logprobs = json_object_get(p, "logprobs");
        g->top = json_object_get(p, "top");
        const json_t *end = json_object_get(p, "end");
        g->end = json_is_integer(end) ? (token_id)json_integer_value(end) : -1;
        if (g->end >= 0) g->tokens[g->n_tokens++] = g->end;
    }
}

static void open_subject(struct subject *s, const char *name, int tp) {
    char path[256], goldens[300];
    struct error e = {0};
    snprintf(path, sizeof path, "tests/data/models/%s", name);
    snprintf(goldens, sizeof goldens, "%s/expected_text.json", path);
    memset(s, 0, sizeof *s);
    read_goldens(s, goldens);
    if (model_open(&s->model, path, &e) != 0) fail_msg("%s", e.message);
    if (tokenizer_open(&s->tokenizer, path, &e) != 0) fail_msg("%s", e.message);
    struct engine_options options = {.model = s->model,
                                     .tokenizer = s->tokenizer,
                                     .tp = tp,
                                     .step_rows = 8,
                                     .kv_type = DTYPE_F32};
    core_set_allowed(&options.cores);
    if (engine_start(&s->engine, &options, &e) != 0) fail_msg("%s", e.message);
}

static void close_subject(struct subject *s) {
    engine_stop(s->engine, true);
    engine_join(s->engine);
    tokenizer_free(s->tokenizer);
    model_free(s->model);
    json_decref(s->file);
}

static struct job *ask(struct subject *s, const struct golden *g) {
    struct job *job = job_new(g->prompt, g->n_prompt, 48);
    job->request->sampling.logprobs = 5;
    job_submit(job, s->engine);
    return job;
}

static void assert_near(double got, const json_t *expected, const char *what, size_t i) {
    double want = json_number_value(expected);
    if (fabs(got - want) > 2e-3) fail_msg("%s %zu is %f, expected %f", what, i, got, want);
}

static void assert_golden(struct job *job, const struct golden *g) {
    const struct gen_event *end = job_wait(job);
    if (end->finish == FINISH_ERROR) fail_msg("%s", end->error.message);
    assert_int_equal(end->n_tokens, g->n_tokens);
    assert_int_equal(end->finish, g->end >= 0 ? FINISH_STOP : FINISH_LENGTH);
    assert_int_equal(end->stop_token, g->end);
    for (size_t i = 0; i < g->n_tokens; i++) {
        const struct token_report *r = &end->tokens[i];
        assert_int_equal(r->id, g->tokens[i]);
        assert_near(r->logprob, json_array_get(g->logprobs, i), "logprob", i);
        assert_int_equal(r->n_top, 5);
        assert_int_equal(r->top[0].id, r->id);
        for (size_t k = 0; k < 5; k++)
            assert_near(r->top[k].logprob,
                        json_array_get(json_array_get(json_array_get(g->top, i), k), 1),
                        "alternative", i);
    }
    assert_string_equal(end->text, g->text);
    job_free(job);
}

static const struct {
    const char *model;
    int tp;
} subjects[] = {{"tiny-chat", 1}, {"tiny-chat", 2}, {"tiny-spm", 1}, {"tiny-spm", 2}};
enum { SUBJECTS = sizeof subjects / sizeof *subjects };

static void greedy_answers_are_those_of_the_reference_alone_and_among_others(void **state) {
    (void)state;
    for (int k = 0; k < SUBJECTS; k++) {
        struct subject s;
        open_subject(&s, subjects[k].model, subjects[k].tp);
        for (size_t i = 0; i < s.n; i++) assert_golden(ask(&s, &s.goldens[i]), &s.goldens[i]);
        struct job *jobs[9];
        for (size_t i = 0; i < 9; i++) jobs[i] = ask(&s, &s.goldens[i % s.n]);
        for (size_t i = 0; i < 9; i++) assert_golden(jobs[i], &s.goldens[i % s.n]);
        close_subject(&s);
    }
}

static struct job *ask_sampled(struct subject *s, size_t which, uint64_t seed) {
    const struct golden *g = &s->goldens[which % s->n];
    struct job *job = job_new(g->prompt, g->n_prompt, 40);
    job->request->sampling.temperature = 2;
    job->request->sampling.top_p = 0.95;
    job->request->sampling.seed = seed;
    job_submit(job, s->engine);
    return job;
}

static void a_seed_gives_the_same_text_alone_and_among_others(void **state) {
    (void)state;
    for (int tp = 1; tp <= 2; tp++) {
        struct subject s;
        open_subject(&s, "tiny-chat", tp);
        struct job *alone = ask_sampled(&s, 0, 5), *jobs[9];
        const char *text = job_wait(alone)->text;
        for (size_t i = 0; i < 9; i++) jobs[i] = ask_sampled(&s, i == 6 ? 0 : i, i == 6 ? 5 : i);
        for (size_t i = 0; i < 9; i++) job_wait(jobs[i]);
        assert_string_equal(jobs[6]->end->text, text);
        assert_string_not_equal(jobs[0]->end->text, text); /* the same prompt, another seed */
        for (size_t i = 0; i < 9; i++) job_free(jobs[i]);
        job_free(alone);
        close_subject(&s);
    }
}

static void scores_of_an_answer_are_the_logprobs_it_was_given_with(void **state) {
    (void)state;
    for (int tp = 1; tp <= 2; tp++) {
        struct subject s;
        open_subject(&s, "tiny-chat", tp);
        for (size_t i = 0; i < s.n; i++) {
            const struct golden *g = &s.goldens[i];
            token_id whole[2 * MAX_IDS];
            memcpy(whole, g->prompt, g->n_prompt * sizeof *whole);
            memcpy(whole + g->n_prompt, g->tokens, g->n_tokens * sizeof *whole);
            struct job *job = job_new(whole, g->n_prompt + g->n_tokens, -1);
            job->request->score = true;
            job->request->score_from = g->n_prompt;
            job_submit(job, s.engine);
            const struct gen_event *end = job_wait(job);
            assert_int_equal(end->n_prompt_tokens, g->n_tokens);
            for (size_t k = 0; k < g->n_tokens; k++)
                assert_near(end->prompt_tokens[k].logprob, json_array_get(g->logprobs, k), "score",
                            k);
            job_free(job);
        }
        close_subject(&s);
    }
}

static void statistics_name_the_ranks_and_their_memory(void **state) {
    (void)state;
    struct subject s;
    open_subject(&s, "tiny-chat", 2);
    assert_golden(ask(&s, &s.goldens[0]), &s.goldens[0]);
    struct engine_stats stats;
    engine_stats(s.engine, &stats);
    assert_int_equal(stats.state, ENGINE_READY);
    assert_int_equal(stats.tp, 2);
    assert_int_equal(stats.kv_used, 0);
    for (int i = 0; i < 2; i++) {
        assert_true(strlen(stats.ranks[i].name) > 0);
        assert_true(stats.ranks[i].use.bytes[MEM_WEIGHTS] > 0);
        assert_true(stats.ranks[i].use.bytes[MEM_KV] > 0);
    }
    close_subject(&s);
}

static void more_ranks_than_heads_are_refused(void **state) {
    (void)state;
    struct model *model;
    struct engine *engine;
    struct error e = {0};
    assert_int_equal(model_open(&model, "tests/data/models/tiny-chat", NULL), 0);
    struct engine_options options = {.model = model, .tp = 5, .kv_type = -1};
    core_set_allowed(&options.cores);
    assert_int_equal(engine_start(&engine, &options, &e), -ERR_CONFIG);
    model_free(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_answers_are_those_of_the_reference_alone_and_among_others),
        cmocka_unit_test(a_seed_gives_the_same_text_alone_and_among_others),
        cmocka_unit_test(scores_of_an_answer_are_the_logprobs_it_was_given_with),
        cmocka_unit_test(statistics_name_the_ranks_and_their_memory),
        cmocka_unit_test(more_ranks_than_heads_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
