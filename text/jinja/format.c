/* text/jinja/format.c: '%s' % x and '{}'.format(x), as far as templates go with them. */
#include "text/jinja/strings.h"
#include "text/unicode.h"

#include <inttypes.h>
#include <stdio.h>

enum { MAX_WIDTH = 10000, MAX_PRECISION = 50 };

/* A number as C writes it. */
static struct string *number_text(struct render *r, struct value v, char letter, int precision,
                                  bool plus) {
    char format[16], text[512];
    int n;
    if (strchr("dixXob", letter)) {
        int64_t i = v.kind == KIND_FLOAT ? (int64_t)v.real : integer_of(v);
        uint64_t size = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
        char digits[72];
        int at = sizeof digits;
        unsigned base = letter == 'b' ? 2 : letter == 'o' ? 8 : (letter | 32) == 'x' ? 16 : 10;
        do digits[--at] = (letter == 'X' ? "0123456789ABCDEF" : "0123456789abcdef")[size % base];
        while (size /= base);
        n = snprintf(text, sizeof text, "%s%.*s", i < 0 ? "-" : plus ? "+" : "",
                     (int)sizeof digits - at, digits + at);
    } else {
        snprintf(format, sizeof format, "%%%s.*%c", plus ? "+" : "", letter);
        n = snprintf(text, sizeof text, format, precision < 0 ? 6 : precision, number_of(v));
    }
    return string_new(r, text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1);
}

/* Commas between groups of three digits. */
static struct string *group_digits(struct render *r, struct string *number) {
    struct view text = string_view(r, number);
    struct buf out = {0};
    size_t begin = text.size && strchr("+-", *text.data) ? 1 : 0, end = begin;
    while (end < text.size && text.data[end] >= '0' && text.data[end] <= '9') end++;
    buf_add(&out, text.data, begin);
    for (size_t i = begin; i < end; i++) {
        if (i > begin && (end - i) % 3 == 0) buf_add_char(&out, ',');
        buf_add_char(&out, text.data[i]);
    }
    buf_add(&out, text.data + end, text.size - end);
    return string_take(r, &out);
}

/* Zeros between sign and digits. */
static struct string *zero_fill(struct render *r, struct string *number, int64_t width) {
    struct view text = string_view(r, number);
    size_t sign = text.size && strchr("+-", *text.data) ? 1 : 0;
    struct string *digits = string_slice(r, number, sign, number->chars);
    return string_join(r, string_slice(r, number, 0, sign),
                       text_pad(r, digits, width - (int64_t)sign, "0", 1, SIDE_LEFT));
}

static int read_number(struct view text, size_t *at, int most) {
    int n = 0;
    while (*at < text.size && text.data[*at] >= '0' && text.data[*at] <= '9') {
        n = n * 10 + (text.data[(*at)++] - '0');
        if (n > most) n = most;
    }
    return n;
}

/* --- printf --------------------------------------------------------------------------------- */

struct conversion {
    bool left, zero, plus;
    int width, precision; /* precision < 0: none */
    char letter;
};

static size_t read_conversion(struct view text, size_t at, struct conversion *c) {
    *c = (struct conversion){.precision = -1};
    for (; at < text.size && text.data[at] && strchr("-0+ #", text.data[at]); at++) {
        c->left |= text.data[at] == '-';
        c->zero |= text.data[at] == '0';
        c->plus |= text.data[at] == '+';
    }
    c->width = read_number(text, &at, MAX_WIDTH);
    if (at < text.size && text.data[at] == '.') {
        at++;
        c->precision = read_number(text, &at, MAX_PRECISION);
    }
    if (at < text.size) c->letter = text.data[at++];
    return at;
}

