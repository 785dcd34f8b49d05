#include "daemon/conn.h"

#include "base/log.h"
#include "daemon/http.h"
#include "daemon/rpc.h"
#include "daemon/server.h"

#include <ctype.h>
#include <linux/sockios.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

enum {
    WATCH_MS = 200,          /* how soon the end of a half-closed client is noticed */
    FLUSH_MS = 2000,         /* what a client has to read more of the last answers */
    MORE_TIMES = 10,         /* how often who reads on is given as long again: nobody holds up the end */
    SMALL_INPUT = 64 * 1024, /* an unfinished line that any connection may hold */
    INPUT_SHARE = 16         /* lines of full length that all connections together may hold */
};

struct outgoing {
    uv_write_t request;
    struct conn *conn;
    size_t size;
    char *data;
};

static const struct daemon_config *config_of(const struct conn *conn) {
    return conn->server->config;
}

/* --- closing --- */

static void on_timer_closed(uv_handle_t *handle) {
    struct conn *conn = handle->data;
    struct server *server = conn->server;
    line_buffer_free(&conn->in);
    free(conn);
    server->n_held--;
    server_tidy_up(server);
}

static void on_pipe_closed(uv_handle_t *handle) {
    struct conn *conn = handle->data;
    uv_close((uv_handle_t *)&conn->timer, on_timer_closed);
}

void conn_close(struct conn *conn, const char *why) {
    if (conn->closing) return;
    struct server *server = conn->server;
    conn->closing = true;
    log_debug("connection %llu closes: %s", (unsigned long long)conn->number, why);
    if (conn->prev) conn->prev->next = conn->next;
    else server->conns = conn->next;
    if (conn->next) conn->next->prev = conn->prev;
    server->n_conns--;
    server->input_bytes -= conn->counted;
    conn->counted = 0;
    calls_abandon(conn);
    if (conn->language && conn->language->closed) conn->language->closed(conn);
    uv_close(&conn->io.handle, on_pipe_closed);
}

/* The client has closed its end wholly, not only the side it writes on. */
static bool peer_gone(const struct conn *conn) {
    uv_os_fd_t fd;
    if (uv_fileno(&conn->io.handle, &fd) != 0) return true;
    struct pollfd probe = {.fd = fd};
    return poll(&probe, 1, 0) > 0 && (probe.revents & (POLLHUP | POLLERR | POLLNVAL));
}

/* --- slow and half-closed clients --- */

static void on_watch(uv_timer_t *timer) {
    struct conn *conn = timer->data;
    if (peer_gone(conn)) conn_close(conn, "the client has gone");
}

/* The connection ends; the client is told why in its language, in JSON-RPC before it has spoken. */
static void refuse(struct conn *conn, const struct error *e) {
    const struct language *plain = conn->over_tcp ? &http_language : &rpc_language;
    (conn->language ? conn->language : plain)->refuse(conn, e);
    if (!conn->closing) conn_finish(conn);
}

/* A message that was begun and does not go on holds a connection that others want. */
static void on_unfinished(uv_timer_t *timer) {
    struct conn *conn = timer->data;
    struct error e;
    error_set(&e, ERR_TIMEOUT, "the rest of the request did not come within %lld s",
              (long long)config_of(conn)->slow_client_s);
    refuse(conn, &e);
}

/* Whether the client has read since the last call: what waits here or in the kernel has become less. */
static bool has_read(struct conn *conn) {
    size_t here = uv_stream_get_write_queue_size(&conn->io.stream), was_here = conn->unread_here;
    int sent = 0, was_sent = conn->unread_sent;
    uv_os_fd_t fd;
    if (uv_fileno(&conn->io.handle, &fd) == 0) ioctl(fd, SIOCOUTQ, &sent);
    conn->unread_here = here;
    conn->unread_sent = sent;
    return here < was_here || sent < was_sent;
}

static void set_timer(struct conn *conn);

static void on_slow(uv_timer_t *timer) {
    struct conn *conn = timer->data;
    if (conn->finishing && conn->waits++ < MORE_TIMES && has_read(conn)) {
        set_timer(conn);
        return;
    }
    conn->server->metrics.slow_clients++;
    log_warn("connection %llu (pid %ld) is dropped: it leaves %zu bytes unread",
             (unsigned long long)conn->number, (long)conn->peer.pid, conn->outbound);
    conn_close(conn, "slow client");
}

