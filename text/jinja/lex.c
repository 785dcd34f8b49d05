/* text/jinja/jinja_lex.c: text to tokens. Here is all of the white space control: `-` and `+` at a tag's
 * ends, the newline behind a block or comment that goes (trim_blocks), the indentation in front of
 * one (lstrip_blocks). */
#include "text/jinja/ast.h"

#include "text/buffer.h"
#include "text/unicode.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <utf8proc.h>

struct lexer {
    struct arena *arena;
    const char *text;
    size_t size, at;
    uint32_t line, column;
    bool line_starts; /* what was read last ended with a newline, or nothing was */
    char open[64];    /* brackets of the tag that are open */
    int n_open;
    struct tokens *out;
    struct error *e;
};

int jinja_syntax_error(struct error *e, uint32_t line, uint32_t column, const char *format, ...) {
    char message[400];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    error_set(e, ERR_BAD_FILE, "TemplateSyntaxError: %s", message);
    error_note_number(e, "line", line);
    error_note_number(e, "column", column);
    return -(int)ERR_BAD_FILE;
}

static bool looking_at(const struct lexer *l, size_t at, const char *text) {
    size_t n = strlen(text);
    return l->size - at >= n && memcmp(l->text + at, text, n) == 0;
}

static void advance(struct lexer *l, size_t to) {
    if (to > l->at) l->line_starts = l->text[to - 1] == '\n';
    for (; l->at < to; l->at++) {
        unsigned char c = (unsigned char)l->text[l->at];
        if (c == '\n') {
            l->line++;
            l->column = 1;
        } else if ((c & 0xC0) != 0x80) l->column++;
    }
}

/* The first byte at or behind `at` that is no white space. */
static size_t behind_space(const struct lexer *l, size_t at) {
    while (at < l->size) {
        uint32_t c;
        size_t n = utf8_next(l->text + at, &c);
        if (!char_is_space(c)) break;
        at += n;
    }
    return at;
}

static size_t before_space(const struct lexer *l, size_t from, size_t to) {
    while (to > from) {
        uint32_t c;
        size_t before = utf8_before(l->text, to);
        utf8_next(l->text + before, &c);
        if (!char_is_space(c)) break;
        to = before;
    }
    return to;
}

static struct token *put(struct lexer *l, enum token_kind kind) {
    struct tokens *t = l->out;
    if (t->n == t->capacity) {
        size_t want = t->capacity ? t->capacity * 2 : 256;
        struct token *at = arena_take(l->arena, want * sizeof *at);
        if (!at) return NULL;
        if (t->n) memcpy(at, t->at, t->n * sizeof *at);
        t->at = at;
        t->capacity = want;
    }
    struct token *token = &t->at[t->n++];
    *token = (struct token){.kind = kind, .line = l->line, .column = l->column};
    return token;
}

static int no_memory(struct lexer *l) {
    return error_set(l->e, ERR_MEMORY, "no memory for a template");
}

static int put_span(struct lexer *l, enum token_kind kind, const char *text, size_t size) {
    struct token *token = put(l, kind);
    if (!token) return no_memory(l);
    token->text = text;
    token->size = size;
    return 0;
}

static int fail(struct lexer *l, const char *message) {
    return jinja_syntax_error(l->e, l->line, l->column, "%s", message);
}

/* Text up to a tag at `to` whose sign is given (0: none). */
static int put_text(struct lexer *l, size_t to, char sign, bool may_strip) {
    size_t end = to;
    if (sign == '-') end = before_space(l, l->at, to);
    else if (sign != '+' && may_strip) {
        size_t line = to;
        while (line > l->at && l->text[line - 1] != '\n') line--;
        if ((line > l->at || l->line_starts) && before_space(l, line, to) == line) end = line;
    }
    int err = end > l->at ? put_span(l, TOKEN_TEXT, l->text + l->at, end - l->at) : 0;
    advance(l, to);
    return err;
}

/* The end of an end tag at `at` ("%}" with its sign and what the sign or trimming takes), or 0 when
 * there is none. plus: whether "+" may stand there; trim: whether a newline behind goes. */
