#include "tests/unit/fake_engine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct tokenizer *fake_tokenizer;
struct fake_runner *fake_runner;
_Atomic int fake_state_seen;

static void on_state(void *user, enum engine_state state, const struct error *error) {
    (void)user;
    if ((state == ENGINE_FAILED) != (error != NULL)) abort();
    atomic_store(&fake_state_seen, (int)state + 1);
}

struct engine_options fake_options(int32_t slots, int32_t max_queue) {
    return (struct engine_options){.tokenizer = fake_tokenizer,
                                   .tp = 1,
                                   .slots = slots,
                                   .max_queue = max_queue,
                                   .step_rows = 16,
                                   .kv_type = -1,
                                   .on_state = on_state};
}

struct engine *fake_engine_start(int32_t slots, int32_t max_queue) {
    struct engine_options options = fake_options(slots, max_queue);
    struct engine *engine;
    struct error e = {0};
    atomic_store(&fake_state_seen, 0);
    fake_runner = fake_runner_new();
    if (engine_start_on(&engine, &fake_runner->base, &options, &e) != 0) fail_msg("%s", e.message);
    return engine;
}

void assert_idle(struct engine *engine) {
    struct engine_stats stats;
    engine_stats(engine, &stats);
    assert_int_equal(stats.kv_used, 0);
    assert_int_equal(stats.slots_busy, 0);
    assert_int_equal(stats.queue, 0);
}

void fake_engine_finish(struct engine *engine) {
    engine_stop(engine, true);
    engine_join(engine);
}

size_t fake_expect(const token_id *prompt, size_t n_prompt, size_t n, token_id *out) {
    token_id tokens[FAKE_CTX + 1];
    memcpy(tokens, prompt, n_prompt * sizeof *tokens);
    for (size_t i = 0; i < n; i++) {
        out[i] = tokens[n_prompt + i] = fake_next(tokens, n_prompt + i);
        if (out[i] == FAKE_EOS) return i + 1;
    }
    return n;
}

void assert_tokens(const struct gen_event *end, const struct gen_request *r, size_t n) {
    token_id expected[FAKE_CTX];
    assert_int_equal(end->n_tokens, n);
    assert_int_equal(end->n_completion, n);
    fake_expect(r->prompt, r->n_prompt, n, expected);
    for (size_t i = 0; i < n; i++) assert_int_equal(end->tokens[i].id, expected[i]);
}

int submit_error(struct engine *engine, const token_id *prompt, size_t n, int64_t max_tokens,
                 struct error *e) {
    struct job *job = job_new(prompt, n, max_tokens);
    int err = engine_submit(engine, job->request, e);
    if (!err) job_wait(job);
    job_free(job);
    return err;
}

int fake_engine_setup(void **state) {
    (void)state;
    return tokenizer_open(&fake_tokenizer, "tests/data/models/tiny-chat", NULL);
}

int fake_engine_teardown(void **state) {
    (void)state;
    tokenizer_free(fake_tokenizer);
    return 0;
}
