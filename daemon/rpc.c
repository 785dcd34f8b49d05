#include "daemon/rpc.h"

#include "base/json.h"
#include "base/log.h"
#include "base/words.h"
#include "daemon/methods.h"
#include "daemon/server.h"

#include <string.h>

enum {
    MAX_ID = 256, /* bytes of a string id: it comes back with every notification */
    MAX_METHOD = 64
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

static void begin_result(const struct call *call, struct json_out *out) {
    begin_message(out);
    json_out_key(out, "id");
    if (call->id) json_out_json(out, call->id);
    else json_out_null(out);
    json_out_key(out, "result");
}

static void send_result(struct call *call, struct json_out *out) {
    if (call->id) send_message(call->conn, out);
    else json_out_free(out);
}

static void send_failure(struct call *call, const struct error *e) {
    if (call->id) send_error(call->conn, call->id, e);
}

static const struct dialect dialect = {
    .begin = begin_result, .result = send_result, .fail = send_failure};

void rpc_begin_notify(struct json_out *out, const char *method) {
    begin_message(out);
    json_out_key(out, "method");
    json_out_string(out, method);
    json_out_key(out, "params");
}

void rpc_end_notify(struct call *call, struct json_out *out) {
    if (call->conn && call->id) send_message(call->conn, out);
    else json_out_free(out);
}

struct call *rpc_find(const struct conn *conn, const json_t *id) {
    for (struct call *call = conn->calls; call; call = call->next)
        if (call->id && json_equal(call->id, id)) return call;
    return NULL;
}

/* --- a line becomes a call --- */

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

static int dispatch(struct conn *conn, json_t *message, json_t *id, struct message_cost cost,
                    struct error *e) {
    const struct method *method;
    int rc = find_method(json_word(json_object_get(message, "method")), &method, e);
    if (rc != 0) return rc;
    if (!id && !(method->flags & METHOD_NOTIFIABLE)) return 0; /* nobody would see the answer */
    return call_start(conn, &dialect, method, id, json_object_get(message, "params"), cost, e);
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
    json_t *message = message_weigh(line, size, &cost, &e) == 0 ? json_read(line, size, &e) : NULL;
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

static void refuse_long(struct conn *conn) {
    struct error e;
    int64_t limit = conn->server->config->max_message;
    error_set(&e, ERR_INVALID_REQUEST, "the message is longer than %lld bytes (max_message)",
              (long long)limit);
    error_note_number(&e, "limit", limit);
    rpc_refuse(conn, &e);
    if (!conn->closing) conn_finish(conn);
}

/* Also takes what a client that has ended its side left without a line end. */
static void take_lines(struct conn *conn) {
    char *line;
    size_t size;
    while (conn_may_take(conn)) {
        enum line_result result = line_buffer_next(&conn->in, &line, &size);
        if (result == LINE_NONE && conn->ended && line_buffer_waiting(&conn->in) > 0) {
            size = line_buffer_rest(&conn->in, &line);
            result = LINE_WHOLE;
        }
        if (result == LINE_NONE) break;
        if (result == LINE_WHOLE) on_line(conn, line, size);
        else refuse_long(conn);
    }
}

const struct language rpc_language = {
    .name = "json-rpc", .take = take_lines, .refuse = rpc_refuse};
