/* daemon/merge.h: base and adapter written as one model: `tpd merge`, which needs no daemon, and what it
 * shares with the method model.merge. */
#ifndef TPD_DAEMON_MERGE_H
#define TPD_DAEMON_MERGE_H

/* argv: what follows "merge". Returns the exit code. */
int offline_merge(int argc, char **argv);

#endif
