/* daemon/prompt.h: what a client sends as text or token ids, as token ids. */
#ifndef TPD_DAEMON_PROMPT_H
#define TPD_DAEMON_PROMPT_H

#include "daemon/json_out.h"
#include "text/tokenizer.h"

#include <jansson.h>

/* Appends the ids of value (a string, or an array of integers, as the schema has checked). A string
 * is encoded, with special tokens when add_special; ids are taken as they are, and one outside
 * 0 … vocab-1 is ERR_PARAMS that names its place. field: the parameter's name. Any thread. */
int prompt_append(struct token_ids *ids, const struct tokenizer *tokenizer, int32_t vocab,
                  const char *field, const json_t *value, bool add_special, struct error *e);
/* {key: the text of tokens}, an array of ids as the schema has checked. Any thread. */
int prompt_put_text(struct json_out *out, const char *key, const struct tokenizer *tokenizer,
                    const json_t *tokens, bool skip_special, struct error *e);
/* A prompt, or a list of prompts: */
bool prompt_is_list(const json_t *value);
size_t prompt_count(const json_t *value); /* 1 when it is no list */
const json_t *prompt_at(const json_t *value, size_t i);
/* Each of them is a text or an array of ids, and there are at most `most`. */
int prompts_check(const json_t *value, const char *field, size_t most, struct error *e);
/* Bytes of text that value would have encoded; 0 for ids and NULL. */
size_t prompt_text_bytes(const json_t *value);

#endif
