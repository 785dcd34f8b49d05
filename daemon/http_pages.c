/* What HTTP answers beside the OpenAI paths: health, metrics, tokens, and a page for people. */
#include "daemon/openai.h"
#include "daemon/prompt.h"
#include "daemon/server.h"
#include "daemon/version.h"
#include "ranks/ranks.h"

#include <stdlib.h>
#include <string.h>

/* --- /health: the ranks answer, or the daemon is not well --- */

struct health {
    struct letter letter;
    struct call *call;
    struct error error;
};

static int meet_unit(struct rank *rank, void *arg, struct error *e) {
    (void)arg;
    comm_barrier(rank->comm);
    return rank->ctx->ops->wait(rank->ctx, e);
}

static int meet(void *arg, struct ranks *ranks, struct error *e) {
    return ranks_run(ranks, meet_unit, arg, e);
}

static void tell_health(struct letter *letter) {
    struct health *health = (struct health *)letter;
    if (health->error.kind != ERR_NONE) call_fail(health->call, &health->error);
    else call_result(health->call, json_pack("{s:s}", "status", "ok"));
    free(health);
}

/* On rank 0's thread. */
static void have_met(void *arg, const struct error *error) {
    struct health *health = arg;
    if (error) health->error = *error;
    health->letter.deliver = tell_health;
    mailbox_post(&health->call->server->mailbox, &health->letter);
}

static const char *health_name(enum server_state state) {
    switch (state) {
    case SERVER_STARTING:
    case SERVER_LOADING: return "loading";
    case SERVER_READY: return "ok";
    case SERVER_UNLOADING:
    case SERVER_UNLOADED: return "no model";
    case SERVER_DRAINING:
    case SERVER_ENDED:
    case SERVER_STATE_COUNT: break;
    }
    return "draining";
}

void handle_http_health(struct call *call) {
    struct server *server = call->server;
    struct error e;
    if (server->state != SERVER_READY) {
        struct http *http = http_of(call);
        if (http) http->status_out = 503;
        call_result(call, json_pack("{s:s}", "status", health_name(server->state)));
        return;
    }
    struct health *health = calloc(1, sizeof *health);
    int rc = health ? 0 : error_set(&e, ERR_MEMORY, "no memory for the request");
    if (health) health->call = call;
    if (rc == 0) rc = engine_change(server->engine, meet, have_met, health, &e);
    if (rc == 0) return;
    free(health);
    call_fail(call, &e);
}

/* --- /metrics --- */

static void answer_text(struct call *call, const char *content_type, char *text) {
    struct json_out out;
    struct http *http = http_of(call);
    if (http) http->content_type_out = content_type;
    call_begin_result(call, &out);
    if (text) json_out_raw(&out, text, strlen(text));
    else out.failed = true;
    free(text);
    call_end_result(call, &out);
}

void handle_http_metrics(struct call *call) {
    answer_text(call, "text/plain; version=0.0.4; charset=utf-8", server_metrics_text(call->server));
}

/* --- /tokenize, /detokenize --- */

static int tokenize(struct call *call, struct json_out *out, struct error *e) {
    const json_t *text = json_object_get(call->params, "prompt");
    bool special = !json_is_false(json_object_get(call->params, "add_special_tokens"));
    struct token_ids ids = {0};
    struct engine_stats stats;
    int rc = tokenizer_encode(call->server->tokenizer, json_string_value(text),
                              json_string_length(text), special, &ids, e);
    if (rc == 0) {
        engine_stats(call->server->engine, &stats);
        json_out_open(out, '{');
        json_out_member_int(out, "count", (int64_t)ids.n);
        json_out_member_int(out, "max_model_len", stats.ctx);
        json_out_key(out, "tokens");
        json_out_open(out, '[');
        for (size_t i = 0; i < ids.n; i++) json_out_int(out, ids.ids[i]);
        json_out_close(out, ']');
        json_out_close(out, '}');
    }
    token_ids_free(&ids);
    return rc;
}

static int detokenize(struct call *call, struct json_out *out, struct error *e) {
    return prompt_put_text(out, "prompt", call->server->tokenizer,
                           json_object_get(call->params, "tokens"), false, e);
}

void handle_http_tokenize(struct call *call) { call_write(call, tokenize); }
void handle_http_detokenize(struct call *call) { call_write(call, detokenize); }

/* --- / --- */

/* Static: what changes it asks for by itself, from /metrics and /v1/models of the same server. */
static const char page[] =
    "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>tpd</title>\n"
    "<meta name=\"viewport\" content=\"width=device-width\">\n"
    "<style>body{font:16px/1.5 system-ui,sans-serif;max-width:44rem;margin:2rem auto;padding:0 1rem}"
    "td{padding:.1rem 1rem .1rem 0}td+td{text-align:right;font-variant-numeric:tabular-nums}"
    "code{background:#8882;padding:0 .2rem}</style></head><body>\n"
    "<h1>tpd " TPD_VERSION "</h1>\n<p id=\"models\">…</p>\n<table id=\"numbers\"></table>\n"
    "<p>OpenAI API under <code>/v1</code> · <a href=\"/health\">/health</a> · "
    "<a href=\"/metrics\">/metrics</a> · <a href=\"/v1/models\">/v1/models</a></p>\n"
    "<script>\nconst rows=[['num_requests_running','requests running'],"
    "['num_requests_waiting','requests waiting'],['kv_cache_usage_perc','KV cache in use'],"
    "['prefill_tokens_per_second','prompt tokens/s'],['decode_tokens_per_second','tokens/s'],"
    "['generation_tokens_total','tokens made'],['uptime_seconds','uptime, s']];\n"
    "async function look(){try{\n"
    "const m=await(await fetch('/v1/models')).json();\n"
    "document.getElementById('models').textContent=m.data.map(x=>x.id).join(' · ');\n"
    "const t=await(await fetch('/metrics')).text();const v={};\n"
    "for(const l of t.split('\\n')){const k=/^tpd:(\\w+) (.*)$/.exec(l);if(k)v[k[1]]=+k[2];}\n"
    "document.getElementById('numbers').innerHTML=rows.map(([k,n])=>'<tr><td>'+n+'</td><td>'+"
    "(v[k]===undefined?'–':k==='kv_cache_usage_perc'?(100*v[k]).toFixed(0)+' %':"
    "Math.round(v[k]).toLocaleString())+'</td></tr>').join('');\n"
    "}catch(e){document.getElementById('models').textContent='no answer';}}\n"
    "look();setInterval(look,2000);\n</script></body></html>\n";

void handle_http_page(struct call *call) {
    answer_text(call, "text/html; charset=utf-8", strdup(page));
}
