/* Finding the daemon: where its socket may be, connecting, and whether its owner can be trusted. */
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

enum { DEFAULT_MAX_LINE = 64 << 20, PATH_BUFFER = 4096, CONNECT_TIMEOUT_MS = 10000 };

/* HOME may be unset under cron. */
static const char *home_dir(void) {
    const char *home = getenv("HOME");
    if (home && *home == '/') return home;
    const struct passwd *user = getpwuid(geteuid());
    return user ? user->pw_dir : NULL;
}

int tpd_default_socket(int i, char *buf, size_t size) {
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    bool has_runtime = runtime && *runtime;
    if (!has_runtime) i++;
    const char *home = i == 2 ? home_dir() : NULL;
    int n = -1;
    if (i == 0) n = snprintf(buf, size, "%s/tpd/tpd.sock", runtime);
    if (i == 1) n = snprintf(buf, size, "/run/tpd/tpd.sock");
    if (i == 2 && home) n = snprintf(buf, size, "%s/.tpd/tpd.sock", home);
    return n < 0 ? -1 : 0;
}

static bool trusted_owner(uid_t uid) {
    if (uid == geteuid() || uid == 0) return true;
    const struct passwd *service = getpwnam("tpd");
    return service && service->pw_uid == uid;
}

static int check_owner(int fd, const char *path, struct tpd_error *error) {
    struct ucred peer;
    socklen_t size = sizeof peer;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
        return client_fail(error, FAIL_IO, "%s: cannot tell who serves it: %s", path,
                           strerror(errno));
    if (trusted_owner(peer.uid)) return 0;
    const struct passwd *user = getpwuid(peer.uid);
    return client_fail(error, FAIL_NOT_PERMITTED,
                       "%s is served by user %s (uid %u), who is neither you, root nor tpd; "
                       "not talking to it",
                       path, user ? user->pw_name : "unknown", (unsigned)peer.uid);
}

/* Connects with a bound on the wait for a full backlog. Returns the descriptor, or -1 with errno.
 */
static int open_socket(const char *path, int64_t timeout_ms) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    struct timeval wait = {timeout_ms / 1000, timeout_ms % 1000 * 1000};
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait);
    int rc;
    do rc = connect(fd, (struct sockaddr *)&address, sizeof address);
    while (rc != 0 && errno == EINTR);
    if (rc == 0) rc = fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    if (rc == 0) return fd;
    int saved = errno;
    close(fd);
    errno = saved;
    return -1;
}

/* Tries one path: 0, or -1 with error filled; *absent says that nobody is there, so that another
 * place is worth a look. */
static int try_path(struct tpd_client *client, const char *path, bool *absent,
                    struct tpd_error *error) {
    *absent = false;
    size_t limit = sizeof client->path - 1;
    if (strlen(path) > limit)
        return client_fail(error, FAIL_CONFIG,
                           "the socket path %.60s… has %zu bytes; the system's limit is %zu: "
                           "choose a shorter one with --socket or TPD_SOCKET",
                           path, strlen(path), limit);
    int64_t timeout = client->timeout_ms > 0 ? client->timeout_ms : CONNECT_TIMEOUT_MS;
    int fd = open_socket(path, timeout);
    if (fd < 0) {
        int why = errno;
        *absent = why == ENOENT || why == ECONNREFUSED || why == ENOTDIR || why == EACCES;
        if (why == EACCES || why == EPERM)
            return client_fail(error, FAIL_NOT_PERMITTED,
                               "%s: not permitted to connect; ask for membership in its group",
                               path);
        if (why == EAGAIN)
            return client_fail(error, client->timeout_ms > 0 ? FAIL_DEADLINE : FAIL_BUSY,
                               "%s: the daemon did not take the connection in %.1f s", path,
                               (double)timeout / 1000);
        if (*absent)
            return client_fail(error, FAIL_NO_DAEMON,
                               "no daemon at %s (%s); start one with: tpd --model PATH "
                               "--socket %s",
                               path, why == ENOENT ? "no such socket" : strerror(why), path);
        return client_fail(error, FAIL_IO, "%s: cannot connect: %s", path, strerror(why));
    }
    client->fd = fd;
    snprintf(client->path, sizeof client->path, "%s", path);
    return check_owner(fd, path, error);
}

/* The usual places, in order; a place that refuses us counts only when no other answers. */
static int try_defaults(struct tpd_client *client, struct tpd_error *error) {
    char path[PATH_BUFFER], tried[768] = "";
    size_t used = 0;
    bool absent;
    struct tpd_error refused = {0}, here = {0};
    for (int i = 0; tpd_default_socket(i, path, sizeof path) == 0; i++) {
        int rc = try_path(client, path, &absent, &here);
        if (rc == 0 || !absent) {
            tpd_error_clear(&refused);
            if (rc != 0 && error) *error = here;
            return rc;
        }
        if (here.exit_code == TPD_EXIT_NOT_PERMITTED && !refused.code)
            refused = here; /* plain data: errors of this side carry no JSON */
        if (used < sizeof tried)
            used +=
                (size_t)snprintf(tried + used, sizeof tried - used, "%s%s", used ? ", " : "", path);
    }
    if (refused.code) {
        if (error) *error = refused;
        return -1;
    }
    return client_fail(error, FAIL_NO_DAEMON, "no daemon at %s; start one with: tpd --model PATH",
                       tried);
}

static bool make_cancel_pipe(struct tpd_client *client) {
    return pipe2(client->cancel_pipe, O_CLOEXEC | O_NONBLOCK) == 0;
}

int tpd_connect(struct tpd_client **out, const struct tpd_options *options,
                struct tpd_error *error) {
    static const struct tpd_options none;
    const struct tpd_options *o = options ? options : &none;
    *out = NULL;
    tpd_error_clear(error);
    struct tpd_client *client = calloc(1, sizeof *client);
    if (!client) return client_fail(error, FAIL_MEMORY, "out of memory");
    client->fd = client->cancel_pipe[0] = client->cancel_pipe[1] = -1;
    client->timeout_ms = o->timeout_ms;
    client->max_line = o->max_line ? o->max_line : DEFAULT_MAX_LINE;

    const char *named = o->socket ? o->socket : getenv("TPD_SOCKET");
    bool absent;
    int rc;
    if (!make_cancel_pipe(client))
        rc = client_fail(error, FAIL_IO, "cannot make a pipe: %s", strerror(errno));
    else if (o->socket && !*o->socket)
        rc = client_fail(error, FAIL_USAGE, "the socket path is empty");
    else if (named && *named) rc = try_path(client, named, &absent, error);
    else rc = try_defaults(client, error);
    if (rc == 0) *out = client;
    else tpd_close(client);
    return rc;
}

void tpd_close(struct tpd_client *client) {
    if (!client) return;
    if (client->fd >= 0) close(client->fd);
    if (client->cancel_pipe[0] >= 0) close(client->cancel_pipe[0]);
    if (client->cancel_pipe[1] >= 0) close(client->cancel_pipe[1]);
    free(client->in.memory);
    free(client);
}

const char *tpd_socket(const struct tpd_client *client) {
    return client->path;
}

void tpd_set_timeout(struct tpd_client *client, int64_t timeout_ms) {
    client->timeout_ms = timeout_ms;
}
