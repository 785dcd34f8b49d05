#include "daemon/loading.h"

#include "base/log.h"
#include "daemon/adapters.h"
#include "daemon/draft_model.h"
#include "daemon/notify.h"
#include "daemon/call.h"
#include "daemon/quantise.h"
#include "daemon/tidy.h"
#include "daemon/training.h"
#include "daemon/unloading.h"
#include "kernels/kernels.h"
#include "text/chat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct loading {
    uv_work_t work;
    struct server *server;
    struct daemon_config want;
    char *path, *draft_path; /* want.model and .draft, when they are ours to give to the server; else NULL */
    struct devices devices;
    struct model *model, *draft;
    struct tokenizer *tokenizer;
    struct chat *chat;
    struct error error; /* kind ERR_NONE when both are open */
    double model_ms, tokenizer_ms;
};

/* The engine's word on its way to the loop. */
struct state_letter {
    struct letter letter;
    struct server *server;
    enum engine_state state;
    struct error error;
};

static double ms_since(int64_t start_ns) {
    return (double)(clock_ns() - start_ns) / 1e6;
}

static void open_files(uv_work_t *work) {
    struct loading *l = work->data;
    const char *path = l->want.model;
    int64_t seed = l->want.init;
    if (devices_choose(&l->devices, &l->want, &l->error) != 0) return;
    int64_t start = clock_ns();
    int rc = seed < 0 ? model_open(&l->model, path, &l->error)
                      : model_open_new(&l->model, path, (uint64_t)seed, &l->error);
    if (rc != 0) return;
    if (quantise_opened(l->server, &l->want, l->model, l->devices.cores.n, &l->error) != 0) return;
    l->model_ms = ms_since(start);
    start = clock_ns();
    if (tokenizer_open(&l->tokenizer, path, &l->error) != 0) return;
    l->tokenizer_ms = ms_since(start);
    const char *draft = l->want.draft;
    if (*draft && draft_model_open(&l->draft, draft, l->tokenizer, &l->error) != 0) return;
    const char *choice = l->want.chat_template;
    if (chat_open(&l->chat, path, choice, l->tokenizer, &l->error) != 0) return;
    adapters_open_files(l->server, l->model);
    training_note_model(l->server, path);
}

static void load_failed(struct server *server, const struct error *e) {
    struct error none;
    if (!server->was_ready) {
        server_fail(server, e);
        return;
    }
    log_error("%s", e->message);
    if (server->state != SERVER_LOADING) return; /* the daemon ends */
    error_set(&none, ERR_NO_MODEL, "no model is loaded: %s", e->message);
    calls_refuse_parked(server, &none);
    server->change.error = *e;
    unloading_start(server, server->config->drain_timeout_s * 1000);
}

static void say_ready(struct server *server) {
    struct engine_stats stats;
    engine_stats(server->engine, &stats);
    for (int r = 0; r < stats.tp; r++)
        log_info("rank %d on %s: weights %.1f MB, KV cache %.1f MB", r, stats.ranks[r].name,
                 (double)stats.ranks[r].use.bytes[MEM_WEIGHTS] / 1e6,
                 (double)stats.ranks[r].use.bytes[MEM_KV] / 1e6);
    log_info("KV cache %s: %d blocks of %d positions; context %d, %d slots",
             stats.kv_type >= 0 ? dtype_info((enum dtype)stats.kv_type)->name : "?",
             stats.kv_blocks, stats.block_size, stats.ctx, stats.slots);
    log_info("READY on %s after %.0f ms", server->listener.path, ms_since(server->load_began_ns));
    notify_send("READY=1\nSTATUS=serving");
}

static void deliver_state(struct letter *letter) {
    struct state_letter *mail = (struct state_letter *)letter;
    struct server *server = mail->server;
    switch (mail->state) {
    case ENGINE_READY:
        if (server->state != SERVER_LOADING) break;
        server_enter(server, SERVER_READY);
        server->was_ready = true;
        say_ready(server);
        tidy_after_start();
        model_change_done(server, NULL);
        break;
    case ENGINE_FAILED: load_failed(server, &mail->error); break;
    case ENGINE_LOADING:
    case ENGINE_STOPPED: break;
    }
    free(mail);
}

/* On rank 0's thread. */
static void on_engine_state(void *user, enum engine_state state, const struct error *error) {
    struct server *server = user;
    struct state_letter *mail = calloc(1, sizeof *mail);
    if (!mail) abort(); /* a daemon that never learns that it is ready serves nobody */
    mail->letter.deliver = deliver_state;
    mail->server = server;
    mail->state = state;
    if (error) mail->error = *error;
    mailbox_post(&server->mailbox, &mail->letter);
}

static void say_devices(const struct server *server, int tp) {
    const struct devices *d = &server->devices;
    char cores[256], gpus[512] = "";
    core_set_format(&d->cores, cores, sizeof cores);
    for (int i = 0, at = 0; i < d->n_gpus && at < (int)sizeof gpus; i++)
        at += snprintf(gpus + at, sizeof gpus - (size_t)at, "%s%d", i ? "," : "cuda:", d->gpus[i]);
    if (d->n_gpus) log_info("tp %d on %s", tp, gpus);
    else log_info("tp %d on %d cores with %s: %s", tp, d->cores.n, kernels_cpu_level(), cores);
}