static size_t end_tag(const struct lexer *l, size_t at, const char *tag, bool plus, bool trim) {
    if (at < l->size && l->text[at] == '-' && looking_at(l, at + 1, tag))
        return behind_space(l, at + 3);
    if (plus && at < l->size && l->text[at] == '+' && looking_at(l, at + 1, tag)) return at + 3;
    if (!looking_at(l, at, tag)) return 0;
    return at + 2 + (trim && at + 2 < l->size && l->text[at + 2] == '\n');
}

static bool is_sign(const struct lexer *l, size_t at) {
    return at < l->size && (l->text[at] == '-' || l->text[at] == '+');
}

static int lex_comment(struct lexer *l, size_t begin) {
    advance(l, begin + 2 + is_sign(l, begin + 2));
    for (size_t at = l->at; at < l->size; at++) {
        size_t end = end_tag(l, at, "#}", true, true);
        if (!end) continue;
        advance(l, end);
        return 0;
    }
    return fail(l, "Missing end of comment tag");
}

/* "{% raw %}" at `begin`: the offset behind it, or 0. */
static size_t raw_begins(const struct lexer *l, size_t begin) {
    size_t at = behind_space(l, begin + 2 + is_sign(l, begin + 2));
    if (!looking_at(l, at, "raw")) return 0;
    return end_tag(l, behind_space(l, at + 3), "%}", false, false);
}

static int lex_raw(struct lexer *l, size_t behind) {
    advance(l, behind);
    for (size_t at = l->at; at < l->size; at++) {
        if (!looking_at(l, at, "{%")) continue;
        size_t word = behind_space(l, at + 2 + is_sign(l, at + 2));
        if (!looking_at(l, word, "endraw")) continue;
        size_t end = end_tag(l, behind_space(l, word + 6), "%}", true, true);
        if (!end) continue;
        int err = put_text(l, at, is_sign(l, at + 2) ? l->text[at + 2] : 0, true);
        advance(l, end);
        return err;
    }
    return fail(l, "Missing end of raw directive");
}

/* --- inside a tag --------------------------------------------------------------------------- */

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

/* Digits of a base, with single underlines between: how many bytes. */
static size_t digits(const struct lexer *l, size_t at, const char *allowed) {
    size_t from = at;
    while (at < l->size && l->text[at] &&
           (strchr(allowed, l->text[at]) ||
            (l->text[at] == '_' && at + 1 < l->size && l->text[at + 1] &&
             strchr(allowed, l->text[at + 1]))))
        at++;
    return at - from;
}

/* Where the float that begins at `at` ends, or 0: it is none. */
static size_t float_end(const struct lexer *l, size_t at) {
    static const char decimal[] = "0123456789";
    if (at > 0 && l->text[at - 1] == '.') return 0; /* a.0.1 are two subscripts */
    size_t end = at + digits(l, at, decimal), n;
    bool point = false;
    if (end < l->size && l->text[end] == '.' && (n = digits(l, end + 1, decimal)) > 0 &&
        is_digit(l->text[end + 1])) {
        end += 1 + n;
        point = true;
    }
    size_t e = end;
    if (e < l->size && (l->text[e] | 32) == 'e') {
        e++;
        if (is_sign(l, e)) e++;
        n = digits(l, e, decimal);
        if (n > 0 && is_digit(l->text[e])) return e + n;
    }
    return point ? end : 0;
}

static int lex_number(struct lexer *l) {
    char plain[64];
    size_t end = float_end(l, l->at), n = 0;
    bool real = end != 0;
    int base = 10;
    if (!real) {
        static const char *const alphabets[] = {"01", "01234567", "0123456789abcdefABCDEF"};
        char letter = l->at + 1 < l->size ? (char)(l->text[l->at + 1] | 32) : 0;
        int i = l->text[l->at] != '0' ? -1
                : letter == 'b'       ? 0
                : letter == 'o'       ? 1
                : letter == 'x'       ? 2
                                      : -1;
        size_t more = i < 0 ? 0 : digits(l, l->at + 2, alphabets[i]);
        if (more) base = i == 0 ? 2 : i == 1 ? 8 : 16;
        end = more ? l->at + 2 + more
                   : l->at + digits(l, l->at, l->text[l->at] == '0' ? "0" : "0123456789");
    }
    for (size_t i = l->at + (base == 10 ? 0 : 2); i < end; i++)
        if (l->text[i] != '_' && n < sizeof plain - 1) plain[n++] = l->text[i];
    plain[n] = 0;
    struct token *token = put(l, real ? TOKEN_FLOAT : TOKEN_INTEGER);
    if (!token) return no_memory(l);
    errno = 0;
    if (real) token->real = strtod(plain, NULL);
    else token->integer = strtoll(plain, NULL, base);
    if (n == sizeof plain - 1 || (!real && errno == ERANGE))
        return fail(l, "the number is too large: tpd takes integers of 64 bits");
    advance(l, end);
    return 0;
}

