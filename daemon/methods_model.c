/* model.info, model.load and model.unload. */
#include "daemon/device.h"
#include "daemon/loading.h"
#include "daemon/methods.h"
#include "daemon/unloading.h"

#include <stdlib.h>
#include <string.h>

/* --- who waits ---------------------------------------------------------------------------------- */

/* The client is told; what it asked for goes on. */
static void on_cancel(struct call *call) {
    struct error e;
    if (call->server->change.call != call) return;
    call->server->change.call = NULL;
    error_set(&e, ERR_CANCELLED, "nobody waits for it any more, but it goes on: see status");
    call_fail(call, &e);
}

static const struct call_work change_work = {.cancel = on_cancel};

static void wait_for_change(struct call *call) {
    struct server *server = call->server;
    call->work = &change_work;
    server->change.call = call;
    server->change.load = strcmp(call->method->name, "model.load") == 0;
    server->change.error = (struct error){0};
}

void model_change_done(struct server *server, const struct error *e) {
    struct call *call = server->change.call;
    server->change.call = NULL;
    if (!call) return;
    if (e) call_fail(call, e);
    else if (server->change.load) handle_model_info(call);
    else call_result(call, json_pack("{s:b}", "unloaded", 1));
}

/* --- model.unload ------------------------------------------------------------------------------- */

static int check_unload(const struct server *server, struct error *e) {
    switch (server->state) {
    case SERVER_READY: return 0;
    case SERVER_STARTING:
    case SERVER_LOADING:
        return error_set(e, ERR_CONFLICT, "the model is still loading: unload it when it is READY");
    case SERVER_UNLOADING: return error_set(e, ERR_CONFLICT, "the model is being unloaded already");
    case SERVER_UNLOADED: return error_set(e, ERR_CONFLICT, "no model is loaded");
    case SERVER_DRAINING:
    case SERVER_ENDED:
    case SERVER_STATE_COUNT: break;
    }
    return error_set(e, ERR_SHUTTING_DOWN, "the daemon is shutting down");
}

void handle_model_unload(struct call *call) {
    struct server *server = call->server;
    struct error e;
    if (check_unload(server, &e) != 0) {
        call_fail(call, &e);
        return;
    }
    const json_t *timeout = json_object_get(call->params, "timeout_s");
    double timeout_s = json_is_number(timeout) ? json_number_value(timeout)
                                               : (double)server->config->drain_timeout_s;
    wait_for_change(call);
    unloading_start(server, (int64_t)(timeout_s * 1000));
}

/* --- model.load --------------------------------------------------------------------------------- */

/* A choice of the parameter, which lives as long as settings do. */
static char *lasting_quant(const char *name) {
    static char none[] = "none", q8[] = "q8", q4[] = "q4";
    return strcmp(name, q8) == 0 ? q8 : strcmp(name, q4) == 0 ? q4 : none;
}

/* The daemon's settings with what the parameters say. model and draft are the caller's to free. */
static int read_settings(const struct call *call, struct daemon_config *want, struct error *e) {
    const struct server *server = call->server;
    const char *path = json_string_value(json_object_get(call->params, "path"));
    const char *draft = json_string_value(json_object_get(call->params, "draft"));
    const char *quant = json_string_value(json_object_get(call->params, "quant"));
    const json_t *tp = json_object_get(call->params, "tp"), *ctx = json_object_get(call->params, "ctx");
    *want = *server->config;
    if (path && strcmp(path, want->model) != 0) {
        want->init = -1; /* that was about another directory */
        want->ctx = 0;
        if (!draft) draft = ""; /* so was that */
    }
    if (quant) want->quant = lasting_quant(quant);
    if (json_is_integer(tp)) want->tp = json_integer_value(tp);
    if (json_is_integer(ctx)) want->ctx = json_integer_value(ctx);
    int rc = device_settle(want, e);
    if (rc != 0) return rc;
    want->model = strdup(path ? path : want->model);
    want->draft = strdup(draft ? draft : want->draft);
    if (want->model && want->draft) return 0;
    free(want->model);
    free(want->draft);
    return error_set(e, ERR_MEMORY, "no memory to load a model");
}

static int check_load(const struct server *server, struct error *e) {
    if (server->state == SERVER_UNLOADED) return 0;
    if (server->state == SERVER_UNLOADING)
        return error_set(e, ERR_CONFLICT, "%s is being unloaded: load when it is gone",
                         server->config->model);
    return error_set(e, ERR_CONFLICT, "%s is %s: unload it first (model.unload)", server->config->model,
                     server->state == SERVER_READY ? "loaded" : "being loaded");
}

void handle_model_load(struct call *call) {
    struct daemon_config want;
    struct error e;
    int rc = check_load(call->server, &e);
    if (rc == 0) rc = read_settings(call, &want, &e);
    if (rc != 0) {
        call_fail(call, &e);
        return;
    }
    wait_for_change(call);
    loading_start(call->server, &want);
}
