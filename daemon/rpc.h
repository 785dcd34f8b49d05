/* daemon/rpc.h: JSON-RPC 2.0, one message a line. All on the loop's thread. */
#ifndef TPD_DAEMON_RPC_H
#define TPD_DAEMON_RPC_H

#include "daemon/call.h"

/* A notification about a call of JSON-RPC: its params are written between begin and end. */
void rpc_begin_notify(struct json_out *out, const char *method);
void rpc_end_notify(struct call *call, struct json_out *out);

/* A live request of the connection by its id; NULL when there is none. */
struct call *rpc_find(const struct conn *conn, const json_t *id);
/* An error that answers no request (id null). */
void rpc_refuse(struct conn *conn, const struct error *e);

extern const struct language rpc_language;

#endif
