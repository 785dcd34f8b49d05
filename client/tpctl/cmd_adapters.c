/* tpctl adapters: which adapters are loaded, and which one requests get. */
#include "tpctl.h"

#include <stdio.h>

const struct option_def adapters_load_options[] = {
    {"path", 0, OPTION_TEXT, "DIR", "path", "where it is (default: adapters/NAME in state_dir)"},
    {0},
};

/* The one word of a command goes into the parameters as "name". */
static int ask_with_name(struct tool *tool, const struct args *args, const char *method, int least,
                         int most, json_t **result) {
    if (args->n_words < least || args->n_words > most) {
        complain(most ? "give the name of one adapter" : "this takes no words");
        return TPD_EXIT_USAGE;
    }
    if (args->n_words) json_object_set_new(args->params, "name", json_string(args->words[0]));
    return tool_ask(tool, method, args->params, result);
}

static int show(struct tool *tool, json_t *result, int rc) {
    if (rc != EXIT_OK) return rc;
    if (tool->format == OUT_JSON) put_json(result);
    else if (!tool->quiet) put_object(tool, result);
    json_decref(result);
    return EXIT_OK;
}

static const char *text_of(const json_t *object, const char *key, const char *absent) {
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : absent;
}

/* What was the default before: often another version of the same name. */
static const char *before_of(const json_t *result) {
    const json_t *now = json_object_get(result, "default"), *before = json_object_get(result, "before");
    if (json_is_string(before) && json_equal(now, before)) return "another version of it";
    return text_of(result, "before", "the base");
}

/* One row an adapter; the default is marked, and versions that were replaced. */
static int show_list(struct tool *tool, json_t *result, int rc) {
    if (rc != EXIT_OK || tool->format == OUT_JSON) return show(tool, result, rc);
    size_t i;
    json_t *item;
    bool plain = tool->format == OUT_PLAIN;
    json_array_foreach(json_object_get(result, "adapters"), i, item) {
        bool is_default = json_is_true(json_object_get(item, "default"));
        bool is_old = json_is_false(json_object_get(item, "current"));
        const char *mark = is_default ? "*" : is_old ? "-" : plain ? "" : " ";
        printf(plain ? "%s\t%s\t%s\t%s\n" : "%s %-24s %-10s %s\n", mark, text_of(item, "name", "?"),
               text_of(item, "state", "?"), text_of(item, "path", "?"));
    }
    if (!plain && !tool->quiet)
        printf("default: %s, before: %s\n", text_of(result, "default", "the base"),
               before_of(result));
    json_decref(result);
    return EXIT_OK;
}

int cmd_adapters_list(struct tool *tool, const struct args *args) {
    json_t *result = NULL;
    int rc = ask_with_name(tool, args, "adapter.list", 0, 0, &result);
    return show_list(tool, result, rc);
}

int cmd_adapters_load(struct tool *tool, const struct args *args) {
    json_t *result = NULL;
    int rc = ask_with_name(tool, args, "adapter.load", 1, 1, &result);
    return show(tool, result, rc);
}

int cmd_adapters_unload(struct tool *tool, const struct args *args) {
    json_t *result = NULL;
    int rc = ask_with_name(tool, args, "adapter.unload", 1, 1, &result);
    return show(tool, result, rc);
}

int cmd_adapters_activate(struct tool *tool, const struct args *args) {
    json_t *result = NULL;
    int rc = ask_with_name(tool, args, "adapter.activate", 1, 1, &result);
    return show_list(tool, result, rc);
}

int cmd_adapters_rollback(struct tool *tool, const struct args *args) {
    json_t *result = NULL;
    int rc = ask_with_name(tool, args, "adapter.rollback", 0, 1, &result);
    return show_list(tool, result, rc);
}
