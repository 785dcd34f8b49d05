/* The table of tokens with their log-probabilities that generate --logprobs and score print. */
#include "tpctl.h"

#include <stdio.h>

static void put_logprob_row(const struct tool *tool, const json_t *entry) {
    const json_t *logprob = json_object_get(entry, "logprob");
    const json_t *text = json_object_get(entry, "token");
    size_t i;
    json_t *other;
    printf(tool->format == OUT_PLAIN ? "%" JSON_INTEGER_FORMAT "\t" : "%8" JSON_INTEGER_FORMAT "  ",
           json_integer_value(json_object_get(entry, "id")));
    if (json_is_number(logprob))
        printf(tool->format == OUT_PLAIN ? "%.6f\t" : "%9.4f  ", json_number_value(logprob));
    else printf(tool->format == OUT_PLAIN ? "\t" : "%9s  ", "-");
    if (tool->format == OUT_PLAIN)
        put_field(json_is_string(text) ? json_string_value(text) : "", json_string_length(text));
    else put_quoted(text);
    json_array_foreach(json_object_get(entry, "top"), i, other) {
        printf(tool->format == OUT_PLAIN ? "\t" : i ? " " : "   ");
        printf("%" JSON_INTEGER_FORMAT "=%.4f", json_integer_value(json_object_get(other, "id")),
               json_number_value(json_object_get(other, "logprob")));
    }
    putchar('\n');
}

void put_logprobs(const struct tool *tool, const json_t *prompt, const json_t *list) {
    size_t i;
    json_t *entry;
    if (tool->format == OUT_HUMAN)
        printf("%s%8s  %9s  token and alternatives%s\n", bold(tool), "id", "logprob", unbold(tool));
    json_array_foreach(prompt, i, entry) put_logprob_row(tool, entry);
    json_array_foreach(list, i, entry) put_logprob_row(tool, entry);
}
