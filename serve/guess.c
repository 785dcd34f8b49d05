#include "serve/guess.h"

#include <string.h>

enum { CONTEXT = 3, PAUSE_MOST = 32 };

/* Before anything is known a source counts as one that was right this often of so many. */
#define PRIOR_RATE   0.75
#define PRIOR_WEIGHT 2.0
/* What each round leaves of the weight of those before it. */
#define MEMORY 0.85

/* --- how many ------------------------------------------------------------------------------------ */

/* Tokens for the time of a plain step, when `length` are guessed at a time: the first guess comes true with
 * `rate`, the second if the first did, and so on, and a step gives one token in any case. */
static double gain_of(double rate, double cost, int length) {
    double tokens = 1, chance = 1;
    for (int i = 0; i < length; i++) tokens += chance *= rate;
    return tokens / (1 + cost * length);
}

int guess_best_length(double rate, double cost) {
    int best = 0;
    for (int length = 1; length <= GUESS_MOST; length++)
        if (gain_of(rate, cost, length) > gain_of(rate, cost, best)) best = length;
    return best;
}

static double rate_of(const struct guess_pace *p) {
    return (p->right + PRIOR_RATE * PRIOR_WEIGHT) / (p->judged + PRIOR_WEIGHT);
}

/* How many the source may guess now; where it was not worth it, one again from time to time. */
static int length_now(struct guess_pace *p, double cost) {
    if (p->rest > 0) {
        p->rest--;
        return 0;
    }
    int length = guess_best_length(rate_of(p), cost);
    return length > 0 ? length : 1;
}

static void learn(struct guesser *g, int accepted) {
    struct guess_pace *p = &g->pace[g->source];
    bool all = accepted == g->n;
    p->judged = p->judged * MEMORY + accepted + !all;
    p->right = p->right * MEMORY + accepted;
    if (guess_best_length(rate_of(p), g->terms[g->source].cost) > 0) {
        p->pause = 0;
    } else {
        p->pause = p->pause * 2 + 1 < PAUSE_MOST ? p->pause * 2 + 1 : PAUSE_MOST;
        p->rest = p->pause;
    }
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

/* How many of the source, with `most` and its reach in mind. */
static int ask(struct guesser *g, enum guess_source source, size_t n, size_t most) {
    const struct guess_terms *t = &g->terms[source];
    if (!t->allowed) return 0;
    size_t length = (size_t)length_now(&g->pace[source], t->cost);
    if (length > most) length = most;
    size_t room = t->reach > n ? t->reach - n : 0;
    return (int)(length < room ? length : room);
}

static double promise(const struct guesser *g, enum guess_source source, int length) {
    return length ? gain_of(rate_of(&g->pace[source]), g->terms[source].cost, length) : 0;
}

void guess_look(struct guesser *g, const token_id *tokens, size_t n, size_t most) {
    if (g->n > 0 || g->looked == n) return;
    g->looked = n;
    size_t from = g->terms[GUESS_NGRAM].allowed ? find_before(tokens, n) : 0;
    int copied = from ? ask(g, GUESS_NGRAM, n, most) : 0;
    int drafted = ask(g, GUESS_DRAFT, n, most);
    if (promise(g, GUESS_DRAFT, drafted) > promise(g, GUESS_NGRAM, copied)) {
        g->wanted = drafted;
    } else if (copied) {
        g->source = GUESS_NGRAM;
        g->at = n;
        copy_from(g, tokens, from, copied);
    }
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
