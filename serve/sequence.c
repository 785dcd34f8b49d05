#include "serve/sequence.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- making ---------------------------------------------------------------------------------- */

static size_t wanted_tokens(const struct gen_request *request, int32_t ctx) {
    if (request->score || request->embed) return 0;
    size_t room = (size_t)ctx - request->n_prompt;
    int64_t wanted = request->sampling.max_tokens;
    return wanted >= 0 && (uint64_t)wanted < room ? (size_t)wanted : room;
}

static size_t first_scored(const struct gen_request *request) {
    if (request->score) return request->score_from;
    const struct sampling *sampling = &request->sampling;
    bool tells_prompt = sampling->echo && sampling->logprobs >= 0 && !request->prompt_untold;
    return tells_prompt ? 0 : request->n_prompt;
}

int sequence_new(struct sequence **out, struct gen_request *request,
                 const struct sequence_limits *limits, struct error *e) {
    struct sequence *s = calloc(1, sizeof *s);
    struct gen_event *end = calloc(1, sizeof *end);
    if (!s || !end || !(end->text = calloc(1, 1))) {
        free(s);
        gen_event_free(end);
        return error_set(e, ERR_MEMORY, "no memory for another request");
    }
    s->request = request;
    s->limits = limits;
    s->end = end;
    end->stop_token = -1;
    s->max_tokens = wanted_tokens(request, limits->ctx);
    s->score_from = first_scored(request);
    /* The logits after the last prompt token are of use only when a token follows. */
    int32_t n_prompt = (int32_t)request->n_prompt;
    s->entry.tokens = request->prompt;
    s->entry.n_known = s->max_tokens ? n_prompt : n_prompt - 1;
    s->entry.n_positions = s->entry.n_known + (int32_t)s->max_tokens;
    s->entry.out_from = s->score_from > 0 ? (int32_t)s->score_from - 1 : 0;
    if (request->embed) { /* every row's state is wanted, the last one's too */
        s->entry.n_known = s->entry.n_positions = n_prompt;
        s->entry.out_from = request->embed_last ? n_prompt - 1 : 0;
    }
    s->entry.group = request->group;
    *out = s;
    return 0;
}

static void sequence_free(struct sequence *s) {
    free(s->tokens);
    free(s->reports);
    free(s->prompt_reports);
    free(s->state_sum);
    sampler_free(s->sampler);
    token_stream_free(s->stream);
    output_free(s->output);
    free(s);
}

void sequence_drop(struct sequence *s) {
    gen_event_free(s->end);
    sequence_free(s);
}

bool sequence_needs_steps(const struct sequence *s) {
    return s->max_tokens > 0 || s->request->embed || (s->entry.n_known > 0 && s->score_from < s->request->n_prompt);
}

uint64_t sequence_root(const struct sequence *s, uint64_t epoch) {
    /* Exact, so that no two roots that differ are taken for one: 24 bits, 8 bits, 31 bits. */
    uint64_t len = s->request->n_prompt;
    if (!s->limits->fixed_len || len <= (uint64_t)s->limits->fixed_len) len = 0;
    return KV_ROOT | (epoch & 0xFFFFFF) << 39 | (uint64_t)(uint8_t)(s->request->adapter + 1) << 31 |
           len;
}

/* --- events ---------------------------------------------------------------------------------- */

static int send_piece(struct sequence *s, struct error *e) {
    struct output_piece piece;
    if (!s->request->stream || !output_piece(s->output, &piece)) return 0;
    struct gen_event *event = calloc(1, sizeof *event);
    bool ok = event && (event->text = malloc(piece.size + 1));
    if (ok && piece.n_tokens) ok = (event->tokens = malloc(piece.n_tokens * sizeof *event->tokens));
    if (!ok) {
        gen_event_free(event);
        return error_set(e, ERR_MEMORY, "no memory for a piece of %zu bytes", piece.size);
    }
    event->kind = GEN_PIECE;
    memcpy(event->text, piece.text, piece.size);
    event->text[piece.size] = '\0';
    event->text_size = piece.size;
    event->n_tokens = piece.n_tokens;
    if (piece.n_tokens)
        memcpy(event->tokens, s->reports + piece.first_token,
               piece.n_tokens * sizeof *event->tokens);
    event->stop_token = -1;
    s->request->on_event(s->request, event);
    return 0;
}

/* --- starting -------------------------------------------------------------------------------- */

static int echo_prompt(struct sequence *s, struct error *e) {
    const struct tokenizer *t = s->limits->tokenizer;
    const token_id *ids = s->request->prompt;
    size_t n = s->request->n_prompt, size;
    char *text;
    size_t skip = ids[0] == tokenizer_bos(t);
    int err = tokenizer_decode(t, ids + skip, n - skip, false, &text, &size, e);
    if (err) return err;
    err = output_echo(s->output, text, size, e);
    free(text);
    return err ? err : send_piece(s, e);
}

