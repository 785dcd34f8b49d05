/* One JSON-RPC call: request out, notifications and the response in, and how it may end early. */
#include "internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How long a call that was cancelled waits for what the daemon has. */
enum { GRACE_MS = 2000 };

enum call_state { CALL_RUNNING, CALL_CANCELLED, CALL_TIMED_OUT };

struct call {
    struct tpd_client *client;
    const char *method;
    int64_t id, deadline_ms;
    enum call_state state;
    tpd_notify_fn *notify; /* NULL once nobody wants more */
    void *user;
    json_t *result;
    bool answered;
};

static char *request_text(const struct call *call, json_t *params, size_t *size) {
    json_t *request = json_pack("{s:s, s:I, s:s}", "jsonrpc", "2.0", "id", (json_int_t)call->id,
                                "method", call->method);
    if (request && params) json_object_set(request, "params", params);
    char *text = request ? json_dumps(request, JSON_COMPACT) : NULL;
    json_decref(request);
    if (!text) return NULL;
    *size = strlen(text);
    text[(*size)++] = '\n'; /* in place of the terminating NUL */
    return text;
}

static int ended_early(const struct call *call, struct tpd_error *error) {
    if (call->state == CALL_TIMED_OUT)
        return client_fail(error, FAIL_DEADLINE, "%s: the deadline of %.1f s passed", call->method,
                           (double)call->client->timeout_ms / 1000);
    return client_fail(error, FAIL_CANCELLED, "%s: interrupted", call->method);
}

/* Asks the daemon to end the call and allows it a moment. A cancel line is short, and when the
 * socket has no room even for it the daemon is not reading: then closing is what tells it. */
static int ask_to_end(struct call *call, enum call_state why, struct tpd_error *error) {
    if (call->state != CALL_RUNNING) return ended_early(call, error);
    char line[128];
    int n = snprintf(
        line, sizeof line,
        "{\"jsonrpc\":\"2.0\",\"method\":\"cancel\",\"params\":{\"id\":%" PRId64 "}}\n", call->id);
    size_t sent = 0;
    call->state = why;
    call->deadline_ms = client_now_ms() + GRACE_MS;
    int rc = client_send(call->client, line, (size_t)n, &sent, error);
    return rc == 1 ? 0 : rc == 0 ? ended_early(call, error) : -1;
}

/* Acts on how a wait ended: 0 when the call goes on, be it in its grace time. */
static int heed(struct call *call, enum wait_result wait, struct tpd_error *error) {
    switch (wait) {
    case WAIT_READY: return 0;
    case WAIT_CANCEL: return ask_to_end(call, CALL_CANCELLED, error);
    case WAIT_DEADLINE: return ask_to_end(call, CALL_TIMED_OUT, error);
    case WAIT_FAILED: break;
    }
    return client_lost(call->client, error, strerror(errno));
}

static bool is_ours(const struct call *call, const json_t *id) {
    return json_is_integer(id) && json_integer_value(id) == call->id;
}

static int take_notification(struct call *call, const char *method, const json_t *params,
                             struct tpd_error *error) {
    const json_t *id = json_object_get(params, "id");
    if (!call->notify || (id && !is_ours(call, id))) return 0;
    if (call->notify(call->user, method, params) == 0) return 0;
    call->notify = NULL;
    return call->state == CALL_RUNNING ? ask_to_end(call, CALL_CANCELLED, error) : 0;
}

/* An answer to an earlier call that was given up may still come: it is passed over. An error
 * without an id is about a line of ours that the daemon could not read. */
static int take_response(struct call *call, json_t *message, struct tpd_error *error) {
    const json_t *id = json_object_get(message, "id");
    const json_t *rpc_error = json_object_get(message, "error");
    json_t *result = json_object_get(message, "result");
    if (!is_ours(call, id) && !(rpc_error && (!id || json_is_null(id)))) return 0;
    if (json_is_object(rpc_error)) {
        if (call->state != CALL_RUNNING) return ended_early(call, error);
        return client_fail_rpc(error, rpc_error);
    }
    if (!result)
        return client_lost(call->client, error, "the daemon's answer has no result and no error");
    call->result = json_incref(result);
    call->answered = true;
    return 0;
}

