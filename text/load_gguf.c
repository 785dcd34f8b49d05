/* text/load_gguf.c: the tokenizer in the metadata of a GGUF file.
 *
 * tokenizer.ggml.model is "llama" (SentencePiece BPE by scores, with byte fallback) or "gpt2"
 * (byte-level BPE by merges, cut before as tokenizer.ggml.pre says). Control and unknown tokens are
 * special; they and the user-defined ones are looked for in the text as it is. */
#include "text/internal.h"

#include "base/hash.h"
#include "formats/gguf.h"
#include "formats/store.h"
#include "text/unicode.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>

enum token_type {
    TOKEN_NORMAL = 1,
    TOKEN_UNKNOWN,
    TOKEN_CONTROL,
    TOKEN_USER_DEFINED,
    TOKEN_UNUSED,
    TOKEN_BYTE
};

static bool string_is(struct gguf_string s, const char *text) {
    return s.size == strlen(text) && memcmp(s.data, text, s.size) == 0;
}

static int load_tokens(struct tokenizer *t, const struct gguf *file, struct error *e) {
    struct gguf_array tokens;
    int found = gguf_get_array(file, "tokenizer.ggml.tokens", &tokens, e);
    if (found < 0) return found;
    if (!found || tokens.element != GGUF_STRING)
        return error_set(e, ERR_BAD_FILE, "tokenizer.ggml.tokens must be an array of strings");
    if (tokens.count > VOCAB_MAX_ID + 1)
        return error_set(e, ERR_BAD_FILE, "tokenizer.ggml.tokens has %llu tokens, more than %d",
                         (unsigned long long)tokens.count, VOCAB_MAX_ID + 1);
    if (!vocab_init(&t->vocab, tokens.count))
        return error_set(e, ERR_MEMORY, "no memory for a vocabulary");
    struct gguf_string piece;
    size_t cursor = 0;
    for (token_id id = 0; gguf_array_next_string(&tokens, &cursor, &piece); id++) {
        char empty[32];
        if (piece.size == 0) { /* a hole, named so that it can never be met */
            snprintf(empty, sizeof empty, "[EMPTY_%d]", id);
            piece = (struct gguf_string){empty, strlen(empty)};
        }
        if (utf8_check(piece.data, piece.size) < piece.size)
            return error_set(e, ERR_BAD_FILE, "tokenizer.ggml.tokens[%d] is not UTF-8", id);
        switch (vocab_add(&t->vocab, id, piece.data, piece.size)) {
        case VOCAB_ADDED: break;
        case VOCAB_NO_MEMORY: return error_set(e, ERR_MEMORY, "no memory for a vocabulary");
        case VOCAB_ID_TAKEN:
        case VOCAB_PIECE_TAKEN:
            return error_set(e, ERR_BAD_FILE, "tokenizer.ggml.tokens[%d] is \"%.*s\", as is %d", id,
                             piece.size < 60 ? (int)piece.size : 60, piece.data,
                             vocab_find(&t->vocab, piece.data, piece.size));
        }
    }
    return 0;
}

/* An array of numbers with one for each token; 0 when there is none. */
static int per_token_array(const struct tokenizer *t, const struct gguf *file, const char *key,
                           struct gguf_array *out, struct error *e) {
    int found = gguf_get_array(file, key, out, e);
    if (found <= 0) return found;
    if (out->element == GGUF_STRING || out->element == GGUF_ARRAY)
        return error_set(e, ERR_BAD_FILE, "%s must be an array of numbers", key);
    if (out->count != (uint64_t)t->vocab.n)
        return error_set(e, ERR_BAD_FILE, "%s has %llu elements for %d tokens", key,
                         (unsigned long long)out->count, t->vocab.n);
    return 1;
}

static int load_scores(struct tokenizer *t, const struct gguf *file, struct error *e) {
    struct gguf_array scores;
    int found = per_token_array(t, file, "tokenizer.ggml.scores", &scores, e);
    if (found < 0) return found;
    t->subword.scores = calloc((size_t)t->vocab.n + 1, sizeof *t->subword.scores);
    if (!t->subword.scores) return error_set(e, ERR_MEMORY, "no memory for scores");
    for (int32_t i = 0; found && i < t->vocab.n; i++) {
        float score = (float)gguf_array_float(&scores, (uint64_t)i);
        if (isnan(score))
            return error_set(e, ERR_BAD_FILE, "tokenizer.ggml.scores[%d] is not a number", i);
        t->subword.scores[i] = score + 0.0f; /* no negative zero */
    }
    return 0;
}

