/* The method embed, and POST /v1/embeddings: texts as directions. */
#include "daemon/openai.h"
#include "daemon/prompt.h"
#include "daemon/schema.h"
#include "daemon/server.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_INPUTS = 2048 };

static int check_ends(const struct generation *g, struct error *e) {
    for (int i = 0; i < g->n; i++)
        if (g->choices[i].end->finish == FINISH_CANCELLED)
            return error_set(e, ERR_CANCELLED, "the request was cancelled");
    return 0;
}

static void put_vector(struct json_out *out, const struct gen_event *end) {
    json_out_open(out, '[');
    for (size_t i = 0; i < end->n_embedding; i++) json_out_number(out, end->embedding[i]);
    json_out_close(out, ']');
}

/* --- embed --- */

static int put_vectors(struct generation *g, struct json_out *out, struct error *e) {
    int64_t tokens = 0;
    int rc = check_ends(g, e);
    if (rc != 0) return rc;
    json_out_open(out, '{');
    json_out_key(out, "vectors");
    json_out_open(out, '[');
    for (int i = 0; i < g->n; i++) {
        put_vector(out, g->choices[i].end);
        tokens += g->choices[i].end->n_prompt;
    }
    json_out_close(out, ']');
    json_out_key(out, "usage");
    json_out_open(out, '{');
    json_out_member_int(out, "prompt_tokens", tokens);
    json_out_close(out, '}');
    json_out_close(out, '}');
    return 0;
}

/* The generation of an open call; NULL when the call has failed. */
static struct generation *make(struct call *call) {
    struct error e;
    const json_t *input = json_object_get(call->params, "input");
    const char *pooling = json_string_value(json_object_get(call->params, "pooling"));
    if (prompts_check(input, "input", MAX_INPUTS, &e) != 0) {
        call_fail(call, &e);
        return NULL;
    }
    struct generation *g = generation_new(call, (int)prompt_count(input), 1);
    if (!g) return NULL;
    g->embed = true;
    g->embed_last = pooling && strcmp(pooling, "last") == 0;
    g->prompt_field = "input";
    return g;
}

static void begin(struct generation *g) {
    const json_t *input = json_object_get(g->call->params, "input");
    size_t bytes = 0;
    for (int i = 0; i < g->n_prompts; i++) bytes += prompt_text_bytes(prompt_at(input, (size_t)i));
    generation_start(g, generation_encode_prompts, bytes);
}

static const struct generation_form embed_form = {.finish = put_vectors};

void handle_embed(struct call *call) {
    struct error e;
    const char *adapter = json_string_value(json_object_get(call->params, "adapter"));
    struct generation *g = make(call);
    if (!g) return;
    g->form = &embed_form;
    if (!call->cancelled && adapters_choose(call->server, adapter, &g->adapter, &e) != 0) {
        generation_fail(g, &e);
        return;
    }
    if (g->adapter) g->adapter->users++;
    begin(g);
}

/* --- /v1/embeddings --- */

/* Little-endian floats, as the SDK asks for them: a tenth of the time to read. */
static int put_base64(struct json_out *out, const struct gen_event *end, struct error *e) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const uint8_t *bytes = (const uint8_t *)end->embedding;
    size_t n = end->n_embedding * sizeof *end->embedding, k = 0;
    char *text = malloc((n + 2) / 3 * 4);
    if (!text) return error_set(e, ERR_MEMORY, "no memory for the answer");
    for (size_t i = 0; i < n; i += 3) {
        size_t left = n - i;
        uint32_t bits = (uint32_t)bytes[i] << 16 | (uint32_t)(left > 1 ? bytes[i + 1] : 0) << 8 |
                        (left > 2 ? bytes[i + 2] : 0);
        for (int d = 0; d < 4; d++)
            text[k++] = (size_t)d <= left ? digits[bits >> (18 - 6 * d) & 63] : '=';
    }
    json_out_text(out, text, k);
    free(text);
    return 0;
}

static int put_embeddings(struct generation *g, struct json_out *out, struct error *e) {
    const struct openai_about *about = g->about;
    int64_t tokens = 0;
    int rc = check_ends(g, e);
    json_out_open(out, '{');
    json_out_key(out, "object");
    json_out_string(out, "list");
    json_out_key(out, "data");
    json_out_open(out, '[');
    for (int i = 0; i < g->n && rc == 0; i++) {
        const struct gen_event *end = g->choices[i].end;
        json_out_open(out, '{');
        json_out_key(out, "object");
        json_out_string(out, "embedding");
        json_out_member_int(out, "index", i);
        json_out_key(out, "embedding");
        if (about->base64) rc = put_base64(out, end, e);
        else put_vector(out, end);
        json_out_close(out, '}');
        tokens += end->n_prompt;
    }
    json_out_close(out, ']');
    json_out_key(out, "model");
    json_out_string(out, about->model);
    json_out_key(out, "usage");
    json_out_open(out, '{');
    json_out_member_int(out, "prompt_tokens", tokens);
    json_out_member_int(out, "total_tokens", tokens);
    json_out_close(out, '}');
    json_out_close(out, '}');
    return rc;
}

static const struct generation_form openai_form = {.finish = put_embeddings};

void handle_openai_embeddings(struct call *call) {
    struct error e;
    const json_t *dimensions = json_object_get(call->params, "dimensions");
    const char *format = json_string_value(json_object_get(call->params, "encoding_format"));
    int32_t hidden = call->server->model ? model_config(call->server->model)->hidden : 0;
    if (json_is_number(dimensions) && json_number_value(dimensions) != hidden) {
        char expected[80];
        snprintf(expected, sizeof expected, "left out or %d: this model's vectors have that length",
                 hidden);
        schema_refuse(&e, "dimensions", expected, dimensions);
        call_fail(call, &e);
        return;
    }
    struct generation *g = make(call);
    if (!g) return;
    g->form = &openai_form;
    if (!call->cancelled && openai_read(g, "embd", &e) != 0) {
        generation_fail(g, &e);
        return;
    }
    struct openai_about *about = g->about;
    if (about) about->base64 = format && strcmp(format, "base64") == 0;
    begin(g);
}
