/* text/jinja/text.c: values as text: str(), repr() and JSON, as Python writes them. */
#include "text/jinja/render.h"
#include "text/unicode.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <utf8proc.h>

static void add_text(struct buf *to, const char *text) {
    buf_add(to, text, strlen(text));
}

static void add_int(struct buf *to, int64_t i) {
    char digits[24];
    buf_add(to, digits, (size_t)snprintf(digits, sizeof digits, "%" PRId64, i));
}

/* The shortest digits that read back as the same number, with an exponent where Python has one. */
void real_add(struct buf *to, double d) {
    char text[40], digits[24];
    if (isnan(d) || isinf(d)) {
        add_text(to, isnan(d) ? "nan" : d < 0 ? "-inf" : "inf");
        return;
    }
    int precision = 0;
    do snprintf(text, sizeof text, "%.*e", precision, d);
    while (strtod(text, NULL) != d && ++precision < 17);
    int exponent = atoi(strchr(text, 'e') + 1), n = 0;
    for (const char *c = text; *c != 'e'; c++)
        if (*c >= '0' && *c <= '9') digits[n++] = *c;
    while (n > 1 && digits[n - 1] == '0') n--;
    if (signbit(d)) buf_add_char(to, '-');
    if (exponent < -4 || exponent >= 16) {
        buf_add(to, digits, 1);
        if (n > 1) buf_add_char(to, '.');
        buf_add(to, digits + 1, (size_t)n - 1);
        buf_add(to, text, (size_t)snprintf(text, sizeof text, "e%c%02d", exponent < 0 ? '-' : '+',
                                           abs(exponent)));
        return;
    }
    if (exponent < 0) add_text(to, "0.");
    for (int i = exponent; i < -1; i++) buf_add_char(to, '0');
    for (int i = 0; i < n || i <= exponent; i++) {
        buf_add_char(to, i < n ? digits[i] : '0');
        if (i == exponent) buf_add_char(to, '.');
    }
    if (n <= exponent + 1) buf_add_char(to, '0');
}

/* --- repr ----------------------------------------------------------------------------------- */

static bool is_printable(uint32_t c) {
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return false;
    case UTF8PROC_CATEGORY_ZS: return c == ' ';
    default: return true;
    }
}

static void add_repr_string(struct render *r, struct buf *to, struct string *s) {
    struct view text = string_view(r, s);
    bool single = memchr(text.data, '\'', text.size), both = memchr(text.data, '"', text.size);
    char quote = single && !both ? '"' : '\'', escape[16];
    if (!render_step(r, text.size / 16)) return;
    buf_add_char(to, quote);
    for (size_t at = 0; at < text.size;) {
        uint32_t c;
        size_t n = utf8_next(text.data + at, &c);
        const char *letter = c == '\n' ? "\\n" : c == '\r' ? "\\r" : c == '\t' ? "\\t" : NULL;
        if (letter) add_text(to, letter);
        else if (c == '\\' || c == (unsigned char)quote) {
            buf_add_char(to, '\\');
            buf_add_char(to, (char)c);
        } else if (is_printable(c)) buf_add(to, text.data + at, n);
        else {
            snprintf(escape, sizeof escape, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x",
                     c);
            add_text(to, escape);
        }
        at += n;
    }
    buf_add_char(to, quote);
}

static void add_items(struct render *r, struct buf *to, const struct value *items, size_t n) {
    for (size_t i = 0; i < n && !r->failed; i++) {
        if (i) add_text(to, ", ");
        value_add_repr(r, to, items[i]);
    }
}

static void add_repr_sequence(struct render *r, struct buf *to, const struct series *s) {
    if (s->kind == SEQ_GENERATOR) {
        add_text(to, "<generator object>");
        return;
    }
    if (s->kind == SEQ_RANGE) {
        char text[80];
        snprintf(text, sizeof text, s->step == 1 ? "range(%lld, %lld)" : "range(%lld, %lld, %lld)",
                 (long long)s->start, (long long)s->stop, (long long)s->step);
        add_text(to, text);
        return;
    }
    bool view = s->kind >= SEQ_KEYS;
    if (view) {
        add_text(to, value_type(value_series((struct series *)s)));
        buf_add_char(to, '(');
    }
    buf_add_char(to, s->kind == SEQ_TUPLE ? '(' : '[');
    add_items(r, to, s->items, s->n);
    if (s->kind == SEQ_TUPLE && s->n == 1) buf_add_char(to, ',');
    buf_add_char(to, s->kind == SEQ_TUPLE ? ')' : ']');
    if (view) buf_add_char(to, ')');
}

