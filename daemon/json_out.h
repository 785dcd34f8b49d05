/* daemon/json_out.h: JSON written as text, piece by piece, for answers that may be long.
 *
 * A tree of a million tokens would take many times the memory of its text. Commas come by
 * themselves; opening and closing is the caller's to get right. Every string comes out as valid
 * UTF-8 (U+FFFD for each byte that is not), every number finite. When memory is short the writer
 * notes it and does nothing more: look at `failed` at the end. Any thread. */
#ifndef TPD_DAEMON_JSON_OUT_H
#define TPD_DAEMON_JSON_OUT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct json_out { /* starts as {0} */
    char *data;   /* not NUL-terminated; take it over or free it */
    size_t size, capacity;
    bool comma; /* a value stands before the place where we are */
    bool failed;
};

void json_out_free(struct json_out *out);
void json_out_open(struct json_out *out, char bracket);  /* '{' or '[' */
void json_out_close(struct json_out *out, char bracket); /* '}' or ']' */
void json_out_key(struct json_out *out, const char *key);
void json_out_int(struct json_out *out, int64_t number);
/* As a float prints: 9 digits. What is not finite becomes 0. */
void json_out_number(struct json_out *out, double number);
void json_out_null(struct json_out *out);
/* A member whole: its key and its value. */
void json_out_member_int(struct json_out *out, const char *key, int64_t number);
void json_out_member_number(struct json_out *out, const char *key, double number);
void json_out_text(struct json_out *out, const char *text, size_t size);
void json_out_string(struct json_out *out, const char *text); /* NUL-terminated */
/* A value that is there as a tree. */
void json_out_json(struct json_out *out, const json_t *value);
/* Text as a tree of one string, valid UTF-8 in the same way; NULL: no memory. */
json_t *json_text(const char *text, size_t size);
/* Bytes that are no value of their own: a line end. */
void json_out_raw(struct json_out *out, const char *data, size_t size);

#endif
