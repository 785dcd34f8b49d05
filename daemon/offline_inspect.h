/* daemon/offline_inspect.h: the command `tpd inspect PATH [--json]`. */
#ifndef TPD_DAEMON_OFFLINE_INSPECT_H
#define TPD_DAEMON_OFFLINE_INSPECT_H

/* argv begins at PATH. What PATH holds goes to stdout; a failure is one line on stderr. Returns the
 * exit code. */
int offline_inspect(int argc, char **argv);

#endif
