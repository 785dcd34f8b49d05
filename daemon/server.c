#include "daemon/server.h"

#include "base/log.h"
#include "daemon/loading.h"
#include "daemon/notify.h"
#include "daemon/rpc.h"
#include "daemon/accept.h"
#include "daemon/adapters.h"
#include "daemon/tcp.h"
#include "daemon/training.h"
#include "daemon/unloading.h"
#include "daemon/version.h"
#include "text/chat.h"

#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- the end --- */

static void close_connections(struct server *server) {
    struct conn *next;
    for (struct conn *conn = server->conns; conn; conn = next) {
        next = conn->next;
        conn_finish(conn); /* what is queued still goes out, to those who read it soon */
    }
}

/* All live requests have ended: nothing keeps the loop but the handles. */
static void close_all(struct server *server) {
    if (server->state == SERVER_ENDED) return;
    server_enter(server, SERVER_ENDED);
    atomic_store(&server->abandon_loading, true);
    if (server->engine) {
        engine_stop(server->engine, false);
        engine_join(server->engine);
        server->engine = NULL;
        mailbox_deliver(&server->mailbox);
    }
    training_quiet(server);
    mailbox_close(&server->mailbox);
    close_connections(server);
    uv_close((uv_handle_t *)&server->pipe, NULL);
    tcp_close(server);
    accept_close(server);
    unloading_close(server);
    uv_close((uv_handle_t *)&server->drain_timer, NULL);
    for (size_t i = 0; i < sizeof server->signals / sizeof *server->signals; i++)
        uv_close((uv_handle_t *)&server->signals[i], NULL);
}

static void cancel_everything(struct server *server) {
    while (server->parked) call_cancel(server->parked);
    if (server->engine) engine_stop(server->engine, false);
    for (struct conn *conn = server->conns; conn; conn = conn->next)
        for (struct call *call = conn->calls, *next; call; call = next) {
            next = call->next;
            call_cancel(call);
        }
}

static void on_idle_end(uv_timer_t *timer) {
    close_all(timer->data);
}

/* The last request may have ended deep inside a handler: the end waits for the next turn. */
static void end_soon(struct server *server) {
    if (server->state != SERVER_ENDED) uv_timer_start(&server->drain_timer, on_idle_end, 0, 0);
}

static void on_drain_timeout(uv_timer_t *timer) {
    struct server *server = timer->data;
    log_warn("%lld requests are still live after the drain timeout: they are cancelled",
             (long long)server->n_calls);
    cancel_everything(server);
    if (server->n_calls == 0) end_soon(server);
}

/* Whoever waits for a load or unload is told that it will not be. */
static void tell_change(struct server *server) {
    struct error e;
    error_set(&e, ERR_SHUTTING_DOWN, "the daemon is shutting down");
    model_change_done(server, &e);
}

void server_shutdown(struct server *server, bool drain, int64_t timeout_ms) {
    if (server->state == SERVER_ENDED) return;
    if (server->state != SERVER_DRAINING) {
        log_info("shutting down%s: %lld live requests", drain ? " after live requests" : "",
                 (long long)server->n_calls);
        notify_send("STOPPING=1\nSTATUS=draining");
        server_enter(server, SERVER_DRAINING);
        tell_change(server);
    }
    watches_end(server->training);
    if (!drain) cancel_everything(server);
    if (server->n_calls == 0) end_soon(server);
    else if (drain)
        uv_timer_start(&server->drain_timer, on_drain_timeout, (uint64_t)timeout_ms, 0);
}

void server_call_begins(struct server *server) {
    server->n_calls++;
}

void server_call_ends(struct server *server) {
    if (--server->n_calls == 0 && server->state == SERVER_DRAINING) end_soon(server);
    server_tidy_up(server);
}

void server_tidy_up(struct server *server) {
    enum { CROWD = 64 };
    bool has_left = server->n_held <= server->most_held / 4 && server->n_calls <= server->n_held;
    if (server->most_held < CROWD || !has_left) return;
    malloc_trim(0);
    server->most_held = server->n_held;
}

void server_fail(struct server *server, const struct error *e) {
    log_error("%s", e->message);
    server->exit_code = error_class(e->kind)->exit_code;
    server_shutdown(server, false, 0);
}