/* A generation after nothing but special tokens is the beginning of a text. */
static bool continues_text(const struct sequence *s) {
    for (size_t i = 0; i < s->request->n_prompt; i++)
        if (!tokenizer_is_special(s->limits->tokenizer, s->request->prompt[i])) return true;
    return false;
}

static int take_prompt(struct sequence *s, struct error *e) {
    const struct gen_request *r = s->request;
    size_t n_scored = r->n_prompt - s->score_from;
    s->token_capacity = r->n_prompt + 64;
    s->tokens = malloc(s->token_capacity * sizeof *s->tokens);
    if (n_scored) s->prompt_reports = calloc(n_scored, sizeof *s->prompt_reports);
    if (!s->tokens || (n_scored && !s->prompt_reports))
        return error_set(e, ERR_MEMORY, "no memory for a prompt of %zu tokens", r->n_prompt);
    memcpy(s->tokens, r->prompt, r->n_prompt * sizeof *s->tokens);
    s->n_tokens = r->n_prompt;
    s->entry.tokens = s->tokens;
    /* Nothing comes before the first token that could have predicted it. */
    if (s->score_from == 0) s->prompt_reports[s->n_prompt_reports++].id = r->prompt[0];
    return 0;
}

static int start_sampler(struct sequence *s, struct error *e) {
    const struct sequence_limits *limits = s->limits;
    const struct sampling *sampling = &s->request->sampling;
    struct grammar_run *run;
    int err = sampler_new(&s->sampler, sampling, limits->vocab, e);
    if (err || !sampling->grammar) return err;
    err = grammar_run_new(&run, sampling->grammar, limits->grammar_vocab, limits->vocab, e);
    return err ? err : sampler_constrain(s->sampler, run, limits->eos, limits->n_eos, e);
}

/* Who may guess, and who must. */
static void start_guesser(struct sequence *s) {
    struct guess_terms *terms = s->guesser.terms;
    memcpy(terms, s->limits->guess, sizeof s->guesser.terms);
    s->guesser.market = s->limits->market;
    enum speculative how = s->request->sampling.speculative;
    terms[GUESS_NGRAM].always = how == SPECULATIVE_NGRAM;
    terms[GUESS_DRAFT].always = how == SPECULATIVE_DRAFT;
    bool draft = terms[GUESS_DRAFT].allowed, unsaid = how == SPECULATIVE_UNSAID;
    if (how == SPECULATIVE_OFF || how == SPECULATIVE_DRAFT || (unsaid && !draft))
        terms[GUESS_NGRAM].allowed = false;
    if (how == SPECULATIVE_OFF || how == SPECULATIVE_NGRAM) terms[GUESS_DRAFT].allowed = false;
}

int sequence_start(struct sequence *s, struct error *e) {
    const struct sampling *sampling = &s->request->sampling;
    s->started = true;
    s->started_ns = clock_ns();
    int err = take_prompt(s, e);
    if (!err) err = output_new(&s->output, sampling->stop, sampling->n_stop, e);
    if (!err && s->max_tokens) err = start_sampler(s, e);
    start_guesser(s);
    /* Under a grammar the text is what its tokens spell, a leading space included. */
    if (!err && s->max_tokens)
        err = token_stream_new(&s->stream, s->limits->tokenizer, true,
                               sampling->grammar || continues_text(s), e);
    if (!err && sampling->echo) err = echo_prompt(s, e);
    s->finish = FINISH_LENGTH;
    if (!err && s->request->embed &&
        !(s->state_sum = calloc((size_t)s->limits->hidden, sizeof *s->state_sum)))
        err = error_set(e, ERR_MEMORY, "no memory for an embedding");
    s->over = !s->max_tokens && !s->request->embed && s->score_from + s->n_prompt_reports == s->request->n_prompt;
    return err;
}

/* --- rows of logits -------------------------------------------------------------------------- */

static int score_token(struct sequence *s, token_id id, const float *logits, struct error *e) {
    int n_top = s->request->sampling.logprobs > 0 ? s->request->sampling.logprobs : 0;
    int err = logprob_report(logits, s->limits->vocab, id, n_top,
                             &s->prompt_reports[s->n_prompt_reports], e);
    if (err) return err;
    s->n_prompt_reports++;
    s->over = !s->max_tokens && s->score_from + s->n_prompt_reports == s->request->n_prompt;
    return 0;
}