static int take_message(struct call *call, const char *line, size_t size, struct tpd_error *error) {
    json_error_t why;
    json_t *message = json_loadb(line, size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
    if (!json_is_object(message)) {
        json_decref(message);
        return client_lost(call->client, error, "the daemon sent a line that is not a JSON object");
    }
    const char *method = json_string_value(json_object_get(message, "method"));
    int rc = method ? take_notification(call, method, json_object_get(message, "params"), error)
                    : take_response(call, message, error);
    json_decref(message);
    return rc;
}

/* A daemon that refuses a request unread (too long, not permitted) says why and closes; its word
 * is worth more than the broken pipe that sending met. */
static int explain_refusal(struct call *call, struct tpd_error *error) {
    struct tpd_error why = {0};
    const char *line;
    size_t size;
    while (call->client->fd >= 0 && client_take_line(call->client, &line, &size, &why) == 1) {
        if (take_message(call, line, size, &why) == 0) continue;
        if (error) {
            tpd_error_clear(error);
            *error = why;
            why.data = NULL;
        }
        break;
    }
    client_break(call->client);
    tpd_error_clear(&why);
    return -1;
}

static int send_request(struct call *call, json_t *params, struct tpd_error *error) {
    size_t size = 0, sent = 0;
    char *text = request_text(call, params, &size);
    if (!text)
        return client_fail(error, FAIL_USAGE, "%s: the parameters cannot be written as JSON",
                           call->method);
    int rc;
    while ((rc = client_send(call->client, text, size, &sent, error)) == 0) {
        enum wait_result wait = client_wait(call->client, POLLOUT, call->deadline_ms);
        if (wait == WAIT_READY) continue;
        /* Half a request cannot be cancelled by a line of its own: only closing ends it. */
        client_break(call->client);
        call->state = wait == WAIT_DEADLINE ? CALL_TIMED_OUT : CALL_CANCELLED;
        rc = ended_early(call, error);
        break;
    }
    free(text);
    if (rc == -1 && call->client->fd >= 0) return explain_refusal(call, error);
    return rc == 1 ? 0 : rc;
}

static int receive_answer(struct call *call, struct tpd_error *error) {
    while (!call->answered) {
        const char *line;
        size_t size;
        int rc = client_take_line(call->client, &line, &size, error);
        if (rc == 1) /* even a daemon that never stops sending can be cancelled */
            rc = take_message(call, line, size, error) ||
                 heed(call, client_look(call->client, call->deadline_ms), error);
        else if (rc == 0)
            rc = heed(call, client_wait(call->client, POLLIN, call->deadline_ms), error);
        if (rc != 0) return -1;
    }
    return 0;
}

int tpd_stream(struct tpd_client *client, const char *method, json_t *params, tpd_notify_fn *notify,
               void *user, json_t **result, struct tpd_error *error) {
    if (result) *result = NULL;
    tpd_error_clear(error);
    if (client->fd < 0)
        return client_fail(error, FAIL_IO, "%s: the connection is closed", client->path);
    struct call call = {
        .client = client,
        .method = method,
        .id = ++client->next_id,
        .deadline_ms = client->timeout_ms > 0 ? client_now_ms() + client->timeout_ms : 0,
        .notify = notify,
        .user = user,
    };
    int rc = send_request(&call, params, error);
    if (rc == 0) rc = receive_answer(&call, error);
    if (rc == 0 && call.state != CALL_RUNNING) rc = ended_early(&call, error);
    if (result && (rc == 0 || call.state != CALL_RUNNING)) *result = call.result;
    else json_decref(call.result);
    return rc;
}

int tpd_call(struct tpd_client *client, const char *method, json_t *params, json_t **result,
             struct tpd_error *error) {
    return tpd_stream(client, method, params, NULL, NULL, result, error);
}
