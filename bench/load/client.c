/* One request over a connection of its own: HTTP with server-sent events, or a JSON-RPC line with
 * notifications. Both come down to lines that hold JSON. */
#include "load.h"

#include <http_parser.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { READ_SIZE = 1 << 16, LINE_MAX_BYTES = 1 << 20 };

struct client {
    struct client *next, **link; /* among the live ones */
    const struct target *target;
    const struct planned *planned;
    struct results *results;
    union {
        uv_handle_t handle;
        uv_stream_t stream;
        uv_tcp_t tcp;
        uv_pipe_t pipe;
    } io;
    uv_connect_t connect;
    uv_write_t write;
    char *message; /* what is sent */
    size_t message_size;
    http_parser parser;
    char *line;
    size_t line_size;
    double first_ms, last_ms; /* of pieces; 0 = none came */
    int64_t pieces, tokens;   /* tokens as the server counts them at the end */
    bool ended;
};

static struct client *live;
static size_t n_live;

double clock_ms(void) {
    return (double)uv_hrtime() / 1e6;
}

size_t clients_live(void) {
    return n_live;
}

static void on_closed(uv_handle_t *handle) {
    struct client *c = handle->data;
    free(c->message);
    free(c->line);
    free(c);
}

static void leave(struct client *c) {
    c->ended = true;
    *c->link = c->next;
    if (c->next) c->next->link = c->link;
    n_live--;
    uv_close(&c->io.handle, on_closed);
}

static void fail(struct client *c, const char *format, ...) {
    struct results *r = c->results;
    if (c->ended) return;
    if (r->failed++ == 0) {
        va_list args;
        va_start(args, format);
        vsnprintf(r->first_failure, sizeof r->first_failure, format, args);
        va_end(args);
    }
    r->last_end_ms = clock_ms();
    leave(c);
}

static void finish(struct client *c) {
    struct results *r = c->results;
    if (c->ended) return;
    if (c->pieces == 0) {
        fail(c, "an answer without a token");
        return;
    }
    double now = clock_ms();
    r->done++;
    r->prompt_tokens += c->planned->n_prompt;
    r->output_tokens += c->tokens ? c->tokens : c->pieces;
    r->pieces += c->pieces;
    times_add(&r->whole, now - r->start_ms - c->planned->at_s * 1000);
    r->last_end_ms = now;
    leave(c);
}

void clients_abandon(void) {
    while (live) {
        live->results->unfinished++;
        live->results->last_end_ms = clock_ms();
        leave(live);
    }
}

/* --- what comes ------------------------------------------------------------------------------- */

static void on_piece(struct client *c) {
    struct results *r = c->results;
    double now = clock_ms();
    if (c->pieces++ == 0) times_add(&r->first, now - r->start_ms - c->planned->at_s * 1000);
    else times_add(&r->between, now - c->last_ms);
    c->last_ms = now;
}

static void take_usage(struct client *c, const json_t *holder) {
    const json_t *tokens =
        json_object_get(json_object_get(holder, "usage"), "completion_tokens");
    if (json_is_integer(tokens)) c->tokens = json_integer_value(tokens);
}

static void on_error(struct client *c, const json_t *error) {
    const char *message = json_string_value(json_object_get(error, "message"));
    fail(c, "%s", message ? message : "an error without a message");
}

static void on_event(struct client *c, const json_t *event) {
    const json_t *error = json_object_get(event, "error");
    const json_t *choice = json_array_get(json_object_get(event, "choices"), 0);
    if (error) {
        on_error(c, error);
        return;
    }
    if (json_string_length(json_object_get(choice, "text")) > 0) on_piece(c);
    take_usage(c, event);
}

static void on_message(struct client *c, const json_t *message) {
    const json_t *error = json_object_get(message, "error");
    const json_t *result = json_object_get(message, "result");
    if (error) on_error(c, error);
    else if (result) {
        take_usage(c, result);
        finish(c);
    } else if (json_array_size(json_object_get(json_object_get(message, "params"), "tokens")) > 0)
        on_piece(c);
}

static void on_line(struct client *c, const char *line, size_t size) {
    if (c->target->http) {
        if (size < 6 || memcmp(line, "data: ", 6) != 0) return; /* comments, empty lines */
        line += 6;
        size -= 6;
        if (size >= 6 && !memcmp(line, "[DONE]", 6)) {
            finish(c);
            return;
        }
    }
    json_t *value = json_loadb(line, size, 0, NULL);
    if (!value) fail(c, "no JSON: %.*s", (int)(size < 100 ? size : 100), line);
    else if (c->target->http) on_event(c, value);
    else on_message(c, value);
    json_decref(value);
}

