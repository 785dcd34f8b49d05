/* text/added.h: added tokens ("<|im_end|>"), found in a text before anything else is done to it. */
#ifndef TPD_TEXT_ADDED_H
#define TPD_TEXT_ADDED_H

#include "text/pattern.h"
#include "text/tokenizer.h"

struct added_token {
    token_id id;
    bool single_word;    /* only where no word character stands beside it */
    bool lstrip, rstrip; /* takes the white space before, behind */
};

struct added_node {
    uint32_t child, sibling; /* indices; 0: none */
    int32_t token;           /* index of the token that ends here, or -1 */
    uint8_t byte;
};

/* A trie over the bytes of the tokens. */
struct added {
    struct added_token *tokens;
    size_t n_tokens;
    struct added_node *nodes; /* 0 is not used */
    size_t n_nodes, capacity;
    uint32_t roots[256]; /* by first byte */
    struct regex *word;  /* one word character; NULL while no token is single_word */
};

/* content is not empty. False: no memory. A second token with the same content replaces the first.
 */
bool added_put(struct added *a, const char *content, size_t size, struct added_token token);
void added_free(struct added *a);

/* Found: token, with the white space it takes, at from … to-1. */
struct added_match {
    token_id id;
    size_t from, to;
};

/* Walks the tokens of a text, leftmost first and of those the longest. */
struct added_walk {
    const char *text;
    size_t size;
    size_t at;      /* where the search goes on */
    size_t covered; /* end of the last match */
};

/* 1 with the next match, 0 at the end, negative on an error. */
int added_next(const struct added *a, struct added_walk *walk, struct regex_scratch **scratch,
               struct added_match *match, struct error *e);

#endif
