/* serve/guess.h: guessing ahead: which tokens a sequence may generate next, so that one step can compute
 * the rows of several.
 *
 * Guesses come in rounds from one of two sources: the text itself (where its last tokens stood before, what
 * followed them then may follow now), or a draft model (serve/draft.h). A round stays open until a token was
 * decided that it did not have or all its guesses have come true, however many steps that takes. How many
 * tokens are guessed, and from which source, follows from what became of the sequence's own guesses alone:
 * never from what else runs, for with a draft model the tokens that are drawn depend on what was guessed.
 *
 * Driver only; private to serve/. */
#ifndef TPD_SERVE_GUESS_H
#define TPD_SERVE_GUESS_H

#include "text/tokenizer.h"

#include <stdbool.h>

enum { GUESS_MOST = 8 };
enum guess_source { GUESS_NGRAM, GUESS_DRAFT, GUESS_SOURCES };

/* What a source may be asked for, and what a guess of it costs, in plain steps of one row: making it, and
 * computing one row more. */
struct guess_terms {
    bool allowed;
    double cost;
    size_t reach; /* no guess stands at this index of the text or behind it */
};

/* What became of a source's guesses: starts as zeros. */
struct guess_pace {
    double judged, right; /* guesses that were decided upon, those of long ago counting little */
    int rest, pause;      /* looks to pass over, and how many were the last time */
};

struct guesser { /* starts as zeros, but for terms */
    struct guess_terms terms[GUESS_SOURCES];
    struct guess_pace pace[GUESS_SOURCES];
    int64_t n_guessed, n_accepted;
    size_t looked; /* the text's length at the last look */
    int wanted;    /* tokens that a draft model shall guess there, and has not yet */
    /* the open round: guesses for tokens at … at + n - 1; n = 0: none is open */
    enum guess_source source;
    size_t at;
    int n;
    token_id ids[GUESS_MOST];
};

/* Before the token behind tokens [n] is decided: looks for guesses once, at most `most` of them. Afterwards
 * a round is open, or `wanted` are awaited from the draft model, or neither. */
void guess_look(struct guesser *g, const token_id *tokens, size_t n, size_t most);
/* The draft model's answer to `wanted`: may be shorter, or nothing. */
void guess_begin(struct guesser *g, const token_id *ids, int n);
/* The open round's guess for the token at index n: its place in the round, or -1. */
int guess_of(const struct guesser *g, size_t n);
/* The token at index n was decided. */
void guess_decided(struct guesser *g, size_t n, token_id id);

/* For tests: how many guesses are worth their cost when a part `rate` of them comes true. */
int guess_best_length(double rate, double cost);

#endif
