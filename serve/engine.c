/* The face of the engine: what other threads ask of it. */
#include "serve/engine_private.h"

#include <stdio.h>
#include <stdlib.h>

/* --- submitting: any thread ------------------------------------------------------------------ */

static int check_prompt(const struct engine *engine, const struct gen_request *r, struct error *e) {
    int32_t vocab = engine->limits.vocab, ctx = engine->limits.ctx;
    if (r->n_prompt == 0) {
        int err =
            error_set(e, ERR_PARAMS,
                      "the prompt is empty and the tokenizer adds no token that begins a text: "
                      "give at least one token");
        error_note(e, "field", "prompt");
        return err;
    }
    bool wants_tokens = !r->score && !r->embed && r->sampling.max_tokens != 0;
    if (r->n_prompt > (size_t)ctx || (r->n_prompt == (size_t)ctx && wants_tokens)) {
        int err =
            error_set(e, ERR_CONTEXT,
                      "the prompt has %zu tokens and the context %d%s: shorten the prompt or start "
                      "tpd with a larger --ctx",
                      r->n_prompt, ctx,
                      r->n_prompt == (size_t)ctx ? ", which leaves no room for an answer" : "");
        error_note_number(e, "prompt_tokens", (int64_t)r->n_prompt);
        error_note_number(e, "context", ctx);
        return err;
    }
    for (size_t i = 0; i < r->n_prompt; i++)
        if (r->prompt[i] < 0 || r->prompt[i] >= vocab) {
            int err =
                error_set(e, ERR_PARAMS,
                          "token %d, number %zu of the prompt, is out of range: the model has ids "
                          "from 0 to %d",
                          r->prompt[i], i, vocab - 1);
            error_note(e, "field", "prompt");
            error_note_number(e, "got", r->prompt[i]);
            return err;
        }
    if (r->score && r->score_from > r->n_prompt)
        return error_set(e, ERR_PARAMS, "scoring from token %zu of a prompt of %zu", r->score_from,
                         r->n_prompt);
    return 0;
}

/* What the request asks for is there. */
static int check_speculative(const struct engine *engine, const struct sampling *s, struct error *e) {
    if (s->speculative != SPECULATIVE_DRAFT || engine->runner->draft_config) return 0;
    int err = error_set(e, ERR_PARAMS,
                        "speculative is draft, but there is no draft model: start tpd with --draft PATH, or "
                        "choose ngram, auto or off");
    error_note(e, "field", "speculative");
    return err;
}

/* Under the lock: may another request come in? */
static int check_open(const struct engine *engine, struct error *e) {
    if (engine->state == ENGINE_FAILED) {
        if (e) *e = engine->failure;
        return -(int)engine->failure.kind;
    }
    if (engine->stopping != KEEP_RUNNING || engine->state == ENGINE_STOPPED)
        return error_set(e, ERR_SHUTTING_DOWN, "tpd is shutting down and takes no more requests");
    if (engine->n_requests >= engine->sizes.slots + engine->sizes.max_queue) {
        int err = error_set(e, ERR_OVERLOADED,
                            "%d requests are live or waiting, more are not taken: try again later",
                            engine->n_requests);
        error_note_number(e, "retry_after_s", 1);
        return err;
    }
    return 0;
}

static void ring(struct engine *engine) {
    engine->rung = true;
    pthread_cond_signal(&engine->bell);
}

int engine_submit(struct engine *engine, struct gen_request *request, struct error *e) {
    int err = check_prompt(engine, request, e);
    if (!err) err = sampling_check(&request->sampling, engine->limits.vocab, e);
    if (!err) err = check_speculative(engine, &request->sampling, e);
    if (err) return err;
    struct sequence *s;
    err = sequence_new(&s, request, &engine->limits, e);
    if (err) return err;
    pthread_mutex_lock(&engine->lock);
    err = check_open(engine, e);
    if (!err) {
        request->sequence = s;
        request->submitted_ns = clock_ns();
        *engine->inbox_end = s;
        engine->inbox_end = &s->next;
        engine->n_inbox++;
        engine->n_requests++;
        engine->counters.requests++;
        ring(engine);
    }
    pthread_mutex_unlock(&engine->lock);
    if (err) sequence_drop(s);
    return err;
}

