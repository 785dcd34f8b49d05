/* The methods tokenize and detokenize. Texts may be long, so both work on the worker pool. */
#include "daemon/methods.h"
#include "daemon/prompt.h"
#include "daemon/server.h"
#include "daemon/token_json.h"

#include <stdlib.h>

struct text_work {
    json_t *result; /* NULL: it failed */
    struct error error;
};

static json_t *pieces_json(const struct tokenizer *tokenizer, const struct token_ids *ids) {
    json_t *pieces = json_array();
    for (size_t i = 0; i < ids->n; i++) {
        size_t size = 0;
        const char *piece = tokenizer_piece(tokenizer, ids->ids[i], &size);
        json_array_append_new(pieces, piece ? json_text(piece, size) : json_null());
    }
    return pieces;
}

static void tokenize(struct call *call) {
    struct text_work *work = call->state;
    const struct tokenizer *tokenizer = call->server->tokenizer;
    const json_t *text = json_object_get(call->params, "text");
    bool special = json_is_true(json_object_get(call->params, "special"));
    struct token_ids ids = {0};
    if (tokenizer_encode(tokenizer, json_string_value(text), json_string_length(text), special,
                         &ids, &work->error) == 0) {
        json_t *list = json_array();
        for (size_t i = 0; i < ids.n; i++) json_array_append_new(list, json_integer(ids.ids[i]));
        work->result =
            json_pack("{s:o, s:o}", "tokens", list, "pieces", pieces_json(tokenizer, &ids));
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
    if (rc == 0) work->result = json_pack("{s:o}", "text", json_text(text, size));
    free(text);
    token_ids_free(&ids);
}

static void answer(struct call *call) {
    struct text_work *work = call->state;
    if (work->error.kind != ERR_NONE) call_fail(call, &work->error);
    else call_result(call, work->result);
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
