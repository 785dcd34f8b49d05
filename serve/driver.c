/* The engine's driver: rank 0's thread takes requests from the inbox and works on them step by
 * step. */
#include "serve/engine_private.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* --- books ----------------------------------------------------------------------------------- */

static void rate_add(struct rate *r, double seconds, double tokens) {
    if (r->seconds[r->now] >= 1) {
        r->now = (r->now + 1) % RATE_WINDOW;
        r->seconds[r->now] = r->tokens[r->now] = 0;
    }
    r->seconds[r->now] += seconds;
    r->tokens[r->now] += tokens;
}

/* For engine_stats: how full it is now. */
static void show_load(struct engine *engine) {
    struct sched_stats now;
    scheduler_stats(engine->scheduler, &now);
    pthread_mutex_lock(&engine->lock);
    engine->counters.slots_busy = now.live;
    engine->counters.queue = now.waiting;
    engine->counters.kv_used = now.blocks_used;
    engine->counters.kv_cached = now.blocks_cached;
    engine->counters.preemptions = now.set_back;
    engine->counters.prefix_queries = now.tokens_asked;
    engine->counters.prefix_hits = now.tokens_cached;
    pthread_mutex_unlock(&engine->lock);
}

/* n_rows of a kind took their part of a step's time. */
static void count_rows(double *seconds, struct rate *rate, int32_t n_rows, double part) {
    if (n_rows == 0) return;
    *seconds += part;
    rate_add(rate, part, n_rows);
}

static void count_step(struct engine *engine, int32_t prompt_rows, int32_t decode_rows,
                       double seconds) {
    double per_row = seconds / (prompt_rows + decode_rows);
    pthread_mutex_lock(&engine->lock);
    struct engine_stats *c = &engine->counters;
    c->prompt_tokens += (uint64_t)prompt_rows;
    count_rows(&c->prefill_seconds, &engine->prefill, prompt_rows, prompt_rows * per_row);
    count_rows(&c->decode_seconds, &engine->decode, decode_rows, decode_rows * per_row);
    pthread_mutex_unlock(&engine->lock);
}

/* Takes the sequence off all books and sends END. */
static void finish(struct engine *engine, struct sequence *s, enum finish_reason reason,
                   const struct error *error) {
    if (s->scheduled) {
        struct sequence **link = &engine->sequences;
        while (*link != s) link = &(*link)->next;
        *link = s->next;
        scheduler_remove(engine->scheduler, &s->entry, error != NULL);
        show_load(engine);
    }
    pthread_mutex_lock(&engine->lock);
    engine->n_requests--;
    engine->counters.completion_tokens += s->n_reports;
    engine->counters.guessed_tokens += (uint64_t)s->guesser.n_guessed;
    engine->counters.accepted_tokens += (uint64_t)s->guesser.n_accepted;
    if (error) engine->counters.requests_failed++;
    if (!error && !s->over && reason == FINISH_CANCELLED) engine->counters.requests_cancelled++;
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
    s->entry.root = sequence_root(s, engine->epoch);
    if (scheduler_add(engine->scheduler, &s->entry, &error) != 0) {
        finish(engine, s, FINISH_ERROR, &error);
        return;
    }
    s->scheduled = true;
    s->next = engine->sequences;
    engine->sequences = s;
}

static struct sequence *take_inbox(struct engine *engine) {
    pthread_mutex_lock(&engine->lock);
    struct sequence *s = engine->inbox;
    engine->inbox = NULL;
    engine->inbox_end = &engine->inbox;
    engine->n_inbox = 0;
    pthread_mutex_unlock(&engine->lock);
    return s;
}

static void accept_inbox(struct engine *engine) {
    for (struct sequence *s = take_inbox(engine), *next; s; s = next) {
        next = s->next;
        accept_sequence(engine, s);
    }
}

/* error is NULL when they are cancelled. */
static void end_inbox(struct engine *engine, const struct error *error) {
    for (struct sequence *s = take_inbox(engine), *next; s; s = next) {
        next = s->next;
        finish(engine, s, error ? FINISH_ERROR : FINISH_CANCELLED, error);
    }
}

