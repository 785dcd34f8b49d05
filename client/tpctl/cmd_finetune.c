/* tpctl finetune: submits a fine-tune job, and waits for it when asked. */
#include "tpctl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct option_def finetune_options[] = {
    {"name", 0, OPTION_TEXT, "N", "name", "the job's name, and that of its adapter"},
    {"out", 0, OPTION_TEXT, "DIR", "out", "where the result goes, under the daemon's state_dir"},
    {"set", 0, OPTION_TEXTS, "KEY=VALUE", NULL, "any key of a job: lr=1e-4, lora.r=8, method=full"},
    {"file", 0, OPTION_TEXT, "JOB.json", NULL, "take the job from a file; the rest overrides it"},
    {"once", 0, OPTION_TEXT, "KEY", "once", "while a job with KEY is live, do no more than resume it"},
    {"since-last", 0, OPTION_FLAG, NULL, "since_last",
     "train on what was added to DATA since the last success"},
    {"activate", 0, OPTION_FLAG, NULL, NULL, "make the adapter the default if it is better"},
    {"wait", 0, OPTION_FLAG, NULL, NULL, "show progress and end as the job ends"},
    {0},
};

/* --- the job from file, options and words ----------------------------------------------------- */

static int read_job_file(const char *path, json_t **job) {
    char *text;
    size_t size;
    json_error_t why;
    int rc = read_file(path, &text, &size);
    if (rc != EXIT_OK) return rc;
    *job = json_loadb(text, size, JSON_REJECT_DUPLICATES, &why);
    free(text);
    if (json_is_object(*job)) return EXIT_OK;
    if (*job) complain("%s: a job must be a JSON object", path);
    else complain("%s:%d: %s", path, why.line, why.text);
    json_decref(*job);
    *job = NULL;
    return TPD_EXIT_BAD_DATA;
}

/* The object that holds the last part of "lora.r"; made where it is not there. *key moves there. */
static json_t *holder_of(json_t *job, const char **key) {
    char name[64];
    for (const char *dot; job && (dot = strchr(*key, '.')); *key = dot + 1) {
        snprintf(name, sizeof name, "%.*s", (int)(dot - *key), *key);
        json_t *inner = json_object_get(job, name);
        if (!json_is_object(inner)) {
            json_object_set_new(job, name, json_object());
            inner = json_object_get(job, name);
        }
        job = inner;
    }
    return job;
}

/* "lr=1e-4": the value is JSON where it can be, else a text. */
int job_set_key(json_t *job, const char *setting) {
    const char *equals = strchr(setting, '=');
    if (!equals || equals == setting) {
        complain("--set wants KEY=VALUE, such as lr=1e-4, not '%s'", setting);
        return TPD_EXIT_USAGE;
    }
    char whole[128];
    const char *key = whole;
    snprintf(whole, sizeof whole, "%.*s", (int)(equals - setting), setting);
    json_t *value = json_loads(equals + 1, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL);
    if (!value && text_to_json("value", equals + 1, strlen(equals + 1), &value) != EXIT_OK)
        return TPD_EXIT_USAGE;
    json_t *holder = holder_of(job, &key);
    if (json_object_set_new(holder, key, value) == 0) return EXIT_OK;
    complain("--set: '%s' is no key of a job", whole);
    return TPD_EXIT_USAGE;
}

/* A file that is there is meant by its whole path; other names are the daemon's to find. */
static int set_data(json_t *job, const struct args *args) {
    if (args->n_words > 1) {
        complain("one DATA file is wanted, not %d", args->n_words);
        return TPD_EXIT_USAGE;
    }
    if (args->n_words == 0) {
        if (json_object_get(job, "data")) return EXIT_OK;
        complain("no DATA: name a file of examples, or a job with --file");
        return TPD_EXIT_USAGE;
    }
    json_t *value;
    char *whole = realpath(args->words[0], NULL);
    const char *path = whole ? whole : args->words[0];
    int rc = text_to_json("path of DATA", path, strlen(path), &value);
    if (rc == EXIT_OK) json_object_set_new(job, "data", value);
    free(whole);
    return rc;
}

