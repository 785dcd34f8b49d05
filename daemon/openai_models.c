/* GET /v1/models: the model that is loaded, and its adapters. */
#include "daemon/openai.h"
#include "daemon/server.h"

#include <string.h>
#include <time.h>

static json_t *model_json(const struct server *server, const char *id, const char *parent) {
    int64_t age_ns = clock_ns() - server->started_ns;
    json_t *model = json_pack("{s:s, s:s, s:I, s:s, s:s, s:s?}", "id", id, "object", "model",
                              "created", (json_int_t)(time(NULL) - age_ns / 1000000000), "owned_by",
                              "tpd", "root", openai_base_name(server), "parent", parent);
    struct engine_stats stats = {0};
    if (server->engine) engine_stats(server->engine, &stats);
    if (model && stats.ctx > 0)
        json_object_set_new(model, "max_model_len", json_integer(stats.ctx));
    return model;
}

static const struct adapter_entry *next_loaded(const struct server *server, int *slot) {
    const struct adapter_entry *entry;
    while ((entry = adapters_next(server, slot)))
        if (entry->state == ADAPTER_LOADED) return entry;
    return NULL;
}

void handle_openai_models(struct call *call) {
    const struct server *server = call->server;
    const char *base = openai_base_name(server);
    const struct adapter_entry *entry;
    json_t *list = json_array();
    int slot = 0;
    bool none = server_state_lacks_model(server->state);
    if (!none) json_array_append_new(list, model_json(server, base, NULL));
    while (!none && (entry = next_loaded(server, &slot)))
        json_array_append_new(list, model_json(server, entry->name, base));
    call_result(call, json_pack("{s:s, s:o}", "object", "list", "data", list));
}

void handle_openai_model(struct call *call) {
    const struct server *server = call->server;
    const char *name = json_string_value(json_object_get(call->params, "model"));
    const char *base = openai_base_name(server);
    const struct adapter_entry *entry;
    struct error e;
    int slot = 0;
    if (strcmp(name, base) == 0) {
        call_result(call, model_json(server, base, NULL));
        return;
    }
    while ((entry = next_loaded(server, &slot)))
        if (strcmp(entry->name, name) == 0) {
            call_result(call, model_json(server, entry->name, base));
            return;
        }
    error_set(&e, ERR_NOT_FOUND, "no model \"%.100s\": /v1/models lists those that are there", name);
    error_note(&e, "field", "model");
    call_fail(call, &e);
}
