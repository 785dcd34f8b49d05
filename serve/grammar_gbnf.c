/* Reads the notation that llama.cpp calls GBNF: rules of literals, characters, alternatives, groups and
 * repetitions. */
#include "serve/grammar_source.h"

#include <stdlib.h>
#include <string.h>

struct reader {
    struct grammar_source s;
    const char *text;
    size_t size, at;
    int depth;
    json_t *names; /* object: name to number of a rule */
    struct error *e;
};

static int refuse(struct reader *r, size_t at, const char *what) {
    int line = 1, column = 1;
    for (size_t i = 0; i < at && i < r->size; i++) {
        if (r->text[i] == '\n') {
            line++;
            column = 1;
        } else if (((unsigned char)r->text[i] & 0xC0) != 0x80) column++;
    }
    error_set(r->e, ERR_PARAMS, "line %d, column %d: %s", line, column, what);
    error_note_number(r->e, "line", line);
    error_note_number(r->e, "column", column);
    return -(int)ERR_PARAMS;
}

static bool has(const struct reader *r, const char *word) {
    size_t n = strlen(word);
    return r->size - r->at >= n && memcmp(r->text + r->at, word, n) == 0;
}

static bool take(struct reader *r, char c) {
    if (r->at >= r->size || r->text[r->at] != c) return false;
    r->at++;
    return true;
}

/* White space and comments; over the ends of lines only where a rule cannot end. */
static void skip(struct reader *r, bool lines) {
    for (; r->at < r->size; r->at++) {
        char c = r->text[r->at];
        if (c == '#') {
            while (r->at < r->size && r->text[r->at] != '\n' && r->text[r->at] != '\r') r->at++;
            r->at--;
        } else if (c != ' ' && c != '\t' && !(lines && (c == '\n' || c == '\r'))) return;
    }
}

/* --- characters ------------------------------------------------------------------------------ */

static int read_hex(struct reader *r, int digits, int32_t *out) {
    int32_t value = 0;
    size_t from = r->at;
    for (int i = 0; i < digits; i++, r->at++) {
        char c = r->at < r->size ? r->text[r->at] : '\0';
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0) return refuse(r, r->at, "a hexadecimal digit is missing");
        value = value << 4 | digit;
        if (value > 0x10FFFF) return refuse(r, from, "there is no such character");
    }
    if (value >= 0xD800 && value <= 0xDFFF)
        return refuse(r, from, "half of a surrogate pair is no character");
    *out = value;
    return 0;
}

static int read_escape(struct reader *r, int32_t *out) {
    size_t from = r->at;
    char c = r->at < r->size ? r->text[r->at] : '\0';
    static const char letters[] = "nrt\\\"[]-^/", means[] = "\n\r\t\\\"[]-^/";
    r->at++;
    if (c == 'x') return read_hex(r, 2, out);
    if (c == 'u') return read_hex(r, 4, out);
    if (c == 'U') return read_hex(r, 8, out);
    const char *found = c ? strchr(letters, c) : NULL;
    if (!found)
        return refuse(r, from, "unknown escape: there are \\n \\r \\t \\\\ \\\" \\[ \\] \\- \\^ \\/ "
                               "\\xHH \\uHHHH \\UHHHHHHHH");
    *out = means[found - letters];
    return 0;
}

/* One character of a literal or of a class. */
static int read_char(struct reader *r, int32_t *out) {
    if (take(r, '\\')) return read_escape(r, out);
    size_t from = r->at;
    *out = utf8_read(r->text, r->size, &r->at);
    return *out < 0 ? refuse(r, from, "this is not UTF-8") : 0;
}

static size_t utf8_write(int32_t c, char out[4]) {
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    int more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    static const int mark[] = {0, 0xC0, 0xE0, 0xF0};
    for (int k = more; k > 0; k--, c >>= 6) out[k] = (char)(0x80 | (c & 0x3F));
    out[0] = (char)(mark[more] | c);
    return (size_t)more + 1;
}

static int read_literal(struct reader *r, int32_t *out) {
    size_t from = r->at - 1;
    struct expr_list parts = {0};
    int err = 0;
    while (!err && !take(r, '"')) {
        char bytes[256];
        size_t n = 0;
        while (!err && n + 4 <= sizeof bytes && r->at < r->size && r->text[r->at] != '"') {
            int32_t c;
            if (r->text[r->at] == '\n') err = refuse(r, from, "this literal has no closing \"");
            if (!err) err = read_char(r, &c);
            if (!err) n += utf8_write(c, bytes + n);
        }
        if (!err && r->at >= r->size) err = refuse(r, from, "this literal has no closing \"");
        if (!err && n) list_add(&r->s, &parts, source_literal(&r->s, bytes, n));
    }
    *out = source_seq(&r->s, &parts);
    return err;
}

