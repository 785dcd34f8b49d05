/* The registry of adapters, and the methods adapter.*. */
#include "daemon/adapters.h"

#include "base/file.h"
#include "base/log.h"
#include "daemon/methods.h"
#include "ranks/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct adapters {
    struct adapter_entry *slots[SHARD_ADAPTERS];
    char by_default[65], before[65]; /* "" = the base alone */
    char *state_dir, *file;
    json_t *restore; /* what adapters.json said, until it was done */
};

static struct adapter_entry *find(const struct adapters *all, const char *name) {
    for (int i = 0; i < SHARD_ADAPTERS; i++)
        if (all->slots[i] && strcmp(all->slots[i]->name, name) == 0) return all->slots[i];
    return NULL;
}

static void forget(struct adapters *all, struct adapter_entry *entry) {
    if (all->slots[entry->slot] == entry) all->slots[entry->slot] = NULL;
    adapter_close(entry->adapter);
    free(entry->path);
    free(entry);
}

/* --- the file ------------------------------------------------------------------------------------- */

static json_t *name_json(const char *name) { return *name ? json_string(name) : json_null(); }

static void save(const struct adapters *all) {
    struct error e = {0};
    json_t *list = json_array();
    for (int i = 0; i < SHARD_ADAPTERS; i++)
        if (all->slots[i] && all->slots[i]->state == ADAPTER_LOADED)
            json_array_append_new(list, json_pack("{s:s, s:s}", "name", all->slots[i]->name, "path",
                                                  all->slots[i]->path));
    json_t *json = json_pack("{s:o, s:o, s:o}", "adapters", list, "default",
                             name_json(all->by_default), "before", name_json(all->before));
    char *text = json ? json_dumps(json, JSON_INDENT(1)) : NULL;
    struct file_writer w;
    int err = text ? file_writer_open(&w, all->file, &e) : error_set(&e, ERR_MEMORY, "no memory");
    if (!err) {
        file_writer_add(&w, text, strlen(text));
        err = file_writer_commit(&w, &e);
    }
    if (err) log_error("the list of adapters was not saved: %s", e.message);
    json_decref(json);
    free(text);
}

static void copy_name(char to[65], const char *from) { snprintf(to, 65, "%s", from ? from : ""); }

int adapters_open(struct server *server, const char *state_dir, struct error *e) {
    struct adapters *all = calloc(1, sizeof *all);
    if (!all) return error_set(e, ERR_MEMORY, "no memory for adapters");
    server->adapters = all;
    all->state_dir = strdup(state_dir);
    all->file = path_join(state_dir, "adapters.json");
    if (!all->state_dir || !all->file) return error_set(e, ERR_MEMORY, "no memory for adapters");
    if (!path_exists(all->file)) return 0;
    all->restore = json_read_file(all->file, 1 << 20, e);
    return all->restore ? 0 : -(int)ERR_BAD_FILE;
}

void adapters_close(struct server *server) {
    struct adapters *all = server->adapters;
    if (!all) return;
    for (int i = 0; i < SHARD_ADAPTERS; i++)
        if (all->slots[i]) forget(all, all->slots[i]);
    json_decref(all->restore);
    free(all->state_dir);
    free(all->file);
    free(all);
    server->adapters = NULL;
}

/* --- changing the ranks ----------------------------------------------------------------------------- */

/* A load or unload on its way: worker pool (opening), rank 0's thread (the ranks), the loop again. */
struct change {
    struct letter letter;
    struct server *server;
    struct call *call; /* NULL: at start */
    struct adapter_entry *entry;
    bool load;
    const struct adapter *put; /* what a load puts into the slot; NULL empties it */
    struct error error;        /* kind ERR_NONE: done */
    uv_work_t work;
};

static int set_unit(struct rank *rank, void *arg, struct error *e) {
    const struct change *c = arg;
    return shard_adapter_set(rank->state, c->entry->slot, c->put, e);
}

static int change_ranks(void *arg, struct ranks *ranks, struct error *e) {
    return ranks_run(ranks, set_unit, arg, e);
}

static json_t *entry_json(const struct adapters *all, const struct adapter_entry *entry) {
    static const char *const states[] = {"loading", "loaded", "unloading"};
    return json_pack("{s:s, s:s, s:s, s:o, s:b, s:i}", "name", entry->name, "path", entry->path,
                     "state", states[entry->state], "r",
                     entry->adapter ? json_integer(adapter_rank(entry->adapter)) : json_null(),
                     "default", !strcmp(all->by_default, entry->name), "users", entry->users);
}

