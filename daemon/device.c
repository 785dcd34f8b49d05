#include "daemon/device.h"

#include "base/log.h"
#include "kernels/cuda/table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NUMBER = 1023 };

static bool names_cuda(const char *device) {
    return strcmp(device, "cuda") == 0 || strncmp(device, "cuda:", 5) == 0;
}

/* The numbers behind "cuda:", at most PLAN_MAX_RANKS; 0 where none are given, negative on an error. */
static int parse_gpus(const char *device, int *gpus, struct error *e) {
    if (strcmp(device, "cuda") == 0) return 0;
    const char *at = device + strlen("cuda:");
    for (int n = 0; n < PLAN_MAX_RANKS;) {
        char *end = NULL;
        long number = *at >= '0' && *at <= '9' ? strtol(at, &end, 10) : -1;
        if (number < 0 || number > MAX_NUMBER) break;
        gpus[n++] = (int)number;
        if (*end == '\0') return n;
        if (*end != ',') break;
        at = end + 1;
    }
    return error_set(e, ERR_CONFIG,
                     "device %s: behind cuda: come up to %d device numbers, one a rank, such as cuda:0,1 "
                     "(cuda:0,0 puts two ranks on one device)",
                     device, PLAN_MAX_RANKS);
}

int device_settle(struct daemon_config *config, struct error *e) {
    int gpus[PLAN_MAX_RANKS], n = 0;
    const char *device = config->device;
    if (names_cuda(device)) n = parse_gpus(device, gpus, e);
    else if (strcmp(device, "auto") != 0 && strcmp(device, "cpu") != 0 &&
             strncmp(device, "cpu:", 4) != 0)
        return error_set(e, ERR_CONFIG,
                         "device must be auto, cpu, cpu:LIST, cuda or cuda:LIST, not \"%s\"", device);
    if (n < 0) return n;
    if (n > 0 && config->tp > 0 && config->tp != n)
        return error_set(e, ERR_CONFIG,
                         "tp is %lld, but device %s names %d device%s: name one for each rank (the same one "
                         "several times, if they are to share it), or leave tp out",
                         (long long)config->tp, device, n, n == 1 ? "" : "s");
    if (config->tp == 0) config->tp = n > 0 ? n : 1;
    return 0;
}

/* --- GPUs ------------------------------------------------------------------------------------------- */

static int check_gpus(const struct devices *d, const char *device, int there, struct error *e) {
    for (int i = 0; i < d->n_gpus; i++) {
        if (d->gpus[i] < there) continue;
        if (there == 0) return error_set(e, ERR_DEVICE, "there is no CUDA device in this machine");
        if (!strchr(device, ':'))
            return error_set(e, ERR_CONFIG,
                             "tp is %d, but there %s %d CUDA device%s: lower tp, or let ranks share one "
                             "(--device cuda:0,0)",
                             d->n_gpus, there == 1 ? "is" : "are", there, there == 1 ? "" : "s");
        return error_set(e, ERR_CONFIG, "device %s: there is no cuda:%d; this machine has %d CUDA device%s",
                         device, d->gpus[i], there, there == 1 ? "" : "s");
    }
    return 0;
}

/* Fills in what the settings ask of GPUs, and how those reach each other. */
static int choose_gpus(struct devices *d, const struct daemon_config *config, struct error *e) {
    const char *device = config->device;
    const struct cuda_table *table = cuda_table_load(e);
    int there;
    if (!table) return -(int)ERR_DEVICE;
    int n = names_cuda(device) ? parse_gpus(device, d->gpus, e) : 0;
    for (int i = 0; n == 0 && i < config->tp; i++) d->gpus[i] = i;
    d->n_gpus = (int)config->tp;
    int rc = table->count(&there, e);
    if (rc == 0) rc = check_gpus(d, device, there, e);
    return rc == 0 ? table->links(d->gpus, d->n_gpus, d->links, e) : rc;
}

/* auto takes the GPUs where there is a driver and enough of them. */
static void try_gpus(struct devices *d, const struct daemon_config *config) {
    struct error e;
    if (!cuda_driver_is_there()) return;
    if (choose_gpus(d, config, &e) == 0) return;
    d->n_gpus = 0;
    log_info("device auto takes the CPU: %s", e.message);
}

/* --- cores ------------------------------------------------------------------------------------------ */

static int choose_cores(struct core_set *cores, const struct daemon_config *config, struct error *e) {
    core_set_allowed(cores);
    if (strncmp(config->device, "cpu:", 4) == 0) {
        int rc = core_set_parse(cores, config->device + 4, e);
        if (rc == 0) rc = core_set_check(cores, e);
        if (rc != 0) return error_prefix(e, "device: ");
    }
    if (config->threads > cores->n)
        log_warn("threads = %lld, but there are only %d cores: %d are used",
                 (long long)config->threads, cores->n, cores->n);
    else if (config->threads > 0) cores->n = (int)config->threads;
    return 0;
}

int devices_choose(struct devices *out, const struct daemon_config *config, struct error *e) {
    *out = (struct devices){.n_gpus = 0};
    int rc = choose_cores(&out->cores, config, e);
    if (rc == 0 && names_cuda(config->device)) rc = choose_gpus(out, config, e);
    else if (rc == 0 && strcmp(config->device, "auto") == 0) try_gpus(out, config);
    return rc;
}

const char *devices_link(const struct devices *devices, int a, int b) {
    if (a == b) return "self";
    if (devices->n_gpus == 0) return "memory";
    switch ((enum cuda_link)devices->links[a * devices->n_gpus + b]) {
    case CUDA_LINK_SAME: return "same device";
    case CUDA_LINK_NVLINK: return "nvlink";
    case CUDA_LINK_PCIE: return "pcie";
    case CUDA_LINK_NONE: return "none";
    }
    return "none";
}
