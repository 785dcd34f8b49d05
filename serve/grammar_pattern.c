/* Regular expressions as the inside of JSON strings. What is taken: characters, classes, \d \w \s and
 * their opposites, ., groups, alternatives, repetitions, ^ and $ at the ends of an alternative of the
 * whole pattern. Laziness changes nothing about which texts match. */
#include "serve/grammar_source.h"

#include <string.h>

struct pattern_reader {
    struct grammar_source *s;
    const char *text;
    size_t size, at;
    int32_t any_char; /* one character of a JSON string */
    int depth;
    struct error *e;
};

static int refuse(struct pattern_reader *p, const char *what) {
    return error_set(p->e, ERR_PARAMS, "%s (byte %zu of the pattern)", what, p->at);
}

static char peek(const struct pattern_reader *p) {
    return p->at < p->size ? p->text[p->at] : '\0';
}

static bool take(struct pattern_reader *p, char c) {
    if (p->at >= p->size || p->text[p->at] != c) return false;
    p->at++;
    return true;
}

/* --- characters ------------------------------------------------------------------------------ */

static void escaped(struct grammar_source *s, struct expr_list *forms, uint32_t c) {
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    char text[8] = "\\";
    const char *found = c ? strchr(from, (int)c) : NULL;
    if (found) text[1] = to[found - from];
    else {
        memcpy(text, "\\u00", 4);
        text[4] = (char)('0' + c / 16);
        text[5] = "0123456789abcdef"[c % 16];
    }
    list_add(s, forms, source_text(s, text));
}

int32_t source_json_chars(struct grammar_source *s, struct range_list *list) {
    struct range_list plain = {0};
    struct expr_list forms = {0};
    for (size_t i = 0; i < list->n; i++) {
        struct char_range r = list->at[i];
        uint32_t from = r.lo;
        for (uint32_t c = r.lo; c <= r.hi && c <= '\\'; c++) {
            if (c >= 0x20 && c != '"' && c != '\\') continue;
            if (c > 0) escaped(s, &forms, c);
            if (c > from) ranges_add(s, &plain, from, c - 1);
            from = c + 1;
        }
        if (from <= r.hi) ranges_add(s, &plain, from, r.hi);
    }
    ranges_settle(s, list, false);
    source_chars(s, list); /* frees it */
    ranges_settle(s, &plain, false);
    if (plain.n) list_add(s, &forms, source_chars(s, &plain));
    return source_alt(s, &forms);
}

/* \d and its like; false for other letters. */
static bool add_kind(struct pattern_reader *p, char kind, struct range_list *list) {
    struct range_list own = {0};
    char lower = (char)(kind | 0x20);
    if (!kind || !strchr("dwsDWS", kind)) return false;
    if (lower != 's') ranges_add(p->s, &own, '0', '9');
    if (lower == 'w') {
        ranges_add(p->s, &own, 'a', 'z');
        ranges_add(p->s, &own, 'A', 'Z');
        ranges_add(p->s, &own, '_', '_');
    }
    if (lower == 's') {
        ranges_add(p->s, &own, '\t', '\r');
        ranges_add(p->s, &own, ' ', ' ');
    }
    /* What else may be white space or a letter is neither in a kind nor in its opposite. */
    if (kind != lower && lower != 'd') ranges_add(p->s, &own, 0x80, 0x10FFFF);
    ranges_settle(p->s, &own, kind != lower);
    for (size_t i = 0; i < own.n; i++) ranges_add(p->s, list, own.at[i].lo, own.at[i].hi);
    source_chars(p->s, &own);
    return true;
}

static int read_hex(struct pattern_reader *p, int digits, int32_t *out) {
    int32_t value = 0;
    for (int i = 0; i < digits; i++, p->at++) {
        char c = peek(p);
        const char *all = "0123456789abcdef", *found = c ? strchr(all, c | 0x20) : NULL;
        if (c >= '0' && c <= '9') found = all + (c - '0');
        if (!found) return refuse(p, "a hexadecimal digit is missing");
        value = value << 4 | (int32_t)(found - all);
    }
    if (value == 0 || (value >= 0xD800 && value <= 0xDFFF)) return refuse(p, "this is no character");
    *out = value;
    return 0;
}

