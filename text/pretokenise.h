/* text/pretokenise.h: the pre-tokenizer of a tokenizer file, as a list of steps. Each step takes a
 * text that is cut into spans and cuts or rewrites each span on its own. */
#ifndef TPD_TEXT_PRETOKENISE_H
#define TPD_TEXT_PRETOKENISE_H

#include "text/buffer.h"
#include "text/pattern.h"

enum pre_kind {
    PRE_SPLIT,        /* at pattern */
    PRE_PREFIX_SPACE, /* a space before each span that has none */
    PRE_BYTE_LEVEL,   /* bytes as characters */
    PRE_METASPACE,    /* spaces become mark; mark before the span, as scheme says */
    PRE_FIXED_LENGTH  /* every length characters */
};

enum split_behavior {
    SPLIT_REMOVED,
    SPLIT_ISOLATED,
    SPLIT_MERGED_WITH_PREVIOUS,
    SPLIT_MERGED_WITH_NEXT,
    SPLIT_CONTIGUOUS
};

enum prepend_scheme { PREPEND_ALWAYS, PREPEND_FIRST, PREPEND_NEVER };

struct pre_step {
    enum pre_kind kind;
    struct pattern pattern;
    enum split_behavior behavior;
    bool invert; /* what the pattern does not match is the match */
    enum prepend_scheme scheme;
    char mark[5]; /* one character, NUL-terminated */
    int64_t length;
};

/* Enough for any published file, and a bound on what a broken one costs. */
enum { PRE_MAX_STEPS = 64 };

struct pretokeniser {
    struct pre_step *steps;
    size_t n;
};

/* A text and its spans, in order; text outside of spans is not seen again. */
struct pieces {
    struct buf text;
    struct spans spans;
};

void pieces_free(struct pieces *p);

/* json is null, or the pre_tokenizer object; added to the steps that are there. Errors are
 * ERR_BAD_FILE without path; they begin with the field. */
int pretokeniser_parse(struct pretokeniser *p, const json_t *json, struct error *e);
/* A split at a regular expression whose matches become spans. */
int pretokeniser_add_regex(struct pretokeniser *p, const char *regex, struct error *e);
int pretokeniser_add_byte_level(struct pretokeniser *p, struct error *e);
void pretokeniser_free(struct pretokeniser *p);

/* What the fields of a Metaspace say, here and in decoders. */
int metaspace_parse(const json_t *json, char mark[5], enum prepend_scheme *scheme, bool *split,
                    struct error *e);

/* Cuts pieces in place; *spare is a second set that it may swap with. at_start: the text begins
 * where the whole input begins. */
int pretokenise(const struct pretokeniser *p, struct pieces *pieces, struct pieces *spare,
                struct regex_scratch **scratch, bool at_start, struct error *e);

#endif
