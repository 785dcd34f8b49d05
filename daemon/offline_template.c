/* daemon/offline_template.c: see offline_template.h. */
#include "daemon/offline_template.h"

#include "daemon/offline.h"
#include "text/chat_template.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LINE = 64 << 20 };

/* "now": "2025-01-15T12:30:00" is what strftime_now tells; it is no variable of the template. */
static int take_clock(json_t *line, struct tm *clock, bool *given, struct error *e) {
    const json_t *now = json_object_get(line, "now");
    *given = now != NULL;
    if (!now) return 0;
    *clock = (struct tm){0};
    const char *text = json_word(now), *end = text ? strptime(text, "%Y-%m-%dT%H:%M:%S", clock) : NULL;
    if (!end || *end)
        return error_set(e, ERR_PARAMS, "now must be a time such as \"2025-01-15T12:30:00\"");
    timegm(clock); /* finds the day of the week and of the year */
    json_object_del(line, "now");
    return 0;
}

static json_t *json_spans(const struct jinja_output *out) {
    json_t *list = json_array();
    for (size_t i = 0; i < out->generated.n; i++)
        json_array_append_new(list, json_pack("[I, I]", (json_int_t)out->generated.at[i].from,
                                              (json_int_t)out->generated.at[i].to));
    return list;
}

static json_t *json_failure(const struct error *e) {
    json_t *out = json_pack("{s:s}", "error", e->message);
    for (int i = 0; out && i < e->n_notes; i++)
        if (!e->notes[i].is_text)
            json_object_set_new(out, e->notes[i].key, json_integer(e->notes[i].number));
    return out;
}

static json_t *render_line(const struct chat_template *t, json_t *line, struct error *e) {
    struct jinja_output out = {0};
    struct tm clock;
    bool given;
    json_t *answer = NULL;
    if (!json_is_object(line)) error_set(e, ERR_PARAMS, "a line must be a JSON object");
    else if (take_clock(line, &clock, &given, e) == 0 &&
             chat_template_render(t, line, given ? &clock : NULL, &out, e) == 0) {
        answer = json_pack("{s:s%}", "text", out.text.data ? out.text.data : "", out.text.size);
        if (!answer) error_set(e, ERR_MEMORY, "no memory for an answer");
        else if (out.generated.n) json_object_set_new(answer, "generated", json_spans(&out));
    }
    jinja_output_free(&out);
    return answer;
}

static json_t *answer_line(const struct chat_template *t, const char *text, size_t size) {
    struct error e = {0};
    json_t *out = NULL;
    if (size > MAX_LINE)
        error_set(&e, ERR_PARAMS, "the line has %zu bytes; at most %d are taken", size, MAX_LINE);
    else {
        json_t *line = json_read(text, size, &e);
        if (line) out = render_line(t, line, &e);
        json_decref(line);
    }
    return out ? out : json_failure(&e);
}

static int answer_lines(const struct chat_template *t) {
    struct error e;
    char *line = NULL;
    size_t capacity = 0;
    ssize_t n;
    bool broken = false;
    while (!broken && (n = getline(&line, &capacity, stdin)) > 0) {
        while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r')) n--;
        if (n == 0) continue;
        json_t *out = answer_line(t, line, (size_t)n);
        broken = !out || json_dumpf(out, stdout, JSON_COMPACT) != 0 || putchar('\n') == EOF ||
                 fflush(stdout) != 0;
        json_decref(out);
    }
    free(line);
    if (!broken) return 0;
    error_set(&e, ERR_IO, "stdout: cannot write: %s", strerror(errno));
    return offline_fail(&e);
}

int offline_template(int argc, char **argv) {
    static const char usage[] = "usage: tpd template PATH [--chat-template NAME|FILE]";
    const char *path = NULL, *choice = NULL;
    struct chat_template *t;
    struct error e = {0};
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "--chat-template") == 0 && i + 1 < argc) choice = argv[++i];
        else if (argv[i][0] == '-' || path) {
            error_set(&e, ERR_USAGE, "template: \"%s\" is not understood; %s", argv[i], usage);
            return offline_fail(&e);
        } else path = argv[i];
    }
    if (!path) {
        error_set(&e, ERR_USAGE, "template needs a path; %s", usage);
        return offline_fail(&e);
    }
    if (chat_template_open(&t, path, choice, &e) != 0) return offline_fail(&e);
    int rc = 0;
    if (chat_template_missing(t)) {
        error_set(&e, ERR_BAD_FILE, "%s", chat_template_missing(t));
        rc = offline_fail(&e);
    } else rc = answer_lines(t);
    chat_template_free(t);
    return rc;
}