/* Makes the changes that were asked for, or (with an error) says that they will not be made. */
static void make_changes(struct engine *engine, const struct error *refused) {
    pthread_mutex_lock(&engine->lock);
    struct change *change = engine->changes;
    engine->changes = NULL;
    engine->changes_end = &engine->changes;
    pthread_mutex_unlock(&engine->lock);
    for (struct change *next; change; change = next) {
        struct error e = {0};
        next = change->next;
        int err = refused ? -(int)refused->kind
                          : change->fn(change->arg, engine->runner->ops->ranks(engine->runner), &e);
        if (!change->visit) engine->epoch++; /* nothing in the cache is for those who come from now on */
        change->done(change->arg, refused ? refused : err ? &e : NULL);
        free(change);
    }
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

/* The draft model's time is time of generating. */
static void count_draft(struct engine *engine) {
    double seconds = draft_seconds(engine->draft);
    pthread_mutex_lock(&engine->lock);
    struct engine_stats *c = &engine->counters;
    c->decode_seconds += seconds - c->draft_seconds;
    rate_add(&engine->decode, seconds - c->draft_seconds, 0);
    c->draft_seconds = seconds;
    pthread_mutex_unlock(&engine->lock);
}

static bool generates(const struct sequence *s) {
    return s->n_reports > 0 && !s->over && s->entry.live && !s->entry.held;
}

/* What guesses cost now, by the steps that were measured; where no sequence looks at it, nothing is priced. */
static void set_prices(struct engine *engine) {
    struct guess_price *price = &engine->market.price;
    int32_t n = 0;
    bool asked = false;
    for (const struct sequence *s = engine->sequences; s; s = s->next) {
        n += generates(s);
        asked |= guess_goes_by_price(&s->guesser);
    }
    engine->market.priced = false;
    if (!asked) return;
    double plain = pace_seconds(&engine->pace, n, ROW_COST);
    engine->market.priced = pace_is_known(&engine->pace, n) && plain > 0;
    price->n_sequences = n;
    if (!engine->market.priced) return;
    for (int more = 1; more <= GUESS_MOST; more++) {
        double rows = pace_seconds(&engine->pace, n * (1 + more), ROW_COST) / plain - 1;
        price->rows[more] = rows > price->rows[more - 1] ? rows : price->rows[more - 1];
    }
    if (!engine->draft) return;
    enum { MANY = 64 };
    double one = pace_seconds(draft_pace(engine->draft), n, ROW_COST) / plain;
    if (one <= 0) one = engine->runner->draft_cost; /* nothing is measured */
    double many = pace_seconds(draft_pace(engine->draft), n + MANY, ROW_COST) / plain;
    price->make[GUESS_DRAFT] = one;
    price->catch_up = many > one ? (many - one) / MANY : one * ROW_COST;
}

/* Tokens of a sequence that the draft model has not read, beside the one that it reads in any case. */
static size_t draft_lacks(const struct engine *engine, const struct sequence *s) {
    if (!engine->draft || !s->entry.live) return 0;
    int32_t lacks = s->entry.n_known - 1 - scheduler_second(engine->scheduler, &s->entry);
    return lacks > 0 ? (size_t)lacks : 0;
}

/* What sequences may generate next. True: some wait for guesses, and there is more to do for them. */
static bool guess_ahead(struct engine *engine) {
    set_prices(engine);
    for (struct sequence *s = engine->sequences; s; s = s->next)
        sequence_guess(s, draft_lacks(engine, s));
    if (!engine->draft) return false;
    bool more = draft_run(engine->draft, engine->sequences);
    count_draft(engine);
    return more;
}

/* --- steps ----------------------------------------------------------------------------------- */

static struct sequence *sequence_of(const struct sched_part *part) {
    return (struct sequence *)part->entry;
}

static void fill_part(struct engine *engine, const struct sched_part *part, struct step *step) {
    const struct sequence *s = sequence_of(part);
    const struct sched_entry *entry = part->entry;
    struct step_buffers *b = &engine->buffers;
    int32_t n_prompt = (int32_t)s->request->n_prompt;
    for (int32_t pos = part->first; pos < part->first + part->n_rows; pos++) {
        int32_t row = step->n_rows++;
        b->ids[row] = entry->tokens[pos];
        b->pos[row] = pos;
        b->len[row] = pos < n_prompt ? n_prompt : pos + 1;
        b->seq[row] = step->n_seqs;
        if (pos < entry->out_from) continue;
        sequence_wish(s, pos, &b->wishes[step->n_out]);
        b->few[step->n_out].n = 0;
        b->out_rows[step->n_out++] = row;
    }
    memcpy(b->blocks + (size_t)step->n_seqs * (size_t)engine->sizes.shard.max_blocks,
           entry->table.blocks, (size_t)entry->table.n * sizeof *b->blocks);
    b->adapter[step->n_seqs++] = s->request->adapter;
}

static int forward(struct engine *engine, const struct sched_part *parts, int32_t n,
                   struct error *e) {
    struct step_buffers *b = &engine->buffers;
    struct step step = {.ids = b->ids,
                        .pos = b->pos,
                        .len = b->len,
                        .seq = b->seq,
                        .blocks = b->blocks,
                        .adapter = b->adapter,
                        .out_rows = b->out_rows,
                        .wishes = b->wishes,
                        .candidates = b->few};
    for (int32_t i = 0; i < n; i++) fill_part(engine, &parts[i], &step);
    for (int32_t i = 0; i < n && step.n_out > 0; i++) {
        if (sequence_of(&parts[i])->request->embed) step.states = b->states;
        else step.logits = b->logits;
    }
    return engine->runner->ops->forward(engine->runner, &step, e);
}

/* The outcome of row `out` of what was wanted; of logits that do not do as candidates the whole row. */
static int take_row(struct engine *engine, struct sequence *s, int32_t out, struct error *e) {
    struct step_buffers *b = &engine->buffers;
    const struct runner_ops *ops = engine->runner->ops;
    bool embed = s->request->embed;
    struct outcome row = {.n = embed ? engine->limits.hidden : engine->limits.vocab, .few = &b->few[out]};
    row.values = (embed ? b->states : b->logits) + (size_t)out * (size_t)row.n;
    int err = sequence_take_row(s, &row, e);
    if (err != SAMPLER_UNDECIDED) return err;
    row.few = NULL;
    err = ops->whole_row(engine->runner, false, out, row.values, e);
    return err ? err : sequence_take_row(s, &row, e);
}

/* The part was computed; its outcome begins at row `out` of what was wanted. Returns how many rows. */
static int32_t take_part(struct engine *engine, const struct sched_part *part, int32_t out) {
    struct sequence *s = sequence_of(part);
    struct error error = {0};
    int32_t first_out = part->first > part->entry->out_from ? part->first : part->entry->out_from;
    int32_t n_out = part->first + part->n_rows - first_out;
    int32_t taken = 0;
    bool right = true;
    int err = 0;
    while (taken < n_out && right && !err && !s->over) {
        int32_t next = first_out + taken + 1;
        token_id computed = taken + 1 < n_out ? s->entry.tokens[next] : -1;
        err = take_row(engine, s, out + taken++, &error);
        /* The row after it is of use unless it was computed from a guess that did not come true. */
        right = err || next >= s->entry.n_known || s->entry.tokens[next] == computed;
    }
    if (!err) {
        /* A draft model may have gone on from what was not chosen. */
        if (engine->draft) scheduler_second_lost(engine->scheduler, &s->entry, s->entry.n_known - 1);
        scheduler_done(engine->scheduler, part,
                       part->n_rows - (n_out > taken ? n_out - taken : 0));
    }
    if (err || s->over) finish(engine, s, FINISH_ERROR, err ? &error : NULL);
    return n_out > 0 ? n_out : 0;
}

/* When a step fails, whose rows they were is found out by computing each part alone. */
static void run_parts(struct engine *engine, const struct sched_part *parts, int32_t n) {
    struct error error = {0};
    int err = forward(engine, parts, n, &error);
    int32_t out = 0;
    for (int32_t i = 0; i < n; i++) {
        if (err && n > 1) run_parts(engine, &parts[i], 1);
        else if (err) finish(engine, sequence_of(&parts[i]), FINISH_ERROR, &error);
        else out += take_part(engine, &parts[i], out);
    }
}

static int by_adapter(const struct sched_part *a, const struct sched_part *b) {
    return sequence_of(a)->request->adapter - sequence_of(b)->request->adapter;
}

/* The parts of a step whose sequences could be started, those with the same adapter together. */
static int32_t choose_parts(struct engine *engine, const struct sched_part *from, int32_t n_from) {
    struct sched_part *parts = engine->buffers.parts;
    int32_t n = 0;
    for (int32_t i = 0; i < n_from; i++) {
        struct sequence *s = sequence_of(&from[i]);
        struct error error = {0};
        if (!s->started && sequence_start(s, &error) != 0) {
            finish(engine, s, FINISH_ERROR, &error);
            continue;
        }
        int32_t at = n++;
        for (; at > 0 && by_adapter(&parts[at - 1], &from[i]) > 0; at--) parts[at] = parts[at - 1];
        parts[at] = from[i];
    }
    return n;
}

static void run_step(struct engine *engine, const struct sched_part *planned, int32_t n_planned) {
    int64_t begin = clock_ns();
    int32_t prompt_rows = 0, decode_rows = 0;
    int32_t n = choose_parts(engine, planned, n_planned);
    const struct sched_part *parts = engine->buffers.parts;
    for (int32_t i = 0; i < n; i++) {
        if (parts[i].first < (int32_t)sequence_of(&parts[i])->request->n_prompt)
            prompt_rows += parts[i].n_rows;
        else decode_rows += parts[i].n_rows;
    }
    if (n == 0) return;
    run_parts(engine, parts, n);
    double seconds = (double)(clock_ns() - begin) / 1e9;
    count_step(engine, prompt_rows, decode_rows, seconds);
    if (prompt_rows == 0) pace_add(&engine->pace, decode_rows, seconds);
    if (engine->check_books && !scheduler_sound(engine->scheduler)) abort();
}

/* --- background -------------------------------------------------------------------------------- */

static bool run_background_unit(struct engine *engine) {
    const struct engine_background *b = &engine->options.background;
    if (!b->unit) return false;
    int64_t begin = clock_ns();
    bool did = b->unit(b->arg, engine->runner->ops->ranks(engine->runner));
    engine->background_credit -= (double)(clock_ns() - begin) / 1e9;
    return did;
}

/* After a step that took `seconds`: units until their share of the time is used up. */
static void run_background_share(struct engine *engine, double seconds) {
    double share = engine->options.background.share;
    engine->background_credit += seconds * share / (1 - share);
    if (engine->background_credit > 1) engine->background_credit = 1; /* not saved up for a burst */
    if (engine->background_credit > 0 && !run_background_unit(engine))
        engine->background_credit = 0;
}

/* Units while no request is live; false when there are none to do. */
static bool run_background_idle(struct engine *engine) {
    pthread_mutex_lock(&engine->lock);
    bool free_time = engine->stopping == KEEP_RUNNING && !engine->inbox && !engine->changes &&
                     !engine->sequences;
    pthread_mutex_unlock(&engine->lock);
    if (!free_time || !run_background_unit(engine)) return false;
    engine->background_credit = 0;
    return true;
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
        make_changes(engine, NULL);
        accept_inbox(engine);
        look_at_wishes(engine);
        const struct sched_part *parts;
        int64_t begin = clock_ns();
        bool more = guess_ahead(engine);
        for (int32_t n; (n = scheduler_next(engine->scheduler, &parts)) > 0 || more;) {
            show_load(engine);
            run_step(engine, parts, n);
            run_background_share(engine, (double)(clock_ns() - begin) / 1e9);
            make_changes(engine, NULL);
            accept_inbox(engine);
            look_at_wishes(engine);
            begin = clock_ns();
            more = guess_ahead(engine);
        }
    } while (run_background_idle(engine) || wait_for_bell(engine));
}

