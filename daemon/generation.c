#include "daemon/generation.h"

#include "base/log.h"
#include "daemon/adapters.h"
#include "daemon/prompt.h"
#include "daemon/sampling_params.h"
#include "daemon/rpc.h"
#include "daemon/server.h"
#include "daemon/token_json.h"

#include <stdlib.h>
#include <string.h>

enum { INLINE_TEXT_BYTES = 4096, RESULT_INLINE_ENTRIES = 4096 };

void generation_encode_prompts(struct call *call) {
    struct generation *g = call->state;
    int32_t vocab = model_config(call->server->model)->vocab;
    const char *field = g->prompt_field;
    const json_t *value = json_object_get(call->params, field);
    for (int i = 0; i < g->n_prompts && g->error.kind == ERR_NONE; i++) {
        int rc = prompt_append(&g->prompts[i], call->server->tokenizer, vocab, field,
                               prompt_at(value, (size_t)i), true, &g->error);
        if (rc != 0 || g->prompts[i].n > 0) continue;
        error_set(&g->error, ERR_PARAMS,
                  "%s is empty and this model's tokenizer adds no token to start from (BOS): "
                  "give at least one token",
                  field);
        error_note(&g->error, "field", field);
        error_note(&g->error, "expected", "at least one token");
        error_note(&g->error, "got", "nothing");
    }
}

/* An event on its way from the engine's thread. */
struct event_letter {
    struct letter letter;
    struct gen_request *request;
    struct gen_event *event;
};

static void cancel_all(struct generation *g) {
    for (int i = 0; i < g->n; i++) {
        struct choice *choice = &g->choices[i];
        if (!choice->request || choice->end) continue;
        engine_cancel(g->call->server->engine, choice->request);
        engine_hold(g->call->server->engine, choice->request, false);
    }
}

static void on_cancel(struct call *call) {
    if (call->state) cancel_all(call->state);
}

static void on_hold(struct call *call, bool hold) {
    struct generation *g = call->state;
    for (int i = 0; g && i < g->n; i++)
        if (g->choices[i].request && !g->choices[i].end)
            engine_hold(call->server->engine, g->choices[i].request, hold);
}

static const struct call_work work = {.cancel = on_cancel, .hold = on_hold};

struct generation *generation_new(struct call *call, int n_prompts, int n_each) {
    int n = n_prompts * n_each;
    struct generation *g = calloc(1, sizeof *g + (size_t)n * sizeof *g->choices);
    if (g) g->prompts = calloc((size_t)n_prompts, sizeof *g->prompts);
    if (!g || !g->prompts) {
        free(g);
        struct error e;
        error_set(&e, ERR_MEMORY, "no memory for the request");
        call_fail(call, &e);
        return NULL;
    }
    g->call = call;
    g->n_prompts = n_prompts;
    g->n = n;
    sampling_default(&g->sampling);
    for (int i = 0; i < n; i++) g->choices[i].generation = g;
    call->state = g;
    call->work = &work;
    return g;
}

int choice_index(const struct choice *choice) {
    return (int)(choice - choice->generation->choices);
}

int choice_prompt(const struct choice *choice) {
    const struct generation *g = choice->generation;
    return choice_index(choice) / (g->n / g->n_prompts);
}

static void generation_free(struct generation *g) {
    for (int i = 0; i < g->n; i++) {
        if (g->choices[i].request) gen_request_free(g->choices[i].request);
        if (g->choices[i].end) gen_event_free(g->choices[i].end);
        free(g->choices[i].text);
    }
    if (g->adapter) g->adapter->users--;
    sampling_clear(&g->sampling);
    for (int i = 0; i < g->n_prompts; i++) token_ids_free(&g->prompts[i]);
    free(g->prompts);
    free(g->about);
    json_decref(g->tools);
    free(g);
}