/* Phi-3's files lost that its tokens take the white space behind them; its name tells. */
static bool strips_behind(const struct gguf *file, const char *piece, size_t size) {
    struct gguf_string name;
    struct error ignored;
    if (gguf_get_string(file, "general.name", &name, &ignored) != 1) return false;
    bool phi3 = false;
    for (size_t i = 0; i + 4 <= name.size && !phi3; i++)
        phi3 = strncasecmp(name.data + i, "phi3", 4) == 0 ||
               (i + 5 <= name.size && strncasecmp(name.data + i, "phi-3", 5) == 0);
    struct gguf_string s = {piece, size};
    return phi3 && !string_is(s, "<unk>") && !string_is(s, "<s>") && !string_is(s, "<|endoftext|>");
}

static int load_types(struct tokenizer *t, const struct gguf *file, struct error *e) {
    struct gguf_array types;
    int found = per_token_array(t, file, "tokenizer.ggml.token_type", &types, e);
    if (found <= 0) return found;
    for (token_id id = 0; id < t->vocab.n; id++) {
        int64_t type = gguf_array_int(&types, (uint64_t)id);
        if (type != TOKEN_UNKNOWN && type != TOKEN_CONTROL && type != TOKEN_USER_DEFINED) continue;
        size_t size;
        const char *piece = vocab_piece(&t->vocab, id, &size);
        struct added_flags flags = {.special = type != TOKEN_USER_DEFINED,
                                    .rstrip = strips_behind(file, piece, size)};
        t->vocab.entries[id].flags |= VOCAB_RAW;
        int err = tokenizer_add_token(t, id, piece, size, flags, e);
        if (err) return err;
    }
    return 0;
}

static int load_merges(struct tokenizer *t, const struct gguf *file, struct error *e) {
    struct gguf_array merges;
    struct gguf_string text;
    struct merge_list list = {0};
    struct buf whole = {0};
    size_t cursor = 0;
    int found = gguf_get_array(file, "tokenizer.ggml.merges", &merges, e), err = 0;
    if (found < 0) return found;
    if (!found || merges.element != GGUF_STRING)
        return error_set(e, ERR_BAD_FILE, "tokenizer.ggml.merges must be an array of strings");
    for (size_t i = 0; !err && gguf_array_next_string(&merges, &cursor, &text); i++) {
        const char *space = text.size > 1 ? memchr(text.data + 1, ' ', text.size - 1) : NULL;
        size_t n = space ? (size_t)(space - text.data) : 0, rest = space ? text.size - n - 1 : 0;
        whole.size = 0;
        buf_add(&whole, text.data, n);
        if (space) buf_add(&whole, space + 1, rest);
        token_id left = n ? vocab_find(&t->vocab, text.data, n) : -1;
        token_id right = rest ? vocab_find(&t->vocab, space + 1, rest) : -1;
        token_id id = whole.size ? vocab_find(&t->vocab, whole.data, whole.size) : -1;
        if (left < 0 || right < 0 || id < 0)
            err = error_set(e, ERR_BAD_FILE,
                            "tokenizer.ggml.merges[%zu] \"%.*s\" is not two tokens that "
                            "make a third",
                            i, text.size < 60 ? (int)text.size : 60, text.data);
        else if (!merge_list_add(&list, (struct merge_ids){left, right, id}))
            err = error_set(e, ERR_MEMORY, "no memory for merges");
    }
    if (!err && !merges_make(&t->subword.merges, list.at, list.n, t->vocab.n, false))
        err = error_set(e, ERR_MEMORY, "no memory for merges");
    free(list.at);
    buf_free(&whole);
    return err;
}

/* A key that names a token: stays as it is when absent or out of range (2^32-1 means none). */
static int take_id(const struct tokenizer *t, const struct gguf *file, const char *key,
                   token_id *out, struct error *e) {
    int64_t id;
    int found = gguf_get_int(file, key, &id, e);
    if (found == 1 && id >= 0 && id < t->vocab.n) *out = (token_id)id;
    return found < 0 ? found : 0;
}

/* before and behind by add_bos_token and add_eos_token; add_bos is what holds without a key. */
static int load_around(struct tokenizer *t, const struct gguf *file, bool add_bos,
                       struct error *e) {
    bool add_eos = false;
    int found = gguf_get_bool(file, "tokenizer.ggml.add_bos_token", &add_bos, e);
    if (found >= 0) found = gguf_get_bool(file, "tokenizer.ggml.add_eos_token", &add_eos, e);
    if (found < 0) return found;
    if ((add_bos && t->bos >= 0 && !token_ids_add(&t->before, t->bos)) ||
        (add_eos && t->eos >= 0 && !token_ids_add(&t->behind, t->eos)))
        return error_set(e, ERR_MEMORY, "no memory for a tokenizer");
    return 0;
}

