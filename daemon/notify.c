#include "daemon/notify.h"

#include "base/log.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

void notify_send(const char *lines) {
    const char *path = getenv("NOTIFY_SOCKET");
    if (!path || (*path != '/' && *path != '@')) return;
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    size_t n = strlen(path);
    if (n >= sizeof to.sun_path) {
        log_warn("$NOTIFY_SOCKET is over %zu bytes: systemd is not told", sizeof to.sun_path - 1);
        return;
    }
    memcpy(to.sun_path, path, n);
    if (*path == '@') to.sun_path[0] = '\0'; /* an abstract name */
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n);
    if (fd < 0 || sendto(fd, lines, strlen(lines), MSG_NOSIGNAL, (struct sockaddr *)&to, size) < 0)
        log_warn("cannot tell systemd on %s: %s", path, strerror(errno));
    if (fd >= 0) close(fd);
}
