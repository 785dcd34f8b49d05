/* The engine: requests come in by a mailbox, the driver (rank 0's thread) works on them step by step. */
#include "serve/engine.h"

#include "serve/scheduler.h"
#include "serve/sequence.h"
#include "serve/sizes.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Tokens a second over the last RATE_WINDOW seconds of work of a kind. */
enum { RATE_WINDOW = 10 };

struct rate {
    double seconds[RATE_WINDOW], tokens[RATE_WINDOW]; /* a ring of parts of a second or a bit more */
    int now;
};

struct engine {
    struct runner *runner; /* owned */
    struct engine_options options;
    struct engine_sizes sizes; /* settled before engine_start returns */
    struct sequence_limits limits;
    token_id eos[CONFIG_MAX_EOS + 1];

    /* Shared by all threads, under lock. */
    pthread_mutex_t lock;
    pthread_cond_t bell; /* for the driver: something below has changed */
    bool rung;
    enum { KEEP_RUNNING, DRAIN, STOP_NOW } stopping;
    struct sequence *inbox, **inbox_end; /* submitted, not yet seen by the driver */
    int32_t n_inbox, n_requests;         /* n_requests: submitted and not ended */
    enum engine_state state;
    struct error failure; /* of ENGINE_FAILED */
    struct engine_stats counters;
    struct rate prefill, decode;
    pthread_cond_t settled; /* for engine_start */
    bool is_settled;

    /* The driver's own. */
    struct scheduler *scheduler;
    struct sequence *sequences; /* all that the scheduler has */
    struct step_buffers {
        int32_t *ids, *pos, *len, *seq, *out_rows; /* [max_rows] */
        int32_t *blocks;                           /* [max_blocks] */
        float *logits;                             /* [max_out, vocab] */
    } buffers;
};

/* --- submitting: any thread -------------------------------------------------------------------------- */

