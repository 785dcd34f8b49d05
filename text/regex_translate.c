/* text/regex_translate.c: Oniguruma's (Ruby) spelling into PCRE2's, where the two read the same
 * letters otherwise:
 *
 *   \s \w \h              other sets of characters, inside and outside of classes
 *   [[:alpha:]] …         likewise
 *   \p{Han}               PCRE2 takes script extensions, Oniguruma the script
 *   \uHHHH                unknown to PCRE2
 *   {n,m}+                in Ruby a repetition of the repetition, in PCRE2 a possessive one
 *   {,m}                  in PCRE2 literal
 *   (?m)                  "dot matches newline", PCRE2's (?s); ^ and $ always match at lines
 *   [a[bc]], [a&&[^b]]    unions and intersections of classes, unknown to PCRE2 10
 */
#include "text/regex.h"

#include "text/buffer.h"

#include <ctype.h>
#include <pcre2.h>
#include <stdio.h>

enum { MAX_DEPTH = 32 }; /* of groups and of classes in classes */

#define SPACE_SET "\\t-\\r\\x{85}\\p{Z}"
#define WORD_SET  "\\p{Alphabetic}\\p{M}\\p{N}\\p{Pc}"
#define HEX_SET   "0-9A-Fa-f"

struct translation {
    const char *in;
    size_t size, at;
    struct buf *out;
    struct error *e;
};

static void put(struct buf *out, const char *text) {
    buf_add(out, text, strlen(text));
}

static int peek(const struct translation *t, size_t ahead) {
    return ahead < t->size - t->at ? (unsigned char)t->in[t->at + ahead] : -1;
}

static bool looking_at(const struct translation *t, const char *word) {
    size_t n = strlen(word);
    return n <= t->size - t->at && memcmp(t->in + t->at, word, n) == 0;
}

static int broken(const struct translation *t, const char *why) {
    return error_set(t->e, ERR_BAD_FILE, "the regular expression \"%.*s\" is broken: %s",
                     t->size < 100 ? (int)t->size : 100, t->in, why);
}

/* Whether PCRE2 knows a script of this name. */
static bool is_script(const char *name, size_t size) {
    char pattern[64];
    int code;
    PCRE2_SIZE at;
    snprintf(pattern, sizeof pattern, "\\p{sc:%.*s}", (int)size, name);
    pcre2_code *compiled =
        pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF, &code, &at, NULL);
    pcre2_code_free(compiled);
    return compiled != NULL;
}

/* \p{…} and \P{…}: t->at stands on the backslash. */
static void property(struct translation *t, struct buf *out) {
    const char *name = t->in + t->at + 3;
    const char *end = memchr(name, '}', t->size - t->at - 3);
    if (!end || end - name > 40) {
        buf_add(out, t->in + t->at, 3);
        t->at += 3;
        return;
    }
    buf_add(out, t->in + t->at, 3);
    if (*name == '^') buf_add(out, name++, 1);
    if (end - name > 2 && is_script(name, (size_t)(end - name))) put(out, "sc:");
    buf_add(out, name, (size_t)(end - name) + 1);
    t->at = (size_t)(end - t->in) + 1;
}

/* An escape; t->at stands on the backslash. in_class: sets are spelt without brackets. */
static void escape(struct translation *t, struct buf *out, bool in_class) {
    static const struct {
        char letter;
        const char *set;
    } sets[] = {{'s', SPACE_SET}, {'w', WORD_SET}, {'h', HEX_SET}};
    int letter = peek(t, 1);
    if ((letter == 'p' || letter == 'P') && peek(t, 2) == '{') {
        property(t, out);
        return;
    }
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        bool negated = letter == toupper(sets[i].letter);
        if (letter != sets[i].letter && !negated) continue;
        if (negated && in_class) break; /* no way to write it there; PCRE2's own set is close */
        if (!in_class) put(out, negated ? "[^" : "[");
        put(out, sets[i].set);
        if (!in_class) put(out, "]");
        t->at += 2;
        return;
    }
    if (letter == 'u' && isxdigit(peek(t, 2)) && isxdigit(peek(t, 3)) && isxdigit(peek(t, 4)) &&
        isxdigit(peek(t, 5))) {
        put(out, "\\x{");
        buf_add(out, t->in + t->at + 2, 4);
        put(out, "}");
        t->at += 6;
        return;
    }
    size_t n = letter < 0 ? 1 : 2;
    buf_add(out, t->in + t->at, n);
    t->at += n;
}

/* [:name:] inside a class; false when it is not one. */
static bool posix_class(struct translation *t, struct buf *out) {
    static const struct {
        const char *name, *set;
    } classes[] = {{"[:space:]", SPACE_SET},
                   {"[:punct:]", "\\p{P}\\p{S}"},
                   {"[:alpha:]", "\\p{Alphabetic}"},
                   {"[:alnum:]", "\\p{Alphabetic}\\p{Nd}"},
                   {"[:word:]", WORD_SET}};
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
        if (looking_at(t, classes[i].name)) {
            put(out, classes[i].set);
            t->at += strlen(classes[i].name);
            return true;
        }
    if (peek(t, 0) != '[' || peek(t, 1) != ':') return false;
    const char *end = memchr(t->in + t->at, ']', t->size - t->at);
    if (!end || end[-1] != ':') return false;
    buf_add(out, t->in + t->at, (size_t)(end - t->in) + 1 - t->at);
    t->at = (size_t)(end - t->in) + 1;
    return true;
}

