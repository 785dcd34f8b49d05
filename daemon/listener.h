/* daemon/listener.h: the Unix socket, from its path to a bound descriptor, and the state directory.
 *
 * Called by main's thread before any other thread runs (it sets the umask for a moment). */
#ifndef TPD_DAEMON_LISTENER_H
#define TPD_DAEMON_LISTENER_H

#include "daemon/config.h"

struct listener {
    char *path; /* owned */
    int fd;     /* bound, not yet listening; -1 once given away */
    int lock_fd;
    bool inherited; /* from systemd: the file is not ours to remove */
};

/* Where the socket is when config says nothing: $TPD_SOCKET, $XDG_RUNTIME_DIR/tpd/tpd.sock,
 * /run/tpd/tpd.sock for root and the user tpd, else ~/.tpd/tpd.sock. *out is the caller's to free.
 */
int listener_choose_path(const struct daemon_config *config, char **out, struct error *e);

/* Takes the lock beside the socket, removes a stale socket, binds. A path over the limit of
 * sun_path, or a directory that everybody may write to, is ERR_CONFIG; a live owner ERR_CONFLICT.
 */
int listener_open(struct listener *listener, const struct daemon_config *config, struct error *e);
/* Removes the socket's file and lets the lock go. */
void listener_close(struct listener *listener);

/* Finds or makes the state directory and locks it; *lock_fd holds it, *path is its path and
 * the caller's to free. */
int state_dir_open(const struct daemon_config *config, int *lock_fd, char **path, struct error *e);

#endif