/* \xhh, \uhhhh, \Uhhhhhhhh: the value of n digits at `at`, or -1. */
static int64_t hex(const char *text, size_t size, size_t at, size_t n) {
    int64_t value = 0;
    if (size - at < n) return -1;
    for (size_t i = at; i < at + n; i++) {
        char c = (char)(text[i] | 32);
        if (!is_digit(text[i]) && (c < 'a' || c > 'f')) return -1;
        value = value * 16 + (is_digit(text[i]) ? text[i] - '0' : c - 'a' + 10);
    }
    return value;
}

static void add_character(struct buf *to, int64_t c) {
    char bytes[4];
    if (c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF)) c = 0xFFFD; /* half a pair */
    buf_add(to, bytes, utf8_put(bytes, (uint32_t)c));
}

/* One escape at text[at] = '\\'; gives the offset behind it, 0 when it is broken. An unknown escape
 * stands for itself. */
static size_t unescape(const char *text, size_t size, size_t at, struct buf *to) {
    static const char letters[] = "\\'\"abfnrtv", meanings[] = "\\'\"\a\b\f\n\r\t\v";
    char c = text[at + 1];
    const char *simple = c ? strchr(letters, c) : NULL;
    size_t n = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (c == '\n') return at + 2;
    if (simple) {
        buf_add_char(to, meanings[simple - letters]);
        return at + 2;
    }
    if (n) {
        int64_t value = hex(text, size, at + 2, n);
        if (value < 0 || value > 0x10FFFF) return 0;
        at += 2 + n;
        if (value >= 0xD800 && value < 0xDC00 && at + 2 <= size && text[at] == '\\' &&
            text[at + 1] == 'u') {
            int64_t low = hex(text, size, at + 2, 4);
            if (low >= 0xDC00 && low <= 0xDFFF) {
                value = 0x10000 + ((value - 0xD800) << 10) + (low - 0xDC00);
                at += 6;
            }
        }
        add_character(to, value);
        return at;
    }
    if (c >= '0' && c <= '7') {
        int value = 0;
        for (n = 0; n < 3 && at + 1 + n < size && text[at + 1 + n] >= '0' && text[at + 1 + n] <= '7';
             n++)
            value = value * 8 + (text[at + 1 + n] - '0');
        add_character(to, value);
        return at + 1 + n;
    }
    if (c == 'N') return 0; /* characters by name */
    buf_add_char(to, '\\');
    return at + 1;
}

static int lex_string(struct lexer *l) {
    char quote = l->text[l->at];
    size_t from = l->at + 1, end = from;
    bool escaped = false;
    while (end < l->size && l->text[end] != quote) {
        escaped = escaped || l->text[end] == '\\';
        end += l->text[end] == '\\' ? 2 : 1;
    }
    if (end >= l->size) return fail(l, "a string that does not end");
    if (!escaped) {
        int err = put_span(l, TOKEN_STRING, l->text + from, end - from);
        advance(l, end + 1);
        return err;
    }
    struct buf value = {0};
    for (size_t at = from; at < end;) {
        if (l->text[at] == '\\') {
            at = unescape(l->text, end, at, &value);
            if (!at) {
                buf_free(&value);
                return fail(l, "a string with an escape that tpd can not read");
            }
        } else buf_add_char(&value, l->text[at++]);
    }
    char *copy = value.failed ? NULL : arena_take(l->arena, value.size + 1);
    if (copy && value.size) memcpy(copy, value.data, value.size);
    int err = copy ? put_span(l, TOKEN_STRING, copy, value.size) : no_memory(l);
    buf_free(&value);
    advance(l, end + 1);
    return err;
}

