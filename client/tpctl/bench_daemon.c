#include "bench_daemon.h"

#include "tpctl.h"

#include <errno.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_FLAGS = 64 };

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *walk) {
    (void)st;
    (void)type;
    (void)walk;
    return remove(path);
}

static void remove_folder(const char *folder) {
    nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* The tpd beside this tpctl; "tpd", which $PATH finds, when there is none. */
static void find_tpd(char *path, size_t size) {
    ssize_t n = readlink("/proc/self/exe", path, size - 1);
    path[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(path, '/');
    if (slash && (size_t)(slash - path) + sizeof "/tpd" <= size) {
        strcpy(slash, "/tpd");
        if (access(path, X_OK) == 0) return;
    }
    snprintf(path, size, "tpd");
}

/* In the child: becomes tpd. What it has to say goes to our stderr; stdout is for results. */
static void become_tpd(const struct bench_daemon *daemon, pid_t parent, const char *const *flags) {
    char path[4096], state[4200];
    const char *argv[MAX_FLAGS + 8] = {"tpd", "--socket", daemon->socket, "--state-dir", state,
                                       "--log-level", "error"};
    snprintf(state, sizeof state, "%s/state", daemon->folder);
    find_tpd(path, sizeof path);
    for (int i = 0; flags[i] && i < MAX_FLAGS; i++) argv[7 + i] = flags[i];
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(TPD_EXIT_INTERRUPTED);
    dup2(STDERR_FILENO, STDOUT_FILENO);
    execvp(path, (char *const *)argv);
    complain("cannot start %s: %s", path, strerror(errno));
    _exit(TPD_EXIT_NO_FILE);
}

/* Whether it answers, with its model loaded. */
static bool is_ready(const struct bench_daemon *daemon) {
    struct tpd_options options = {.socket = daemon->socket, .timeout_ms = 10000};
    struct tpd_client *client;
    json_t *status = NULL;
    if (tpd_connect(&client, &options, NULL) != 0) return false;
    tpd_call(client, "status", NULL, &status, NULL);
    const char *state = json_string_value(json_object_get(status, "state"));
    bool ready = state && strcmp(state, "READY") == 0;
    json_decref(status);
    tpd_close(client);
    return ready;
}

/* An exit code: the daemon's own, when it ended before it was ready. It has said why. */
static int wait_until_ready(struct bench_daemon *daemon) {
    while (!is_ready(daemon)) {
        int status;
        if (waitpid(daemon->pid, &status, WNOHANG) == daemon->pid) {
            daemon->pid = 0;
            int code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
            return code ? code : TPD_EXIT_INTERNAL;
        }
        nanosleep(&(struct timespec){0, 5000000}, NULL);
    }
    return EXIT_OK;
}

int bench_daemon_start(struct bench_daemon *daemon, const char *const *flags) {
    const char *tmp = getenv("TMPDIR");
    daemon->pid = 0;
    snprintf(daemon->folder, sizeof daemon->folder, "%s/tpctl-bench-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(daemon->folder)) {
        complain("cannot make a folder like %s: %s", daemon->folder, strerror(errno));
        return TPD_EXIT_IO;
    }
    snprintf(daemon->socket, sizeof daemon->socket, "%s/socket", daemon->folder);
    pid_t parent = getpid();
    daemon->pid = fork();
    if (daemon->pid == 0) become_tpd(daemon, parent, flags);
    int rc = daemon->pid < 0 ? TPD_EXIT_BUSY : wait_until_ready(daemon);
    if (daemon->pid < 0) complain("cannot start tpd: %s", strerror(errno));
    if (rc != EXIT_OK) bench_daemon_stop(daemon);
    return rc;
}

void bench_daemon_stop(struct bench_daemon *daemon) {
    if (daemon->pid > 0) {
        kill(daemon->pid, SIGTERM);
        while (waitpid(daemon->pid, NULL, 0) < 0 && errno == EINTR) {}
    }
    remove_folder(daemon->folder);
}
