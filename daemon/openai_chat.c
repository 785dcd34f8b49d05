/* POST /v1/chat/completions. */
#include "base/json.h"
#include "daemon/chat.h"
#include "daemon/openai.h"
#include "daemon/schema.h"
#include "daemon/server.h"
#include "daemon/token_json.h"
#include "text/chat.h"
#include "text/tool_calls.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- log-probabilities --- */

static void put_token(struct json_out *out, const struct tokenizer *tokenizer, token_id id,
                      float logprob) {
    uint8_t bytes[1024];
    size_t n = tokenizer_bytes(tokenizer, id, bytes, sizeof bytes);
    if (n > sizeof bytes) n = sizeof bytes;
    json_out_key(out, "token");
    json_out_text(out, (const char *)bytes, n);
    json_out_member_number(out, "logprob", logprob);
    json_out_key(out, "bytes");
    json_out_open(out, '[');
    for (size_t i = 0; i < n; i++) json_out_int(out, bytes[i]);
    json_out_close(out, ']');
}

/* Member logprobs: null unless asked for. */
static void put_logprobs(struct json_out *out, const struct generation *g,
                         const struct token_report *tokens, size_t n) {
    const struct tokenizer *tokenizer = g->call->server->tokenizer;
    json_out_key(out, "logprobs");
    if (g->sampling.logprobs < 0) {
        json_out_null(out);
        return;
    }
    json_out_open(out, '{');
    json_out_key(out, "content");
    json_out_open(out, '[');
    for (size_t i = 0; i < n; i++) {
        json_out_open(out, '{');
        put_token(out, tokenizer, tokens[i].id, tokens[i].logprob);
        json_out_key(out, "top_logprobs");
        json_out_open(out, '[');
        for (int k = 0; k < tokens[i].n_top; k++) {
            json_out_open(out, '{');
            put_token(out, tokenizer, tokens[i].top[k].id, tokens[i].top[k].logprob);
            json_out_close(out, '}');
        }
        json_out_close(out, ']');
        json_out_close(out, '}');
    }
    json_out_close(out, ']');
    json_out_key(out, "refusal");
    json_out_null(out);
    json_out_close(out, '}');
}

/* --- what a choice says: content, calls, and why it ended --- */

/* The calls of a choice that has ended, or NULL where there can be none; *content as
 * tool_calls_read. */
static json_t *calls_of(const struct choice *choice, size_t *content) {
    const struct gen_event *end = choice->end;
    *content = end->text_size;
    if (!choice->generation->tools) return NULL;
    return tool_calls_read(end->text, end->text_size, choice->generation->tools, content);
}

/* Ids are the choice's own, so that the same request gives the same ones but for the request's. */
static void put_call(struct json_out *out, const struct choice *choice, size_t i, const json_t *call,
                     bool indexed) {
    const struct openai_about *about = choice->generation->about;
    char id[96];
    snprintf(id, sizeof id, "call_%s_%d_%zu", about->id + strlen("chatcmpl-"), choice_index(choice), i);
    json_out_open(out, '{');
    if (indexed) json_out_member_int(out, "index", (int64_t)i);
    json_out_key(out, "id");
    json_out_string(out, id);
    json_out_key(out, "type");
    json_out_string(out, "function");
    json_out_key(out, "function");
    json_out_json(out, call);
    json_out_close(out, '}');
}

static void put_calls(struct json_out *out, const struct choice *choice, const json_t *calls,
                      bool indexed) {
    size_t i;
    json_t *call;
    if (json_array_size(calls) == 0) return;
    json_out_key(out, "tool_calls");
    json_out_open(out, '[');
    json_array_foreach((json_t *)calls, i, call) put_call(out, choice, i, call, indexed);
    json_out_close(out, ']');
}

static void put_finish(struct json_out *out, const struct gen_event *end, const json_t *calls) {
    bool called = json_array_size(calls) > 0 && end->finish == FINISH_STOP;
    json_out_key(out, "finish_reason");
    json_out_string(out, called ? "tool_calls" : openai_finish_reason(end));
}

static void put_choice(struct json_out *out, const struct choice *choice) {
    const struct gen_event *end = choice->end;
    size_t content;
    json_t *calls = calls_of(choice, &content);
    json_out_open(out, '{');
    json_out_member_int(out, "index", choice_index(choice));
    json_out_key(out, "message");
    json_out_open(out, '{');
    json_out_key(out, "role");
    json_out_string(out, "assistant");
    json_out_key(out, "content");
    if (content == 0 && json_array_size(calls) > 0) json_out_null(out);
    else json_out_text(out, end->text, content);
    json_out_key(out, "refusal");
    json_out_null(out);
    put_calls(out, choice, calls, false);
    json_out_close(out, '}');
    put_logprobs(out, choice->generation, end->tokens, end->n_tokens);
    put_finish(out, end, calls);
    json_out_close(out, '}');
    json_decref(calls);
}

