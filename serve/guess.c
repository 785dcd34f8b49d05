#include "serve/guess.h"

#include <string.h>

enum { CONTEXT = 3 };

/* Before anything is known a source counts as one that was right this often of so many. */
#define PRIOR_RATE   0.75
#define PRIOR_WEIGHT 2.0
/* What each round leaves of the weight of those before it: of the sequence, of all. */
#define MEMORY     0.85
#define MEMORY_ALL 0.97
/* What guessing must bring at the least, so that a badly measured step does not decide. */
#define LEAST_GAIN 1.03
/* Of the time of plain tokens, the part that tries may cost; saved up for so many tokens' time. */
#define TRIAL_SHARE 0.01
#define TRIAL_MOST  64.0
/* Tokens in which the draft model's catching up must have paid. */
#define HORIZON 128

/* --- how many ------------------------------------------------------------------------------------ */

/* What so many guesses cost. */
static double cost_of(const struct guesser *g, enum guess_source source, int length) {
    const struct guess_terms *t = &g->terms[source];
    const struct guess_price *price = &g->market->price;
    return t->always ? t->usual * length : price->rows[length] + price->make[source] * length;
}

static double blend(const struct guess_pace *p, double prior) {
    return (p->right + prior * PRIOR_WEIGHT) / (p->judged + PRIOR_WEIGHT);
}

/* Which part of the source's guesses will come true: of this sequence's, at first of all sequences'. */
static double rate_of(const struct guesser *g, enum guess_source source) {
    double prior = PRIOR_RATE;
    if (!g->terms[source].always) prior = blend(&g->market->seen[source], prior);
    return blend(&g->pace[source], prior);
}

/* Tokens for the time of a plain step, when `length` are guessed at a time: the first guess comes true with
 * the source's rate, the second if the first did, and so on, and a step gives one token in any case. */
static double gain_of(const struct guesser *g, enum guess_source source, int length) {
    double rate = rate_of(g, source), tokens = 1, chance = 1;
    for (int i = 0; i < length; i++) tokens += chance *= rate;
    return tokens / (1 + cost_of(g, source, length));
}

/* The number of guesses that brings most. 0: none of them pays. */
static int best_length(const struct guesser *g, enum guess_source source) {
    int best = 0;
    double gain = g->terms[source].always ? 1 : LEAST_GAIN;
    for (int length = 1; length <= GUESS_MOST; length++) {
        double now = gain_of(g, source, length);
        if (now <= gain) continue;
        best = length;
        gain = now;
    }
    return best;
}

/* An offer of a source: so many guesses, that bring so much. */
struct offer {
    enum guess_source source;
    int length;
    double gain;
    double trial; /* what must be allowed for it, in plain steps of a sequence; 0: it pays */
};

static double catching_up(const struct guesser *g, enum guess_source source, size_t lacks) {
    if (source != GUESS_DRAFT) return 0;
    return g->market->price.catch_up * (double)lacks * g->market->price.n_sequences;
}

/* One guess, to see whether it has become better. */
static struct offer try_one(const struct guesser *g, enum guess_source source, size_t lacks) {
    const struct guess_price *price = &g->market->price;
    struct offer o = {.source = source};
    double cost = price->rows[1] + price->make[source] * price->n_sequences + catching_up(g, source, lacks);
    if (cost > g->market->allowance) return o;
    o.length = 1;
    o.trial = cost;
    return o;
}

/* What the source offers for the token at n, with `most` and its reach in mind. */
static struct offer ask(const struct guesser *g, enum guess_source source, size_t n, size_t most,
                        size_t lacks) {
    const struct guess_terms *t = &g->terms[source];
    struct offer o = {.source = source};
    size_t room = t->reach > n ? t->reach - n : 0;
    if (!t->allowed || (!t->always && !g->market->priced)) return o;
    if (most < room) room = most;
    if (room == 0) return o;
    o.length = best_length(g, source);
    if (o.length == 0 && t->always) o.length = 1;
    if (o.length > 0 && !t->always) {
        double saved = 1 - 1 / gain_of(g, source, o.length);
        size_t ahead = most < HORIZON ? most : HORIZON;
        if (catching_up(g, source, lacks) > saved * (double)ahead) o.length = 0;
    }
    if (o.length == 0) o = try_one(g, source, lacks);
    if (o.length > (int)room) o.length = (int)room;
    if (o.length > 0) o.gain = gain_of(g, source, o.length);
    return o;
}

