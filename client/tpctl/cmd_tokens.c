/* tpctl tokenize and detokenize: texts and token ids. */
#include "tpctl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct option_def tokenize_options[] = {
    {"special", 0, OPTION_FLAG, NULL, "special",
     "add the model's special tokens, and read those in the text"},
    {0},
};

static void put_pieces(const struct tool *tool, const json_t *ids, const json_t *pieces) {
    size_t i;
    json_t *id;
    if (tool->format == OUT_HUMAN) printf("%s%8s  piece%s\n", bold(tool), "id", unbold(tool));
    json_array_foreach(ids, i, id) {
        const json_t *piece = json_array_get(pieces, i);
        if (tool->format == OUT_HUMAN) {
            printf("%8" JSON_INTEGER_FORMAT "  ", json_integer_value(id));
            put_quoted(piece);
        } else {
            printf("%" JSON_INTEGER_FORMAT "\t", json_integer_value(id));
            if (json_is_string(piece))
                put_field(json_string_value(piece), json_string_length(piece));
        }
        putchar('\n');
    }
}

static void put_ids(const json_t *ids) {
    size_t i;
    json_t *id;
    json_array_foreach(ids, i, id)
        printf("%s%" JSON_INTEGER_FORMAT, i ? " " : "", json_integer_value(id));
    putchar('\n');
}

int cmd_tokenize(struct tool *tool, const struct args *args) {
    json_t *text, *result;
    int rc = read_text_word(args, "text", &text);
    if (rc != EXIT_OK) return rc;
    json_object_set_new(args->params, "text", text);
    rc = tool_ask(tool, "tokenize", args->params, &result);
    if (rc != EXIT_OK) return rc;
    const json_t *ids = json_object_get(result, "tokens");
    if (tool->format == OUT_JSON) put_json(result);
    else if (tool->format == OUT_HUMAN && !tool->out_terminal) put_ids(ids);
    else put_pieces(tool, ids, json_object_get(result, "pieces"));
    json_decref(result);
    return EXIT_OK;
}

/* The words joined, so that ids may come as words or as one quoted list. */
static int ids_from_words(const struct args *args, json_t **ids) {
    size_t size = 0;
    for (int i = 0; i < args->n_words; i++) size += strlen(args->words[i]) + 1;
    char *text = malloc(size + 1), *end = text;
    if (!text) {
        complain("out of memory");
        return TPD_EXIT_BUSY;
    }
    for (int i = 0; i < args->n_words; i++) end += sprintf(end, "%s ", args->words[i]);
    int rc = read_ids(text, size, ids);
    free(text);
    return rc == TPD_EXIT_BAD_DATA ? TPD_EXIT_USAGE : rc;
}

static int ids_from_stdin(json_t **ids) {
    char *text;
    size_t size;
    int rc = read_stdin(&text, &size);
    if (rc != EXIT_OK) return rc;
    rc = read_ids(text, size, ids);
    free(text);
    return rc;
}

int cmd_detokenize(struct tool *tool, const struct args *args) {
    json_t *ids, *result;
    bool from_stdin = args->n_words == 0 || (args->n_words == 1 && !strcmp(args->words[0], "-"));
    int rc = from_stdin ? ids_from_stdin(&ids) : ids_from_words(args, &ids);
    if (rc != EXIT_OK) return rc;
    json_object_set_new(args->params, "tokens", ids);
    rc = tool_ask(tool, "detokenize", args->params, &result);
    if (rc != EXIT_OK) return rc;
    if (tool->format == OUT_JSON) put_json(result);
    else put_string(tool, json_object_get(result, "text"));
    if (tool->format != OUT_JSON && tool->out_terminal) putchar('\n');
    json_decref(result);
    return EXIT_OK;
}