static int load_spm(struct tokenizer *t, const struct gguf *file, struct error *e) {
    bool prefix = true;
    int found = gguf_get_bool(file, "tokenizer.ggml.add_space_prefix", &prefix, e);
    int err = found < 0 ? found : 0;
    t->subword.kind = SUBWORD_SPM;
    t->bos = 1 < t->vocab.n ? 1 : -1;
    t->eos = 2 < t->vocab.n ? 2 : -1;
    t->subword.unk = 0 < t->vocab.n ? 0 : -1;
    if (!err) err = load_scores(t, file, e);
    if (!err) err = take_id(t, file, "tokenizer.ggml.unknown_token_id", &t->subword.unk, e);
    if (!err) err = normaliser_sentencepiece(&t->normaliser, prefix, e);
    return err ? err : decoder_sentencepiece(&t->decoder, prefix, e);
}

static int load_gpt2(struct tokenizer *t, const struct gguf *file, bool *add_bos, struct error *e) {
    struct gguf_string name = {"", 0};
    bool known;
    int found = gguf_get_string(file, "tokenizer.ggml.pre", &name, e);
    if (found < 0) return found;
    const struct gguf_pre *pre = gguf_pre_find(name.data, name.size, &known);
    if (!known) {
        size_t size = 200;
        t->warning = malloc(size);
        if (t->warning)
            snprintf(
                t->warning, size,
                found ? "tokenizer.ggml.pre \"%.*s\" is not a kind that tpd knows: "
                        "text is cut as \"default\" does, ids may differ from the model's own"
                      : "tokenizer.ggml.pre is missing: text is cut as \"default\" does, ids may "
                        "differ from the model's own",
                name.size < 40 ? (int)name.size : 40, name.data);
    }
    t->subword.kind = SUBWORD_BPE;
    t->subword.vocab = &t->vocab;
    t->subword.ignore_merges = pre->ignore_merges;
    *add_bos = pre->add_bos;
    int err = 0;
    for (int i = 0; i < 4 && pre->regexes[i] && !err; i++)
        err = pretokeniser_add_regex(&t->pretokeniser, pre->regexes[i], e);
    if (!err) err = pretokeniser_add_byte_level(&t->pretokeniser, e);
    if (!err) err = load_merges(t, file, e);
    return err ? err : decoder_byte_level(&t->decoder, e);
}

static int load(struct tokenizer *t, const struct gguf *file, struct error *e) {
    struct gguf_string model;
    bool add_bos = true;
    int found = gguf_get_string(file, "tokenizer.ggml.model", &model, e);
    if (found < 0) return found;
    if (!found)
        return error_set(e, ERR_BAD_FILE,
                         "tokenizer.ggml.model is missing: the file has no tokenizer");
    bool spm = string_is(model, "llama");
    if (!spm && !string_is(model, "gpt2"))
        return error_set(e, ERR_BAD_FILE,
                         "tokenizer.ggml.model is \"%.*s\"; tpd has llama and gpt2",
                         model.size < 60 ? (int)model.size : 60, model.data);
    int err = load_tokens(t, file, e);
    if (!err) err = spm ? load_spm(t, file, e) : load_gpt2(t, file, &add_bos, e);
    if (!err) err = load_types(t, file, e);
    if (!err) err = take_id(t, file, "tokenizer.ggml.bos_token_id", &t->bos, e);
    if (!err) err = take_id(t, file, "tokenizer.ggml.eos_token_id", &t->eos, e);
    if (!err) err = load_around(t, file, add_bos, e);
    if (!err && !subword_prepare(&t->subword, &t->vocab))
        err = error_set(e, ERR_MEMORY, "no memory for a tokenizer");
    return err;
}

/* Of everything before the first tensor's data. */
static uint64_t hash_metadata(const struct gguf *file) {
    const struct file_map *map = gguf_map(file);
    size_t size = map->size;
    for (size_t i = 0; i < gguf_tensor_count(file); i++) {
        size_t at = (size_t)(gguf_tensor_at(file, i)->data - map->data);
        if (at < size) size = at;
    }
    return hash_bytes(0, map->data, size);
}

int tokenizer_load_gguf(struct tokenizer *t, const char *path, struct error *e) {
    struct gguf *file;
    int err = gguf_open(&file, path, e);
    if (err) return err;
    struct error why = {0};
    t->fingerprint = hash_metadata(file);
    err = load(t, file, &why);
    bool torn = file_map_torn(gguf_map(file)->data);
    gguf_close(file);
    if (torn) return store_file_torn(path, NULL, e);
    if (!err) return 0;
    if (why.kind == ERR_MEMORY) return error_set(e, ERR_MEMORY, "%s: %s", path, why.message);
    return error_bad_file(e, path, NULL, NULL, "%s", why.message);
}
