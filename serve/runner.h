/* serve/runner.h: how the engine reaches the ranks and the model; private to serve/.
 *
 * The engine decides and samples; a runner computes. serve/runner.c is the one that tpd uses; the
 * engine's unit tests bring one that needs neither weights nor ranks. */
#ifndef TPD_SERVE_RUNNER_H
#define TPD_SERVE_RUNNER_H

#include "serve/engine.h"

struct runner;

struct runner_ops {
    /* Starts the ranks' threads; driver(arg) runs on rank 0's. */
    int (*start)(struct runner *r, void (*driver)(void *arg), void *arg, struct error *e);
    /* Bytes of KV cache that a block takes on the rank that holds most, a draft model's included. */
    size_t (*kv_block_bytes)(const struct runner *r, int32_t block_size, enum dtype kv_type);
    /* Bytes a rank may still use, weights not counted; 0 when the weights alone are too much.
     */
    size_t (*memory_left)(struct runner *r);
    /* Bytes of KV cache that each rank has room for when `fraction` of its memory is the model's: what
     * the plan of a shard with these options leaves. ERR_MEMORY when that is nothing. Before load. */
    int (*cache_room)(struct runner *r, const struct shard_options *options, double fraction,
                      size_t *out, struct error *e);
    /* Driver only: loads the shards on all ranks; runs a step on them, its logits are there on
     * return; frees the shards. After a failed forward the next one starts clean. */
    int (*load)(struct runner *r, const struct shard_options *options, struct error *e);
    int (*forward)(struct runner *r, const struct step *step, struct error *e);
    /* The same on the draft model, where there is one: its shards come and go with the others, and its step
     * has no adapters. */
    int (*forward_draft)(struct runner *r, const struct step *step, struct error *e);
    /* Driver only, after a forward (or, draft, a forward_draft) that gave candidates of its row: the whole row
     * (model_whole_row). NULL: they never do. */
    int (*whole_row)(struct runner *r, bool draft, int32_t row, float *logits, struct error *e);
    void (*unload)(struct runner *r);
    /* Driver only: the ranks themselves, for background work; NULL where there are none. */
    struct ranks *(*ranks)(struct runner *r);
    /* Any thread. name is borrowed. */
    void (*memory)(struct runner *r, int rank, struct mem_use *use, const char **name);
    /* Any thread. Why the rank's device is lost; "" while it is well. NULL: they never are. */
    void (*loss)(struct runner *r, int rank, char *out, size_t size);
    /* Waits for the threads (none when start failed or was not called) and frees the runner. */
    void (*join)(struct runner *r);
};

/* A runner's own struct begins with it. */
struct runner {
    const struct runner_ops *ops;
    const struct model_config *config; /* borrowed */
    bool f32;                          /* the weights are fp32 */
    const struct model_config *draft_config; /* borrowed; NULL: there is no draft model */
    double draft_cost; /* about the time of a row of the draft model, in rows of the model */
};

/* The runner of options->model on options->tp ranks. Fails when the plan is impossible. */
int runner_new(struct runner **out, const struct engine_options *options, struct error *e);

/* As engine_start, on this runner, which it owns from here on (also when it fails). Of options,
 * model is not looked at. */
int engine_start_on(struct engine **out, struct runner *runner,
                    const struct engine_options *options, struct error *e);

#endif
