/* text/json_scan.h: walks JSON text without building a tree, for the vocabularies of tokenizer
 * files: a hundred thousand members that are read once. Small sections go to base/json.h as spans.
 *
 * The text must be valid UTF-8 as a whole; the caller checks that once. Errors are ERR_PARSE with
 * the note "offset"; after one the scan must not go on. */
#ifndef TPD_TEXT_JSON_SCAN_H
#define TPD_TEXT_JSON_SCAN_H

#include "base/error.h"
#include "text/buffer.h"

struct json_scan {
    const char *text;
    size_t size, at;
};

struct json_text {
    const char *data;
    size_t size;
};

/* '{', '[', '"', a letter of true, false, null, a digit or '-': what value comes; 0 at the end. */
char json_scan_peek(struct json_scan *s);
/* Steps into an object or an array. */
int json_scan_open(struct json_scan *s, char bracket, struct error *e);
/* 1 when another element follows, 0 after the closing bracket. *first is true before the first. */
int json_scan_next(struct json_scan *s, char close, bool *first, struct error *e);
/* A string, or a key with its colon. *out points into the text, or into spare when it had escapes
 * (until the next call with that spare). */
int json_scan_string(struct json_scan *s, struct buf *spare, struct json_text *out,
                     struct error *e);
int json_scan_key(struct json_scan *s, struct buf *spare, struct json_text *out, struct error *e);
int json_scan_int(struct json_scan *s, int64_t *out, struct error *e);
/* Any value; *out is its text. Brackets are matched; the rest is left to who reads the span. */
int json_scan_skip(struct json_scan *s, struct json_text *out, struct error *e);
/* Nothing but white space may be left. */
int json_scan_end(struct json_scan *s, struct error *e);

#endif
