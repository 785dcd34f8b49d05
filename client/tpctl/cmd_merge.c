/* tpctl model merge: the model and an adapter written as one model. */
#include "tpctl.h"

#include <stdio.h>

static const char *text_of(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "?";
}

static long long number_of(const json_t *object, const char *key) {
    return (long long)json_integer_value(json_object_get(object, key));
}

static void show(const struct tool *tool, const json_t *result) {
    char bytes[32];
    size_t i;
    json_t *note;
    printf("%s: %lld tensors (%lld merged), %s, %s\n", text_of(result, "path"),
           number_of(result, "tensors"), number_of(result, "merged"), text_of(result, "dtype"),
           bytes_text((double)number_of(result, "bytes"), bytes));
    if (tool->quiet) return;
    json_array_foreach(json_object_get(result, "notes"), i, note)
        complain("note: %s", json_string_value(note));
}

int cmd_model_merge(struct tool *tool, const struct args *args) {
    json_t *result;
    if (args->n_words != 2) {
        complain("give an adapter and the directory to write: tpctl model merge ADAPTER OUT");
        return TPD_EXIT_USAGE;
    }
    json_object_set_new(args->params, "adapter", json_string(args->words[0]));
    json_object_set_new(args->params, "out", json_string(args->words[1]));
    int rc = tool_ask(tool, "model.merge", args->params, &result);
    if (rc != EXIT_OK) return rc;
    if (tool->format == OUT_JSON) put_json(result);
    else if (tool->format == OUT_PLAIN) put_object(tool, result);
    else show(tool, result);
    json_decref(result);
    return EXIT_OK;
}
