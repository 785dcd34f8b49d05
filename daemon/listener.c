#include "daemon/listener.h"

#include "base/file.h"
#include "daemon/lock.h"

#include <errno.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/* The first descriptor that systemd passes. */
enum { LISTEN_FDS_START = 3 };

static int no_memory(struct error *e) {
    return error_set(e, ERR_MEMORY, "no memory for a path");
}

/* Root and the user of the service keep their things in the system's places. */
static bool is_service_user(void) {
    if (geteuid() == 0) return true;
    const struct passwd *user = getpwuid(geteuid());
    return user && strcmp(user->pw_name, "tpd") == 0;
}

static const char *set_env(const char *name) {
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

static const char *home_dir(void) {
    const char *home = set_env("HOME");
    if (home) return home;
    const struct passwd *user = getpwuid(geteuid());
    return user ? user->pw_dir : "/";
}

int listener_choose_path(const struct daemon_config *config, char **out, struct error *e) {
    const char *env = set_env("TPD_SOCKET"), *runtime = set_env("XDG_RUNTIME_DIR");
    if (*config->socket) *out = strdup(config->socket);
    else if (env) *out = strdup(env);
    else if (runtime) *out = path_join(runtime, "tpd/tpd.sock");
    else if (is_service_user()) *out = strdup("/run/tpd/tpd.sock");
    else *out = path_join(home_dir(), ".tpd/tpd.sock");
    return *out ? 0 : no_memory(e);
}

/* Makes path and what is missing above it, for the owner alone. path is changed meanwhile. */
static int make_dirs(char *path, struct error *e) {
    for (char *slash = strchr(path + 1, '/');; slash = strchr(slash + 1, '/')) {
        if (slash) *slash = '\0';
        int failed = mkdir(path, 0700) != 0 && errno != EEXIST ? errno : 0;
        int rc = failed ? error_errno(e, failed, path, "make the directory") : 0;
        if (slash) *slash = '/';
        if (rc != 0 || !slash) return rc;
    }
}

/* A directory in which anybody may rename files would let anybody be the daemon. */
static int check_dir(const char *path, struct error *e) {
    struct stat st;
    if (stat(path, &st) != 0) return error_errno(e, errno, path, "look at the directory");
    if (!S_ISDIR(st.st_mode)) return error_set(e, ERR_CONFIG, "%s: is not a directory", path);
    if ((st.st_mode & S_IWOTH) && !(st.st_mode & S_ISVTX))
        return error_set(e, ERR_CONFIG,
                         "%s: everybody may write to this directory; choose another, or chmod o-w",
                         path);
    return 0;
}

static int prepare_dir(char *path, struct error *e) {
    int rc = path_exists(path) ? 0 : make_dirs(path, e);
    return rc == 0 ? check_dir(path, e) : rc;
}

static int prepare_socket_dir(const char *socket_path, struct error *e) {
    char *dir = strdup(socket_path);
    if (!dir) return no_memory(e);
    char *slash = strrchr(dir, '/');
    if (!slash) snprintf(dir, strlen(dir) + 1, ".");
    else slash[slash == dir] = '\0';
    int rc = prepare_dir(dir, e);
    free(dir);
    return rc;
}

static int check_length(const char *path, struct error *e) {
    const size_t limit = sizeof((struct sockaddr_un){0}).sun_path - 1;
    if (strlen(path) <= limit) return 0;
    error_set(e, ERR_CONFIG,
              "socket path has %zu bytes, the system's limit is %zu: choose a shorter one (%s)",
              strlen(path), limit, path);
    error_note_number(e, "limit", (int64_t)limit);
    return -(int)ERR_CONFIG;
}

/* What is there under the lock was left by a daemon that died. */
static int remove_stale(const char *path, struct error *e) {
    struct stat st;
    if (lstat(path, &st) != 0)
        return errno == ENOENT ? 0 : error_errno(e, errno, path, "look at the socket");
    if (!S_ISSOCK(st.st_mode))
        return error_set(e, ERR_CONFIG,
                         "%s: exists and is not a socket; remove it or choose another", path);
    return unlink(path) == 0 ? 0 : error_errno(e, errno, path, "remove the stale socket");
}

static int group_of(const char *name, gid_t *gid, struct error *e) {
    uint32_t id;
    if (!config_id_of(CONFIG_GROUPS, name, &id))
        return error_set(e, ERR_CONFIG, "socket_group: no group \"%s\"", name);
    *gid = id;
    return 0;
}

/* Mode and group are right before anybody can connect: the socket does not listen yet. */
static int bind_socket(struct listener *listener, const struct daemon_config *config,
                       struct error *e) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, listener->path, strlen(listener->path));
    listener->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener->fd < 0) return error_errno(e, errno, listener->path, "make the socket");
    mode_t old = umask(0777 & ~(mode_t)config->socket_mode);
    int failed = bind(listener->fd, (struct sockaddr *)&address, sizeof address) != 0 ? errno : 0;
    umask(old);
    if (failed) return error_errno(e, failed, listener->path, "bind the socket");
    if (*config->socket_group == '\0') return 0;
    gid_t gid = (gid_t)-1;
    int rc = group_of(config->socket_group, &gid, e);
    if (rc == 0 && chown(listener->path, (uid_t)-1, gid) != 0)
        rc = error_errno(e, errno, listener->path, "give the socket to socket_group");
    if (rc != 0) unlink(listener->path);
    return rc;
}

