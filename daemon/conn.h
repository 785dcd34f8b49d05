/* daemon/conn.h: one client's connection: bytes in, bytes out, limits.
 *
 * The first byte says which language the client speaks (struct language); all further bytes go to
 * it. Everything here runs on the loop's thread.
 *
 * Memory of a connection is bounded: at most a line of max_message waits in it; while more than
 * max_outbound bytes of answers are unread, it reads nothing and its generations hold; a client
 * that stays so for slow_client_s is dropped.
 */
#ifndef TPD_DAEMON_CONN_H
#define TPD_DAEMON_CONN_H

#include "daemon/access.h"
#include "daemon/line_buffer.h"

#include <uv.h>

struct server;
struct call;
struct conn;

struct language {
    const char *name;
    /* A line; also what a client that has ended its side left without a line end. */
    void (*line)(struct conn *conn, char *line, size_t size);
    /* The line is longer than max_message: answer; the connection then closes. */
    void (*too_long)(struct conn *conn);
};

struct conn {
    struct server *server;
    struct conn *prev, *next; /* all connections of the server */
    uv_pipe_t pipe;
    uv_timer_t timer; /* slow reader, or watch for the end of a half-closed client */
    struct peer peer;
    uint64_t number;                 /* for the log, and the engine's fairness group */
    const struct language *language; /* NULL until the first byte */
    struct line_buffer in;
    size_t counted;  /* bytes of it in the server's input_bytes */
    size_t outbound; /* bytes queued and not yet written */
    bool paused;     /* outbound went over the limit and is not yet below half of it */
    bool ended;      /* the client sends no more, but still reads */
    bool finishing;  /* closes when all is written */
    bool closing;
    bool taking;        /* inside take_lines: a request that ends at once must not start it again */
    struct call *calls; /* live requests */
    int64_t n_calls;
    size_t busy_bytes; /* size of the messages whose requests still hold them */
};

/* Accepts from the listening pipe. */
void conn_accept(struct server *server, uv_stream_t *listener);
/* Queues size bytes at data, which it takes over (malloc). */
void conn_send(struct conn *conn, char *data, size_t size);
/* Closes when everything queued is written. */
void conn_finish(struct conn *conn);
/* Closes now: live requests are cancelled. */
void conn_close(struct conn *conn, const char *why);
/* Takes up reading again if limits allow: call it when a request has ended. */
void conn_continue(struct conn *conn);

#endif
