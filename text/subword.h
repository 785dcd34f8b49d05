/* text/subword.h: from a piece of text to ids, by merging neighbours again and again.
 *
 * Two kinds: BPE of tokenizer.json and of GGUF "gpt2" (a ranked list of merges of two ids), and
 * SentencePiece BPE of GGUF "llama" (two neighbours merge when the vocabulary has their text; the
 * better score goes first). Both keep a heap of possible merges and a linked list of symbols, so a
 * word of n characters takes n log n. */
#ifndef TPD_TEXT_SUBWORD_H
#define TPD_TEXT_SUBWORD_H

#include "text/buffer.h"
#include "text/merges.h"
#include "text/vocab.h"

enum subword_kind { SUBWORD_BPE, SUBWORD_SPM };

enum { JOIN_BITS = 1 << 20, SUBWORD_LATIN = 512 };

struct subword {
    enum subword_kind kind;
    const struct vocab *vocab;
    /* Which two characters may stand side by side within a token: a filter that may say yes too
     * often, never no. Where it says no, a word can be cut without changing any merge. */
    uint8_t *joins;
    token_id latin[SUBWORD_LATIN]; /* the single-character tokens of the first code points, or -1 */
    token_id bytes[256];           /* "<0x00>" … "<0xFF>", or -1 */
    token_id unk;                  /* -1: unknown characters are left out */

    /* BPE */
    struct merges merges;
    bool byte_fallback, fuse_unk, ignore_merges;
    struct buf
        prefix; /* continuing_subword_prefix: before all characters of a word but the first */
    struct buf suffix; /* end_of_word_suffix: behind the last */

    /* SPM */
    float *scores; /* by id */
};

/* Memory that one thread reuses from word to word. */
struct symbol {
    uint32_t from, size; /* its text; size 0: merged into the one before */
    token_id id;
    int32_t before, behind; /* -1: none */
};

struct candidate {
    uint64_t key;   /* smallest first: rank << 32 | index of the left symbol */
    uint32_t value; /* what must still hold when its turn comes */
};

enum { CACHE_SLOTS = 8192, CACHE_TEXT = 22, CACHE_IDS = 9 };

struct cached_word {
    uint8_t size, n; /* size 0: free */
    char text[CACHE_TEXT];
    token_id ids[CACHE_IDS];
};

struct subword_work {
    struct symbol *symbols;
    size_t n_symbols, symbols_capacity;
    struct candidate *heap;
    size_t n_heap, heap_capacity;
    struct cached_word *cache; /* made at the first long text */
    struct buf spelling;       /* a character with prefix and suffix */
    bool failed;
};

/* vocab must be whole by then; fills latin, bytes and joins. False: no memory. */
bool subword_prepare(struct subword *m, const struct vocab *vocab);
void subword_free(struct subword *m);

/* Appends the ids of one word. 0 or ERR_MEMORY. */
int subword_encode(const struct subword *m, struct subword_work *work, const char *text,
                   size_t size, struct token_ids *out, struct error *e);
/* Words of a text of this many bytes or more are worth remembering. */
enum { SUBWORD_CACHE_FROM = 2048 };
void subword_work_cache(struct subword_work *work);
void subword_work_free(struct subword_work *work);

/* For bpe.c and spm.c, the two ways to encode a word; symbols are left in work. */
bool bpe_symbols(const struct subword *m, struct subword_work *work, const char *word, size_t size);
bool spm_symbols(const struct subword *m, struct subword_work *work, const char *word, size_t size);
bool work_push_symbol(struct subword_work *work, struct symbol symbol);
bool work_push_candidate(struct subword_work *work, uint64_t key, uint32_t value);
bool work_pop_candidate(struct subword_work *work, struct candidate *out);
/* Symbol right goes into symbol left, its neighbour. */
void work_merge(struct subword_work *work, int32_t left, int32_t right, token_id id);

bool token_ids_add(struct token_ids *ids, token_id id);

#endif
