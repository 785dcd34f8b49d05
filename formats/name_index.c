#include "formats/name_index.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

bool name_index_init(struct name_index *index, size_t count) {
    *index = (struct name_index){0};
    if (getrandom(&index->seed, sizeof index->seed, GRND_NONBLOCK) < 0)
        index->seed = (uint64_t)(uintptr_t)index;
    size_t n = 16;
    while (n < count * 2) n *= 2;
    index->mask = n - 1;
    index->slots = calloc(n, sizeof *index->slots);
    return index->slots != NULL;
}

void name_index_free(struct name_index *index) {
    free(index->slots);
    *index = (struct name_index){0};
}

/* FNV-1a from a random start, with its high bits folded down at the end. */
static uint64_t hash(uint64_t seed, const char *name, size_t size) {
    uint64_t h = seed ^ 0xCBF29CE484222325;
    for (size_t i = 0; i < size; i++) h = (h ^ (uint8_t)name[i]) * 0x100000001B3;
    h = (h ^ h >> 33) * 0xFF51AFD7ED558CCD;
    return h ^ h >> 33;
}

/* The slot that holds the name, or the free one where it would go. */
static struct name_slot *slot_of(const struct name_index *index, const char *name, size_t size) {
    size_t at = hash(index->seed, name, size) & index->mask;
    for (;; at = (at + 1) & index->mask) {
        struct name_slot *slot = &index->slots[at];
        if (!slot->name) return slot;
        if (slot->size == size && memcmp(slot->name, name, size) == 0) return slot;
    }
}

bool name_index_add(struct name_index *index, const char *name, size_t size, size_t at) {
    struct name_slot *slot = slot_of(index, name, size);
    if (slot->name) return false;
    *slot = (struct name_slot){name, size, at};
    return true;
}

int64_t name_index_find(const struct name_index *index, const char *name, size_t size) {
    if (!index->slots) return -1;
    const struct name_slot *slot = slot_of(index, name, size);
    return slot->name ? (int64_t)slot->at : -1;
}
