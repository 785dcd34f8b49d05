#include "train/chat.h"

#include <string.h>

static const char turn_begin[] = "<|im_start|>", turn_end[] = "<|im_end|>";

void rendered_free(struct rendered *r) {
    buf_free(&r->text);
    spans_free(&r->learnt);
}

static bool is_chatml(const struct tokenizer *t) {
    return tokenizer_find(t, turn_begin) >= 0 && tokenizer_find(t, turn_end) >= 0;
}

uint64_t chat_identity(const struct tokenizer *tokenizer) {
    return is_chatml(tokenizer);
}

static void add_text(struct buf *b, const char *text) {
    buf_add(b, text, strlen(text));
}

static int bad(struct error *e, size_t i, const char *what) {
    return error_set(e, ERR_PARAMS, "messages[%zu]%s", i, what);
}

static int render_turn(const json_t *message, size_t i, struct rendered *r, struct error *e) {
    if (!json_is_object(message)) return bad(e, i, " is not an object");
    const json_t *role = json_object_get(message, "role");
    const json_t *content = json_object_get(message, "content");
    const char *name = json_string_value(role);
    if (!name || !*name) return bad(e, i, " has no role");
    bool assistant = !strcmp(name, "assistant");
    if (!assistant && strcmp(name, "system") != 0 && strcmp(name, "user") != 0 &&
        strcmp(name, "tool") != 0)
        return bad(e, i, ".role must be system, user, assistant or tool");
    if (json_array_size(json_object_get(message, "tool_calls")) > 0)
        return bad(e, i, ".tool_calls needs a chat template; plain ChatML has no form for it");
    if (!json_is_string(content)) return bad(e, i, ".content must be a string");
    if (assistant && json_string_length(content) == 0)
        return bad(e, i, ".content is empty: an assistant's turn needs text to learn");
    add_text(&r->text, turn_begin);
    add_text(&r->text, name);
    buf_add_char(&r->text, '\n');
    size_t from = r->text.size;
    buf_add(&r->text, json_string_value(content), json_string_length(content));
    add_text(&r->text, turn_end);
    if (assistant) spans_add(&r->learnt, from, r->text.size);
    buf_add_char(&r->text, '\n');
    return 0;
}

int chat_render(const struct tokenizer *tokenizer, const json_t *messages, struct rendered *r,
                struct error *e) {
    const json_t *message;
    size_t i;
    if (!is_chatml(tokenizer))
        return error_set(e, ERR_PARAMS,
                         "messages need a tokenizer with %s and %s (ChatML); this model's has "
                         "none: give prompt and completion instead",
                         turn_begin, turn_end);
    if (!json_is_array(messages) || json_array_size(messages) == 0)
        return error_set(e, ERR_PARAMS, "messages must be an array of at least one message");
    int err = 0;
    json_array_foreach((json_t *)messages, i, message) {
        if ((err = render_turn(message, i, r, e))) return err;
    }
    return r->text.failed || r->learnt.failed ? error_set(e, ERR_MEMORY, "no memory for a record")
                                              : 0;
}
