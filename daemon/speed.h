/* daemon/speed.h: how fast this machine is at the two things that bound a step: reading weights and
 * multiplying. Measured with the CPU backend's own products, on all cores that the process may use. */
#ifndef TPD_DAEMON_SPEED_H
#define TPD_DAEMON_SPEED_H

#include "base/error.h"

struct speed {
    double bandwidth; /* bytes a second */
    double flops;     /* operations a second */
};

/* Takes about half a second and 300 MiB for that time. Any thread. */
int speed_measure(struct speed *out, struct error *e);

#endif
