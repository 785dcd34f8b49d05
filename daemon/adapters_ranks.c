/* Adapters onto the ranks and off them: files on a worker, the ranks between two steps, then the loop. */
#include "daemon/adapters_private.h"

#include "base/file.h"
#include "base/log.h"
#include "daemon/call.h"
#include "daemon/training.h"
#include "ranks/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- a unit ------------------------------------------------------------------------------------------ */

struct setting {
    int slot;
    const struct adapter *adapter;
};

static int set_unit(struct rank *rank, void *arg, struct error *e) {
    const struct setting *s = arg;
    return shard_adapter_set(rank->state, s->slot, s->adapter, e);
}

int adapters_set_slot(struct ranks *ranks, int slot, const struct adapter *adapter, struct error *e) {
    struct setting s = {slot, adapter};
    return ranks_run(ranks, set_unit, &s, e);
}

/* --- a load or unload on its way ----------------------------------------------------------------------- */

struct change {
    struct letter letter;
    struct server *server;
    struct call *call; /* NULL: nobody waits */
    struct adapter_entry *entry;
    bool load, look_up;      /* look_up: the newest result of that name first */
    struct adapter *adapter; /* what a load puts into the slot; NULL empties it */
    char *path;              /* look_up: where it was */
    struct error error;      /* kind ERR_NONE: done */
    uv_work_t work;
};

static void end_call(struct change *c, json_t *result) {
    if (c->call && c->error.kind != ERR_NONE) call_fail(c->call, &c->error);
    else if (c->call) call_result(c->call, result);
    else json_decref(result);
    free(c->path);
    free(c);
}

/* On the loop: the ranks have it, or do not. */
static void loaded(struct change *c) {
    struct adapters *all = c->server->adapters;
    struct adapter_entry *entry = c->entry;
    json_t *result = NULL;
    pthread_mutex_lock(&all->mutex);
    if (c->error.kind == ERR_NONE) {
        entry->state = ADAPTER_LOADED;
        log_info("adapter %s is loaded from %s", entry->name, entry->path);
        result = adapter_entry_json(all, entry);
        adapters_save(c->server);
    } else adapters_forget(all, entry);
    pthread_mutex_unlock(&all->mutex);
    end_call(c, result);
}

/* The same for what was loaded last time: it keeps its name, whatever comes. */
static void restored(struct change *c) {
    struct adapter_entry *entry = c->entry;
    if (c->error.kind != ERR_NONE) {
        pthread_mutex_lock(&c->server->adapters->mutex);
        entry->state = ADAPTER_FAILED;
        pthread_mutex_unlock(&c->server->adapters->mutex);
    } else log_info("adapter %s is loaded from %s", entry->name, entry->path);
    end_call(c, NULL);
}

static void unloaded(struct change *c) {
    struct adapters *all = c->server->adapters;
    json_t *result = NULL;
    pthread_mutex_lock(&all->mutex);
    if (c->error.kind == ERR_NONE) {
        result = json_pack("{s:s, s:b}", "name", c->entry->name, "unloaded", 1);
        adapters_forget(all, c->entry);
        adapters_save(c->server);
    } else c->entry->state = ADAPTER_LOADED;
    pthread_mutex_unlock(&all->mutex);
    if (c->error.kind == ERR_NONE) adapters_sweep(c->server); /* of its versions */
    end_call(c, result);
}

static void changed(struct change *c) {
    if (c->error.kind != ERR_NONE) log_warn("adapter %s: %s", c->entry->name, c->error.message);
    if (!c->load) unloaded(c);
    else if (c->entry->state == ADAPTER_LOADED) restored(c);
    else loaded(c);
}

static void deliver(struct letter *letter) { changed((struct change *)letter); }

/* On rank 0's thread. */
static int change_ranks(void *arg, struct ranks *ranks, struct error *e) {
    const struct change *c = arg;
    return adapters_set_slot(ranks, c->entry->slot, c->adapter, e);
}

static void on_changed(void *arg, const struct error *error) {
    struct change *c = arg;
    if (error) c->error = *error;
    c->letter.deliver = deliver;
    mailbox_post(&c->server->mailbox, &c->letter);
}

static void ask_ranks(struct change *c) {
    if (!c->server->engine) error_set(&c->error, ERR_SHUTTING_DOWN, "tpd is shutting down");
    else if (engine_change(c->server->engine, change_ranks, on_changed, c, &c->error) == 0) return;
    changed(c);
}

static struct change *new_change(struct server *server, struct call *call,
                                 struct adapter_entry *entry, struct error *e) {
    struct change *c = calloc(1, sizeof *c);
    if (!c) {
        error_set(e, ERR_MEMORY, "no memory to change adapters");
        return NULL;
    }
    *c = (struct change){.server = server, .call = call, .entry = entry};
    c->work.data = c;
    return c;
}

/* --- loading ------------------------------------------------------------------------------------------ */

/* On a worker: the store and files may be slow. */
static void open_files(uv_work_t *work) {
    struct change *c = work->data;
    struct server *server = c->server;
    struct error ignored;
    if (c->look_up && jobs_result(server->training->jobs, c->entry->name, &c->path, &ignored) == 0 &&
        adapter_open(&c->adapter, server->model, c->path, &ignored) == 0)
        return;
    free(c->path);
    c->path = NULL;
    adapter_open(&c->adapter, server->model, c->entry->path, &c->error);
}

