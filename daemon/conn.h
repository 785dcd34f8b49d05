/* daemon/conn.h: one client's connection: bytes in, bytes out, limits.
 *
 * The first byte says which language the client speaks (struct language); all further bytes go to
 * it. Over TCP only HTTP is spoken. Everything here runs on the loop's thread.
 *
 * Memory of a connection is bounded: at most a message of max_message waits in it; while more than
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
    /* Takes what waits in conn->in, while conn_may_take. */
    void (*take)(struct conn *conn);
    /* Tells the client e, which answers no request of its; the connection closes afterwards. */
    void (*refuse)(struct conn *conn, const struct error *e);
    /* Bytes of an unfinished message that the language keeps itself; NULL: none ever. */
    size_t (*kept)(const struct conn *conn);
    /* The connection has closed: frees conn->speech. May be NULL. */
    void (*closed)(struct conn *conn);
};

struct conn {
    struct server *server;
    struct conn *prev, *next; /* all connections of the server */
    union {
        uv_handle_t handle;
        uv_stream_t stream;
        uv_pipe_t pipe;
        uv_tcp_t tcp;
    } io;
    bool over_tcp;
    uv_shutdown_t shutdown;
    uv_timer_t timer; /* slow client, or watch for the end of a half-closed one */
    struct peer peer; /* over TCP nobody: no user, no group */
    uint64_t number;                 /* for the log, and the engine's fairness group */
    const struct language *language; /* NULL until the first byte */
    void *speech;                    /* the language's own state */
    struct line_buffer in;
    size_t counted;  /* bytes of unfinished messages in the server's input_bytes */
    size_t outbound; /* bytes queued and not yet written */
    bool paused;     /* outbound went over the limit and is not yet below half of it */
    bool ended;      /* the client sends no more, but still reads */
    bool finishing;  /* closes when all is written */
    size_t unread_here; /* while finishing, when the timer began: bytes in our queue */
    int unread_sent;    /* and those that the kernel holds */
    int waits;          /* how often the timer has run out since */
    bool lingers;   /* when finished, what the client still sends is read and dropped for a while: a
                       client that is cut off while it sends would not see the answer */
    bool closing;
    bool unfinished; /* part of a message has come: the rest must within slow_client_s (HTTP) */
    bool taking;     /* inside language->take: a request that ends at once must not start it again */
    struct call *calls; /* live requests */
    int64_t n_calls;
    size_t busy_bytes; /* size of the messages whose requests still hold them */
};

/* Whether limits let it take another message now. */
bool conn_may_take(const struct conn *conn);
/* Accepts from the listening pipe or TCP handle; false: no memory, it still waits there. */
bool conn_accept(struct server *server, uv_stream_t *listener);
/* Queues size bytes at data, which it takes over (malloc). */
void conn_send(struct conn *conn, char *data, size_t size);
/* Closes when everything queued is written, or its reader does not read on (slow_client_s; two seconds at the end). */
void conn_finish(struct conn *conn);
/* Closes now: live requests are cancelled. */
void conn_close(struct conn *conn, const char *why);
/* Sets conn->unfinished. */
void conn_set_unfinished(struct conn *conn, bool unfinished);
/* Takes up reading again if limits allow: call it when a request has ended. */
void conn_continue(struct conn *conn);

#endif
