/* text/jinja/filters.c: filters on single values: text, numbers, JSON. */
#include "text/jinja/strings.h"
#include "text/unicode.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#define FILTER(name) \
    static struct value name(struct render *r, struct value v, const struct args *args)

static bool no_arguments(struct render *r, const char *name, const struct args *args) {
    return args_bind(r, name, args, NULL, 0, 0, NULL);
}

/* --- text ----------------------------------------------------------------------------------- */

FILTER(filter_string) {
    if (!no_arguments(r, "string", args)) return v;
    return value_string(value_str(r, v));
}

static struct value cased(struct render *r, struct value v, const struct args *args,
                          enum letter_case to) {
    if (!no_arguments(r, "filter", args)) return v;
    return value_string(text_case(r, value_str(r, v), to));
}
FILTER(filter_upper) {
    return cased(r, v, args, CASE_UPPER);
}
FILTER(filter_lower) {
    return cased(r, v, args, CASE_LOWER);
}
FILTER(filter_capitalize) {
    return cased(r, v, args, CASE_CAPITAL);
}
FILTER(filter_title) {
    if (!no_arguments(r, "title", args)) return v;
    return value_string(text_title_filter(r, value_str(r, v)));
}

FILTER(filter_trim) {
    static const char *const names[] = {"chars"};
    struct value chars = value_none();
    if (!args_bind(r, "trim", args, names, 1, 0, &chars)) return v;
    return value_string(text_strip(r, value_str(r, v),
                                   chars.kind == KIND_STRING ? chars.string : NULL, SIDE_BOTH));
}

FILTER(filter_replace) {
    static const char *const names[] = {"old", "new", "count"};
    struct value a[3] = {value_nothing(), value_nothing(), value_none()};
    if (!args_bind(r, "replace", args, names, 3, 2, a)) return v;
    int64_t most = is_integer(a[2]) ? integer_of(a[2]) : -1;
    return value_string(
        text_replace(r, value_str(r, v), value_str(r, a[0]), value_str(r, a[1]), most));
}

FILTER(filter_center) {
    static const char *const names[] = {"width"};
    struct value width = value_int(80);
    if (!args_bind(r, "center", args, names, 1, 0, &width)) return v;
    if (!is_integer(width)) return render_fail(r, "TypeError", "center: width must be an integer");
    return value_string(text_pad(r, value_str(r, v), integer_of(width), " ", 1, SIDE_BOTH));
}

FILTER(filter_format) {
    struct series *values = series_new(r, SEQ_TUPLE);
    if (args->n > args->n_positional && args->n_positional > 0)
        return render_fail(r, "FilterArgumentError",
                           "can't handle positional and keyword arguments at the same time");
    if (args->n == args->n_positional) {
        for (size_t i = 0; i < args->n; i++) series_add(r, values, args->at[i].value);
        return text_percent(r, value_str(r, v), value_series(values));
    }
    struct dict *named = dict_new(r);
    for (size_t i = 0; i < args->n; i++) {
        const char *key = args->at[i].name;
        dict_set(r, named, value_string(string_borrow(r, key, strlen(key))), args->at[i].value);
    }
    return text_percent(r, value_str(r, v), value_dict(named));
}

