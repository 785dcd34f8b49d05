/* Numbers of a range. */
#include "serve/grammar_schema.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MOST_DIGITS = 16, FRACTION_DIGITS = 15 };
#define LARGEST 9999999999999999ll /* where there is no bound */

static int32_t digits(struct grammar_source *s, char lo, char hi) {
    return source_range(s, (uint32_t)lo, (uint32_t)hi);
}

static int32_t any_digits(struct grammar_source *s, size_t n) {
    return n ? source_repeat(s, digits(s, '0', '9'), (uint32_t)n, (uint32_t)n) : SOURCE_EMPTY;
}

/* Texts of n digits from lo to hi. */
static int32_t between(struct grammar_source *s, const char *lo, const char *hi, size_t n) {
    struct expr_list forms = {0};
    if (n == 0) return SOURCE_EMPTY;
    if (*lo == *hi)
        return source_pair(s, digits(s, *lo, *lo), between(s, lo + 1, hi + 1, n - 1));
    char zeros[24], nines[24];
    memset(zeros, '0', sizeof zeros);
    memset(nines, '9', sizeof nines);
    char first = *lo, last = *hi;
    bool ragged_low = memcmp(lo + 1, zeros, n - 1) != 0, ragged_high = memcmp(hi + 1, nines, n - 1) != 0;
    if (ragged_low)
        list_add(s, &forms, source_pair(s, digits(s, first, first), between(s, lo + 1, nines, n - 1)));
    if (ragged_high)
        list_add(s, &forms, source_pair(s, digits(s, last, last), between(s, zeros, hi + 1, n - 1)));
    first = (char)(first + ragged_low);
    last = (char)(last - ragged_high);
    if (first <= last)
        list_add(s, &forms, source_pair(s, digits(s, first, last), any_digits(s, n - 1)));
    return source_alt(s, &forms);
}

/* 0 <= lo <= hi. */
static int32_t not_negative(struct grammar_source *s, uint64_t lo, uint64_t hi) {
    struct expr_list forms = {0};
    char from[24], to[24];
    for (;;) {
        int n = snprintf(from, sizeof from, "%" PRIu64, lo);
        int m = snprintf(to, sizeof to, "%" PRIu64, hi);
        if (n == m) break;
        memset(to, '9', (size_t)n);
        to[n] = '\0';
        list_add(s, &forms, between(s, from, to, (size_t)n));
        uint64_t next = 1;
        for (int i = 0; i < n; i++) next *= 10;
        lo = next;
    }
    list_add(s, &forms, between(s, from, to, strlen(from)));
    return source_alt(s, &forms);
}

int32_t json_integers(struct schema_reader *r, int64_t min, int64_t max) {
    struct grammar_source *s = &r->s;
    struct expr_list forms = {0};
    if (min == INT64_MIN) min = max < -LARGEST ? -INT64_MAX : -LARGEST;
    if (max == INT64_MAX) max = min > LARGEST ? INT64_MAX : LARGEST;
    if (min > max) return -1;
    if (min < 0) {
        uint64_t least = max < 0 ? (uint64_t)-max : 1, most = (uint64_t)-min;
        list_add(s, &forms, source_pair(s, source_text(s, "-"), not_negative(s, least, most)));
    }
    if (max >= 0)
        list_add(s, &forms, not_negative(s, min > 0 ? (uint64_t)min : 0, (uint64_t)max));
    return source_alt(s, &forms);
}

/* --- with fractions ---------------------------------------------------------------------------- */

/* "." and digits; more than zero: not all of them are 0. */
static int32_t fraction(struct grammar_source *s, bool not_zero) {
    int32_t dot = source_text(s, "."), zero = digits(s, '0', '0');
    int32_t all = source_repeat(s, digits(s, '0', '9'), 1, FRACTION_DIGITS);
    if (!not_zero) return source_pair(s, dot, all);
    int32_t some = source_pair(s, digits(s, '1', '9'),
                               source_repeat(s, digits(s, '0', '9'), 0, FRACTION_DIGITS));
    return source_pair(s, dot, source_pair(s, source_repeat(s, zero, 0, 5), some));
}