/* On the loop: the ranks have it, or have let go of it. */
static void changed(struct change *c) {
    struct adapters *all = c->server->adapters;
    struct adapter_entry *entry = c->entry;
    bool failed = c->error.kind != ERR_NONE;
    json_t *result = NULL;
    if (failed) log_warn("adapter %s: %s", entry->name, c->error.message);
    if (c->load && !failed) {
        entry->state = ADAPTER_LOADED;
        log_info("adapter %s is loaded from %s", entry->name, entry->path);
        result = entry_json(all, entry);
    } else if (!c->load && failed) entry->state = ADAPTER_LOADED;
    else {
        if (!c->load) result = json_pack("{s:s, s:b}", "name", entry->name, "unloaded", 1);
        forget(all, entry);
    }
    if (!failed && c->call) save(all);
    if (c->call && failed) call_fail(c->call, &c->error);
    else if (c->call) call_result(c->call, result);
    else json_decref(result);
    free(c);
}

static void deliver(struct letter *letter) { changed((struct change *)letter); }

/* On rank 0's thread. */
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

static void open_files(uv_work_t *work) {
    struct change *c = work->data;
    adapter_open(&c->entry->adapter, c->server->model, c->entry->path, &c->error);
}

static void on_opened(uv_work_t *work, int status) {
    (void)status;
    struct change *c = work->data;
    c->put = c->entry->adapter;
    if (c->error.kind == ERR_NONE) ask_ranks(c);
    else changed(c);
}

static int begin_load(struct server *server, struct call *call, const char *name, const char *path,
                      struct error *e) {
    struct adapters *all = server->adapters;
    int slot = 0;
    while (slot < SHARD_ADAPTERS && all->slots[slot]) slot++;
    if (slot == SHARD_ADAPTERS)
        return error_set(e, ERR_CONFLICT, "%d adapters are loaded, more are not: unload one first",
                         SHARD_ADAPTERS);
    struct adapter_entry *entry = calloc(1, sizeof *entry);
    struct change *c = calloc(1, sizeof *c);
    char *own = path ? strdup(path) : NULL;
    if (entry && !path && (own = malloc(strlen(all->state_dir) + strlen(name) + 16)))
        sprintf(own, "%s/adapters/%s", all->state_dir, name);
    if (!entry || !c || !own) {
        free(entry);
        free(c);
        free(own);
        return error_set(e, ERR_MEMORY, "no memory to load an adapter");
    }
    copy_name(entry->name, name);
    entry->path = own;
    entry->slot = slot;
    all->slots[slot] = entry;
    c->server = server;
    c->call = call;
    c->entry = entry;
    c->load = true;
    c->work.data = c;
    uv_queue_work(&server->loop, &c->work, open_files, on_opened);
    return 0;
}

void adapters_restore(struct server *server) {
    struct adapters *all = server->adapters;
    size_t i;
    json_t *item;
    struct error e = {0};
    json_array_foreach(json_object_get(all->restore, "adapters"), i, item) {
        const char *name = json_string_value(json_object_get(item, "name"));
        const char *path = json_string_value(json_object_get(item, "path"));
        if (!name || !path || strlen(name) > 64) continue;
        if (begin_load(server, NULL, name, path, &e)) log_warn("adapter %s: %s", name, e.message);
    }
    copy_name(all->by_default, json_string_value(json_object_get(all->restore, "default")));
    copy_name(all->before, json_string_value(json_object_get(all->restore, "before")));
    json_decref(all->restore);
    all->restore = NULL;
}

/* --- requests ---------------------------------------------------------------------------------------- */

const struct adapter_entry *adapters_next(const struct server *server, int *slot) {
    while (*slot < SHARD_ADAPTERS) {
        const struct adapter_entry *entry = server->adapters->slots[(*slot)++];
        if (entry) return entry;
    }
    return NULL;
}