/* A socket that systemd made and passed to this process (LISTEN_FDS); false when there is none. */
static bool take_inherited(struct listener *listener) {
    const char *pid = getenv("LISTEN_PID"), *count = getenv("LISTEN_FDS");
    if (!pid || !count || strtol(pid, NULL, 10) != (long)getpid() || strtol(count, NULL, 10) != 1)
        return false;
    struct sockaddr_un address;
    socklen_t size = sizeof address;
    if (getsockname(LISTEN_FDS_START, (struct sockaddr *)&address, &size) != 0 ||
        address.sun_family != AF_UNIX)
        return false;
    unsetenv("LISTEN_PID");
    unsetenv("LISTEN_FDS");
    listener->fd = LISTEN_FDS_START;
    listener->path = strndup(address.sun_path, sizeof address.sun_path);
    listener->inherited = true;
    return listener->path != NULL;
}

static int lock_socket(struct listener *listener, struct error *e) {
    size_t n = strlen(listener->path) + 16;
    char *path = malloc(n), *what = malloc(n);
    int rc = path && what ? 0 : no_memory(e);
    if (rc == 0) {
        snprintf(path, n, "%s.lock", listener->path);
        snprintf(what, n, "socket %s", listener->path);
        rc = lock_take(&listener->lock_fd, path, what, e);
    }
    free(path);
    free(what);
    return rc;
}

int listener_open(struct listener *listener, const struct daemon_config *config, struct error *e) {
    *listener = (struct listener){.fd = -1, .lock_fd = -1};
    bool made_by_systemd = take_inherited(listener);
    int rc = made_by_systemd ? 0 : listener_choose_path(config, &listener->path, e);
    if (rc == 0) rc = check_length(listener->path, e);
    if (rc == 0 && !made_by_systemd) rc = prepare_socket_dir(listener->path, e);
    if (rc == 0) rc = lock_socket(listener, e);
    if (rc == 0 && !made_by_systemd) rc = remove_stale(listener->path, e);
    if (rc == 0 && !made_by_systemd) rc = bind_socket(listener, config, e);
    if (rc == 0) return 0;
    listener->inherited = true; /* nothing of ours to remove */
    listener_close(listener);
    return rc;
}

void listener_close(struct listener *listener) {
    if (listener->path && !listener->inherited) unlink(listener->path);
    if (listener->fd >= 0) close(listener->fd);
    if (listener->lock_fd >= 0) close(listener->lock_fd);
    free(listener->path);
    *listener = (struct listener){.fd = -1, .lock_fd = -1};
}

static char *choose_state_dir(const struct daemon_config *config) {
    const char *xdg = set_env("XDG_STATE_HOME");
    if (*config->state_dir) return strdup(config->state_dir);
    if (is_service_user()) return strdup("/var/lib/tpd");
    return xdg ? path_join(xdg, "tpd") : path_join(home_dir(), ".local/state/tpd");
}

int state_dir_open(const struct daemon_config *config, int *lock_fd, char **path,
                   struct error *e) {
    *lock_fd = -1;
    *path = NULL;
    char *dir = choose_state_dir(config), *lock = NULL, what[512];
    int rc = dir ? prepare_dir(dir, e) : no_memory(e);
    if (rc == 0 && !(lock = path_join(dir, "tpd.lock"))) rc = no_memory(e);
    if (rc == 0) {
        snprintf(what, sizeof what, "state directory %s", dir);
        rc = lock_take(lock_fd, lock, what, e);
    }
    free(lock);
    if (rc == 0) *path = dir;
    else free(dir);
    return rc;
}