static int check_prompt(const struct engine *engine, const struct gen_request *r, struct error *e) {
    int32_t vocab = engine->limits.vocab, ctx = engine->limits.ctx;
    if (r->n_prompt == 0) {
        int err = error_set(e, ERR_PARAMS,
                            "the prompt is empty and the tokenizer adds no token that begins a text: "
                            "give at least one token");
        error_note(e, "field", "prompt");
        return err;
    }
    bool wants_tokens = !r->score && r->sampling.max_tokens != 0;
    if (r->n_prompt > (size_t)ctx || (r->n_prompt == (size_t)ctx && wants_tokens)) {
        int err = error_set(e, ERR_CONTEXT,
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
            int err = error_set(e, ERR_PARAMS,
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
    ring(engine);
    pthread_mutex_unlock(&engine->lock);
}

/* --- numbers ----------------------------------------------------------------------------------------- */

static void rate_add(struct rate *r, double seconds, double tokens) {
    if (r->seconds[r->now] >= 1) {
        r->now = (r->now + 1) % RATE_WINDOW;
        r->seconds[r->now] = r->tokens[r->now] = 0;
    }
    r->seconds[r->now] += seconds;
    r->tokens[r->now] += tokens;
}

static double rate_per_s(const struct rate *r) {
    double seconds = 0, tokens = 0;
    for (int i = 0; i < RATE_WINDOW; i++) {
        seconds += r->seconds[i];
        tokens += r->tokens[i];
    }
    return seconds > 0 ? tokens / seconds : 0;
}

static void count_step(struct engine *engine, bool is_prompt, int32_t rows, size_t completed,
                       double seconds) {
    struct sched_stats now;
    scheduler_stats(engine->scheduler, &now);
    pthread_mutex_lock(&engine->lock);
    struct engine_stats *c = &engine->counters;
    c->completion_tokens += completed;
    if (is_prompt) {
        c->prompt_tokens += (uint64_t)rows;
        c->prefill_seconds += seconds;
        rate_add(&engine->prefill, seconds, rows);
    } else {
        c->decode_seconds += seconds;
        rate_add(&engine->decode, seconds, rows);
    }
    c->slots_busy = now.live;
    c->queue = now.waiting;
    c->kv_used = now.blocks_used;
    pthread_mutex_unlock(&engine->lock);
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
    }
}

/* --- the driver: rank 0's thread ---------------------------------------------------------------------- */

/* Takes the sequence off all books and sends END. */
static void finish(struct engine *engine, struct sequence *s, enum finish_reason reason,
                   const struct error *error) {
    if (s->scheduled) {
        struct sequence **link = &engine->sequences;
        while (*link != s) link = &(*link)->next;
        *link = s->next;
        scheduler_remove(engine->scheduler, &s->entry);
    }
    struct sched_stats now = {0};
    if (engine->scheduler) scheduler_stats(engine->scheduler, &now);
    pthread_mutex_lock(&engine->lock);
    engine->n_requests--;
    if (error) engine->counters.requests_failed++;
    if (!error && !s->over && reason == FINISH_CANCELLED) engine->counters.requests_cancelled++;
    engine->counters.slots_busy = now.live;
    engine->counters.queue = now.waiting;
    engine->counters.kv_used = now.blocks_used;
    pthread_mutex_unlock(&engine->lock);
    sequence_end(s, reason, error);
}

static void accept_sequence(struct engine *engine, struct sequence *s) {
    struct error error = {0};
    if (!sequence_needs_steps(s)) {
        int err = sequence_start(s, &error);
        finish(engine, s, FINISH_LENGTH, err ? &error : NULL);
        return;
    }
    if (scheduler_add(engine->scheduler, &s->entry, &error) != 0) {
        finish(engine, s, FINISH_ERROR, &error);
        return;
    }
    s->scheduled = true;
    s->next = engine->sequences;
    engine->sequences = s;
}

static struct sequence *take_inbox(struct engine *engine) {
    struct sequence *s = engine->inbox;
    engine->inbox = NULL;
    engine->inbox_end = &engine->inbox;
    engine->n_inbox = 0;
    return s;
}

/* What other threads have asked of the sequences that are there. */
static void look_at_wishes(struct engine *engine) {
    pthread_mutex_lock(&engine->lock);
    bool cancel_all = engine->stopping == STOP_NOW;
    pthread_mutex_unlock(&engine->lock);
    for (struct sequence *s = engine->sequences, *next; s; s = next) {
        next = s->next;
        s->entry.held = atomic_load(&s->request->held);
        if (cancel_all || atomic_load(&s->request->cancelled))
            finish(engine, s, FINISH_CANCELLED, NULL);
    }
}

/* Rows first … first + n_rows - 1 of one sequence. */
static void fill_step(struct engine *engine, const struct sequence *s, const struct sched_step *work,
                      struct step *step) {
    struct step_buffers *b = &engine->buffers;
    int32_t n_prompt = (int32_t)s->request->n_prompt, n_out = 0;
    for (int32_t i = 0; i < work->n_rows; i++) {
        int32_t pos = work->first + i;
        b->ids[i] = s->tokens[pos];
        b->pos[i] = pos;
        b->len[i] = pos < n_prompt ? n_prompt : pos + 1;
        b->seq[i] = 0;
        if (sequence_wants_row(s, pos)) b->out_rows[n_out++] = i;
    }
    assert(n_out <= engine->sizes.shard.max_out);
    memset(b->blocks, 0, (size_t)engine->sizes.shard.max_blocks * sizeof *b->blocks);
    memcpy(b->blocks, s->entry.table.blocks, (size_t)s->entry.table.n * sizeof *b->blocks);
    *step = (struct step){.n_rows = work->n_rows,
                          .n_seqs = 1,
                          .n_out = n_out,
                          .ids = b->ids,
                          .pos = b->pos,
                          .len = b->len,
                          .seq = b->seq,
                          .blocks = b->blocks,
                          .out_rows = b->out_rows,
                          .logits = n_out ? b->logits : NULL};
}

static int compute(struct engine *engine, struct sequence *s, const struct sched_step *work,
                   struct error *e) {
    int err = s->started ? 0 : sequence_start(s, e);
    if (err) return err;
    struct step step;
    fill_step(engine, s, work, &step);
    err = engine->runner->ops->forward(engine->runner, &step, e);
    for (int32_t i = 0; i < step.n_out && !err && !s->over; i++)
        err = sequence_take_row(s, step.pos[step.out_rows[i]],
                                step.logits + (size_t)i * (size_t)engine->limits.vocab, e);
    return err;
}

static void run_step(struct engine *engine, const struct sched_step *work) {
    struct sequence *s = (struct sequence *)work->entry;
    struct error error = {0};
    size_t n_before = s->n_reports;
    int64_t begin = clock_ns();
    int err = compute(engine, s, work, &error);
    count_step(engine, work->first < work->entry->n_prompt, work->n_rows, s->n_reports - n_before,
               (double)(clock_ns() - begin) / 1e9);
    if (err || s->over) finish(engine, s, FINISH_ERROR, err ? &error : NULL);
}

static void set_state(struct engine *engine, enum engine_state state, const struct error *error) {
    pthread_mutex_lock(&engine->lock);
    engine->state = state;
    if (error) engine->failure = *error;
    pthread_mutex_unlock(&engine->lock);
}

static void tell_state(struct engine *engine, enum engine_state state, const struct error *error) {
    if (engine->options.on_state) engine->options.on_state(engine->options.user, state, error);
}

static void accept_inbox(struct engine *engine) {
    pthread_mutex_lock(&engine->lock);
    struct sequence *s = take_inbox(engine);
    pthread_mutex_unlock(&engine->lock);
    for (struct sequence *next; s; s = next) {
        next = s->next;
        accept_sequence(engine, s);
    }
}

/* Sleeps while there is nothing to do. False when nothing will come any more. */
static bool wait_for_bell(struct engine *engine) {
    pthread_mutex_lock(&engine->lock);
    bool done = engine->stopping != KEEP_RUNNING && !engine->inbox && !engine->sequences;
    if (done) engine->state = ENGINE_STOPPED;
    while (!done && !engine->rung) pthread_cond_wait(&engine->bell, &engine->lock);
    engine->rung = false;
    pthread_mutex_unlock(&engine->lock);
    return !done;
}

static void serve(struct engine *engine) {
    do {
        accept_inbox(engine);
        look_at_wishes(engine);
        for (struct sched_step work; scheduler_next(engine->scheduler, &work);) {
            run_step(engine, &work);
            accept_inbox(engine);
            look_at_wishes(engine);
        }
    } while (wait_for_bell(engine));
}

static int new_buffers(struct engine *engine, struct error *e) {
    const struct shard_options *o = &engine->sizes.shard;
    struct step_buffers *b = &engine->buffers;
    size_t rows = (size_t)o->max_rows * sizeof(int32_t);
    bool ok = (b->ids = malloc(rows)) && (b->pos = malloc(rows)) && (b->len = malloc(rows)) &&
              (b->seq = malloc(rows)) && (b->out_rows = malloc(rows)) &&
              (b->blocks = malloc((size_t)o->max_blocks * sizeof(int32_t))) &&
              (b->logits = malloc((size_t)o->max_out * (size_t)engine->limits.vocab * sizeof(float)));
    return ok ? 0 : error_set(e, ERR_MEMORY, "no memory for the rows of a step");
}

/* The part that engine_start waits for: what fits. */
static int settle(struct engine *engine, struct error *e) {
    struct engine_sizes *sizes = &engine->sizes;
    const struct runner_ops *ops = engine->runner->ops;
    size_t block_bytes =
        ops->kv_block_bytes(engine->runner, sizes->shard.block_size, sizes->shard.kv_type);
    int err = engine_sizes_fit(sizes, &engine->options, engine->runner, block_bytes,
                               ops->memory_left(engine->runner), e);
    if (err) return err;
    engine->limits.ctx = sizes->ctx;
    engine->limits.step_rows = sizes->shard.max_rows;
    engine->limits.max_out = sizes->shard.max_out;
    err = new_buffers(engine, e);
    if (!err)
        err = scheduler_new(&engine->scheduler, sizes->slots, sizes->shard.kv_blocks,
                            sizes->shard.block_size, e);
    return err;
}

static void report_settled(struct engine *engine, const struct error *error) {
    pthread_mutex_lock(&engine->lock);
    if (error) {
        engine->state = ENGINE_FAILED;
        engine->failure = *error;
    }
    engine->is_settled = true;
    pthread_cond_signal(&engine->settled);
    pthread_mutex_unlock(&engine->lock);
}

static void fail_all(struct engine *engine, const struct error *error) {
    pthread_mutex_lock(&engine->lock);
    struct sequence *s = take_inbox(engine);
    pthread_mutex_unlock(&engine->lock);
    for (struct sequence *next; s; s = next) {
        next = s->next;
        finish(engine, s, FINISH_ERROR, error);
    }
}

static void drive(void *arg) {
    struct engine *engine = arg;
    struct error error = {0};
    int err = settle(engine, &error);
    report_settled(engine, err ? &error : NULL);
    if (err) return;
    err = engine->runner->ops->load(engine->runner, &engine->sizes.shard, &error);
    set_state(engine, err ? ENGINE_FAILED : ENGINE_READY, err ? &error : NULL);
    tell_state(engine, err ? ENGINE_FAILED : ENGINE_READY, err ? &error : NULL);
    if (err)
        fail_all(engine, &error);
    else
        serve(engine);
    engine->runner->ops->unload(engine->runner);
}

/* --- from start to end --------------------------------------------------------------------------------- */

static void engine_free(struct engine *engine) {
    struct step_buffers *b = &engine->buffers;
    scheduler_free(engine->scheduler);
    free(b->ids);
    free(b->pos);
    free(b->len);
    free(b->seq);
    free(b->out_rows);
    free(b->blocks);
    free(b->logits);
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

int engine_start_on(struct engine **out, struct runner *runner, const struct engine_options *options,
                    struct error *e) {
    struct engine *engine = calloc(1, sizeof *engine);
    if (!engine) {
        runner->ops->join(runner);
        return error_set(e, ERR_MEMORY, "no memory for the engine");
    }
    engine->runner = runner;
    engine->options = *options;
    engine->inbox_end = &engine->inbox;
    pthread_mutex_init(&engine->lock, NULL);
    pthread_cond_init(&engine->bell, NULL);
    pthread_cond_init(&engine->settled, NULL);
    engine->limits.tokenizer = options->tokenizer;
    engine->limits.vocab = runner->config->vocab;
    collect_eos(engine);
    int err = engine_sizes_ask(&engine->sizes, options, runner, e);
    if (!err) err = runner->ops->start(runner, drive, engine, e);
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