static int make_job(const struct tool *tool, const struct args *args, json_t **job) {
    const char *file = args_text(args, "file");
    int rc = file ? read_job_file(file, job) : EXIT_OK;
    if (rc != EXIT_OK) return rc;
    if (!*job) *job = json_object();
    json_object_update(*job, args->params);
    if (tool->deadline_ms > 0)
        json_object_set_new(*job, "deadline_s", json_real((double)tool->deadline_ms / 1000));
    if (args_flag(args, "activate") && !json_is_object(json_object_get(*job, "activate")))
        json_object_set_new(*job, "activate",
                            json_pack("{s:s, s:s}", "when", "eval_improves", "as", "default"));
    const json_t *settings = json_object_get(args->options, "set"), *setting;
    for (size_t i = 0; rc == EXIT_OK && (setting = json_array_get(settings, i)); i++)
        rc = job_set_key(*job, json_string_value(setting));
    return rc == EXIT_OK ? set_data(*job, args) : rc;
}

/* --- submitting and waiting ------------------------------------------------------------------- */

static json_t *number_of(const json_t *job) {
    return json_pack("{s:O?}", "job", json_object_get(job, "job"));
}

/* The daemon pauses the job at its deadline, unless it waits behind another: then this does. Waiting a
 * little longer leaves it to the daemon. */
static int wait_for(struct tool *tool, json_t *number) {
    enum { GRACE_MS = 1000 };
    json_t *job;
    tool->deadline_is_news = false;
    if (tool->deadline_ms > 0) tpd_set_timeout(tool->client, tool->deadline_ms + GRACE_MS);
    int rc = job_watch(tool, number);
    tool->deadline_is_news = true;
    if (rc != TPD_EXIT_DEADLINE) return rc;
    tpd_set_timeout(tool->client, 10000);
    if (tool_ask(tool, "finetune.get", number, &job) != EXIT_OK) return rc;
    const char *state = json_string_value(json_object_get(job, "state"));
    if (!state || strcmp(state, "paused") != 0) {
        json_decref(job);
        if (tool_ask(tool, "finetune.pause", number, &job) != EXIT_OK) return rc;
    }
    complain("job %" JSON_INTEGER_FORMAT " is paused at the deadline, at step %.0f of %.0f",
             json_integer_value(json_object_get(job, "job")),
             json_number_value(json_object_get(job, "step")),
             json_number_value(json_object_get(job, "steps")));
    json_decref(job);
    return rc;
}

/* Nobody waited for the job of the last night: what became of it is news now. */
static void tell_previous(const json_t *submitted) {
    const json_t *job = json_object_get(submitted, "previous");
    const char *name = json_string_value(json_object_get(job, "name")),
               *why = json_string_value(json_object_get(job, "error"));
    if (!job) return;
    complain("the last one, job %" JSON_INTEGER_FORMAT " (%s), failed: %s; job %" JSON_INTEGER_FORMAT
             " tries again",
             json_integer_value(json_object_get(job, "job")), name ? name : "",
             why ? why : "nobody knows why", json_integer_value(json_object_get(submitted, "job")));
}

static void put_submitted(const struct tool *tool, const json_t *job) {
    if (tool->format == OUT_JSON) put_json(job);
    else if (tool->format == OUT_PLAIN)
        printf("%" JSON_INTEGER_FORMAT "\n", json_integer_value(json_object_get(job, "job")));
    else if (tool->quiet) return;
    else if (json_is_true(json_object_get(job, "nothing_new")))
        printf("nothing is new since job %" JSON_INTEGER_FORMAT "\n",
               json_integer_value(json_object_get(job, "job")));
    else job_put_line(tool, job);
}

int cmd_finetune(struct tool *tool, const struct args *args) {
    json_t *job = NULL, *submitted = NULL;
    int rc = make_job(tool, args, &job);
    if (rc == EXIT_OK) rc = tool_ask(tool, "finetune.submit", job, &submitted);
    json_decref(job);
    if (rc != EXIT_OK) return rc;
    tell_previous(submitted);
    bool idle = json_is_true(json_object_get(submitted, "nothing_new"));
    json_t *number = number_of(submitted);
    if (args_flag(args, "wait") && !idle) rc = wait_for(tool, number);
    else put_submitted(tool, submitted);
    json_decref(number);
    json_decref(submitted);
    return rc;
}
