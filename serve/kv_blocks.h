/* serve/kv_blocks.h: who has which block of the KV cache.
 *
 * Host-side books only: block b is the same block on every rank. Used by the driver alone. */
#ifndef TPD_SERVE_KV_BLOCKS_H
#define TPD_SERVE_KV_BLOCKS_H

#include "base/error.h"

struct kv_blocks;

/* The blocks of one sequence, in the order of its positions. Zeroed by its owner at first. */
struct kv_table {
    int32_t *blocks; /* owned; NULL when n is 0 */
    int32_t n;
};

int kv_blocks_new(struct kv_blocks **out, int32_t n_blocks, struct error *e);
void kv_blocks_free(struct kv_blocks *kv);

int32_t kv_blocks_total(const struct kv_blocks *kv);
int32_t kv_blocks_available(const struct kv_blocks *kv);

/* Fills an empty table with n blocks, or leaves all as it was: ERR_MEMORY with needed and free. */
int kv_blocks_take(struct kv_blocks *kv, struct kv_table *table, int32_t n, struct error *e);
/* Gives all blocks of a table back and empties it. */
void kv_blocks_give(struct kv_blocks *kv, struct kv_table *table);

/* True when every block is either free or in exactly one of the tables, once. For tests. */
bool kv_blocks_sound(const struct kv_blocks *kv, const struct kv_table *const *tables,
                     size_t n_tables);

#endif
