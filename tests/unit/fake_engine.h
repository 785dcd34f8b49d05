/* tests/unit/fake_engine.h: an engine on a fake runner, and what it must answer. */
#ifndef TPD_TESTS_FAKE_ENGINE_H
#define TPD_TESTS_FAKE_ENGINE_H

#include "tests/unit/engine_jobs.h"
#include "tests/unit/fake_runner.h"

extern struct tokenizer *fake_tokenizer; /* opened by fake_engine_setup */
extern struct fake_runner *fake_runner;  /* of the engine that runs; freed by its join */
extern _Atomic int fake_state_seen;      /* the last on_state, plus one */

/* For cmocka_run_group_tests. */
int fake_engine_setup(void **state);
int fake_engine_teardown(void **state);

struct engine_options fake_options(int32_t slots, int32_t max_queue);
struct engine *fake_engine_start(int32_t slots, int32_t max_queue);
/* Drains and joins. */
void fake_engine_finish(struct engine *engine);

/* No request is left and no block is taken. */
void assert_idle(struct engine *engine);
/* END has the first n tokens that greedy decoding gives. */
void assert_tokens(const struct gen_event *end, const struct gen_request *r, size_t n);
/* What greedy decoding gives: n tokens after the prompt, or fewer up to an end token. */
size_t fake_expect(const token_id *prompt, size_t n_prompt, size_t n, token_id *out);
/* Submits, and when it is taken waits for END. Returns what engine_submit did. */
int submit_error(struct engine *engine, const token_id *prompt, size_t n, int64_t max_tokens,
                 struct error *e);

static const token_id hello[] = {0, 40, 41, 42, 43};
enum { HELLO = sizeof hello / sizeof *hello };

#endif
