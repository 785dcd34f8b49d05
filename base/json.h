/* base/json.h: reading JSON that strangers wrote, on jansson.
 *
 * json_read refuses what jansson would let pass or recurse into: nesting over JSON_MAX_DEPTH,
 * duplicate keys, NaN and infinities, invalid UTF-8, trailing bytes. Any thread. */
#ifndef TPD_BASE_JSON_H
#define TPD_BASE_JSON_H

#include "base/error.h"

#include <jansson.h>

enum { JSON_MAX_DEPTH = 64 };

/* Parses size bytes. On failure returns NULL with ERR_PARSE and a note "offset" (bytes). */
json_t *json_read(const char *text, size_t size, struct error *e);
/* Reads and parses a file of at most max bytes; failures are ERR_BAD_FILE with path and offset. */
json_t *json_read_file(const char *path, size_t max, struct error *e);

/* Members of an object that is read as a configuration. An absent or null member leaves *out as it
 * is and returns 0; a present one of the wrong type or out of range returns ERR_PARAMS with notes
 * field, expected, got. Integers also accept 3.0. */
int json_get_int(const json_t *object, const char *key, int64_t min, int64_t max, int64_t *out,
                 struct error *e);
int json_get_number(const json_t *object, const char *key, double min, double max, double *out,
                    struct error *e);
int json_get_bool(const json_t *object, const char *key, bool *out, struct error *e);
/* *out is borrowed from the object. */
int json_get_string(const json_t *object, const char *key, const char **out, struct error *e);

/* The text of a string that C can compare: NULL when value is no string or has a NUL byte inside. */
const char *json_word(const json_t *value);

/* "a string", "an array of 3", "12.5": for messages. Writes into buf and returns it. */
const char *json_describe(const json_t *value, char *buf, size_t size);

#endif