static void add_repr_dict(struct render *r, struct buf *to, const struct dict *d) {
    buf_add_char(to, '{');
    for (size_t i = 0; i < d->n && !r->failed; i++) {
        if (i) add_text(to, ", ");
        value_add_repr(r, to, d->entries[i].key);
        add_text(to, ": ");
        value_add_repr(r, to, d->entries[i].value);
    }
    buf_add_char(to, '}');
}

void value_add_repr(struct render *r, struct buf *to, struct value v) {
    if (v.kind == KIND_STRING) add_repr_string(r, to, v.string);
    else if (v.kind == KIND_UNDEFINED) add_text(to, "Undefined");
    else value_add_str(r, to, v);
}

void value_add_str(struct render *r, struct buf *to, struct value v) {
    if (!render_step(r, 1) || !render_check(r, to)) return;
    switch (v.kind) {
    case KIND_UNDEFINED: return;
    case KIND_NONE: add_text(to, "None"); return;
    case KIND_BOOL: add_text(to, v.boolean ? "True" : "False"); return;
    case KIND_INT: add_int(to, v.integer); return;
    case KIND_FLOAT: real_add(to, v.real); return;
    case KIND_STRING: string_add(r, to, v.string); return;
    case KIND_SERIES:
    case KIND_DICT:
    case KIND_NAMESPACE:
        if (v.kind == KIND_NAMESPACE) add_text(to, "<Namespace ");
        if (render_enter(r)) {
            if (v.kind == KIND_SERIES) add_repr_sequence(r, to, v.series);
            else add_repr_dict(r, to, v.dict);
        }
        render_leave(r);
        if (v.kind == KIND_NAMESPACE) buf_add_char(to, '>');
        return;
    case KIND_MACRO:
    case KIND_LOOP:
    case KIND_FUNCTION:
    case KIND_METHOD:
    case KIND_CYCLER:
    case KIND_JOINER: break;
    }
    buf_add_char(to, '<');
    add_text(to, value_type(v));
    buf_add_char(to, '>');
}

struct string *value_str(struct render *r, struct value v) {
    if (v.kind == KIND_STRING) return v.string;
    struct buf text = {0};
    value_add_str(r, &text, v);
    return string_take(r, &text);
}

/* --- JSON ----------------------------------------------------------------------------------- */

static void add_json_escape(struct buf *to, uint32_t c) {
    char text[16];
    const char *letter = c == '"'    ? "\\\""
                         : c == '\\' ? "\\\\"
                         : c == '\n' ? "\\n"
                         : c == '\r' ? "\\r"
                         : c == '\t' ? "\\t"
                         : c == '\b' ? "\\b"
                         : c == '\f' ? "\\f"
                                     : NULL;
    if (!letter && c >= 0x10000)
        snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xD800 + ((c - 0x10000) >> 10),
                 0xDC00 + ((c - 0x10000) & 0x3FF));
    else if (!letter) snprintf(text, sizeof text, "\\u%04x", c);
    add_text(to, letter ? letter : text);
}

static void add_json_string(struct render *r, struct buf *to, struct string *s, bool ascii) {
    struct view text = string_view(r, s);
    if (!render_step(r, text.size / 16)) return;
    buf_add_char(to, '"');
    for (size_t at = 0; at < text.size;) {
        uint32_t c;
        size_t n = utf8_next(text.data + at, &c);
        if (c < ' ' || c == '"' || c == '\\' || (ascii && c > 0x7E)) add_json_escape(to, c);
        else buf_add(to, text.data + at, n);
        at += n;
    }
    buf_add_char(to, '"');
}