static int read_class(struct reader *r, int32_t *out) {
    size_t from = r->at - 1;
    struct range_list list = {0};
    bool negate = take(r, '^');
    int err = 0;
    while (!err && !take(r, ']')) {
        int32_t lo = 0, hi;
        size_t at = r->at;
        if (r->at >= r->size || r->text[r->at] == '\n')
            err = refuse(r, from, "this class has no closing ]");
        if (!err) err = read_char(r, &lo);
        hi = lo;
        bool range = !err && r->at + 1 < r->size && r->text[r->at] == '-' && r->text[r->at + 1] != ']';
        if (range) {
            r->at++;
            err = read_char(r, &hi);
        }
        if (!err && hi < lo) err = refuse(r, at, "this range ends before it begins");
        if (!err) ranges_add(&r->s, &list, (uint32_t)lo, (uint32_t)hi);
    }
    ranges_settle(&r->s, &list, negate);
    if (!err && list.n == 0 && !r->s.full) err = refuse(r, from, "no character is in this class");
    *out = source_chars(&r->s, &list);
    return err;
}

/* --- rules ----------------------------------------------------------------------------------- */

static bool is_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
}

static size_t name_size(const struct reader *r, size_t at) {
    size_t n = 0;
    while (at + n < r->size && is_name(r->text[at + n])) n++;
    return n;
}

/* Is there "name ::=" here, the beginning of the next rule? */
static bool at_rule(const struct reader *r) {
    size_t at = r->at + name_size(r, r->at);
    if (at == r->at) return false;
    while (at < r->size && (r->text[at] == ' ' || r->text[at] == '\t')) at++;
    return r->size - at >= 3 && memcmp(r->text + at, "::=", 3) == 0;
}

/* The number of a rule by its name; a new one when it is met for the first time. */
static int32_t rule_named(struct reader *r, size_t at, size_t n) {
    char *name = strndup(r->text + at, n);
    const json_t *known = name ? json_object_get(r->names, name) : NULL;
    int32_t rule = known ? (int32_t)json_integer_value(known) : source_rule_new(&r->s, r->text + at, n);
    if (!name || (!known && rule >= 0 && json_object_set_new(r->names, name, json_integer(rule)) != 0))
        r->s.full = r->s.no_memory = true;
    free(name);
    if (known || rule < 0) return rule;
    struct error place = {0}, *kept = r->e;
    r->e = &place;
    refuse(r, at, "");
    r->e = kept;
    r->s.rules[rule].line = (int)place.notes[0].number;
    r->s.rules[rule].column = (int)place.notes[1].number;
    return rule;
}

static int read_count(struct reader *r, uint32_t *out) {
    size_t from = r->at;
    uint32_t value = 0;
    for (; r->at < r->size && r->text[r->at] >= '0' && r->text[r->at] <= '9'; r->at++) {
        value = value * 10 + (uint32_t)(r->text[r->at] - '0');
        if (value > GRAMMAR_MAX_COUNT) return refuse(r, from, "counts go up to 1048576");
    }
    if (r->at == from) return refuse(r, from, "a number is missing");
    *out = value;
    return 0;
}

/* What is behind {: m}, m,} or m,n} (or ,n}). */
static int read_braces(struct reader *r, uint32_t *min, uint32_t *max) {
    size_t from = r->at - 1;
    int err = 0;
    skip(r, false);
    *min = 0;
    if (r->at < r->size && r->text[r->at] != ',') err = read_count(r, min);
    *max = *min;
    skip(r, false);
    if (!err && take(r, ',')) {
        skip(r, false);
        *max = SOURCE_NO_END;
        if (r->at < r->size && r->text[r->at] != '}') err = read_count(r, max);
        skip(r, false);
    }
    if (!err && !take(r, '}')) err = refuse(r, from, "this repetition has no closing }");
    if (!err && *max < *min) err = refuse(r, from, "this repetition ends before it begins");
    return err;
}

/* ? * + {m,n} behind what was read. */
static int read_repeats(struct reader *r, int32_t *expr) {
    int err = 0;
    for (int many = 0; !err && r->at < r->size; many++) {
        char c = r->text[r->at];
        uint32_t min = c == '+', max = c == '?' ? 1 : SOURCE_NO_END;
        if (c != '?' && c != '*' && c != '+' && c != '{') break;
        if (many == 8) return refuse(r, r->at, "too many repetitions of the same thing");
        r->at++;
        if (c == '{') err = read_braces(r, &min, &max);
        if (!err) *expr = source_repeat(&r->s, *expr, min, max);
    }
    return err;
}

