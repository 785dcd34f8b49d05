/* daemon/access.h: who is at the other end of a connection, and what they may do. */
#ifndef TPD_DAEMON_ACCESS_H
#define TPD_DAEMON_ACCESS_H

#include "daemon/config.h"

enum { PEER_MAX_GROUPS = 256 };

/* As the kernel tells it, at the time of connect(). */
struct peer {
    pid_t pid;
    uid_t uid;
    gid_t gid;
    int n_groups;
    gid_t groups[PEER_MAX_GROUPS]; /* supplementary ones */
};

int peer_of_socket(struct peer *peer, int fd, struct error *e);
/* Both lists empty let everybody in; else the peer's user or one of its groups must be listed. */
bool access_allows(const struct peer *peer, const struct id_list *users,
                   const struct id_list *groups);

#endif
