#include "daemon/call.h"

#include "base/json.h"
#include "daemon/methods.h"
#include "daemon/server.h"
#include "daemon/unloading.h"

#include <stdlib.h>

enum {
    MAX_VALUES = 1 << 20,     /* values in a message: parsed, each takes many times its text */
    MAX_CONTAINERS = 1 << 16, /* arrays and objects, which take the most */
    VALUE_BYTES = 64,         /* what one takes, and what a container takes beside */
    CONTAINER_BYTES = 320,
    PARAM_SHARE = 256 << 20 /* bytes that the parameters of all live requests may take */
};

bool call_needs_model(const struct call *call) { return call->method->flags & METHOD_NEEDS_MODEL; }

static struct call *call_new(struct conn *conn, const struct dialect *dialect,
                             const struct method *method, json_t *id, json_t *params,
                             struct message_cost cost) {
    struct call *call = calloc(1, sizeof *call);
    if (!call) return NULL;
    call->server = conn->server;
    call->conn = conn;
    call->dialect = dialect;
    call->method = method;
    call->id = json_incref(id);
    call->params = json_incref(params);
    call->bytes = cost.bytes;
    call->memory = cost.memory;
    call->next = conn->calls;
    if (call->next) call->next->prev = call;
    conn->calls = call;
    conn->n_calls++;
    conn->busy_bytes += call->bytes;
    conn->server->param_bytes += call->memory;
    if (call_needs_model(call)) call->server->n_model_calls++;
    server_call_begins(call->server);
    return call;
}

void call_drop_params(struct call *call) {
    if (call->conn) call->conn->busy_bytes -= call->bytes;
    call->server->param_bytes -= call->memory;
    call->bytes = call->memory = 0;
    json_decref(call->params);
    call->params = NULL;
}

static void call_unlink(struct call *call) {
    struct conn *conn = call->conn;
    if (!conn) return;
    if (call->prev) call->prev->next = call->next;
    else conn->calls = call->next;
    if (call->next) call->next->prev = call->prev;
    conn->n_calls--;
    conn->busy_bytes -= call->bytes;
    call->prev = call->next = NULL;
    call->conn = NULL;
}

static void call_free(struct call *call) {
    struct server *server = call->server;
    struct conn *conn = call->conn;
    call_drop_params(call);
    call_unlink(call);
    json_decref(call->id);
    if (call_needs_model(call)) {
        server->n_model_calls--;
        unloading_look(server);
    }
    free(call);
    if (conn) conn_continue(conn);
    server_call_ends(server);
}

void call_begin_result(const struct call *call, struct json_out *out) {
    *out = (struct json_out){0};
    call->dialect->begin(call, out);
}

void call_end_result(struct call *call, struct json_out *out) {
    if (out->failed) {
        struct error e;
        error_set(&e, ERR_MEMORY, "no memory for the answer");
        json_out_free(out);
        call_fail(call, &e);
        return;
    }
    if (call->conn) call->dialect->result(call, out);
    else json_out_free(out);
    call_free(call);
}

void call_result(struct call *call, json_t *result) {
    struct json_out out;
    if (call->shape && result) result = call->shape(call, result);
    call_begin_result(call, &out);
    json_out_json(&out, result);
    json_decref(result);
    call_end_result(call, &out);
}

void call_fail(struct call *call, const struct error *e) {
    if (call->conn) call->dialect->fail(call, e);
    call_free(call);
}

static void on_thread_work(uv_work_t *work) {
    struct call *call = work->data;
    call->in_thread(call);
}

static void on_thread_done(uv_work_t *work, int status) {
    (void)status;
    struct call *call = work->data;
    call->afterwards(call);
}

void call_in_thread(struct call *call, void (*in_thread)(struct call *),
                    void (*afterwards)(struct call *)) {
    call->in_thread = in_thread;
    call->afterwards = afterwards;
    call->thread_work.data = call;
    uv_queue_work(&call->server->loop, &call->thread_work, on_thread_work, on_thread_done);
}

struct writing {
    call_write_fn *write;
    struct json_out out;
    int rc;
    struct error error;
};

static void write_in_thread(struct call *call) {
    struct writing *w = call->state;
    call_begin_result(call, &w->out);
    w->rc = w->write(call, &w->out, &w->error);
}

static void end_writing(struct call *call) {
    struct writing *w = call->state;
    call->state = NULL;
    if (w->rc == 0) call_end_result(call, &w->out);
    else {
        json_out_free(&w->out);
        call_fail(call, &w->error);
    }
    free(w);
}

void call_write(struct call *call, call_write_fn *write) {
    struct error e;
    struct writing *w = calloc(1, sizeof *w);
    if (call->cancelled || !w) {
        if (call->cancelled) error_set(&e, ERR_CANCELLED, "the request was cancelled");
        else error_set(&e, ERR_MEMORY, "no memory for the request");
        free(w);
        call_fail(call, &e);
        return;
    }
    w->write = write;
    call->state = w;
    call_in_thread(call, write_in_thread, end_writing);
}

/* --- cancel, hold, park --- */

static void park(struct call *call) {
    struct call **end = &call->server->parked;
    while (*end) end = &(*end)->next_parked;
    *end = call;
}

int64_t calls_count_parked(const struct server *server) {
    int64_t n = 0;
    for (const struct call *call = server->parked; call; call = call->next_parked) n++;
    return n;
}

