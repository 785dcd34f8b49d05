/* The registry of adapters: names, versions, the default, and how they are kept. */
#include "daemon/adapters_private.h"

#include "base/log.h"
#include "daemon/training.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char adapters_key[] = "adapters";

/* --- names and versions ----------------------------------------------------------------------------- */

struct adapter_entry *adapters_find(const struct adapters *all, const char *name) {
    for (int i = 0; i < SHARD_ADAPTERS; i++) {
        struct adapter_entry *entry = all->slots[i];
        if (entry && entry->current && strcmp(entry->name, name) == 0) return entry;
    }
    return NULL;
}

struct adapter_entry *adapters_previous(const struct adapters *all, const char *name) {
    struct adapter_entry *newest = NULL;
    for (int i = 0; i < SHARD_ADAPTERS; i++) {
        struct adapter_entry *entry = all->slots[i];
        if (entry && !entry->current && entry->state == ADAPTER_LOADED &&
            strcmp(entry->name, name) == 0 && (!newest || entry->retired > newest->retired))
            newest = entry;
    }
    return newest;
}

int adapters_add(struct adapters *all, const char *name, const char *path, int64_t job,
                 struct adapter_entry **out, struct error *e) {
    int slot = 0;
    while (slot < SHARD_ADAPTERS && all->slots[slot]) slot++;
    if (slot == SHARD_ADAPTERS)
        return error_set(e, ERR_CONFLICT, "%d adapters are loaded, more are not: unload one first",
                         SHARD_ADAPTERS);
    struct adapter_entry *entry = calloc(1, sizeof *entry);
    if (!entry || !(entry->path = strdup(path))) {
        free(entry);
        return error_set(e, ERR_MEMORY, "no memory to load an adapter");
    }
    snprintf(entry->name, sizeof entry->name, "%s", name);
    entry->job = job;
    entry->version = ++all->versions;
    entry->slot = slot;
    all->slots[slot] = entry;
    *out = entry;
    return 0;
}

void adapters_forget(struct adapters *all, struct adapter_entry *entry) {
    all->slots[entry->slot] = NULL;
    if (all->by_default == entry) all->by_default = NULL;
    if (all->before == entry) all->before = NULL;
    adapter_close(entry->adapter);
    free(entry->path);
    free(entry);
}

void adapters_make_current(struct adapters *all, struct adapter_entry *entry) {
    struct adapter_entry *was = adapters_find(all, entry->name);
    if (was == entry) return;
    if (was) {
        was->current = false;
        was->retired = ++all->versions;
    }
    entry->current = true;
}

void adapters_make_default(struct adapters *all, struct adapter_entry *entry) {
    if (entry == all->by_default) return;
    all->before = all->by_default;
    all->by_default = entry;
}

/* --- requests --------------------------------------------------------------------------------------- */

int adapters_check(const struct adapter_entry *entry, struct error *e) {
    switch (entry->state) {
    case ADAPTER_LOADED: return 0;
    case ADAPTER_LOADING:
    case ADAPTER_UNLOADING:
        return error_set(e, ERR_CONFLICT, "adapter %s is being %s: try again shortly", entry->name,
                         entry->state == ADAPTER_LOADING ? "loaded" : "unloaded");
    case ADAPTER_FAILED: break;
    }
    return error_set(e, ERR_CONFLICT,
                     "adapter %s could not be loaded from %s (the log says why): activate another, or "
                     "roll back",
                     entry->name, entry->path);
}

const struct adapter_entry *adapters_next(const struct server *server, int *slot) {
    struct adapters *all = server->adapters;
    const struct adapter_entry *entry = NULL;
    pthread_mutex_lock(&all->mutex);
    while (*slot < SHARD_ADAPTERS && !(entry && entry->current)) entry = all->slots[(*slot)++];
    if (entry && !entry->current) entry = NULL;
    pthread_mutex_unlock(&all->mutex);
    return entry;
}

char *adapters_path(const struct server *server, const char *name) {
    struct adapters *all = server->adapters;
    bool by_default = strcmp(name, "default") == 0;
    pthread_mutex_lock(&all->mutex);
    const struct adapter_entry *entry = by_default ? all->by_default : adapters_find(all, name);
    char *path = entry ? strdup(entry->path) : NULL;
    pthread_mutex_unlock(&all->mutex);
    if (entry) return path;
    if (name[0] == '/') return strdup(name);
    size_t size = strlen(all->state_dir) + strlen(name) + sizeof "/adapters/";
    path = malloc(size);
    if (path)
        snprintf(path, size, "%s/%s%s", all->state_dir, strchr(name, '/') ? "" : "adapters/", name);
    return path;
}

int adapters_choose(struct server *server, const char *name, struct adapter_entry **out,
                    struct error *e) {
    struct adapters *all = server->adapters;
    *out = NULL;
    if (name && strcmp(name, "base") == 0) return 0;
    bool by_default = !name || strcmp(name, "default") == 0;
    pthread_mutex_lock(&all->mutex);
    struct adapter_entry *entry = by_default ? all->by_default : adapters_find(all, name);
    int err = entry ? adapters_check(entry, e) : 0;
    if (!err) *out = entry;
    pthread_mutex_unlock(&all->mutex);
    if (entry || by_default) return err;
    return error_set(e, ERR_NOT_FOUND,
                     "no adapter %s is loaded: adapter.list shows those that are, adapter.load "
                     "loads one",
                     name);
}

