/* text/bpe.c: byte-pair encoding by a ranked list of merges. */
#include "text/subword.h"

#include "text/unicode.h"

static bool push_pair(const struct subword *m, struct subword_work *work, int32_t left) {
    if (left < 0 || work->symbols[left].behind < 0) return true;
    token_id right = work->symbols[work->symbols[left].behind].id;
    const struct merge *merge = merges_find(&m->merges, work->symbols[left].id, right);
    if (!merge) return true;
    return work_push_candidate(work, (uint64_t)merge->rank << 32 | (uint32_t)left,
                               (uint32_t)merge->id);
}

/* Unknown characters wait here: several in a row may become one unk. */
struct unknown {
    uint32_t from, size; /* size 0: none waits */
};

static bool flush_unknown(const struct subword *m, struct subword_work *work,
                          struct unknown *unknown) {
    struct unknown u = *unknown;
    unknown->size = 0;
    return u.size == 0 || work_push_symbol(work, (struct symbol){u.from, u.size, m->unk, -1, -1});
}

/* The bytes of spelling as byte tokens; false when not all of them have one. */
static bool has_bytes(const struct subword *m, const char *spelling, size_t size) {
    for (size_t i = 0; i < size; i++)
        if (m->bytes[(uint8_t)spelling[i]] < 0) return false;
    return true;
}

/* A character that the vocabulary does not have. Byte tokens do not flush the unknown ones before
 * them: Hugging Face's order, seen only where some of the 256 byte tokens are missing. */
static bool push_missing(const struct subword *m, struct subword_work *work,
                         struct unknown *unknown, const char *spelling, size_t spelling_size,
                         uint32_t from, uint32_t size) {
    if (m->byte_fallback && has_bytes(m, spelling, spelling_size)) {
        for (size_t i = 0; i < spelling_size; i++) {
            struct symbol symbol = {from, 1, m->bytes[(uint8_t)spelling[i]], -1, -1};
            if (!work_push_symbol(work, symbol)) return false;
        }
        return true;
    }
    if (m->unk < 0) return true;
    if (unknown->size > 0 && m->fuse_unk) {
        unknown->size += size;
        return true;
    }
    if (!flush_unknown(m, work, unknown)) return false;
    *unknown = (struct unknown){from, size};
    return true;
}

/* The id of one character of a word, by the way it is spelt at its place in the word. */
static token_id find_char(const struct subword *m, struct subword_work *work, uint32_t c,
                          const char **spelling, size_t *size, bool first, bool last) {
    if ((first || !m->prefix.size) && (!last || !m->suffix.size)) {
        if (c < SUBWORD_LATIN) return m->latin[c];
    } else {
        work->spelling.size = 0;
        if (!first) buf_add(&work->spelling, m->prefix.data, m->prefix.size);
        buf_add(&work->spelling, *spelling, *size);
        if (last) buf_add(&work->spelling, m->suffix.data, m->suffix.size);
        if (work->spelling.failed) return -1;
        *spelling = work->spelling.data;
        *size = work->spelling.size;
    }
    return vocab_find(m->vocab, *spelling, *size);
}

bool bpe_symbols(const struct subword *m, struct subword_work *work, const char *word,
                 size_t size) {
    struct unknown unknown = {0, 0};
    for (size_t at = 0, n; at < size; at += n) {
        uint32_t c;
        n = utf8_next(word + at, &c);
        const char *spelling = word + at;
        size_t spelling_size = n;
        token_id id = find_char(m, work, c, &spelling, &spelling_size, at == 0, at + n == size);
        bool ok =
            id >= 0
                ? flush_unknown(m, work, &unknown) &&
                      work_push_symbol(work, (struct symbol){(uint32_t)at, (uint32_t)n, id, -1, -1})
                : push_missing(m, work, &unknown, spelling, spelling_size, (uint32_t)at,
                               (uint32_t)n);
        if (!ok || work->spelling.failed) return false;
    }
    if (!flush_unknown(m, work, &unknown)) return false;

    for (size_t i = 0; i + 1 < work->n_symbols; i++)
        if (!push_pair(m, work, (int32_t)i)) return false;
    struct candidate next;
    while (work_pop_candidate(work, &next)) {
        int32_t left = (int32_t)(uint32_t)next.key;
        struct symbol *symbol = &work->symbols[left];
        if (symbol->size == 0 || symbol->behind < 0) continue;
        const struct merge *merge = merges_find(&m->merges, symbol->id, work->symbols[symbol->behind].id);
        if (!merge || merge->id != (token_id)next.value) continue; /* its pair is gone */
        work_merge(work, left, symbol->behind, merge->id);
        if (!push_pair(m, work, symbol->before) || !push_pair(m, work, left)) return false;
    }
    return true;
}
