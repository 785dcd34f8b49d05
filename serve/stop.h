/* serve/stop.h: finds stop strings in a text that comes in pieces.
 *
 * It works byte by byte, so that the outcome does not depend on how the text was cut into pieces.
 * The first stop string to be complete wins; of those complete at the same byte, the longest, so
 * that no part of another is left before it. Constant time a byte (Knuth-Morris-Pratt, one
 * automaton a string). One thread at a time. */
#ifndef TPD_SERVE_STOP_H
#define TPD_SERVE_STOP_H

#include "base/error.h"

struct stop_matcher;

/* stops: n strings, not empty, borrowed until free. */
int stop_matcher_new(struct stop_matcher **out, char *const *stops, int n, struct error *e);
void stop_matcher_free(struct stop_matcher *m);

/* Reads bytes of the text until a stop string is complete: then returns true with its index in
 * *which and in *used how many bytes of this piece were read, its last byte included. Else false,
 * and all were read. Not to be called after it returned true. */
bool stop_matcher_push(struct stop_matcher *m, const char *text, size_t size, int *which,
                       size_t *used);

/* How many bytes at the end of the text so far may still become part of a stop string. */
size_t stop_matcher_held(const struct stop_matcher *m);

#endif
