/* daemon/tcp.h: the optional TCP address (`listen`), which speaks HTTP alone. Loop's thread. */
#ifndef TPD_DAEMON_TCP_H
#define TPD_DAEMON_TCP_H

#include "daemon/server.h"

/* Checks `listen` and what must stand beside it: ERR_CONFIG beyond this machine without an api_key, or
 * where allow_uid or allow_gid would be gone round. Nothing to check when it is empty. */
int tcp_check(const struct daemon_config *config, struct error *e);
/* Binds and listens; server->tcp is then open until tcp_close. */
int tcp_listen(struct server *server, struct error *e);
void tcp_close(struct server *server);

#endif