static void add_json_real(struct buf *to, double d) {
    if (isnan(d)) add_text(to, "NaN");
    else if (isinf(d)) add_text(to, d < 0 ? "-Infinity" : "Infinity");
    else real_add(to, d);
}

static void add_json(struct render *r, struct buf *to, struct value v,
                     const struct json_style *style, int level);

static void new_line(struct render *r, struct buf *to, const struct json_style *style, int level) {
    if (!style->indent) return;
    buf_add_char(to, '\n');
    for (int i = 0; i < level && render_step(r, 1); i++) add_text(to, style->indent);
}

static void add_json_key(struct render *r, struct buf *to, struct value key,
                         const struct json_style *style) {
    struct buf text = {0};
    if (key.kind == KIND_STRING) {
        add_json_string(r, to, key.string, style->ascii);
        return;
    }
    if (key.kind != KIND_NONE && !is_number(key)) {
        render_fail(r, "TypeError", "keys must be str, int, float, bool or None, not %s",
                    value_type(key));
        return;
    }
    add_json(r, &text, key, style, 0);
    buf_add_char(to, '"');
    buf_add(to, text.data, text.size);
    buf_add_char(to, '"');
    buf_free(&text);
}

/* The numbers of the entries in the order of their keys. Insertion: objects of schemas are small. */
static uint32_t *sorted_entries(struct render *r, const struct dict *d) {
    uint32_t *order = render_take(r, (d->n + 1) * sizeof *order);
    for (size_t i = 0; order && i < d->n; i++) {
        size_t at = i;
        while (at > 0 && !r->failed &&
               value_order(r, d->entries[i].key, d->entries[order[at - 1]].key, "<") < 0) {
            render_step(r, 1);
            order[at] = order[at - 1];
            at--;
        }
        order[at] = (uint32_t)i;
    }
    return r->failed ? NULL : order;
}

static void add_json_dict(struct render *r, struct buf *to, const struct dict *d,
                          const struct json_style *style, int level) {
    uint32_t *order = style->sort_keys ? sorted_entries(r, d) : NULL;
    buf_add_char(to, '{');
    for (size_t i = 0; i < d->n && !r->failed; i++) {
        const struct dict_entry *entry = &d->entries[order ? order[i] : i];
        if (i) add_text(to, style->item_separator);
        new_line(r, to, style, level + 1);
        add_json_key(r, to, entry->key, style);
        add_text(to, style->key_separator);
        add_json(r, to, entry->value, style, level + 1);
    }
    if (d->n) new_line(r, to, style, level);
    buf_add_char(to, '}');
}

static void add_json_list(struct render *r, struct buf *to, const struct series *s,
                          const struct json_style *style, int level) {
    buf_add_char(to, '[');
    for (size_t i = 0; i < s->n && !r->failed; i++) {
        if (i) add_text(to, style->item_separator);
        new_line(r, to, style, level + 1);
        add_json(r, to, s->items[i], style, level + 1);
    }
    if (s->n) new_line(r, to, style, level);
    buf_add_char(to, ']');
}

static void add_json(struct render *r, struct buf *to, struct value v,
                     const struct json_style *style, int level) {
    bool list = v.kind == KIND_SERIES && v.series->kind <= SEQ_TUPLE;
    if (!render_enter(r) || !render_step(r, 1) || !render_check(r, to)) {
        render_leave(r);
        return;
    }
    if (v.kind == KIND_NONE) add_text(to, "null");
    else if (v.kind == KIND_BOOL) add_text(to, v.boolean ? "true" : "false");
    else if (v.kind == KIND_INT) add_int(to, v.integer);
    else if (v.kind == KIND_FLOAT) add_json_real(to, v.real);
    else if (v.kind == KIND_STRING) add_json_string(r, to, v.string, style->ascii);
    else if (v.kind == KIND_DICT) add_json_dict(r, to, v.dict, style, level);
    else if (list) add_json_list(r, to, v.series, style, level);
    else
        render_fail(r, "TypeError", "Object of type %s is not JSON serializable", value_type(v));
    render_leave(r);
}

void value_add_json(struct render *r, struct buf *to, struct value v,
                    const struct json_style *style) {
    add_json(r, to, v, style, 0);
}
