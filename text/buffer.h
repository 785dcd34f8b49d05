/* text/buffer.h: bytes and spans that grow. A failed allocation is remembered in `failed` and makes
 * later additions do nothing, so that a caller adds freely and asks once at the end. */
#ifndef TPD_TEXT_BUFFER_H
#define TPD_TEXT_BUFFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

struct buf {
    char *data;
    size_t size, capacity;
    bool failed;
};

/* A part of a text: bytes from … to-1. */
struct span {
    size_t from, to;
};

struct spans {
    struct span *at;
    size_t n, capacity;
    bool failed;
};

static inline bool buf_reserve(struct buf *b, size_t more) {
    if (b->failed) return false;
    if (more <= b->capacity - b->size) return true;
    size_t want = b->capacity < 64 ? 64 : b->capacity;
    while (want - b->size < more && want <= (size_t)-1 / 2) want *= 2;
    char *data = want - b->size < more ? NULL : realloc(b->data, want);
    if (!data) return !(b->failed = true);
    b->data = data;
    b->capacity = want;
    return true;
}

static inline void buf_add(struct buf *b, const void *data, size_t size) {
    if (size == 0 || !buf_reserve(b, size)) return;
    memcpy(b->data + b->size, data, size);
    b->size += size;
}

static inline void buf_add_char(struct buf *b, char c) {
    buf_add(b, &c, 1);
}

static inline void buf_free(struct buf *b) {
    free(b->data);
    *b = (struct buf){0};
}

static inline void buf_swap(struct buf *a, struct buf *b) {
    struct buf swap = *a;
    *a = *b;
    *b = swap;
}

/* Empty spans are left out: no later step sees them. */
static inline void spans_add(struct spans *s, size_t from, size_t to) {
    if (from == to || s->failed) return;
    if (s->n == s->capacity) {
        size_t want = s->capacity ? s->capacity * 2 : 16;
        struct span *at = realloc(s->at, want * sizeof *at);
        if (!at) {
            s->failed = true;
            return;
        }
        s->at = at;
        s->capacity = want;
    }
    s->at[s->n++] = (struct span){from, to};
}

static inline void spans_free(struct spans *s) {
    free(s->at);
    *s = (struct spans){0};
}

#endif
