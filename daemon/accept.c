#include "daemon/accept.h"

#include "base/log.h"
#include "daemon/server.h"

#include <sys/resource.h>

enum {
    RETRY_MS = 100,
    MAX_RESERVE = 128, /* descriptors for files, job store and pipes */
    SAY_AGAIN_S = 60
};

void accept_limits(struct server *server) {
    struct rlimit limit;
    server->max_connections = server->config->max_connections;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    if (limit.rlim_cur < limit.rlim_max) {
        rlim_t before = limit.rlim_cur;
        limit.rlim_cur = limit.rlim_max < 65536 ? limit.rlim_max : 65536;
        if (setrlimit(RLIMIT_NOFILE, &limit) != 0) limit.rlim_cur = before;
    }
    rlim_t reserve = limit.rlim_cur / 2 < MAX_RESERVE ? limit.rlim_cur / 2 : MAX_RESERVE;
    rlim_t room = limit.rlim_cur - reserve;
    if (room >= (rlim_t)server->max_connections) return;
    log_warn("max_connections = %lld, but %lld descriptors are allowed (ulimit -n): %lld connections "
             "are taken at once",
             (long long)server->max_connections, (long long)limit.rlim_cur, (long long)room);
    server->max_connections = (int64_t)room;
}

/* Once a minute: whoever cannot connect tries again and again. */
static void say(struct server *server, const char *why) {
    int64_t now = clock_ns();
    if (server->accept_said_ns && now - server->accept_said_ns < SAY_AGAIN_S * 1000000000ll) return;
    server->accept_said_ns = now;
    log_warn("cannot accept a connection: %s", why);
}

/* libuv asks nobody again until the connection that it holds is taken. */
static bool try_accept(struct server *server, uv_stream_t *listener) {
    if (conn_accept(server, listener)) return true;
    say(server, "no memory; it is tried again");
    return false;
}

static void on_retry(uv_timer_t *timer) {
    struct server *server = timer->data;
    uv_stream_t *listeners[] = {(uv_stream_t *)&server->pipe, (uv_stream_t *)&server->tcp};
    for (int i = 0; i < 2; i++)
        if (server->accept_waits[i] && try_accept(server, listeners[i])) server->accept_waits[i] = false;
    if (server->accept_waits[0] || server->accept_waits[1]) uv_timer_start(timer, on_retry, RETRY_MS, 0);
}

void accept_start(struct server *server) {
    uv_timer_init(&server->loop, &server->accept_timer);
    server->accept_timer.data = server;
}

void accept_close(struct server *server) {
    uv_close((uv_handle_t *)&server->accept_timer, NULL);
}

void accept_connection(uv_stream_t *listener, int status) {
    struct server *server = listener->data;
    if (status < 0) {
        say(server, uv_strerror(status));
        return;
    }
    if (try_accept(server, listener)) return;
    server->accept_waits[listener->type == UV_TCP] = true;
    uv_timer_start(&server->accept_timer, on_retry, RETRY_MS, 0);
}