/* Behind a backslash, what is one character. */
static int read_escape(struct pattern_reader *p, bool in_class, int32_t *out) {
    static const char letters[] = "nrtfv", means[] = "\n\r\t\f\v";
    char c = peek(p);
    const char *found = c ? strchr(letters, c) : NULL;
    if (take(p, 'x')) return read_hex(p, 2, out);
    if (take(p, 'u')) return read_hex(p, 4, out);
    if (found) *out = means[found - letters];
    else if (c && strchr("\\/.*+?()[]{}|^$-\"'#&@%!,:;=<>~` _", c)) *out = c;
    else if (c == 'b' && in_class) *out = '\b';
    else return refuse(p, "this escape is not supported");
    p->at++;
    return 0;
}

static int read_char(struct pattern_reader *p, bool in_class, int32_t *out) {
    if (take(p, '\\')) return read_escape(p, in_class, out);
    *out = utf8_read(p->text, p->size, &p->at);
    return *out <= 0 ? refuse(p, "this is no character") : 0;
}

/* One element of a class: a kind, a character or a range. */
static int read_element(struct pattern_reader *p, struct range_list *list) {
    int32_t lo, hi;
    if (peek(p) == '\\' && p->at + 1 < p->size && add_kind(p, p->text[p->at + 1], list)) {
        p->at += 2;
        return 0;
    }
    int err = read_char(p, true, &lo);
    hi = lo;
    if (!err && peek(p) == '-' && p->at + 1 < p->size && p->text[p->at + 1] != ']') {
        p->at++;
        if (peek(p) == '\\' && p->at + 1 < p->size && strchr("dwsDWS", p->text[p->at + 1]))
            return refuse(p, "a range cannot end with a kind of characters");
        err = read_char(p, true, &hi);
    }
    if (!err && hi < lo) return refuse(p, "this range ends before it begins");
    if (!err) ranges_add(p->s, list, (uint32_t)lo, (uint32_t)hi);
    return err;
}

static int chars_of(struct pattern_reader *p, struct range_list *list, bool negate, int32_t *out) {
    if (negate) ranges_add(p->s, list, 0, 0);
    ranges_settle(p->s, list, negate);
    bool none = list->n == 0 && !p->s->full;
    *out = source_json_chars(p->s, list);
    return none ? refuse(p, "no character is in this class") : 0;
}

static int read_class(struct pattern_reader *p, int32_t *out) {
    struct range_list list = {0};
    bool negate = take(p, '^');
    int err = 0;
    while (!err && !take(p, ']'))
        err = p->at < p->size ? read_element(p, &list) : refuse(p, "a class has no closing ]");
    if (err) {
        source_chars(p->s, &list);
        return err;
    }
    return chars_of(p, &list, negate, out);
}

/* --- parts ----------------------------------------------------------------------------------- */

static int read_count(struct pattern_reader *p, uint32_t *out) {
    uint32_t value = 0;
    size_t from = p->at;
    for (; peek(p) >= '0' && peek(p) <= '9'; p->at++) {
        value = value * 10 + (uint32_t)(peek(p) - '0');
        if (value > GRAMMAR_MAX_COUNT) return refuse(p, "this count is too large");
    }
    *out = value;
    return p->at == from ? refuse(p, "a number is missing") : 0;
}

static int read_braces(struct pattern_reader *p, uint32_t *min, uint32_t *max) {
    int err = read_count(p, min);
    *max = *min;
    if (!err && take(p, ',')) {
        *max = SOURCE_NO_END;
        if (peek(p) != '}') err = read_count(p, max);
    }
    if (!err && !take(p, '}')) err = refuse(p, "a repetition has no closing }");
    if (!err && *max < *min) err = refuse(p, "this repetition ends before it begins");
    return err;
}

