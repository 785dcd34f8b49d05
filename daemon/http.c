#include "daemon/http.h"

#include "base/json.h"
#include "base/log.h"
#include "daemon/http_guard.h"
#include "daemon/server.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* --- reading a request (callbacks of http_parser; non-zero ends it: see http->trouble) --- */

static struct http *http_at(struct http_parser *parser) {
    return ((struct conn *)parser->data)->speech;
}

static bool is_type(const struct http *http, const char *type) {
    size_t n = strlen(type);
    const char *text = http->content_type.text;
    return strncasecmp(text, type, n) == 0 && (text[n] == '\0' || strchr("; \t", text[n]));
}

static const char *limit_of(struct http_parser *parser, int64_t *limit) {
    const struct daemon_config *config = ((struct conn *)parser->data)->server->config;
    bool file = is_type(http_at(parser), "multipart/form-data");
    *limit = file ? config->max_upload : config->max_message;
    return file ? "max_upload" : "max_message";
}

static void forget_request(struct http *http) {
    free(http->body);
    http->body = NULL;
    http->body_size = http->body_capacity = http->url_size = 0;
    http->whole = http->in_value = false;
    http->name[0] = '\0';
    struct http_header *headers[] = {&http->authorization, &http->content_type, &http->content_encoding,
                                     &http->origin, &http->host, &http->expect};
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) headers[i]->text[0] = '\0';
}

static int on_begin(struct http_parser *parser) {
    forget_request(http_at(parser));
    return 0;
}

static int on_url(struct http_parser *parser, const char *at, size_t n) {
    struct http *http = http_at(parser);
    if (http->url_size + n >= sizeof http->url)
        return error_set(&http->trouble, ERR_TOO_LARGE, "the request's URL is over %d bytes",
                         HTTP_MAX_URL - 1);
    memcpy(http->url + http->url_size, at, n);
    http->url_size += n;
    http->url[http->url_size] = '\0';
    return 0;
}

static struct http_header *header_of(struct http *http) {
    const struct {
        const char *name;
        struct http_header *at;
    } known[] = {
        {"authorization", &http->authorization}, {"content-type", &http->content_type},
        {"origin", &http->origin},               {"host", &http->host},
        {"expect", &http->expect},               {"content-encoding", &http->content_encoding},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcasecmp(known[i].name, http->name) == 0) return known[i].at;
    return NULL;
}

/* Appends as much as fits: a name or value that is cut is none that we know. */
static void append(char *text, size_t size, const char *at, size_t n) {
    size_t have = strlen(text);
    if (have + n >= size) n = size - 1 - have;
    memcpy(text + have, at, n);
    text[have + n] = '\0';
}

static int on_header_name(struct http_parser *parser, const char *at, size_t n) {
    struct http *http = http_at(parser);
    if (http->in_value) http->name[0] = '\0';
    http->in_value = false;
    append(http->name, sizeof http->name, at, n);
    return 0;
}

static int on_header_value(struct http_parser *parser, const char *at, size_t n) {
    struct http *http = http_at(parser);
    if (!http->in_value) {
        http->value = header_of(http);
        if (http->value) http->value->text[0] = '\0';
    }
    http->in_value = true;
    if (http->value) append(http->value->text, sizeof http->value->text, at, n);
    return 0;
}

static int refuse_body(struct http_parser *parser) {
    struct error *e = &http_at(parser)->trouble;
    int64_t limit;
    const char *name = limit_of(parser, &limit);
    error_set(e, ERR_TOO_LARGE, "the request's body is over %lld bytes (%s)", (long long)limit, name);
    error_note_number(e, "limit", limit);
    return -(int)ERR_TOO_LARGE;
}

