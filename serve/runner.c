#include "serve/runner.h"

#include "model/planning.h"
#include "ranks/ranks.h"

#include <stdlib.h>

struct rank_runner {
    struct runner base;
    const struct model *model;
    struct shard_plan plan;
    struct ranks_options options;
    struct ranks *ranks;
    void (*driver)(void *arg);
    void *driver_arg;
};

static struct rank_runner *self_of(struct runner *r) {
    return (struct rank_runner *)r;
}

static void run_driver(struct ranks *ranks, void *arg) {
    struct rank_runner *self = arg;
    /* ranks_start has not returned yet, perhaps; the driver needs them now. */
    self->ranks = ranks;
    self->driver(self->driver_arg);
}

static int runner_start(struct runner *r, void (*driver)(void *arg), void *arg, struct error *e) {
    struct rank_runner *self = self_of(r);
    struct ranks *ranks;
    self->driver = driver;
    self->driver_arg = arg;
    return ranks_start(&ranks, &self->options, run_driver, self, e);
}

static size_t runner_kv_block_bytes(const struct runner *r, int32_t block_size,
                                    enum dtype kv_type) {
    const struct rank_runner *self = (const struct rank_runner *)r;
    return model_kv_block_bytes(self->model, &self->plan, block_size, kv_type);
}

static size_t runner_memory_left(struct runner *r) {
    struct rank_runner *self = self_of(r);
    size_t left = ranks_memory_left(self->ranks, 0);
    size_t weights = model_weight_bytes(self->model) / (size_t)self->options.n;
    weights += weights / 20; /* parts are not quite even */
    return left > weights ? left - weights : 0;
}

static int no_room(struct rank_runner *self, int rank, double fraction, size_t needed, size_t left,
                   struct error *e) {
    int err = error_set(e, ERR_MEMORY,
                        "rank %d on %s: the weights and the activations of a step need %.1f MiB, and "
                        "%g of what is free (memory_fraction) is %.1f MiB: raise tp, or lower "
                        "step_tokens",
                        rank, ranks_device_name(self->ranks, rank), (double)needed / (1 << 20), fraction,
                        (double)left / (1 << 20));
    error_note_number(e, "needed", (int64_t)needed);
    error_note_number(e, "free", (int64_t)left);
    return err;
}

static int runner_cache_room(struct runner *r, const struct shard_options *options, double fraction,
                             size_t *out, struct error *e) {
    struct rank_runner *self = self_of(r);
    struct shard_options planned = *options;
    planned.kv_blocks = 1;
    *out = SIZE_MAX;
    for (int rank = 0; rank < self->options.n; rank++) {
        struct mem_use use;
        int err = plan_shard(&use, self->model, &self->plan, &planned, rank, e);
        if (err) return err;
        size_t left = (size_t)(fraction * (double)ranks_memory_left(self->ranks, rank));
        size_t needed = mem_used(&use) - use.bytes[MEM_KV];
        if (needed >= left) return no_room(self, rank, fraction, needed, left, e);
        if (left - needed < *out) *out = left - needed;
    }
    return 0;
}

struct load_order {
    struct rank_runner *self;
    const struct shard_options *options;
};

static int load_unit(struct rank *rank, void *arg, struct error *e) {
    const struct load_order *order = arg;
    return shard_load((struct shard **)&rank->state, order->self->model, &order->self->plan,
                      rank->ctx, rank->comm, order->options, e);
}

/* The ranks' first collective: devices get connected, and measured where that was not done before. */
static int meet_unit(struct rank *rank, void *arg, struct error *e) {
    (void)arg;
    comm_barrier(rank->comm);
    return rank->ctx->ops->wait(rank->ctx, e);
}

static int runner_load(struct runner *r, const struct shard_options *options, struct error *e) {
    struct load_order order = {self_of(r), options};
    int rc = ranks_run(self_of(r)->ranks, meet_unit, NULL, e);
    return rc ? rc : ranks_run(self_of(r)->ranks, load_unit, &order, e);
}

static int forward_unit(struct rank *rank, void *arg, struct error *e) {
    return model_forward(rank->state, arg, e);
}

static int runner_forward(struct runner *r, const struct step *step, struct error *e) {
    return ranks_run(self_of(r)->ranks, forward_unit, (void *)step, e);
}

static int unload_unit(struct rank *rank, void *arg, struct error *e) {
    (void)arg;
    (void)e;
    shard_free(rank->state);
    rank->state = NULL;
    return 0;
}

static void runner_unload(struct runner *r) {
    ranks_run(self_of(r)->ranks, unload_unit, NULL, NULL);
}

static struct ranks *runner_ranks(struct runner *r) {
    return self_of(r)->ranks;
}

static void runner_memory(struct runner *r, int rank, struct mem_use *use, const char **name) {
    ranks_memory(self_of(r)->ranks, rank, use);
    *name = ranks_device_name(self_of(r)->ranks, rank);
}

static void runner_loss(struct runner *r, int rank, char *out, size_t size) {
    ranks_device_loss(self_of(r)->ranks, rank, out, size);
}

static void runner_join(struct runner *r) {
    if (self_of(r)->ranks) ranks_join(self_of(r)->ranks);
    free(r);
}

static const struct runner_ops rank_runner_ops = {
    .start = runner_start,
    .kv_block_bytes = runner_kv_block_bytes,
    .memory_left = runner_memory_left,
    .cache_room = runner_cache_room,
    .load = runner_load,
    .forward = runner_forward,
    .unload = runner_unload,
    .ranks = runner_ranks,
    .memory = runner_memory,
    .loss = runner_loss,
    .join = runner_join,
};

int runner_new(struct runner **out, const struct engine_options *options, struct error *e) {
    struct rank_runner *self = calloc(1, sizeof *self);
    if (!self) return error_set(e, ERR_MEMORY, "no memory for the ranks");
    self->base = (struct runner){&rank_runner_ops, model_config(options->model),
                                 model_dtype(options->model) == DTYPE_F32};
    self->model = options->model;
    int err = model_plan(options->model, options->tp, &self->plan, e);
    if (err) {
        free(self);
        return err;
    }
    self->options = (struct ranks_options){
        .device = options->n_gpus ? RANK_CUDA : RANK_CPU,
        .n = options->tp,
        .cores = options->cores,
        .n_gpus = options->n_gpus,
        .tuning_path = options->tuning_path,
        .memory_limit = options->memory_limit,
        .deadline_ms = options->deadline_ms,
        .debug_alias = options->debug_alias,
    };
    for (int i = 0; i < options->n_gpus; i++) self->options.gpus[i] = options->gpus[i];
    *out = &self->base;
    return 0;
}

int engine_start(struct engine **out, const struct engine_options *options, struct error *e) {
    struct runner *runner;
    int err = runner_new(&runner, options, e);
    return err ? err : engine_start_on(out, runner, options, e);
}
