/* text/jinja/methods.c: the methods of strings. */
#include "text/jinja/strings.h"
#include "text/unicode.h"

#include <utf8proc.h>

#define METHOD(name) \
    static struct value name(struct render *r, struct value self, const struct args *args)

/* An argument that must be a string, or (when it may be) none. */
static bool is_text(struct render *r, const char *method, struct value v, bool or_none) {
    if (v.kind == KIND_STRING || (or_none && v.kind == KIND_NONE)) return true;
    if (v.kind == KIND_UNDEFINED) render_undefined(r, v);
    else
        render_fail(r, "TypeError", "%s() argument must be str, not %s", method, value_type(v));
    return false;
}

static bool is_count(struct render *r, const char *method, struct value v) {
    if (is_integer(v)) return true;
    if (v.kind == KIND_UNDEFINED) render_undefined(r, v);
    else
        render_fail(r, "TypeError", "%s(): '%s' object cannot be interpreted as an integer", method,
                    value_type(v));
    return false;
}

static struct value strip(struct render *r, struct value self, const struct args *args,
                          enum sides sides) {
    static const char *const names[] = {"chars"};
    struct value chars = value_none();
    if (!args_bind(r, "strip", args, names, 1, 0, &chars) || !is_text(r, "strip", chars, true))
        return value_nothing();
    return value_string(text_strip(r, self.string, chars.kind == KIND_STRING ? chars.string : NULL,
                                   sides));
}
METHOD(do_strip) {
    return strip(r, self, args, SIDE_BOTH);
}
METHOD(do_lstrip) {
    return strip(r, self, args, SIDE_LEFT);
}
METHOD(do_rstrip) {
    return strip(r, self, args, SIDE_RIGHT);
}

static struct value to_case(struct render *r, struct value self, const struct args *args,
                            enum letter_case to) {
    if (!args_bind(r, "str method", args, NULL, 0, 0, NULL)) return value_nothing();
    return value_string(text_case(r, self.string, to));
}
METHOD(do_upper) {
    return to_case(r, self, args, CASE_UPPER);
}
METHOD(do_lower) {
    return to_case(r, self, args, CASE_LOWER);
}
METHOD(do_title) {
    return to_case(r, self, args, CASE_TITLE);
}
METHOD(do_capitalize) {
    return to_case(r, self, args, CASE_CAPITAL);
}
METHOD(do_swapcase) {
    return to_case(r, self, args, CASE_SWAP);
}

METHOD(do_replace) {
    static const char *const names[] = {"old", "new", "count"};
    struct value a[3] = {value_nothing(), value_nothing(), value_int(-1)};
    if (!args_bind(r, "replace", args, names, 3, 2, a) || !is_text(r, "replace", a[0], false) ||
        !is_text(r, "replace", a[1], false) || !is_count(r, "replace", a[2]))
        return value_nothing();
    return value_string(text_replace(r, self.string, a[0].string, a[1].string, integer_of(a[2])));
}

METHOD(do_join) {
    static const char *const names[] = {"iterable"};
    struct value list = value_nothing(), item;
    if (!args_bind(r, "join", args, names, 1, 1, &list)) return value_nothing();
    struct series *items = value_list(r, list);
    for (size_t i = 0; i < items->n; i++) {
        item = items->items[i];
        if (item.kind != KIND_STRING)
            return render_fail(r, "TypeError", "sequence item %zu: expected str instance, %s found",
                               i, value_type(item));
    }
    return value_string(text_join(r, self.string, value_series(items)));
}

/* --- splitting ------------------------------------------------------------------------------ */

static void add_part(struct render *r, struct series *out, struct view text, size_t from,
                     size_t to) {
    series_add(r, out, value_string(string_borrow(r, text.data + from, to - from)));
}

static bool space_at(struct view text, size_t at, size_t *size) {
    uint32_t c;
    *size = utf8_next(text.data + at, &c);
    return char_is_space(c) || (c >= 0x1C && c <= 0x1F);
}