void generation_fail(struct generation *g, const struct error *e) {
    struct call *call = g->call;
    struct error copy = *e; /* it may be g's own */
    call->state = NULL;
    generation_free(g);
    call_fail(call, &copy);
}

static void write_result(struct call *call) {
    struct generation *g = call->state;
    call_begin_result(call, &g->out);
    g->form->finish(g, &g->out, &g->error);
}

static void send_result(struct call *call) {
    struct generation *g = call->state;
    struct json_out out = g->out;
    if (g->error.kind != ERR_NONE) {
        json_out_free(&out);
        generation_fail(g, &g->error);
        return;
    }
    call->state = NULL;
    generation_free(g);
    call_end_result(call, &out);
}

/* Ids, and with log-probabilities entries and their alternatives, that the result tells. */
static size_t result_entries(const struct generation *g) {
    size_t n = 0, each = g->sampling.logprobs >= 0 ? 2 + (size_t)g->sampling.logprobs : 1;
    for (int i = 0; i < g->n; i++)
        if (g->choices[i].end)
            n += (g->choices[i].end->n_tokens + g->choices[i].end->n_prompt_tokens) * each +
                 g->choices[i].end->n_embedding;
    return n;
}

/* A long result is written on the worker pool, so that the loop goes on; for nobody it is not
 * written at all. */
static void finish(struct generation *g) {
    struct call *call = g->call;
    if (!call->conn && g->error.kind == ERR_NONE)
        error_set(&g->error, ERR_CANCELLED, "the client has gone");
    if (g->error.kind == ERR_NONE && result_entries(g) > RESULT_INLINE_ENTRIES) {
        call_in_thread(call, write_result, send_result);
        return;
    }
    if (g->error.kind == ERR_NONE) write_result(call);
    send_result(call);
}

/* The first failure is the call's; the other choices end as soon as they can. */
static void fail_rest(struct generation *g, const struct error *e) {
    if (g->error.kind != ERR_NONE) return;
    g->error = *e;
    cancel_all(g);
}

void generation_notify(struct choice *choice, const struct gen_event *event) {
    struct generation *g = choice->generation;
    struct call *call = g->call;
    struct json_out out;
    if (!call->conn || !call->id) return;
    rpc_begin_notify(&out, "token");
    json_out_open(&out, '{');
    json_out_key(&out, "id");
    json_out_json(&out, call->id);
    if (g->n > 1) {
        json_out_key(&out, "index");
        json_out_int(&out, choice_index(choice));
    }
    json_out_key(&out, "text");
    json_out_text(&out, event->text, event->text_size);
    json_out_key(&out, "tokens");
    token_json_ids(&out, event->tokens, event->n_tokens);
    if (g->sampling.logprobs >= 0) {
        json_out_key(&out, "logprobs");
        token_json_logprobs(&out, call->server->tokenizer, event->tokens, event->n_tokens, true);
    }
    json_out_close(&out, '}');
    rpc_end_notify(call, &out);
}

static void on_end(struct choice *choice, struct gen_event *event);

static void deliver(struct letter *letter) {
    struct event_letter *mail = (struct event_letter *)letter;
    struct choice *choice = mail->request->user;
    if (mail->event->kind == GEN_PIECE) {
        choice->generation->form->piece(choice, mail->event);
        gen_event_free(mail->event);
    } else on_end(choice, mail->event);
    free(mail);
}

/* On the engine's thread. */
static void on_event(struct gen_request *request, struct gen_event *event) {
    struct choice *choice = request->user;
    struct event_letter *mail = malloc(sizeof *mail);
    if (!mail) {
        /* An end that is not told would keep its client waiting for ever. */
        log_error("no memory to hand a token over: tpd ends");
        abort();
    }
    *mail = (struct event_letter){.letter.deliver = deliver, .request = request, .event = event};
    mailbox_post(&choice->generation->call->server->mailbox, &mail->letter);
}

