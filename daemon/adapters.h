/* daemon/adapters.h: the adapters that are loaded, which one requests get that name none, and which was
 * that before (for rollback). All on the loop's thread.
 *
 * What is loaded and the default survive a restart: state_dir/adapters.json. A switch of the default is
 * atomic: requests that are live keep the adapter they began with. */
#ifndef TPD_DAEMON_ADAPTERS_H
#define TPD_DAEMON_ADAPTERS_H

#include "daemon/server.h"
#include "model/adapter.h"

enum adapter_state { ADAPTER_LOADING, ADAPTER_LOADED, ADAPTER_UNLOADING };

struct adapter_entry {
    char name[65];
    char *path;
    int slot;
    enum adapter_state state;
    int users;               /* live generations */
    struct adapter *adapter; /* NULL while it is being opened */
};

/* adapters_open: reads what was loaded last time; adapters_restore loads it once the engine runs. */
int adapters_open(struct server *server, const char *state_dir, struct error *e);
void adapters_restore(struct server *server);
/* After the engine has ended. */
void adapters_close(struct server *server);

/* The entry at or after *slot, and *slot behind it; NULL at the end. Begin with *slot 0. */
const struct adapter_entry *adapters_next(const struct server *server, int *slot);

/* The adapter of a request: `name`, the default when name is NULL, none for "base". *out is NULL for
 * none. ERR_NOT_FOUND, or ERR_CONFLICT while it is being loaded. The caller counts itself in
 * (*out)->users until it is done. */
int adapters_choose(struct server *server, const char *name, struct adapter_entry **out,
                    struct error *e);

#endif
