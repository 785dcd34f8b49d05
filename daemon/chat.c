/* daemon/chat.c: the methods chat and template: messages become a prompt by the model's own template. */
#include "daemon/chat.h"

#include "daemon/generate.h"
#include "daemon/methods.h"
#include "daemon/schema.h"
#include "daemon/server.h"
#include "text/chat.h"

#include <stdlib.h>

/* What the parameters ask for, rendered and as ids. Any thread. */
static int render(const struct call *call, struct jinja_output *text, struct token_ids *ids,
                  struct error *e) {
    const struct server *server = call->server;
    const json_t *params = call->params, *tools = json_object_get(params, "tools");
    const json_t *prompt = json_object_get(params, "add_generation_prompt");
    if (tools && !json_is_null(tools) && !json_is_array(tools))
        return schema_refuse(e, "tools", "an array of tools", tools);
    json_t *messages = chat_messages(server->chat, json_object_get(params, "messages"), e);
    if (!messages) return -(int)e->kind;
    const json_t *variables = json_object_get(params, "chat_template_kwargs");
    struct chat_request request = {.messages = messages,
                                   .tools = tools,
                                   .variables = json_is_object(variables) ? variables : NULL,
                                   .add_generation_prompt = !json_is_false(prompt)};
    int rc = chat_render(server->chat, &request, text, e);
    json_decref(messages);
    if (rc != 0) return rc;
    const char *data = text->text.data ? text->text.data : "";
    return tokenizer_encode(server->tokenizer, data, text->text.size, false, ids, e);
}

/* --- chat ----------------------------------------------------------------------------------- */

void chat_encode(struct call *call) {
    struct generation *g = call->state;
    struct jinja_output text = {0};
    if (render(call, &text, g->prompts, &g->error) == 0 && g->prompts[0].n == 0) {
        error_set(&g->error, ERR_PARAMS, "the chat template makes nothing of these messages");
        error_note(&g->error, "field", "messages");
    }
    jinja_output_free(&text);
}

static size_t text_bytes(const json_t *value) {
    const char *key;
    json_t *item;
    size_t i, n = json_string_length(value) + 16;
    json_object_foreach((json_t *)value, key, item) n += text_bytes(item);
    json_array_foreach((json_t *)value, i, item) n += text_bytes(item);
    return n;
}

size_t chat_text_bytes(const json_t *params) {
    return text_bytes(params);
}

int chat_end_turns(struct generation *g, struct error *e) {
    struct sampling *s = &g->sampling;
    size_t n;
    const token_id *ends = chat_ends(g->call->server->chat, &n);
    int32_t vocab = model_config(g->call->server->model)->vocab;
    if (s->ignore_eos || n == 0 || s->n_stop_token_ids + n > SAMPLING_MAX_IDS) return 0;
    token_id *ids = realloc(s->stop_token_ids, (s->n_stop_token_ids + n) * sizeof *ids);
    if (!ids) return error_set(e, ERR_MEMORY, "no memory for the request");
    s->stop_token_ids = ids;
    for (size_t i = 0; i < n; i++)
        if (ends[i] < vocab) ids[s->n_stop_token_ids++] = ends[i];
    return 0;
}

static int put_result(struct generation *g, struct json_out *out, struct error *e) {
    (void)e;
    generate_put_result(g, out, true);
    return 0;
}

static const struct generation_form form = {.piece = generation_notify, .finish = put_result};

void handle_chat(struct call *call) {
    struct error e;
    struct generation *g = generate_begin(call, &form);
    if (!g) return;
    if (!call->cancelled && chat_end_turns(g, &e) != 0) {
        generation_fail(g, &e);
        return;
    }
    generation_start(g, chat_encode, chat_text_bytes(call->params));
}

/* --- template ------------------------------------------------------------------------------- */

static int write_template(struct call *call, struct json_out *out, struct error *e) {
    struct jinja_output text = {0};
    struct token_ids ids = {0};
    int rc = render(call, &text, &ids, e);
    if (rc == 0) {
        json_out_open(out, '{');
        json_out_key(out, "text");
        json_out_text(out, text.text.data ? text.text.data : "", text.text.size);
        json_out_key(out, "tokens");
        json_out_open(out, '[');
        for (size_t i = 0; i < ids.n; i++) json_out_int(out, ids.ids[i]);
        json_out_close(out, ']');
        json_out_close(out, '}');
    }
    token_ids_free(&ids);
    jinja_output_free(&text);
    return rc;
}

void handle_template(struct call *call) {
    call_write(call, write_template);
}