static int grow(void **array, size_t n, size_t *capacity, size_t element, struct error *e) {
    if (n < *capacity) return 0;
    size_t wanted = *capacity ? *capacity * 2 : 64;
    void *grown = realloc(*array, wanted * element);
    if (!grown) return error_set(e, ERR_MEMORY, "no memory for %zu tokens", wanted);
    *array = grown;
    *capacity = wanted;
    return 0;
}

static bool has_id(const token_id *ids, size_t n, token_id id) {
    for (size_t i = 0; i < n; i++)
        if (ids[i] == id) return true;
    return false;
}

/* The text that a token adds; ids that the tokenizer does not know and end tokens add none. */
static int token_text(struct sequence *s, token_id id, bool is_eos, const char **text, size_t *size,
                      struct error *e) {
    size_t piece_size;
    *text = "";
    *size = 0;
    if (is_eos || !tokenizer_piece(s->limits->tokenizer, id, &piece_size)) return 0;
    return token_stream_push(s->stream, id, text, size, e);
}

bool sequence_ends_at(const struct sequence *s, token_id id) {
    const struct sampling *sampling = &s->request->sampling;
    return (!sampling->ignore_eos && has_id(s->limits->eos, s->limits->n_eos, id)) ||
           has_id(sampling->stop_token_ids, sampling->n_stop_token_ids, id);
}

/* Puts the chosen token, the last of reports, where it belongs. */
static int take_token(struct sequence *s, struct error *e) {
    token_id id = s->reports[s->n_reports - 1].id;
    bool is_eos = has_id(s->limits->eos, s->limits->n_eos, id);
    bool stops = sequence_ends_at(s, id);
    const char *text = "";
    size_t size = 0;
    int err = stops ? 0 : token_text(s, id, is_eos, &text, &size, e);
    if (!err) err = output_push(s->output, text, size, e);
    if (err) return err;
    if (stops) s->end->stop_token = id;
    /* A text to which nothing can be added needs no token that ends it. */
    bool whole = !stops && sampler_must_end(s->sampler, s->tokens, s->n_tokens, s->n_reports);
    if (stops || whole || output_stop(s->output) >= 0) {
        s->finish = FINISH_STOP;
        s->over = true;
    } else if (s->n_reports == s->max_tokens) {
        s->finish = FINISH_LENGTH;
        s->over = true;
    }
    /* The last piece is sequence_end's. */
    return s->over ? 0 : send_piece(s, e);
}

static bool is_few(const struct outcome *row) {
    return row->few && row->few->n > 0;
}

static int choose_token(struct sequence *s, const struct outcome *row, struct error *e) {
    int err = grow((void **)&s->tokens, s->n_tokens, &s->token_capacity, sizeof *s->tokens, e);
    s->entry.tokens = s->tokens;
    if (!err)
        err = grow((void **)&s->reports, s->n_reports, &s->report_capacity, sizeof *s->reports, e);
    if (err) return err;
    struct token_report *report = &s->reports[s->n_reports];
    if (is_few(row)) err = sampler_pick_few(s->sampler, row->few, s->tokens, s->n_tokens, s->n_reports, report);
    else err = sampler_pick(s->sampler, row->values, s->tokens, s->n_tokens, s->n_reports, report, e);
    if (err) return err;
    if (s->n_reports == 0) s->first_token_ns = clock_ns();
    guess_decided(&s->guesser, s->n_tokens, report->id);
    s->tokens[s->n_tokens++] = report->id;
    s->n_reports++;
    return take_token(s, e);
}

/* The sum of the prompt's states, and after the last its direction. */
static int take_state(struct sequence *s, const float *state, struct error *e) {
    size_t n = (size_t)s->limits->hidden;
    double square = 0;
    for (size_t i = 0; i < n; i++) s->state_sum[i] += state[i];
    s->entry.out_from++;
    s->over = (size_t)s->entry.out_from == s->request->n_prompt;
    if (!s->over) return 0;
    float *embedding = s->end->embedding = malloc(n * sizeof *embedding);
    if (!embedding) return error_set(e, ERR_MEMORY, "no memory for an embedding");
    s->end->n_embedding = n;
    for (size_t i = 0; i < n; i++) square += s->state_sum[i] * s->state_sum[i];
    double scale = square > 0 ? 1 / sqrt(square) : 0;
    for (size_t i = 0; i < n; i++) embedding[i] = (float)(s->state_sum[i] * scale);
    return 0;
}

/* The open guesses stand behind the known tokens, where there is room. */
static void offer_guesses(struct sequence *s) {
    const struct guesser *g = &s->guesser;
    int first = guess_of(g, s->n_tokens);
    size_t n = first < 0 ? 0 : (size_t)(g->n - first), room = s->token_capacity - s->n_tokens;
    if (n > room) n = room;
    if (n) memcpy(s->tokens + s->n_tokens, g->ids + first, n * sizeof *s->tokens);
    s->entry.n_guessed = (int32_t)n;
}

