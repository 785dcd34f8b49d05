/* The methods tokenize and detokenize. Texts may be long, so both work on the worker pool. */
#include "daemon/methods.h"
#include "daemon/prompt.h"
#include "daemon/server.h"

#include <stdlib.h>

struct text_work {
    struct json_out out;
    struct error error; /* kind ERR_NONE: out has the result */
};

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

static void tokenize(struct call *call) {
    struct text_work *work = call->state;
    const struct tokenizer *tokenizer = call->server->tokenizer;
    const json_t *text = json_object_get(call->params, "text");
    bool special = json_is_true(json_object_get(call->params, "special"));
    struct token_ids ids = {0};
    if (tokenizer_encode(tokenizer, json_string_value(text), json_string_length(text), special,
                         &ids, &work->error) == 0) {
        call_begin_result(call, &work->out);
        put_tokens(&work->out, tokenizer, &ids);
    }
    token_ids_free(&ids);
}

static void detokenize(struct call *call) {
    struct text_work *work = call->state;
    const struct tokenizer *tokenizer = call->server->tokenizer;
    bool skip_special = json_is_false(json_object_get(call->params, "special"));
    struct token_ids ids = {0};
    char *text = NULL;
    size_t size;
    int rc = prompt_append(&ids, tokenizer, tokenizer_size(tokenizer), "tokens",
                           json_object_get(call->params, "tokens"), false, &work->error);
    if (rc == 0)
        rc = tokenizer_decode(tokenizer, ids.ids, ids.n, skip_special, &text, &size, &work->error);
    if (rc == 0) {
        call_begin_result(call, &work->out);
        json_out_open(&work->out, '{');
        json_out_key(&work->out, "text");
        json_out_text(&work->out, text, size);
        json_out_close(&work->out, '}');
    }
    free(text);
    token_ids_free(&ids);
}

static void answer(struct call *call) {
    struct text_work *work = call->state;
    if (work->error.kind != ERR_NONE) call_fail(call, &work->error);
    else call_end_result(call, &work->out);
    free(work);
}

static void run(struct call *call, void (*in_thread)(struct call *)) {
    struct error e;
    struct text_work *work = calloc(1, sizeof *work);
    if (call->cancelled || !work) {
        if (call->cancelled) error_set(&e, ERR_CANCELLED, "the request was cancelled");
        else error_set(&e, ERR_MEMORY, "no memory for the request");
        free(work);
        call_fail(call, &e);
        return;
    }
    call->state = work;
    call_in_thread(call, in_thread, answer);
}

void handle_tokenize(struct call *call) {
    run(call, tokenize);
}
void handle_detokenize(struct call *call) {
    run(call, detokenize);
}
