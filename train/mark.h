/* train/mark.h: a text of which a part is learnt becomes marked tokens (train/example.h). Any thread. */
#ifndef TPD_TRAIN_MARK_H
#define TPD_TRAIN_MARK_H

#include "train/chat.h"

/* Appends the tokens of r->text, with what the tokenizer puts around a text when `special`; learnt are
 * those of r->learnt, or all when `all`.
 *
 * What stands before a learnt span is a prompt, and has the tokens that it has when it is served: no
 * token goes over the border. Where the tokens of the whole text have no such border, prompt and answer
 * become tokens each by itself. */
int mark_encode(const struct tokenizer *t, const struct rendered *r, bool special, bool all,
                struct token_ids *out, struct error *e);

/* How many of a's tokens from `from` on, marked or not, are those that b begins with. */
size_t mark_common(const struct token_ids *a, const struct token_ids *b, size_t from);

#endif