static int submit(struct generation *g, struct choice *choice, struct error *e) {
    struct gen_request *request = gen_request_new();
    const struct token_ids *prompt = &g->prompts[choice_prompt(choice)];
    token_id *ids = malloc(prompt->n * sizeof *ids);
    if (!request || !ids) {
        free(ids);
        if (request) gen_request_free(request);
        return error_set(e, ERR_MEMORY, "no memory for the request");
    }
    memcpy(ids, prompt->ids, prompt->n * sizeof *ids);
    request->prompt = ids;
    request->n_prompt = prompt->n;
    request->stream = g->stream;
    request->score = g->score;
    request->embed = g->embed;
    request->embed_last = g->embed_last;
    request->score_from = g->score_from;
    request->adapter = g->adapter ? g->adapter->slot : -1;
    request->prompt_untold = choice_index(choice) % (g->n / g->n_prompts) != 0;
    request->on_event = on_event;
    request->user = choice;
    request->group = g->call->conn ? g->call->conn->number : 0;
    if (g->call->conn) request->held = g->call->conn->paused;
    int rc = sampling_copy(&request->sampling, &g->sampling, choice->seed, e);
    if (rc == 0) rc = engine_submit(g->call->server->engine, request, e);
    if (rc != 0) gen_request_free(request);
    else choice->request = request;
    return rc;
}

/* Choices that the engine never had, for the call was cancelled first: they end as ones that made nothing. */
static void end_unsubmitted(struct generation *g) {
    for (int i = g->n_submitted; i < g->n && g->error.kind == ERR_NONE; i++) {
        struct gen_event *end = calloc(1, sizeof *end);
        if (!end) {
            error_set(&g->error, ERR_CANCELLED, "the request was cancelled");
            return;
        }
        end->kind = GEN_END;
        end->finish = FINISH_CANCELLED;
        end->stop_token = -1;
        end->text = strdup("");
        g->choices[i].end = end;
    }
}

/* As many choices of one call as the engine has at once: all slots and half of the queue. The other half is
 * for other calls, however many choices this one has. */
static int most_live(const struct server *server) {
    return (int)(server->config->slots + server->config->max_queue / 2);
}

/* Submits the next choices. Where the engine takes no more just now, an end of one of this call's makes
 * room; without any, the call is refused. */
static void submit_more(struct generation *g) {
    struct error e;
    int most = most_live(g->call->server);
    while (g->n_submitted < g->n && g->n_live < most && g->error.kind == ERR_NONE) {
        if (submit(g, &g->choices[g->n_submitted], &e) != 0) {
            if (e.kind != ERR_OVERLOADED || g->n_live == 0) fail_rest(g, &e);
            return;
        }
        g->n_submitted++;
        g->n_live++;
    }
}

static void go_on(struct generation *g) {
    if (!g->call->cancelled) submit_more(g);
    if (g->n_live > 0) return;
    end_unsubmitted(g);
    finish(g);
}

static void on_end(struct choice *choice, struct gen_event *event) {
    struct generation *g = choice->generation;
    choice->end = event;
    g->n_live--;
    metrics_count(&g->call->server->metrics, event);
    if (event->finish == FINISH_ERROR) fail_rest(g, &event->error);
    else if (g->form->ended && g->call->conn) g->form->ended(choice);
    go_on(g);
}

static void on_encoded(struct call *call) {
    struct generation *g = call->state;
    call_drop_params(call);
    if (g->error.kind != ERR_NONE && !call->cancelled) {
        generation_fail(g, &g->error);
        return;
    }
    for (int i = 0; i < g->n; i++) g->choices[i].seed = g->sampling.seed + (uint64_t)i;
    go_on(g);
}

void generation_start(struct generation *g, void (*encode)(struct call *call), size_t text_bytes) {
    struct call *call = g->call;
    if (text_bytes > INLINE_TEXT_BYTES && !call->cancelled) {
        call_in_thread(call, encode, on_encoded);
        return;
    }
    if (!call->cancelled) encode(call);
    on_encoded(call);
}
