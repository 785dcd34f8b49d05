/* daemon/adapters.h: the adapters that are loaded, which one requests get that name none, and which was
 * that before (for rollback).
 *
 * A name means one version of an adapter; the version before stays loaded until the next takes its place,
 * so that rollback is instant. What is loaded and what names mean survives a restart (the text "adapters"
 * in the job store). A switch is atomic: requests that are live keep the version that they began with.
 *
 * Entries come and go on the loop's thread alone, but for those that finished jobs add on rank 0's thread;
 * a mutex guards what both see. */
#ifndef TPD_DAEMON_ADAPTERS_H
#define TPD_DAEMON_ADAPTERS_H

#include "daemon/server.h"
#include "model/adapter.h"
#include "train/trainer.h"

/* FAILED: it was loaded when the daemon ended and cannot be now. Its name stands, requests that want it
 * are refused. */
enum adapter_state { ADAPTER_LOADING, ADAPTER_LOADED, ADAPTER_UNLOADING, ADAPTER_FAILED };

struct adapter_entry {
    char name[65];
    char *path;
    int64_t job;      /* that activated it; 0: loaded by hand */
    uint64_t version; /* counts up; never 0 */
    int slot;
    enum adapter_state state;
    bool current;            /* what its name means; else the version before */
    uint64_t retired;        /* when it ceased to be that; counts as versions do */
    int users;               /* live generations; the loop's */
    struct adapter *adapter; /* NULL while it is being opened, and in FAILED */
};

/* Reads what was loaded last time. After training_open. */
int adapters_open(struct server *server, const char *state_dir, struct error *e);
/* On a worker, before the engine is started: opens the files of what was loaded last time. */
void adapters_open_files(struct server *server, const struct model *model);
/* The engine was started: the ranks take them before any request. */
void adapters_restore(struct server *server);
/* On a worker, when the ranks have ended: closes all files; names stay, for the next model. */
void adapters_let_go(struct server *server);
/* Unloads versions that nothing needs any more. */
void adapters_sweep(struct server *server);
/* After the engine has ended. */
void adapters_close(struct server *server);

/* The entry at or after *slot that its name means, and *slot behind it; NULL at the end. Begin with *slot
 * 0. The loop's thread. */
const struct adapter_entry *adapters_next(const struct server *server, int *slot);

/* The directory that a name stands for: that of a loaded adapter, else adapters/NAME in state_dir; with a
 * slash in it, it is a path (in state_dir, unless absolute). To be freed; NULL without memory. */
char *adapters_path(const struct server *server, const char *name);
/* The adapter of a request: `name`, the default when name is NULL or "default", none for "base". *out is
 * NULL for none. ERR_NOT_FOUND, or ERR_CONFLICT while it is not loaded. The caller counts itself in
 * (*out)->users until it is done. */
int adapters_choose(struct server *server, const char *name, struct adapter_entry **out,
                    struct error *e);

/* For the trainer: what jobs activate. user: the server. */
struct activator adapters_activator(struct server *server);

#endif
