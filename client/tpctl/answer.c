/* An answer of the model as it comes, for generate and chat. */
#include "tpctl.h"

#include <stdio.h>
#include <string.h>

void answer_put(struct answer *answer, const json_t *text) {
    size_t size = json_string_length(text);
    if (size == 0) return;
    put_string(answer->tool, text);
    answer->began = true;
    answer->tool->mid_line = json_string_value(text)[size - 1] != '\n';
}

/* A reader that went away ends the generation, too. */
int answer_on_token(void *user, const char *method, const json_t *params) {
    struct answer *answer = user;
    if (strcmp(method, "token")) return 0;
    answer_put(answer, json_object_get(params, "text"));
    return flush_output();
}

int answer_outcome(const json_t *result) {
    const char *reason = json_string_value(json_object_get(result, "finish_reason"));
    if (!reason || (strcmp(reason, "error") && strcmp(reason, "cancelled"))) return EXIT_OK;
    const json_t *error = json_object_get(result, "error");
    const char *why =
        json_string_value(json_is_object(error) ? json_object_get(error, "message") : error);
    complain("the daemon ended the generation before its time (%s)", why ? why : reason);
    return TPD_EXIT_FAILED;
}