/* --- starting -------------------------------------------------------------------------------- */

static int new_buffers(struct engine *engine, struct error *e) {
    const struct shard_options *o = &engine->sizes.shard;
    struct step_buffers *b = &engine->buffers;
    size_t rows = (size_t)o->max_rows * sizeof(int32_t), seqs = (size_t)o->max_seqs;
    bool ok =
        (b->ids = malloc(rows)) && (b->pos = malloc(rows)) && (b->len = malloc(rows)) &&
        (b->seq = malloc(rows)) && (b->out_rows = malloc(rows)) &&
        (b->adapter = malloc(seqs * sizeof *b->adapter)) &&
        (b->parts = malloc(seqs * sizeof *b->parts)) &&
        (b->blocks = calloc(seqs * (size_t)o->max_blocks, sizeof *b->blocks)) &&
        (b->logits = malloc((size_t)o->max_out * (size_t)engine->limits.vocab * sizeof(float))) &&
        (b->states = malloc((size_t)o->max_out * (size_t)engine->limits.hidden * sizeof(float))) &&
        (b->wishes = malloc((size_t)o->max_out * sizeof *b->wishes)) &&
        (b->few = malloc((size_t)o->max_out * sizeof *b->few));
    return ok ? 0 : error_set(e, ERR_MEMORY, "no memory for the rows of a step");
}

