/* daemon/tensors.h: tensor.list and tensor.export: the weights, for other processes to map.
 *
 * On CPU ranks an exported allocation moves into shared memory, so that both sides see the same pages. Its
 * names begin with what only this state directory gives; what a daemon that was killed left of them goes
 * when the next one starts there. On the loop's thread. */
#ifndef TPD_DAEMON_TENSORS_H
#define TPD_DAEMON_TENSORS_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

struct server;

struct tensor_sharing {
    char prefix[64]; /* of names: "/tpd-DEVICE-INODE-" of the state directory */
    unsigned mode;   /* for reading, by who may connect to the socket */
    uint32_t uid, gid;
    uint64_t made; /* names so far: none is used twice */
};

/* Once the state directory is locked and the socket is bound. */
int tensors_open(struct server *server, const char *state_dir, struct error *e);

#endif
