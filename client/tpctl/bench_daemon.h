/* client/tpctl/bench_daemon.h: a tpd that a command starts for itself and takes away again.
 *
 * It has a folder of its own under $TMPDIR for its socket and its state, and ends with tpctl however
 * tpctl ends. One thread. */
#ifndef TPD_TPCTL_BENCH_DAEMON_H
#define TPD_TPCTL_BENCH_DAEMON_H

#include <sys/types.h>

struct bench_daemon {
    pid_t pid;
    char folder[4096], socket[4200];
};

/* Starts the tpd that lies beside tpctl, else the one in $PATH, with these flags (ended by NULL) behind
 * those that give it its folder; waits until its model is loaded. Returns an exit code, after a complaint
 * when it is not 0; then there is nothing to stop. */
int bench_daemon_start(struct bench_daemon *daemon, const char *const *flags);
/* Ends it and removes its folder. */
void bench_daemon_stop(struct bench_daemon *daemon);

#endif