static int on_headers(struct http_parser *parser) {
    static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
    struct conn *conn = parser->data;
    struct http *http = conn->speech;
    bool sized = parser->content_length != UINT64_MAX;
    int64_t limit;
    limit_of(parser, &limit);
    if (sized && parser->content_length > (uint64_t)limit) return refuse_body(parser);
    if (strcasecmp(http->expect.text, "100-continue") == 0) {
        char *text = strdup(go_on);
        if (text) conn_send(conn, text, sizeof go_on - 1);
    }
    return 0;
}

static int on_body(struct http_parser *parser, const char *at, size_t n) {
    struct http *http = http_at(parser);
    size_t need = http->body_size + n;
    int64_t limit;
    limit_of(parser, &limit);
    if (need > (size_t)limit) return refuse_body(parser);
    if (need > http->body_capacity) {
        size_t capacity = http->body_capacity ? http->body_capacity * 2 : 4096;
        if (capacity < need) capacity = need;
        char *grown = realloc(http->body, capacity);
        if (!grown) return error_set(&http->trouble, ERR_MEMORY, "no memory for the request");
        http->body = grown;
        http->body_capacity = capacity;
    }
    memcpy(http->body + http->body_size, at, n);
    http->body_size = need;
    return 0;
}

static int on_whole(struct http_parser *parser) {
    http_at(parser)->whole = true;
    http_parser_pause(parser, 1);
    return 0;
}

static const struct http_parser_settings settings = {
    .on_message_begin = on_begin,
    .on_url = on_url,
    .on_header_field = on_header_name,
    .on_header_value = on_header_value,
    .on_headers_complete = on_headers,
    .on_body = on_body,
    .on_message_complete = on_whole,
};

/* --- a request becomes a call --- */

static int read_body(struct http *http, const struct http_route *route, json_t **params,
                     struct message_cost *cost, struct error *e) {
    const char *encoding = http->content_encoding.text;
    *cost = (struct message_cost){http->body_size, http->body_size};
    if (*encoding && strcasecmp(encoding, "identity") != 0)
        return error_set(e, ERR_MEDIA, "the body is encoded as %.40s: send it as it is, without "
                                       "Content-Encoding", encoding);
    if (route->multipart && !is_type(http, "multipart/form-data"))
        return error_set(e, ERR_MEDIA, "%s takes a file: send it as multipart/form-data",
                         route->path);
    if (route->multipart || http->body_size == 0) {
        *params = json_object();
        return *params ? 0 : error_set(e, ERR_MEMORY, "no memory for the request");
    }
    /* A web page can send other types to a local port without asking; this one it cannot. */
    if (!is_type(http, "application/json"))
        return error_set(e, ERR_MEDIA, "the body must be JSON, and Content-Type say so: send "
                                       "\"Content-Type: application/json\"");
    int rc = message_weigh(http->body, http->body_size, cost, e);
    if (rc == 0 && !(*params = json_read(http->body, http->body_size, e))) rc = -(int)e->kind;
    if (rc != 0) return rc;
    if (json_is_object(*params)) return 0;
    json_decref(*params);
    *params = NULL;
    return error_set(e, ERR_PARAMS, "the body must be a JSON object");
}

static int read_params(struct http *http, const struct http_route *route, const char *query,
                       const char *capture, json_t **params, struct message_cost *cost,
                       struct error *e) {
    bool reads = http->parser.method == HTTP_GET || http->parser.method == HTTP_HEAD ||
                 http->parser.method == HTTP_DELETE;
    int rc = 0;
    *cost = (struct message_cost){http->url_size, http->url_size};
    *params = NULL;
    if (reads) rc = http_read_query(query, params, e);
    else rc = read_body(http, route, params, cost, e);
    if (rc == 0 && route->capture)
        json_object_set_new(*params, route->capture, json_string(capture));
    return rc;
}

