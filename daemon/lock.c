#include "daemon/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

static int held(struct error *e, int fd, const char *path, const char *what) {
    char text[32] = "";
    ssize_t n = pread(fd, text, sizeof text - 1, 0);
    long pid = n > 0 ? strtol(text, NULL, 10) : 0;
    if (pid > 0) {
        error_set(e, ERR_CONFLICT, "%s belongs to another tpd (pid %ld): stop it or choose another",
                  what, pid);
        error_note_number(e, "pid", pid);
    } else error_set(e, ERR_CONFLICT, "%s belongs to another tpd, which holds %s", what, path);
    error_note(e, "path", path);
    return -(int)ERR_CONFLICT;
}

int lock_take(int *out, const char *path, const char *what, struct error *e) {
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY, 0600);
    if (fd < 0) return error_errno(e, errno, path, "open the lock file");
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        int rc =
            errno == EWOULDBLOCK ? held(e, fd, path, what) : error_errno(e, errno, path, "lock");
        close(fd);
        return rc;
    }
    char text[32];
    int n = snprintf(text, sizeof text, "%ld\n", (long)getpid());
    if (ftruncate(fd, 0) != 0 || pwrite(fd, text, (size_t)n, 0) != n) {
        int rc = error_errno(e, errno, path, "write");
        close(fd);
        return rc;
    }
    *out = fd;
    return 0;
}
