/* daemon/adapters_private.h: what adapters.c (the registry), adapters_ranks.c (loading and unloading),
 * adapters_activate.c (finished jobs) and methods_adapter.c share. */
#ifndef TPD_DAEMON_ADAPTERS_PRIVATE_H
#define TPD_DAEMON_ADAPTERS_PRIVATE_H

#include "daemon/adapters.h"

#include <pthread.h>

struct adapters {
    pthread_mutex_t mutex;
    struct adapter_entry *slots[SHARD_ADAPTERS];
    struct adapter_entry *by_default, *before; /* NULL = the base alone */
    uint64_t versions;                         /* counts events of versions */
    char *state_dir;
};

/* --- adapters.c: under the mutex ------------------------------------------------------------------ */
/* What a name means now; NULL when no adapter has it. */
struct adapter_entry *adapters_find(const struct adapters *all, const char *name);
/* The version of that name which a rollback of it would return to, or NULL. */
struct adapter_entry *adapters_previous(const struct adapters *all, const char *name);
/* A new entry in a free slot, LOADING, and not yet what its name means. ERR_CONFLICT when no slot is
 * free. */
int adapters_add(struct adapters *all, const char *name, const char *path, int64_t job,
                 struct adapter_entry **out, struct error *e);
void adapters_forget(struct adapters *all, struct adapter_entry *entry);
/* The entry is what its name means, instead of whatever was. */
void adapters_make_current(struct adapters *all, struct adapter_entry *entry);
/* The default (NULL: the base); the one before is remembered. */
void adapters_make_default(struct adapters *all, struct adapter_entry *entry);
/* ERR_CONFLICT unless it can serve. */
int adapters_check(const struct adapter_entry *entry, struct error *e);
/* What is to be kept, as text, the caller's; NULL without memory. */
char *adapters_text(const struct adapters *all);
extern const char adapters_key[];
/* Writes it; a failure is logged. */
void adapters_save(struct server *server);
json_t *adapter_entry_json(const struct adapters *all, const struct adapter_entry *entry);

/* --- adapters_ranks.c: on the loop ----------------------------------------------------------------- */
/* Ends the call, later. path NULL: the newest result of a job of that name, else adapters/NAME. */
int adapters_begin_load(struct server *server, struct call *call, const char *name, const char *path,
                        struct error *e);
/* Ends the call (NULL: nobody waits), later. The entry is UNLOADING. */
int adapters_begin_unload(struct server *server, struct call *call, struct adapter_entry *entry,
                          struct error *e);
/* A unit on each rank. */
int adapters_set_slot(struct ranks *ranks, int slot, const struct adapter *adapter, struct error *e);

#endif