static void on_signal(uv_signal_t *handle, int number) {
    struct server *server = handle->data;
    if (number == SIGHUP) return; /* nothing to read again; it must not end the daemon */
    bool again = server->state == SERVER_DRAINING;
    log_info("%s%s", strsignal(number), again ? " again: stopping at once" : "");
    server_shutdown(server, !again, server->config->drain_timeout_s * 1000);
}

/* --- the start --- */

static int uv_failed(struct error *e, const char *what, int rc) {
    return error_set(e, ERR_IO, "cannot %s: %s", what, uv_strerror(rc));
}

static int start_handles(struct server *server, struct error *e) {
    static const int numbers[] = {SIGTERM, SIGINT, SIGHUP};
    uv_timer_init(&server->loop, &server->drain_timer);
    server->drain_timer.data = server;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        uv_signal_init(&server->loop, &server->signals[i]);
        server->signals[i].data = server;
        uv_signal_start(&server->signals[i], on_signal, numbers[i]);
    }
    accept_start(server);
    unloading_init(server);
    uv_pipe_init(&server->loop, &server->pipe, 0);
    server->pipe.data = server;
    /* Bound by hand: uv_pipe_bind would cut a long path without a word. */
    int rc = uv_pipe_open(&server->pipe, server->listener.fd);
    if (rc != 0) return uv_failed(e, "use the socket", rc);
    server->listener.fd = -1; /* the handle closes it */
    rc = uv_listen((uv_stream_t *)&server->pipe, SOMAXCONN, accept_connection);
    return rc == 0 ? tcp_listen(server, e) : uv_failed(e, "listen on the socket", rc);
}

static int run_loop(struct server *server, struct error *e) {
    int rc = uv_loop_init(&server->loop);
    if (rc != 0) return uv_failed(e, "start the loop", rc);
    rc = mailbox_init(&server->mailbox, &server->loop, e);
    if (rc != 0) {
        uv_loop_close(&server->loop);
        return rc;
    }
    rc = start_handles(server, e);
    if (rc == 0) {
        training_listen(server);
        log_info("socket %s", server->listener.path);
        loading_start(server, NULL);
    } else {
        server_fail(server, e);
    }
    uv_run(&server->loop, UV_RUN_DEFAULT);
    uv_loop_close(&server->loop);
    return 0;
}

static int open_and_run(struct server *server, struct error *e) {
    char *state_dir = NULL;
    int rc = tcp_check(server->config, e);
    if (rc == 0) rc = state_dir_open(server->config, &server->state_lock_fd, &state_dir, e);
    if (rc == 0) rc = training_open(server, state_dir, e);
    if (rc == 0) rc = adapters_open(server, state_dir, e);
    if (rc == 0 && (asprintf(&server->tuning_path, "%s/all-reduce.tuning", state_dir) < 0 ||
                    asprintf(&server->quant_dir, "%s/quant", state_dir) < 0))
        rc = error_set(e, ERR_MEMORY, "no memory for a path");
    if (rc == 0) rc = listener_open(&server->listener, server->config, e);
    if (rc == 0) rc = tensors_open(server, state_dir, e);
    free(state_dir);
    if (rc == 0) rc = run_loop(server, e);
    listener_close(&server->listener);
    if (server->state_lock_fd >= 0) close(server->state_lock_fd);
    return rc;
}

int server_run(const struct daemon_config *config) {
    struct error e;
    struct server *server = calloc(1, sizeof *server);
    if (!server) return EXIT_BUSY;
    signal(SIGPIPE, SIG_IGN);
    umask(0077); /* what the daemon writes is for its user alone */
    server->settings = *config;
    server->config = &server->settings;
    accept_limits(server);
    server->started_ns = server->load_began_ns = clock_ns();
    server->state_lock_fd = -1;
    server->listener = (struct listener){.fd = -1, .lock_fd = -1};
    log_info("tpd %s, pid %ld", TPD_VERSION, (long)getpid());
    int rc = open_and_run(server, &e);
    if (rc != 0) {
        log_error("%s", e.message);
        server->exit_code = error_class(e.kind)->exit_code;
    }
    adapters_close(server);
    training_close(server);
    structured_clear(&server->structured);
    chat_free(server->chat);
    tokenizer_free(server->tokenizer);
    model_free(server->model);
    model_free(server->draft);
    free(server->tuning_path);
    free(server->loaded_path);
    free(server->loaded_draft);
    free(server->quant_dir);
    int exit_code = server->exit_code;
    free(server);
    log_info("ended, exit code %d", exit_code);
    return exit_code;
}
