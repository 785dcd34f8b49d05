/* tpctl model load and unload. */
#include "tpctl.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

const struct option_def model_load_options[] = {
    {"tp", 0, OPTION_INTEGER, "N", "tp", "ranks it is split over (default: as before)"},
    {"ctx", 0, OPTION_INTEGER, "N", "ctx", "longest sequence in tokens; 0 = what it was made for"},
    {"quant", 0, OPTION_TEXT, "Q", "quant", "hold plain weights in none, q8 or q4 (default: as before)"},
    {"draft", 0, OPTION_TEXT, "PATH", "draft", "a smaller model that guesses ahead; '' = none"},
    {0},
};

const struct option_def model_unload_options[] = {
    {"timeout", 0, OPTION_DURATION, "TIME", NULL, "cancel requests that live longer than TIME"},
    {0},
};

/* The daemon runs elsewhere: a path that exists here is sent whole. */
static json_t *path_param(const char *word) {
    char real[PATH_MAX];
    return json_string(realpath(word, real) ? real : word);
}

int cmd_model_load(struct tool *tool, const struct args *args) {
    json_t *result;
    if (args->n_words > 1) {
        complain("give the path of one model");
        return TPD_EXIT_USAGE;
    }
    if (args->n_words) {
        json_t *path = path_param(args->words[0]);
        if (!path) {
            complain("the path is not UTF-8");
            return TPD_EXIT_USAGE;
        }
        json_object_set_new(args->params, "path", path);
    }
    int rc = tool_ask(tool, "model.load", args->params, &result);
    if (rc != EXIT_OK) return rc;
    if (tool->format == OUT_JSON) put_json(result);
    else if (!tool->quiet) put_object(tool, result);
    json_decref(result);
    return EXIT_OK;
}

int cmd_model_unload(struct tool *tool, const struct args *args) {
    json_t *result;
    int64_t timeout_ms = args_integer(args, "timeout", -1);
    if (timeout_ms >= 0)
        json_object_set_new(args->params, "timeout_s", json_real((double)timeout_ms / 1000));
    int rc = tool_ask(tool, "model.unload", args->params, &result);
    if (rc != EXIT_OK) return rc;
    if (tool->format == OUT_JSON) put_json(result);
    else if (!tool->quiet && tool->format == OUT_HUMAN) puts("no model is loaded");
    json_decref(result);
    return EXIT_OK;
}
