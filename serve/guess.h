/* serve/guess.h: what a text may go on with, from the text itself (prompt lookup): where its last
 * tokens stood before, what followed them then may follow now.
 *
 * A guess only decides what is computed together: each token is still chosen from its own logits, so
 * the text is the same with guesses and without. How many are guessed follows what came true. Driver
 * only; private to serve/. */
#ifndef TPD_SERVE_GUESS_H
#define TPD_SERVE_GUESS_H

#include "text/tokenizer.h"

enum { GUESS_MOST = 8 };

struct guesser { /* starts as {0} */
    int length;      /* of the next guess; 0: not yet chosen */
    int rest, pause; /* looks that are passed over, and how many after the next failure */
    int64_t n_guessed, n_accepted;
    /* the guess under way */
    size_t at; /* the text's length when it was made */
    int n;
};

/* Looks how the last guess fared, and writes the next one behind it: at most `most` tokens to out. Returns
 * how many. tokens [n]: the text so far. */
int guess_next(struct guesser *g, const token_id *tokens, size_t n, size_t most, token_id *out);

#endif
