/* text/vocab.c: see vocab.h. */
#include "text/vocab.h"

#include "base/hash.h"

#include <sys/random.h>

static bool rehash(struct vocab *v, uint32_t n_slots) {
    struct vocab_slot *slots = malloc(n_slots * sizeof *slots);
    if (!slots) return false;
    memset(slots, 0xFF, n_slots * sizeof *slots);
    for (uint32_t i = 0; i < v->n_slots; i++) {
        if (v->slots[i].id < 0) continue;
        uint32_t at = v->slots[i].hash & (n_slots - 1);
        while (slots[at].id >= 0) at = (at + 1) & (n_slots - 1);
        slots[at] = v->slots[i];
    }
    free(v->slots);
    v->slots = slots;
    v->n_slots = n_slots;
    return true;
}

bool vocab_init(struct vocab *v, size_t n_expected) {
    *v = (struct vocab){0};
    if (getrandom(&v->seed, sizeof v->seed, GRND_NONBLOCK) != sizeof v->seed)
        v->seed = (uint64_t)(uintptr_t)v;
    if (n_expected > VOCAB_MAX_ID) n_expected = VOCAB_MAX_ID;
    uint32_t n_slots = 64;
    while (n_slots < n_expected * 2) n_slots *= 2;
    return rehash(v, n_slots);
}

void vocab_free(struct vocab *v) {
    buf_free(&v->arena);
    free(v->entries);
    free(v->slots);
    *v = (struct vocab){0};
}

/* The slot that holds the piece, or the free one where it belongs. */
static struct vocab_slot *find_slot(const struct vocab *v, uint32_t hash, const char *piece,
                                    size_t size) {
    uint32_t at = hash & (v->n_slots - 1);
    for (;; at = (at + 1) & (v->n_slots - 1)) {
        struct vocab_slot *slot = &v->slots[at];
        if (slot->id < 0) return slot;
        const struct vocab_entry *entry = &v->entries[slot->id];
        if (slot->hash == hash && entry->size == size &&
            memcmp(v->arena.data + entry->from, piece, size) == 0)
            return slot;
    }
}

token_id vocab_find(const struct vocab *v, const char *piece, size_t size) {
    if (size > v->longest || v->n_used == 0) return -1;
    return find_slot(v, (uint32_t)hash_bytes(v->seed, piece, size), piece, size)->id;
}

static bool reserve_ids(struct vocab *v, int32_t n) {
    if (n <= v->capacity) return true;
    int32_t want = v->capacity ? v->capacity : 1024;
    while (want < n) want *= 2;
    struct vocab_entry *entries = realloc(v->entries, (size_t)want * sizeof *entries);
    if (!entries) return false;
    memset(entries + v->capacity, 0, (size_t)(want - v->capacity) * sizeof *entries);
    v->entries = entries;
    v->capacity = want;
    return true;
}

enum vocab_added vocab_add(struct vocab *v, token_id id, const char *piece, size_t size) {
    if (vocab_has(v, id)) return VOCAB_ID_TAKEN;
    if (v->n_used * 2 >= v->n_slots && !rehash(v, v->n_slots * 2)) return VOCAB_NO_MEMORY;
    uint32_t hash = (uint32_t)hash_bytes(v->seed, piece, size);
    struct vocab_slot *slot = find_slot(v, hash, piece, size);
    if (slot->id >= 0) return VOCAB_PIECE_TAKEN;
    if (v->arena.size + size >= UINT32_MAX || !reserve_ids(v, id + 1)) return VOCAB_NO_MEMORY;
    uint32_t from = (uint32_t)v->arena.size;
    buf_add(&v->arena, piece, size);
    buf_add_char(&v->arena, '\0');
    if (v->arena.failed) return VOCAB_NO_MEMORY;
    v->entries[id] = (struct vocab_entry){from, (uint32_t)size, 0, true};
    if (id >= v->n) v->n = id + 1;
    if (size > v->longest) v->longest = (uint32_t)size;
    *slot = (struct vocab_slot){hash, id};
    v->n_used++;
    return VOCAB_ADDED;
}
