/* tpctl jobs: the queue of fine-tune jobs. */
#include "tpctl.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

const struct option_def jobs_log_options[] = {
    {"after", 0, OPTION_INTEGER, "CURSOR", "after", "only events behind CURSOR (see --plain)"},
    {0},
};

/* --- which job -------------------------------------------------------------------------------- */

static json_t *job_word(const char *word) {
    char *end;
    long long id = strtoll(word, &end, 10);
    bool number = isdigit((unsigned char)*word) && !*end;
    return number ? json_integer(id) : json_string(word); /* NULL when it is not UTF-8 */
}

static int newest_job(struct tool *tool, json_t **job) {
    json_t *result;
    int rc = tool_ask(tool, "finetune.list", NULL, &result);
    if (rc != EXIT_OK) return rc;
    *job = json_object_get(json_array_get(json_object_get(result, "jobs"), 0), "job");
    json_incref(*job);
    json_decref(result);
    if (*job) return EXIT_OK;
    complain("there are no jobs");
    return TPD_EXIT_NO_FILE;
}

int job_choose(struct tool *tool, const struct args *args, bool or_newest) {
    json_t *job = NULL;
    if (args->n_words > 1 || (args->n_words == 0 && !or_newest)) {
        complain("one job is wanted, by number or name; 'tpctl jobs' lists them");
        return TPD_EXIT_USAGE;
    }
    int rc = EXIT_OK;
    if (args->n_words == 0) rc = newest_job(tool, &job);
    else if (!(job = job_word(args->words[0]))) {
        complain("the job's name is not valid UTF-8");
        rc = TPD_EXIT_BAD_DATA;
    }
    if (rc == EXIT_OK) json_object_set_new(args->params, "job", job);
    return rc;
}

/* --- list and show ---------------------------------------------------------------------------- */

static void put_number(const json_t *value, const char *format, const char *none) {
    if (json_is_number(value)) printf(format, json_number_value(value));
    else printf("%*s", (int)strlen(none), none);
}

static void put_cell(const struct tool *tool, const char *text, int width) {
    put_text(tool, text, strlen(text));
    int shown = 0;
    for (const char *c = text; *c; c++) shown += ((unsigned char)*c & 0xC0) != 0x80;
    printf("%*s", width > shown ? width - shown : 0, "");
}

static const char *text_of(const json_t *job, const char *key) {
    const char *text = json_string_value(json_object_get(job, key));
    return text ? text : "";
}

static void put_row(const struct tool *tool, const json_t *job) {
    char steps[48];
    const char *why = text_of(job, "error");
    snprintf(steps, sizeof steps, "%.0f/%.0f", json_number_value(json_object_get(job, "step")),
             json_number_value(json_object_get(job, "steps")));
    printf("%5.0f  ", json_number_value(json_object_get(job, "job")));
    put_cell(tool, text_of(job, "name"), 20);
    printf("  %-9s  %11s  ", text_of(job, "state"), steps);
    put_number(json_object_get(job, "loss"), "%8.4f  ", "       -  ");
    put_number(json_object_get(job, "eval_loss"), "%9.4f", "        -");
    if (*why) fputs("  ", stdout);
    put_field(why, strlen(why));
    putchar('\n');
}

static void put_plain_row(const json_t *job) {
    static const char *const keys[] = {"job",  "name",      "state",  "step",  "steps",
                                       "loss", "eval_loss", "result", "error", NULL};
    for (const char *const *key = keys; *key; key++) {
        const json_t *value = json_object_get(job, *key);
        if (key != keys) putchar('\t');
        if (json_is_string(value)) put_field(json_string_value(value), json_string_length(value));
        else if (json_is_number(value)) printf("%.15g", json_number_value(value));
    }
    putchar('\n');
}

int cmd_jobs(struct tool *tool, const struct args *args) {
    json_t *result, *job;
    size_t i;
    if (args->n_words) {
        complain("'tpctl jobs' does not know '%s'; 'tpctl help' lists what it does",
                 args->words[0]);
        return TPD_EXIT_USAGE;
    }
    int rc = tool_ask(tool, "finetune.list", NULL, &result);
    if (rc != EXIT_OK) return rc;
    const json_t *jobs = json_object_get(result, "jobs");
    if (tool->format == OUT_JSON) put_json(result);
    else {
        if (tool->format == OUT_HUMAN && json_array_size(jobs))
            printf("%s%5s  %-20s  %-9s  %11s  %8s  %9s%s\n", bold(tool), "job", "name", "state",
                   "step", "loss", "eval loss", unbold(tool));
        json_array_foreach(jobs, i, job) {
            if (tool->format == OUT_PLAIN) put_plain_row(job);
            else put_row(tool, job);
        }
    }
    json_decref(result);
    return EXIT_OK;
}

