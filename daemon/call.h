/* daemon/call.h: a live request, from the moment it is understood to its answer.
 *
 * A language (rpc.c, http.c) makes a `struct call` of what a client asks for; it then belongs to its
 * method's handler until that ends it with call_result or call_fail, at once or later. How the answer is
 * written is the dialect's. All on the loop's thread but where it says otherwise.
 */
#ifndef TPD_DAEMON_CALL_H
#define TPD_DAEMON_CALL_H

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

/* How answers are written. The client is there whenever one of these is called, but for begin. */
struct dialect {
    /* What stands before a result. Any thread. */
    void (*begin)(const struct call *call, struct json_out *out);
    /* Sends a result that was begun; takes out over. */
    void (*result)(struct call *call, struct json_out *out);
    void (*fail)(struct call *call, const struct error *e);
};

struct call {
    struct server *server;
    struct conn *conn;        /* NULL when the connection has closed */
    struct call *prev, *next; /* of the connection */
    struct call *next_parked;
    const struct method *method;
    const struct dialect *dialect;
    json_t *id;     /* of JSON-RPC: NULL for a notification */
    json_t *params; /* an object, checked; NULL when none were given or call_drop_params */
    size_t bytes;   /* of the message, while params are kept */
    size_t memory;  /* that they take as a tree, about; likewise */
    bool cancelled; /* by the client, or its connection has closed */
    const struct call_work *work;
    void *state; /* the handler's */
    /* Another shape for what call_result is given (which it takes over); NULL: as it is. */
    json_t *(*shape)(struct call *call, json_t *result);
    uv_work_t thread_work;
    void (*in_thread)(struct call *call);
    void (*afterwards)(struct call *call);
};

/* Bytes of a message, and about what it takes as a tree. */
struct message_cost {
    size_t bytes, memory;
};

/* Whether a text is light enough to be parsed as JSON: counts what a parser would have to allocate,
 * without allocating. */
int message_weigh(const char *text, size_t size, struct message_cost *cost, struct error *e);
/* Checks that the client may, that the parameters are right and that there is room; then hands a call
 * to the method (or parks it while the model is being opened). On failure nothing was made. id and params
 * may be NULL; the call keeps references of its own. */
int call_start(struct conn *conn, const struct dialect *dialect, const struct method *method,
               json_t *id, json_t *params, struct message_cost cost, struct error *e);

/* All of these answer (unless it is a notification or the client has gone) and free the call. The
 * result is taken over; NULL means that there was no memory for it. */
void call_result(struct call *call, json_t *result);
void call_fail(struct call *call, const struct error *e);
/* A result that may be long is written between begin and end (begin: any thread). */
void call_begin_result(const struct call *call, struct json_out *out);
void call_end_result(struct call *call, struct json_out *out);
/* Frees the parameters as soon as they are used: they may be large. */
void call_drop_params(struct call *call);
/* Runs in_thread on the worker pool, then afterwards on the loop's thread. */
void call_in_thread(struct call *call, void (*in_thread)(struct call *),
                    void (*afterwards)(struct call *));
/* Lets write make the result on the worker pool (it may be long), and ends the call with that, or with the
 * error that it returned. call->state is taken. A call that was cancelled ends at once. */
typedef int call_write_fn(struct call *call, struct json_out *out, struct error *e);
void call_write(struct call *call, call_write_fn *write);
void call_cancel(struct call *call);
bool call_needs_model(const struct call *call);

/* The connection has closed: its requests go on without it, as short as they can. */
void calls_abandon(struct conn *conn);
void calls_hold(struct conn *conn, bool hold);
/* The model is open (or the daemon stops): requests that waited for it go on. */
void calls_unpark(struct server *server);
/* It could not be opened. */
void calls_refuse_parked(struct server *server, const struct error *e);
int64_t calls_count_parked(const struct server *server);

#endif
