/* daemon/unloading.h: the model that is served goes, and another may come: model.unload and model.load.
 *
 * Going has three parts: no new requests, the live ones end (or are cancelled when the time is over), then a
 * worker ends the ranks and frees what they and the host hold. A job that runs is saved and queued; adapters
 * keep their names and are opened again with the next model. On the loop's thread. */
#ifndef TPD_DAEMON_UNLOADING_H
#define TPD_DAEMON_UNLOADING_H

#include "daemon/server.h"

void unloading_init(struct server *server);
void unloading_close(struct server *server);
/* From READY, or from LOADING when that failed. Requests that are live after timeout_ms are cancelled. */
void unloading_start(struct server *server, int64_t timeout_ms);
/* A request that needed the model has ended. */
void unloading_look(struct server *server);

/* The load or unload that was asked for is done, or failed (e); tells whoever waits. */
void model_change_done(struct server *server, const struct error *e);

#endif