/* Words; what is left behind at_most of them stays whole. */
static void split_words(struct render *r, struct series *out, struct view text, int64_t at_most) {
    size_t at = 0, n;
    while (at < text.size && render_step(r, 1)) {
        while (at < text.size && space_at(text, at, &n)) at += n;
        if (at == text.size) break;
        size_t from = at, end = text.size;
        if (at_most < 0 || (int64_t)out->n < at_most) {
            while (at < text.size && !space_at(text, at, &n)) at += n;
            end = at;
        } else at = text.size;
        add_part(r, out, text, from, end);
    }
}

static void split_words_back(struct render *r, struct series *out, struct view text,
                             int64_t at_most) {
    size_t end = text.size, n;
    while (end > 0 && render_step(r, 1)) {
        while (end > 0 && space_at(text, utf8_before(text.data, end), &n)) end -= n;
        if (end == 0) break;
        size_t from = end;
        if ((int64_t)out->n < at_most)
            while (from > 0 && !space_at(text, utf8_before(text.data, from), &n)) from -= n;
        else from = 0;
        add_part(r, out, text, from, end);
        if ((int64_t)out->n > at_most) break;
        end = from;
    }
}

static void split_at(struct render *r, struct series *out, struct view text, struct view by,
                     int64_t at_most) {
    size_t at = 0;
    while (render_step(r, 1) && (at_most < 0 || (int64_t)out->n < at_most)) {
        const char *found = memmem(text.data + at, text.size - at, by.data, by.size);
        if (!found) break;
        add_part(r, out, text, at, (size_t)(found - text.data));
        at = (size_t)(found - text.data) + by.size;
    }
    add_part(r, out, text, at, text.size);
}

/* The last place where `by` stands in text[0…end), or -1. */
static int64_t find_last(struct render *r, struct view text, size_t end, struct view by) {
    if (by.size == 0) return (int64_t)end;
    for (size_t at = end; at >= by.size; at--) {
        const char *candidate = text.data + at - by.size;
        if (*candidate != *by.data) continue;
        if (!render_step(r, by.size / 64)) break;
        if (!memcmp(candidate, by.data, by.size)) return candidate - text.data;
    }
    return -1;
}

static void split_at_back(struct render *r, struct series *out, struct view text, struct view by,
                          int64_t at_most) {
    size_t end = text.size;
    int64_t found;
    while (render_step(r, 1 + text.size / 64) && (int64_t)out->n < at_most &&
           (found = find_last(r, text, end, by)) >= 0) {
        add_part(r, out, text, (size_t)found + by.size, end);
        end = (size_t)found;
    }
    add_part(r, out, text, 0, end);
}

static void reverse_items(struct series *s) {
    for (size_t i = 0; i < s->n / 2; i++) {
        struct value swap = s->items[i];
        s->items[i] = s->items[s->n - 1 - i];
        s->items[s->n - 1 - i] = swap;
    }
}

static struct value split(struct render *r, struct value self, const struct args *args, bool back) {
    static const char *const names[] = {"sep", "maxsplit"};
    struct value a[2] = {value_none(), value_int(-1)};
    if (!args_bind(r, "split", args, names, 2, 0, a) || !is_text(r, "split", a[0], true) ||
        !is_count(r, "split", a[1]))
        return value_nothing();
    struct view text = string_view(r, self.string), by = {NULL, 0};
    int64_t at_most = integer_of(a[1]);
    struct series *out = series_new(r, SEQ_LIST);
    if (a[0].kind == KIND_STRING) {
        by = string_view(r, a[0].string);
        if (by.size == 0) return render_fail(r, "ValueError", "empty separator");
    }
    back = back && at_most >= 0; /* without a limit both are the same */
    if (!render_step(r, text.size / 16)) return value_nothing();
    if (!by.data && !back) split_words(r, out, text, at_most);
    else if (!by.data) split_words_back(r, out, text, at_most);
    else if (!back) split_at(r, out, text, by, at_most);
    else split_at_back(r, out, text, by, at_most);
    if (back) reverse_items(out);
    return value_series(out);
}
METHOD(do_split) {
    return split(r, self, args, false);
}
METHOD(do_rsplit) {
    return split(r, self, args, true);
}

