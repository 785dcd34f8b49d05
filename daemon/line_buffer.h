/* daemon/line_buffer.h: bytes from a socket, cut into lines.
 *
 * Holds what has come and was not yet taken, at most `max` bytes of an unfinished line (plus what
 * one read brought). Owned by one connection, on the loop's thread. */
#ifndef TPD_DAEMON_LINE_BUFFER_H
#define TPD_DAEMON_LINE_BUFFER_H

#include <stdbool.h>
#include <stddef.h>

struct line_buffer {
    char *data;                   /* owned; NULL while nothing waits */
    size_t start, size, capacity; /* bytes that wait are data[start … size-1] */
    size_t scanned;               /* no newline before data[scanned] */
    size_t max;                   /* longest line, without its end */
};

enum line_result { LINE_NONE, LINE_WHOLE, LINE_TOO_LONG };

void line_buffer_init(struct line_buffer *b, size_t max);
void line_buffer_free(struct line_buffer *b);
/* False when there is no memory. */
bool line_buffer_add(struct line_buffer *b, const char *data, size_t size);
/* The next whole line without "\n" or "\r\n"; *line is borrowed until the next add or free.
 * LINE_TOO_LONG also for an unfinished line that is over the limit already. */
enum line_result line_buffer_next(struct line_buffer *b, char **line, size_t *size);
/* What is left without an end (at the end of the stream); takes it. */
size_t line_buffer_rest(struct line_buffer *b, char **line);
/* The last n bytes that line_buffer_rest took wait again (nothing was added meanwhile). */
void line_buffer_untake(struct line_buffer *b, size_t n);
/* Gives memory back when nothing waits; call it when no line is in use. */
void line_buffer_shrink(struct line_buffer *b);
static inline size_t line_buffer_waiting(const struct line_buffer *b) {
    return b->size - b->start;
}

#endif
