/* daemon/token_json.h: tokens, texts and numbers as JSON that every client can read.
 *
 * Every string is valid UTF-8 (U+FFFD for what is not), every number finite. Any thread. */
#ifndef TPD_DAEMON_TOKEN_JSON_H
#define TPD_DAEMON_TOKEN_JSON_H

#include "serve/engine.h"

#include <jansson.h>

/* size bytes as a string; each byte that is not UTF-8 becomes U+FFFD. */
json_t *json_text(const char *text, size_t size);
/* 0 for what is not finite. */
json_t *json_finite(double number);
/* [ids] */
json_t *json_token_ids(const struct token_report *tokens, size_t n);
/* [{id, token, bytes, logprob, top: [{id, token, bytes, logprob}]}]; logprob is null where there is
 * none (the first token of a text). Without with_top there are no alternatives. */
json_t *json_token_logprobs(const struct tokenizer *tokenizer, const struct token_report *tokens,
                            size_t n, bool with_top);

#endif
