/* text/vocab.h: the vocabulary: ids and their pieces, in one arena with one hash table. */
#ifndef TPD_TEXT_VOCAB_H
#define TPD_TEXT_VOCAB_H

#include "text/buffer.h"
#include "text/tokenizer.h"

/* An id above this is a broken file, not a vocabulary: memory follows the highest id. A slot has room for it and
 * for VOCAB_FREE. */
enum { VOCAB_ID_BITS = 21, VOCAB_MAX_ID = (1 << VOCAB_ID_BITS) - 2 };

enum vocab_flag {
    VOCAB_SPECIAL = 1, /* left out by skip_special */
    VOCAB_RAW = 2      /* its piece is text as it is, not in the spelling of the vocabulary */
};

/* An id, and above it bits of its piece's hash, which keep most other pieces from being looked at. */
typedef uint32_t vocab_slot;
#define VOCAB_FREE UINT32_MAX

enum { VOCAB_MAX_SIZE = (1 << 29) - 1 };
struct vocab_entry {
    uint32_t from; /* in the arena */
    uint32_t size : 29;
    uint32_t flags : 2;   /* enum vocab_flag */
    uint32_t present : 1; /* 0: a hole */
};

struct vocab {
    struct buf arena;            /* pieces, each with a NUL behind it */
    struct vocab_entry *entries; /* by id */
    int32_t n, capacity;
    vocab_slot *slots; /* a power of two, at most half full */
    uint32_t n_slots, n_used;
    uint32_t longest; /* bytes of the longest piece */
    uint64_t seed;    /* of the hash: a file cannot be made to collide */
};

/* n_expected: about how many pieces will come. False: no memory. */
bool vocab_init(struct vocab *v, size_t n_expected);
void vocab_free(struct vocab *v);

enum vocab_added { VOCAB_ADDED, VOCAB_NO_MEMORY, VOCAB_ID_TAKEN, VOCAB_PIECE_TAKEN };
/* id is 0 … VOCAB_MAX_ID. Taken: the id has another piece, or the piece another id. */
enum vocab_added vocab_add(struct vocab *v, token_id id, const char *piece, size_t size);

/* -1 when there is none. */
token_id vocab_find(const struct vocab *v, const char *piece, size_t size);

static inline bool vocab_has(const struct vocab *v, token_id id) {
    return id >= 0 && id < v->n && v->entries[id].present;
}

/* vocab_has(v, id) must hold. */
static inline const char *vocab_piece(const struct vocab *v, token_id id, size_t *size) {
    *size = v->entries[id].size;
    return v->arena.data + v->entries[id].from;
}

#endif
