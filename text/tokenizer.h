/* text/tokenizer.h: text to token ids and back, exactly as the model's own tokenizer does.
 *
 * Made from tokenizer.json (Hugging Face) or from the metadata of a GGUF file. Immutable once open:
 * any number of threads may encode and decode at once. Time is linear in the text, or nearly so. */
#ifndef TPD_TEXT_TOKENIZER_H
#define TPD_TEXT_TOKENIZER_H

#include "base/error.h"

typedef int32_t token_id;

struct tokenizer;
struct gguf;

/* path: a model directory (its tokenizer.json, with tokenizer_config.json beside it), a
 * tokenizer.json, or a .gguf file. */
int tokenizer_open(struct tokenizer **out, const char *path, struct error *e);
void tokenizer_free(struct tokenizer *t);

/* Ids 0 … size-1 may exist; holes are possible. */
int32_t tokenizer_size(const struct tokenizer *t);
/* The token's own text as the vocabulary spells it ("Ġthe", "▁the", "<|im_end|>"), UTF-8; NULL for
 * a hole or an id out of range. */
const char *tokenizer_piece(const struct tokenizer *t, token_id id, size_t *size);
/* Exact match in the vocabulary or among added tokens; -1 when there is none. */
token_id tokenizer_find(const struct tokenizer *t, const char *piece);
bool tokenizer_is_special(const struct tokenizer *t, token_id id);
/* -1 when it has none. eos: from tokenizer_config.json or GGUF (the model's config may have more).
 */
token_id tokenizer_bos(const struct tokenizer *t);
token_id tokenizer_eos(const struct tokenizer *t);

/* The same for two tokenizers only if (but for chance) they give the same ids: a hash of the files it
 * was made from. */
uint64_t tokenizer_fingerprint(const struct tokenizer *t);

/* ERR_CONFIG with the first id that stands for different tokens in the two; what only one of them has does
 * not count. */
int tokenizer_check_same(const struct tokenizer *t, const struct tokenizer *other, struct error *e);

/* A sentence for the log about something odd in the file (an unknown kind of pre-tokenizer), or
 * NULL. */
const char *tokenizer_warning(const struct tokenizer *t);

struct token_ids { /* grows; free with token_ids_free */
    token_id *ids;
    size_t n, capacity;
};
void token_ids_free(struct token_ids *ids);

/* Appends the ids of text (size bytes, UTF-8; invalid bytes are ERR_PARAMS with their offset).
 * add_special: with what the post-processor adds (BOS …). Added tokens in the text ("<|im_end|>")
 * are always recognised, as Hugging Face does. */
int tokenizer_encode(const struct tokenizer *t, const char *text, size_t size, bool add_special,
                     struct token_ids *out, struct error *e);

/* *out is the caller's to free(); NUL-terminated. Bytes that are not UTF-8 become U+FFFD, as the
 * tokenizer's decoder does it. An id out of range is ERR_PARAMS. */
int tokenizer_decode(const struct tokenizer *t, const token_id *ids, size_t n, bool skip_special,
                     char **out, size_t *size, struct error *e);

/* Decodes id by id. The pieces, put together, are the decoding of all ids; each is whole UTF-8.
 * With after_prompt the first piece keeps the leading space that a decoder strips at the start of a
 * text, for the ids continue one. O(1) a token, or nearly so. */
struct token_stream;
int token_stream_new(struct token_stream **out, const struct tokenizer *t, bool skip_special,
                     bool after_prompt, struct error *e);
void token_stream_free(struct token_stream *s);
/* *out is borrowed until the next call; size may be 0 (the character is not whole yet). */
int token_stream_push(struct token_stream *s, token_id id, const char **out, size_t *size,
                      struct error *e);
/* What is left (U+FFFD for a cut character) at the end. */
int token_stream_end(struct token_stream *s, const char **out, size_t *size, struct error *e);

/* The bytes that token id stands for (for logprobs and masks); at most max are written; returns how
 * many there are. */
size_t tokenizer_bytes(const struct tokenizer *t, token_id id, uint8_t *out, size_t max);

#endif
