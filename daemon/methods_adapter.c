/* The methods adapter.*. */
#include "daemon/adapters_private.h"
#include "base/log.h"
#include "daemon/methods.h"

#include <string.h>

static const char *param_name(const struct call *call) {
    return json_string_value(json_object_get(call->params, "name"));
}

static bool good_name(const char *name) {
    static const char allowed[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    size_t n = strlen(name);
    return n >= 1 && n <= 64 && strspn(name, allowed) == n && name[0] != '.' &&
           strcmp(name, "base") != 0 && strcmp(name, "default") != 0;
}

static json_t *name_json(const struct adapter_entry *entry) {
    return entry ? json_string(entry->name) : json_null();
}

static json_t *summary(struct adapters *all) {
    json_t *list = json_array();
    pthread_mutex_lock(&all->mutex);
    for (int i = 0; i < SHARD_ADAPTERS; i++)
        if (all->slots[i]) json_array_append_new(list, adapter_entry_json(all, all->slots[i]));
    json_t *json = json_pack("{s:o, s:o, s:o}", "adapters", list, "default",
                             name_json(all->by_default), "before", name_json(all->before));
    pthread_mutex_unlock(&all->mutex);
    return json;
}

void handle_adapter_list(struct call *call) { call_result(call, summary(call->server->adapters)); }

void handle_adapter_load(struct call *call) {
    const char *name = param_name(call);
    const char *path = json_string_value(json_object_get(call->params, "path"));
    struct error e = {0};
    int err = 0;
    if (!good_name(name)) {
        err = error_set(&e, ERR_PARAMS,
                        "name must be 1 to 64 of the characters A-Z a-z 0-9 . _ - and neither \"base\" "
                        "nor \"default\" nor begin with a dot");
        error_note(&e, "field", "name");
    }
    if (!err) err = adapters_begin_load(call->server, call, name, path, &e);
    if (err) call_fail(call, &e);
}

/* Whether nobody needs it. Under no lock: the loop alone takes and ends requests. */
static int check_unload(const struct adapters *all, const struct adapter_entry *entry,
                        struct error *e) {
    if (entry->state == ADAPTER_LOADING || entry->state == ADAPTER_UNLOADING)
        return error_set(e, ERR_CONFLICT, "adapter %s is being %s: try again shortly", entry->name,
                         entry->state == ADAPTER_LOADING ? "loaded" : "unloaded");
    if (entry->users > 0)
        return error_set(e, ERR_CONFLICT,
                         "adapter %s is in use by %d requests: try again when they have ended",
                         entry->name, entry->users);
    if (entry == all->by_default)
        return error_set(e, ERR_CONFLICT,
                         "adapter %s is the default: activate another or roll back first",
                         entry->name);
    return 0;
}

void handle_adapter_unload(struct call *call) {
    struct adapters *all = call->server->adapters;
    const char *name = param_name(call);
    struct error e = {0};
    pthread_mutex_lock(&all->mutex);
    struct adapter_entry *entry = adapters_find(all, name);
    int err = entry                     ? check_unload(all, entry, &e)
              : strcmp(name, "base") == 0 ? error_set(&e, ERR_PARAMS, "the base cannot be unloaded")
                                          : error_set(&e, ERR_NOT_FOUND, "no adapter %s is loaded", name);
    pthread_mutex_unlock(&all->mutex);
    if (!err) err = adapters_begin_unload(call->server, call, entry, &e);
    if (err) call_fail(call, &e);
}

/* What a switch left without a use goes; the answer says how things stand. */
static void answer(struct call *call, int err, const struct error *e) {
    if (err) {
        call_fail(call, e);
        return;
    }
    json_t *json = summary(call->server->adapters);
    adapters_sweep(call->server);
    call_result(call, json);
}

/* Under the mutex. */
static void switch_default(struct server *server, struct adapter_entry *to) {
    struct adapters *all = server->adapters;
    if (to == all->by_default) return;
    if (to) adapters_make_current(all, to);
    adapters_make_default(all, to);
    adapters_save(server);
    log_info("requests now get %s%s, before %s", to ? "adapter " : "the base", to ? to->name : "",
             all->before ? all->before->name : "the base");
}

void handle_adapter_activate(struct call *call) {
    struct adapter_entry *entry;
    struct error e = {0};
    struct adapters *all = call->server->adapters;
    int err = adapters_choose(call->server, param_name(call), &entry, &e);
    pthread_mutex_lock(&all->mutex);
    if (!err) switch_default(call->server, entry);
    pthread_mutex_unlock(&all->mutex);
    answer(call, err, &e);
}

/* Under the mutex. A name returns to its version before; the default follows, if it was that. */
static int roll_back_name(struct server *server, const char *name, struct error *e) {
    struct adapters *all = server->adapters;
    struct adapter_entry *now = adapters_find(all, name), *to = adapters_previous(all, name);
    if (!now || !to)
        return error_set(e, ERR_NOT_FOUND,
                         now ? "adapter %s has no version before this one" : "no adapter %s is loaded",
                         name);
    if (now == all->by_default) switch_default(server, to);
    else {
        adapters_make_current(all, to);
        adapters_save(server);
    }
    return 0;
}

/* Under the mutex. */
static int roll_back_default(struct server *server, struct error *e) {
    struct adapter_entry *to = server->adapters->before;
    if (to == server->adapters->by_default)
        return error_set(e, ERR_NOT_FOUND, "there is nothing to go back to: %s%s is the default, and no other was",
                         to ? "adapter " : "the base", to ? to->name : "");
    int err = to ? adapters_check(to, e) : 0;
    if (!err) switch_default(server, to);
    return err;
}

void handle_adapter_rollback(struct call *call) {
    struct adapters *all = call->server->adapters;
    const char *name = param_name(call);
    struct error e = {0};
    pthread_mutex_lock(&all->mutex);
    int err = name && strcmp(name, "default") != 0 ? roll_back_name(call->server, name, &e)
                                                   : roll_back_default(call->server, &e);
    pthread_mutex_unlock(&all->mutex);
    answer(call, err, &e);
}
