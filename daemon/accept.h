/* daemon/accept.h: connections as they come, on the socket and over TCP, and what to do when there is no
 * room for one more. On the loop's thread. */
#ifndef TPD_DAEMON_ACCEPT_H
#define TPD_DAEMON_ACCEPT_H

#include <uv.h>

struct server;

/* Raises the limit on descriptors, and sets server->max_connections to what it leaves room for. */
void accept_limits(struct server *server);
/* Before anything listens. */
void accept_start(struct server *server);
void accept_close(struct server *server);
/* For uv_listen; listener->data is the server. When there is no memory for a connection it stays with the
 * listener, which is tried again until there is. */
void accept_connection(uv_stream_t *listener, int status);

#endif
