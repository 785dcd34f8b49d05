/* text/subword.c: what both kinds share: tables, the heap, and cutting a piece into words. */
#include "text/subword.h"

#include "base/hash.h"
#include "text/unicode.h"

#include <stdio.h>

enum { MAX_WORD = 1 << 30 };

bool token_ids_add(struct token_ids *ids, token_id id) {
    if (ids->n == ids->capacity) {
        size_t want = ids->capacity ? ids->capacity * 2 : 64;
        token_id *grown = realloc(ids->ids, want * sizeof *grown);
        if (!grown) return false;
        ids->ids = grown;
        ids->capacity = want;
    }
    ids->ids[ids->n++] = id;
    return true;
}

static uint32_t join_bit(uint32_t left, uint32_t right) {
    return (uint32_t)(hash_mix(0x5bd1e995, (uint64_t)left << 32 | right) % JOIN_BITS);
}

static void note_joins(struct subword *m, const char *piece, size_t size) {
    uint32_t left, right;
    size_t at = size ? utf8_next(piece, &left) : 0;
    for (; at < size; left = right) {
        at += utf8_next(piece + at, &right);
        uint32_t bit = join_bit(left, right);
        m->joins[bit >> 3] |= (uint8_t)(1 << (bit & 7));
    }
}

static bool may_join(const struct subword *m, uint32_t left, uint32_t right) {
    uint32_t bit = join_bit(left, right);
    return m->joins[bit >> 3] >> (bit & 7) & 1;
}

bool subword_prepare(struct subword *m, const struct vocab *vocab) {
    m->vocab = vocab;
    m->joins = calloc(1, JOIN_BITS / 8);
    if (!m->joins) return false;
    for (token_id id = 0; id < vocab->n; id++) {
        size_t size;
        if (!vocab_has(vocab, id)) continue;
        const char *piece = vocab_piece(vocab, id, &size);
        note_joins(m, piece, size);
    }
    for (uint32_t c = 0; c < SUBWORD_LATIN; c++) {
        char text[4];
        m->latin[c] = vocab_find(vocab, text, utf8_put(text, c));
    }
    for (int byte = 0; byte < 256; byte++) {
        char text[8];
        snprintf(text, sizeof text, "<0x%02X>", byte);
        m->bytes[byte] = vocab_find(vocab, text, 6);
    }
    return true;
}

void subword_free(struct subword *m) {
    free(m->joins);
    merges_free(&m->merges);
    free(m->scores);
    buf_free(&m->prefix);
    buf_free(&m->suffix);
    *m = (struct subword){0};
}

void subword_work_cache(struct subword_work *work) {
    work->cache = calloc(CACHE_SLOTS, sizeof *work->cache); /* NULL: only slower */
}

void subword_work_free(struct subword_work *work) {
    free(work->symbols);
    free(work->heap);
    free(work->cache);
    buf_free(&work->spelling);
    *work = (struct subword_work){0};
}

bool work_push_symbol(struct subword_work *work, struct symbol symbol) {
    if (work->n_symbols == work->symbols_capacity) {
        size_t want = work->symbols_capacity ? work->symbols_capacity * 2 : 64;
        struct symbol *grown = realloc(work->symbols, want * sizeof *grown);
        if (!grown) return !(work->failed = true);
        work->symbols = grown;
        work->symbols_capacity = want;
    }
    int32_t index = (int32_t)work->n_symbols++;
    symbol.before = index - 1;
    symbol.behind = -1;
    work->symbols[index] = symbol;
    if (index > 0) work->symbols[index - 1].behind = index;
    return true;
}

bool work_push_candidate(struct subword_work *work, uint64_t key, uint32_t value) {
    if (work->n_heap == work->heap_capacity) {
        size_t want = work->heap_capacity ? work->heap_capacity * 2 : 64;
        struct candidate *grown = realloc(work->heap, want * sizeof *grown);
        if (!grown) return !(work->failed = true);
        work->heap = grown;
        work->heap_capacity = want;
    }
    struct candidate *heap = work->heap;
    size_t at = work->n_heap++;
    for (; at > 0 && heap[(at - 1) / 2].key > key; at = (at - 1) / 2) heap[at] = heap[(at - 1) / 2];
    heap[at] = (struct candidate){key, value};
    return true;
}

