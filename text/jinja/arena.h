/* text/jinja/arena.h: memory that is taken piece by piece and given back at once. */
#ifndef TPD_TEXT_JINJA_ARENA_H
#define TPD_TEXT_JINJA_ARENA_H

#include <stddef.h>

struct arena {
    struct arena_chunk *chunks;
    char *next, *end;
    size_t total, limit; /* bytes taken from malloc, and at most so many */
};

/* Aligned for any type, not zeroed; NULL when the limit or the machine's memory is reached. */
void *arena_take(struct arena *a, size_t size);
void arena_free(struct arena *a);

#endif
