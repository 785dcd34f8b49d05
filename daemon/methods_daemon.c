/* The methods about the daemon itself: ping, status, model.info, metrics, cancel, shutdown. */
#include "daemon/methods.h"
#include "daemon/rpc.h"
#include "daemon/server.h"
#include "daemon/training.h"
#include "daemon/version.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void handle_ping(struct call *call) {
    call_result(call, json_pack("{s:s, s:i}", "version", TPD_VERSION, "protocol", TPD_PROTOCOL));
}

static double uptime_s(const struct server *server) {
    return (double)(clock_ns() - server->started_ns) / 1e9;
}

static json_t *string_json(const char *text) {
    return json_text(text, strlen(text));
}

static json_t *model_json(const struct server *server) {
    const struct model *model = server->model;
    if (!model)
        return json_pack("{s:o, s:n}", "path",
                         server_state_lacks_model(server->state) ? json_null()
                                                                 : string_json(server->config->model),
                         "architecture");
    return json_pack("{s:o, s:s, s:s, s:s, s:o}", "path", string_json(model_path(model)), "architecture",
                     arch_name(model_config(model)->arch), "dtype",
                     dtype_info(model_dtype(model))->name, "quant", server->config->quant, "draft",
                     server->draft ? string_json(model_path(server->draft)) : json_null());
}

static json_t *devices_json(const struct engine_stats *stats) {
    json_t *devices = json_array();
    for (int r = 0; r < stats->tp; r++) {
        const struct mem_use *use = &stats->ranks[r].use;
        json_t *device =
            json_pack("{s:i, s:s, s:{s:I, s:I, s:I}}", "rank", r, "name", stats->ranks[r].name, "memory",
                      "used", (json_int_t)mem_used(use), "free", (json_int_t)use->free, "total",
                      (json_int_t)use->total);
        if (stats->ranks[r].loss[0])
            json_object_set_new(device, "lost", string_json(stats->ranks[r].loss));
        json_array_append_new(devices, device);
    }
    return devices;
}

/* How each rank reaches the memory of each. */
static json_t *links_json(const struct devices *devices, int tp) {
    json_t *links = json_array();
    for (int a = 0; a < tp; a++) {
        json_t *row = json_array();
        for (int b = 0; b < tp; b++) json_array_append_new(row, json_string(devices_link(devices, a, b)));
        json_array_append_new(links, row);
    }
    return links;
}

static json_t *kv_json(const struct engine_stats *s) {
    const char *type = s->kv_type >= 0 ? dtype_info((enum dtype)s->kv_type)->name : "";
    return json_pack("{s:s, s:i, s:i, s:i, s:i, s:i}", "type", type, "block_size",
                     (int)s->block_size, "blocks", (int)s->kv_blocks, "used", (int)s->kv_used,
                     "cached", (int)s->kv_cached, "free",
                     (int)(s->kv_blocks - s->kv_used - s->kv_cached));
}

static void add_engine(json_t *status, const struct engine_stats *s, const struct devices *devices,
                       double trained_per_s, int64_t parked) {
    json_object_set_new(status, "devices", devices_json(s));
    json_object_set_new(status, "links", links_json(devices, s->tp));
    json_object_set_new(status, "ctx", json_integer(s->ctx));
    json_object_set_new(
        status, "slots",
        json_pack("{s:i, s:i}", "total", (int)s->slots, "busy", (int)s->slots_busy));
    json_object_set_new(status, "queue", json_integer(s->queue + parked));
    json_object_set_new(status, "kv", kv_json(s));
    json_object_set_new(status, "tokens_per_s",
                        json_pack("{s:o, s:o, s:o}", "prefill", json_real(s->prefill_tokens_per_s),
                                  "decode", json_real(s->decode_tokens_per_s), "train",
                                  json_real(trained_per_s)));
    json_object_set_new(status, "requests",
                        json_pack("{s:I, s:I, s:I}", "total", (json_int_t)s->requests, "failed",
                                  (json_int_t)s->requests_failed, "cancelled",
                                  (json_int_t)s->requests_cancelled));
    json_object_set_new(status, "tokens",
                        json_pack("{s:I, s:I, s:I, s:I}", "prompt", (json_int_t)s->prompt_tokens,
                                  "completion", (json_int_t)s->completion_tokens, "drafted",
                                  (json_int_t)s->guessed_tokens, "accepted",
                                  (json_int_t)s->accepted_tokens));
}

/* Before the engine runs, its part says that nothing is there yet. */
static void stats_of(const struct server *server, struct engine_stats *stats) {
    memset(stats, 0, sizeof *stats);
    stats->kv_type = -1;
    stats->slots = (int32_t)server->config->slots;
    if (server->engine) engine_stats(server->engine, stats);
    engine_stats_add(stats, &server->past);
}

/* On the worker pool: the store may wait for the disk. */
static void find_running_job(struct call *call) {
    struct job job;
    struct error e;
    if (jobs_running(call->server->training->jobs, &job, &e) != 0) return;
    call->state = job_json(&job, false);
    job_free_fields(&job);
}

