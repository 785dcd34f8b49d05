/* serve/output.h: the text of one generation, as it may be shown.
 *
 * Takes the text that each token added (whole UTF-8, perhaps nothing), looks for stop strings, and
 * says what may go out: never a part of a stop string. What was held back goes out when it turns
 * out to be no stop string, at the latest with output_end. On a stop string the text ends before
 * it.
 *
 * A piece holds the tokens whose text ends in it (and tokens without text that came between);
 * tokens of the stop string itself come with the last piece. So the pieces' texts put together are
 * the whole text, and their tokens are all tokens. One thread at a time; it knows nothing of
 * tokenizers. */
#ifndef TPD_SERVE_OUTPUT_H
#define TPD_SERVE_OUTPUT_H

#include "serve/stop.h"

struct output;

/* stops: borrowed until free. */
int output_new(struct output **out, char *const *stops, int n_stops, struct error *e);
void output_free(struct output *o);

/* Text that is shown as it is, before any token: an echoed prompt. */
int output_echo(struct output *o, const char *text, size_t size, struct error *e);
/* The text of the next token. After output_stop() != -1 or output_end nothing may be pushed. */
int output_push(struct output *o, const char *text, size_t size, struct error *e);
/* Text that belongs to the tokens that are there (a cut character that turned out to be whole). */
int output_append(struct output *o, const char *text, size_t size, struct error *e);
/* No more text comes: what was held back may go out. */
void output_end(struct output *o);

/* Index of the stop string that was met, or -1. */
int output_stop(const struct output *o);

struct output_piece {
    const char *text; /* borrowed until the next push */
    size_t size;
    size_t first_token, n_tokens;
};
/* What has become showable since the last piece. False when that is nothing: before output_end a
 * piece has text, after it text or tokens. */
bool output_piece(struct output *o, struct output_piece *piece);

/* The whole text, NUL-terminated, the caller's to free(). Only after output_end or a stop; once. */
char *output_take(struct output *o, size_t *size);

#endif