static void on_opened(uv_work_t *work, int status) {
    (void)status;
    struct change *c = work->data;
    struct adapters *all = c->server->adapters;
    pthread_mutex_lock(&all->mutex);
    c->entry->adapter = c->adapter;
    if (c->path) {
        free(c->entry->path);
        c->entry->path = c->path;
        c->path = NULL;
    }
    pthread_mutex_unlock(&all->mutex);
    if (c->error.kind == ERR_NONE) ask_ranks(c);
    else changed(c);
}

int adapters_begin_load(struct server *server, struct call *call, const char *name, const char *path,
                        struct error *e) {
    struct adapters *all = server->adapters;
    char standard[128];
    snprintf(standard, sizeof standard, "adapters/%s", name);
    char *own = path ? strdup(path) : path_join(all->state_dir, standard);
    struct adapter_entry *entry = NULL;
    struct change *c = own ? new_change(server, call, NULL, e) : NULL;
    if (!c) {
        free(own);
        return error_set(e, ERR_MEMORY, "no memory to load an adapter");
    }
    pthread_mutex_lock(&all->mutex);
    int err = adapters_find(all, name)
                  ? error_set(e, ERR_CONFLICT, "an adapter %s is loaded already: unload it first", name)
                  : adapters_add(all, name, own, 0, &entry, e);
    if (!err) entry->current = true;
    pthread_mutex_unlock(&all->mutex);
    free(own);
    if (err) {
        free(c);
        return err;
    }
    c->entry = entry;
    c->load = true;
    c->look_up = !path;
    uv_queue_work(&server->loop, &c->work, open_files, on_opened);
    return 0;
}

void adapters_open_files(struct server *server, const struct model *model) {
    struct adapters *all = server->adapters;
    for (int i = 0; i < SHARD_ADAPTERS; i++) {
        struct adapter_entry *entry = all->slots[i]; /* nothing comes or goes before the model is open */
        struct adapter *adapter = NULL;
        struct error e = {0};
        if (!entry) continue;
        int err = adapter_open(&adapter, model, entry->path, &e);
        if (err) log_error("adapter %s: %s", entry->name, e.message);
        pthread_mutex_lock(&all->mutex);
        entry->adapter = adapter;
        entry->state = err ? ADAPTER_FAILED : ADAPTER_LOADING;
        pthread_mutex_unlock(&all->mutex);
    }
}

/* The engine makes changes before it admits requests, so they count as loaded at once. */
void adapters_restore(struct server *server) {
    struct adapters *all = server->adapters;
    for (int i = 0; i < SHARD_ADAPTERS; i++) {
        struct adapter_entry *entry = all->slots[i];
        struct error e = {0};
        if (!entry || entry->state != ADAPTER_LOADING) continue;
        struct change *c = new_change(server, NULL, entry, &e);
        pthread_mutex_lock(&all->mutex);
        entry->state = c ? ADAPTER_LOADED : ADAPTER_FAILED;
        pthread_mutex_unlock(&all->mutex);
        if (!c) continue;
        c->load = true;
        c->adapter = entry->adapter;
        ask_ranks(c);
    }
}

void adapters_let_go(struct server *server) {
    struct adapters *all = server->adapters;
    pthread_mutex_lock(&all->mutex);
    for (int i = 0; i < SHARD_ADAPTERS; i++) {
        struct adapter_entry *entry = all->slots[i];
        if (!entry) continue;
        adapter_close(entry->adapter);
        entry->adapter = NULL;
        entry->state = ADAPTER_LOADING;
    }
    pthread_mutex_unlock(&all->mutex);
}

/* --- unloading ---------------------------------------------------------------------------------------- */

int adapters_begin_unload(struct server *server, struct call *call, struct adapter_entry *entry,
                          struct error *e) {
    struct change *c = new_change(server, call, entry, e);
    if (!c) return -(int)ERR_MEMORY;
    pthread_mutex_lock(&server->adapters->mutex);
    entry->state = ADAPTER_UNLOADING;
    pthread_mutex_unlock(&server->adapters->mutex);
    ask_ranks(c);
    return 0;
}

static bool is_needed(const struct adapters *all, const struct adapter_entry *entry) {
    return entry->current || entry->users > 0 || entry->state == ADAPTER_LOADING ||
           entry->state == ADAPTER_UNLOADING || entry == all->by_default || entry == all->before ||
           (adapters_find(all, entry->name) && entry == adapters_previous(all, entry->name));
}

void adapters_sweep(struct server *server) {
    struct adapters *all = server->adapters;
    if (server->state != SERVER_READY) return;
    for (int i = 0; i < SHARD_ADAPTERS; i++) {
        struct error e;
        pthread_mutex_lock(&all->mutex);
        struct adapter_entry *entry = all->slots[i];
        bool needed = !entry || is_needed(all, entry);
        pthread_mutex_unlock(&all->mutex);
        if (!needed && adapters_begin_unload(server, NULL, entry, &e)) log_warn("%s", e.message);
    }
}
