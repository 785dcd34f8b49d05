/* daemon/rpc.h: JSON-RPC 2.0, one message a line.
 *
 * A line becomes a `struct call`: a live request that belongs to its method's handler until that
 * ends it with call_result or call_fail, at once or later. All on the loop's thread.
 */
#ifndef TPD_DAEMON_RPC_H
#define TPD_DAEMON_RPC_H

#include "base/error.h"
#include "daemon/conn.h"
#include "daemon/json_out.h"

#include <jansson.h>

struct method;

/* What asynchronous work of a call can be told. NULL members: nothing to do. */
struct call_work {
    /* The client cancels, or has gone: end soon. The call still ends through its handler. */
    void (*cancel)(struct call *call);
    /* The client does not read: make no more until told otherwise. */
    void (*hold)(struct call *call, bool hold);
};

struct call {
    struct server *server;
    struct conn *conn;        /* NULL when the connection has closed */
    struct call *prev, *next; /* of the connection */
    struct call *next_parked;
    const struct method *method;
    json_t *id;     /* NULL for a notification */
    json_t *params; /* an object, checked; NULL when none were given or call_drop_params */
    size_t bytes;   /* of the message, while params are kept */
    size_t memory;  /* that they take as a tree, about; likewise */
    bool cancelled; /* by the client, or its connection has closed */
    const struct call_work *work;
    void *state; /* the handler's */
    uv_work_t thread_work;
    void (*in_thread)(struct call *call);
    void (*afterwards)(struct call *call);
};

/* All of these answer (unless it is a notification or the client has gone) and free the call. The
 * result is taken over; NULL means that there was no memory for it. */
void call_result(struct call *call, json_t *result);
void call_fail(struct call *call, const struct error *e);
/* A result that may be long is written between begin and end (begin: any thread). */
void call_begin_result(const struct call *call, struct json_out *out);
void call_end_result(struct call *call, struct json_out *out);
/* A notification about the call: its params are written between begin and end. */
void call_begin_notify(struct json_out *out, const char *method);
void call_end_notify(struct call *call, struct json_out *out);
/* Frees the parameters as soon as they are used: they may be large. */
void call_drop_params(struct call *call);
/* Runs in_thread on the worker pool, then afterwards on the loop's thread. */
void call_in_thread(struct call *call, void (*in_thread)(struct call *),
                    void (*afterwards)(struct call *));

/* A live request of the connection by its id; NULL when there is none. */
struct call *rpc_find(const struct conn *conn, const json_t *id);
void rpc_cancel(struct call *call);
/* An error that answers no request (id null). */
void rpc_refuse(struct conn *conn, const struct error *e);
/* The connection has closed: its requests go on without it, as short as they can. */
void rpc_abandon(struct conn *conn);
void rpc_hold(struct conn *conn, bool hold);
/* The model is open (or the daemon stops): requests that waited for it go on. */
void rpc_unpark(struct server *server);
int64_t rpc_count_parked(const struct server *server);

extern const struct language rpc_language;

#endif
