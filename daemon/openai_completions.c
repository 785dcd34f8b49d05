/* POST /v1/completions. */
#include "daemon/openai.h"
#include "daemon/prompt.h"
#include "daemon/schema.h"
#include "daemon/server.h"

#include <stdlib.h>
#include <string.h>

/* --- log-probabilities: parallel arrays, and where each token's text begins --- */

static size_t put_token_text(struct json_out *out, const struct tokenizer *tokenizer, token_id id,
                             bool as_key) {
    uint8_t bytes[1024];
    char key[sizeof bytes + 1];
    size_t n = tokenizer_bytes(tokenizer, id, bytes, sizeof bytes), characters = 0;
    if (n > sizeof bytes) n = sizeof bytes;
    for (size_t i = 0; i < n; i++) characters += (bytes[i] & 0xC0) != 0x80;
    if (as_key) {
        json_t *text = json_text((const char *)bytes, n);
        const char *clean = text ? json_string_value(text) : "";
        snprintf(key, sizeof key, "%s", clean);
        json_out_key(out, key);
        json_decref(text);
    } else json_out_text(out, (const char *)bytes, n);
    return characters;
}

static void put_tops(struct json_out *out, const struct tokenizer *tokenizer,
                     const struct token_report *token) {
    if (!token->has_logprob) {
        json_out_null(out);
        return;
    }
    json_out_open(out, '{');
    for (int k = 0; k < token->n_top; k++) {
        put_token_text(out, tokenizer, token->top[k].id, true);
        json_out_number(out, token->top[k].logprob);
    }
    json_out_close(out, '}');
}

/* Of tokens [0, n) and then [0, m): the echoed prompt's and the completion's. *offset: characters of
 * text before them, and afterwards those with them. */
static void put_logprobs(struct json_out *out, const struct tokenizer *tokenizer,
                         const struct token_report *const parts[2], const size_t sizes[2],
                         int64_t *offset) {
    json_out_key(out, "logprobs");
    json_out_open(out, '{');
    json_out_key(out, "tokens");
    json_out_open(out, '[');
    for (int p = 0; p < 2; p++)
        for (size_t i = 0; i < sizes[p]; i++)
            put_token_text(out, tokenizer, parts[p][i].id, false);
    json_out_close(out, ']');
    json_out_key(out, "token_logprobs");
    json_out_open(out, '[');
    for (int p = 0; p < 2; p++)
        for (size_t i = 0; i < sizes[p]; i++) {
            if (parts[p][i].has_logprob) json_out_number(out, parts[p][i].logprob);
            else json_out_null(out);
        }
    json_out_close(out, ']');
    json_out_key(out, "top_logprobs");
    json_out_open(out, '[');
    for (int p = 0; p < 2; p++)
        for (size_t i = 0; i < sizes[p]; i++) put_tops(out, tokenizer, &parts[p][i]);
    json_out_close(out, ']');
    json_out_key(out, "text_offset");
    json_out_open(out, '[');
    for (int p = 0; p < 2; p++)
        for (size_t i = 0; i < sizes[p]; i++) {
            uint8_t bytes[1024];
            size_t n = tokenizer_bytes(tokenizer, parts[p][i].id, bytes, sizeof bytes);
            json_out_int(out, *offset);
            for (size_t k = 0; k < n && k < sizeof bytes; k++) *offset += (bytes[k] & 0xC0) != 0x80;
        }
    json_out_close(out, ']');
    json_out_close(out, '}');
}

static void put_no_logprobs(struct json_out *out) {
    json_out_key(out, "logprobs");
    json_out_null(out);
}

/* --- choices --- */

static void put_finish(struct json_out *out, const struct gen_event *end) {
    json_out_key(out, "finish_reason");
    if (end) json_out_string(out, openai_finish_reason(end));
    else json_out_null(out);
}

static void begin_choice(struct json_out *out, const struct choice *choice, const char *text,
                         size_t size) {
    json_out_open(out, '{');
    json_out_member_int(out, "index", choice_index(choice));
    json_out_key(out, "text");
    json_out_text(out, text, size);
}

static void put_choice(struct json_out *out, const struct choice *choice) {
    const struct generation *g = choice->generation;
    const struct gen_event *end = choice->end;
    begin_choice(out, choice, end->text, end->text_size);
    if (g->sampling.logprobs >= 0) {
        const struct token_report *const parts[2] = {end->prompt_tokens, end->tokens};
        const size_t sizes[2] = {end->n_prompt_tokens, end->n_tokens};
        int64_t offset = 0;
        put_logprobs(out, g->call->server->tokenizer, parts, sizes, &offset);
    } else put_no_logprobs(out);
    put_finish(out, end);
    json_out_close(out, '}');
}