static void wake_driver(struct engine *engine) {
    pthread_mutex_lock(&engine->lock);
    ring(engine);
    pthread_mutex_unlock(&engine->lock);
}

void engine_wake(struct engine *engine) {
    wake_driver(engine);
}

static int ask_driver(struct engine *engine, const struct change *what, struct error *e) {
    struct change *change = malloc(sizeof *change);
    if (!change) return error_set(e, ERR_MEMORY, "no memory for a change between steps");
    *change = *what;
    pthread_mutex_lock(&engine->lock);
    int err = check_open(engine, e);
    if (err == -(int)ERR_OVERLOADED) err = 0; /* that is about requests */
    if (!err) {
        *engine->changes_end = change;
        engine->changes_end = &change->next;
        ring(engine);
    }
    pthread_mutex_unlock(&engine->lock);
    if (err) free(change);
    return err;
}

int engine_change(struct engine *engine, engine_change_fn *fn, engine_changed_fn *done, void *arg,
                  struct error *e) {
    return ask_driver(engine, &(struct change){.fn = fn, .done = done, .arg = arg}, e);
}

int engine_visit(struct engine *engine, engine_change_fn *fn, engine_changed_fn *done, void *arg,
                 struct error *e) {
    return ask_driver(engine, &(struct change){.fn = fn, .done = done, .arg = arg, .visit = true},
                      e);
}

void engine_cancel(struct engine *engine, struct gen_request *request) {
    atomic_store(&request->cancelled, true);
    wake_driver(engine);
}

void engine_hold(struct engine *engine, struct gen_request *request, bool hold) {
    atomic_store(&request->held, hold);
    wake_driver(engine);
}

void engine_stop(struct engine *engine, bool drain) {
    pthread_mutex_lock(&engine->lock);
    if (engine->stopping != STOP_NOW) engine->stopping = drain ? DRAIN : STOP_NOW;
    if (!drain) atomic_store(&engine->abandon, true);
    ring(engine);
    pthread_mutex_unlock(&engine->lock);
}

/* --- numbers --------------------------------------------------------------------------------- */

static double rate_per_s(const struct rate *r) {
    double seconds = 0, tokens = 0;
    for (int i = 0; i < RATE_WINDOW; i++) {
        seconds += r->seconds[i];
        tokens += r->tokens[i];
    }
    return seconds > 0 ? tokens / seconds : 0;
}

void engine_stats(struct engine *engine, struct engine_stats *out) {
    pthread_mutex_lock(&engine->lock);
    *out = engine->counters;
    out->state = engine->state;
    out->queue += engine->n_inbox;
    out->prefill_tokens_per_s = rate_per_s(&engine->prefill);
    out->decode_tokens_per_s = rate_per_s(&engine->decode);
    pthread_mutex_unlock(&engine->lock);
    out->tp = engine->options.tp;
    out->ctx = engine->sizes.ctx;
    out->slots = engine->sizes.slots;
    out->kv_blocks = engine->sizes.shard.kv_blocks;
    out->block_size = engine->sizes.shard.block_size;
    out->kv_type = (int)engine->sizes.shard.kv_type;
    for (int i = 0; i < out->tp; i++) {
        const char *name;
        engine->runner->ops->memory(engine->runner, i, &out->ranks[i].use, &name);
        snprintf(out->ranks[i].name, sizeof out->ranks[i].name, "%s", name);
        out->ranks[i].loss[0] = '\0';
        if (engine->runner->ops->loss)
            engine->runner->ops->loss(engine->runner, i, out->ranks[i].loss, sizeof out->ranks[i].loss);
    }
}

void engine_stats_add(struct engine_stats *to, const struct engine_stats *before) {
    to->preemptions += before->preemptions;
    to->prefix_queries += before->prefix_queries;
    to->prefix_hits += before->prefix_hits;
    to->requests += before->requests;
    to->requests_failed += before->requests_failed;
    to->requests_cancelled += before->requests_cancelled;
    to->prompt_tokens += before->prompt_tokens;
    to->completion_tokens += before->completion_tokens;
    to->guessed_tokens += before->guessed_tokens;
    to->accepted_tokens += before->accepted_tokens;
    to->prefill_seconds += before->prefill_seconds;
    to->decode_seconds += before->decode_seconds;
    to->draft_seconds += before->draft_seconds;
}

