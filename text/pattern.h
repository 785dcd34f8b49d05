/* text/pattern.h: what a component of a tokenizer file looks for in a text: a string, a regular
 * expression, or a kind of character. */
#ifndef TPD_TEXT_PATTERN_H
#define TPD_TEXT_PATTERN_H

#include "text/regex.h"

#include <jansson.h>

enum pattern_kind {
    PATTERN_STRING,
    PATTERN_REGEX,
    PATTERN_NUMERIC,     /* one numeric character */
    PATTERN_SPACE,       /* one white space character */
    PATTERN_PUNCTUATION, /* one punctuation character */
};

struct pattern {
    enum pattern_kind kind;
    struct regex *regex; /* owned */
    char *string;        /* owned */
    size_t size;         /* of string; an empty string is found nowhere */
};

/* From {"String": …} or {"Regex": …}. Errors are ERR_BAD_FILE without path. */
int pattern_parse(struct pattern *p, const json_t *json, struct error *e);
int pattern_of_string(struct pattern *p, const char *string, size_t size, struct error *e);
int pattern_of_regex(struct pattern *p, const char *regex, struct error *e);
void pattern_free(struct pattern *p);

/* How long replacements may make a text that came in with size bytes. */
static inline size_t pattern_limit(size_t size) {
    return ((size_t)1 << 20) + 16 * size;
}

/* Appends data with each match of the pattern replaced by text. When out would have more than limit
 * bytes: ERR_BAD_FILE, for only a file made to fill memory does that. */
struct buf;
int pattern_replace(const struct pattern *p, struct regex_scratch **scratch, const char *data,
                    size_t size, const struct buf *text, size_t limit, struct buf *out,
                    struct error *e);

/* As regex_find. *scratch is made when it is first needed; the caller frees it. */
int pattern_find(const struct pattern *p, struct regex_scratch **scratch, const char *text,
                 size_t size, size_t at, size_t *from, size_t *to, struct error *e);

#endif
