#include "serve/kv_blocks.h"

#include <assert.h>
#include <stdlib.h>

struct kv_blocks {
    int32_t total, n_free;
    int32_t *free_list; /* [total], the first n_free are free; the last one is taken first */
    bool *taken;        /* [total] */
};

int kv_blocks_new(struct kv_blocks **out, int32_t n_blocks, struct error *e) {
    struct kv_blocks *kv = calloc(1, sizeof *kv);
    if (kv) {
        kv->free_list = calloc((size_t)n_blocks + 1, sizeof *kv->free_list);
        kv->taken = calloc((size_t)n_blocks + 1, sizeof *kv->taken);
    }
    if (!kv || !kv->free_list || !kv->taken) {
        kv_blocks_free(kv);
        return error_set(e, ERR_MEMORY, "no memory for the books of %d KV blocks", n_blocks);
    }
    kv->total = kv->n_free = n_blocks;
    for (int32_t i = 0; i < n_blocks; i++) kv->free_list[i] = n_blocks - 1 - i;
    *out = kv;
    return 0;
}

void kv_blocks_free(struct kv_blocks *kv) {
    if (!kv) return;
    free(kv->free_list);
    free(kv->taken);
    free(kv);
}

int32_t kv_blocks_total(const struct kv_blocks *kv) {
    return kv->total;
}

int32_t kv_blocks_available(const struct kv_blocks *kv) {
    return kv->n_free;
}

int kv_blocks_take(struct kv_blocks *kv, struct kv_table *table, int32_t n, struct error *e) {
    assert(table->n == 0 && n >= 0);
    int32_t *blocks = n <= kv->n_free ? malloc((size_t)(n ? n : 1) * sizeof *blocks) : NULL;
    if (!blocks) {
        int err =
            error_set(e, ERR_MEMORY, "%d KV blocks are needed and %d are free", n, kv->n_free);
        error_note_number(e, "needed", n);
        error_note_number(e, "free", kv->n_free);
        return err;
    }
    for (int32_t i = 0; i < n; i++) {
        blocks[i] = kv->free_list[--kv->n_free];
        kv->taken[blocks[i]] = true;
    }
    free(table->blocks);
    *table = (struct kv_table){blocks, n};
    return 0;
}

void kv_blocks_give(struct kv_blocks *kv, struct kv_table *table) {
    /* Backwards, so that they are taken again in the same order. */
    for (int32_t i = table->n - 1; i >= 0; i--) {
        int32_t block = table->blocks[i];
        assert(kv->taken[block]);
        kv->taken[block] = false;
        kv->free_list[kv->n_free++] = block;
    }
    free(table->blocks);
    *table = (struct kv_table){NULL, 0};
}

bool kv_blocks_sound(const struct kv_blocks *kv, const struct kv_table *const *tables,
                     size_t n_tables) {
    int32_t *seen = calloc((size_t)kv->total + 1, sizeof *seen);
    bool sound = seen;
    for (int32_t i = 0; i < kv->n_free && sound; i++) {
        int32_t block = kv->free_list[i];
        sound = block >= 0 && block < kv->total && !kv->taken[block] && seen[block]++ == 0;
    }
    for (size_t t = 0; t < n_tables && sound; t++)
        for (int32_t i = 0; i < tables[t]->n && sound; i++) {
            int32_t block = tables[t]->blocks[i];
            sound = block >= 0 && block < kv->total && kv->taken[block] && seen[block]++ == 0;
        }
    for (int32_t block = 0; block < kv->total && sound; block++) sound = seen[block] == 1;
    free(seen);
    return sound;
}
