#include "daemon/offline.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LINE = 64 << 20 };

int offline_fail(const struct error *e) {
    fprintf(stderr, "tpd: %s\n", e->message);
    return error_class(e->kind)->exit_code;
}

static json_t *failure(const struct error *e) {
    json_t *out = json_pack("{s:s}", "error", e->message);
    for (int i = 0; out && i < e->n_notes; i++)
        if (!e->notes[i].is_text)
            json_object_set_new(out, e->notes[i].key, json_integer(e->notes[i].number));
    return out;
}

static json_t *answer_line(const char *text, size_t size, offline_answer_fn *answer, const void *self) {
    struct error e = {0};
    json_t *out = NULL;
    if (size > MAX_LINE)
        error_set(&e, ERR_PARAMS, "the line has %zu bytes; at most %d are taken", size, MAX_LINE);
    else {
        json_t *line = json_read(text, size, &e);
        if (line && !json_is_object(line)) error_set(&e, ERR_PARAMS, "a line must be a JSON object");
        else if (line) out = answer(self, line, &e);
        json_decref(line);
    }
    return out ? out : failure(&e);
}

int offline_answer_lines(offline_answer_fn *answer, const void *self) {
    struct error e = {0};
    char *line = NULL;
    size_t capacity = 0;
    ssize_t n;
    bool broken = false;
    while (!broken && (n = getline(&line, &capacity, stdin)) > 0) {
        while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r')) n--;
        if (n == 0) continue;
        json_t *out = answer_line(line, (size_t)n, answer, self);
        broken = !out || json_dumpf(out, stdout, JSON_COMPACT) != 0 || putchar('\n') == EOF ||
                 fflush(stdout) != 0;
        json_decref(out);
    }
    free(line);
    if (!broken) return 0;
    error_set(&e, ERR_IO, "stdout: cannot write: %s", strerror(errno));
    return offline_fail(&e);
}

int offline_end(int exit_code) {
    if (fflush(stdout) == 0 && !ferror(stdout)) return exit_code;
    fprintf(stderr, "tpd: cannot write to standard output: %s\n", strerror(errno));
    return EXIT_IO;
}