static void answer_status(struct call *call) {
    const struct server *server = call->server;
    json_t *job = call->state;
    struct engine_stats stats;
    call->state = NULL;
    stats_of(server, &stats);
    json_t *status = json_pack(
        "{s:s, s:i, s:s, s:i, s:o, s:o, s:i, s:I, s:o}", "version", TPD_VERSION, "protocol",
        TPD_PROTOCOL, "state", server_state_name(server->state), "pid", (int)getpid(), "uptime_s",
        json_real(uptime_s(server)), "model", model_json(server), "tp", (int)server->config->tp,
        "connections", (json_int_t)server->n_conns, "job", job ? job : json_null());
    if (status)
        json_object_set_new(status, "cpu", server->devices.n_gpus ? json_null() : json_string(kernels_cpu_level()));
    if (status)
        add_engine(status, &stats, &server->devices, training_tokens_per_s(server),
                   calls_count_parked(server));
    call_result(call, status);
}

void handle_status(struct call *call) {
    call_in_thread(call, find_running_job, answer_status);
}

static json_t *shape_json(const struct model_config *c) {
    return json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:b}", "layers", c->n_layers,
                     "hidden", c->hidden, "heads", c->n_heads, "kv_heads", c->n_kv_heads,
                     "head_dim", c->head_dim, "ffn", c->ffn, "vocab", c->vocab, "max_len",
                     c->max_len, "sliding_window", c->sliding_window, "tied_head", c->tied_head);
}

/* Bytes of each rank by what they are for. */
static json_t *rank_bytes_json(const struct engine_stats *stats) {
    json_t *ranks = json_array();
    for (int r = 0; r < stats->tp; r++) {
        const size_t *bytes = stats->ranks[r].use.bytes;
        json_t *rank = json_object();
        for (int kind = 0; kind < MEM_KIND_COUNT; kind++)
            json_object_set_new(rank, mem_kind_name((enum mem_kind)kind),
                                json_integer((json_int_t)bytes[kind]));
        json_array_append_new(ranks, rank);
    }
    return ranks;
}

static json_t *draft_json(const struct server *server) {
    const struct model *draft = server->draft;
    if (!draft) return json_null();
    return json_pack("{s:o, s:s, s:s, s:I, s:o, s:i}", "path", string_json(model_path(draft)),
                     "architecture", arch_name(model_config(draft)->arch), "dtype",
                     dtype_info(model_dtype(draft))->name, "bytes", (json_int_t)model_weight_bytes(draft),
                     "shape", shape_json(model_config(draft)), "tp", (int)server->config->draft_tp);
}

void handle_model_info(struct call *call) {
    const struct server *server = call->server;
    struct error e;
    if (call->cancelled || !server->model) {
        error_set(&e, ERR_CANCELLED, "the request was cancelled");
        call_fail(call, &e);
        return;
    }
    struct engine_stats stats;
    stats_of(server, &stats);
    const struct model_config *config = model_config(server->model);
    json_t *eos = json_array();
    for (int32_t i = 0; i < config->n_eos; i++)
        json_array_append_new(eos, json_integer(config->eos_ids[i]));
    call_result(call, json_pack("{s:o, s:s, s:s, s:s, s:I, s:o, s:i, s:i, s:o, s:o, s:o, s:o}", "path",
                                string_json(model_path(server->model)), "architecture",
                                arch_name(config->arch), "dtype",
                                dtype_info(model_dtype(server->model))->name, "quant",
                                server->config->quant, "bytes",
                                (json_int_t)model_weight_bytes(server->model), "shape",
                                shape_json(config), "ctx", (int)stats.ctx, "tp",
                                (int)server->config->tp, "ranks", rank_bytes_json(&stats), "bos",
                                config->bos_id >= 0 ? json_integer(config->bos_id) : json_null(),
                                "eos", eos, "draft", draft_json(server)));
}

char *server_metrics_text(const struct server *server) {
    struct engine_stats stats;
    stats_of(server, &stats);
    const struct metrics_gauges gauges = {
        .connections = server->n_conns,
        .live_requests = server->n_calls,
        .parked = calls_count_parked(server),
        .uptime_s = uptime_s(server),
        .version = TPD_VERSION,
        .model = server->config->model,
    };
    return metrics_text(&server->metrics, server->engine ? &stats : NULL, &gauges);
}

void handle_metrics(struct call *call) {
    char *text = server_metrics_text(call->server);
    json_t *result =
        text ? json_pack("{s:s, s:o}", "content_type", "text/plain; version=0.0.4; charset=utf-8",
                         "text", string_json(text))
             : NULL;
    free(text);
    call_result(call, result);
}

void handle_cancel(struct call *call) {
    struct call *target = rpc_find(call->conn, json_object_get(call->params, "id"));
    bool live = target && target != call;
    if (live) call_cancel(target);
    call_result(call, json_pack("{s:b}", "cancelled", live));
}

void handle_shutdown(struct call *call) {
    struct server *server = call->server;
    bool drain = json_is_true(json_object_get(call->params, "drain"));
    json_t *timeout = json_object_get(call->params, "timeout_s");
    double timeout_s = json_is_number(timeout) ? json_number_value(timeout)
                                               : (double)server->config->drain_timeout_s;
    json_int_t live = (json_int_t)server->n_calls - 1;
    call_result(call, json_pack("{s:b, s:I}", "drain", drain, "live_requests", live));
    server_shutdown(server, drain, (int64_t)(timeout_s * 1000));
}
