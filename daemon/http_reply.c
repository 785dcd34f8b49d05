/* How calls that came by HTTP are answered: a head and a body, or a stream of events. */
#include "base/log.h"
#include "daemon/http.h"
#include "daemon/server.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEAD_BYTES = 1024 };

static const char *reason_of(int status) {
    switch (status) {
#define REASON(number, name, text)                                                                 \
    case number: return #text;
        HTTP_STATUS_MAP(REASON)
#undef REASON
    case 499: return "Client Closed Request";
    default: return "Unknown";
    }
}

struct http *http_of(const struct call *call) {
    return call->conn ? call->conn->speech : NULL;
}

/* head and body become one message, so that a small answer is one packet. */
static void send_parts(struct conn *conn, const char *head, size_t head_size, const char *body,
                       size_t size) {
    char *data = malloc(head_size + size);
    if (!data) {
        conn_close(conn, "no memory for an answer");
        return;
    }
    memcpy(data, head, head_size);
    if (size > 0) memcpy(data + head_size, body, size);
    conn_send(conn, data, head_size + size);
}

/* The answer is whole: the next request may come, or the connection ends. */
static void answered(struct conn *conn) {
    struct http *http = conn->speech;
    http->answering = http->streaming = false;
    if (!http->keep_alive && !conn->closing) conn_finish(conn);
}

static void count(struct conn *conn, int status) {
    struct metrics *m = &conn->server->metrics;
    m->http_requests[status / 100 < 6 ? status / 100 : 5]++;
    log_debug("connection %llu: HTTP %d", (unsigned long long)conn->number, status);
}

void http_reply(struct conn *conn, int status, const char *extra_headers, const char *content_type,
                const char *body, size_t size) {
    struct http *http = conn->speech;
    char head[HEAD_BYTES];
    int n = snprintf(head, sizeof head,
                     "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n%s%s\r\n",
                     status, reason_of(status), content_type, size, extra_headers,
                     http->keep_alive ? "" : "Connection: close\r\n");
    count(conn, status);
    send_parts(conn, head, (size_t)n, body, http->head_only ? 0 : size);
    answered(conn);
}

/* {"error": {message, type, param, code}}, as OpenAI has it; the notes come beside. */
static json_t *error_body(const struct error *e) {
    const struct error_class *class = error_class(e->kind);
    json_t *error = json_pack("{s:s, s:s, s:n, s:s}", "message", e->message, "type",
                              class->openai_type, "param", "code", class->name);
    for (int i = 0; error && i < e->n_notes; i++) {
        const struct error_note *note = &e->notes[i];
        json_object_set_new(error, strcmp(note->key, "field") == 0 ? "param" : note->key,
                            note->is_text ? json_string(note->text) : json_integer(note->number));
    }
    return json_pack("{s:o}", "error", error);
}

static void extra_headers_of(const struct error *e, char *out, size_t size) {
    out[0] = '\0';
    for (int i = 0; i < e->n_notes; i++) {
        if (strcmp(e->notes[i].key, "retry_after_s") == 0)
            snprintf(out, size, "Retry-After: %lld\r\n", (long long)e->notes[i].number);
        if (strcmp(e->notes[i].key, "allow") == 0)
            snprintf(out, size, "Allow: %s\r\n", e->notes[i].text);
    }
    if (e->kind == ERR_NO_KEY) snprintf(out, size, "WWW-Authenticate: Bearer\r\n");
}

void http_reply_error(struct conn *conn, const struct error *e) {
    char extra[300];
    json_t *body = error_body(e);
    char *text = body ? json_dumps(body, JSON_COMPACT) : NULL;
    json_decref(body);
    extra_headers_of(e, extra, sizeof extra);
    if (text)
        http_reply(conn, error_class(e->kind)->http_status, extra, "application/json", text,
                   strlen(text));
    else conn_close(conn, "no memory for an answer");
    free(text);
}

/* --- streams of events --- */

static void begin_stream(struct conn *conn) {
    struct http *http = conn->speech;
    char head[HEAD_BYTES];
    int n = snprintf(head, sizeof head,
                     "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                     "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n%s%s\r\n",
                     http->chunked ? "Transfer-Encoding: chunked\r\n" : "",
                     http->keep_alive ? "" : "Connection: close\r\n");
    count(conn, 200);
    http->streaming = true;
    send_parts(conn, head, (size_t)n, NULL, 0);
}

/* One event, and with `last` the end of the body. */
static void send_event(struct conn *conn, const char *data, size_t size, bool last) {
    const struct http *http = conn->speech;
    char *message = NULL;
    size_t n;
    FILE *out = open_memstream(&message, &n);
    if (!out) {
        conn_close(conn, "no memory for an answer");
        return;
    }
    if (http->chunked) fprintf(out, "%zx\r\n", strlen("data: ") + size + strlen("\n\n"));
    fputs("data: ", out);
    fwrite(data, 1, size, out);
    fputs("\n\n", out);
    if (http->chunked) fputs("\r\n", out);
    if (http->chunked && last) fputs("0\r\n\r\n", out);
    bool failed = ferror(out) != 0;
    if (fclose(out) != 0 || failed) {
        free(message);
        conn_close(conn, "no memory for an answer");
        return;
    }
    conn_send(conn, message, n);
}

static void end_stream(struct conn *conn) {
    if (!conn->closing) send_event(conn, "[DONE]", strlen("[DONE]"), true);
    if (!conn->closing) answered(conn);
}

void http_send_event(struct call *call, struct json_out *out) {
    struct http *http = http_of(call);
    if (http && !http->streaming) begin_stream(call->conn);
    if (call->conn && call->conn->closing) http = NULL;
    if (http && out->failed) conn_close(call->conn, "no memory for an answer");
    else if (http) send_event(call->conn, out->data, out->size, false);
    json_out_free(out);
}

/* --- the dialect --- */

static void begin_result(const struct call *call, struct json_out *out) {
    (void)call;
    (void)out;
}

/* Of a stream the result is its last event, if there is anything in it. */
static void send_result(struct call *call, struct json_out *out) {
    struct conn *conn = call->conn;
    struct http *http = conn->speech;
    if (http->streaming) {
        if (out->size > 0) send_event(conn, out->data, out->size, false);
        end_stream(conn);
    } else http_reply(conn, http->status_out, "", http->content_type_out, out->data, out->size);
    json_out_free(out);
}

static void send_failure(struct call *call, const struct error *e) {
    struct conn *conn = call->conn;
    struct http *http = conn->speech;
    if (!http->streaming) {
        http_reply_error(conn, e);
        return;
    }
    json_t *body = error_body(e);
    char *text = body ? json_dumps(body, JSON_COMPACT) : NULL;
    json_decref(body);
    if (text) send_event(conn, text, strlen(text), false);
    else conn_close(conn, "no memory for an answer");
    free(text);
    end_stream(conn);
}

const struct dialect http_dialect = {
    .begin = begin_result, .result = send_result, .fail = send_failure};