json_t *adapter_entry_json(const struct adapters *all, const struct adapter_entry *entry) {
    static const char *const states[] = {"loading", "loaded", "unloading", "failed"};
    return json_pack("{s:s, s:s, s:s, s:o, s:o, s:b, s:b, s:i}", "name", entry->name, "path",
                     entry->path, "state", states[entry->state], "r",
                     entry->adapter ? json_integer(adapter_rank(entry->adapter)) : json_null(),
                     "job", entry->job ? json_integer((json_int_t)entry->job) : json_null(),
                     "default", all->by_default == entry, "current", entry->current, "users",
                     entry->users);
}

/* --- kept over a restart ----------------------------------------------------------------------------- */

static bool is_kept(const struct adapter_entry *entry) {
    return entry && (entry->state == ADAPTER_LOADED || entry->state == ADAPTER_FAILED);
}

/* The default and the one before are said by their number in the list. */
char *adapters_text(const struct adapters *all) {
    json_t *list = json_array(), *by_default = json_null(), *before = json_null();
    for (int i = 0; i < SHARD_ADAPTERS; i++) {
        const struct adapter_entry *entry = all->slots[i];
        if (!is_kept(entry)) continue;
        json_t *number = json_integer((json_int_t)json_array_size(list));
        if (entry == all->by_default) by_default = json_incref(number);
        if (entry == all->before) before = json_incref(number);
        json_decref(number);
        json_array_append_new(list, json_pack("{s:s, s:s, s:I, s:b, s:I}", "name", entry->name,
                                              "path", entry->path, "job", (json_int_t)entry->job,
                                              "current", entry->current, "retired",
                                              (json_int_t)entry->retired));
    }
    json_t *json =
        json_pack("{s:o, s:o, s:o}", "adapters", list, "default", by_default, "before", before);
    char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    return text;
}

void adapters_save(struct server *server) {
    struct error e = {0};
    char *text = adapters_text(server->adapters);
    int err = text ? jobs_keep(server->training->jobs, adapters_key, text, &e)
                   : error_set(&e, ERR_MEMORY, "no memory");
    if (err) log_error("the list of adapters was not saved: %s", e.message);
    free(text);
}

/* Number i of a kept list, or NULL. */
static struct adapter_entry *entry_at(struct adapter_entry *const *list, size_t n, const json_t *i) {
    json_int_t at = json_is_integer(i) ? json_integer_value(i) : -1;
    return at >= 0 && (size_t)at < n ? list[at] : NULL;
}

static void take_kept(struct adapters *all, const json_t *kept) {
    struct adapter_entry *list[SHARD_ADAPTERS];
    size_t n = 0, i;
    json_t *item;
    struct error e;
    json_array_foreach(json_object_get(kept, "adapters"), i, item) {
        const char *name = json_string_value(json_object_get(item, "name"));
        const char *path = json_string_value(json_object_get(item, "path"));
        int64_t job = json_integer_value(json_object_get(item, "job"));
        if (n == SHARD_ADAPTERS || !name || !path) break;
        if (adapters_add(all, name, path, job, &list[n], &e)) break;
        list[n]->current = json_is_true(json_object_get(item, "current"));
        list[n]->retired = (uint64_t)json_integer_value(json_object_get(item, "retired"));
        if (list[n]->retired > all->versions) all->versions = list[n]->retired;
        n++;
    }
    all->by_default = entry_at(list, n, json_object_get(kept, "default"));
    all->before = entry_at(list, n, json_object_get(kept, "before"));
}

static int read_kept(struct server *server, struct error *e) {
    char *text;
    int err = jobs_kept(server->training->jobs, adapters_key, &text, e);
    if (err || !text) return err;
    json_t *kept = json_read(text, strlen(text), e);
    free(text);
    if (!kept) return error_prefix(e, "the list of adapters in tpd.db: ");
    take_kept(server->adapters, kept);
    json_decref(kept);
    return 0;
}

int adapters_open(struct server *server, const char *state_dir, struct error *e) {
    struct adapters *all = calloc(1, sizeof *all);
    if (!all) return error_set(e, ERR_MEMORY, "no memory for adapters");
    pthread_mutex_init(&all->mutex, NULL);
    server->adapters = all;
    all->state_dir = strdup(state_dir);
    if (!all->state_dir) return error_set(e, ERR_MEMORY, "no memory for adapters");
    return read_kept(server, e);
}

void adapters_close(struct server *server) {
    struct adapters *all = server->adapters;
    if (!all) return;
    for (int i = 0; i < SHARD_ADAPTERS; i++)
        if (all->slots[i]) adapters_forget(all, all->slots[i]);
    pthread_mutex_destroy(&all->mutex);
    free(all->state_dir);
    free(all);
    server->adapters = NULL;
}