/* --- from start to end ----------------------------------------------------------------------- */

static void engine_free(struct engine *engine) {
    struct step_buffers *b = &engine->buffers;
    draft_free(engine->draft);
    scheduler_free(engine->scheduler);
    free(b->ids);
    free(b->pos);
    free(b->len);
    free(b->seq);
    free(b->out_rows);
    free(b->adapter);
    free(b->blocks);
    free(b->parts);
    free(b->logits);
    free(b->states);
    free(b->wishes);
    free(b->few);
    grammar_vocab_free(engine->limits.grammar_vocab);
    pthread_mutex_destroy(&engine->lock);
    pthread_cond_destroy(&engine->bell);
    pthread_cond_destroy(&engine->settled);
    free(engine);
}

static void collect_eos(struct engine *engine) {
    const struct model_config *config = engine->runner->config;
    size_t n = 0;
    for (int i = 0; i < config->n_eos; i++) engine->eos[n++] = config->eos_ids[i];
    token_id own = tokenizer_eos(engine->options.tokenizer);
    if (own >= 0) engine->eos[n++] = own;
    engine->limits.eos = engine->eos;
    engine->limits.n_eos = n;
}

static void set_guessing(struct engine *engine) {
    const struct runner *r = engine->runner;
    struct guess_terms *terms = engine->limits.guess;
    engine->limits.market = &engine->market;
    terms[GUESS_NGRAM] = (struct guess_terms){true, false, ROW_COST, SIZE_MAX};
    if (!r->draft_config) return;
    terms[GUESS_DRAFT] =
        (struct guess_terms){true, false, ROW_COST + r->draft_cost, (size_t)r->draft_config->max_len};
    /* Blocks are shared only where both models' keys are the same. */
    int32_t draft_len = r->draft_config->rope.original_len;
    if (r->draft_config->rope.kind == ROPE_DYNAMIC &&
        (!engine->limits.fixed_len || draft_len < engine->limits.fixed_len))
        engine->limits.fixed_len = draft_len;
}

int engine_start_on(struct engine **out, struct runner *runner,
                    const struct engine_options *options, struct error *e) {
    struct engine *engine = calloc(1, sizeof *engine);
    if (!engine) {
        runner->ops->join(runner);
        return error_set(e, ERR_MEMORY, "no memory for the engine");
    }
    engine->runner = runner;
    engine->options = *options;
    engine->inbox_end = &engine->inbox;
    engine->changes_end = &engine->changes;
    pthread_mutex_init(&engine->lock, NULL);
    pthread_cond_init(&engine->bell, NULL);
    pthread_cond_init(&engine->settled, NULL);
    engine->limits.tokenizer = options->tokenizer;
    engine->limits.vocab = runner->config->vocab;
    engine->limits.hidden = runner->config->hidden;
    if (runner->config->rope.kind == ROPE_DYNAMIC)
        engine->limits.fixed_len = runner->config->rope.original_len;
    engine->check_books = DEBUG_CHECKS || options->debug_alias;
    collect_eos(engine);
    set_guessing(engine);
    int err = engine_sizes_ask(&engine->sizes, options, runner, e);
    if (!err) err = grammar_vocab_new(&engine->limits.grammar_vocab, options->tokenizer, e);
    if (!err) err = runner->ops->start(runner, engine_drive, engine, e);
    if (!err) {
        pthread_mutex_lock(&engine->lock);
        while (!engine->is_settled) pthread_cond_wait(&engine->settled, &engine->lock);
        /* A load that failed already is told by on_state, like one that fails later. */
        if (!engine->scheduler) {
            if (e) *e = engine->failure;
            err = -(int)engine->failure.kind;
        }
        pthread_mutex_unlock(&engine->lock);
    }
    if (err) {
        runner->ops->join(runner);
        engine_free(engine);
        return err;
    }
    *out = engine;
    return 0;
}

void engine_join(struct engine *engine) {
    engine->runner->ops->join(engine->runner);
    engine_free(engine);
}
