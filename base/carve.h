/* base/carve.h: pieces of large stretches of addresses: the books of an arena, whoever owns its memory.
 *
 * Stretches are added and dropped as a whole. A piece is taken where the least is left over, from the lowest
 * such place, so that the same calls always give the same addresses; what is given back merges with its free
 * neighbours. A stretch has a tag, and a piece comes from stretches of the tag that is asked for. Addresses
 * are numbers: nothing is read or written behind them. Not thread-safe: one owner. */
#ifndef TPD_BASE_CARVE_H
#define TPD_BASE_CARVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Stretches begin at multiples of this, pieces too. */
enum { CARVE_ALIGN = 256 };

static inline size_t carve_round(size_t bytes) {
    return (bytes + CARVE_ALIGN - 1) / CARVE_ALIGN * CARVE_ALIGN;
}

struct carve_run {
    uint64_t at;
    size_t bytes;
};

struct carve_stretch {
    uint64_t at;
    size_t bytes, free;
    int tag, n_pieces;
    struct carve_run *runs; /* what is free, ascending; no two touch */
    int n_runs, max_runs;   /* room for one more than there are pieces: giving back takes no memory */
};

struct carve {
    struct carve_stretch *stretches;
    int n, max;
};

/* bytes: a multiple of CARVE_ALIGN, over 0. False without host memory, and then all is as it was. */
bool carve_add(struct carve *c, uint64_t at, size_t bytes, int tag);
/* bytes: as above. False when no run of the tag is long enough, or without host memory. */
bool carve_take(struct carve *c, size_t bytes, int tag, uint64_t *out);
/* A piece as carve_take gave it. Returns its stretch when nothing is taken of that any more, else NULL. */
const struct carve_stretch *carve_give(struct carve *c, uint64_t at, size_t bytes);
/* Takes a stretch of which nothing is taken from the books; stretches move. */
void carve_drop(struct carve *c, const struct carve_stretch *stretch);
/* The stretch that holds the address, or NULL; until the next add or drop. */
const struct carve_stretch *carve_find(const struct carve *c, uint64_t at);
/* Bytes of all stretches, and those of them that are free. */
size_t carve_held(const struct carve *c);
size_t carve_free_bytes(const struct carve *c);
/* The longest free run of a tag. */
size_t carve_longest(const struct carve *c, int tag);
/* Frees the books. */
void carve_close(struct carve *c);

#ifdef __cplusplus
}
#endif

#endif
