#include "serve/kv_blocks.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { NONE = -1 };

struct block {
    int32_t users;
    int32_t before, after; /* in the ring of blocks without users, whose head is block n_blocks */
    uint64_t name;         /* 0 = none */
    uint64_t parent;       /* the name before it */
    int32_t next;          /* in its bucket */
    int32_t second;        /* positions that the second cache holds too, from its first on */
};

struct kv_blocks {
    int32_t n_blocks, block_size;
    int32_t n_available, n_cached;
    uint64_t last_name;
    uint32_t bucket_mask;
    int32_t *buckets;     /* named blocks by parent and tokens */
    struct block *blocks; /* [n_blocks + 1] */
    int32_t *tokens;      /* [n_blocks, block_size] of named blocks */
};

/* --- blocks without users ---------------------------------------------------------------------- */

static void ring_remove(struct kv_blocks *kv, int32_t b) {
    struct block *block = &kv->blocks[b];
    kv->blocks[block->before].after = block->after;
    kv->blocks[block->after].before = block->before;
    kv->n_available--;
    kv->n_cached -= block->name != 0;
}

/* Empty blocks go to the front, where they are taken first; named ones to the end. */
static void ring_add(struct kv_blocks *kv, int32_t b) {
    struct block *block = &kv->blocks[b];
    int32_t head = kv->n_blocks;
    int32_t before = block->name ? kv->blocks[head].before : head;
    int32_t after = kv->blocks[before].after;
    block->before = before;
    block->after = after;
    kv->blocks[before].after = b;
    kv->blocks[after].before = b;
    kv->n_available++;
    kv->n_cached += block->name != 0;
}

/* --- names ------------------------------------------------------------------------------------- */

static int32_t *bucket_of(const struct kv_blocks *kv, uint64_t parent, const int32_t *tokens) {
    uint64_t h = parent;
    for (int32_t i = 0; i < kv->block_size; i++) {
        h = (h ^ (uint32_t)tokens[i]) * 0x9E3779B97F4A7C15u;
        h ^= h >> 32;
    }
    return &kv->buckets[h & kv->bucket_mask];
}

static int32_t *tokens_of(const struct kv_blocks *kv, int32_t b) {
    return kv->tokens + (size_t)b * (size_t)kv->block_size;
}

static int32_t find(const struct kv_blocks *kv, uint64_t parent, const int32_t *tokens) {
    size_t bytes = (size_t)kv->block_size * sizeof *tokens;
    int32_t b = *bucket_of(kv, parent, tokens);
    while (b != NONE && (kv->blocks[b].parent != parent ||
                         memcmp(tokens_of(kv, b), tokens, bytes) != 0))
        b = kv->blocks[b].next;
    return b;
}

static void give_name(struct kv_blocks *kv, int32_t b, uint64_t parent, const int32_t *tokens) {
    struct block *block = &kv->blocks[b];
    int32_t *bucket = bucket_of(kv, parent, tokens);
    memcpy(tokens_of(kv, b), tokens, (size_t)kv->block_size * sizeof *tokens);
    block->parent = parent;
    block->name = ++kv->last_name;
    block->next = *bucket;
    *bucket = b;
}

/* Blocks that follow it keep their names, but nobody finds the way to them any more. */
static void take_name(struct kv_blocks *kv, int32_t b) {
    struct block *block = &kv->blocks[b];
    if (!block->name) return;
    int32_t *link = bucket_of(kv, block->parent, tokens_of(kv, b));
    while (*link != b) link = &kv->blocks[*link].next;
    *link = block->next;
    block->name = 0;
}

/* --- making ------------------------------------------------------------------------------------ */

int kv_blocks_new(struct kv_blocks **out, int32_t n_blocks, int32_t block_size, struct error *e) {
    struct kv_blocks *kv = calloc(1, sizeof *kv);
    uint32_t n_buckets = 1;
    while (n_buckets < (uint32_t)n_blocks) n_buckets *= 2;
    if (kv) {
        kv->blocks = calloc((size_t)n_blocks + 1, sizeof *kv->blocks);
        kv->buckets = malloc(n_buckets * sizeof *kv->buckets);
        kv->tokens = calloc((size_t)n_blocks + 1, (size_t)block_size * sizeof *kv->tokens);
    }
    if (!kv || !kv->blocks || !kv->buckets || !kv->tokens) {
        kv_blocks_free(kv);
        return error_set(e, ERR_MEMORY, "no memory for the books of %d KV blocks", n_blocks);
    }
    kv->n_blocks = n_blocks;
    kv->block_size = block_size;
    kv->bucket_mask = n_buckets - 1;
    for (uint32_t i = 0; i < n_buckets; i++) kv->buckets[i] = NONE;
    kv->blocks[n_blocks].before = kv->blocks[n_blocks].after = n_blocks;
    for (int32_t b = n_blocks - 1; b >= 0; b--) ring_add(kv, b);
    *out = kv;
    return 0;
}

void kv_blocks_free(struct kv_blocks *kv) {
    if (!kv) return;
    free(kv->blocks);
    free(kv->buckets);
    free(kv->tokens);
    free(kv);
}

int32_t kv_blocks_available(const struct kv_blocks *kv) {
    return kv->n_available;
}

int32_t kv_blocks_cached(const struct kv_blocks *kv) {
    return kv->n_cached;
}

/* --- tables ------------------------------------------------------------------------------------ */

