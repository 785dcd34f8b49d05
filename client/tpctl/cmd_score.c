/* tpctl score: how likely a completion is. */
#include "tpctl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct option_def score_options[] = {
    {"file", 0, OPTION_TEXT, "FILE", NULL,
     "read the completion from FILE; the prompt may be absent"},
    {0},
};

static int completion_from(const char *path, json_t **completion) {
    char *text;
    size_t size;
    int rc = path ? read_file(path, &text, &size) : read_stdin(&text, &size);
    if (rc != EXIT_OK) return rc;
    rc = text_to_json("completion", text, size, completion);
    free(text);
    return rc;
}

/* Fills prompt and completion, JSON strings of the caller's. */
static int read_words(const struct args *args, json_t **prompt, json_t **completion) {
    const char *file = args_text(args, "file");
    int wanted = file ? 1 : 2;
    if (args->n_words > wanted || (!file && args->n_words < wanted)) {
        complain(file ? "with --file, at most a PROMPT is wanted"
                      : "a PROMPT and a COMPLETION are wanted, each in quotes");
        return TPD_EXIT_USAGE;
    }
    const char *first = args->n_words ? args->words[0] : "";
    int rc = text_to_json("prompt", first, strlen(first), prompt);
    if (rc != EXIT_OK) return rc;
    if (file || !strcmp(args->words[1], "-")) rc = completion_from(file, completion);
    else rc = text_to_json("completion", args->words[1], strlen(args->words[1]), completion);
    if (rc != EXIT_OK) json_decref(*prompt);
    return rc;
}

static void put_score(const struct tool *tool, const json_t *result) {
    double sum = json_number_value(json_object_get(result, "sum"));
    double perplexity = json_number_value(json_object_get(result, "perplexity"));
    json_int_t n = json_integer_value(json_object_get(result, "n"));
    put_logprobs(tool, NULL, json_object_get(result, "tokens"));
    if (tool->format == OUT_HUMAN)
        printf("\n%" JSON_INTEGER_FORMAT " tokens, log-probability %.4f, perplexity %.4f\n", n, sum,
               perplexity);
}

int cmd_score(struct tool *tool, const struct args *args) {
    json_t *prompt, *completion, *result;
    int rc = read_words(args, &prompt, &completion);
    if (rc != EXIT_OK) return rc;
    json_object_set_new(args->params, "prompt", prompt);
    json_object_set_new(args->params, "completion", completion);
    rc = tool_ask(tool, "score", args->params, &result);
    if (rc != EXIT_OK) return rc;
    if (tool->format == OUT_JSON) put_json(result);
    else put_score(tool, result);
    json_decref(result);
    return EXIT_OK;
}
