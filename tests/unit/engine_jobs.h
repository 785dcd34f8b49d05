/* tests/unit/engine_jobs.h: requests to an engine and what came of them, for tests. */
#ifndef TPD_TESTS_ENGINE_JOBS_H
#define TPD_TESTS_ENGINE_JOBS_H

#include "serve/engine.h"

#include <pthread.h>

/* One request. Filled by events on the driver's thread; read after job_wait, or under lock. */
struct job {
    struct gen_request *request;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    char *text; /* the pieces put together */
    size_t size;
    struct token_report *tokens; /* likewise */
    size_t n_tokens, n_pieces;
    struct gen_event *end; /* NULL until END */
};

/* A streaming, greedy request of max_tokens. */
struct job *job_new(const token_id *prompt, size_t n, int64_t max_tokens);
void job_stop_string(struct job *job, const char *stop);
/* Submits; fails the test when it is refused. */
void job_submit(struct job *job, struct engine *engine);
/* Returns END. Of a stream, checks that the pieces make it up. */
const struct gen_event *job_wait(struct job *job);
/* Waits until n tokens have come in pieces, or END. */
void job_wait_tokens(struct job *job, size_t n);
bool job_has_ended(struct job *job);
void job_free(struct job *job);

#endif
