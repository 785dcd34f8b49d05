/* tpctl embed: texts as vectors. */
#include "tpctl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct option_def embed_options[] = {
    {"pooling", 0, OPTION_TEXT, "HOW", "pooling", "mean (the default) of a text's tokens, or last"},
    {"adapter", 0, OPTION_TEXT, "NAME", "adapter", "compute with this adapter, or base"},
    {0},
};

static int append(json_t *input, const char *what, const char *text, size_t size) {
    json_t *value;
    int rc = text_to_json(what, text, size, &value);
    if (rc == EXIT_OK) json_array_append_new(input, value);
    return rc;
}

/* Every line that is not empty. */
static int append_lines(json_t *input) {
    char *text;
    size_t size;
    int rc = read_stdin(&text, &size);
    if (rc != EXIT_OK) return rc;
    for (const char *line = text, *end = text + size; line < end && rc == EXIT_OK;) {
        const char *next = memchr(line, '\n', (size_t)(end - line));
        size_t n = (size_t)((next ? next : end) - line);
        if (n > 0 && line[n - 1] == '\r') n--;
        if (n > 0) rc = append(input, "a line of stdin", line, n);
        line = next ? next + 1 : end;
    }
    free(text);
    return rc;
}

static int read_texts(const struct args *args, json_t *input) {
    bool lines = args->n_words == 0 || (args->n_words == 1 && strcmp(args->words[0], "-") == 0);
    if (lines) return append_lines(input);
    int rc = EXIT_OK;
    for (int i = 0; i < args->n_words && rc == EXIT_OK; i++)
        rc = append(input, "the text", args->words[i], strlen(args->words[i]));
    return rc;
}

static void put_vectors(const json_t *vectors, char between) {
    size_t i, k;
    json_t *vector, *x;
    json_array_foreach(vectors, i, vector) {
        json_array_foreach(vector, k, x)
            printf("%s%.7g", k == 0 ? "" : (char[]){between, '\0'}, json_number_value(x));
        putchar('\n');
    }
}

int cmd_embed(struct tool *tool, const struct args *args) {
    json_t *input = json_array(), *result;
    int rc = read_texts(args, input);
    if (rc == EXIT_OK && json_array_size(input) == 0) {
        complain("a TEXT is wanted, in quotes, or lines on stdin");
        rc = TPD_EXIT_USAGE;
    }
    if (rc != EXIT_OK) {
        json_decref(input);
        return rc;
    }
    json_object_set_new(args->params, "input", input);
    rc = tool_ask(tool, "embed", args->params, &result);
    if (rc != EXIT_OK) return rc;
    if (tool->format == OUT_JSON) put_json(result);
    else put_vectors(json_object_get(result, "vectors"), tool->format == OUT_HUMAN ? ' ' : '\t');
    json_decref(result);
    return EXIT_OK;
}
