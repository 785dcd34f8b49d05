/* text/normalise.h: the normalizer of a tokenizer file, as a list of steps. */
#ifndef TPD_TEXT_NORMALISE_H
#define TPD_TEXT_NORMALISE_H

#include "text/buffer.h"
#include "text/pattern.h"

enum normal_kind {
    NORMAL_PREPEND, /* text before a text that is not empty */
    NORMAL_REPLACE, /* pattern by text */
    NORMAL_FORM,    /* NFC, NFD, NFKC, NFKD */
    NORMAL_LOWERCASE,
    NORMAL_STRIP,         /* white space, at left, right */
    NORMAL_STRIP_ACCENTS, /* marks */
    NORMAL_NMT,           /* control characters go, odd spaces become spaces */
    NORMAL_BYTE_LEVEL     /* bytes as characters */
};

struct normal_step {
    enum normal_kind kind;
    struct pattern pattern;
    struct buf text;
    int form; /* utf8proc options */
    bool left, right;
};

/* Enough for any published file, and a bound on what a broken one costs. */
enum { NORMAL_MAX_STEPS = 64 };

struct normaliser {
    struct normal_step *steps;
    size_t n;
};

/* json is null, or the normalizer object; added to the steps that are there. Errors are
 * ERR_BAD_FILE without path; they begin with the field. */
int normaliser_parse(struct normaliser *n, const json_t *json, struct error *e);
/* The steps of a SentencePiece vocabulary: prefix "▁" (when asked) and "▁" for each space. */
int normaliser_sentencepiece(struct normaliser *n, bool prefix, struct error *e);
void normaliser_free(struct normaliser *n);

/* Normalises *text in place; *spare is a second buffer that it may swap with. *at_start is cleared
 * when the beginning of the text was cut off. */
int normalise(const struct normaliser *n, struct buf *text, struct buf *spare,
              struct regex_scratch **scratch, bool *at_start, struct error *e);

#endif