static int finish(struct generation *g, struct json_out *out, struct error *e) {
    int rc = openai_check_ends(g, e);
    if (rc != 0) return rc;
    if (g->stream) {
        openai_put_last(out, g, "chat.completion.chunk");
        return 0;
    }
    json_out_open(out, '{');
    openai_put_head(out, g, "chat.completion");
    json_out_key(out, "choices");
    json_out_open(out, '[');
    for (int i = 0; i < g->n; i++) put_choice(out, &g->choices[i]);
    json_out_close(out, ']');
    openai_put_usage(out, g);
    json_out_close(out, '}');
    return 0;
}

/* --- streaming --- */

/* What an event of one choice tells. */
struct delta {
    bool role;
    const char *content; /* NULL: none */
    size_t content_size;
    const json_t *calls; /* NULL: none */
    const struct gen_event *tokens, *end;
};

static void tell(struct choice *choice, const struct delta *d) {
    struct generation *g = choice->generation;
    struct json_out out = {0};
    json_out_open(&out, '{');
    openai_put_head(&out, g, "chat.completion.chunk");
    json_out_key(&out, "choices");
    json_out_open(&out, '[');
    json_out_open(&out, '{');
    json_out_member_int(&out, "index", choice_index(choice));
    json_out_key(&out, "delta");
    json_out_open(&out, '{');
    if (d->role) {
        json_out_key(&out, "role");
        json_out_string(&out, "assistant");
    }
    if (d->content) {
        json_out_key(&out, "content");
        json_out_text(&out, d->content, d->content_size);
    }
    put_calls(&out, choice, d->calls, true);
    json_out_close(&out, '}');
    put_logprobs(&out, g, d->tokens ? d->tokens->tokens : NULL, d->tokens ? d->tokens->n_tokens : 0);
    if (d->end) put_finish(&out, d->end, d->calls);
    else {
        json_out_key(&out, "finish_reason");
        json_out_null(&out);
    }
    json_out_close(&out, '}');
    json_out_close(&out, ']');
    json_out_close(&out, '}');
    http_send_event(g->call, &out);
}

/* A choice's first event tells its role. */
static void tell_role(struct choice *choice) {
    struct delta first = {.role = true, .content = ""};
    if (choice->text) return;
    choice->text = calloc(1, 1);
    tell(choice, &first);
}

static bool add_text(struct choice *choice, const struct gen_event *piece) {
    char *grown = realloc(choice->text, choice->text_size + piece->text_size + 1);
    if (!grown) return false;
    memcpy(grown + choice->text_size, piece->text, piece->text_size);
    choice->text = grown;
    choice->text_size += piece->text_size;
    return true;
}

/* With tools, text that may become a call waits; log-probabilities come with their tokens. */
static void on_piece(struct choice *choice, const struct gen_event *piece) {
    const struct generation *g = choice->generation;
    struct delta d = {.content = piece->text, .content_size = piece->text_size, .tokens = piece};
    if (!g->call->conn) return;
    tell_role(choice);
    if (g->tools) {
        if (!add_text(choice, piece)) return; /* the end has all of it */
        size_t sure = tool_calls_content(choice->text, choice->text_size, g->tools);
        size_t told = (size_t)choice->told;
        d.content = sure > told ? choice->text + told : NULL;
        d.content_size = sure > told ? sure - told : 0;
        if (sure > told) choice->told = (int64_t)sure;
    }
    if (d.content || g->sampling.logprobs >= 0) tell(choice, &d);
}

static void on_ended(struct choice *choice) {
    const struct gen_event *end = choice->end;
    size_t content, told = (size_t)choice->told;
    if (!choice->generation->stream || end->finish == FINISH_CANCELLED) return;
    tell_role(choice);
    json_t *calls = calls_of(choice, &content);
    struct delta rest = {.content = end->text + told, .content_size = content - told};
    struct delta last = {.calls = calls, .end = end};
    if (choice->generation->tools && content > told) tell(choice, &rest);
    tell(choice, &last);
    json_decref(calls);
}

static const struct generation_form form = {
    .piece = on_piece, .ended = on_ended, .finish = finish};

/* --- the request --- */

static int64_t number_of(const json_t *params, const char *name, int64_t standard) {
    const json_t *value = json_object_get(params, name);
    return json_is_number(value) ? (int64_t)json_number_value(value) : standard;
}

