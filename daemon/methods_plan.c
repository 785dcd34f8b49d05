/* The method plan. Files are opened and the plan is reckoned on the worker pool. */
#include "daemon/methods.h"
#include "daemon/plan_report.h"
#include "daemon/server.h"
#include "daemon/training.h"

#include <stdlib.h>
#include <string.h>

struct plan_call {
    struct plan_context context;
    bool may_measure;
    struct speed speed; /* of the server; zeros: not known */
    json_t *result;
    int rc;
    struct error error;
};

/* What was measured once holds; measuring must not slow down what is being served. */
static int speed_of(void *arg, struct speed *out, struct error *e) {
    struct plan_call *c = arg;
    int rc = c->speed.bandwidth == 0 && c->may_measure ? speed_measure(&c->speed, e) : 0;
    *out = c->speed;
    return rc;
}

static void in_thread(struct call *call) {
    struct plan_call *c = call->state;
    c->rc = plan_report(&c->result, call->params, &c->context, &c->error);
}

static void afterwards(struct call *call) {
    struct plan_call *c = call->state;
    call->state = NULL;
    call->server->speed = c->speed;
    if (c->rc == 0) call_result(call, c->result);
    else call_fail(call, &c->error);
    free(c);
}

static bool is_idle(const struct server *server) {
    struct engine_stats stats = {0};
    if (server->engine) engine_stats(server->engine, &stats);
    return stats.slots_busy == 0 && stats.queue == 0 && training_tokens_per_s(server) == 0;
}

void handle_plan(struct call *call) {
    const struct server *server = call->server;
    struct plan_call *c = calloc(1, sizeof *c);
    struct error e;
    if (call->cancelled || !c) {
        if (call->cancelled) error_set(&e, ERR_CANCELLED, "the request was cancelled");
        else error_set(&e, ERR_MEMORY, "no memory for the request");
        free(c);
        call_fail(call, &e);
        return;
    }
    c->context = (struct plan_context){.loaded = server->model,
                                       .draft = server->draft,
                                       .tp = (int)server->config->tp,
                                       .draft_tp = (int)server->config->draft_tp,
                                       .memory = (size_t)server->config->memory_limit,
                                       .cores = server->devices.cores.n,
                                       .gpus = server->devices.n_gpus > 0,
                                       .f32_activations = strcmp(server->config->activations, "f32") == 0,
                                       .speed = speed_of,
                                       .arg = c};
    c->speed = server->speed;
    c->may_measure = is_idle(server);
    call->state = c;
    call_in_thread(call, in_thread, afterwards);
}