static int read_alternatives(struct reader *r, int32_t *out);

static int read_group(struct reader *r, int32_t *out) {
    size_t from = r->at - 1;
    if (++r->depth > GRAMMAR_MAX_NESTING)
        return refuse(r, from, "groups are nested more than 64 deep");
    int err = read_alternatives(r, out);
    r->depth--;
    if (!err && !take(r, ')')) err = refuse(r, from, "this group has no closing )");
    return err;
}

static int read_item(struct reader *r, int32_t *out) {
    size_t n = name_size(r, r->at);
    if (n) {
        *out = source_rule_use(&r->s, rule_named(r, r->at, n));
        r->at += n;
        return 0;
    }
    if (take(r, '"')) return read_literal(r, out);
    if (take(r, '[')) return read_class(r, out);
    if (take(r, '(')) return read_group(r, out);
    if (take(r, '.')) {
        *out = source_range(&r->s, 0, 0x10FFFF);
        return 0;
    }
    return refuse(r, r->at, "expected a literal, a class, a group, . or the name of a rule");
}

static bool ends_sequence(const struct reader *r) {
    char c = r->at < r->size ? r->text[r->at] : '\n';
    return c == '\n' || c == '\r' || c == '|' || c == ')';
}

static int read_sequence(struct reader *r, int32_t *out) {
    struct expr_list items = {0};
    int err = 0;
    skip(r, r->depth > 0);
    while (!err && !ends_sequence(r)) {
        int32_t item = SOURCE_EMPTY;
        err = read_item(r, &item);
        if (!err) err = read_repeats(r, &item);
        list_add(&r->s, &items, item);
        skip(r, r->depth > 0);
    }
    *out = source_seq(&r->s, &items);
    return err;
}

/* A line may end before |, as it may behind it. */
static bool more_alternatives(struct reader *r) {
    size_t at = r->at;
    skip(r, true);
    if (take(r, '|')) {
        skip(r, true);
        return true;
    }
    r->at = at;
    return false;
}

static int read_alternatives(struct reader *r, int32_t *out) {
    struct expr_list alternatives = {0};
    int err = 0;
    do {
        int32_t one = SOURCE_EMPTY;
        if (!at_rule(r)) err = read_sequence(r, &one);
        list_add(&r->s, &alternatives, one);
    } while (!err && more_alternatives(r));
    *out = source_alt(&r->s, &alternatives);
    return err;
}

static int read_rule(struct reader *r) {
    size_t from = r->at, n = name_size(r, r->at);
    if (n == 0 || !at_rule(r)) return refuse(r, from, "expected a rule: name ::= …");
    int32_t rule = rule_named(r, from, n), body = SOURCE_EMPTY;
    if (rule >= 0 && r->s.rules[rule].body >= 0) return refuse(r, from, "this rule is there already");
    r->at += n;
    skip(r, false);
    r->at += 3;
    skip(r, true);
    int err = read_alternatives(r, &body);
    if (!err && r->at < r->size && !ends_sequence(r))
        err = refuse(r, r->at, "expected the end of the rule");
    if (!err && r->at < r->size && r->text[r->at] == ')')
        err = refuse(r, r->at, "nothing was opened that ) could close");
    if (!err && rule >= 0 && !r->s.full) r->s.rules[rule].body = body;
    return err;
}

static int read_grammar(struct reader *r, struct grammar **out) {
    int err = 0;
    if (has(r, "\xEF\xBB\xBF")) r->at += 3;
    for (skip(r, true); !err && r->at < r->size && !r->s.full; skip(r, true)) err = read_rule(r);
    if (err) return err;
    for (size_t i = 0; i < r->s.n_rules; i++)
        if (strcmp(r->s.rules[i].name, "root") == 0 && r->s.rules[i].body >= 0)
            return grammar_compile(out, &r->s, (int32_t)i, r->e);
    if (r->s.full) return grammar_compile(out, &r->s, 0, r->e);
    return refuse(r, r->size, "there is no rule named root, which is where a text begins");
}

int grammar_from_gbnf(struct grammar **out, const char *text, size_t size, struct error *e) {
    struct error ignored;
    struct reader r = {.text = text, .size = size, .e = e ? e : &ignored};
    if (size > GRAMMAR_MAX_TEXT)
        return error_set(e, ERR_PARAMS, "the grammar has %zu bytes: at most %d are taken", size,
                         GRAMMAR_MAX_TEXT);
    source_init(&r.s);
    r.names = json_object();
    int err = read_grammar(&r, out);
    json_decref(r.names);
    source_free(&r.s);
    return err;
}