static struct string *convert(struct render *r, const struct conversion *c, struct value v) {
    struct string *text;
    struct buf repr = {0};
    bool number = strchr("dixXofFeEgG", c->letter);
    if (c->letter == 's') text = value_str(r, v);
    else if (c->letter == 'r') {
        value_add_repr(r, &repr, v);
        text = string_take(r, &repr);
    } else if (!c->letter || !number) {
        render_fail(r, "ValueError", "unsupported format character '%c'", c->letter ? c->letter : ' ');
        return &r->no_string;
    } else if (!is_number(v)) {
        render_fail(r, "TypeError", "%%%c format: a real number is required, not %s", c->letter,
                    value_type(v));
        return &r->no_string;
    } else text = number_text(r, v, c->letter, c->precision, c->plus);
    if (!number && c->precision >= 0 && (size_t)c->precision < text->chars)
        text = string_slice(r, text, 0, (size_t)c->precision);
    if (number && c->zero && !c->left) return zero_fill(r, text, c->width);
    return text_pad(r, text, c->width, " ", 1, c->left ? SIDE_RIGHT : SIDE_LEFT);
}

struct value text_percent(struct render *r, struct string *format, struct value arguments) {
    struct view text = string_view(r, format);
    struct buf out = {0};
    bool tuple = is_series(arguments, SEQ_TUPLE);
    size_t n = tuple ? arguments.series->n : 1, used = 0;
    for (size_t at = 0; at < text.size && render_step(r, 1);) {
        struct conversion c;
        if (text.data[at] != '%') {
            buf_add_char(&out, text.data[at++]);
            continue;
        }
        struct value v = arguments;
        size_t key = ++at;
        if (at < text.size && text.data[at] == '(' && arguments.kind == KIND_DICT) {
            while (at < text.size && text.data[at] != ')') at++;
            struct value *found = dict_get(
                r, arguments.dict, value_string(string_borrow(r, text.data + key + 1, at - key - 1)));
            if (!found) render_fail(r, "KeyError", "'%.*s'", (int)(at - key - 1), text.data + key + 1);
            else v = *found;
            at = read_conversion(text, at < text.size ? at + 1 : at, &c);
        } else {
            at = read_conversion(text, at, &c);
            if (c.letter == '%') {
                buf_add_char(&out, '%');
                continue;
            }
            if (used >= n) render_fail(r, "TypeError", "not enough arguments for format string");
            else if (tuple) v = arguments.series->items[used];
            used++;
        }
        if (!r->failed) string_add(r, &out, convert(r, &c, v));
        render_check(r, &out);
    }
    if (used < n && arguments.kind != KIND_DICT && !is_series(arguments, SEQ_LIST))
        render_fail(r, "TypeError", "not all arguments converted during string formatting");
    return value_string(string_take(r, &out));
}

/* --- str.format ----------------------------------------------------------------------------- */

void text_spec(struct render *r, struct buf *to, struct value v, struct view spec) {
    size_t at = 0, fill_size = 1;
    const char *fill = " ";
    uint32_t c;
    char align = 0, letter = 0;
    bool plus = false, zero = false, comma = false;
    int width, precision = -1;
    size_t first = spec.size ? utf8_next(spec.data, &c) : 0;
    if (first && first < spec.size && strchr("<>^", spec.data[first])) {
        fill = spec.data;
        fill_size = first;
        at = first;
    }
    if (at < spec.size && strchr("<>^", spec.data[at])) align = spec.data[at++];
    if (at < spec.size && strchr("+-", spec.data[at])) plus = spec.data[at++] == '+';
    if (at < spec.size && spec.data[at] == '0') zero = true;
    width = read_number(spec, &at, MAX_WIDTH);
    if (at < spec.size && spec.data[at] == ',') comma = at++ < spec.size;
    if (at < spec.size && spec.data[at] == '.') {
        at++;
        precision = read_number(spec, &at, MAX_PRECISION);
    }
    if (at < spec.size) letter = spec.data[at++];
    bool number = is_number(v) && letter != 's' && (letter || v.kind != KIND_BOOL);
    struct string *text;
    if (at < spec.size || (letter && !strchr(number ? "dxXobeEfFgG%" : "s", letter))) {
        render_fail(r, "ValueError", "Invalid format specifier '%.*s'",
                    spec.size < 40 ? (int)spec.size : 40, spec.data);
        return;
    }
    if (number && letter == '%') {
        text = number_text(r, value_real(number_of(v) * 100), 'f', precision, plus);
        text = string_join(r, text, string_borrow(r, "%", 1));
    } else if (number && (letter || precision >= 0 || plus))
        text = number_text(r, v, letter ? letter : v.kind == KIND_FLOAT ? 'g' : 'd', precision, plus);
    else text = value_str(r, v);
    if (comma && number) text = group_digits(r, text);
    if (!number && precision >= 0 && (size_t)precision < text->chars)
        text = string_slice(r, text, 0, (size_t)precision);
    if (number && zero && !align) text = zero_fill(r, text, width);
    enum sides sides = align == '^'                     ? SIDE_BOTH
                       : align == '>' || (number && !align) ? SIDE_LEFT
                                                            : SIDE_RIGHT;
    string_add(r, to, text_pad(r, text, width, fill, fill_size, sides));
}

