/* text/jinja/operators.c: what operators do with values, as Python's do. */
#include "text/jinja/render.h"

#include <math.h>

static const char *spelling(enum operator op) {
    static const char *const names[] = {
        [OP_ADD] = "+",       [OP_SUBTRACT] = "-",  [OP_MULTIPLY] = "*", [OP_DIVIDE] = "/",
        [OP_FLOOR_DIVIDE] = "//", [OP_MODULO] = "%", [OP_POWER] = "** or pow()", [OP_LESS] = "<",
        [OP_LESS_EQUAL] = "<=", [OP_GREATER] = ">",  [OP_GREATER_EQUAL] = ">="};
    return names[op];
}

static bool is_repeated(struct value v) {
    return v.kind == KIND_STRING || (v.kind == KIND_SERIES && v.series->kind <= SEQ_TUPLE);
}

static struct value unsupported(struct render *r, enum operator op, struct value a, struct value b) {
    if (op == OP_ADD && a.kind == KIND_STRING)
        return render_fail(r, "TypeError", "can only concatenate str (not \"%s\") to str",
                           value_type(b));
    if (op == OP_ADD && is_series(a, SEQ_LIST))
        return render_fail(r, "TypeError", "can only concatenate list (not \"%s\") to list",
                           value_type(b));
    if (op == OP_MULTIPLY && (is_repeated(a) || is_repeated(b)))
        return render_fail(r, "TypeError", "can't multiply sequence by non-int of type '%s'",
                           value_type(is_repeated(a) ? b : a));
    return render_fail(r, "TypeError", "unsupported operand type(s) for %s: '%s' and '%s'",
                       spelling(op), value_type(a), value_type(b));
}

static struct value too_large(struct render *r) {
    return render_fail(r, "OverflowError", "an integer over 64 bits");
}

static int64_t floor_divide(int64_t a, int64_t b) {
    return a / b - (a % b != 0 && (a % b < 0) != (b < 0));
}

static struct value integer_power(struct render *r, int64_t base, int64_t exponent) {
    int64_t result = 1;
    bool over = false;
    if (exponent < 0) return value_real(pow((double)base, (double)exponent));
    for (; exponent > 0 && !over; exponent >>= 1) {
        if (exponent & 1) over = __builtin_mul_overflow(result, base, &result);
        if (exponent > 1) over = over || __builtin_mul_overflow(base, base, &base);
    }
    return over ? too_large(r) : value_int(result);
}

static struct value operate_integers(struct render *r, enum operator op, int64_t a, int64_t b) {
    int64_t c = 0;
    bool over = false;
    if (b == 0 && (op == OP_DIVIDE || op == OP_FLOOR_DIVIDE || op == OP_MODULO))
        return render_fail(r, "ZeroDivisionError",
                           op == OP_DIVIDE ? "division by zero"
                                           : "integer division or modulo by zero");
    switch (op) {
    case OP_ADD: over = __builtin_add_overflow(a, b, &c); break;
    case OP_SUBTRACT: over = __builtin_sub_overflow(a, b, &c); break;
    case OP_MULTIPLY: over = __builtin_mul_overflow(a, b, &c); break;
    case OP_DIVIDE: return value_real((double)a / (double)b);
    case OP_FLOOR_DIVIDE:
    case OP_MODULO:
        if (b == -1) { /* the machine's division overflows there */
            if (op == OP_FLOOR_DIVIDE) over = __builtin_sub_overflow((int64_t)0, a, &c);
        } else c = op == OP_FLOOR_DIVIDE ? floor_divide(a, b) : a - b * floor_divide(a, b);
        break;
    default: return integer_power(r, a, b);
    }
    return over ? too_large(r) : value_int(c);
}

