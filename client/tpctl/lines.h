/* client/tpctl/lines.h: the messages that a person types, or that come through a pipe.
 *
 * On a terminal libedit reads them, with history; elsewhere a line is a message. One thread. */
#ifndef TPD_TPCTL_LINES_H
#define TPD_TPCTL_LINES_H

#include <stdbool.h>
#include <stddef.h>

struct lines;

/* history: a file to keep what is typed in, or NULL. NULL after a complaint. */
struct lines *lines_open(bool terminal, const char *history);
void lines_close(struct lines *l);

enum lines_end { LINES_MESSAGE, LINES_DROPPED, LINES_EOF };
/* The next message, until the next call. A line that ends
 * with a backslash goes on on the next; """ alone begins and ends a message of several lines (both on a
 * terminal only). LINES_DROPPED: Ctrl-C took it back. */
enum lines_end lines_next(struct lines *l, const char **text, size_t *size);

#endif