int cmd_jobs_show(struct tool *tool, const struct args *args) {
    json_t *result = NULL;
    int rc = job_choose(tool, args, true);
    if (rc == EXIT_OK) rc = tool_ask(tool, "finetune.get", args->params, &result);
    if (rc != EXIT_OK) return rc;
    if (tool->format == OUT_JSON) put_json(result);
    else put_object(tool, result);
    json_decref(result);
    return EXIT_OK;
}

/* --- log, watch ------------------------------------------------------------------------------- */

int job_read_log(struct tool *tool, json_t *params, json_t **log) {
    json_int_t after = json_integer_value(json_object_get(params, "after"));
    *log = NULL;
    for (;;) {
        json_t *page;
        int rc = tool_ask(tool, "finetune.log", params, &page);
        if (rc != EXIT_OK) {
            json_decref(*log);
            *log = NULL;
            return rc;
        }
        json_int_t last = json_integer_value(json_object_get(page, "after"));
        bool more = json_is_true(json_object_get(page, "more")) && last > after;
        after = last;
        json_object_set(params, "after", json_object_get(page, "after"));
        json_object_set(params, "job", json_object_get(page, "job"));
        if (!*log) *log = json_incref(page);
        else {
            json_array_extend(json_object_get(*log, "events"), json_object_get(page, "events"));
            json_object_set(*log, "after", json_object_get(page, "after"));
            json_object_set(*log, "more", json_object_get(page, "more"));
        }
        json_decref(page);
        if (!more) return EXIT_OK;
    }
}

/* "2026-12-02 08:00:00  step  step=3 loss=2.5": fields in the order they came. */
static void put_event(const struct tool *tool, const json_t *event) {
    double when = json_number_value(json_object_get(event, "time"));
    time_t seconds = when > 0 && when < 1e11 ? (time_t)when : 0;
    char stamp[32] = "";
    struct tm tm;
    const char *key, *space = "";
    json_t *value;
    if (localtime_r(&seconds, &tm)) strftime(stamp, sizeof stamp, "%Y-%m-%d %H:%M:%S", &tm);
    if (tool->format == OUT_PLAIN)
        printf("%.0f\t%.3f\t", json_number_value(json_object_get(event, "cursor")), when);
    else printf("%s  ", stamp);
    put_cell(tool, text_of(event, "event"), tool->format == OUT_PLAIN ? 0 : 10);
    fputs(tool->format == OUT_PLAIN ? "\t" : "  ", stdout);
    json_object_foreach((json_t *)event, key, value) {
        if (!strcmp(key, "cursor") || !strcmp(key, "time") || !strcmp(key, "event")) continue;
        fputs(space, stdout);
        put_field(key, strlen(key));
        putchar('=');
        if (json_is_string(value)) put_field(json_string_value(value), json_string_length(value));
        else if (json_is_number(value)) printf("%.6g", json_number_value(value));
        else fputs(json_is_true(value) ? "true" : "-", stdout);
        space = " ";
    }
    putchar('\n');
}

int cmd_jobs_log(struct tool *tool, const struct args *args) {
    json_t *log = NULL, *event;
    size_t i;
    int rc = job_choose(tool, args, true);
    if (rc == EXIT_OK) rc = job_read_log(tool, args->params, &log);
    if (rc != EXIT_OK) return rc;
    if (tool->format == OUT_JSON) put_json(log);
    else json_array_foreach(json_object_get(log, "events"), i, event) put_event(tool, event);
    json_decref(log);
    return EXIT_OK;
}

int cmd_jobs_watch(struct tool *tool, const struct args *args) {
    int rc = job_choose(tool, args, true);
    return rc == EXIT_OK ? job_watch(tool, args->params) : rc;
}

/* --- cancel, pause, resume, rm ---------------------------------------------------------------- */

static int change(struct tool *tool, const struct args *args, const char *method) {
    json_t *result = NULL;
    int rc = job_choose(tool, args, false);
    if (rc == EXIT_OK) rc = tool_ask(tool, method, args->params, &result);
    if (rc != EXIT_OK) return rc;
    if (tool->format == OUT_JSON) put_json(result);
    else if (!tool->quiet && json_is_true(json_object_get(result, "deleted")))
        printf("job %.0f is gone\n", json_number_value(json_object_get(result, "job")));
    else if (!tool->quiet) job_put_line(tool, result);
    json_decref(result);
    return EXIT_OK;
}

int cmd_jobs_cancel(struct tool *tool, const struct args *args) {
    return change(tool, args, "finetune.cancel");
}

int cmd_jobs_pause(struct tool *tool, const struct args *args) {
    return change(tool, args, "finetune.pause");
}

int cmd_jobs_resume(struct tool *tool, const struct args *args) {
    return change(tool, args, "finetune.resume");
}

const struct option_def jobs_rm_options[] = {
    {"result", 0, OPTION_FLAG, NULL, "result", "remove its result, too, if nobody uses it"},
    {0},
};

int cmd_jobs_rm(struct tool *tool, const struct args *args) {
    return change(tool, args, "finetune.delete");
}