/* Bytes of the name at `at`: letters, digits, underlines. */
static size_t name_size(const struct lexer *l, size_t at) {
    size_t from = at;
    while (at < l->size) {
        uint32_t c;
        size_t n = utf8_next(l->text + at, &c);
        bool part = c < 0x80 ? (c | 32) - 'a' < 26u || c - '0' < 10u || c == '_'
                             : char_is_numeric(c) || char_is_mark(c) ||
                                   utf8proc_category((utf8proc_int32_t)c) <= UTF8PROC_CATEGORY_LO;
        if (!part) break;
        at += n;
    }
    return at - from;
}

static int lex_operator(struct lexer *l) {
    static const char *const operators[] = {"**", "//", "==", "!=", ">=", "<=", "+", "-", "/",
                                            "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                            ">",  "<",  "=",  ".",  ":",  "|",  ",", ";", NULL};
    const char *const *op = operators;
    while (*op && !looking_at(l, l->at, *op)) op++;
    if (!*op) {
        uint32_t c;
        size_t n = utf8_next(l->text + l->at, &c);
        return jinja_syntax_error(l->e, l->line, l->column, "unexpected char '%.*s' at %zu", (int)n,
                            l->text + l->at, l->at);
    }
    if (strchr("([{", **op)) {
        if (l->n_open == sizeof l->open) return fail(l, "brackets are nested too deeply");
        l->open[l->n_open++] = **op == '(' ? ')' : **op == '[' ? ']' : '}';
    } else if (strchr(")]}", **op)) {
        if (l->n_open == 0)
            return jinja_syntax_error(l->e, l->line, l->column, "unexpected '%s'", *op);
        char expected = l->open[--l->n_open];
        if (expected != **op)
            return jinja_syntax_error(l->e, l->line, l->column, "unexpected '%s', expected '%c'", *op,
                                expected);
    }
    int err = put_span(l, TOKEN_OPERATOR, *op, strlen(*op));
    advance(l, l->at + strlen(*op));
    return err;
}

/* A tag that begins at l->at. */
static int lex_tag(struct lexer *l, bool block) {
    const char *tag = block ? "%}" : "}}";
    int err = put_span(l, block ? TOKEN_BLOCK_BEGIN : TOKEN_VARIABLE_BEGIN, l->text + l->at, 2);
    advance(l, l->at + 2 + is_sign(l, l->at + 2));
    l->n_open = 0;
    while (!err) {
        if (l->at == l->size) return 0; /* the parser misses the end */
        size_t end = l->n_open ? 0 : end_tag(l, l->at, tag, block, block);
        if (end) {
            err = put_span(l, block ? TOKEN_BLOCK_END : TOKEN_VARIABLE_END, tag, 2);
            advance(l, end);
            return err;
        }
        size_t n = behind_space(l, l->at) - l->at;
        char c = l->text[l->at];
        if (n) advance(l, l->at + n);
        else if (is_digit(c)) err = lex_number(l);
        else if (c == '\'' || c == '"') err = lex_string(l);
        else if ((n = name_size(l, l->at)) > 0) {
            err = put_span(l, TOKEN_NAME, l->text + l->at, n);
            advance(l, l->at + n);
        } else err = lex_operator(l);
    }
    return err;
}

int jinja_lex(struct arena *arena, const char *source, size_t size, struct tokens *out,
        struct error *e) {
    struct lexer l = {.arena = arena, .text = source, .size = size, .line = 1, .column = 1,
                      .line_starts = true, .out = out, .e = e};
    int err = 0;
    while (!err && l.at < size) {
        size_t tag = l.at;
        while (tag < size && !(l.text[tag] == '{' && tag + 1 < size && l.text[tag + 1] &&
                               strchr("%{#", l.text[tag + 1])))
            tag++;
        if (tag == size) {
            err = put_text(&l, size, '+', false);
            break;
        }
        char kind = l.text[tag + 1], sign = is_sign(&l, tag + 2) ? l.text[tag + 2] : 0;
        size_t raw = kind == '%' ? raw_begins(&l, tag) : 0;
        err = put_text(&l, tag, sign, kind != '{');
        if (err) break;
        if (raw) err = lex_raw(&l, raw);
        else if (kind == '#') err = lex_comment(&l, tag);
        else err = lex_tag(&l, kind == '%');
    }
    if (!err && !put(&l, TOKEN_END)) err = no_memory(&l);
    return err;
}
