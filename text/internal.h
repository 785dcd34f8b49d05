/* text/internal.h: the tokenizer whole, for the files of text/ alone. */
#ifndef TPD_TEXT_INTERNAL_H
#define TPD_TEXT_INTERNAL_H

#include "text/added.h"
#include "text/decode.h"
#include "text/normalise.h"
#include "text/pretokenise.h"
#include "text/subword.h"
#include "text/tokenizer.h"

struct tokenizer {
    struct vocab vocab;
    struct subword subword;
    struct added raw;    /* added tokens looked for in the text as it is */
    struct added normal; /* those looked for in normalised text */
    struct normaliser normaliser;
    struct pretokeniser pretokeniser;
    struct decoder decoder;
    struct token_ids before, behind; /* what the post-processor puts around a text */
    token_id bos, eos;               /* -1: none */
    uint64_t fingerprint;
    char *warning;                   /* NULL: none */
};

/* An added token that is in the vocabulary already; content is not empty. */
struct added_flags {
    bool special, single_word, lstrip, rstrip, normalized;
};
int tokenizer_add_token(struct tokenizer *t, token_id id, const char *content, size_t size,
                        struct added_flags flags, struct error *e);

/* Fill a zeroed tokenizer, bos and eos -1; on failure the caller frees it. Errors name the file. */
int tokenizer_load_json(struct tokenizer *t, const char *path, struct error *e);
int tokenizer_load_gguf(struct tokenizer *t, const char *path, struct error *e);
/* bos and eos by tokenizer_config.json or special_tokens_map.json in dir, where there are any. */
int tokenizer_load_config(struct tokenizer *t, const char *dir, struct error *e);

/* json: null or the post_processor object. Appends to before and behind. */
int postprocessor_parse(struct tokenizer *t, const json_t *json, struct error *e);

/* How GGUF's tokenizer.ggml.pre cuts a text. */
struct gguf_pre {
    const char
        *regexes[4]; /* one after the other, each cutting what the last left; NULL: no more */
    bool ignore_merges, add_bos;
};
/* *known: false when the name is not in the list; then it is the kind "default". */
const struct gguf_pre *gguf_pre_find(const char *name, size_t size, bool *known);

#endif
