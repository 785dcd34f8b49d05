#include "daemon/access.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

int peer_of_socket(struct peer *peer, int fd, struct error *e) {
    struct ucred cred;
    socklen_t size = sizeof cred;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &size) != 0)
        return error_set(e, ERR_IO, "cannot tell who connects: %s", strerror(errno));
    *peer = (struct peer){.pid = cred.pid, .uid = cred.uid, .gid = cred.gid};
    size = sizeof peer->groups;
    /* Older kernels do not tell them: then only the primary group counts. */
    if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, peer->groups, &size) == 0)
        peer->n_groups = (int)(size / sizeof *peer->groups);
    return 0;
}

static bool lists(const struct id_list *list, uint32_t id) {
    for (int i = 0; i < list->n; i++)
        if (list->ids[i] == id) return true;
    return false;
}

bool access_allows(const struct peer *peer, const struct id_list *users,
                   const struct id_list *groups) {
    if (users->n == 0 && groups->n == 0) return true;
    if (lists(users, peer->uid) || lists(groups, peer->gid)) return true;
    for (int i = 0; i < peer->n_groups; i++)
        if (lists(groups, peer->groups[i])) return true;
    return false;
}
