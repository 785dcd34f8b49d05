/* text/pattern.c: see pattern.h. */
#include "text/pattern.h"

#include "base/json.h"
#include "text/buffer.h"
#include "text/unicode.h"

int pattern_of_string(struct pattern *p, const char *string, size_t size, struct error *e) {
    *p = (struct pattern){.kind = PATTERN_STRING, .size = size};
    p->string = malloc(size + 1);
    if (!p->string) return error_set(e, ERR_MEMORY, "no memory for a pattern");
    memcpy(p->string, string, size);
    return 0;
}

int pattern_of_regex(struct pattern *p, const char *regex, struct error *e) {
    *p = (struct pattern){.kind = PATTERN_REGEX};
    return regex_new(&p->regex, regex, strlen(regex), e);
}

int pattern_parse(struct pattern *p, const json_t *json, struct error *e) {
    const json_t *string = json_object_get(json, "String");
    const json_t *regex = json_object_get(json, "Regex");
    *p = (struct pattern){0};
    if (json_is_string(string))
        return pattern_of_string(p, json_string_value(string), json_string_length(string), e);
    if (json_is_string(regex)) {
        p->kind = PATTERN_REGEX;
        return regex_new(&p->regex, json_string_value(regex), json_string_length(regex), e);
    }
    char got[96];
    return error_set(e, ERR_BAD_FILE, "pattern must be {\"String\": …} or {\"Regex\": …}, not %s",
                     json_describe(json, got, sizeof got));
}

void pattern_free(struct pattern *p) {
    regex_free(p->regex);
    free(p->string);
    *p = (struct pattern){0};
}

static bool is_kind(enum pattern_kind kind, uint32_t c) {
    switch (kind) {
    case PATTERN_NUMERIC: return char_is_numeric(c);
    case PATTERN_SPACE: return char_is_space(c);
    case PATTERN_PUNCTUATION: return char_is_punctuation(c);
    case PATTERN_STRING:
    case PATTERN_REGEX: break;
    }
    return false;
}

int pattern_find(const struct pattern *p, struct regex_scratch **scratch, const char *text,
                 size_t size, size_t at, size_t *from, size_t *to, struct error *e) {
    if (p->kind == PATTERN_REGEX) {
        if (!*scratch && !(*scratch = regex_scratch_new()))
            return error_set(e, ERR_MEMORY, "no memory to match a regular expression");
        return regex_find(p->regex, *scratch, text, size, at, from, to, e);
    }
    if (p->kind == PATTERN_STRING) {
        if (p->size == 0 || at >= size) return 0;
        const char *found = memmem(text + at, size - at, p->string, p->size);
        if (!found) return 0;
        *from = (size_t)(found - text);
        *to = *from + p->size;
        return 1;
    }
    while (at < size) {
        uint32_t c;
        size_t n = utf8_next(text + at, &c);
        if (is_kind(p->kind, c)) {
            *from = at;
            *to = at + n;
            return 1;
        }
        at += n;
    }
    return 0;
}

int pattern_replace(const struct pattern *p, struct regex_scratch **scratch, const char *data,
                    size_t size, const struct buf *text, size_t limit, struct buf *out,
                    struct error *e) {
    size_t done = 0, from, to, at = 0;
    while (at <= size) {
        int found = pattern_find(p, scratch, data, size, at, &from, &to, e);
        if (found < 0) return found;
        if (!found) break;
        if (from == to) { /* an empty match puts nothing in: one character on */
            uint32_t c;
            at = from < size ? from + utf8_next(data + from, &c) : size + 1;
            continue;
        }
        buf_add(out, data + done, from - done);
        buf_add(out, text->data, text->size);
        at = done = to;
        if (out->size > limit)
            return error_set(e, ERR_BAD_FILE,
                             "the tokenizer's Replace makes more than %zu bytes of "
                             "this text",
                             limit);
    }
    buf_add(out, data + done, size - done);
    return 0;
}
