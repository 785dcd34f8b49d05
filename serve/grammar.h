/* serve/grammar.h: text that is held to a grammar.
 *
 * A grammar is compiled from the notation that llama.cpp calls GBNF, or from a JSON schema, to a
 * small program over bytes with calls and returns. While a text grows, the grammar says which tokens
 * of the vocabulary may follow (a mask) and whether the text may end. docs/structured.md has the
 * notation, the keywords of schemas and the choices made.
 *
 * Compiling may happen on any thread and takes time and memory bounded by the limits below, whatever
 * the input. A compiled grammar is counted (share, release: any thread). What it remembers while
 * masks are made belongs to the thread of the runs: all runs of a grammar are used by one thread at a
 * time, which in tpd is rank 0. */
#ifndef TPD_SERVE_GRAMMAR_H
#define TPD_SERVE_GRAMMAR_H

#include "text/tokenizer.h"

#include <jansson.h>

enum {
    GRAMMAR_MAX_TEXT = 64 << 10, /* bytes of a GBNF text */
    GRAMMAR_MAX_NESTING = 64,     /* groups within groups */
    GRAMMAR_MAX_COUNT = 1 << 20   /* of a repetition */
};

struct grammar;

/* ERR_PARAMS: the message names line and column, which are notes too. */
int grammar_from_gbnf(struct grammar **out, const char *text, size_t size, struct error *e);
/* ERR_PARAMS: the message names the place by its JSON pointer, which is a note too ("pointer"). */
int grammar_from_schema(struct grammar **out, const json_t *schema, struct error *e);
/* Any JSON object. */
int grammar_any_object(struct grammar **out, struct error *e);

struct grammar *grammar_share(struct grammar *g);
void grammar_release(struct grammar *g); /* NULL is taken */

/* The bytes of a vocabulary, in an order that masks are made from. Cheap to make: the work is done
 * at its first use, on the thread of the runs. tokenizer is borrowed. */
struct grammar_vocab;
int grammar_vocab_new(struct grammar_vocab **out, const struct tokenizer *tokenizer,
                      struct error *e);
void grammar_vocab_free(struct grammar_vocab *v);

/* One text under a grammar. What it allows is a function of the tokens it is shown: it may be shown
 * others than before. */
struct grammar_run;
/* vocab: borrowed, and the same for all runs of g; g is shared. n_ids: how many ids logits are for. */
int grammar_run_new(struct grammar_run **out, struct grammar *g, struct grammar_vocab *vocab,
                    int32_t n_ids, struct error *e);
void grammar_run_free(struct grammar_run *run);
/* The tokens that may follow tokens [n]: *mask is borrowed until the next call, bit i % 64 of word
 * i / 64 for id i, words for n_ids. Tokens that add no text are never among them: they are allowed
 * just where *may_end says so. Fails when nothing may follow and the text may not end. */
int grammar_run_mask(struct grammar_run *run, const token_id *tokens, size_t n,
                     const uint64_t **mask, bool *may_end, struct error *e);
/* The text of tokens is whole and nothing can be added to it. */
bool grammar_run_must_end(struct grammar_run *run, const token_id *tokens, size_t n);

/* For tests: whether the grammar has the text; and whether it has one that begins with it. */
bool grammar_accepts(struct grammar *g, const char *text, size_t size);
bool grammar_begins(struct grammar *g, const char *text, size_t size);

#endif
