/* text/spm.c: SentencePiece BPE by scores, as the GGUF kind "llama" has it. */
#include "text/subword.h"

#include "text/unicode.h"

/* Order of scores as an unsigned number: the higher the score, the smaller. */
static uint32_t score_order(float score) {
    uint32_t bits;
    memcpy(&bits, &score, sizeof bits);
    return bits & 0x80000000u ? bits : ~bits & 0x7FFFFFFFu;
}

static bool push_pair(const struct subword *m, struct subword_work *work, const char *word,
                      int32_t left) {
    if (left < 0 || work->symbols[left].behind < 0) return true;
    const struct symbol *l = &work->symbols[left], *r = &work->symbols[l->behind];
    uint32_t size = l->size + r->size;
    token_id id = vocab_find(m->vocab, word + l->from, size);
    if (id < 0) return true;
    return work_push_candidate(work, (uint64_t)score_order(m->scores[id]) << 32 | (uint32_t)left,
                               size);
}

/* Characters that never became part of a token turn into bytes, else into unk. */
static bool replace_missing(const struct subword *m, struct subword_work *work, const char *word) {
    size_t n = work->n_symbols;
    bool missing = false;
    for (size_t i = 0; i < n && !missing; i++)
        missing = work->symbols[i].size > 0 && work->symbols[i].id < 0;
    if (!missing) return true;
    /* The finished list is written behind the symbols, then moved to the front. */
    for (size_t i = 0; i < n; i++) {
        struct symbol symbol = work->symbols[i];
        if (symbol.size == 0) continue;
        uint32_t parts = symbol.id < 0 ? symbol.size : 1;
        for (uint32_t j = 0; j < parts; j++) {
            if (symbol.id < 0) {
                uint8_t byte = (uint8_t)word[symbol.from + j];
                token_id id = m->bytes[byte];
                if (id < 0 && j == 0) id = m->unk;
                if (id < 0) continue;
                struct symbol part = {symbol.from + j, 1, id, -1, -1};
                if (!work_push_symbol(work, part)) return false;
            } else if (!work_push_symbol(work, symbol)) return false;
        }
    }
    work->n_symbols -= n;
    memmove(work->symbols, work->symbols + n, work->n_symbols * sizeof *work->symbols);
    return true;
}

bool spm_symbols(const struct subword *m, struct subword_work *work, const char *word,
                 size_t size) {
    for (size_t at = 0, n; at < size; at += n) {
        uint32_t c;
        n = utf8_next(word + at, &c);
        token_id id = vocab_find(m->vocab, word + at, n);
        struct symbol symbol = {(uint32_t)at, (uint32_t)n, id, -1, -1};
        if (!work_push_symbol(work, symbol)) return false;
    }
    for (size_t i = 0; i + 1 < work->n_symbols; i++)
        if (!push_pair(m, work, word, (int32_t)i)) return false;
    struct candidate next;
    while (work_pop_candidate(work, &next)) {
        int32_t left = (int32_t)(uint32_t)next.key;
        struct symbol *symbol = &work->symbols[left];
        if (symbol->size == 0 || symbol->behind < 0) continue;
        uint32_t whole = symbol->size + work->symbols[symbol->behind].size;
        if (whole != next.value) continue; /* one of the two has grown */
        work_merge(work, left, symbol->behind, vocab_find(m->vocab, word + symbol->from, whole));
        if (!push_pair(m, work, word, symbol->before) || !push_pair(m, work, word, left))
            return false;
    }
    return replace_missing(m, work, word);
}