static void set_timer(struct conn *conn) {
    if (conn->closing) return;
    uint64_t slow_ms = (uint64_t)config_of(conn)->slow_client_s * 1000;
    if (conn->finishing && conn->server->state == SERVER_ENDED) slow_ms = FLUSH_MS;
    if (conn->paused || conn->finishing) uv_timer_start(&conn->timer, on_slow, slow_ms, 0);
    else if (conn->unfinished) uv_timer_start(&conn->timer, on_unfinished, slow_ms, 0);
    else if (conn->ended) uv_timer_start(&conn->timer, on_watch, WATCH_MS, WATCH_MS);
    else uv_timer_stop(&conn->timer);
}

void conn_set_unfinished(struct conn *conn, bool unfinished) {
    if (conn->unfinished == unfinished) return;
    conn->unfinished = unfinished;
    set_timer(conn);
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf) {
    (void)suggested;
    struct conn *conn = handle->data;
    *buf = uv_buf_init(conn->server->read_buffer, sizeof conn->server->read_buffer);
}

static void on_rest(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf) {
    (void)buf;
    if (n < 0) conn_close(stream->data, "finished");
}

static void on_lingered(uv_timer_t *timer) {
    conn_close(timer->data, "finished");
}

/* Everything is written. */
static void end_finished(struct conn *conn) {
    if (!conn->lingers || conn->ended ||
        uv_shutdown(&conn->shutdown, &conn->io.stream, NULL) != 0) {
        conn_close(conn, "finished");
        return;
    }
    conn->lingers = false;
    uv_read_start(&conn->io.stream, on_alloc, on_rest);
    uv_timer_start(&conn->timer, on_lingered, FLUSH_MS, 0);
}

void conn_finish(struct conn *conn) {
    conn->finishing = true;
    uv_read_stop(&conn->io.stream);
    if (conn->outbound == 0) {
        end_finished(conn);
        return;
    }
    has_read(conn); /* from here on */
    set_timer(conn);
}

/* --- writing --- */

static void set_paused(struct conn *conn, bool paused) {
    conn->paused = paused;
    calls_hold(conn, paused);
    set_timer(conn);
}

static void on_written(uv_write_t *request, int status) {
    struct outgoing *out = request->data;
    struct conn *conn = out->conn;
    conn->outbound -= out->size;
    free(out->data);
    free(out);
    if (conn->closing) return;
    if (status < 0) {
        conn_close(conn, uv_strerror(status));
        return;
    }
    if (conn->paused && conn->outbound < (size_t)config_of(conn)->max_outbound / 2)
        set_paused(conn, false);
    if (conn->finishing && conn->outbound == 0) end_finished(conn);
    else conn_continue(conn);
}

void conn_send(struct conn *conn, char *data, size_t size) {
    struct outgoing *out = conn->closing ? NULL : malloc(sizeof *out);
    if (!out) {
        free(data);
        conn_close(conn, "no memory for an answer");
        return;
    }
    *out = (struct outgoing){.conn = conn, .size = size, .data = data};
    out->request.data = out;
    conn->outbound += size;
    uv_buf_t buf = uv_buf_init(data, (unsigned)size);
    int rc = uv_write(&out->request, &conn->io.stream, &buf, 1, on_written);
    if (rc != 0) { /* the callback will not come */
        conn->outbound -= size;
        free(data);
        free(out);
        conn_close(conn, uv_strerror(rc));
        return;
    }
    if (!conn->paused && conn->outbound > (size_t)config_of(conn)->max_outbound)
        set_paused(conn, true);
}

/* --- reading --- */

bool conn_may_take(const struct conn *conn) {
    return !conn->closing && !conn->finishing && !conn->paused &&
           conn->busy_bytes <= (size_t)config_of(conn)->max_message;
}

/* Bytes of messages that are not yet requests. */
static size_t waiting_bytes(const struct conn *conn) {
    size_t n = line_buffer_waiting(&conn->in);
    return conn->language && conn->language->kept ? n + conn->language->kept(conn) : n;
}

/* A connection may hold a long unfinished message only while all together hold not too much. */
static void check_share(struct conn *conn) {
    size_t waiting = waiting_bytes(conn);
    size_t limit = INPUT_SHARE * (size_t)config_of(conn)->max_message;
    if (waiting <= SMALL_INPUT || conn->server->input_bytes <= limit) return;
    struct error e;
    error_set(&e, ERR_OVERLOADED, "too many clients send long messages at once: try again later");
    error_note_number(&e, "retry_after_s", 1);
    refuse(conn, &e);
}

static const struct language *language_of(const struct conn *conn, char first) {
    return conn->over_tcp || isalpha((unsigned char)first) ? &http_language : &rpc_language;
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf);