/* logprobs is a switch here, and top_logprobs the number; max_completion_tokens is max_tokens' new
 * name. */
static int read_counts(struct generation *g, const json_t *params, struct error *e) {
    bool wanted = json_is_true(json_object_get(params, "logprobs"));
    int64_t top = number_of(params, "top_logprobs", -1);
    if (top >= 0 && !wanted)
        return schema_refuse(e, "top_logprobs", "left out where logprobs is not true",
                             json_object_get(params, "top_logprobs"));
    g->sampling.logprobs = wanted ? (int)(top > 0 ? top : 0) : -1;
    g->sampling.max_tokens = number_of(params, "max_completion_tokens", g->sampling.max_tokens);
    return 0;
}

static int check_tools(const json_t *tools, struct error *e) {
    size_t i;
    json_t *tool;
    char field[40];
    if (!tools || json_is_null(tools)) return 0;
    if (!json_is_array(tools)) return schema_refuse(e, "tools", "an array of tools", tools);
    json_array_foreach((json_t *)tools, i, tool) {
        const json_t *function = json_object_get(tool, "function");
        snprintf(field, sizeof field, "tools[%zu]", i);
        if (!json_string_length(json_object_get(function, "name")))
            return schema_refuse(e, field, "{\"type\": \"function\", \"function\": {\"name\": …}}", tool);
    }
    return 0;
}

/* The name in {"type": "function", "function": {"name": …}}; NULL for another form. */
static const char *named_choice(const json_t *choice) {
    return json_word(json_object_get(json_object_get(choice, "function"), "name"));
}

/* The answer is held to a call: of any tool, or of the one that is named. */
static int force_call(struct generation *g, const json_t *tools, const json_t *choice,
                      struct error *e) {
    const char *name = named_choice(choice), *word = json_word(choice);
    bool any = word && strcmp(word, "required") == 0;
    if (!any && !name)
        return schema_refuse(e, "tool_choice",
                             "\"none\", \"auto\", \"required\" or {\"type\": \"function\", "
                             "\"function\": {\"name\": …}}",
                             choice);
    if (name && !tool_is_offered(tools, name, strlen(name)))
        return schema_refuse(e, "tool_choice.function.name", "that of a tool in tools",
                             json_object_get(json_object_get(choice, "function"), "name"));
    if (json_array_size(tools) == 0)
        return schema_refuse(e, "tool_choice", "\"none\" or \"auto\" where there are no tools", choice);
    grammar_release(g->sampling.grammar); /* response_format is for answers in words */
    return structured_read_call(&g->call->server->structured, tools, any ? NULL : name,
                                &g->sampling.grammar, e);
}

/* tool_choice: "none" hides the tools from the model; with "auto" it may call them, else it must. */
static int read_tools(struct generation *g, json_t *params, struct error *e) {
    json_t *tools = json_object_get(params, "tools"), *choice = json_object_get(params, "tool_choice");
    const char *word = json_word(choice);
    int rc = check_tools(tools, e);
    if (rc != 0) return rc;
    bool none = word && strcmp(word, "none") == 0, some = json_array_size(tools) > 0;
    bool free_choice = !choice || json_is_null(choice) || none || (word && strcmp(word, "auto") == 0);
    if (!free_choice) rc = force_call(g, tools, choice, e);
    if (rc != 0) return rc;
    if (none || !some) json_object_del(params, "tools");
    if (none || !some) return 0;
    if (!chat_takes_tools(g->call->server->chat))
        return schema_refuse(e, "tools", "left out: this model's chat template has no place for them",
                             tools);
    g->tools = json_incref(tools);
    return 0;
}

static int read_request(struct generation *g, json_t *params, struct error *e) {
    int rc = openai_read(g, "chatcmpl", e);
    if (rc == 0) rc = read_counts(g, params, e);
    if (rc == 0) rc = read_tools(g, params, e);
    return rc == 0 ? chat_end_turns(g, e) : rc;
}

void handle_openai_chat(struct call *call) {
    struct error e;
    /* The parameters are the call's own from here on: tools may be taken out. */
    json_t *params = json_copy(call->params);
    struct generation *g = generation_new(call, 1, (int)number_of(call->params, "n", 1));
    if (!g) {
        json_decref(params);
        return;
    }
    g->form = &form;
    int rc = params ? 0 : error_set(&e, ERR_MEMORY, "no memory for the request");
    if (rc == 0) {
        json_decref(call->params);
        call->params = params;
    }
    if (rc == 0 && !call->cancelled) rc = read_request(g, params, &e);
    if (rc == 0) generation_start(g, chat_encode, chat_text_bytes(params));
    else generation_fail(g, &e);
}
