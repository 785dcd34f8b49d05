/* serve/kv_blocks.h: who has which block of the KV cache, and what full blocks hold.
 *
 * Host-side books only: block b is the same block on every rank. Used by the driver alone; nothing
 * is allocated after kv_blocks_new.
 *
 * A full block can be named: by the name of the block before it and by its own tokens, which are
 * kept and compared. So equal names mean equal tokens from the beginning on, without trust in a
 * hash. The first block of a sequence follows a root, a name that its owner makes of all else that
 * keys and values depend on (the adapter). Named blocks are shared by counting their users, and stay
 * when the last user has gone, until their room is needed: the one unused for longest goes first,
 * and of one sequence its end before its beginning. */
#ifndef TPD_SERVE_KV_BLOCKS_H
#define TPD_SERVE_KV_BLOCKS_H

#include "base/error.h"

struct kv_blocks;

/* The blocks of one sequence, in the order of its positions. */
struct kv_table {
    int32_t *blocks; /* the owner's room for as many as it will ever have */
    int32_t n;
    int32_t n_named; /* the first ones: shared, or to be shared */
    uint64_t name;   /* of the last of those, else the root */
};

/* Roots have the highest bit set, names of blocks have not. */
#define KV_ROOT ((uint64_t)1 << 63)

int kv_blocks_new(struct kv_blocks **out, int32_t n_blocks, int32_t block_size, struct error *e);
void kv_blocks_free(struct kv_blocks *kv);

/* Blocks without a user: empty ones and named ones. */
int32_t kv_blocks_available(const struct kv_blocks *kv);
/* Named ones among those. */
int32_t kv_blocks_cached(const struct kv_blocks *kv);

/* Lengthens a table to n blocks; false, and all is as it was, when there are not enough. */
bool kv_blocks_extend(struct kv_blocks *kv, struct kv_table *table, int32_t n);
/* Shares the named blocks that hold the tokens that come next, as far as they end at position
 * `until` or before. Only for a table whose blocks are all named. Returns how many were added. */
int32_t kv_blocks_share(struct kv_blocks *kv, struct kv_table *table, const int32_t *tokens,
                        int32_t until);
/* The first n_done positions have been computed from tokens: names the blocks that are full now.
 * Where another block has that name already the table takes it in place of its own. */
void kv_blocks_name(struct kv_blocks *kv, struct kv_table *table, const int32_t *tokens,
                    int32_t n_done);
/* A second cache has the same blocks (a draft model's keys and values). Of how many positions from the
 * beginning on it holds what belongs to the table's tokens; it now does of the first n; it no longer does
 * behind the first n (positions that are not in named blocks). */
int32_t kv_blocks_second(const struct kv_blocks *kv, const struct kv_table *table);
void kv_blocks_second_has(struct kv_blocks *kv, const struct kv_table *table, int32_t n);
void kv_blocks_second_lost(struct kv_blocks *kv, const struct kv_table *table, int32_t n);
/* Gives all blocks back and leaves the table empty. distrust: what they hold may be wrong, so they
 * lose their names, and nobody new gets them. */
void kv_blocks_give(struct kv_blocks *kv, struct kv_table *table, bool distrust);

/* Whether the books agree with each other and with the tables, which are all there are: every block
 * has as many users as tables hold it, and those without one, and no others, can be taken. For tests
 * and debugging: it goes through everything. */
bool kv_blocks_sound(const struct kv_blocks *kv, const struct kv_table *const *tables,
                     size_t n_tables);

#endif