static bool ends_line(uint32_t c) {
    return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
           c == 0x2029;
}

METHOD(do_splitlines) {
    static const char *const names[] = {"keepends"};
    struct value keep = value_bool(false);
    if (!args_bind(r, "splitlines", args, names, 1, 0, &keep)) return value_nothing();
    struct view text = string_view(r, self.string);
    struct series *out = series_new(r, SEQ_LIST);
    bool ends = value_truth(r, keep);
    size_t from = 0, at = 0;
    while (at < text.size && !r->failed) {
        uint32_t c;
        size_t end = at;
        at += utf8_next(text.data + at, &c);
        if (!ends_line(c)) continue;
        if (c == '\r' && at < text.size && text.data[at] == '\n') at++;
        add_part(r, out, text, from, ends ? at : end);
        from = at;
    }
    if (from < text.size) add_part(r, out, text, from, text.size);
    return value_series(out);
}

static struct value partition(struct render *r, struct value self, const struct args *args,
                              bool back) {
    static const char *const names[] = {"sep"};
    struct value separator = value_nothing();
    if (!args_bind(r, "partition", args, names, 1, 1, &separator) ||
        !is_text(r, "partition", separator, false))
        return value_nothing();
    struct view text = string_view(r, self.string), by = string_view(r, separator.string);
    if (by.size == 0) return render_fail(r, "ValueError", "empty separator");
    const char *found = memmem(text.data, text.size, by.data, by.size);
    int64_t at = back ? find_last(r, text, text.size, by) : found ? found - text.data : -1;
    size_t from = at >= 0 ? (size_t)at : back ? 0 : text.size,
           to = at >= 0 ? from + by.size : from;
    struct series *out = series_new(r, SEQ_TUPLE);
    add_part(r, out, text, 0, from);
    add_part(r, out, text, from, to);
    add_part(r, out, text, to, text.size);
    return value_series(out);
}
METHOD(do_partition) {
    return partition(r, self, args, false);
}
METHOD(do_rpartition) {
    return partition(r, self, args, true);
}

/* --- finding -------------------------------------------------------------------------------- */

/* The text between the characters that start and end name; *skipped: characters in front. */
static struct string *window(struct render *r, struct string *s, struct value start,
                             struct value end, size_t *skipped) {
    int64_t n = (int64_t)s->chars, from = 0, to = n;
    if (is_integer(start)) from = integer_of(start);
    if (is_integer(end)) to = integer_of(end);
    if (from < 0) from = from + n < 0 ? 0 : from + n;
    if (to < 0) to = to + n < 0 ? 0 : to + n;
    if (to > n) to = n;
    *skipped = (size_t)(from > n ? n : from);
    return from > n ? NULL : string_slice(r, s, (size_t)from, (size_t)to);
}

static size_t characters_before(struct view text, size_t at) {
    size_t n = 0;
    for (size_t i = 0; i < at; i++) n += ((unsigned char)text.data[i] & 0xC0) != 0x80;
    return n;
}

static struct value find(struct render *r, struct value self, const struct args *args, bool back,
                         bool must) {
    static const char *const names[] = {"sub", "start", "end"};
    struct value a[3] = {value_nothing(), value_none(), value_none()};
    size_t skipped;
    if (!args_bind(r, "find", args, names, 3, 1, a) || !is_text(r, "find", a[0], false))
        return value_nothing();
    struct string *in = window(r, self.string, a[1], a[2], &skipped);
    struct view part = string_view(r, a[0].string), text = {"", 0};
    if (in) text = string_view(r, in);
    if (!render_step(r, text.size / 16)) return value_nothing();
    const char *found = in ? memmem(text.data, text.size, part.data, part.size) : NULL;
    int64_t at = !found ? -1 : back ? find_last(r, text, text.size, part) : found - text.data;
    if (at >= 0) return value_int((int64_t)(skipped + characters_before(text, (size_t)at)));
    return must ? render_fail(r, "ValueError", "substring not found") : value_int(-1);
}
METHOD(do_find) {
    return find(r, self, args, false, false);
}
METHOD(do_rfind) {
    return find(r, self, args, true, false);
}
METHOD(do_index) {
    return find(r, self, args, false, true);
}
METHOD(do_rindex) {
    return find(r, self, args, true, true);
}

