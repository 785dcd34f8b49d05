#include "daemon/http.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void refuse(struct conn *conn) {
    static const char body[] =
        "{\"error\":{\"message\":\"HTTP is not built in this version of tpd: speak JSON-RPC on "
        "this "
        "socket, or use tpctl\",\"type\":\"server_error\",\"code\":\"not_implemented\"}}\n";
    char *answer = malloc(sizeof body + 256);
    if (!answer) {
        conn_close(conn, "no memory for an answer");
        return;
    }
    int n = snprintf(answer, sizeof body + 256,
                     "HTTP/1.1 501 Not Implemented\r\nContent-Type: application/json\r\n"
                     "Content-Length: %zu\r\nConnection: close\r\n\r\n%s",
                     sizeof body - 1, body);
    conn_send(conn, answer, (size_t)n);
    if (!conn->closing) conn_finish(conn);
}

static void on_line(struct conn *conn, char *line, size_t size) {
    (void)line;
    (void)size;
    refuse(conn);
}

const struct language http_language = {.name = "http", .line = on_line, .too_long = refuse};
