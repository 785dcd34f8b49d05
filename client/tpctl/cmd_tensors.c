/* tpctl tensors: the model's tensors, and what another process needs to map one. */
#include "tpctl.h"

#include <stdio.h>

static void put_pair(const json_t *pair, const char *between) {
    size_t i;
    json_t *n;
    json_array_foreach((json_t *)pair, i, n)
        printf("%s%" JSON_INTEGER_FORMAT, i ? between : "", json_integer_value(n));
}

/* "0: 0-288, 1: 288-576", rows x columns where both are cut or might be. */
static void put_shards(const json_t *shards) {
    size_t i;
    json_t *shard;
    json_array_foreach((json_t *)shards, i, shard) {
        const json_t *cols = json_object_get(shard, "cols");
        printf("%s%" JSON_INTEGER_FORMAT ": ", i ? ", " : "",
               json_integer_value(json_object_get(shard, "rank")));
        put_pair(json_object_get(shard, "rows"), "-");
        if (cols) fputs(" x ", stdout);
        put_pair(cols, "-");
    }
}

/* A row a tensor: name, type, shape, and each rank's rows and columns. */
static void put_tensors(const struct tool *tool, const json_t *list) {
    bool plain = tool->format == OUT_PLAIN;
    int widest = 0;
    size_t i;
    json_t *t;
    json_array_foreach((json_t *)list, i, t) {
        int width = (int)json_string_length(json_object_get(t, "name"));
        if (width > widest) widest = width;
    }
    json_array_foreach((json_t *)list, i, t) {
        const json_t *name = json_object_get(t, "name");
        put_string(tool, name);
        printf(plain ? "\t" : "%*s  ", plain ? 0 : widest - (int)json_string_length(name), "");
        printf(plain ? "%s\t" : "%-5s  ", json_string_value(json_object_get(t, "dtype")));
        put_pair(json_object_get(t, "shape"), " x ");
        fputs(plain ? "\t" : "  on ", stdout);
        put_shards(json_object_get(t, "shards"));
        putchar('\n');
    }
}

int cmd_tensors(struct tool *tool, const struct args *args) {
    json_t *result;
    if (args->n_words > 1) {
        complain("give the name of one tensor; 'tpctl tensors' lists them");
        return TPD_EXIT_USAGE;
    }
    if (args->n_words) json_object_set_new(args->params, "name", json_string(args->words[0]));
    const char *method = args->n_words ? "tensor.export" : "tensor.list";
    int rc = tool_ask(tool, method, args->params, &result);
    if (rc != EXIT_OK) return rc;
    if (tool->format == OUT_JSON) put_json(result);
    else if (args->n_words) put_object(tool, result);
    else put_tensors(tool, json_object_get(result, "tensors"));
    json_decref(result);
    return EXIT_OK;
}
