/* tests/unit/fake_runner.h: a runner without weights or ranks, for the engine's tests.
 *
 * Its "model" is a hash of all tokens so far, read back from a KV cache through the step's block
 * tables: a sequence that got another's blocks, a wrong position or a chunk left out changes the
 * answer. fake_next says what greedy decoding must give. */
#ifndef TPD_TESTS_FAKE_RUNNER_H
#define TPD_TESTS_FAKE_RUNNER_H

#include "serve/runner.h"

#include <pthread.h>

enum {
    FAKE_VOCAB = 352,
    FAKE_CTX = 256,
    FAKE_EOS = 3,    /* of the config */
    FAKE_ENDS = 6,   /* a prompt that begins with it has FAKE_EOS as its token number 12 */
    FAKE_BREAKS = 7, /* a step that holds it fails */
    FAKE_NAN = 8,    /* a row of it has a NaN among its logits */
    FAKE_DRAFT_ERRS = 7,
    FAKE_BLOCK_BYTES = 1000
};

struct fake_runner {
    struct runner base;
    struct model_config config, draft_config;
    size_t memory_left;
    bool load_fails;
    /* Steps wait while it is closed. */
    _Atomic bool closed;
    _Atomic int steps, rows, largest_out, loads, unloads, joins;
    _Atomic int draft_steps, draft_faults; /* of the draft model; positions that it holds wrong */
    _Atomic bool draft_breaks;             /* its steps fail */
    _Atomic int *joined; /* counted up by join, which frees the runner */
    /* private */
    struct shard_options options;
    int32_t *cache, *draft_cache;
    void (*driver)(void *arg);
    void *driver_arg;
    pthread_t thread;
    bool running;
};

struct fake_runner *fake_runner_new(void);
/* Gives it a draft model, which is wrong where a text has a multiple of FAKE_DRAFT_ERRS tokens. */
void fake_runner_draft(struct fake_runner *self);
token_id fake_next(const token_id *tokens, size_t n);

#endif