/* The part that engine_start waits for: what fits. */
static int settle(struct engine *engine, struct error *e) {
    struct engine_sizes *sizes = &engine->sizes;
    const struct runner_ops *ops = engine->runner->ops;
    size_t block_bytes =
        ops->kv_block_bytes(engine->runner, sizes->shard.block_size, sizes->shard.kv_type);
    double fraction = engine_memory_fraction(&engine->options);
    size_t left = 0;
    int err = 0;
    if (fraction > 0) err = ops->cache_room(engine->runner, &sizes->shard, fraction, &left, e);
    else left = ops->memory_left(engine->runner);
    if (!err) err = engine_sizes_fit(sizes, &engine->options, engine->runner, block_bytes, left, e);
    if (err) return err;
    engine->limits.ctx = sizes->ctx;
    const struct sched_limits limits = {.slots = sizes->slots,
                                        .rows = sizes->shard.max_rows,
                                        .outs = sizes->shard.max_out,
                                        .n_blocks = sizes->shard.kv_blocks,
                                        .block_size = sizes->shard.block_size,
                                        .max_blocks = sizes->shard.max_blocks};
    err = new_buffers(engine, e);
    if (!err) err = scheduler_new(&engine->scheduler, &limits, e);
    if (!err && engine->runner->draft_config)
        err = draft_new(&engine->draft, engine->runner, engine->scheduler, &sizes->shard, sizes->slots, e);
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

static void report_loaded(struct engine *engine, const struct error *error) {
    enum engine_state state = error ? ENGINE_FAILED : ENGINE_READY;
    pthread_mutex_lock(&engine->lock);
    engine->state = state;
    if (error) engine->failure = *error;
    pthread_mutex_unlock(&engine->lock);
    if (engine->options.on_state) engine->options.on_state(engine->options.user, state, error);
}

/* Ends what waits for a model that will not come: given up, or failed. */
static void end_unloaded(struct engine *engine, const struct error *error) {
    if (error->kind != ERR_CANCELLED) {
        report_loaded(engine, error);
        end_inbox(engine, error);
        return;
    }
    pthread_mutex_lock(&engine->lock);
    engine->state = ENGINE_STOPPED;
    pthread_mutex_unlock(&engine->lock);
    end_inbox(engine, NULL);
}

void engine_drive(void *arg) {
    struct engine *engine = arg;
    struct error error = {0};
    int err = settle(engine, &error);
    report_settled(engine, err ? &error : NULL);
    if (err) return;
    engine->sizes.shard.abandon = &engine->abandon;
    err = engine->runner->ops->load(engine->runner, &engine->sizes.shard, &error);
    if (err) end_unloaded(engine, &error);
    else {
        report_loaded(engine, NULL);
        serve(engine);
    }
    struct error over;
    error_set(&over, ERR_SHUTTING_DOWN, "tpd is shutting down");
    make_changes(engine, err ? &error : &over);
    if (!err && engine->options.background.stop)
        engine->options.background.stop(engine->options.background.arg,
                                        engine->runner->ops->ranks(engine->runner));
    engine->runner->ops->unload(engine->runner);
}