/* Bytes of lines, cut anywhere. */
static void take_bytes(struct client *c, const char *data, size_t size) {
    while (size > 0 && !c->ended) {
        const char *end = memchr(data, '\n', size);
        size_t part = end ? (size_t)(end - data) : size;
        if (c->line_size + part > LINE_MAX_BYTES) {
            fail(c, "a line of over %d bytes", LINE_MAX_BYTES);
            return;
        }
        memcpy(c->line + c->line_size, data, part);
        c->line_size += part;
        if (!end) return;
        on_line(c, c->line, c->line_size);
        c->line_size = 0;
        data += part + 1;
        size -= part + 1;
    }
}

static int on_body(http_parser *parser, const char *data, size_t size) {
    struct client *c = parser->data;
    if (c->ended) return 0;
    if (parser->status_code == 200) take_bytes(c, data, size);
    else fail(c, "HTTP %u: %.*s", parser->status_code, (int)(size < 160 ? size : 160), data);
    return 0;
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf) {
    static const http_parser_settings settings = {.on_body = on_body};
    struct client *c = stream->data;
    if (c->ended) return;
    if (n < 0) fail(c, "the connection broke: %s", uv_strerror((int)n));
    else if (!c->target->http) take_bytes(c, buf->base, (size_t)n);
    else if (http_parser_execute(&c->parser, &settings, buf->base, (size_t)n) != (size_t)n &&
             !c->ended)
        fail(c, "no HTTP: %s", http_errno_description(HTTP_PARSER_ERRNO(&c->parser)));
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf) {
    static char room[READ_SIZE]; /* each read is taken before the next begins */
    (void)handle;
    (void)suggested;
    *buf = uv_buf_init(room, sizeof room);
}

/* --- what goes -------------------------------------------------------------------------------- */

static void make_message(struct client *c) {
    const struct target *target = c->target;
    char *body = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&body, &size);
    if (!target->http)
        fputs("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"generate\",\"params\":", out);
    fputs("{\"prompt\":[", out);
    for (int i = 0; i < c->planned->n_prompt; i++)
        fprintf(out, "%s%d", i ? "," : "", plan_id(c->planned, i, target->vocab));
    fprintf(out,
            "],\"max_tokens\":%d,\"temperature\":%g,\"top_p\":%g,\"ignore_eos\":true,\"stream\":true",
            c->planned->n_output, target->temperature, target->top_p);
    if (target->http) fputs(",\"stream_options\":{\"include_usage\":true}", out);
    if (target->http && target->model) fprintf(out, ",\"model\":\"%s\"", target->model);
    fputs(target->http ? "}" : "}}\n", out);
    fclose(out);
    c->message = body;
    c->message_size = size;
    if (!target->http) return;
    char *whole = NULL;
    out = open_memstream(&whole, &c->message_size);
    fprintf(out,
            "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            "Content-Length: %zu\r\n\r\n%s",
            size, body);
    fclose(out);
    free(body);
    c->message = whole;
}

static void on_written(uv_write_t *write, int status) {
    struct client *c = write->data;
    if (status != 0) fail(c, "cannot send: %s", uv_strerror(status));
}

static void on_connected(uv_connect_t *connect, int status) {
    struct client *c = connect->data;
    if (c->ended) return;
    if (status != 0) {
        fail(c, "cannot connect: %s", uv_strerror(status));
        return;
    }
    uv_buf_t buf = uv_buf_init(c->message, (unsigned)c->message_size);
    uv_read_start(&c->io.stream, on_alloc, on_read);
    uv_write(&c->write, &c->io.stream, &buf, 1, on_written);
}

void client_start(uv_loop_t *loop, const struct target *target, const struct planned *planned,
                  struct results *results) {
    struct client *c = calloc(1, sizeof *c);
    if (!c || !(c->line = malloc(LINE_MAX_BYTES))) abort();
    c->target = target;
    c->planned = planned;
    c->results = results;
    c->connect.data = c->write.data = c->parser.data = c;
    c->next = live;
    c->link = &live;
    if (live) live->link = &c->next;
    live = c;
    n_live++;
    results->arrived++;
    http_parser_init(&c->parser, HTTP_RESPONSE);
    make_message(c);
    int rc = 0;
    if (target->socket) {
        uv_pipe_init(loop, &c->io.pipe, 0);
        c->io.handle.data = c;
        uv_pipe_connect(&c->connect, &c->io.pipe, target->socket, on_connected);
    } else {
        uv_tcp_init(loop, &c->io.tcp);
        c->io.handle.data = c;
        uv_tcp_nodelay(&c->io.tcp, 1);
        rc = uv_tcp_connect(&c->connect, &c->io.tcp, (const struct sockaddr *)&target->address,
                            on_connected);
    }
    if (rc != 0) fail(c, "cannot connect: %s", uv_strerror(rc));
}
