#include "text/jinja/strings.h"

#include "text/unicode.h"

#include <utf8proc.h>

static bool has_character(struct view set, uint32_t wanted) {
    for (size_t at = 0; at < set.size;) {
        uint32_t c;
        at += utf8_next(set.data + at, &c);
        if (c == wanted) return true;
    }
    return false;
}

/* Python's white space has the four separators of ASCII, too. */
static bool is_space(uint32_t c) {
    return char_is_space(c) || (c >= 0x1C && c <= 0x1F);
}

struct string *text_strip(struct render *r, struct string *s, struct string *chars,
                          enum sides sides) {
    struct view text = string_view(r, s), set = {NULL, 0};
    size_t from = 0, to = text.size, gone = 0;
    uint32_t c;
    if (chars) set = string_view(r, chars);
    while ((sides & SIDE_LEFT) && from < to && render_step(r, 1 + set.size / 64)) {
        size_t n = utf8_next(text.data + from, &c);
        if (chars ? !has_character(set, c) : !is_space(c)) break;
        from += n;
        gone++;
    }
    while ((sides & SIDE_RIGHT) && to > from && render_step(r, 1 + set.size / 64)) {
        size_t before = utf8_before(text.data, to);
        utf8_next(text.data + before, &c);
        if (chars ? !has_character(set, c) : !is_space(c)) break;
        to = before;
        gone++;
    }
    return gone && !r->failed ? string_borrow(r, text.data + from, to - from) : s;
}

struct string *text_replace(struct render *r, struct string *s, struct string *from,
                            struct string *to, int64_t at_most) {
    struct view text = string_view(r, s), old = string_view(r, from), new = string_view(r, to);
    struct buf out = {0};
    size_t at = 0;
    if (!render_step(r, text.size / 16)) return s;
    for (int64_t n = 0; (at_most < 0 || n < at_most) && render_step(r, 1 + new.size / 64); n++) {
        const char *found = old.size ? memmem(text.data + at, text.size - at, old.data, old.size)
                                     : text.data + at;
        if (!found) break;
        size_t begin = (size_t)(found - text.data);
        buf_add(&out, text.data + at, begin - at);
        buf_add(&out, new.data, new.size);
        at = begin + old.size;
        if (!render_check(r, &out)) break;
        if (old.size) continue;
        if (at == text.size) break; /* an empty string stands between all characters */
        uint32_t c;
        size_t size = utf8_next(text.data + at, &c);
        buf_add(&out, text.data + at, size);
        at += size;
    }
    if (at == 0 && out.size == 0) return s;
    buf_add(&out, text.data + at, text.size - at);
    return string_take(r, &out);
}

static void add_character(struct buf *to, uint32_t c) {
    char bytes[4];
    buf_add(to, bytes, utf8_put(bytes, c));
}

static void add_upper(struct buf *to, uint32_t c) {
    if (c == 0xDF) buf_add(to, "SS", 2);
    else add_character(to, (uint32_t)utf8proc_toupper((utf8proc_int32_t)c));
}

static void add_lower(struct buf *to, uint32_t c) {
    add_character(to, (uint32_t)utf8proc_tolower((utf8proc_int32_t)c));
}

static bool is_cased(uint32_t c) {
    return utf8proc_isupper((utf8proc_int32_t)c) || utf8proc_islower((utf8proc_int32_t)c);
}

struct string *text_case(struct render *r, struct string *s, enum letter_case to) {
    struct view text = string_view(r, s);
    struct buf out = {0};
    bool inside = false; /* a letter stands in front */
    if (!render_step(r, text.size / 16)) return s;
    for (size_t at = 0; at < text.size;) {
        uint32_t c;
        at += utf8_next(text.data + at, &c);
        bool upper = to == CASE_UPPER || (to >= CASE_CAPITAL && to <= CASE_TITLE && !inside) ||
                     (to == CASE_SWAP && utf8proc_islower((utf8proc_int32_t)c));
        if (upper) add_upper(&out, c);
        else add_lower(&out, c);
        inside = to == CASE_CAPITAL || is_cased(c);
    }
    return string_take(r, &out);
}

/* jinja2's own: a word begins behind space, a dash or an opening bracket. */
struct string *text_title_filter(struct render *r, struct string *s) {
    struct view text = string_view(r, s);
    struct buf out = {0};
    bool begins = true;
    if (!render_step(r, text.size / 16)) return s;
    for (size_t at = 0; at < text.size;) {
        uint32_t c;
        at += utf8_next(text.data + at, &c);
        if (begins) add_upper(&out, c);
        else add_lower(&out, c);
        begins = is_space(c) || (c < 0x80 && strchr("-({[<", (int)c));
    }
    return string_take(r, &out);
}

static void add_fill(struct render *r, struct buf *to, int64_t n, const char *fill, size_t size) {
    for (; n > 0 && render_step(r, 1) && render_check(r, to); n--) buf_add(to, fill, size);
}

struct string *text_pad(struct render *r, struct string *s, int64_t width, const char *fill,
                        size_t fill_size, enum sides sides) {
    int64_t missing = width - (int64_t)s->chars, left = 0;
    struct buf out = {0};
    if (missing <= 0) return s;
    if (sides == SIDE_LEFT) left = missing;
    if (sides == SIDE_BOTH) left = missing / 2 + (missing & width & 1);
    add_fill(r, &out, left, fill, fill_size);
    string_add(r, &out, s);
    add_fill(r, &out, missing - left, fill, fill_size);
    return string_take(r, &out);
}

struct string *text_join(struct render *r, struct string *separator, struct value list) {
    struct walk walk = walk_start(r, list);
    struct value item;
    struct buf out = {0};
    bool first = true;
    while (walk_next(r, &walk, &item) && render_check(r, &out)) {
        if (!first) string_add(r, &out, separator);
        string_add(r, &out, value_str(r, item));
        first = false;
    }
    return string_take(r, &out);
}
