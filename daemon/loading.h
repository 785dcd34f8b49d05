/* daemon/loading.h: from a path to a model that serves, while the loop already answers. */
#ifndef TPD_DAEMON_LOADING_H
#define TPD_DAEMON_LOADING_H

#include "daemon/server.h"

/* Opens model and tokenizer on the worker pool, starts the engine, and says READY when its ranks
 * have loaded. A failure ends the daemon with the exit code of the error. Loop's thread. */
void loading_start(struct server *server);

#endif