/* What one class is made of, between its && signs. */
struct operand {
    struct buf plain;  /* characters and ranges, as inside of brackets */
    struct buf nested; /* classes in this class: "|" before each */
};

static void put_operand(struct buf *out, const struct operand *o) {
    put(out, "(?:");
    if (o->plain.size) {
        put(out, "[");
        buf_add(out, o->plain.data, o->plain.size);
        put(out, "]");
        buf_add(out, o->nested.data, o->nested.size);
    } else if (o->nested.size) buf_add(out, o->nested.data + 1, o->nested.size - 1);
    put(out, ")");
}

/* A class; t->at stands on its bracket. One without nested classes stays a class; else it becomes a
 * group that matches one character: lookaheads for all operands but the last. */
static int class(struct translation *t, struct buf *out, int depth) {
    if (depth > MAX_DEPTH) return broken(t, "classes are nested too deeply");
    t->at++;
    bool negated = peek(t, 0) == '^';
    t->at += negated;
    struct operand now = {0};
    struct buf before = {0}; /* operands with && behind them, as lookaheads */
    bool first = true;
    int err = 0;
    for (; !err && (first || peek(t, 0) != ']'); first = false) {
        int c = peek(t, 0);
        if (c < 0) err = broken(t, "a class has no end");
        else if (c == '\\') escape(t, &now.plain, true);
        else if (posix_class(t, &now.plain)) continue;
        else if (c == '[') {
            put(&now.nested, "|");
            err = class(t, &now.nested, depth + 1);
        } else if (looking_at(t, "&&")) {
            put(&before, "(?=");
            put_operand(&before, &now);
            put(&before, ")");
            now.plain.size = now.nested.size = 0;
            t->at += 2;
        } else {
            buf_add_char(&now.plain, (char)c);
            t->at++;
        }
    }
    if (!err) {
        t->at++;
        if (now.nested.size == 0 && before.size == 0) {
            put(out, negated ? "[^" : "[");
            buf_add(out, now.plain.data, now.plain.size);
            put(out, "]");
        } else {
            put(out, negated ? "(?:(?!" : "(?:");
            buf_add(out, before.data, before.size);
            put_operand(out, &now);
            put(out, negated ? ")(?s:.))" : ")");
        }
    }
    buf_free(&now.plain);
    buf_free(&now.nested);
    buf_free(&before);
    return err;
}

/* {n}, {n,}, {,m}, {n,m} behind the atom that begins at out[atom]; false when it is a brace. */
static bool repetition(struct translation *t, size_t atom) {
    size_t n = 1, digits = 0;
    bool comma = false;
    for (int c; (c = peek(t, n)) != '}'; n++) {
        if (isdigit(c)) digits++;
        else if (c == ',' && !comma) comma = true;
        else return false;
    }
    if (digits == 0) return false;
    put(t->out, peek(t, 1) == ',' ? "{0" : "{");
    buf_add(t->out, t->in + t->at + 1, n);
    t->at += n + 1;
    if (peek(t, 0) != '+') return true;
    t->at++;
    put(t->out, ")+");
    if (!buf_reserve(t->out, 3)) return true;
    memmove(t->out->data + atom + 3, t->out->data + atom, t->out->size - atom);
    memcpy(t->out->data + atom, "(?:", 3);
    t->out->size += 3;
    return true;
}

/* "(", and behind "(?" the option letters, in which m means s. */
static void open_group(struct translation *t) {
    buf_add_char(t->out, '(');
    t->at++;
    if (peek(t, 0) != '?') return;
    size_t n = 1;
    while (peek(t, n) == '-' || (peek(t, n) >= 'a' && peek(t, n) <= 'z')) n++;
    bool options = peek(t, n) == ':' || peek(t, n) == ')';
    if (!options) n = 1;
    for (size_t i = 0; i < n; i++) {
        char c = t->in[t->at + i];
        buf_add_char(t->out, options && c == 'm' ? 's' : c);
    }
    t->at += n;
}

int regex_translate(struct buf *out, const char *pattern, size_t size, struct error *e) {
    struct translation t = {pattern, size, 0, out, e};
    size_t groups[MAX_DEPTH], depth = 0, atom = out->size;
    while (t.at < size && !out->failed) {
        int c = peek(&t, 0), err = 0;
        size_t here = out->size;
        if (c == '{' && repetition(&t, atom)) continue;
        if (c == '*' || c == '+' || c == '?' || c == '|') {
            buf_add_char(out, (char)c);
            t.at++;
            continue;
        }
        if (c == ')') {
            buf_add_char(out, ')');
            t.at++;
            atom = depth > 0 ? groups[--depth] : here;
            continue;
        }
        atom = here;
        if (c == '(') {
            if (depth == MAX_DEPTH) return broken(&t, "groups are nested too deeply");
            groups[depth++] = here;
            open_group(&t);
        } else if (c == '[') err = class(&t, out, 0);
        else if (c == '\\') escape(&t, out, false);
        else {
            uint32_t ignored = (unsigned char)pattern[t.at];
            size_t n = ignored < 0x80 ? 1 : ignored < 0xE0 ? 2 : ignored < 0xF0 ? 3 : 4;
            if (n > size - t.at) n = size - t.at;
            buf_add(out, pattern + t.at, n);
            t.at += n;
        }
        if (err) return err;
    }
    return 0;
}