/* "name", "0", "" and then .attribute or [key] any number of times. */
static struct value find_field(struct render *r, struct view field, const struct args *args,
                               size_t *automatic) {
    size_t at = 0, end;
    while (at < field.size && field.data[at] != '.' && field.data[at] != '[') at++;
    struct value v = value_nothing();
    bool digits = at > 0, found = false;
    for (size_t i = 0; i < at; i++) digits = digits && field.data[i] >= '0' && field.data[i] <= '9';
    size_t zero = 0, index = digits ? (size_t)read_number((struct view){field.data, at}, &zero, 10000)
                                    : (at == 0 ? (*automatic)++ : 0);
    if (digits || at == 0) {
        found = index < args->n_positional;
        if (!found)
            return render_fail(r, "IndexError",
                               "Replacement index %zu out of range for positional args tuple",
                               index);
        v = args->at[index].value;
    }
    for (size_t i = args->n_positional; i < args->n && !found; i++)
        if (strlen(args->at[i].name) == at && !memcmp(args->at[i].name, field.data, at)) {
            v = args->at[i].value;
            found = true;
        }
    if (!found)
        return render_fail(r, "KeyError", "'%.*s'", at < 60 ? (int)at : 60, field.data);
    while (at < field.size && !r->failed) {
        bool key = field.data[at++] == '[';
        for (end = at; end < field.size && (key ? field.data[end] != ']'
                                                : field.data[end] != '.' && field.data[end] != '[');)
            end++;
        struct value name = value_string(string_borrow(r, field.data + at, end - at));
        size_t digit = at;
        int number = read_number(field, &digit, 1000000);
        if (!key) v = value_attribute(r, v, name);
        else v = value_item(r, v, digit == end && end > at ? value_int(number) : name);
        at = end + (key && end < field.size);
    }
    return v;
}

static void add_field(struct render *r, struct buf *to, struct view field, const struct args *args,
                      size_t *automatic) {
    const char *colon = memchr(field.data, ':', field.size);
    struct view spec = {"", 0}, name = field;
    char conversion = 0;
    if (colon) {
        name.size = (size_t)(colon - field.data);
        spec = (struct view){colon + 1, field.size - name.size - 1};
    }
    if (name.size >= 2 && name.data[name.size - 2] == '!') {
        conversion = name.data[name.size - 1];
        name.size -= 2;
    }
    struct value v = find_field(r, name, args, automatic);
    if (r->failed) return;
    if (conversion == 's') v = value_string(value_str(r, v));
    else if (conversion) {
        struct buf repr = {0};
        value_add_repr(r, &repr, v);
        v = value_string(string_take(r, &repr));
    }
    text_spec(r, to, v, spec);
}

struct string *text_format(struct render *r, struct string *format, const struct args *args) {
    struct view text = string_view(r, format);
    struct buf out = {0};
    size_t automatic = 0;
    for (size_t at = 0; at < text.size && render_step(r, 1) && render_check(r, &out);) {
        char c = text.data[at++];
        bool brace = c == '{' || c == '}';
        if (!brace || (at < text.size && text.data[at] == c)) {
            buf_add_char(&out, c);
            at += brace;
            continue;
        }
        const char *close = memchr(text.data + at, '}', text.size - at);
        if (c == '}' || !close) {
            render_fail(r, "ValueError", "Single '%c' encountered in format string", c);
            break;
        }
        size_t end = (size_t)(close - text.data);
        add_field(r, &out, (struct view){text.data + at, end - at}, args, &automatic);
        at = end + 1;
    }
    return string_take(r, &out);
}
