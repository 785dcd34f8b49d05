#include "base/json.h"

#include "base/file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* jansson recurses once a level, so the depth is bounded before it sees the text. Brackets inside
 * strings do not count. Returns the offset of the bracket that goes too deep, or -1. */
static int64_t too_deep_at(const char *text, size_t size) {
    int depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < size; i++) {
        char c = text[i];
        if (in_string) {
            if (c == '\\') i++;
            else if (c == '"') in_string = false;
        } else if (c == '"') in_string = true;
        else if (c == '{' || c == '[') {
            if (++depth > JSON_MAX_DEPTH) return (int64_t)i;
        } else if (c == '}' || c == ']') depth--;
    }
    return -1;
}

json_t *json_read(const char *text, size_t size, struct error *e) {
    int64_t deep = too_deep_at(text, size);
    if (deep >= 0) {
        error_set(e, ERR_PARSE, "too deeply nested at byte %lld: at most %d levels are taken",
                  (long long)deep, JSON_MAX_DEPTH);
        error_note_number(e, "offset", deep);
        return NULL;
    }
    json_error_t why;
    json_t *value = json_loadb(text, size, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL,
                               &why);
    if (!value) {
        error_set(e, ERR_PARSE, "not valid JSON at byte %d: %s", why.position, why.text);
        error_note_number(e, "offset", why.position);
    }
    return value;
}

json_t *json_read_file(const char *path, size_t max, struct error *e) {
    char *text;
    size_t size;
    if (file_read(path, max, &text, &size, e) != 0) return NULL;
    const char *body = text;
    if (size >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0) body += 3, size -= 3;
    struct error why = {0};
    json_t *value = json_read(body, size, &why);
    free(text);
    if (!value) {
        char offset[32];
        snprintf(offset, sizeof offset, "%lld",
                 (long long)(why.n_notes ? why.notes[0].number : 0));
        error_bad_file(e, path, "offset", offset, "%s", why.message);
    }
    return value;
}

const char *json_word(const json_t *value) {
    const char *text = json_string_value(value);
    return text && strlen(text) == json_string_length(value) ? text : NULL;
}

const char *json_describe(const json_t *value, char *buf, size_t size) {
    switch (value ? json_typeof(value) : JSON_NULL) {
    case JSON_OBJECT: snprintf(buf, size, "an object"); break;
    case JSON_ARRAY: snprintf(buf, size, "an array of %zu", json_array_size(value)); break;
    case JSON_STRING: snprintf(buf, size, "the string \"%.60s\"", json_string_value(value)); break;
    case JSON_INTEGER:
        snprintf(buf, size, "%lld", (long long)json_integer_value(value));
        break;
    case JSON_REAL: snprintf(buf, size, "%g", json_real_value(value)); break;
    case JSON_TRUE: snprintf(buf, size, "true"); break;
    case JSON_FALSE: snprintf(buf, size, "false"); break;
    case JSON_NULL: snprintf(buf, size, value ? "null" : "nothing"); break;
    }
    return buf;
}

static int wrong(struct error *e, const char *key, const char *expected, const json_t *got) {
    char text[128];
    json_describe(got, text, sizeof text);
    error_set(e, ERR_PARAMS, "%s must be %s, not %s", key, expected, text);
    error_note(e, "field", key);
    error_note(e, "expected", expected);
    error_note(e, "got", text);
    return -(int)ERR_PARAMS;
}

static const json_t *member(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

int json_get_int(const json_t *object, const char *key, int64_t min, int64_t max, int64_t *out,
                 struct error *e) {
    const json_t *value = member(object, key);
    if (!value) return 0;
    char expected[96];
    snprintf(expected, sizeof expected, "an integer from %lld to %lld", (long long)min,
             (long long)max);
    int64_t number;
    if (json_is_integer(value)) number = json_integer_value(value);
    else if (json_is_real(value) && fabs(json_real_value(value)) < 9e15 &&
             floor(json_real_value(value)) == json_real_value(value))
        number = (int64_t)json_real_value(value);
    else return wrong(e, key, expected, value);
    if (number < min || number > max) return wrong(e, key, expected, value);
    *out = number;
    return 0;
}

int json_get_number(const json_t *object, const char *key, double min, double max, double *out,
                    struct error *e) {
    const json_t *value = member(object, key);
    if (!value) return 0;
    char expected[96];
    snprintf(expected, sizeof expected, "a number from %g to %g", min, max);
    double number = json_is_number(value) ? json_number_value(value) : NAN;
    if (!(number >= min && number <= max)) return wrong(e, key, expected, value);
    *out = number;
    return 0;
}

int json_get_bool(const json_t *object, const char *key, bool *out, struct error *e) {
    const json_t *value = member(object, key);
    if (!value) return 0;
    if (!json_is_boolean(value)) return wrong(e, key, "true or false", value);
    *out = json_is_true(value);
    return 0;
}

int json_get_string(const json_t *object, const char *key, const char **out, struct error *e) {
    const json_t *value = member(object, key);
    if (!value) return 0;
    if (!json_is_string(value)) return wrong(e, key, "a string", value);
    *out = json_string_value(value);
    return 0;
}