/* 0 <= lo <= hi; the bounds themselves are in it unless `over` and `under`. -1: nothing is. */
static int32_t numbers_from(struct grammar_source *s, uint64_t lo, uint64_t hi, bool over,
                            bool under) {
    struct expr_list forms = {0};
    int32_t with = source_optional(s, fraction(s, false));
    if (lo == hi && (over || under)) return -1;
    if (over) list_add(s, &forms, source_pair(s, not_negative(s, lo, lo), fraction(s, true)));
    uint64_t first = lo + over;
    if (first < hi) list_add(s, &forms, source_pair(s, not_negative(s, first, hi - 1), with));
    if (!under) {
        int32_t zeros = source_repeat(s, digits(s, '0', '0'), 1, FRACTION_DIGITS);
        int32_t none = source_optional(s, source_pair(s, source_text(s, "."), zeros));
        list_add(s, &forms, source_pair(s, not_negative(s, hi, hi), none));
    }
    return forms.n || s->full ? source_alt(s, &forms) : -1;
}

int32_t json_numbers(struct schema_reader *r, struct number_range range) {
    struct grammar_source *s = &r->s;
    struct expr_list forms = {0};
    int64_t min = range.min, max = range.max;
    if (min == INT64_MIN) min = max < -LARGEST ? -INT64_MAX : -LARGEST;
    if (max == INT64_MAX) max = min > LARGEST ? INT64_MAX : LARGEST;
    if (min > max) return -1;
    if (min < 0) { /* mirrored; 0 itself is left to the others */
        bool to_zero = max >= 0;
        int32_t below = numbers_from(s, to_zero ? 0 : (uint64_t)-max, (uint64_t)-min,
                                     to_zero || range.under, range.over);
        if (below >= 0) list_add(s, &forms, source_pair(s, source_text(s, "-"), below));
    }
    if (max >= 0) {
        int32_t rest = numbers_from(s, min > 0 ? (uint64_t)min : 0, (uint64_t)max,
                                    min >= 0 && range.over, range.under);
        if (rest >= 0) list_add(s, &forms, rest);
    }
    return forms.n || s->full ? source_alt(s, &forms) : -1;
}

/* --- keywords ---------------------------------------------------------------------------------- */

static int read_bound(struct schema_reader *r, const json_t *schema, const char *keyword,
                      bool integer, int round_up, bool *given, int64_t *out) {
    const json_t *value = json_object_get(schema, keyword);
    size_t before = pointer_push(r, keyword);
    int err = 0;
    *given = value != NULL;
    if (value && !json_is_number(value)) err = schema_error(r, "must be a number");
    double number = value && !err ? json_number_value(value) : 0;
    if (!err && json_is_real(value) && !(fabs(number) <= 9e18)) err = schema_error(r, "must be within 9e18");
    if (!err && value && !integer && floor(number) != number)
        err = schema_error(r, "must be whole: bounds with a fraction are not supported");
    if (!err && json_is_integer(value)) *out = json_integer_value(value);
    else if (!err && value) *out = (int64_t)(round_up ? ceil(number) : floor(number));
    pointer_pop(r, before);
    return err;
}

int schema_number(struct schema_reader *r, const json_t *schema, bool integer, int32_t *out) {
    struct number_range range = {INT64_MIN, INT64_MAX, false, false};
    bool low, high, over, under;
    int64_t min = 0, max = 0, past_min = 0, past_max = 0;
    const json_t *step = json_object_get(schema, "multipleOf");
    int err = read_bound(r, schema, "minimum", integer, true, &low, &min);
    if (!err) err = read_bound(r, schema, "maximum", integer, false, &high, &max);
    if (!err) err = read_bound(r, schema, "exclusiveMinimum", integer, false, &over, &past_min);
    if (!err) err = read_bound(r, schema, "exclusiveMaximum", integer, true, &under, &past_max);
    if (err) return err;
    if (step && json_number_value(step) != 1)
        return schema_error(r, "multipleOf is supported with the value 1 only");
    integer = integer || step;
    if (low) range.min = min;
    if (high) range.max = max;
    if (over && (!low || past_min >= min)) {
        range.min = past_min + integer;
        range.over = !integer;
    }
    if (under && (!high || past_max <= max)) {
        range.max = past_max - integer;
        range.under = !integer;
    }
    bool bounded = low || high || over || under;
    if (!bounded) *out = integer ? json_any_integer(r) : json_any_number(r);
    else *out = integer ? json_integers(r, range.min, range.max) : json_numbers(r, range);
    return *out < 0 ? schema_error(r, "no number is within these bounds") : 0;
}
