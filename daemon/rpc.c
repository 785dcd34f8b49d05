#include "daemon/rpc.h"

#include "base/json.h"
#include "base/log.h"
#include "daemon/methods.h"
#include "daemon/server.h"
#include "base/words.h"

#include <stdlib.h>
#include <string.h>

enum {
    MAX_ID = 256,             /* bytes of a string id: it comes back with every notification */
    MAX_VALUES = 1 << 20,     /* values in a message: parsed, each takes many times its text */
    MAX_CONTAINERS = 1 << 16, /* arrays and objects, which take the most */
    VALUE_BYTES = 64,         /* what one takes, and what a container takes beside */
    CONTAINER_BYTES = 320,
    PARAM_SHARE = 256 << 20, /* bytes that the parameters of all live requests may take */
    MAX_METHOD = 64
};

/* Bytes of a message, and about what it takes as a tree. */
struct message_cost {
    size_t bytes, memory;
};

/* --- answers --- */

/* Ends a message that was written into out, and sends it. */
static void send_message(struct conn *conn, struct json_out *out) {
    static const char no_memory[] = "{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32004,"
                                    "\"message\":\"no memory for the "
                                    "answer\",\"data\":{\"kind\":\"out_of_memory\"}}}\n";
    json_out_close(out, '}');
    json_out_raw(out, "\n", 1);
    if (out->failed) {
        json_out_free(out);
        json_out_raw(out, no_memory, sizeof no_memory - 1);
    }
    if (out->failed) conn_close(conn, "no memory for an answer");
    else conn_send(conn, out->data, out->size);
    *out = (struct json_out){0};
}

static void begin_message(struct json_out *out) {
    *out = (struct json_out){0};
    json_out_open(out, '{');
    json_out_key(out, "jsonrpc");
    json_out_string(out, "2.0");
}

/* {code, message, data: {kind, …}}; NULL when there is no memory. */
static json_t *error_json(const struct error *e) {
    const struct error_class *class = error_class(e->kind);
    json_t *data = json_pack("{s:s}", "kind", class->name);
    for (int i = 0; i < e->n_notes; i++) {
        const struct error_note *note = &e->notes[i];
        json_object_set_new(data, note->key,
                            note->is_text ? json_string(note->text) : json_integer(note->number));
    }
    return json_pack("{s:i, s:s, s:o}", "code", class->rpc_code, "message", e->message, "data",
                     data);
}

/* id may be NULL: then null. */
static void send_error(struct conn *conn, const json_t *id, const struct error *e) {
    struct json_out out;
    json_t *error = error_json(e);
    conn->server->metrics.rpc_errors++;
    log_debug("connection %llu: %s: %s", (unsigned long long)conn->number,
              error_class(e->kind)->name, e->message);
    begin_message(&out);
    json_out_key(&out, "id");
    if (id) json_out_json(&out, id);
    else json_out_null(&out);
    json_out_key(&out, "error");
    json_out_json(&out, error);
    json_decref(error);
    send_message(conn, &out);
}

void rpc_refuse(struct conn *conn, const struct error *e) {
    send_error(conn, NULL, e);
}

/* --- the life of a call --- */

static struct call *call_new(struct conn *conn, const struct method *method, json_t *id,
                             json_t *params, struct message_cost cost) {
    struct call *call = calloc(1, sizeof *call);
    if (!call) return NULL;
    call->server = conn->server;
    call->conn = conn;
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
    free(call);
    if (conn) conn_continue(conn);
    server_call_ends(server);
}

void call_begin_result(const struct call *call, struct json_out *out) {
    begin_message(out);
    json_out_key(out, "id");
    if (call->id) json_out_json(out, call->id);
    else json_out_null(out);
    json_out_key(out, "result");
}

