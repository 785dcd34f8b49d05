/* Following a fine-tune job: a live line on a terminal, then what became of it. */
#include "tpctl.h"

#include <stdio.h>
#include <string.h>

struct watch {
    bool live;  /* a line of progress may be shown */
    bool shown; /* one stands there */
};

static double number(const json_t *object, const char *key) {
    return json_number_value(json_object_get(object, key));
}

static const char *text(const json_t *object, const char *key) {
    const char *value = json_string_value(json_object_get(object, key));
    return value ? value : "";
}

/* "step 12/100, loss 2.1234, 345 tokens/s, ETA 3m 2s" over the line before it. */
static void show_step(struct watch *w, const json_t *event) {
    char eta[32];
    fprintf(stderr, "\rstep %.0f/%.0f, loss %.4f, %.0f tokens/s, ETA %s\033[K",
            number(event, "step"), number(event, "steps"), number(event, "loss"),
            number(event, "tokens_per_s"), seconds_text(number(event, "eta_s"), eta));
    fflush(stderr);
    w->shown = true;
}

static void clear_line(struct watch *w) {
    if (w->shown) fputs("\r\033[K", stderr);
    w->shown = false;
}

static int on_event(void *user, const char *method, const json_t *event) {
    struct watch *w = user;
    if (strcmp(method, "job") || !w->live) return 0;
    const char *what = text(event, "event");
    if (!strcmp(what, "step")) show_step(w, event);
    else if (!strcmp(what, "state") && !strcmp(text(event, "state"), "paused")) {
        clear_line(w);
        fputs("paused: it goes on after 'tpctl jobs resume'\n", stderr);
    }
    return 0;
}

/* "loss 1.2345, eval loss 1.3" of what is known. */
static void put_losses(const json_t *job) {
    const json_t *loss = json_object_get(job, "loss"), *eval = json_object_get(job, "eval_loss");
    if (json_is_number(loss)) printf(", loss %.4f", json_number_value(loss));
    if (json_is_number(eval)) printf(", eval loss %.4f", json_number_value(eval));
}

void job_put_line(const struct tool *tool, const json_t *job) {
    const char *result = text(job, "result");
    char name[80];
    snprintf(name, sizeof name, "%s", text(job, "name"));
    printf("job %" JSON_INTEGER_FORMAT " (", json_integer_value(json_object_get(job, "job")));
    put_text(tool, name, strlen(name));
    printf(") is %s", text(job, "state"));
    if (number(job, "steps") > 0)
        printf(", step %.0f/%.0f", number(job, "step"), number(job, "steps"));
    put_losses(job);
    if (*result) fputs(": ", stdout);
    put_text(tool, result, strlen(result));
    putchar('\n');
    const char *verdict = text(job, "verdict");
    put_text(tool, verdict, strlen(verdict));
    if (*verdict) putchar('\n');
}

int job_outcome(const struct tool *tool, const json_t *job) {
    const char *state = text(job, "state"), *why = text(job, "error");
    bool done = !strcmp(state, "done");
    if (tool->format == OUT_JSON) put_json(job);
    else if (tool->format == OUT_PLAIN) put_object(tool, job);
    else if (done && !tool->quiet) job_put_line(tool, job);
    if (done) return EXIT_OK;
    complain("job %" JSON_INTEGER_FORMAT " (%s) %s%s%s",
             json_integer_value(json_object_get(job, "job")), text(job, "name"),
             *state ? state : "ended", *why ? ": " : "", why);
    return TPD_EXIT_FAILED;
}

int job_watch(struct tool *tool, json_t *params) {
    json_t *job;
    struct watch w = {.live = tool->err_terminal && !tool->quiet && tool->format == OUT_HUMAN};
    int rc = tool_call(tool, "finetune.watch", params, on_event, &w, &job);
    clear_line(&w);
    if (rc == EXIT_OK) rc = job_outcome(tool, job);
    else if (rc == TPD_EXIT_INTERRUPTED && w.live)
        fputs("the job goes on; 'tpctl jobs watch' shows it again\n", stderr);
    json_decref(job);
    return rc;
}
