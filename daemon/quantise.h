/* daemon/quantise.h: the model in groups of 8 or 4 bits, when the daemon is started with `quant`. */
#ifndef TPD_DAEMON_QUANTISE_H
#define TPD_DAEMON_QUANTISE_H

#include "daemon/server.h"

/* On the worker pool, before any rank loads: gives the model the weights that want->quant asks for, from what
 * state_dir keeps or anew on `threads` threads. Does nothing for "none". */
int quantise_opened(const struct server *server, const struct daemon_config *want, struct model *model,
                    int threads, struct error *e);

#endif
