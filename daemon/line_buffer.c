#include "daemon/line_buffer.h"

#include <stdlib.h>
#include <string.h>

void line_buffer_init(struct line_buffer *b, size_t max) {
    *b = (struct line_buffer){.max = max};
}

void line_buffer_free(struct line_buffer *b) {
    free(b->data);
    line_buffer_init(b, b->max);
}

bool line_buffer_add(struct line_buffer *b, const char *data, size_t size) {
    if (b->start > 0) { /* what was taken makes room */
        if (b->size > b->start) memmove(b->data, b->data + b->start, b->size - b->start);
        b->size -= b->start;
        b->scanned -= b->start;
        b->start = 0;
    }
    if (b->size + size > b->capacity) {
        size_t capacity = b->capacity ? b->capacity : 1024;
        while (capacity < b->size + size) capacity *= 2;
        char *grown = realloc(b->data, capacity);
        if (!grown) return false;
        b->data = grown;
        b->capacity = capacity;
    }
    if (size > 0) memcpy(b->data + b->size, data, size);
    b->size += size;
    return true;
}

enum line_result line_buffer_next(struct line_buffer *b, char **line, size_t *size) {
    if (b->size == b->start) return LINE_NONE;
    char *end =
        b->size > b->scanned ? memchr(b->data + b->scanned, '\n', b->size - b->scanned) : NULL;
    if (!end) {
        b->scanned = b->size;
        return b->size - b->start > b->max ? LINE_TOO_LONG : LINE_NONE;
    }
    size_t n = (size_t)(end - b->data) - b->start;
    *line = b->data + b->start;
    b->start += n + 1;
    b->scanned = b->start;
    if (n > 0 && (*line)[n - 1] == '\r') n--;
    *size = n;
    return n > b->max ? LINE_TOO_LONG : LINE_WHOLE;
}

size_t line_buffer_rest(struct line_buffer *b, char **line) {
    size_t n = b->size - b->start;
    *line = b->data + b->start;
    b->start = b->scanned = b->size;
    return n;
}

void line_buffer_untake(struct line_buffer *b, size_t n) {
    b->start = b->scanned = b->start - n;
}

void line_buffer_shrink(struct line_buffer *b) {
    if (b->size == b->start) line_buffer_free(b);
}
