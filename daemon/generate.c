/* The method generate: parameters to a generation, and its end to a result. */
#include "daemon/generation.h"
#include "daemon/methods.h"
#include "daemon/prompt.h"
#include "daemon/sampling_params.h"
#include "daemon/server.h"
#include "daemon/token_json.h"

static const char *finish_name(enum finish_reason reason) {
    switch (reason) {
    case FINISH_STOP: return "stop";
    case FINISH_LENGTH: return "length";
    case FINISH_CANCELLED: return "cancelled";
    case FINISH_ERROR: return "error";
    }
    return "error";
}

/* What ended it: the stop string, else the id of the end token or stop token, else null. */
static json_t *stop_json(const struct gen_event *end) {
    if (end->stop) return json_string(end->stop);
    return end->stop_token >= 0 ? json_integer(end->stop_token) : json_null();
}

/* {text, tokens, finish_reason, stop, seed, logprobs?} */
static json_t *choice_json(const struct generation *g, const struct choice *choice) {
    const struct gen_event *end = choice->end;
    const struct tokenizer *tokenizer = g->call->server->tokenizer;
    json_t *out = json_pack(
        "{s:o, s:o, s:s, s:o, s:I}", "text", json_text(end->text, end->text_size), "tokens",
        json_token_ids(end->tokens, end->n_tokens), "finish_reason", finish_name(end->finish),
        "stop", stop_json(end), "seed", (json_int_t)choice->seed);
    if (g->sampling.logprobs < 0) return out;
    json_object_set_new(out, "logprobs",
                        json_token_logprobs(tokenizer, end->tokens, end->n_tokens, true));
    if (g->sampling.echo)
        json_object_set_new(
            out, "prompt_logprobs",
            json_token_logprobs(tokenizer, end->prompt_tokens, end->n_prompt_tokens, true));
    return out;
}

static json_t *usage_json(const struct generation *g) {
    int64_t completion = 0;
    for (int i = 0; i < g->n; i++) completion += g->choices[i].end->n_completion;
    const struct gen_event *first = g->choices[0].end;
    return json_pack("{s:I, s:I, s:I}", "prompt_tokens", (json_int_t)first->n_prompt,
                     "cached_tokens", (json_int_t)first->n_cached, "completion_tokens",
                     (json_int_t)completion);
}

static json_t *timings_json(const struct gen_timings *t) {
    return json_pack("{s:o, s:o, s:o, s:o, s:i, s:i}", "queue_ms", json_finite(t->queue_ms),
                     "prefill_ms", json_finite(t->prefill_ms), "decode_ms",
                     json_finite(t->decode_ms), "tokens_per_s", json_finite(t->tokens_per_s),
                     "draft_tokens", 0, "accepted_tokens", 0);
}

/* The first choice's members, usage and timings; with n > 1 all choices beside them. */
static json_t *result_json(struct generation *g, struct error *e) {
    (void)e;
    json_t *result = choice_json(g, &g->choices[0]);
    json_object_set_new(result, "usage", usage_json(g));
    json_object_set_new(result, "timings", timings_json(&g->choices[0].end->timings));
    if (g->n == 1) return result;
    json_t *choices = json_array();
    for (int i = 0; i < g->n; i++) {
        json_t *choice = choice_json(g, &g->choices[i]);
        json_object_set_new(choice, "index", json_integer(i));
        json_object_set_new(choice, "timings", timings_json(&g->choices[i].end->timings));
        json_array_append_new(choices, choice);
    }
    json_object_set_new(result, "choices", choices);
    return result;
}

/* On the worker pool when the text is long. */
static void encode(struct call *call) {
    struct generation *g = call->state;
    int32_t vocab = model_config(call->server->model)->vocab;
    int rc = prompt_append(&g->prompt, call->server->tokenizer, vocab, "prompt",
                           json_object_get(call->params, "prompt"), true, &g->error);
    if (rc == 0 && g->prompt.n == 0) {
        error_set(&g->error, ERR_PARAMS,
                  "prompt is empty and this model's tokenizer adds no token to start from (BOS): "
                  "give at least one token");
        error_note(&g->error, "field", "prompt");
        error_note(&g->error, "expected", "at least one token");
        error_note(&g->error, "got", "nothing");
    }
}

static void start(struct call *call) {
    struct generation *g = call->state;
    call_drop_params(call);
    if (g->error.kind != ERR_NONE) generation_fail(g, &g->error);
    else generation_start(g);
}

void handle_generate(struct call *call) {
    json_t *params = call->params, *n = json_object_get(params, "n");
    struct generation *g =
        generation_new(call, n && !json_is_null(n) ? (int)json_number_value(n) : 1);
    if (!g) return;
    g->finish = result_json;
    g->stream = json_is_true(json_object_get(params, "stream"));
    if (call->cancelled) { /* while it waited for the model */
        generation_start(g);
        return;
    }
    struct error e;
    if (sampling_read(&g->sampling, params, model_config(call->server->model)->vocab, &e) != 0) {
        generation_fail(g, &e);
        return;
    }
    if (prompt_text_bytes(json_object_get(params, "prompt")) > PROMPT_INLINE_BYTES) {
        call_in_thread(call, encode, start);
        return;
    }
    encode(call);
    start(call);
}