METHOD(do_count) {
    static const char *const names[] = {"sub", "start", "end"};
    struct value a[3] = {value_nothing(), value_none(), value_none()};
    size_t skipped, at = 0;
    int64_t n = 0;
    if (!args_bind(r, "count", args, names, 3, 1, a) || !is_text(r, "count", a[0], false))
        return value_nothing();
    struct string *in = window(r, self.string, a[1], a[2], &skipped);
    if (!in) return value_int(0);
    struct view part = string_view(r, a[0].string), text = string_view(r, in);
    if (part.size == 0) return value_int((int64_t)in->chars + 1);
    const char *found;
    while (render_step(r, 1) &&
           (found = memmem(text.data + at, text.size - at, part.data, part.size))) {
        at = (size_t)(found - text.data) + part.size;
        n++;
    }
    return value_int(n);
}

static bool touches(struct render *r, struct string *s, struct string *affix, bool end) {
    struct view text = string_view(r, s), part = string_view(r, affix);
    return part.size <= text.size &&
           !memcmp(text.data + (end ? text.size - part.size : 0), part.data, part.size);
}

static struct value has_affix(struct render *r, struct value self, const struct args *args,
                              bool end) {
    static const char *const names[] = {"prefix", "start", "end"};
    const char *name = end ? "endswith" : "startswith";
    struct value a[3] = {value_nothing(), value_none(), value_none()};
    size_t skipped;
    if (!args_bind(r, name, args, names, 3, 1, a)) return value_nothing();
    struct string *in = window(r, self.string, a[1], a[2], &skipped);
    struct series one = {.n = 1, .items = &a[0]}, *all = &one;
    if (is_series(a[0], SEQ_TUPLE)) all = a[0].series;
    for (size_t i = 0; i < all->n; i++) {
        struct value v = all->items[i];
        if (v.kind == KIND_UNDEFINED) return render_undefined(r, v);
        if (v.kind != KIND_STRING)
            return render_fail(r, "TypeError", "%s first arg must be str or a tuple of str, not %s",
                               name, value_type(v));
        if (in && touches(r, in, v.string, end)) return value_bool(true);
    }
    return value_bool(false);
}
METHOD(do_startswith) {
    return has_affix(r, self, args, false);
}
METHOD(do_endswith) {
    return has_affix(r, self, args, true);
}

static struct value remove_affix(struct render *r, struct value self, const struct args *args,
                                 bool end) {
    static const char *const names[] = {"affix"};
    struct value affix = value_nothing();
    if (!args_bind(r, "removeprefix", args, names, 1, 1, &affix) ||
        !is_text(r, "removeprefix", affix, false))
        return value_nothing();
    if (!touches(r, self.string, affix.string, end)) return self;
    size_t n = affix.string->chars, all = self.string->chars;
    return value_string(string_slice(r, self.string, end ? 0 : n, end ? all - n : all));
}
METHOD(do_removeprefix) {
    return remove_affix(r, self, args, false);
}
METHOD(do_removesuffix) {
    return remove_affix(r, self, args, true);
}

/* --- what it is made of --------------------------------------------------------------------- */

static bool is_letter(uint32_t c) {
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}
static bool is_decimal(uint32_t c) {
    return utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_ND;
}
static bool is_letter_or_number(uint32_t c) {
    return is_letter(c) || char_is_numeric(c);
}
static bool is_ascii(uint32_t c) {
    return c < 0x80;
}