bool guess_goes_by_price(const struct guesser *g) {
    for (int i = 0; i < GUESS_SOURCES; i++)
        if (g->terms[i].allowed && !g->terms[i].always) return true;
    return false;
}

bool guess_will_ask(const struct guesser *g) {
    const struct guess_terms *t = &g->terms[GUESS_DRAFT];
    return t->allowed && (t->always || (g->market->priced && best_length(g, GUESS_DRAFT) > 0));
}

/* --- what became of them -------------------------------------------------------------------------- */

static void remember(struct guess_pace *p, double memory, int accepted, bool all) {
    p->judged = p->judged * memory + accepted + !all;
    p->right = p->right * memory + accepted;
}

static void learn(struct guesser *g, int accepted) {
    bool all = accepted == g->n;
    remember(&g->pace[g->source], MEMORY, accepted, all);
    if (!g->terms[g->source].always) remember(&g->market->seen[g->source], MEMORY_ALL, accepted, all);
    g->n = 0;
}

/* --- from the text itself ------------------------------------------------------------------------ */

/* Where the last CONTEXT tokens stood before, the latest place; the index behind them, or 0. */
static size_t find_before(const token_id *tokens, size_t n) {
    if (n <= CONTEXT) return 0;
    const token_id *last = tokens + n - CONTEXT;
    for (size_t i = n - 1; i >= CONTEXT; i--)
        if (tokens[i - 1] == last[CONTEXT - 1] &&
            memcmp(tokens + i - CONTEXT, last, CONTEXT * sizeof *last) == 0)
            return i;
    return 0;
}

/* What is copied may run into what it has written: a text that repeats one token. */
static void copy_from(struct guesser *g, const token_id *tokens, size_t from, int n) {
    for (int i = 0; i < n; i++) {
        size_t at = from + (size_t)i;
        g->ids[i] = at < g->at ? tokens[at] : g->ids[at - g->at];
    }
    g->n = n;
    g->n_guessed += n;
}

/* --- rounds -------------------------------------------------------------------------------------- */

static void earn_trials(struct guess_market *m) {
    m->allowance += TRIAL_SHARE;
    if (m->allowance > TRIAL_MOST) m->allowance = TRIAL_MOST;
}

void guess_look(struct guesser *g, const token_id *tokens, size_t n, size_t most, size_t lacks) {
    if (g->n > 0 || g->looked == n) return;
    g->looked = n;
    earn_trials(g->market);
    struct offer copied = ask(g, GUESS_NGRAM, n, most, 0), drafted = ask(g, GUESS_DRAFT, n, most, lacks);
    size_t from = copied.length ? find_before(tokens, n) : 0;
    const struct offer *taken = from && copied.gain >= drafted.gain ? &copied : &drafted;
    if (taken->length == 0) return;
    g->market->allowance -= taken->trial;
    if (taken->source == GUESS_DRAFT) {
        g->wanted = taken->length;
        return;
    }
    g->source = GUESS_NGRAM;
    g->at = n;
    copy_from(g, tokens, from, taken->length);
}

void guess_begin(struct guesser *g, const token_id *ids, int n) {
    g->wanted = 0;
    g->source = GUESS_DRAFT;
    g->at = g->looked;
    g->n = n;
    g->n_guessed += n;
    memcpy(g->ids, ids, (size_t)n * sizeof *ids);
}

int guess_of(const struct guesser *g, size_t n) {
    return n >= g->at && n - g->at < (size_t)g->n ? (int)(n - g->at) : -1;
}

void guess_decided(struct guesser *g, size_t n, token_id id) {
    int i = guess_of(g, n);
    if (i < 0) return;
    bool right = g->ids[i] == id;
    g->n_accepted += right;
    if (!right) learn(g, i);
    else if (i + 1 == g->n) {
        /* Where all rows were computed at once the last of them has decided the next token too; so that one
         * is never guessed. */
        g->looked = n + 1;
        learn(g, g->n);
    }
}