static void answer(struct conn *conn) {
    struct http *http = conn->speech;
    const struct http_route *route = NULL;
    char path[HTTP_MAX_URL], capture[HTTP_MAX_CAPTURE] = "";
    const char *query;
    json_t *params = NULL;
    struct message_cost cost;
    struct error e;
    http->answering = true;
    http->keep_alive = http_should_keep_alive(&http->parser) && conn->server->state != SERVER_ENDED;
    http->head_only = http->parser.method == HTTP_HEAD;
    http->chunked = http->parser.http_major > 1 ||
                    (http->parser.http_major == 1 && http->parser.http_minor >= 1);
    if (!http->chunked) http->keep_alive = false; /* an unsized answer ends with the connection */
    http->content_type_out = "application/json";
    http->status_out = 200;
    conn->server->metrics.rpc_requests++;
    log_debug("connection %llu: %s %.200s", (unsigned long long)conn->number,
              http_method_str(http->parser.method), http->url);
    int rc = http_read_url(http, path, sizeof path, &query, &e);
    if (rc == 0) rc = http_find_route(http_method_str(http->parser.method), path, &route, capture, &e);
    if (rc == 0) rc = http_guard(conn, route, &e);
    if (rc == 0) rc = read_params(http, route, query, capture, &params, &cost, &e);
    if (rc == 0) rc = call_start(conn, &http_dialect, &route->method, NULL, params, cost, &e);
    json_decref(params);
    if (rc != 0 && !conn->closing) http_reply_error(conn, &e);
}

/* --- the language --- */

static bool open_speech(struct conn *conn) {
    struct http *http = calloc(1, sizeof *http);
    if (!http) return false;
    http_parser_init(&http->parser, HTTP_REQUEST);
    http->parser.data = conn;
    conn->speech = http;
    return true;
}

static void refuse(struct conn *conn, const struct error *e) {
    if (!conn->speech && !open_speech(conn)) {
        conn_close(conn, "no memory for an answer");
        return;
    }
    struct http *http = conn->speech;
    http->keep_alive = false;
    http->head_only = false;
    conn->lingers = true;
    if (http->streaming) conn_finish(conn);
    else http_reply_error(conn, e);
}

/* What the parser did not like. */
static void refuse_parse(struct conn *conn, enum http_errno code) {
    struct http *http = conn->speech;
    struct error e;
    if (http->trouble.kind != ERR_NONE) e = http->trouble;
    else if (code == HPE_HEADER_OVERFLOW)
        error_set(&e, ERR_TOO_LARGE, "the request's headers are too large");
    else
        error_set(&e, ERR_INVALID_REQUEST, "this is not HTTP/1.1 as RFC 9112 has it: %s",
                  http_errno_description(code));
    refuse(conn, &e);
}

static void take(struct conn *conn) {
    if (!conn->speech && !open_speech(conn)) {
        conn_close(conn, "no memory for its request");
        return;
    }
    struct http *http = conn->speech;
    while (conn_may_take(conn) && !http->answering && line_buffer_waiting(&conn->in) > 0) {
        char *data;
        size_t size = line_buffer_rest(&conn->in, &data);
        size_t n = http_parser_execute(&http->parser, &settings, data, size);
        enum http_errno code = HTTP_PARSER_ERRNO(&http->parser);
        if (code == HPE_PAUSED && http->whole) {
            http_parser_pause(&http->parser, 0);
            line_buffer_untake(&conn->in, size - n);
            answer(conn);
        } else if (code != HPE_OK) {
            if (!conn->closing) refuse_parse(conn, code);
            return;
        }
    }
    bool partial = !http->whole && (http->url_size > 0 || http->body_size > 0);
    if (!conn->closing) conn_set_unfinished(conn, !http->answering && partial);
}

static size_t kept(const struct conn *conn) {
    const struct http *http = conn->speech;
    return http ? http->body_capacity : 0;
}

static void closed(struct conn *conn) {
    struct http *http = conn->speech;
    if (http) free(http->body);
    free(http);
    conn->speech = NULL;
}

const struct language http_language = {
    .name = "http", .take = take, .refuse = refuse, .kept = kept, .closed = closed};
