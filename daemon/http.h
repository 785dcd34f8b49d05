/* daemon/http.h: HTTP/1.1, the other language of the socket, and the only one over TCP.
 *
 * http_parser reads; a request that is whole finds its route (http_routes.c), and is a call like one of
 * JSON-RPC from there on: its body (or its query) are the parameters. One request of a connection is
 * answered at a time; what a client sends meanwhile waits. All on the loop's thread.
 */
#ifndef TPD_DAEMON_HTTP_H
#define TPD_DAEMON_HTTP_H

#include "daemon/call.h"
#include "daemon/methods.h"

#include <http_parser.h>

enum {
    HTTP_MAX_URL = 8192,
    HTTP_MAX_HEADER = 1024, /* of a header that we look at; http_parser bounds all of them together */
    HTTP_MAX_CAPTURE = 256
};

struct http_route {
    const char *verb;    /* "GET" also answers HEAD */
    const char *path;    /* a segment "*" takes any: it becomes the parameter `capture` */
    const char *capture; /* NULL where the path has no "*" */
    bool multipart;      /* the body is multipart/form-data, and the handler reads it */
    bool open;           /* needs no API key */
    struct method method;
};

extern const struct http_route http_routes[];
extern const size_t http_n_routes;

struct http_header {
    char text[HTTP_MAX_HEADER]; /* "" when it was not sent */
};

/* What a connection that speaks HTTP is at. */
struct http {
    struct http_parser parser;
    /* the request */
    char name[32];        /* of the header that is being read */
    struct http_header *value; /* where it goes, or NULL */
    bool in_value;
    struct http_header authorization, content_type, content_encoding, origin, host, expect;
    char url[HTTP_MAX_URL];
    size_t url_size;
    char *body; /* owned */
    size_t body_size, body_capacity;
    struct error trouble; /* kind ERR_NONE: none so far */
    bool whole;           /* the request has come to its end */
    /* the answer */
    bool answering; /* from when the request is whole until its answer is */
    bool keep_alive, head_only, chunked;
    bool streaming; /* the head of a stream of events has gone out */
    const char *content_type_out; /* of the result; "application/json" unless a handler sets it */
    int status_out;               /* likewise; 200 */
};

/* NULL when the client has gone. */
struct http *http_of(const struct call *call);
/* Sends an event of a stream (server-sent events): data was written into out, which is taken over. */
void http_send_event(struct call *call, struct json_out *out);

/* http_reply.c */
extern const struct dialect http_dialect;
/* A whole answer to the request that is being answered. */
void http_reply(struct conn *conn, int status, const char *extra_headers, const char *content_type,
                const char *body, size_t size);
void http_reply_error(struct conn *conn, const struct error *e);

extern const struct language http_language;

#endif
