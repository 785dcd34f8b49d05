#include "daemon/metrics.h"

#include <stdio.h>
#include <stdlib.h>

/* Upper bounds in seconds. */
static const double bounds[HISTOGRAM_BUCKETS] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                                 0.5,   1,    2.5,   5,    10,  60};

static void histogram_add(struct histogram *h, double seconds) {
    int i = 0;
    while (i < HISTOGRAM_BUCKETS && seconds > bounds[i]) i++;
    h->counts[i]++;
    h->sum += seconds;
}

void metrics_count(struct metrics *m, const struct gen_event *end) {
    const struct gen_timings *t = &end->timings;
    m->finished[end->finish]++;
    histogram_add(&m->queue, t->queue_ms / 1e3);
    histogram_add(&m->whole, (t->queue_ms + t->prefill_ms + t->decode_ms) / 1e3);
    if (end->n_completion == 0) return;
    histogram_add(&m->prefill, t->prefill_ms / 1e3);
    histogram_add(&m->decode, t->decode_ms / 1e3);
    if (end->n_completion > 1)
        histogram_add(&m->between, t->decode_ms / 1e3 / (double)(end->n_completion - 1));
    histogram_add(&m->first_token, (t->queue_ms + t->prefill_ms) / 1e3);
}

static void head(FILE *out, const char *name, const char *type, const char *help) {
    fprintf(out, "# HELP tpd:%s %s\n# TYPE tpd:%s %s\n", name, help, name, type);
}

static void gauge(FILE *out, const char *name, double value, const char *help) {
    head(out, name, "gauge", help);
    fprintf(out, "tpd:%s %.17g\n", name, value);
}

static void counter(FILE *out, const char *name, double value, const char *help) {
    head(out, name, "counter", help);
    fprintf(out, "tpd:%s %.17g\n", name, value);
}

static void histogram(FILE *out, const char *name, const struct histogram *h, const char *help) {
    head(out, name, "histogram", help);
    uint64_t below = 0;
    for (int i = 0; i < HISTOGRAM_BUCKETS; i++) {
        below += h->counts[i];
        fprintf(out, "tpd:%s_bucket{le=\"%g\"} %llu\n", name, bounds[i], (unsigned long long)below);
    }
    below += h->counts[HISTOGRAM_BUCKETS];
    fprintf(out, "tpd:%s_bucket{le=\"+Inf\"} %llu\n", name, (unsigned long long)below);
    fprintf(out, "tpd:%s_sum %.17g\ntpd:%s_count %llu\n", name, h->sum, name,
            (unsigned long long)below);
}

/* A label's value: backslash, quote and newline are escaped. */
static void label(FILE *out, const char *key, const char *value) {
    fprintf(out, "%s=\"", key);
    for (; *value; value++) {
        if (*value == '\n') fputs("\\n", out);
        else {
            if (*value == '\\' || *value == '"') fputc('\\', out);
            fputc(*value, out);
        }
    }
    fputc('"', out);
}

