/* The methods tokenize and detokenize. Texts may be long, so both work on the worker pool. */
#include "daemon/methods.h"
#include "daemon/prompt.h"
#include "daemon/server.h"

static void put_tokens(struct json_out *out, const struct tokenizer *tokenizer,
                       const struct token_ids *ids) {
    json_out_open(out, '{');
    json_out_key(out, "tokens");
    json_out_open(out, '[');
    for (size_t i = 0; i < ids->n; i++) json_out_int(out, ids->ids[i]);
    json_out_close(out, ']');
    json_out_key(out, "pieces");
    json_out_open(out, '[');
    for (size_t i = 0; i < ids->n; i++) {
        size_t size = 0;
        const char *piece = tokenizer_piece(tokenizer, ids->ids[i], &size);
        if (piece) json_out_text(out, piece, size);
        else json_out_null(out);
    }
    json_out_close(out, ']');
    json_out_close(out, '}');
}

static int tokenize(struct call *call, struct json_out *out, struct error *e) {
    const struct tokenizer *tokenizer = call->server->tokenizer;
    const json_t *text = json_object_get(call->params, "text");
    bool special = json_is_true(json_object_get(call->params, "special"));
    struct token_ids ids = {0};
    int rc = tokenizer_encode(tokenizer, json_string_value(text), json_string_length(text), special,
                              &ids, e);
    if (rc == 0) put_tokens(out, tokenizer, &ids);
    token_ids_free(&ids);
    return rc;
}

static int detokenize(struct call *call, struct json_out *out, struct error *e) {
    bool skip_special = json_is_false(json_object_get(call->params, "special"));
    return prompt_put_text(out, "text", call->server->tokenizer,
                           json_object_get(call->params, "tokens"), skip_special, e);
}

void handle_tokenize(struct call *call) {
    call_write(call, tokenize);
}
void handle_detokenize(struct call *call) {
    call_write(call, detokenize);
}
