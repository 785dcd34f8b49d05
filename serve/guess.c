#include "serve/guess.h"

#include <stdbool.h>
#include <string.h>

enum { CONTEXT = 3, START = 4, PAUSE_MOST = 32 };

/* Of the guess under way, tokens that came true: each took the text one further at the same look. */
static void learn(struct guesser *g, size_t n) {
    if (g->n == 0) return;
    int accepted = n > g->at + 1 ? (int)(n - g->at - 1) : 0;
    if (accepted > g->n) accepted = g->n;
    g->n_guessed += g->n;
    g->n_accepted += accepted;
    if (accepted == g->n) {
        g->length = g->length * 2 < GUESS_MOST ? g->length * 2 : GUESS_MOST;
        g->pause = 0;
    } else if (accepted > 0) {
        g->length = accepted + 1;
        g->pause = 0;
    } else {
        g->length = 1;
        g->pause = g->pause * 2 + 1 < PAUSE_MOST ? g->pause * 2 + 1 : PAUSE_MOST;
        g->rest = g->pause;
    }
    g->n = 0;
}

/* Where the last `context` tokens stood before, the latest place; the index behind them, or 0. */
static size_t find_before(const token_id *tokens, size_t n, size_t context) {
    const token_id *last = tokens + n - context;
    for (size_t i = n - 1; i >= context; i--)
        if (tokens[i - 1] == last[context - 1] &&
            memcmp(tokens + i - context, last, context * sizeof *last) == 0)
            return i;
    return 0;
}

int guess_next(struct guesser *g, const token_id *tokens, size_t n, size_t most, token_id *out) {
    learn(g, n);
    if (g->length == 0) g->length = START;
    if (g->rest > 0) {
        g->rest--;
        return 0;
    }
    if (n <= CONTEXT) return 0;
    size_t from = find_before(tokens, n, CONTEXT), wanted = (size_t)g->length;
    if (from == 0) return 0;
    if (wanted > most) wanted = most;
    /* What it copies may run into what it has written: a text that repeats one token. */
    for (size_t i = 0; i < wanted; i++) out[i] = from + i < n ? tokens[from + i] : out[from + i - n];
    g->at = n;
    g->n = (int)wanted;
    return g->n;
}
