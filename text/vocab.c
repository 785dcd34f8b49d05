/* text/vocab.c: see vocab.h. */
#include "text/vocab.h"

#include "base/hash.h"

#include <sys/random.h>

/* The bits of a hash that a slot keeps: not those that choose it. */
static uint32_t tag_of(uint64_t hash) { return (uint32_t)(hash >> 32) >> VOCAB_ID_BITS << VOCAB_ID_BITS; }

static token_id id_of(vocab_slot slot) {
    return slot == VOCAB_FREE ? -1 : (token_id)(slot & ((1u << VOCAB_ID_BITS) - 1));
}

static uint64_t hash_piece(const struct vocab *v, token_id id) {
    return hash_bytes(v->seed, v->arena.data + v->entries[id].from, v->entries[id].size);
}

static bool rehash(struct vocab *v, uint32_t n_slots) {
    vocab_slot *slots = malloc(n_slots * sizeof *slots);
    if (!slots) return false;
    memset(slots, 0xFF, n_slots * sizeof *slots);
    for (uint32_t i = 0; i < v->n_slots; i++) {
        if (v->slots[i] == VOCAB_FREE) continue;
        uint32_t at = (uint32_t)hash_piece(v, id_of(v->slots[i])) & (n_slots - 1);
        while (slots[at] != VOCAB_FREE) at = (at + 1) & (n_slots - 1);
        slots[at] = v->slots[i];
    }
    free(v->slots);
    v->slots = slots;
    v->n_slots = n_slots;
    return true;
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

bool vocab_init(struct vocab *v, size_t n_expected) {
    *v = (struct vocab){0};
    if (getrandom(&v->seed, sizeof v->seed, GRND_NONBLOCK) != sizeof v->seed)
        v->seed = (uint64_t)(uintptr_t)v;
    if (n_expected > VOCAB_MAX_ID) n_expected = VOCAB_MAX_ID;
    uint32_t n_slots = 64;
    while (n_slots < n_expected * 2) n_slots *= 2;
    v->entries = calloc(n_expected + 1, sizeof *v->entries);
    if (v->entries) v->capacity = (int32_t)n_expected + 1;
    return v->entries && rehash(v, n_slots);
}

void vocab_free(struct vocab *v) {
    buf_free(&v->arena);
    free(v->entries);
    free(v->slots);
    *v = (struct vocab){0};
}

/* The slot that holds the piece, or the free one where it belongs. */
static vocab_slot *find_slot(const struct vocab *v, uint64_t hash, const char *piece, size_t size) {
    uint32_t at = (uint32_t)hash & (v->n_slots - 1), tag = tag_of(hash);
    for (;; at = (at + 1) & (v->n_slots - 1)) {
        vocab_slot *slot = &v->slots[at];
        if (*slot == VOCAB_FREE) return slot;
        if ((*slot ^ tag) >> VOCAB_ID_BITS) continue;
        const struct vocab_entry *entry = &v->entries[id_of(*slot)];
        if (entry->size == size && memcmp(v->arena.data + entry->from, piece, size) == 0) return slot;
    }
}

token_id vocab_find(const struct vocab *v, const char *piece, size_t size) {
    if (size > v->longest || v->n_used == 0) return -1;
    return id_of(*find_slot(v, hash_bytes(v->seed, piece, size), piece, size));
}

enum vocab_added vocab_add(struct vocab *v, token_id id, const char *piece, size_t size) {
    if (vocab_has(v, id)) return VOCAB_ID_TAKEN;
    if (v->n_used * 2 >= v->n_slots && !rehash(v, v->n_slots * 2)) return VOCAB_NO_MEMORY;
    uint64_t hash = hash_bytes(v->seed, piece, size);
    vocab_slot *slot = find_slot(v, hash, piece, size);
    if (*slot != VOCAB_FREE) return VOCAB_PIECE_TAKEN;
    if (size > VOCAB_MAX_SIZE || v->arena.size + size >= UINT32_MAX || !reserve_ids(v, id + 1))
        return VOCAB_NO_MEMORY;
    uint32_t from = (uint32_t)v->arena.size;
    buf_add(&v->arena, piece, size);
    buf_add_char(&v->arena, '\0');
    if (v->arena.failed) return VOCAB_NO_MEMORY;
    v->entries[id] = (struct vocab_entry){.from = from, .size = (uint32_t)size, .present = 1};
    if (id >= v->n) v->n = id + 1;
    if (size > v->longest) v->longest = (uint32_t)size;
    *slot = tag_of(hash) | (uint32_t)id;
    v->n_used++;
    return VOCAB_ADDED;
}