/* False when it was not parked. */
static bool unpark(struct call *call) {
    for (struct call **at = &call->server->parked; *at; at = &(*at)->next_parked)
        if (*at == call) {
            *at = call->next_parked;
            call->next_parked = NULL;
            return true;
        }
    return false;
}

void calls_refuse_parked(struct server *server, const struct error *e) {
    while (server->parked) {
        struct call *call = server->parked;
        server->parked = call->next_parked;
        call->next_parked = NULL;
        call_fail(call, e);
    }
}

void calls_unpark(struct server *server) {
    struct call *call = server->parked;
    server->parked = NULL;
    while (call) {
        struct call *next = call->next_parked;
        call->next_parked = NULL;
        call->method->handle(call);
        call = next;
    }
}

void call_cancel(struct call *call) {
    call->cancelled = true;
    if (unpark(call)) call->method->handle(call);
    else if (call->work && call->work->cancel) call->work->cancel(call);
}

void calls_abandon(struct conn *conn) {
    while (conn->calls) {
        struct call *call = conn->calls;
        call_unlink(call);
        call_cancel(call);
    }
}

void calls_hold(struct conn *conn, bool hold) {
    for (struct call *call = conn->calls; call; call = call->next)
        if (call->work && call->work->hold) call->work->hold(call, hold);
}

/* --- what is asked for becomes a call --- */

/* Brackets and commas inside strings do not count. */
int message_weigh(const char *text, size_t size, struct message_cost *cost, struct error *e) {
    size_t values = 0, containers = 0;
    *cost = (struct message_cost){size, size};
    int depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < size; i++) {
        char c = text[i];
        if (in_string) {
            if (c == '\\') i++;
            else if (c == '"') in_string = false;
        } else if (c == '"') in_string = true;
        else if (c == ',' || c == ':') values++;
        else if (c == '}' || c == ']') depth--;
        else if (c == '{' || c == '[') {
            containers++;
            if (++depth > JSON_MAX_DEPTH) return 0; /* the parser says so, and where */
        }
    }
    cost->memory += values * VALUE_BYTES + containers * CONTAINER_BYTES;
    if (values <= MAX_VALUES && containers <= MAX_CONTAINERS) return 0;
    return error_set(e, ERR_INVALID_REQUEST,
                     "the message holds too much: at most %d values and %d arrays and objects",
                     MAX_VALUES, MAX_CONTAINERS);
}

static int check_params(const struct method *method, const json_t *params, struct error *e) {
    if (params && !json_is_object(params))
        return schema_refuse(e, "params", "an object of named parameters", params);
    return method->params ? schema_check(method->params, params, e) : 0;
}

static int check_allowed(const struct conn *conn, const struct method *method, struct error *e) {
    const struct server *server = conn->server;
    const struct daemon_config *config = server->config;
    if ((method->flags & METHOD_ADMIN) &&
        !access_allows(&conn->peer, &config->admin_uid, &config->admin_gid))
        return error_set(e, ERR_NOT_PERMITTED, "%s is for the users of admin_uid and admin_gid",
                         method->name);
    if ((method->flags & METHOD_WORK) && server_state_ends(server->state))
        return error_set(e, ERR_SHUTTING_DOWN, "the daemon is shutting down and takes no new work");
    if ((method->flags & METHOD_NEEDS_MODEL) && server_state_lacks_model(server->state))
        return error_set(e, ERR_NO_MODEL, "no model is loaded%s: model.load (tpctl model load) loads one",
                         server->state == SERVER_UNLOADING ? " any more" : "");
    if (conn->n_calls < config->max_requests || !(method->flags & METHOD_WORK)) return 0;
    error_set(e, ERR_OVERLOADED,
              "this connection has %lld live requests, the most it may have: wait for answers",
              (long long)conn->n_calls);
    error_note_number(e, "retry_after_s", 1);
    return -(int)ERR_OVERLOADED;
}

/* Requests that wait for the model are bounded as those that wait for a slot. */
static int check_room_to_park(const struct server *server, struct error *e) {
    int64_t n = calls_count_parked(server);
    if (n < server->config->max_queue) return 0;
    error_set(e, ERR_OVERLOADED, "the model is still loading and %lld requests wait for it",
              (long long)n);
    error_note_number(e, "retry_after_s", 1);
    return -(int)ERR_OVERLOADED;
}

/* Clients together may not make the daemon hold many large trees at once; one alone always may. */
static int check_share(const struct server *server, struct message_cost cost, struct error *e) {
    if (server->param_bytes == 0 || server->param_bytes + cost.memory <= PARAM_SHARE) return 0;
    error_set(e, ERR_OVERLOADED, "live requests hold too many large parameters: try again later");
    error_note_number(e, "retry_after_s", 1);
    return -(int)ERR_OVERLOADED;
}

int call_start(struct conn *conn, const struct dialect *dialect, const struct method *method,
               json_t *id, json_t *params, struct message_cost cost, struct error *e) {
    int rc = check_allowed(conn, method, e);
    if (rc == 0) rc = check_params(method, params, e);
    if (rc == 0) rc = check_share(conn->server, cost, e);
    bool loading = rc == 0 && (method->flags & METHOD_NEEDS_MODEL) && !conn->server->engine;
    if (loading) rc = check_room_to_park(conn->server, e);
    if (rc != 0) return rc;
    struct call *call = call_new(conn, dialect, method, id, params, cost);
    if (!call) return error_set(e, ERR_MEMORY, "no memory for the request");
    if (loading) park(call);
    else method->handle(call);
    return 0;
}
