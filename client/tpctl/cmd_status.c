/* tpctl status, devices and model info: what the daemon says of itself. */
#include "tpctl.h"

#include <stdio.h>
#include <string.h>

enum { LINK_WIDTH = 13 }; /* "same device" and space */

static const char *link_text(const json_t *link) {
    const char *text = json_string_value(link);
    if (!text) return "?";
    return strcmp(text, "self") == 0 ? "-" : text;
}

/* A row a rank: how it reaches the memory of each. */
static void put_links(const struct tool *tool, const json_t *links) {
    size_t from, to, n = json_array_size(links);
    json_t *row, *link;
    printf("%slinks%s\n%10s", bold(tool), unbold(tool), "");
    for (to = 0; to < n; to++) printf("rank %-*zu", to + 1 < n ? LINK_WIDTH - 5 : 0, to);
    json_array_foreach(links, from, row) {
        printf("\n  rank %-3zu", from);
        json_array_foreach(row, to, link) {
            char cell[LINK_WIDTH] = "";
            strncat(cell, link_text(link), LINK_WIDTH - 1);
            for (char *c = cell; *c; c++)
                if ((unsigned char)*c < 0x20 || (unsigned char)*c >= 0x7F) *c = '?';
            printf("%-*s", to + 1 < n ? LINK_WIDTH : 0, cell);
        }
    }
    putchar('\n');
}

/* The links as a table of their own, where there is more than one rank. */
static void put_status(const struct tool *tool, json_t *status) {
    if (tool->format == OUT_JSON) {
        put_json(status);
        return;
    }
    json_t *links = json_incref(json_object_get(status, "links"));
    if (tool->format == OUT_HUMAN) json_object_del(status, "links");
    put_object(tool, status);
    if (tool->format == OUT_HUMAN && json_array_size(links) > 1) put_links(tool, links);
    json_decref(links);
}

int cmd_status(struct tool *tool, const struct args *args) {
    (void)args;
    json_t *status;
    int rc = tool_ask(tool, "status", NULL, &status);
    if (rc != EXIT_OK) return rc;
    put_status(tool, status);
    json_decref(status);
    return EXIT_OK;
}

int cmd_devices(struct tool *tool, const struct args *args) {
    (void)args;
    json_t *status;
    int rc = tool_ask(tool, "status", NULL, &status);
    if (rc != EXIT_OK) return rc;
    json_t *part = json_object();
    json_object_set(part, "devices", json_object_get(status, "devices"));
    json_object_set(part, "links", json_object_get(status, "links"));
    put_status(tool, part);
    json_decref(part);
    json_decref(status);
    return EXIT_OK;
}

int cmd_model_info(struct tool *tool, const struct args *args) {
    (void)args;
    json_t *result;
    int rc = tool_ask(tool, "model.info", NULL, &result);
    if (rc != EXIT_OK) return rc;
    if (tool->format == OUT_JSON) put_json(result);
    else put_object(tool, result);
    json_decref(result);
    return EXIT_OK;
}
