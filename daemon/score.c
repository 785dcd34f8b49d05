/* The method score: how likely a completion is after a prompt. */
#include "daemon/generation.h"
#include "daemon/methods.h"
#include "daemon/prompt.h"
#include "daemon/server.h"
#include "daemon/token_json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int put_result(struct generation *g, struct json_out *out, struct error *e) {
    const struct gen_event *end = g->choices[0].end;
    if (end->finish == FINISH_CANCELLED)
        return error_set(e, ERR_CANCELLED, "the request was cancelled");
    double sum = 0;
    int64_t n = 0;
    for (size_t i = 0; i < end->n_prompt_tokens; i++) {
        if (!end->prompt_tokens[i].has_logprob) continue;
        sum += end->prompt_tokens[i].logprob;
        n++;
    }
    double mean = n > 0 ? sum / (double)n : 0;
    json_out_open(out, '{');
    json_out_key(out, "tokens");
    token_json_logprobs(out, g->call->server->tokenizer, end->prompt_tokens, end->n_prompt_tokens,
                        false);
    json_out_member_number(out, "sum", sum);
    json_out_member_number(out, "mean", mean);
    json_out_member_number(out, "perplexity", exp(-mean));
    json_out_member_int(out, "n", n);
    json_out_key(out, "usage");
    json_out_open(out, '{');
    json_out_member_int(out, "prompt_tokens", end->n_prompt);
    json_out_member_int(out, "cached_tokens", end->n_cached);
    json_out_close(out, '}');
    json_out_close(out, '}');
    return 0;
}

static bool is_prefix(const struct token_ids *head, const struct token_ids *whole) {
    return head->n <= whole->n &&
           (head->n == 0 || memcmp(head->ids, whole->ids, head->n * sizeof *head->ids) == 0);
}

/* Two texts are encoded as one, as the model would have met them. Where a token spans their border
 * there is no such split: then each is encoded by itself. */
static int encode_texts(struct generation *g, const struct tokenizer *tokenizer,
                        const json_t *prompt, const json_t *completion, struct error *e) {
    size_t n = json_string_length(prompt), m = json_string_length(completion);
    struct token_ids whole = {0};
    char *both = malloc(n + m + 1);
    if (!both) return error_set(e, ERR_MEMORY, "no memory for the text");
    memcpy(both, json_string_value(prompt), n);
    memcpy(both + n, json_string_value(completion), m);
    int rc = tokenizer_encode(tokenizer, json_string_value(prompt), n, true, g->prompts, e);
    if (rc == 0) rc = tokenizer_encode(tokenizer, both, n + m, true, &whole, e);
    free(both);
    g->score_from = g->prompts[0].n;
    if (rc == 0 && is_prefix(g->prompts, &whole) && whole.n > g->prompts[0].n) {
        token_ids_free(g->prompts);
        g->prompts[0] = whole;
        return 0;
    }
    token_ids_free(&whole);
    if (rc != 0) return rc;
    return tokenizer_encode(tokenizer, json_string_value(completion), m, false, g->prompts, e);
}

/* Without a prompt the completion follows BOS alone, where the tokenizer adds one. */
static int encode_alone(struct generation *g, const struct tokenizer *tokenizer, int32_t vocab,
                        const json_t *completion, struct error *e) {
    int rc = prompt_append(g->prompts, tokenizer, vocab, "completion", completion, true, e);
    bool bos = rc == 0 && json_is_string(completion) && g->prompts[0].n > 0 &&
               g->prompts[0].ids[0] == tokenizer_bos(tokenizer);
    g->score_from = bos ? 1 : 0;
    return rc;
}

static int encode_pair(struct generation *g, const struct tokenizer *tokenizer, int32_t vocab,
                       const json_t *prompt, const json_t *completion, struct error *e) {
    if (json_is_string(prompt) && json_is_string(completion))
        return encode_texts(g, tokenizer, prompt, completion, e);
    int rc = prompt_append(g->prompts, tokenizer, vocab, "prompt", prompt, true, e);
    g->score_from = g->prompts[0].n;
    if (rc == 0)
        rc = prompt_append(g->prompts, tokenizer, vocab, "completion", completion, false, e);
    return rc;
}

static bool is_empty(const json_t *value) {
    return !value || (json_is_string(value) && json_string_length(value) == 0) ||
           (json_is_array(value) && json_array_size(value) == 0) || json_is_null(value);
}

static void encode(struct call *call) {
    struct generation *g = call->state;
    const struct tokenizer *tokenizer = call->server->tokenizer;
    int32_t vocab = model_config(call->server->model)->vocab;
    const json_t *prompt = json_object_get(call->params, "prompt");
    const json_t *completion = json_object_get(call->params, "completion");
    int rc = is_empty(prompt) ? encode_alone(g, tokenizer, vocab, completion, &g->error)
                              : encode_pair(g, tokenizer, vocab, prompt, completion, &g->error);
    /* The very first token has nothing before it that could predict it. */
    if (rc == 0 && (g->score_from == 0 ? g->prompts[0].n < 2 : g->prompts[0].n <= g->score_from)) {
        error_set(&g->error, ERR_PARAMS, "completion has no token that could be scored");
        error_note(&g->error, "field", "completion");
        error_note(&g->error, "expected", "at least one token after another");
        error_note(&g->error, "got", "too few");
    }
}

static const struct generation_form form = {.finish = put_result};

void handle_score(struct call *call) {
    struct generation *g = generation_new(call, 1, 1);
    if (!g) return;
    g->score = true;
    g->form = &form;
    size_t bytes = prompt_text_bytes(json_object_get(call->params, "prompt")) +
                   prompt_text_bytes(json_object_get(call->params, "completion"));
    generation_start(g, encode, bytes);
}
