/* tpctl status and model info: what the daemon says of itself. */
#include "tpctl.h"

static int show(struct tool *tool, const char *method) {
    json_t *result;
    int rc = tool_ask(tool, method, NULL, &result);
    if (rc != EXIT_OK) return rc;
    if (tool->format == OUT_JSON) put_json(result);
    else put_object(tool, result);
    json_decref(result);
    return EXIT_OK;
}

int cmd_status(struct tool *tool, const struct args *args) {
    (void)args;
    return show(tool, "status");
}

int cmd_model_info(struct tool *tool, const struct args *args) {
    (void)args;
    return show(tool, "model.info");
}
