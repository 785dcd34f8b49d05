/* formats/name_index.h: finds the position of a name in a list. Names are borrowed. The hash has a
 * random seed, so that a file cannot choose names that all fall into one slot. Written by one
 * thread, then read by any. */
#ifndef TPD_FORMATS_NAME_INDEX_H
#define TPD_FORMATS_NAME_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct name_slot {
    const char *name; /* NULL: free */
    size_t size;
    size_t at;
};

struct name_index {
    uint64_t seed;
    size_t mask;
    struct name_slot *slots;
};

/* Room for count names. false: no memory. */
bool name_index_init(struct name_index *index, size_t count);
void name_index_free(struct name_index *index);
/* false when the name is there already. */
bool name_index_add(struct name_index *index, const char *name, size_t size, size_t at);
/* The position given to name_index_add, or -1. */
int64_t name_index_find(const struct name_index *index, const char *name, size_t size);

#endif