static int finish(struct generation *g, struct json_out *out, struct error *e) {
    int rc = openai_check_ends(g, e);
    if (rc != 0) return rc;
    if (g->stream) {
        openai_put_last(out, g, "text_completion");
        return 0;
    }
    json_out_open(out, '{');
    openai_put_head(out, g, "text_completion");
    json_out_key(out, "choices");
    json_out_open(out, '[');
    for (int i = 0; i < g->n; i++) put_choice(out, &g->choices[i]);
    json_out_close(out, ']');
    openai_put_usage(out, g);
    json_out_close(out, '}');
    return 0;
}

/* An event of one choice: what is new in it. end: NULL until it has ended. */
static void tell(struct choice *choice, const struct gen_event *piece, const struct gen_event *end) {
    struct generation *g = choice->generation;
    struct json_out out = {0};
    json_out_open(&out, '{');
    openai_put_head(&out, g, "text_completion");
    json_out_key(&out, "choices");
    json_out_open(&out, '[');
    begin_choice(&out, choice, piece ? piece->text : "", piece ? piece->text_size : 0);
    if (piece && g->sampling.logprobs >= 0) {
        const struct token_report *const parts[2] = {NULL, piece->tokens};
        const size_t sizes[2] = {0, piece->n_tokens};
        put_logprobs(&out, g->call->server->tokenizer, parts, sizes, &choice->told);
    } else put_no_logprobs(&out);
    put_finish(&out, end);
    json_out_close(&out, '}');
    json_out_close(&out, ']');
    json_out_close(&out, '}');
    http_send_event(g->call, &out);
}

static void on_piece(struct choice *choice, const struct gen_event *piece) {
    if (choice->generation->call->conn) tell(choice, piece, NULL);
}

static void on_ended(struct choice *choice) {
    if (choice->generation->stream && choice->end->finish != FINISH_CANCELLED)
        tell(choice, NULL, choice->end);
}

static const struct generation_form form = {
    .piece = on_piece, .ended = on_ended, .finish = finish};

static int64_t number_of(const json_t *params, const char *name, int64_t standard) {
    const json_t *value = json_object_get(params, name);
    return json_is_number(value) ? (int64_t)json_number_value(value) : standard;
}

/* What OpenAI has and tpd has not. */
static int check_offered(const json_t *params, struct error *e) {
    if (json_string_length(json_object_get(params, "suffix")) > 0)
        return schema_refuse(e, "suffix", "left out: this server only continues text",
                             json_object_get(params, "suffix"));
    if (number_of(params, "best_of", 1) > number_of(params, "n", 1))
        return schema_refuse(e, "best_of", "at most n: choosing among more is not offered",
                             json_object_get(params, "best_of"));
    return 0;
}

void handle_openai_completions(struct call *call) {
    struct error e;
    const json_t *prompt = json_object_get(call->params, "prompt");
    int64_t n_each = number_of(call->params, "n", 1);
    int n_prompts = prompt_is_list(prompt) ? (int)json_array_size(prompt) : 1;
    if (prompts_check(prompt, "prompt", OPENAI_MAX_CHOICES, &e) != 0 || check_offered(call->params, &e) != 0) {
        call_fail(call, &e);
        return;
    }
    if (n_prompts * n_each > OPENAI_MAX_CHOICES) {
        schema_refuse(&e, "n", "so small that all prompts together have at most 128 choices",
                      json_object_get(call->params, "n"));
        call_fail(call, &e);
        return;
    }
    struct generation *g = generation_new(call, n_prompts, (int)n_each);
    if (!g) return;
    g->form = &form;
    g->prompt_field = "prompt";
    if (!call->cancelled && openai_read(g, "cmpl", &e) != 0) {
        generation_fail(g, &e);
        return;
    }
    const json_t *most = json_object_get(call->params, "max_tokens");
    if (!most || json_is_null(most)) g->sampling.max_tokens = OPENAI_COMPLETION_TOKENS;
    size_t bytes = 0;
    for (int i = 0; i < n_prompts; i++) bytes += prompt_text_bytes(prompt_at(prompt, i));
    generation_start(g, generation_encode_prompts, bytes);
}
