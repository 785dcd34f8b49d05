/* tpctl plan: will it fit, and how fast can it be at best. */
#include "tpctl.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct option_def plan_options[] = {
    {"tp", 0, OPTION_INTEGER, "N", "tp", "ranks (default: the daemon's)"},
    {"ctx", 0, OPTION_INTEGER, "N", "ctx", "positions of a sequence (default: the model's own)"},
    {"batch", 0, OPTION_INTEGER, "B", "batch", "sequences at once (default 1)"},
    {"kv-type", 0, OPTION_TEXT, "T", "kv_type", "auto, f32, f16, bf16 or q8"},
    {"dtype", 0, OPTION_TEXT, "T", "dtype", "what the weights would be: bf16, q8_0, q4_k"},
    {"quant", 0, OPTION_TEXT, "Q", "quant", "served with --quant q8 or q4"},
    {"draft", 0, OPTION_TEXT, "PATH", NULL, "a draft model beside it; '' = none (default: the loaded one's)"},
    {"draft-tp", 0, OPTION_INTEGER, "N", "draft_tp", "ranks of the draft model (default: the daemon's)"},
    {"train", 0, OPTION_TEXT, "METHOD", "train", "also train, beside serving: lora or full"},
    {"grad-checkpointing", 0, OPTION_FLAG, NULL, NULL, "compute layers again in backward"},
    {"set", 0, OPTION_TEXTS, "KEY=VALUE", NULL,
     "any key of a job: lora.r=8, grad_checkpointing=auto"},
    {"device", 0, OPTION_TEXT, "D", "device", "what ranks are on: cpu or cuda (default: the daemon's)"},
    {"memory", 0, OPTION_TEXT, "BYTES", NULL, "of each device, such as 80GiB (default: this machine's)"},
    {"bandwidth", 0, OPTION_TEXT, "B/S", NULL, "bytes a second that a device moves, such as 3.35T"},
    {"flops", 0, OPTION_TEXT, "N/S", NULL, "operations a second that it does, such as 990T"},
    {"check", 0, OPTION_FLAG, NULL, NULL, "exit 1 when it does not fit"},
    {0},
};

/* "80GiB", "80GB", "3.35T": of bytes a lone K, M, G, T is of 1024. */
static bool scaled(const char *text, bool bytes, double *out) {
    static const char units[] = "KMGT";
    char *end;
    *out = strtod(text, &end);
    if (end == text || !(*out > 0) || *out > 1e21 || isspace((unsigned char)*text)) return false;
    const char *unit = *end ? strchr(units, toupper((unsigned char)*end)) : NULL;
    if (!unit) return *end == '\0' || (bytes && !strcmp(end, "B"));
    const char *rest = end + 1;
    bool binary = !strcmp(rest, "iB") || (bytes && !*rest);
    if (!binary && *rest && strcmp(rest, "B")) return false;
    for (const char *u = units; u <= unit; u++) *out *= binary ? 1024 : 1000;
    return true;
}

static int set_scaled(const struct args *args, const char *name) {
    const char *text = args_text(args, name);
    bool bytes = !strcmp(name, "memory");
    double value;
    if (!text) return EXIT_OK;
    if (!scaled(text, bytes, &value)) {
        complain("--%s wants %s, not '%s'", name, bytes ? "bytes, such as 80GiB" : "a number, such as 3.35T",
                 text);
        return TPD_EXIT_USAGE;
    }
    json_object_set_new(args->params, name,
                        bytes && value < 9e15 ? json_integer((json_int_t)value) : json_real(value));
    return EXIT_OK;
}

/* A file that is there is meant by its whole path. */
static int set_path(const struct args *args, const char *param, const char *of_what, const char *text) {
    json_t *value;
    char *whole = *text ? realpath(text, NULL) : NULL;
    const char *path = whole ? whole : text;
    int rc = text_to_json(of_what, path, strlen(path), &value);
    if (rc == EXIT_OK) json_object_set_new(args->params, param, value);
    free(whole);
    return rc;
}

static int set_paths(const struct args *args) {
    const char *draft = args_text(args, "draft");
    if (args->n_words > 1) {
        complain("one MODEL is planned for, not %d", args->n_words);
        return TPD_EXIT_USAGE;
    }
    int rc = args->n_words ? set_path(args, "path", "path of MODEL", args->words[0]) : EXIT_OK;
    return rc == EXIT_OK && draft ? set_path(args, "draft", "path of --draft", draft) : rc;
}

static int set_job(const struct args *args) {
    const json_t *settings = json_object_get(args->options, "set"), *setting;
    int rc = EXIT_OK;
    if (args_flag(args, "grad-checkpointing"))
        json_object_set_new(args->params, "grad_checkpointing", json_true());
    if (!settings) return EXIT_OK;
    json_t *job = json_object();
    for (size_t i = 0; rc == EXIT_OK && (setting = json_array_get(settings, i)); i++)
        rc = job_set_key(job, json_string_value(setting));
    json_object_set_new(args->params, "job", job);
    return rc;
}

int cmd_plan(struct tool *tool, const struct args *args) {
    static const char *const figures[] = {"memory", "bandwidth", "flops"};
    json_t *plan;
    int rc = set_paths(args);
    for (int i = 0; i < 3 && rc == EXIT_OK; i++) rc = set_scaled(args, figures[i]);
    if (rc == EXIT_OK) rc = set_job(args);
    if (rc == EXIT_OK) rc = tool_ask(tool, "plan", args->params, &plan);
    if (rc != EXIT_OK) return rc;
    if (tool->format == OUT_JSON) put_json(plan);
    else put_object(tool, plan);
    bool fits = json_is_true(json_object_get(plan, "fits"));
    json_decref(plan);
    return args_flag(args, "check") && !fits ? TPD_EXIT_FAILED : EXIT_OK;
}
