/* text/json_scan.c: see json_scan.h. */
#include "text/json_scan.h"

#include "base/json.h"
#include "text/unicode.h"

static int broken(const struct json_scan *s, const char *why, struct error *e) {
    error_set(e, ERR_PARSE, "not valid JSON at byte %zu: %s", s->at,
              s->at >= s->size ? "the text ends too early" : why);
    error_note_number(e, "offset", (int64_t)s->at);
    return -(int)ERR_PARSE;
}

char json_scan_peek(struct json_scan *s) {
    while (s->at < s->size) {
        char c = s->text[s->at];
        if (c != ' ' && c != '\n' && c != '\t' && c != '\r') return c;
        s->at++;
    }
    return 0;
}

int json_scan_open(struct json_scan *s, char bracket, struct error *e) {
    if (json_scan_peek(s) != bracket)
        return broken(s, bracket == '{' ? "an object is expected" : "an array is expected", e);
    s->at++;
    return 0;
}

int json_scan_next(struct json_scan *s, char close, bool *first, struct error *e) {
    char c = json_scan_peek(s);
    if (c == close) {
        s->at++;
        return 0;
    }
    if (!*first) {
        if (c != ',') return broken(s, "a comma or a closing bracket is expected", e);
        s->at++;
        if (json_scan_peek(s) == close) return broken(s, "a comma with nothing behind it", e);
    }
    *first = false;
    return 1;
}

static int hex4(const struct json_scan *s, size_t at) {
    int value = 0;
    if (s->size - at < 4) return -1;
    for (size_t i = 0; i < 4; i++) {
        char c = s->text[at + i];
        int digit = c >= '0' && c <= '9'                 ? c - '0'
                    : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                         : -1;
        if (digit < 0) return -1;
        value = value << 4 | digit;
    }
    return value;
}

/* The escape behind the backslash at s->at, decoded to spare. */
static int escape(struct json_scan *s, struct buf *spare, struct error *e) {
    static const char letters[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    char c = s->at + 1 < s->size ? s->text[s->at + 1] : 0;
    const char *simple = c ? strchr(letters, c) : NULL;
    if (simple) {
        buf_add_char(spare, meanings[simple - letters]);
        s->at += 2;
        return 0;
    }
    int high = c == 'u' ? hex4(s, s->at + 2) : -1;
    if (high < 0) return broken(s, "an unknown escape", e);
    uint32_t character = (uint32_t)high;
    s->at += 6;
    if (high >= 0xD800 && high <= 0xDFFF) { /* two escapes make one character */
        bool second = high < 0xDC00 && s->size - s->at >= 6 && s->text[s->at] == '\\' &&
                      s->text[s->at + 1] == 'u';
        int low = second ? hex4(s, s->at + 2) : -1;
        if (low < 0xDC00 || low > 0xDFFF) return broken(s, "half a surrogate pair", e);
        character = 0x10000 + ((uint32_t)(high - 0xD800) << 10) + (uint32_t)(low - 0xDC00);
        s->at += 6;
    }
    char bytes[4];
    buf_add(spare, bytes, utf8_put(bytes, character));
    return 0;
}

int json_scan_string(struct json_scan *s, struct buf *spare, struct json_text *out,
                     struct error *e) {
    if (json_scan_peek(s) != '"') return broken(s, "a string is expected", e);
    size_t from = ++s->at;
    bool escaped = false;
    spare->size = 0;
    for (;;) {
        while (s->at < s->size && s->text[s->at] != '"' && s->text[s->at] != '\\' &&
               (unsigned char)s->text[s->at] >= ' ')
            s->at++;
        if (s->at == s->size || (unsigned char)s->text[s->at] < ' ')
            return broken(s, "a control character in a string", e);
        if (s->text[s->at] == '"') break;
        escaped = true;
        buf_add(spare, s->text + from, s->at - from);
        int err = escape(s, spare, e);
        if (err) return err;
        from = s->at;
    }
    if (escaped) buf_add(spare, s->text + from, s->at - from);
    if (spare->failed) return error_set(e, ERR_MEMORY, "no memory for a string");
    *out = escaped ? (struct json_text){spare->data ? spare->data : "", spare->size}
                   : (struct json_text){s->text + from, s->at - from};
    s->at++;
    return 0;
}

int json_scan_key(struct json_scan *s, struct buf *spare, struct json_text *out, struct error *e) {
    int err = json_scan_string(s, spare, out, e);
    if (err) return err;
    if (json_scan_peek(s) != ':') return broken(s, "a colon is expected", e);
    s->at++;
    return 0;
}

int json_scan_int(struct json_scan *s, int64_t *out, struct error *e) {
    bool negative = json_scan_peek(s) == '-';
    s->at += negative;
    size_t from = s->at;
    int64_t value = 0;
    while (s->at < s->size && s->text[s->at] >= '0' && s->text[s->at] <= '9' && s->at - from < 18)
        value = value * 10 + (s->text[s->at++] - '0');
    char next = s->at < s->size ? s->text[s->at] : ' ';
    if (s->at == from || next == '.' || next == 'e' || next == 'E' || (next >= '0' && next <= '9'))
        return broken(s, "a whole number is expected", e);
    *out = negative ? -value : value;
    return 0;
}

/* Over a string without decoding it. */
static int skip_string(struct json_scan *s, struct error *e) {
    for (s->at++; s->at < s->size; s->at++) {
        if (s->text[s->at] == '\\') s->at++;
        else if (s->text[s->at] == '"') {
            s->at++;
            return 0;
        }
    }
    s->at = s->size;
    return broken(s, "", e);
}

int json_scan_skip(struct json_scan *s, struct json_text *out, struct error *e) {
    char open[JSON_MAX_DEPTH], c = json_scan_peek(s);
    size_t from = s->at;
    int depth = 0;
    if (c == 0 || strchr(",:]}", c)) return broken(s, "a value is expected", e);
    do {
        c = json_scan_peek(s);
        if (c == 0) return broken(s, "", e);
        if (c == '"') {
            int err = skip_string(s, e);
            if (err) return err;
        } else if (c == '{' || c == '[') {
            if (depth == JSON_MAX_DEPTH) return broken(s, "nested too deeply", e);
            open[depth++] = c;
            s->at++;
        } else if (c == '}' || c == ']') {
            if (open[--depth] != (c == '}' ? '{' : '[')) return broken(s, "a wrong bracket", e);
            s->at++;
        } else if (c == ',' || c == ':') s->at++;
        else
            while (s->at < s->size && !strchr(" \t\r\n,:{}[]\"", s->text[s->at])) s->at++;
    } while (depth > 0);
    *out = (struct json_text){s->text + from, s->at - from};
    return 0;
}

int json_scan_end(struct json_scan *s, struct error *e) {
    return json_scan_peek(s) || s->at < s->size ? broken(s, "something behind the end", e) : 0;
}
