/* ranks/ranks.h: the rank threads, and the numbered units that they all run.
 *
 * A rank is a thread that owns one device (here: a set of cores, later a GPU), its context and its
 * end of the communicator. Rank 0's thread runs the driver: a function that decides what is done
 * next and hands units to all ranks with ranks_run. The other ranks only follow the numbered units,
 * so all agree without a vote. A unit is the smallest piece of work that is never interrupted.
 *
 * If a unit fails on one rank, the communicator is aborted, so that the others come back; ranks_run
 * then returns the error of the rank that failed first, and the next unit starts clean.
 */
#ifndef TPD_RANKS_RANKS_H
#define TPD_RANKS_RANKS_H

#include "ipc/comm.h"

struct rank {
    int index, n;
    struct kctx *ctx;
    struct comm *comm;
    void *state; /* what the units keep on this rank: its model shard */
};

enum rank_device { RANK_CPU, RANK_PLAN, RANK_CUDA };

struct ranks_options {
    enum rank_device device;
    int n;
    struct core_set
        cores;            /* dealt to the ranks; n 0 = those allowed; n_ranks > cores shares them */
    int n_gpus, gpus[64]; /* RANK_CUDA: rank i has gpus[i % n_gpus] */
    bool same_bits;       /* RANK_CUDA: as struct cuda_options */
    const char *tuning_path; /* RANK_CUDA: for comm_world_tuning, or NULL; read at the start */
    size_t memory_limit;  /* bytes a rank may hold; 0 = what there is */
    size_t staging_bytes; /* for comm_world_new */
    int deadline_ms;
    bool debug_alias; /* as struct cpu_options */
};

struct ranks;

/* Runs on every rank. arg is the same for all and must not be written through but in parts that
 * belong to one rank. Returns 0 or fills e. A context's error that the unit left behind is taken
 * for its error. */
typedef int unit_fn(struct rank *rank, void *arg, struct error *e);
/* Runs on rank 0's thread, once; when it returns, the ranks end. */
typedef void driver_fn(struct ranks *ranks, void *arg);

/* Sets the spin budget of all waiting (wait_spin_set): none when there are more members than cores.
 * Starts the threads, opens devices and communicator, then sets *out and runs the driver. Returns when
 * all devices are open (or failed to open: then the error, and nothing runs). */
int ranks_start(struct ranks **out, const struct ranks_options *options, driver_fn *driver,
                void *arg, struct error *e);
/* Waits until the driver has returned and all threads have ended, and frees. */
void ranks_join(struct ranks *ranks);

/* Driver only: runs fn on all ranks, returns when all are done. */
int ranks_run(struct ranks *ranks, unit_fn *fn, void *arg, struct error *e);
int ranks_count(const struct ranks *ranks);
struct rank *ranks_at(struct ranks *ranks, int index);
/* Memory use of a rank's device as of its last unit, and its name ("cpu:0-3"); any thread. */
void ranks_memory(struct ranks *ranks, int index, struct mem_use *use);
/* Bytes that the rank may still take: what its limit leaves; without a limit, its share of what the
 * machine has available. Any thread. */
size_t ranks_memory_left(struct ranks *ranks, int index);
const char *ranks_device_name(const struct ranks *ranks, int index);
/* Why the rank's device is lost: every unit fails for it from then on. "" while it is well. Any thread. */
void ranks_device_loss(struct ranks *ranks, int index, char *out, size_t size);

#endif