bool work_pop_candidate(struct subword_work *work, struct candidate *out) {
    if (work->n_heap == 0) return false;
    struct candidate *heap = work->heap, last = heap[--work->n_heap];
    *out = heap[0];
    size_t at = 0, child;
    while ((child = 2 * at + 1) < work->n_heap) {
        if (child + 1 < work->n_heap && heap[child + 1].key < heap[child].key) child++;
        if (heap[child].key >= last.key) break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = last;
    return true;
}

void work_merge(struct subword_work *work, int32_t left, int32_t right, token_id id) {
    struct symbol *l = &work->symbols[left], *r = &work->symbols[right];
    l->id = id;
    l->size += r->size;
    l->behind = r->behind;
    if (r->behind >= 0) work->symbols[r->behind].before = left;
    r->size = 0;
}

/* The cache's place for a word, or NULL when words of this size are not kept. */
static struct cached_word *cached(struct subword_work *work, const struct subword *m,
                                  const char *word, size_t size) {
    if (!work->cache || size > CACHE_TEXT) return NULL;
    return &work->cache[hash_bytes(m->vocab->seed, word, size) % CACHE_SLOTS];
}

static int encode_word(const struct subword *m, struct subword_work *work, const char *word,
                       size_t size, struct token_ids *out) {
    struct cached_word *slot = cached(work, m, word, size);
    if (slot && slot->size == size && memcmp(slot->text, word, size) == 0) {
        for (int i = 0; i < slot->n; i++)
            if (!token_ids_add(out, slot->ids[i])) return -1;
        return 0;
    }
    size_t first = out->n;
    work->n_symbols = work->n_heap = 0;
    bool ok = m->kind == SUBWORD_BPE ? bpe_symbols(m, work, word, size)
                                     : spm_symbols(m, work, word, size);
    if (!ok) return -1;
    for (size_t i = 0; i < work->n_symbols; i++)
        if (work->symbols[i].size > 0 && !token_ids_add(out, work->symbols[i].id)) return -1;
    size_t n = out->n - first;
    if (slot && n <= CACHE_IDS) {
        slot->size = (uint8_t)size;
        slot->n = (uint8_t)n;
        memcpy(slot->text, word, size);
        if (n) memcpy(slot->ids, out->ids + first, n * sizeof *out->ids);
    }
    return 0;
}

/* The end of the word that begins at text[at]: before the first place where no token can reach
 * across. A character without a token of its own is not cut off, for it may be fused with the next.
 */
static size_t word_end(const struct subword *m, const char *text, size_t size, size_t at) {
    if (m->prefix.size || m->suffix.size) return size;
    uint32_t left, right;
    at += utf8_next(text + at, &left);
    for (; at < size; left = right) {
        size_t n = utf8_next(text + at, &right);
        if (!may_join(m, left, right)) {
            size_t left_size = at - utf8_before(text, at);
            if (vocab_find(m->vocab, text + at - left_size, left_size) >= 0 &&
                vocab_find(m->vocab, text + at, n) >= 0)
                return at;
        }
        at += n;
    }
    return size;
}

int subword_encode(const struct subword *m, struct subword_work *work, const char *text,
                   size_t size, struct token_ids *out, struct error *e) {
    if (size > MAX_WORD)
        return error_set(e, ERR_PARAMS, "the text is too long: at most %d bytes in one piece",
                         MAX_WORD);
    if (m->ignore_merges) {
        token_id whole = vocab_find(m->vocab, text, size);
        if (whole >= 0)
            return token_ids_add(out, whole) ? 0 : error_set(e, ERR_MEMORY, "no memory for ids");
    }
    for (size_t at = 0, end; at < size; at = end) {
        end = word_end(m, text, size, at);
        if (encode_word(m, work, text + at, end - at, out) != 0)
            return error_set(e, ERR_MEMORY, "no memory to encode text");
    }
    return 0;
}