int adapters_choose(struct server *server, const char *name, struct adapter_entry **out,
                    struct error *e) {
    struct adapters *all = server->adapters;
    *out = NULL;
    if (!name) name = all->by_default;
    if (*name == '\0' || strcmp(name, "base") == 0) return 0;
    struct adapter_entry *entry = find(all, name);
    if (!entry)
        return error_set(e, ERR_NOT_FOUND,
                         "no adapter %s is loaded: adapter.list shows those that are, adapter.load "
                         "loads one",
                         name);
    if (entry->state != ADAPTER_LOADED)
        return error_set(e, ERR_CONFLICT, "adapter %s is being %s: try again shortly", name,
                         entry->state == ADAPTER_LOADING ? "loaded" : "unloaded");
    *out = entry;
    return 0;
}

/* --- methods ----------------------------------------------------------------------------------------- */

static const char *param_name(const struct call *call) {
    return json_string_value(json_object_get(call->params, "name"));
}

static bool good_name(const char *name) {
    static const char allowed[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    size_t n = strlen(name);
    return n >= 1 && n <= 64 && strspn(name, allowed) == n && name[0] != '.' &&
           strcmp(name, "base") != 0;
}

static json_t *summary(const struct adapters *all) {
    json_t *list = json_array();
    for (int i = 0; i < SHARD_ADAPTERS; i++)
        if (all->slots[i]) json_array_append_new(list, entry_json(all, all->slots[i]));
    return json_pack("{s:o, s:o, s:o}", "adapters", list, "default", name_json(all->by_default),
                     "before", name_json(all->before));
}

void handle_adapter_list(struct call *call) { call_result(call, summary(call->server->adapters)); }

void handle_adapter_load(struct call *call) {
    struct server *server = call->server;
    const char *name = param_name(call);
    const char *path = json_string_value(json_object_get(call->params, "path"));
    struct error e = {0};
    int err = 0;
    if (!good_name(name)) {
        err = error_set(&e, ERR_PARAMS,
                        "name must be 1 to 64 of the characters A-Z a-z 0-9 . _ - and neither \"base\" "
                        "nor begin with a dot");
        error_note(&e, "field", "name");
    } else if (find(server->adapters, name))
        err = error_set(&e, ERR_CONFLICT, "an adapter %s is loaded already: unload it first", name);
    if (!err) err = begin_load(server, call, name, path, &e);
    if (err) call_fail(call, &e);
}

void handle_adapter_unload(struct call *call) {
    struct server *server = call->server;
    struct adapters *all = server->adapters;
    struct adapter_entry *entry = NULL;
    struct error e = {0};
    int err = adapters_choose(server, param_name(call), &entry, &e);
    if (!err && !entry) err = error_set(&e, ERR_PARAMS, "the base cannot be unloaded");
    if (!err && entry->users > 0)
        err = error_set(&e, ERR_CONFLICT, "adapter %s is in use by %d requests: try again when they "
                        "have ended", entry->name, entry->users);
    if (!err && strcmp(entry->name, all->by_default) == 0)
        err = error_set(&e, ERR_CONFLICT,
                        "adapter %s is the default: activate another or roll back first", entry->name);
    struct change *c = err ? NULL : calloc(1, sizeof *c);
    if (!err && !c) err = error_set(&e, ERR_MEMORY, "no memory to unload an adapter");
    if (err) {
        call_fail(call, &e);
        return;
    }
    *c = (struct change){.server = server, .call = call, .entry = entry};
    entry->state = ADAPTER_UNLOADING;
    ask_ranks(c);
}

static void switch_default(struct call *call, const char *to) {
    struct adapters *all = call->server->adapters;
    char name[65], was[65];
    copy_name(name, to);
    copy_name(was, all->by_default);
    if (strcmp(was, name) != 0) {
        copy_name(all->before, was);
        copy_name(all->by_default, name);
        log_info("requests now get %s%s, before %s", *name ? "adapter " : "the base", name,
                 *was ? was : "the base");
        save(all);
    }
    call_result(call, summary(all));
}

void handle_adapter_activate(struct call *call) {
    struct adapter_entry *entry;
    struct error e = {0};
    if (adapters_choose(call->server, param_name(call), &entry, &e)) call_fail(call, &e);
    else switch_default(call, entry ? entry->name : "");
}

void handle_adapter_rollback(struct call *call) {
    struct adapters *all = call->server->adapters;
    struct error e = {0};
    struct adapter_entry *entry;
    char before[65];
    copy_name(before, all->before);
    /* "" names the base here, not the default. */
    if (adapters_choose(call->server, *before ? before : "base", &entry, &e)) call_fail(call, &e);
    else switch_default(call, before);
}