void call_end_result(struct call *call, struct json_out *out) {
    if (out->failed) {
        struct error e;
        error_set(&e, ERR_MEMORY, "no memory for the answer");
        json_out_free(out);
        call_fail(call, &e);
        return;
    }
    if (call->conn && call->id) send_message(call->conn, out);
    else json_out_free(out);
    call_free(call);
}

void call_result(struct call *call, json_t *result) {
    struct json_out out;
    call_begin_result(call, &out);
    json_out_json(&out, result);
    json_decref(result);
    call_end_result(call, &out);
}

void call_fail(struct call *call, const struct error *e) {
    if (call->conn && call->id) send_error(call->conn, call->id, e);
    call_free(call);
}

void call_begin_notify(struct json_out *out, const char *method) {
    begin_message(out);
    json_out_key(out, "method");
    json_out_string(out, method);
    json_out_key(out, "params");
}

void call_end_notify(struct call *call, struct json_out *out) {
    if (call->conn && call->id) send_message(call->conn, out);
    else json_out_free(out);
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

/* --- cancel, hold, park --- */

struct call *rpc_find(const struct conn *conn, const json_t *id) {
    for (struct call *call = conn->calls; call; call = call->next)
        if (call->id && json_equal(call->id, id)) return call;
    return NULL;
}

static void park(struct call *call) {
    struct call **end = &call->server->parked;
    while (*end) end = &(*end)->next_parked;
    *end = call;
}

int64_t rpc_count_parked(const struct server *server) {
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

void rpc_unpark(struct server *server) {
    struct call *call = server->parked;
    server->parked = NULL;
    while (call) {
        struct call *next = call->next_parked;
        call->next_parked = NULL;
        call->method->handle(call);
        call = next;
    }
}

void rpc_cancel(struct call *call) {
    call->cancelled = true;
    if (unpark(call)) call->method->handle(call);
    else if (call->work && call->work->cancel) call->work->cancel(call);
}

void rpc_abandon(struct conn *conn) {
    while (conn->calls) {
        struct call *call = conn->calls;
        call_unlink(call);
        rpc_cancel(call);
    }
}

void rpc_hold(struct conn *conn, bool hold) {
    for (struct call *call = conn->calls; call; call = call->next)
        if (call->work && call->work->hold) call->work->hold(call, hold);
}

/* --- a line becomes a call --- */

/* Counts what a parser would have to allocate, without allocating. Brackets and commas inside
 * strings do not count. */
static int check_weight(const char *text, size_t size, struct message_cost *cost, struct error *e) {
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

static bool is_id(const json_t *id) {
    return json_is_integer(id) || (json_is_string(id) && json_string_length(id) <= MAX_ID);
}

/* Is it a request at all? *id is borrowed, NULL when there is none that may be used. */
static int check_envelope(const json_t *message, json_t **id, struct error *e) {
    *id = NULL;
    if (json_is_array(message))
        return error_set(e, ERR_INVALID_REQUEST,
                         "batch arrays are not taken: send one message a line");
    if (!json_is_object(message))
        return error_set(e, ERR_INVALID_REQUEST, "a message must be a JSON object");
    json_t *given = json_object_get(message, "id");
    if (given && !is_id(given))
        return error_set(e, ERR_INVALID_REQUEST,
                         "id must be an integer, or a string of at most %d bytes", MAX_ID);
    *id = given;
    const char *version = json_word(json_object_get(message, "jsonrpc"));
    if (!version || strcmp(version, "2.0") != 0)
        return error_set(e, ERR_INVALID_REQUEST, "jsonrpc must be \"2.0\"");
    if (!json_word(json_object_get(message, "method")))
        return error_set(e, ERR_INVALID_REQUEST, "method must be a string without NUL");
    return 0;
}

/* No answer could be told from that of the live request: so this one names no id. */
static int check_id_free(const struct conn *conn, const json_t *id, struct error *e) {
    if (!id || !rpc_find(conn, id)) return 0;
    error_set(e, ERR_INVALID_REQUEST, "a request with this id is still live on this connection");
    if (json_is_integer(id)) error_note_number(e, "id", json_integer_value(id));
    else error_note(e, "id", json_string_value(id));
    return -(int)ERR_INVALID_REQUEST;
}

static int find_method(const char *name, const struct method **method, struct error *e) {
    *method = method_find(name);
    if (*method) return 0;
    struct suggestion near;
    char hint[96];
    suggest_start(&near, name);
    for (size_t i = 0; i < n_methods; i++) suggest_offer(&near, methods[i].name);
    error_set(e, ERR_METHOD, "no method \"%.*s\"%s", MAX_METHOD, name,
              suggest_text(&near, hint, sizeof hint));
    error_note(e, "method", name);
    return -(int)ERR_METHOD;
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
    if ((method->flags & METHOD_WORK) && server->state == SERVER_DRAINING)
        return error_set(e, ERR_SHUTTING_DOWN, "the daemon is shutting down and takes no new work");
    if (conn->n_calls < config->max_requests || !(method->flags & METHOD_WORK)) return 0;
    error_set(e, ERR_OVERLOADED,
              "this connection has %lld live requests, the most it may have: wait for answers",
              (long long)conn->n_calls);
    error_note_number(e, "retry_after_s", 1);
    return -(int)ERR_OVERLOADED;
}

/* Requests that wait for the model are bounded as those that wait for a slot. */
static int check_room_to_park(const struct server *server, struct error *e) {
    int64_t n = rpc_count_parked(server);
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

static int dispatch(struct conn *conn, json_t *message, json_t *id, struct message_cost cost,
                    struct error *e) {
    const struct method *method;
    json_t *params = json_object_get(message, "params");
    int rc = find_method(json_word(json_object_get(message, "method")), &method, e);
    if (rc == 0) rc = check_allowed(conn, method, e);
    if (rc == 0) rc = check_params(method, params, e);
    if (rc == 0) rc = check_share(conn->server, cost, e);
    bool loading = rc == 0 && (method->flags & METHOD_NEEDS_MODEL) && !conn->server->engine;
    if (loading) rc = check_room_to_park(conn->server, e);
    if (rc != 0) return rc;
    if (!id && !(method->flags & METHOD_NOTIFIABLE)) return 0; /* nobody would see the answer */
    struct call *call = call_new(conn, method, id, params, cost);
    if (!call) return error_set(e, ERR_MEMORY, "no memory for the request");
    if (loading) park(call);
    else method->handle(call);
    return 0;
}

static bool is_blank(const char *line, size_t size) {
    for (size_t i = 0; i < size; i++)
        if (!strchr(" \t\r", line[i]) || line[i] == '\0') return false;
    return true;
}

static void on_line(struct conn *conn, char *line, size_t size) {
    if (is_blank(line, size)) return;
    struct error e;
    conn->server->metrics.rpc_requests++;
    struct message_cost cost;
    json_t *message = check_weight(line, size, &cost, &e) == 0 ? json_read(line, size, &e) : NULL;
    if (!message) {
        rpc_refuse(conn, &e);
        return;
    }
    json_t *id;
    int rc = check_envelope(message, &id, &e);
    if (rc != 0) send_error(conn, id, &e);
    else if (check_id_free(conn, id, &e) != 0) rpc_refuse(conn, &e);
    else if (dispatch(conn, message, id, cost, &e) != 0 && id) send_error(conn, id, &e);
    json_decref(message);
}

static void on_too_long(struct conn *conn) {
    struct error e;
    int64_t limit = conn->server->config->max_message;
    error_set(&e, ERR_INVALID_REQUEST, "the message is longer than %lld bytes (max_message)",
              (long long)limit);
    error_note_number(&e, "limit", limit);
    rpc_refuse(conn, &e);
}

const struct language rpc_language = {.name = "json-rpc", .line = on_line, .too_long = on_too_long};
