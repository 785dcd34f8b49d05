/* daemon/token_json.h: tokens as JSON. Any thread. */
#ifndef TPD_DAEMON_TOKEN_JSON_H
#define TPD_DAEMON_TOKEN_JSON_H

#include "daemon/json_out.h"
#include "serve/engine.h"

/* [ids] */
void token_json_ids(struct json_out *out, const struct token_report *tokens, size_t n);
/* [{id, token, bytes, logprob, top: [{id, token, bytes, logprob}]}]; logprob is null where there is
 * none (the first token of a text). Without with_top there are no alternatives. */
void token_json_logprobs(struct json_out *out, const struct tokenizer *tokenizer,
                         const struct token_report *tokens, size_t n, bool with_top);

#endif