static int start_engine(struct server *server, struct error *e) {
    const struct daemon_config *config = server->config;
    const struct devices *devices = &server->devices;
    struct engine_options options = {
        .model = server->model,
        .tokenizer = server->tokenizer,
        .draft = server->draft,
        .draft_tp = (int)config->draft_tp,
        .tp = (int)config->tp,
        .cores = devices->cores,
        .n_gpus = devices->n_gpus,
        .tuning_path = devices->n_gpus ? server->tuning_path : NULL,
        .ctx = (int32_t)config->ctx,
        .slots = (int32_t)config->slots,
        .max_queue = (int32_t)config->max_queue,
        .step_rows = (int32_t)config->step_tokens,
        .kv_type = kv_type_from_name(config->kv_type), /* -1 for "auto" */
        .narrow_activations = strcmp(config->activations, "auto") == 0,
        .kv_memory = (size_t)config->kv_memory,
        .memory_fraction = config->memory_fraction,
        .memory_limit = (size_t)config->memory_limit,
        .deadline_ms = (int)config->device_timeout_s * 1000,
        .debug_alias = config->debug_alias,
        .on_state = on_engine_state,
        .user = server,
    };
    memcpy(options.gpus, devices->gpus, sizeof options.gpus);
    say_devices(server, options.tp);
    int rc = training_background(server, options.cores.n, &options.background, e);
    if (rc == 0) rc = engine_start(&server->engine, &options, e);
    if (rc == 0) {
        training_started(server);
        adapters_restore(server);
    }
    return rc;
}

static void say_model(const struct loading *l) {
    const struct model *model = l->server->model;
    const struct model_config *c = model_config(model);
    log_info("model %s: %s, %s, %.1f MB, %d layers of %d, %d heads (%d KV), vocabulary %d",
             model_path(model), arch_name(c->arch), dtype_info(model_dtype(model))->name,
             (double)model_weight_bytes(model) / 1e6, c->n_layers, c->hidden, c->n_heads,
             c->n_kv_heads, c->vocab);
    const struct model *draft = l->server->draft;
    if (draft)
        log_info("draft model %s: %s, %s, %.1f MB, %d layers of %d", model_path(draft),
                 arch_name(model_config(draft)->arch), dtype_info(model_dtype(draft))->name,
                 (double)model_weight_bytes(draft) / 1e6, model_config(draft)->n_layers,
                 model_config(draft)->hidden);
    if (l->server->config->init >= 0)
        log_info("its weights are new, drawn from seed %lld: a full fine-tune job trains them",
                 (long long)l->server->config->init);
    log_info("opened model in %.0f ms, tokenizer in %.0f ms", l->model_ms, l->tokenizer_ms);
    if (chat_missing(l->chat)) log_info("no chat: %s", chat_missing(l->chat));
}

static void on_opened(uv_work_t *work, int status) {
    (void)status;
    struct loading *l = work->data;
    struct server *server = l->server;
    int rc = l->error.kind == ERR_NONE ? 0 : -1;
    if (rc == 0 && l->path) {
        free(server->loaded_path);
        server->loaded_path = l->path;
        free(server->loaded_draft);
        server->loaded_draft = l->draft_path;
        server->settings = l->want;
    } else {
        free(l->path);
        free(l->draft_path);
    }
    server->devices = l->devices;
    server->model = l->model;
    server->draft = l->draft;
    server->tokenizer = l->tokenizer;
    server->chat = l->chat;
    if (rc == 0) say_model(l);
    /* A drain that began meanwhile still serves what waits. */
    if (rc == 0 && (server->state == SERVER_LOADING || server->parked))
        rc = start_engine(server, &l->error);
    bool given_up = server->state == SERVER_ENDED && l->error.kind == ERR_CANCELLED;
    if (rc != 0 && !given_up) load_failed(server, &l->error);
    else if (rc == 0 && server->engine) calls_unpark(server);
    free(l);
}

void loading_start(struct server *server, const struct daemon_config *want) {
    struct error e;
    struct loading *l = calloc(1, sizeof *l);
    if (!l) {
        error_set(&e, ERR_MEMORY, "no memory to load a model");
        if (want) free(want->model);
        if (want) free(want->draft);
        if (want) model_change_done(server, &e);
        else server_fail(server, &e);
        return;
    }
    l->server = server;
    l->want = want ? *want : *server->config;
    l->path = want ? want->model : NULL;
    l->draft_path = want ? want->draft : NULL;
    l->work.data = l;
    if (server->was_ready) server->load_began_ns = clock_ns();
    server_enter(server, SERVER_LOADING);
    notify_send("STATUS=loading the model");
    uv_queue_work(&server->loop, &l->work, open_files, on_opened);
}
