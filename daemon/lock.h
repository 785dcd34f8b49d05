/* daemon/lock.h: a lock file says who owns a socket or a state directory.
 *
 * The lock is an flock: it goes with the process, however that ends. The file stays (removing it
 * would let two daemons lock two files of one name); it holds the owner's pid for people. */
#ifndef TPD_DAEMON_LOCK_H
#define TPD_DAEMON_LOCK_H

#include "base/error.h"

/* *fd is then the lock, held until it is closed. what: "socket /run/tpd/tpd.sock", for the message.
 * Held by another process: ERR_CONFLICT that names its pid. */
int lock_take(int *fd, const char *path, const char *what, struct error *e);

#endif