static void engine_metrics(FILE *out, const struct engine_stats *s) {
    gauge(out, "num_requests_running", s->slots_busy, "Requests that run now.");
    gauge(out, "num_requests_waiting", s->queue, "Requests that wait for a slot.");
    gauge(out, "slots", s->slots, "Requests that can run at once.");
    gauge(out, "kv_cache_usage_perc", s->kv_blocks > 0 ? (double)s->kv_used / s->kv_blocks : 0,
          "Share of the KV cache's blocks in use, 1 = all.");
    gauge(out, "kv_cache_blocks", s->kv_blocks, "Blocks of the KV cache.");
    gauge(out, "kv_cache_blocks_used", s->kv_used, "Blocks that requests use.");
    gauge(out, "kv_cache_blocks_cached", s->kv_cached,
          "Blocks that no request uses and whose content is kept.");
    counter(out, "prefix_cache_queries_total", (double)s->prefix_queries,
            "Tokens of prompts that were looked for in the cache.");
    counter(out, "prefix_cache_hits_total", (double)s->prefix_hits,
            "Tokens of prompts that were there.");
    counter(out, "num_preemptions_total", (double)s->preemptions,
            "Times that a request gave its KV blocks up, to compute them anew later.");
    counter(out, "prompt_tokens_total", (double)s->prompt_tokens, "Prompt tokens computed.");
    counter(out, "generation_tokens_total", (double)s->completion_tokens, "Tokens generated.");
    counter(out, "prefill_seconds_total", s->prefill_seconds, "Time in steps that read prompts.");
    counter(out, "decode_seconds_total", s->decode_seconds, "Time in steps that made tokens.");
    counter(out, "spec_decode_num_draft_tokens_total", (double)s->guessed_tokens,
            "Tokens guessed ahead, from the text or by a draft model, for requests that have ended.");
    counter(out, "spec_decode_num_accepted_tokens_total", (double)s->accepted_tokens,
            "Those of them that came true.");
    counter(out, "draft_seconds_total", s->draft_seconds, "Time in steps of the draft model.");
    gauge(out, "prefill_tokens_per_second", s->prefill_tokens_per_s, "Over the last 10 s of work.");
    gauge(out, "decode_tokens_per_second", s->decode_tokens_per_s, "Over the last 10 s of work.");
    head(out, "device_memory_used_bytes", "gauge", "Memory of a rank's device in use by tpd.");
    for (int r = 0; r < s->tp; r++) {
        fprintf(out, "tpd:device_memory_used_bytes{rank=\"%d\",", r);
        label(out, "device", s->ranks[r].name);
        fprintf(out, "} %zu\n", mem_used(&s->ranks[r].use));
    }
    head(out, "device_lost", "gauge", "1 when a rank's device is lost and tpd must be started again.");
    for (int r = 0; r < s->tp; r++)
        fprintf(out, "tpd:device_lost{rank=\"%d\"} %d\n", r, s->ranks[r].loss[0] != '\0');
}

static void daemon_metrics(FILE *out, const struct metrics *m, const struct metrics_gauges *g) {
    head(out, "info", "gauge", "The build and its model; always 1.");
    fputs("tpd:info{", out);
    label(out, "version", g->version);
    fputc(',', out);
    label(out, "model", g->model);
    fputs("} 1\n", out);
    gauge(out, "uptime_seconds", g->uptime_s, "Time since the daemon started.");
    gauge(out, "connections", (double)g->connections, "Open connections.");
    gauge(out, "live_requests", (double)g->live_requests,
          "Requests not yet answered, of any method.");
    gauge(out, "requests_loading", (double)g->parked, "Requests that wait for the model to open.");
    counter(out, "rpc_requests_total", (double)m->rpc_requests, "Messages taken as requests.");
    counter(out, "rpc_errors_total", (double)m->rpc_errors, "Error answers.");
    head(out, "http_requests_total", "counter", "Answers by HTTP, by class of status.");
    for (int i = 2; i <= 5; i++)
        fprintf(out, "tpd:http_requests_total{status=\"%dxx\"} %llu\n", i,
                (unsigned long long)m->http_requests[i]);
    counter(out, "connections_refused_total", (double)m->connections_refused,
            "Connections over the limit or not permitted.");
    counter(out, "slow_clients_total", (double)m->slow_clients,
            "Connections dropped because their client did not read.");
    head(out, "request_success_total", "counter", "Generations that ended, by finish reason.");
    for (int i = 0; i < FINISH_COUNT; i++)
        fprintf(out, "tpd:request_success_total{finished_reason=\"%s\"} %llu\n",
                finish_reason_name((enum finish_reason)i), (unsigned long long)m->finished[i]);
    histogram(out, "request_queue_time_seconds", &m->queue, "Wait for a slot.");
    histogram(out, "request_prefill_time_seconds", &m->prefill, "Reading the prompt.");
    histogram(out, "request_decode_time_seconds", &m->decode, "Making the tokens.");
    histogram(out, "time_to_first_token_seconds", &m->first_token,
              "From arrival to the first token.");
    histogram(out, "request_time_per_output_token_seconds", &m->between,
              "Between two tokens, the mean of each request.");
    histogram(out, "e2e_request_latency_seconds", &m->whole, "From arrival to the end.");
}

char *metrics_text(const struct metrics *m, const struct engine_stats *stats,
                   const struct metrics_gauges *gauges) {
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    if (!out) return NULL;
    daemon_metrics(out, m, gauges);
    if (stats) engine_metrics(out, stats);
    bool failed = ferror(out) != 0;
    if (fclose(out) != 0 || failed) {
        free(text);
        return NULL;
    }
    return text;
}
