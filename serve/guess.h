/* serve/guess.h: guessing ahead: which tokens a sequence may generate next, so that one step can compute
 * the rows of several.
 *
 * Guesses come in rounds from one of two sources: the text itself (where its last tokens stood before, what
 * followed them then may follow now), or a draft model (serve/draft.h). A round stays open until a token was
 * decided that it did not have or all its guesses have come true, however many steps that takes.
 *
 * Which token is chosen never depends on what was guessed, nor on whether. So how many are guessed is a matter
 * of time alone: a source that is asked for guesses always; one that is left to choose guesses what pays by
 * what steps cost here and now (struct guess_market), and where nothing pays it costs next to nothing.
 *
 * Driver only; private to serve/. */
#ifndef TPD_SERVE_GUESS_H
#define TPD_SERVE_GUESS_H

#include "text/tokenizer.h"

#include <stdbool.h>

enum { GUESS_MOST = 8 };
enum guess_source { GUESS_NGRAM, GUESS_DRAFT, GUESS_SOURCES };

/* What guessing costs, in plain steps of all that generate now. */
struct guess_price {
    double rows[GUESS_MOST + 1]; /* computing so many rows more of each; [0] is 0 */
    double make[GUESS_SOURCES];  /* making a guess of each */
    double catch_up;             /* the draft model's reading of a token that it lacks, of one sequence */
    int32_t n_sequences;         /* that generate */
};

/* What became of guesses: starts as zeros. */
struct guess_pace {
    double judged, right; /* guesses that were decided upon, those of long ago counting little */
};

/* What all sequences of an engine share: starts as zeros. */
struct guess_market {
    bool priced; /* price is measured: who may choose may guess */
    struct guess_price price;
    struct guess_pace seen[GUESS_SOURCES]; /* of the sequences that may choose */
    double allowance; /* plain steps of a sequence that guesses which do not pay may still cost */
};

/* What a source may be asked for. */
struct guess_terms {
    bool allowed;
    bool always;  /* one guess at the least, whatever it costs; how many more is settled by usual costs */
    double usual; /* what a guess costs in plain steps, computing its row included */
    size_t reach; /* no guess stands at this index of the text or behind it */
};

struct guesser { /* starts as zeros, but for market and terms */
    struct guess_market *market; /* borrowed */
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
 * a round is open, or `wanted` are awaited from the draft model, or neither. lacks: tokens that a draft model
 * has not read yet. */
void guess_look(struct guesser *g, const token_id *tokens, size_t n, size_t most, size_t lacks);
/* The draft model's answer to `wanted`: may be shorter, or nothing. */
void guess_begin(struct guesser *g, const token_id *ids, int n);
/* The open round's guess for the token at index n: its place in the round, or -1. */
int guess_of(const struct guesser *g, size_t n);
/* The token at index n was decided. */
void guess_decided(struct guesser *g, size_t n, token_id id);
/* Whether it looks at the market's prices: some source is left to choose. */
bool guess_goes_by_price(const struct guesser *g);
/* Whether the draft model shall read along from the start, because the sequence will ask it. */
bool guess_will_ask(const struct guesser *g);

#endif
