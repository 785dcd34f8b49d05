/* daemon/loading.h: from a path to a model that serves, while the loop already answers. */
#ifndef TPD_DAEMON_LOADING_H
#define TPD_DAEMON_LOADING_H

#include "daemon/server.h"

/* Opens model and tokenizer on the worker pool, starts the engine, and says READY when its ranks
 * have loaded. want: the settings to load with, which become the server's (want->model is taken over), or
 * NULL: those it has. What a failure leads to is said in lifecycle.h. Loop's thread. */
void loading_start(struct server *server, const struct daemon_config *want);

#endif