FILTER(filter_escape) {
    static const char special[] = "&<>'\"";
    static const char *const entities[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    if (!no_arguments(r, "escape", args)) return v;
    struct view text = string_view(r, value_str(r, v));
    struct buf out = {0};
    if (!render_step(r, text.size / 16)) return v;
    for (size_t i = 0; i < text.size; i++) {
        const char *found = text.data[i] ? strchr(special, text.data[i]) : NULL;
        if (found) buf_add(&out, entities[found - special], strlen(entities[found - special]));
        else buf_add_char(&out, text.data[i]);
    }
    return value_string(string_take(r, &out));
}

FILTER(filter_safe) {
    if (!no_arguments(r, "safe", args)) return v;
    return value_string(value_str(r, v));
}

FILTER(filter_wordcount) {
    int64_t n = 0;
    bool inside = false;
    if (!no_arguments(r, "wordcount", args)) return v;
    struct view text = string_view(r, value_str(r, v));
    if (!render_step(r, text.size / 16)) return v;
    for (size_t at = 0; at < text.size;) {
        uint32_t c;
        at += utf8_next(text.data + at, &c);
        bool part = c == '_' || char_is_numeric(c) || char_is_mark(c) ||
                    (!char_is_space(c) && !char_is_punctuation(c));
        n += part && !inside;
        inside = part;
    }
    return value_int(n);
}

/* Each line but the first (unless asked), and no empty ones (unless asked), moves to the right. */
FILTER(filter_indent) {
    static const char *const names[] = {"width", "first", "blank"};
    struct value a[3] = {value_int(4), value_bool(false), value_bool(false)};
    if (!args_bind(r, "indent", args, names, 3, 0, a)) return v;
    struct buf out = {0};
    struct string *indent = is_integer(a[0])
                                ? text_pad(r, string_borrow(r, "", 0), integer_of(a[0]), " ", 1,
                                           SIDE_LEFT)
                                : value_str(r, a[0]);
    bool blank = value_truth(r, a[2]), indents = value_truth(r, a[1]);
    struct view text = string_view(r, value_str(r, v));
    for (size_t at = 0; at <= text.size && render_step(r, 1) && render_check(r, &out);) {
        const char *end = memchr(text.data + at, '\n', text.size - at);
        size_t to = end ? (size_t)(end - text.data) : text.size;
        if (indents && (blank || to > at || at == 0)) string_add(r, &out, indent);
        buf_add(&out, text.data + at, to - at + (end != NULL));
        at = to + 1;
        indents = true;
    }
    return value_string(string_take(r, &out));
}

FILTER(filter_truncate) {
    static const char *const names[] = {"length", "killwords", "end", "leeway"};
    struct value a[4] = {value_int(255), value_bool(false), value_string(string_borrow(r, "...", 3)),
                         value_int(5)};
    if (!args_bind(r, "truncate", args, names, 4, 0, a)) return v;
    if (!is_integer(a[0]) || !is_integer(a[3]))
        return render_fail(r, "TypeError", "truncate: length and leeway must be integers");
    struct string *s = value_str(r, v), *end = value_str(r, a[2]);
    int64_t length = integer_of(a[0]), leeway = integer_of(a[3]);
    if (length < (int64_t)end->chars)
        return render_fail(r, "AssertionError", "expected length >= %zu, got %lld", end->chars,
                           (long long)length);
    if ((int64_t)s->chars <= length || (int64_t)s->chars - length <= leeway) return value_string(s);
    struct string *cut = string_slice(r, s, 0, (size_t)length - end->chars);
    struct view text = string_view(r, cut);
    const char *space = memrchr(text.data, ' ', text.size);
    if (!value_truth(r, a[1]) && space)
        cut = string_borrow(r, text.data, (size_t)(space - text.data));
    return value_string(string_join(r, cut, end));
}

/* --- numbers -------------------------------------------------------------------------------- */

static bool parse_integer(struct render *r, struct value v, int base, int64_t *out) {
    if (v.kind == KIND_FLOAT) {
        if (!(fabs(v.real) < 9.2e18)) return false;
        *out = (int64_t)v.real;
        return true;
    }
    if (is_integer(v)) {
        *out = integer_of(v);
        return true;
    }
    if (v.kind != KIND_STRING) return false;
    struct view text = string_view(r, text_strip(r, v.string, NULL, SIDE_BOTH));
    char plain[72], *end;
    size_t n = 0;
    if (text.size == 0 || text.size >= sizeof plain) return false;
    for (size_t i = 0; i < text.size; i++) {
        bool between = i > 0 && i + 1 < text.size && text.data[i - 1] != '_';
        if (text.data[i] != '_' || !between) plain[n++] = text.data[i]; /* 1_000 */
    }
    plain[n] = 0;
    errno = 0;
    *out = strtoll(plain, &end, base);
    return !*end && errno == 0;
}

static bool parse_real(struct render *r, struct value v, double *out) {
    if (is_number(v)) {
        *out = number_of(v);
        return true;
    }
    if (v.kind != KIND_STRING) return false;
    struct view text = string_view(r, text_strip(r, v.string, NULL, SIDE_BOTH));
    char plain[128], *end;
    if (text.size == 0 || text.size >= sizeof plain || memchr(text.data, 'x', text.size) ||
        memchr(text.data, 'X', text.size))
        return false;
    memcpy(plain, text.data, text.size);
    plain[text.size] = 0;
    *out = strtod(plain, &end);
    return !*end;
}

FILTER(filter_int) {
    static const char *const names[] = {"default", "base"};
    struct value a[2] = {value_int(0), value_int(10)};
    int64_t i;
    double d;
    if (!args_bind(r, "int", args, names, 2, 0, a)) return v;
    int64_t base = is_integer(a[1]) ? integer_of(a[1]) : 10;
    if (base != 0 && (base < 2 || base > 36))
        return render_fail(r, "ValueError", "int() base must be >= 2 and <= 36, or 0");
    if (v.kind == KIND_UNDEFINED) return render_undefined(r, v);
    if (parse_integer(r, v, (int)base, &i)) return value_int(i);
    if (parse_real(r, v, &d) && fabs(d) < 9.2e18) return value_int((int64_t)d);
    return a[0];
}

FILTER(filter_float) {
    static const char *const names[] = {"default"};
    struct value absent = value_real(0);
    double d;
    if (!args_bind(r, "float", args, names, 1, 0, &absent)) return v;
    if (v.kind == KIND_UNDEFINED) return render_undefined(r, v);
    return parse_real(r, v, &d) ? value_real(d) : absent;
}

FILTER(filter_abs) {
    if (!no_arguments(r, "abs", args)) return v;
    if (v.kind == KIND_UNDEFINED) return render_undefined(r, v);
    if (v.kind == KIND_FLOAT) return value_real(fabs(v.real));
    if (!is_integer(v))
        return render_fail(r, "TypeError", "bad operand type for abs(): '%s'", value_type(v));
    return integer_of(v) < 0 ? operator_apply(r, OP_SUBTRACT, value_int(0), v) : value_int(integer_of(v));
}

/* To the nearest, halves to the even one, of the number's exact value: what printf does. */
static double round_common(double d, int precision) {
    char text[400];
    if (precision < 0) {
        double unit = pow(10, -precision);
        return nearbyint(d / unit) * unit;
    }
    snprintf(text, sizeof text, "%.*f", precision, d);
    return strtod(text, NULL);
}

FILTER(filter_round) {
    static const char *const names[] = {"precision", "method"};
    struct value a[2] = {value_int(0), value_string(string_borrow(r, "common", 6))};
    if (!args_bind(r, "round", args, names, 2, 0, a)) return v;
    if (v.kind == KIND_UNDEFINED) return render_undefined(r, v);
    if (!is_number(v) || !is_integer(a[0]) || a[1].kind != KIND_STRING)
        return render_fail(r, "TypeError", "type %s doesn't define __round__ method", value_type(v));
    int64_t precision = integer_of(a[0]);
    if (precision > 30 || precision < -30)
        return render_fail(r, "ValueError", "round: a precision over 30");
    double d = number_of(v), unit = pow(10, (double)precision);
    string_view(r, a[1].string);
    if (string_is(a[1].string, "ceil")) return value_real(ceil(d * unit) / unit);
    if (string_is(a[1].string, "floor")) return value_real(floor(d * unit) / unit);
    if (!string_is(a[1].string, "common"))
        return render_fail(r, "FilterArgumentError", "method must be common, ceil or floor");
    double rounded = round_common(d, (int)precision);
    return is_integer(v) ? value_int((int64_t)rounded) : value_real(rounded);
}

/* --- the rest ------------------------------------------------------------------------------- */

FILTER(filter_default) {
    static const char *const names[] = {"default_value", "boolean"};
    struct value a[2] = {value_string(string_borrow(r, "", 0)), value_bool(false)};
    if (!args_bind(r, "default", args, names, 2, 0, a)) return v;
    bool absent = v.kind == KIND_UNDEFINED || (value_truth(r, a[1]) && !value_truth(r, v));
    return absent ? a[0] : v;
}

FILTER(filter_attr) {
    static const char *const names[] = {"name"};
    struct value name = value_nothing();
    if (!args_bind(r, "attr", args, names, 1, 1, &name)) return v;
    name = value_string(value_str(r, name));
    string_view(r, name.string);
    /* attr() looks at attributes alone: a dict's keys are none. */
    if (v.kind == KIND_DICT && !builtin_find(dict_methods, name.string->data, name.string->size))
        return undefined_member(r, v, name, false);
    return value_attribute(r, v, name);
}

/* Spaces, or the string that is repeated. */
static const char *json_indent(struct render *r, struct value v) {
    if (v.kind == KIND_NONE) return NULL;
    int64_t n = is_integer(v) ? integer_of(v) : 0;
    struct string *s = v.kind == KIND_STRING ? v.string
                                             : text_pad(r, string_borrow(r, "", 0),
                                                        n < 100 ? n : 100, " ", 1, SIDE_LEFT);
    struct view text = string_view(r, s);
    char *copy = render_take(r, text.size + 1);
    if (!copy) return "";
    memcpy(copy, text.data, text.size);
    copy[text.size] = 0;
    return copy;
}

static const char *separator(struct render *r, struct value pair, size_t i) {
    struct series *two = value_list(r, pair);
    if (r->failed) return "";
    if (two->n == 2 && two->items[i].kind == KIND_STRING) return json_indent(r, two->items[i]);
    render_fail(r, "ValueError", "tojson: separators must be two strings");
    return "";
}

FILTER(filter_tojson) {
    static const char *const names[] = {"ensure_ascii", "indent", "separators", "sort_keys"};
    struct value a[4] = {value_bool(false), value_none(), value_none(), value_bool(false)};
    if (!args_bind(r, "tojson", args, names, 4, 0, a)) return v;
    struct json_style style = {.ascii = value_truth(r, a[0]),
                               .sort_keys = value_truth(r, a[3]),
                               .indent = json_indent(r, a[1])};
    style.item_separator = style.indent ? "," : ", ";
    style.key_separator = ": ";
    if (a[2].kind != KIND_NONE) {
        style.item_separator = separator(r, a[2], 0);
        style.key_separator = separator(r, a[2], 1);
    }
    struct buf out = {0};
    if (!r->failed) value_add_json(r, &out, v, &style);
    return value_string(string_take(r, &out));
}

FILTER(filter_urlencode) {
    static const char hex[] = "0123456789ABCDEF";
    if (!no_arguments(r, "urlencode", args)) return v;
    struct view text = string_view(r, value_str(r, v));
    struct buf out = {0};
    if (!render_step(r, text.size / 16)) return v;
    for (size_t i = 0; i < text.size; i++) {
        unsigned char c = (unsigned char)text.data[i];
        bool plain = (c | 32u) - 'a' < 26u || c - 0u - '0' < 10u || (c && strchr("_.-~/", c));
        if (plain) buf_add_char(&out, (char)c);
        else {
            char escape[3] = {'%', hex[c >> 4], hex[c & 15]};
            buf_add(&out, escape, 3);
        }
    }
    return value_string(string_take(r, &out));
}

const struct function text_filters[] = {
    {"string", filter_string},
    {"upper", filter_upper},
    {"lower", filter_lower},
    {"capitalize", filter_capitalize},
    {"title", filter_title},
    {"trim", filter_trim},
    {"replace", filter_replace},
    {"center", filter_center},
    {"format", filter_format},
    {"escape", filter_escape},
    {"e", filter_escape},
    {"forceescape", filter_escape},
    {"safe", filter_safe},
    {"wordcount", filter_wordcount},
    {"indent", filter_indent},
    {"truncate", filter_truncate},
    {"int", filter_int},
    {"float", filter_float},
    {"abs", filter_abs},
    {"round", filter_round},
    {"default", filter_default},
    {"d", filter_default},
    {"attr", filter_attr},
    {"tojson", filter_tojson},
    {"urlencode", filter_urlencode},
    {NULL, NULL},
};

const struct function *builtin_filter(const char *name, size_t size) {
    const struct function *f = builtin_find(text_filters, name, size);
    return f ? f : builtin_find(list_filters, name, size);
}