void sequence_guess(struct sequence *s, size_t lacks) {
    s->entry.n_guessed = 0;
    if (!s->started || s->over || !s->n_reports) return;
    size_t left = s->max_tokens - s->n_reports; /* the row before a guess gives a token as well */
    guess_look(&s->guesser, s->tokens, s->n_tokens, left - 1, lacks);
    s->entry.waits = s->guesser.wanted > 0;
    offer_guesses(s);
}

void sequence_wish(const struct sequence *s, int32_t position, struct logits_wish *out) {
    if (s->request->embed) *out = (struct logits_wish){.whole = false};
    else if ((size_t)position + 1 < s->request->n_prompt) *out = (struct logits_wish){.whole = true};
    else sampler_wish(s->sampler, (uint64_t)position + 1 - s->request->n_prompt, out);
}

int sequence_propose(struct sequence *s, int number, const struct outcome *row, struct error *e) {
    size_t n_open = (size_t)number, n = s->n_tokens + n_open;
    int err = grow((void **)&s->tokens, n, &s->token_capacity, sizeof *s->tokens, e);
    s->entry.tokens = s->tokens;
    if (err) return err;
    if (number > 0) s->tokens[n - 1] = s->proposals[number - 1];
    uint64_t position = s->n_reports + n_open;
    if (is_few(row))
        return sampler_propose_few(s->sampler, row->few, s->tokens, n, n_open, position, &s->proposals[number]);
    return sampler_propose(s->sampler, row->values, row->n, s->tokens, n, n_open, position, &s->proposals[number], e);
}

void sequence_guessed(struct sequence *s, int n) {
    guess_begin(&s->guesser, s->proposals, n);
    s->entry.waits = false;
    offer_guesses(s);
}

int sequence_take_row(struct sequence *s, const struct outcome *row, struct error *e) {
    if (s->request->embed) return take_state(s, row->values, e);
    size_t next = (size_t)s->entry.out_from + 1;
    int err = next < s->request->n_prompt ? score_token(s, s->request->prompt[next], row->values, e)
                                          : choose_token(s, row, e);
    if (err == SAMPLER_UNDECIDED) return err;
    s->entry.out_from++;
    if (next >= s->request->n_prompt) s->entry.n_known++;
    return err;
}

/* --- the end --------------------------------------------------------------------------------- */

static struct gen_timings timings_of(const struct sequence *s, int64_t now) {
    int64_t started = s->started ? s->started_ns : now;
    int64_t first = s->first_token_ns ? s->first_token_ns : now;
    struct gen_timings t = {.queue_ms = (double)(started - s->request->submitted_ns) / 1e6,
                            .prefill_ms = (double)(first - started) / 1e6,
                            .decode_ms = (double)(now - first) / 1e6};
    t.n_guessed = s->guesser.n_guessed;
    t.n_accepted = s->guesser.n_accepted;
    if (s->n_reports > 1 && now > first)
        t.tokens_per_s = (double)(s->n_reports - 1) * 1e9 / (double)(now - first);
    return t;
}

/* A character that was cut by the end, and what was held back. A stop string may still be met. */
static void finish_text(struct sequence *s) {
    const char *text;
    size_t size;
    if (s->stream && output_stop(s->output) < 0 &&
        token_stream_end(s->stream, &text, &size, NULL) == 0 &&
        output_append(s->output, text, size, NULL) == 0 && output_stop(s->output) >= 0)
        s->finish = FINISH_STOP;
    output_end(s->output);
    send_piece(s, NULL);
    free(s->end->text);
    s->end->text = output_take(s->output, &s->end->text_size);
    int stop = output_stop(s->output);
    if (stop >= 0) s->end->stop = strdup(s->request->sampling.stop[stop]);
}

void sequence_end(struct sequence *s, enum finish_reason finish, const struct error *error) {
    struct gen_request *request = s->request;
    struct gen_event *end = s->end;
    if (s->output) finish_text(s);
    end->kind = GEN_END;
    end->finish = error ? FINISH_ERROR : s->over ? s->finish : finish;
    end->tokens = s->reports;
    end->n_tokens = s->n_reports;
    end->prompt_tokens = s->prompt_reports;
    end->n_prompt_tokens = s->n_prompt_reports;
    end->n_prompt = (int64_t)request->n_prompt;
    end->n_cached = s->entry.n_cached;
    end->n_completion = (int64_t)s->n_reports;
    end->timings = timings_of(s, clock_ns());
    if (error) end->error = *error;
    s->reports = NULL;
    s->prompt_reports = NULL;
    sequence_free(s);
    request->sequence = NULL;
    /* From here on the request belongs to its maker. */
    request->on_event(request, end);
}