static struct value operate_reals(struct render *r, enum operator op, double a, double b) {
    if (b == 0 && (op == OP_DIVIDE || op == OP_FLOOR_DIVIDE || op == OP_MODULO))
        return render_fail(r, "ZeroDivisionError",
                           op == OP_DIVIDE   ? "float division by zero"
                           : op == OP_MODULO ? "float modulo"
                                             : "float floor division by zero");
    double rest;
    switch (op) {
    case OP_ADD: return value_real(a + b);
    case OP_SUBTRACT: return value_real(a - b);
    case OP_MULTIPLY: return value_real(a * b);
    case OP_DIVIDE: return value_real(a / b);
    case OP_FLOOR_DIVIDE: return value_real(floor(a / b));
    case OP_MODULO:
        rest = fmod(a, b);
        return value_real(rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest);
    default: return value_real(pow(a, b));
    }
}

static struct value join_sequences(struct render *r, const struct series *a,
                                   const struct series *b) {
    struct series *out = series_new(r, a->kind);
    for (size_t i = 0; i < a->n && !r->failed; i++) series_add(r, out, a->items[i]);
    for (size_t i = 0; i < b->n && !r->failed; i++) series_add(r, out, b->items[i]);
    return value_series(out);
}

static struct value repeat(struct render *r, struct value v, int64_t times) {
    if (times < 0) times = 0;
    if (v.kind == KIND_STRING) {
        struct buf text = {0};
        if (v.string->size == 0) times = 0;
        for (int64_t i = 0; i < times && render_check(r, &text); i++) {
            if (!render_step(r, 1)) break;
            string_add(r, &text, v.string);
        }
        return value_string(string_take(r, &text));
    }
    struct series *out = series_new(r, v.series->kind);
    if (v.series->n == 0) times = 0;
    for (int64_t i = 0; i < times && !r->failed; i++)
        for (size_t k = 0; k < v.series->n && !r->failed; k++)
            series_add(r, out, v.series->items[k]);
    return value_series(out);
}

struct value operator_apply(struct render *r, enum operator op, struct value a, struct value b) {
    if (op == OP_MODULO && a.kind == KIND_STRING) return text_percent(r, a.string, b);
    if (a.kind == KIND_UNDEFINED) return render_undefined(r, a);
    if (b.kind == KIND_UNDEFINED) return render_undefined(r, b);
    if (is_integer(a) && is_integer(b))
        return operate_integers(r, op, integer_of(a), integer_of(b));
    if (is_number(a) && is_number(b)) return operate_reals(r, op, number_of(a), number_of(b));
    if (op == OP_ADD && a.kind == KIND_STRING && b.kind == KIND_STRING)
        return value_string(string_join(r, a.string, b.string));
    if (op == OP_ADD && is_repeated(a) && a.kind == b.kind && a.kind == KIND_SERIES &&
        a.series->kind == b.series->kind)
        return join_sequences(r, a.series, b.series);
    if (op == OP_MULTIPLY && is_repeated(a) && is_integer(b)) return repeat(r, a, integer_of(b));
    if (op == OP_MULTIPLY && is_repeated(b) && is_integer(a)) return repeat(r, b, integer_of(a));
    return unsupported(r, op, a, b);
}

static bool has_nan(struct value a, struct value b) {
    return (a.kind == KIND_FLOAT && isnan(a.real)) || (b.kind == KIND_FLOAT && isnan(b.real));
}

bool operator_compare(struct render *r, enum operator op, struct value a, struct value b) {
    if (op == OP_EQUAL) return value_equal(r, a, b);
    if (op == OP_NOT_EQUAL) return !value_equal(r, a, b);
    if (op == OP_IN) return value_contains(r, b, a);
    if (op == OP_NOT_IN) return !value_contains(r, b, a);
    int order = value_order(r, a, b, spelling(op));
    if (r->failed || has_nan(a, b)) return false;
    return op == OP_LESS            ? order < 0
           : op == OP_LESS_EQUAL    ? order <= 0
           : op == OP_GREATER       ? order > 0
                                    : order >= 0;
}
