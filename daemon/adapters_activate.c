/* Finished jobs put their adapters to use: on rank 0's thread, between two steps. */
#include "daemon/adapters_private.h"

#include "base/log.h"
#include "daemon/training.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "default" means the adapter of the job's own name, as the one that requests get which name none. */
static bool is_default(const char *as) { return strcmp(as, "default") == 0; }

/* Under the mutex. NULL: the base alone. */
static struct adapter_entry *replaced(const struct adapters *all, const char *as) {
    return is_default(as) ? all->by_default : adapters_find(all, as);
}

static uint64_t version_of(const struct adapter_entry *entry) { return entry ? entry->version : 0; }

static void incumbent(void *user, const char *as, struct incumbent *out) {
    struct adapters *all = ((struct server *)user)->adapters;
    pthread_mutex_lock(&all->mutex);
    const struct adapter_entry *entry = replaced(all, as);
    *out = (struct incumbent){.version = version_of(entry)};
    snprintf(out->path, sizeof out->path, "%s", entry ? entry->path : "");
    if (entry) snprintf(out->label, sizeof out->label, "adapter %s", entry->name);
    else snprintf(out->label, sizeof out->label, "the base");
    pthread_mutex_unlock(&all->mutex);
}

/* What names mean, to be put back when the store refuses. */
struct meaning {
    struct adapter_entry *by_default, *before, *current;
    uint64_t retired; /* of current */
};

static struct meaning switch_to(struct adapters *all, struct adapter_entry *entry, const char *as) {
    struct meaning was = {all->by_default, all->before, adapters_find(all, entry->name), 0};
    if (was.current) was.retired = was.current->retired;
    entry->state = ADAPTER_LOADED;
    adapters_make_current(all, entry);
    if (is_default(as) || (was.current && was.current == was.by_default))
        adapters_make_default(all, entry);
    return was;
}

static void switch_back(struct adapters *all, struct adapter_entry *entry, struct meaning was) {
    all->by_default = was.by_default;
    all->before = was.before;
    entry->current = false;
    entry->state = ADAPTER_LOADING;
    if (!was.current) return;
    was.current->current = true;
    was.current->retired = was.retired;
}

/* Under the mutex: the store first, and only with it what requests see. */
static int commit(struct server *server, const struct activation *a, struct adapter_entry *entry,
                  struct error *e) {
    struct adapters *all = server->adapters;
    if (version_of(replaced(all, a->as)) != a->instead_of) return 1;
    struct meaning was = switch_to(all, entry, a->as);
    char *text = adapters_text(all);
    int err = text ? jobs_done(server->training->jobs, a->job, a->outcome, adapters_key, text, e)
                   : error_set(e, ERR_MEMORY, "no memory to activate an adapter");
    free(text);
    if (err) switch_back(all, entry, was);
    else {
        entry->adapter = a->adapter;
        log_info("adapter %s is now that of job %lld%s", entry->name, (long long)a->job,
                 all->by_default == entry ? ", and the default" : "");
    }
    return err;
}

static int activate(void *user, struct ranks *ranks, const struct activation *a, struct error *e) {
    struct server *server = user;
    struct adapters *all = server->adapters;
    struct adapter_entry *entry;
    pthread_mutex_lock(&all->mutex);
    int err = adapters_add(all, is_default(a->as) ? a->name : a->as, a->path, a->job, &entry, e);
    pthread_mutex_unlock(&all->mutex);
    if (err) return error_set(e, ERR_OVERLOADED, "%s", e->message); /* CONFLICT is about the job */
    err = adapters_set_slot(ranks, entry->slot, a->adapter, e);
    pthread_mutex_lock(&all->mutex);
    if (!err) err = commit(server, a, entry, e);
    if (err) { /* nobody has seen the entry */
        struct error ignored;
        int slot = entry->slot;
        adapters_set_slot(ranks, slot, NULL, &ignored);
        adapters_forget(all, entry);
    }
    pthread_mutex_unlock(&all->mutex);
    return err;
}

struct activator adapters_activator(struct server *server) {
    return (struct activator){.incumbent = incumbent, .activate = activate, .user = server};
}