static int read_repeat(struct pattern_reader *p, int32_t *part) {
    char c = peek(p);
    uint32_t min = c == '+', max = c == '?' ? 1 : SOURCE_NO_END;
    int err = 0;
    if (c != '?' && c != '*' && c != '+' && c != '{') return 0;
    p->at++;
    if (c == '{') err = read_braces(p, &min, &max);
    if (err) return err;
    *part = source_repeat(p->s, *part, min, max);
    take(p, '?');
    if (peek(p) && strchr("?*+{", peek(p))) return refuse(p, "nothing stands before this repetition");
    return 0;
}

static int read_alternatives(struct pattern_reader *p, int32_t *out);

static int read_group(struct pattern_reader *p, int32_t *out) {
    if (take(p, '?') && !take(p, ':')) {
        /* (?<name>…), but neither (?<=…) nor (?<!…) */
        bool named = take(p, '<') && peek(p) != '=' && peek(p) != '!';
        while (named && p->at < p->size && !take(p, '>')) p->at++;
        if (!named) return refuse(p, "looking ahead or behind is not supported");
    }
    if (++p->depth > GRAMMAR_MAX_NESTING) return refuse(p, "groups are nested more than 64 deep");
    int err = read_alternatives(p, out);
    p->depth--;
    return !err && !take(p, ')') ? refuse(p, "a group has no closing )") : err;
}

static int read_part(struct pattern_reader *p, int32_t *out) {
    struct range_list list = {0};
    int32_t c;
    if (take(p, '(')) return read_group(p, out);
    if (take(p, '[')) return read_class(p, out);
    if (take(p, '.')) {
        ranges_add(p->s, &list, '\n', '\n');
        ranges_add(p->s, &list, '\r', '\r');
        ranges_add(p->s, &list, 0x2028, 0x2029);
        return chars_of(p, &list, true, out);
    }
    if (peek(p) == '\\' && p->at + 1 < p->size && add_kind(p, p->text[p->at + 1], &list)) {
        p->at += 2;
        return chars_of(p, &list, false, out);
    }
    if (peek(p) == '^' || peek(p) == '$')
        return refuse(p, "^ and $ are supported at the ends of the pattern only");
    if (peek(p) && strchr("?*+{", peek(p))) return refuse(p, "nothing stands before this repetition");
    int err = read_char(p, false, &c);
    if (err) return err;
    ranges_add(p->s, &list, (uint32_t)c, (uint32_t)c);
    return chars_of(p, &list, false, out);
}

static bool ends_sequence(const struct pattern_reader *p) {
    return p->at >= p->size || peek(p) == '|' || peek(p) == ')' ||
           (p->depth == 0 && peek(p) == '$' && (p->at + 1 == p->size || p->text[p->at + 1] == '|'));
}

/* What the ends of a whole pattern leave open may be anything. */
static int read_sequence(struct pattern_reader *p, int32_t *out) {
    struct expr_list parts = {0};
    int32_t anything = SOURCE_EMPTY, part;
    int err = 0;
    if (p->depth == 0) anything = source_repeat(p->s, p->any_char, 0, SOURCE_NO_END);
    if (p->depth == 0 && !take(p, '^')) list_add(p->s, &parts, anything);
    while (!err && !ends_sequence(p)) {
        err = read_part(p, &part);
        if (!err) err = read_repeat(p, &part);
        if (!err) list_add(p->s, &parts, part);
    }
    if (!err && p->depth == 0 && !take(p, '$')) list_add(p->s, &parts, anything);
    *out = source_seq(p->s, &parts);
    return err;
}

static int read_alternatives(struct pattern_reader *p, int32_t *out) {
    struct expr_list alternatives = {0};
    int32_t one = SOURCE_EMPTY;
    int err;
    do {
        err = read_sequence(p, &one);
        list_add(p->s, &alternatives, one);
    } while (!err && take(p, '|'));
    *out = source_alt(p->s, &alternatives);
    return err;
}

int pattern_read(struct grammar_source *s, const char *pattern, int32_t any_char, int32_t *out,
                 struct error *e) {
    struct pattern_reader p = {
        .s = s, .text = pattern, .size = strlen(pattern), .any_char = any_char, .e = e};
    int err = read_alternatives(&p, out);
    return !err && p.at < p.size ? refuse(&p, "nothing was opened that ) could close") : err;
}
