#include "daemon/unloading.h"

#include "base/log.h"
#include "daemon/adapters.h"
#include "daemon/call.h"
#include "daemon/notify.h"
#include "daemon/training.h"
#include "text/chat.h"

#include <malloc.h>
#include <stdlib.h>

/* What a worker takes apart. */
struct remains {
    uv_work_t work;
    struct server *server;
    struct engine *engine;
    struct trainer *trainer;
    struct model *model, *draft;
    struct tokenizer *tokenizer;
    struct chat *chat;
};

static void take_apart(uv_work_t *work) {
    struct remains *r = work->data;
    if (r->engine) {
        engine_stop(r->engine, false); /* its job is saved and queued */
        engine_join(r->engine);
    }
    if (r->trainer) trainer_free(r->trainer);
    adapters_let_go(r->server);
    chat_free(r->chat);
    tokenizer_free(r->tokenizer);
    model_free(r->model);
    model_free(r->draft);
    malloc_trim(0);
}

static void on_apart(uv_work_t *work, int status) {
    (void)status;
    struct remains *r = work->data;
    struct server *server = r->server;
    free(r);
    mailbox_deliver(&server->mailbox); /* the engine's last words */
    if (server->state == SERVER_UNLOADING) {
        server_enter(server, SERVER_UNLOADED);
        log_info("no model is loaded");
        notify_send("STATUS=no model is loaded");
    }
    struct error why = server->change.error;
    server->change.error = (struct error){0};
    model_change_done(server, why.kind == ERR_NONE ? NULL : &why);
    server_call_ends(server);
}

static void on_free(uv_timer_t *timer) {
    struct server *server = timer->data;
    if (server->state != SERVER_UNLOADING || server->n_model_calls) return;
    struct remains *r = calloc(1, sizeof *r);
    if (!r) {
        uv_timer_start(timer, on_free, 1000, 0); /* memory will come: nothing is served */
        return;
    }
    *r = (struct remains){.server = server,
                          .engine = server->engine,
                          .trainer = training_end(server),
                          .model = server->model,
                          .draft = server->draft,
                          .tokenizer = server->tokenizer,
                          .chat = server->chat};
    r->work.data = r;
    if (server->engine) {
        struct engine_stats stats;
        engine_stats(server->engine, &stats); /* nobody asks it any more: these are its last */
        engine_stats_add(&server->past, &stats);
    }
    server->engine = NULL;
    server->model = NULL;
    server->draft = NULL;
    server->tokenizer = NULL;
    server->chat = NULL;
    structured_clear(&server->structured);
    server_call_begins(server); /* the daemon does not end meanwhile */
    uv_queue_work(&server->loop, &r->work, take_apart, on_apart);
}

void unloading_look(struct server *server) {
    /* It may be deep inside a handler: the next turn does it. */
    if (server->state == SERVER_UNLOADING && server->n_model_calls == 0)
        uv_timer_start(&server->unload_timer, on_free, 0, 0);
}

static void on_timeout(uv_timer_t *timer) {
    struct server *server = timer->data;
    log_warn("%lld requests are still live: they are cancelled", (long long)server->n_model_calls);
    for (struct conn *conn = server->conns; conn; conn = conn->next)
        for (struct call *call = conn->calls, *next; call; call = next) {
            next = call->next;
            if (call_needs_model(call)) call_cancel(call);
        }
}

void unloading_start(struct server *server, int64_t timeout_ms) {
    server_enter(server, SERVER_UNLOADING);
    if (server->model) /* none where a load has failed early */
        log_info("unloading %s: %lld live requests", model_path(server->model),
                 (long long)server->n_model_calls);
    notify_send("STATUS=unloading the model");
    uv_timer_start(&server->unload_timer, on_timeout, (uint64_t)timeout_ms, 0);
    unloading_look(server);
}

void unloading_init(struct server *server) {
    uv_timer_init(&server->loop, &server->unload_timer);
    server->unload_timer.data = server;
}

void unloading_close(struct server *server) {
    uv_close((uv_handle_t *)&server->unload_timer, NULL);
}
