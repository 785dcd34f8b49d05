/* daemon/device.h: what `device` and `tp` ask for: cores or GPUs, and how the GPUs reach each other.
 *
 * device_settle belongs to reading the settings. devices_choose looks at the machine: it may load
 * tpd-cuda.so, which takes a moment, so it runs on a worker. */
#ifndef TPD_DAEMON_DEVICE_H
#define TPD_DAEMON_DEVICE_H

#include "base/thread.h"
#include "daemon/config.h"
#include "model/plan.h"

struct devices {
    struct core_set cores; /* of CPU ranks; else of the host's own work */
    int n_gpus;            /* 0: the ranks are on the CPU; else one a rank */
    int gpus[PLAN_MAX_RANKS];
    uint8_t links[PLAN_MAX_RANKS * PLAN_MAX_RANKS]; /* enum cuda_link, [n_gpus, n_gpus] */
};

/* Checks how device is written, and that tp agrees with a list of GPUs; tp 0 becomes as many as the list
 * has, else 1. */
int device_settle(struct daemon_config *config, struct error *e);
/* ERR_CONFIG for cores or devices that are not there, ERR_DEVICE without tpd-cuda.so or a driver; with
 * `auto` either is a reason for the CPU. */
int devices_choose(struct devices *out, const struct daemon_config *config, struct error *e);
/* How rank a reaches the memory of rank b: "self", "same device", "nvlink", "pcie" or "none"; "memory"
 * between CPU ranks. */
const char *devices_link(const struct devices *devices, int a, int b);

#endif