static struct value all_are(struct render *r, struct value self, const struct args *args,
                            bool (*property)(uint32_t), bool when_empty) {
    if (!args_bind(r, "str method", args, NULL, 0, 0, NULL)) return value_nothing();
    struct view text = string_view(r, self.string);
    bool all = text.size > 0 || when_empty;
    for (size_t at = 0; at < text.size && all && render_step(r, 1);) {
        uint32_t c;
        at += utf8_next(text.data + at, &c);
        all = property(c);
    }
    return value_bool(all);
}
METHOD(do_isdigit) {
    return all_are(r, self, args, is_decimal, false);
}
METHOD(do_isnumeric) {
    return all_are(r, self, args, char_is_numeric, false);
}
METHOD(do_isalpha) {
    return all_are(r, self, args, is_letter, false);
}
METHOD(do_isalnum) {
    return all_are(r, self, args, is_letter_or_number, false);
}
METHOD(do_isspace) {
    return all_are(r, self, args, char_is_space, false);
}
METHOD(do_isascii) {
    return all_are(r, self, args, is_ascii, true);
}
METHOD(do_islower) {
    return test_call(r, "lower", 5, self, args);
}
METHOD(do_isupper) {
    return test_call(r, "upper", 5, self, args);
}

/* --- making room ---------------------------------------------------------------------------- */

static struct value pad(struct render *r, struct value self, const struct args *args,
                        enum sides sides) {
    static const char *const names[] = {"width", "fillchar"};
    struct value a[2] = {value_nothing(), value_string(string_borrow(r, " ", 1))};
    if (!args_bind(r, "pad", args, names, 2, 1, a) || !is_count(r, "pad", a[0]) ||
        !is_text(r, "pad", a[1], false))
        return value_nothing();
    if (a[1].string->chars != 1)
        return render_fail(r, "TypeError", "The fill character must be exactly one character long");
    struct view fill = string_view(r, a[1].string);
    return value_string(text_pad(r, self.string, integer_of(a[0]), fill.data, fill.size, sides));
}
METHOD(do_center) {
    return pad(r, self, args, SIDE_BOTH);
}
METHOD(do_ljust) {
    return pad(r, self, args, SIDE_RIGHT);
}
METHOD(do_rjust) {
    return pad(r, self, args, SIDE_LEFT);
}

METHOD(do_zfill) {
    static const char *const names[] = {"width"};
    struct value width = value_nothing();
    if (!args_bind(r, "zfill", args, names, 1, 1, &width) || !is_count(r, "zfill", width))
        return value_nothing();
    struct view text = string_view(r, self.string);
    bool sign = text.size && (*text.data == '-' || *text.data == '+');
    struct string *digits = string_slice(r, self.string, sign, self.string->chars);
    digits = text_pad(r, digits, integer_of(width) - sign, "0", 1, SIDE_LEFT);
    return value_string(string_join(r, string_borrow(r, text.data, sign), digits));
}

METHOD(do_format) {
    return value_string(text_format(r, self.string, args));
}

const struct function string_methods[] = {
    {"strip", do_strip},
    {"lstrip", do_lstrip},
    {"rstrip", do_rstrip},
    {"split", do_split},
    {"rsplit", do_rsplit},
    {"splitlines", do_splitlines},
    {"partition", do_partition},
    {"rpartition", do_rpartition},
    {"startswith", do_startswith},
    {"endswith", do_endswith},
    {"removeprefix", do_removeprefix},
    {"removesuffix", do_removesuffix},
    {"replace", do_replace},
    {"join", do_join},
    {"find", do_find},
    {"rfind", do_rfind},
    {"index", do_index},
    {"rindex", do_rindex},
    {"count", do_count},
    {"upper", do_upper},
    {"lower", do_lower},
    {"casefold", do_lower},
    {"title", do_title},
    {"capitalize", do_capitalize},
    {"swapcase", do_swapcase},
    {"center", do_center},
    {"ljust", do_ljust},
    {"rjust", do_rjust},
    {"zfill", do_zfill},
    {"format", do_format},
    {"isdigit", do_isdigit},
    {"isdecimal", do_isdigit},
    {"isnumeric", do_isnumeric},
    {"isalpha", do_isalpha},
    {"isalnum", do_isalnum},
    {"isspace", do_isspace},
    {"isascii", do_isascii},
    {"islower", do_islower},
    {"isupper", do_isupper},
    {NULL, NULL},
};
