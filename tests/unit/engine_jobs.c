#include "tests/unit/engine_jobs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void take_piece(struct job *job, const struct gen_event *event) {
    job->text = realloc(job->text, job->size + event->text_size + 1);
    memcpy(job->text + job->size, event->text, event->text_size + 1);
    job->size += event->text_size;
    job->tokens = realloc(job->tokens, (job->n_tokens + event->n_tokens + 1) * sizeof *job->tokens);
    if (event->n_tokens)
        memcpy(job->tokens + job->n_tokens, event->tokens, event->n_tokens * sizeof *job->tokens);
    job->n_tokens += event->n_tokens;
    job->n_pieces++;
}

static void on_event(struct gen_request *request, struct gen_event *event) {
    struct job *job = request->user;
    pthread_mutex_lock(&job->lock);
    if (job->end) abort(); /* nothing comes after END */
    if (event->kind == GEN_PIECE) {
        take_piece(job, event);
        gen_event_free(event);
    } else {
        job->end = event;
    }
    pthread_cond_broadcast(&job->changed);
    pthread_mutex_unlock(&job->lock);
}

struct job *job_new(const token_id *prompt, size_t n, int64_t max_tokens) {
    struct job *job = calloc(1, sizeof *job);
    assert_non_null(job);
    pthread_mutex_init(&job->lock, NULL);
    pthread_cond_init(&job->changed, NULL);
    struct gen_request *r = job->request = gen_request_new();
    assert_non_null(r);
    r->prompt = malloc((n + 1) * sizeof *prompt);
    memcpy(r->prompt, prompt, n * sizeof *prompt);
    r->n_prompt = n;
    r->stream = true;
    r->sampling.temperature = 0;
    r->sampling.max_tokens = max_tokens;
    r->on_event = on_event;
    r->user = job;
    return job;
}

void job_stop_string(struct job *job, const char *stop) {
    struct sampling *s = &job->request->sampling;
    s->stop[s->n_stop++] = strdup(stop);
}

void job_submit(struct job *job, struct engine *engine) {
    struct error e = {0};
    if (engine_submit(engine, job->request, &e) != 0) fail_msg("refused: %s", e.message);
}

void job_wait_tokens(struct job *job, size_t n) {
    pthread_mutex_lock(&job->lock);
    while (!job->end && job->n_tokens < n) pthread_cond_wait(&job->changed, &job->lock);
    pthread_mutex_unlock(&job->lock);
}

bool job_has_ended(struct job *job) {
    pthread_mutex_lock(&job->lock);
    bool ended = job->end;
    pthread_mutex_unlock(&job->lock);
    return ended;
}

const struct gen_event *job_wait(struct job *job) {
    pthread_mutex_lock(&job->lock);
    while (!job->end) pthread_cond_wait(&job->changed, &job->lock);
    const struct gen_event *end = job->end;
    pthread_mutex_unlock(&job->lock);
    if (!job->request->stream) {
        assert_int_equal(job->n_pieces, 0);
        return end;
    }
    assert_int_equal(job->size, end->text_size);
    assert_string_equal(job->text ? job->text : "", end->text);
    assert_int_equal(job->n_tokens, end->n_tokens);
    for (size_t i = 0; i < job->n_tokens; i++)
        assert_int_equal(job->tokens[i].id, end->tokens[i].id);
    return end;
}

void job_free(struct job *job) {
    gen_request_free(job->request);
    gen_event_free(job->end);
    pthread_mutex_destroy(&job->lock);
    pthread_cond_destroy(&job->changed);
    free(job->text);
    free(job->tokens);
    free(job);
}
