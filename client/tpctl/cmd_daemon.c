/* tpctl ping, metrics and shutdown: the daemon as a process. */
#include "tpctl.h"

#include <stdio.h>
#include <time.h>

const struct option_def shutdown_options[] = {
    {"drain", 0, OPTION_FLAG, NULL, "drain", "let live requests end first"},
    {"timeout", 0, OPTION_DURATION, "TIME", NULL, "drain at most TIME"},
    {0},
};

static double now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

int cmd_ping(struct tool *tool, const struct args *args) {
    (void)args;
    json_t *result;
    double start = now_ms();
    int rc = tool_ask(tool, "ping", NULL, &result);
    if (rc != EXIT_OK) return rc;
    const char *version = json_string_value(json_object_get(result, "version"));
    if (!version) version = "?";
    if (tool->format == OUT_JSON) put_json(result);
    else if (tool->format == OUT_PLAIN) printf("%s\t%s\n", version, tpd_socket(tool->client));
    else if (!tool->quiet)
        printf("tpd %s answers at %s in %.1f ms\n", version, tpd_socket(tool->client),
               now_ms() - start);
    json_decref(result);
    return EXIT_OK;
}

int cmd_metrics(struct tool *tool, const struct args *args) {
    (void)args;
    json_t *result;
    int rc = tool_ask(tool, "metrics", NULL, &result);
    if (rc != EXIT_OK) return rc;
    if (tool->format == OUT_JSON) put_json(result);
    else put_string(tool, json_is_string(result) ? result : json_object_get(result, "text"));
    json_decref(result);
    return EXIT_OK;
}

int cmd_shutdown(struct tool *tool, const struct args *args) {
    json_t *result;
    int64_t timeout_ms = args_integer(args, "timeout", 0);
    if (timeout_ms)
        json_object_set_new(args->params, "timeout_s", json_real((double)timeout_ms / 1000));
    int rc = tool_ask(tool, "shutdown", args->params, &result);
    if (rc != EXIT_OK) return rc;
    bool drain = json_is_true(json_object_get(args->params, "drain"));
    json_int_t live = json_integer_value(json_object_get(result, "live_requests"));
    if (tool->format == OUT_JSON) put_json(result);
    else if (tool->format == OUT_HUMAN && !tool->quiet)
        printf("tpd at %s ends %s (live requests: %" JSON_INTEGER_FORMAT ")\n",
               tpd_socket(tool->client), drain ? "after its live requests" : "now", live);
    json_decref(result);
    return EXIT_OK;
}