bool kv_blocks_extend(struct kv_blocks *kv, struct kv_table *table, int32_t n) {
    if (n - table->n > kv->n_available) return false;
    while (table->n < n) {
        int32_t b = kv->blocks[kv->n_blocks].after;
        ring_remove(kv, b);
        take_name(kv, b);
        kv->blocks[b].users = 1;
        kv->blocks[b].second = 0;
        table->blocks[table->n++] = b;
    }
    return true;
}

static void use(struct kv_blocks *kv, int32_t b) {
    if (kv->blocks[b].users++ == 0) ring_remove(kv, b);
}

static void leave(struct kv_blocks *kv, int32_t b) {
    assert(kv->blocks[b].users > 0);
    if (--kv->blocks[b].users == 0) ring_add(kv, b);
}

int32_t kv_blocks_share(struct kv_blocks *kv, struct kv_table *table, const int32_t *tokens,
                        int32_t until) {
    assert(table->n == table->n_named);
    int32_t n_before = table->n;
    while ((table->n + 1) * kv->block_size <= until) {
        int32_t b = find(kv, table->name, tokens + (size_t)table->n * (size_t)kv->block_size);
        if (b == NONE) break;
        use(kv, b);
        table->name = kv->blocks[b].name;
        table->blocks[table->n++] = b;
        table->n_named++;
    }
    return table->n - n_before;
}

void kv_blocks_name(struct kv_blocks *kv, struct kv_table *table, const int32_t *tokens,
                    int32_t n_done) {
    for (; (table->n_named + 1) * kv->block_size <= n_done; table->n_named++) {
        const int32_t *own = tokens + (size_t)table->n_named * (size_t)kv->block_size;
        int32_t *b = &table->blocks[table->n_named];
        int32_t same = find(kv, table->name, own);
        if (same == NONE) {
            give_name(kv, *b, table->name, own);
        } else {
            use(kv, same);
            leave(kv, *b);
            *b = same;
        }
        table->name = kv->blocks[*b].name;
    }
}

/* How many of n positions fall into block number i of a table. */
static int32_t part_of(const struct kv_blocks *kv, int32_t i, int32_t n) {
    int32_t left = n - i * kv->block_size;
    return left < 0 ? 0 : left < kv->block_size ? left : kv->block_size;
}

int32_t kv_blocks_second(const struct kv_blocks *kv, const struct kv_table *table) {
    int32_t i = 0;
    while (i < table->n && kv->blocks[table->blocks[i]].second == kv->block_size) i++;
    return i * kv->block_size + (i < table->n ? kv->blocks[table->blocks[i]].second : 0);
}

void kv_blocks_second_has(struct kv_blocks *kv, const struct kv_table *table, int32_t n) {
    for (int32_t i = table->n; i-- > 0;) {
        struct block *block = &kv->blocks[table->blocks[i]];
        if (block->second < part_of(kv, i, n)) block->second = part_of(kv, i, n);
    }
}

void kv_blocks_second_lost(struct kv_blocks *kv, const struct kv_table *table, int32_t n) {
    for (int32_t i = table->n; i-- > table->n_named;) {
        struct block *block = &kv->blocks[table->blocks[i]];
        if (block->second > part_of(kv, i, n)) block->second = part_of(kv, i, n);
    }
}

void kv_blocks_give(struct kv_blocks *kv, struct kv_table *table, bool distrust) {
    while (table->n > 0) {
        int32_t b = table->blocks[--table->n];
        if (distrust) take_name(kv, b);
        leave(kv, b);
    }
    table->n_named = 0;
}

/* --- checking ---------------------------------------------------------------------------------- */

/* The ring holds each block without users once, and the counts are right. */
static bool ring_sound(const struct kv_blocks *kv) {
    int32_t n = 0, cached = 0, head = kv->n_blocks;
    for (int32_t b = kv->blocks[head].after; b != head; b = kv->blocks[b].after) {
        const struct block *block = &kv->blocks[b];
        if (block->users != 0 || kv->blocks[block->after].before != b || ++n > kv->n_blocks)
            return false;
        cached += block->name != 0;
    }
    for (int32_t b = 0; b < kv->n_blocks; b++) n -= kv->blocks[b].users == 0;
    return n == 0 && cached == kv->n_cached;
}

static bool names_sound(const struct kv_blocks *kv) {
    int32_t n = 0;
    for (uint32_t i = 0; i <= kv->bucket_mask; i++)
        for (int32_t b = kv->buckets[i]; b != NONE; b = kv->blocks[b].next) {
            const struct block *block = &kv->blocks[b];
            if (!block->name || ++n > kv->n_blocks ||
                find(kv, block->parent, tokens_of(kv, b)) != b)
                return false;
        }
    for (int32_t b = 0; b < kv->n_blocks; b++) n -= kv->blocks[b].name != 0;
    return n == 0;
}

bool kv_blocks_sound(const struct kv_blocks *kv, const struct kv_table *const *tables,
                     size_t n_tables) {
    int32_t *users = calloc((size_t)kv->n_blocks + 1, sizeof *users);
    int32_t available = 0;
    bool sound = users && ring_sound(kv) && names_sound(kv);
    for (size_t t = 0; t < n_tables && sound; t++) {
        sound = tables[t]->n_named <= tables[t]->n;
        for (int32_t i = 0; i < tables[t]->n && sound; i++) {
            int32_t b = tables[t]->blocks[i];
            sound = b >= 0 && b < kv->n_blocks;
            if (sound) users[b]++;
        }
    }
    for (int32_t b = 0; b < kv->n_blocks && sound; b++) {
        sound = users[b] == kv->blocks[b].users;
        available += users[b] == 0;
    }
    free(users);
    return sound && available == kv->n_available;
}
