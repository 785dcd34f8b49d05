/* daemon/offline_template.c: see offline_template.h. */
#include "daemon/offline_template.h"

#include "daemon/offline.h"
#include "text/chat_template.h"

#include <stdio.h>
#include <string.h>

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

static json_t *render_line(const void *self, json_t *line, struct error *e) {
    const struct chat_template *t = self;
    struct jinja_output out = {0};
    struct tm clock;
    bool given;
    json_t *answer = NULL;
    if (take_clock(line, &clock, &given, e) == 0 &&
             chat_template_render(t, line, given ? &clock : NULL, &out, e) == 0) {
        answer = json_pack("{s:s%}", "text", out.text.data ? out.text.data : "", out.text.size);
        if (!answer) error_set(e, ERR_MEMORY, "no memory for an answer");
        else if (out.generated.n) json_object_set_new(answer, "generated", json_spans(&out));
    }
    jinja_output_free(&out);
    return answer;
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
    } else rc = offline_answer_lines(render_line, t);
    chat_template_free(t);
    return rc;
}
