#include "daemon/openai.h"

#include "base/file.h"
#include "daemon/sampling_params.h"
#include "daemon/schema.h"
#include "daemon/server.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

const char *openai_base_name(const struct server *server) {
    const char *name = server->config->model_name;
    return *name ? name : path_base(server->config->model);
}

/* The base's own name means the base with whatever adapter is the default; "base" is it alone. */
static int choose_model(struct generation *g, const json_t *params, struct error *e) {
    struct server *server = g->call->server;
    const char *model = json_string_value(json_object_get(params, "model"));
    const char *adapter = json_string_value(json_object_get(params, "adapter"));
    if (!adapter && model && strcmp(model, openai_base_name(server)) != 0) adapter = model;
    int rc = adapters_choose(server, adapter, &g->adapter, e);
    if (rc == 0 && g->adapter) g->adapter->users++;
    if (rc == -(int)ERR_NOT_FOUND && adapter == model) {
        error_set(e, ERR_NOT_FOUND,
                  "no model \"%.100s\": this server has \"%.200s\" and its adapters (/v1/models)",
                  model, openai_base_name(server));
        error_note(e, "field", "model");
    }
    return rc;
}

static int make_about(struct generation *g, const char *prefix, const json_t *params,
                      struct error *e) {
    const char *model = json_string_value(json_object_get(params, "model"));
    if (!model) model = openai_base_name(g->call->server);
    struct openai_about *about = calloc(1, sizeof *about + strlen(model) + 1);
    if (!about) return error_set(e, ERR_MEMORY, "no memory for the request");
    uint64_t number[2] = {(uint64_t)clock_ns(), (uint64_t)(uintptr_t)about};
    if (getrandom(number, sizeof number, GRND_NONBLOCK) < 0) number[0] ^= number[1] << 20;
    snprintf(about->id, sizeof about->id, "%s-%016" PRIx64 "%08" PRIx64, prefix, number[0],
             number[1] >> 32);
    about->created = (int64_t)time(NULL);
    const json_t *options = json_object_get(params, "stream_options");
    about->told_usage = g->stream && json_is_true(json_object_get(options, "include_usage"));
    strcpy(about->model, model);
    g->about = about;
    return 0;
}

/* response_format, or one of tpd's own parameters that mean the same. */
static int read_form(struct generation *g, const json_t *params, struct error *e) {
    struct structured_cache *cache = &g->call->server->structured;
    const json_t *format = json_object_get(params, "response_format");
    int rc = structured_read(cache, params, &g->sampling.grammar, e);
    if (rc != 0 || !format || json_is_null(format)) return rc;
    if (g->sampling.grammar)
        return schema_refuse(e, "response_format", "left out beside json_schema and grammar", format);
    return structured_read_format(cache, format, &g->sampling.grammar, e);
}

int openai_read(struct generation *g, const char *prefix, struct error *e) {
    const json_t *params = g->call->params;
    g->stream = json_is_true(json_object_get(params, "stream"));
    int rc = make_about(g, prefix, params, e);
    if (rc == 0)
        rc = sampling_read(&g->sampling, params, model_config(g->call->server->model)->vocab, e);
    if (rc == 0) rc = read_form(g, params, e);
    return rc == 0 ? choose_model(g, params, e) : rc;
}

void openai_put_head(struct json_out *out, const struct generation *g, const char *object) {
    const struct openai_about *about = g->about;
    json_out_key(out, "id");
    json_out_string(out, about->id);
    json_out_key(out, "object");
    json_out_string(out, object);
    json_out_member_int(out, "created", about->created);
    json_out_key(out, "model");
    json_out_string(out, about->model);
}

void openai_put_usage(struct json_out *out, const struct generation *g) {
    int64_t prompt = 0, cached = 0, completion = 0;
    for (int i = 0; i < g->n; i++) {
        const struct gen_event *end = g->choices[i].end;
        completion += end->n_completion;
        if (i % (g->n / g->n_prompts) != 0) continue; /* a prompt counts once */
        prompt += end->n_prompt;
        cached += end->n_cached;
    }
    json_out_key(out, "usage");
    json_out_open(out, '{');
    json_out_member_int(out, "prompt_tokens", prompt);
    json_out_member_int(out, "completion_tokens", completion);
    json_out_member_int(out, "total_tokens", prompt + completion);
    json_out_key(out, "prompt_tokens_details");
    json_out_open(out, '{');
    json_out_member_int(out, "cached_tokens", cached);
    json_out_close(out, '}');
    json_out_close(out, '}');
}

const char *openai_finish_reason(const struct gen_event *end) {
    return end->finish == FINISH_LENGTH ? "length" : "stop";
}

int openai_check_ends(const struct generation *g, struct error *e) {
    for (int i = 0; i < g->n; i++)
        if (g->choices[i].end->finish == FINISH_CANCELLED)
            return error_set(e, ERR_SHUTTING_DOWN, "the daemon shut down before the answer's end");
    return 0;
}

void openai_put_last(struct json_out *out, const struct generation *g, const char *object) {
    const struct openai_about *about = g->about;
    if (!about->told_usage) return;
    json_out_open(out, '{');
    openai_put_head(out, g, object);
    json_out_key(out, "choices");
    json_out_open(out, '[');
    json_out_close(out, ']');
    openai_put_usage(out, g);
    json_out_close(out, '}');
}
