/* text/jinja/string.c: text of the language. */
#include "text/jinja/render.h"
#include "text/unicode.h"

/* Sums below this are copied at once. */
enum { JOIN_LATER_FROM = 256 };

static size_t count_characters(const char *data, size_t size) {
    size_t n = 0;
    for (size_t i = 0; i < size; i++) n += ((unsigned char)data[i] & 0xC0) != 0x80;
    return n;
}

static struct string *string_make(struct render *r, const char *data, size_t size, size_t chars) {
    struct string *s = render_take(r, sizeof *s);
    if (!s) return &r->no_string;
    *s = (struct string){.size = size, .chars = chars, .data = data};
    return s;
}

struct string *string_borrow(struct render *r, const char *data, size_t size) {
    return string_make(r, data, size, count_characters(data, size));
}

struct string *string_new(struct render *r, const char *data, size_t size) {
    char *copy = render_step(r, size / 64) ? render_take(r, size) : NULL;
    if (!copy) return &r->no_string;
    if (size) memcpy(copy, data, size);
    return string_borrow(r, copy, size);
}

struct string *string_take(struct render *r, struct buf *buf) {
    struct string *s = &r->no_string;
    if (render_check(r, buf)) s = string_new(r, buf->data ? buf->data : "", buf->size);
    buf_free(buf);
    return s;
}

struct string *string_join(struct render *r, struct string *a, struct string *b) {
    if (a->size == 0) return b;
    if (b->size == 0) return a;
    size_t size = a->size + b->size;
    if (size > MAX_OUTPUT) {
        render_fail(r, "MemoryError", "a string over %d MiB", MAX_OUTPUT >> 20);
        return &r->no_string;
    }
    string_view(r, b);
    if (size >= JOIN_LATER_FROM) {
        struct string *s = string_make(r, NULL, size, a->chars + b->chars);
        if (s == &r->no_string) return s;
        s->left = a;
        s->right = b;
        return s;
    }
    string_view(r, a);
    char *data = render_take(r, size);
    if (!data) return &r->no_string;
    memcpy(data, a->data, a->size);
    memcpy(data + a->size, b->data, b->size);
    return string_make(r, data, size, a->chars + b->chars);
}

/* The sum is filled from its end: what is to the left of each sum may be one again. */
static void make_whole(struct render *r, struct string *s) {
    char *data = render_step(r, s->size / 64) ? render_take(r, s->size) : NULL;
    if (!data) {
        *s = (struct string){.data = ""};
        return;
    }
    size_t end = s->size;
    const struct string *part = s;
    for (; !part->data; part = part->left) {
        end -= part->right->size;
        memcpy(data + end, part->right->data, part->right->size);
    }
    memcpy(data, part->data, end);
    s->data = data;
    s->left = NULL;
    s->right = NULL;
}

struct view string_view(struct render *r, struct string *s) {
    if (!s->data) make_whole(r, s);
    return (struct view){s->data, s->size};
}

void string_add(struct render *r, struct buf *to, const struct string *s) {
    if (s->data) {
        if (render_step(r, s->size / 64)) buf_add(to, s->data, s->size);
        return;
    }
    if (!render_step(r, s->size / 64) || !buf_reserve(to, s->size)) return;
    size_t end = to->size + s->size;
    to->size = end;
    for (; !s->data; s = s->left) {
        end -= s->right->size;
        memcpy(to->data + end, s->right->data, s->right->size);
    }
    memcpy(to->data + end - s->size, s->data, s->size);
}

size_t string_offset(struct render *r, struct string *s, size_t i) {
    const char *data = string_view(r, s).data;
    if (s->chars == s->size) return i;
    if (!render_step(r, s->size / 64)) return 0;
    size_t at = 0;
    for (; i > 0 && at < s->size; i--) {
        at++;
        while (at < s->size && ((unsigned char)data[at] & 0xC0) == 0x80) at++;
    }
    return at;
}

struct string *string_slice(struct render *r, struct string *s, size_t from, size_t to) {
    if (from >= to) return string_borrow(r, "", 0);
    if (from == 0 && to == s->chars) return s;
    size_t begin = string_offset(r, s, from), end = string_offset(r, s, to);
    if (r->failed) return &r->no_string;
    return string_make(r, s->data + begin, end - begin, to - from);
}

bool string_is(const struct string *s, const char *text) {
    return s->data && s->size == strlen(text) && !memcmp(s->data, text, s->size);
}
