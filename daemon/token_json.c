#include "daemon/token_json.h"

void token_json_ids(struct json_out *out, const struct token_report *tokens, size_t n) {
    json_out_open(out, '[');
    for (size_t i = 0; i < n; i++) json_out_int(out, tokens[i].id);
    json_out_close(out, ']');
}

/* Members id, token, bytes, logprob of an object that is open. */
static void entry(struct json_out *out, const struct tokenizer *tokenizer, token_id id,
                  bool has_logprob, float logprob) {
    uint8_t bytes[1024];
    size_t n = tokenizer_bytes(tokenizer, id, bytes, sizeof bytes);
    if (n > sizeof bytes) n = sizeof bytes;
    json_out_key(out, "id");
    json_out_int(out, id);
    json_out_key(out, "token");
    json_out_text(out, (const char *)bytes, n);
    json_out_key(out, "bytes");
    json_out_open(out, '[');
    for (size_t i = 0; i < n; i++) json_out_int(out, bytes[i]);
    json_out_close(out, ']');
    json_out_key(out, "logprob");
    if (has_logprob) json_out_number(out, logprob);
    else json_out_null(out);
}

static void alternatives(struct json_out *out, const struct tokenizer *tokenizer,
                         const struct token_report *token) {
    json_out_key(out, "top");
    json_out_open(out, '[');
    for (int k = 0; k < token->n_top; k++) {
        json_out_open(out, '{');
        entry(out, tokenizer, token->top[k].id, true, token->top[k].logprob);
        json_out_close(out, '}');
    }
    json_out_close(out, ']');
}

void token_json_logprobs(struct json_out *out, const struct tokenizer *tokenizer,
                         const struct token_report *tokens, size_t n, bool with_top) {
    json_out_open(out, '[');
    for (size_t i = 0; i < n; i++) {
        json_out_open(out, '{');
        entry(out, tokenizer, tokens[i].id, tokens[i].has_logprob, tokens[i].logprob);
        if (with_top) alternatives(out, tokenizer, &tokens[i]);
        json_out_close(out, '}');
    }
    json_out_close(out, ']');
}
