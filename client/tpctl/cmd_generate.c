/* tpctl generate: streams a continuation. */
#include "tpctl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct option_def generate_options[] = {
    {"max-tokens", 'n', OPTION_INTEGER, "N", "max_tokens",
     "at most N tokens (else to the context's end)"},
    {"temperature", 't', OPTION_NUMBER, "T", "temperature",
     "0 always takes the likeliest token (default 1)"},
    {"top-p", 0, OPTION_NUMBER, "P", "top_p", "sample among the likeliest that sum to P (1 = all)"},
    {"top-k", 0, OPTION_INTEGER, "K", "top_k", "sample among the K likeliest (0 = all)"},
    {"min-p", 0, OPTION_NUMBER, "P", "min_p", "drop tokens under P times the likeliest (0 = none)"},
    {"repetition-penalty", 0, OPTION_NUMBER, "R", "repetition_penalty",
     "over 1 discourages what was said (1 = off)"},
    {"presence-penalty", 0, OPTION_NUMBER, "P", "presence_penalty",
     "subtracted once from what was said"},
    {"frequency-penalty", 0, OPTION_NUMBER, "P", "frequency_penalty",
     "subtracted for each time it was said"},
    {"seed", 0, OPTION_INTEGER, "S", "seed", "the same seed, prompt and model give the same text"},
    {"stop", 0, OPTION_TEXTS, "STR", "stop", "end before STR; may be given several times"},
    {"ignore-eos", 0, OPTION_FLAG, NULL, "ignore_eos", "go on past the model's end token"},
    {"echo", 0, OPTION_FLAG, NULL, "echo", "print the prompt first"},
    {"logprobs", 0, OPTION_INTEGER, "N", "logprobs",
     "then a table of log-probabilities with N alternatives"},
    {"json-schema", 0, OPTION_TEXT, "FILE", NULL, "answer with JSON that validates by FILE"},
    {"grammar", 0, OPTION_TEXT, "FILE", NULL, "answer with a text of the grammar (GBNF) in FILE"},
    {"adapter", 0, OPTION_TEXT, "A", "adapter", "generate with this adapter"},
    {"speculative", 0, OPTION_TEXT, "WAY", "speculative",
     "guess ahead by ngram, draft or auto, or off (default: auto with a draft model)"},
    {"no-stream", 0, OPTION_FLAG, NULL, NULL, "print the text when it is whole"},
    {0},
};

/* "12 tokens, 45.2 tokens/s, stopped at the end token": for the person who watches. */
static void say_summary(const struct tool *tool, const json_t *result) {
    if (tool->quiet || !tool->err_terminal || tool->format != OUT_HUMAN) return;
    const json_t *usage = json_object_get(result, "usage");
    const json_t *timings = json_object_get(result, "timings");
    const char *reason = json_string_value(json_object_get(result, "finish_reason"));
    fflush(stdout);
    fprintf(stderr, "[%" JSON_INTEGER_FORMAT " tokens, %.1f tokens/s, %s]\n",
            json_integer_value(json_object_get(usage, "completion_tokens")),
            json_number_value(json_object_get(timings, "tokens_per_s")), reason ? reason : "?");
}

/* What came in pieces is there already. */
static void put_result(struct answer *answer, const json_t *result) {
    struct tool *tool = answer->tool;
    if (tool->format == OUT_JSON) {
        if (result) put_json(result);
        return;
    }
    if (!answer->began) answer_put(answer, json_object_get(result, "text"));
    const json_t *logprobs = json_object_get(result, "logprobs");
    if (tool->mid_line && (tool->out_terminal || logprobs)) putchar('\n');
    if (logprobs) put_logprobs(tool, json_object_get(result, "prompt_logprobs"), logprobs);
    if (result) say_summary(tool, result);
}

/* The schema is parsed here, so that what is wrong with the file is told as such. */
static int read_schema(const char *path, const char *text, size_t size, json_t **value) {
    json_error_t why;
    *value = json_loadb(text, size, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &why);
    if (*value) return EXIT_OK;
    complain("%s: line %d, column %d: %s", path, why.line, why.column, why.text);
    return TPD_EXIT_BAD_DATA;
}

/* Puts what the file of an option holds into a parameter. */
static int put_form(const struct args *args, const char *option, const char *param) {
    char *text;
    size_t size;
    json_t *value = NULL;
    const char *path = args_text(args, option);
    if (!path) return EXIT_OK;
    int rc = read_file(path, &text, &size);
    if (rc != EXIT_OK) return rc;
    if (!strcmp(option, "json-schema")) rc = read_schema(path, text, size, &value);
    else rc = text_to_json("grammar's file", text, size, &value);
    free(text);
    if (rc == EXIT_OK) json_object_set_new(args->params, param, value);
    return rc;
}

int cmd_generate(struct tool *tool, const struct args *args) {
    json_t *prompt, *result;
    int rc = put_form(args, "json-schema", "json_schema");
    if (rc == EXIT_OK) rc = put_form(args, "grammar", "grammar");
    if (rc == EXIT_OK) rc = read_text_word(args, "prompt", &prompt);
    if (rc != EXIT_OK) return rc;
    struct answer answer = {.tool = tool};
    bool streamed = tool->format != OUT_JSON && !args_flag(args, "no-stream");
    json_object_set_new(args->params, "prompt", prompt);
    if (streamed) json_object_set_new(args->params, "stream", json_true());
    rc = tool_call(tool, "generate", args->params, streamed ? answer_on_token : NULL, &answer, &result);
    put_result(&answer, result);
    if (ferror(stdout)) rc = finish_output();
    if (rc == EXIT_OK) rc = answer_outcome(result);
    json_decref(result);
    return rc;
}