/* Brings the server's sum of waiting input up to date. */
static void count_input(struct conn *conn) {
    size_t waiting = waiting_bytes(conn);
    conn->server->input_bytes += waiting - conn->counted;
    conn->counted = waiting;
}

void conn_continue(struct conn *conn) {
    if (conn->closing || conn->taking) return;
    conn->taking = true;
    if (conn->language) conn->language->take(conn);
    conn->taking = false;
    if (conn->closing) return;
    count_input(conn);
    line_buffer_shrink(&conn->in);
    bool idle = conn->n_calls == 0 && conn->outbound == 0 && line_buffer_waiting(&conn->in) == 0;
    if (conn->ended && idle) conn_close(conn, "answered all");
    else if (conn->finishing || conn->ended || !conn_may_take(conn))
        uv_read_stop(&conn->io.stream);
    else uv_read_start(&conn->io.stream, on_alloc, on_read);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf) {
    struct conn *conn = stream->data;
    if (n == 0 || conn->closing) return;
    if (n < 0) {
        if (n != UV_EOF || peer_gone(conn)) {
            conn_close(conn, uv_strerror((int)n));
            return;
        }
        conn->ended = true;
        set_timer(conn);
        conn_continue(conn);
        return;
    }
    if (!conn->language) conn->language = language_of(conn, buf->base[0]);
    if (!line_buffer_add(&conn->in, buf->base, (size_t)n)) {
        conn_close(conn, "no memory for its message");
        return;
    }
    conn_continue(conn);
    if (!conn->closing && !conn->finishing) check_share(conn);
}

/* --- accepting --- */

static int check_room(const struct conn *conn, struct error *e) {
    int64_t most = conn->server->max_connections;
    if (conn->server->n_conns <= most) return 0;
    error_set(e, ERR_OVERLOADED, "all %lld connections are in use: try again later",
              (long long)most);
    error_note_number(e, "retry_after_s", 1);
    return -(int)ERR_OVERLOADED;
}

/* Why this client may not be served, or 0. */
static int check_client(struct conn *conn, struct error *e) {
    const struct daemon_config *config = config_of(conn);
    if (conn->over_tcp) return check_room(conn, e);
    uv_os_fd_t fd = -1;
    uv_fileno(&conn->io.handle, &fd);
    int rc = peer_of_socket(&conn->peer, fd, e);
    if (rc != 0) return rc;
    if (!access_allows(&conn->peer, &config->allow_uid, &config->allow_gid))
        return error_set(e, ERR_NOT_PERMITTED,
                         "user %ld may not connect: ask the administrator for allow_uid",
                         (long)conn->peer.uid);
    return check_room(conn, e);
}

static void conn_add(struct server *server, struct conn *conn) {
    conn->number = ++server->n_accepted;
    conn->next = server->conns;
    if (conn->next) conn->next->prev = conn;
    server->conns = conn;
    server->n_conns++;
    if (++server->n_held > server->most_held) server->most_held = server->n_held;
}

bool conn_accept(struct server *server, uv_stream_t *listener) {
    struct conn *conn = calloc(1, sizeof *conn);
    if (!conn) return false;
    conn->server = server;
    line_buffer_init(&conn->in, (size_t)server->config->max_message);
    uv_timer_init(&server->loop, &conn->timer);
    conn->over_tcp = listener->type == UV_TCP;
    conn->peer.uid = conn->over_tcp ? (uid_t)-1 : 0;
    conn->peer.gid = conn->over_tcp ? (gid_t)-1 : 0;
    if (conn->over_tcp) uv_tcp_init(&server->loop, &conn->io.tcp);
    else uv_pipe_init(&server->loop, &conn->io.pipe, 0);
    conn->timer.data = conn->io.handle.data = conn;
    conn_add(server, conn);
    int rc = uv_accept(listener, &conn->io.stream);
    if (rc != 0) {
        conn_close(conn, uv_strerror(rc));
        return true;
    }
    if (conn->over_tcp) uv_tcp_nodelay(&conn->io.tcp, 1);
    struct error e;
    if (check_client(conn, &e) != 0) {
        server->metrics.connections_refused++;
        log_warn("connection %llu (pid %ld, uid %ld) is refused: %s",
                 (unsigned long long)conn->number, (long)conn->peer.pid, (long)conn->peer.uid,
                 e.message);
        refuse(conn, &e);
        return true;
    }
    log_debug("connection %llu from pid %ld, uid %ld", (unsigned long long)conn->number,
              (long)conn->peer.pid, (long)conn->peer.uid);
    conn_continue(conn);
    return true;
}
