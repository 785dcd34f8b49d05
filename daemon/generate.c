/* The method generate: parameters to a generation, and its end to a result. */
#include "daemon/generate.h"

#include "daemon/adapters.h"
#include "daemon/methods.h"
#include "daemon/prompt.h"
#include "daemon/sampling_params.h"
#include "daemon/server.h"
#include "daemon/token_json.h"

/* What ended it: the stop string, else the id of the end token or stop token, else null. */
static void put_stop(struct json_out *out, const struct gen_event *end) {
    json_out_key(out, "stop");
    if (end->stop) json_out_string(out, end->stop);
    else if (end->stop_token >= 0) json_out_int(out, end->stop_token);
    else json_out_null(out);
}

static void put_logprobs(struct json_out *out, const struct generation *g,
                         const struct gen_event *end) {
    const struct tokenizer *tokenizer = g->call->server->tokenizer;
    if (g->sampling.logprobs < 0) return;
    json_out_key(out, "logprobs");
    token_json_logprobs(out, tokenizer, end->tokens, end->n_tokens, true);
}

/* Once for all choices: they have the same prompt. */
static void put_prompt_logprobs(struct json_out *out, const struct generation *g) {
    const struct gen_event *end = g->choices[0].end;
    if (g->sampling.logprobs < 0 || !g->sampling.echo) return;
    json_out_key(out, "prompt_logprobs");
    token_json_logprobs(out, g->call->server->tokenizer, end->prompt_tokens, end->n_prompt_tokens,
                        true);
}

static void put_timings(struct json_out *out, const struct gen_timings *t) {
    json_out_key(out, "timings");
    json_out_open(out, '{');
    json_out_member_number(out, "queue_ms", t->queue_ms);
    json_out_member_number(out, "prefill_ms", t->prefill_ms);
    json_out_member_number(out, "decode_ms", t->decode_ms);
    json_out_member_number(out, "tokens_per_s", t->tokens_per_s);
    json_out_member_int(out, "draft_tokens", t->n_guessed);
    json_out_member_int(out, "accepted_tokens", t->n_accepted);
    json_out_close(out, '}');
}

static void put_message(struct json_out *out, const struct gen_event *end) {
    json_out_key(out, "message");
    json_out_open(out, '{');
    json_out_key(out, "role");
    json_out_string(out, "assistant");
    json_out_key(out, "content");
    json_out_text(out, end->text, end->text_size);
    json_out_close(out, '}');
}

/* Members text, message?, tokens, finish_reason, stop, seed, logprobs?, timings of an object that is
 * open. */
static void put_choice(struct json_out *out, const struct generation *g,
                       const struct choice *choice, bool message) {
    const struct gen_event *end = choice->end;
    json_out_key(out, "text");
    json_out_text(out, end->text, end->text_size);
    if (message) put_message(out, end);
    json_out_key(out, "tokens");
    token_json_ids(out, end->tokens, end->n_tokens);
    json_out_key(out, "finish_reason");
    json_out_string(out, finish_reason_name(end->finish));
    put_stop(out, end);
    json_out_member_int(out, "seed", (int64_t)choice->seed);
    put_logprobs(out, g, end);
    put_timings(out, &end->timings);
}

static void put_usage(struct json_out *out, const struct generation *g) {
    int64_t completion = 0;
    for (int i = 0; i < g->n; i++) completion += g->choices[i].end->n_completion;
    json_out_key(out, "usage");
    json_out_open(out, '{');
    json_out_member_int(out, "prompt_tokens", g->choices[0].end->n_prompt);
    json_out_member_int(out, "cached_tokens", g->choices[0].end->n_cached);
    json_out_member_int(out, "completion_tokens", completion);
    json_out_close(out, '}');
}

/* The first choice's members, the prompt's and the usage of all; with n > 1 all choices beside
 * them. */
void generate_put_result(const struct generation *g, struct json_out *out, bool message) {
    json_out_open(out, '{');
    put_choice(out, g, &g->choices[0], message);
    put_prompt_logprobs(out, g);
    put_usage(out, g);
    if (g->n > 1) {
        json_out_key(out, "choices");
        json_out_open(out, '[');
        for (int i = 0; i < g->n; i++) {
            json_out_open(out, '{');
            json_out_member_int(out, "index", i);
            put_choice(out, g, &g->choices[i], message);
            json_out_close(out, '}');
        }
        json_out_close(out, ']');
    }
    json_out_close(out, '}');
}

static int put_result(struct generation *g, struct json_out *out, struct error *e) {
    (void)e;
    generate_put_result(g, out, false);
    return 0;
}

static const struct generation_form form = {.piece = generation_notify, .finish = put_result};

struct generation *generate_begin(struct call *call, const struct generation_form *of) {
    json_t *params = call->params, *n = json_object_get(params, "n");
    struct generation *g =
        generation_new(call, 1, n && !json_is_null(n) ? (int)json_number_value(n) : 1);
    if (!g) return NULL;
    g->form = of;
    g->prompt_field = "prompt";
    g->stream = json_is_true(json_object_get(params, "stream"));
    struct error e;
    const char *adapter = json_string_value(json_object_get(params, "adapter"));
    /* Cancelled while it waited, perhaps for a model that never came. */
    if (!call->cancelled &&
        (sampling_read(&g->sampling, params, model_config(call->server->model)->vocab, &e) != 0 ||
         structured_read(&call->server->structured, params, &g->sampling.grammar, &e) != 0 ||
         adapters_choose(call->server, adapter, &g->adapter, &e) != 0)) {
        generation_fail(g, &e);
        return NULL;
    }
    if (g->adapter) g->adapter->users++;
    return g;
}

void handle_generate(struct call *call) {
    struct generation *g = generate_begin(call, &form);
    if (g)
        generation_start(g, generation_encode_prompts,
                         prompt_text_bytes(json_object_get(call->params, "prompt")));
}
