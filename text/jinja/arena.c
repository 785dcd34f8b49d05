#include "text/jinja/arena.h"

#include <stdalign.h>
#include <stdlib.h>

enum { CHUNK_BYTES = 32 << 10 };

struct arena_chunk {
    struct arena_chunk *before;
    alignas(max_align_t) char data[];
};

static void *take_chunk(struct arena *a, size_t size) {
    if (size > a->limit || a->total > a->limit - size) return NULL;
    struct arena_chunk *chunk = malloc(sizeof *chunk + size);
    if (!chunk) return NULL;
    chunk->before = a->chunks;
    a->chunks = chunk;
    a->total += size;
    return chunk->data;
}

void *arena_take(struct arena *a, size_t size) {
    enum { ALIGN = alignof(max_align_t) };
    if (size > (size_t)-1 - ALIGN) return NULL;
    size = (size + ALIGN - 1) / ALIGN * ALIGN;
    if (size > CHUNK_BYTES / 4) return take_chunk(a, size);
    if ((size_t)(a->end - a->next) < size) {
        char *data = take_chunk(a, CHUNK_BYTES);
        if (!data) return NULL;
        a->next = data;
        a->end = data + CHUNK_BYTES;
    }
    char *out = a->next;
    a->next += size;
    return out;
}

void arena_free(struct arena *a) {
    while (a->chunks) {
        struct arena_chunk *chunk = a->chunks;
        a->chunks = chunk->before;
        free(chunk);
    }
    *a = (struct arena){.limit = a->limit};
}
