/* daemon/offline.h: how commands end that need no daemon (tpd inspect, plan, merge, quantize, tokenize,
 * detokenize, template). Both give the exit code, with a line on stderr for all but 0. */
#ifndef TPD_DAEMON_OFFLINE_H
#define TPD_DAEMON_OFFLINE_H

#include "base/error.h"

/* Tells of the error. */
int offline_fail(const struct error *e);
/* Everything is said: exit_code, or EXIT_IO when stdout did not take it. */
int offline_end(int exit_code);

#endif
