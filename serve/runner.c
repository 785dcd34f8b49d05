#include "serve/runner.h"

#include "model/planning.h"
#include "ranks/ranks.h"

#include <stdlib.h>

/* The draft model: on the first tp ranks, which have a communicator of their own unless they are all. */
struct draft_shards {
    const struct model *model; /* NULL: there is none */
    int tp;
    struct shard_plan plan;
    struct comm_world *world;
    struct comm *comm[PLAN_MAX_RANKS];
    struct shard *shard[PLAN_MAX_RANKS];
};

struct rank_runner {
    struct runner base;
    const struct model *model;
    struct shard_plan plan;
    struct draft_shards draft;
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
    (void)ranks;
    self->driver(self->driver_arg);
}

static int runner_start(struct runner *r, void (*driver)(void *arg), void *arg, struct error *e) {
    struct rank_runner *self = self_of(r);
    self->driver = driver;
    self->driver_arg = arg;
    return ranks_start(&self->ranks, &self->options, run_driver, self, e);
}

/* Of a model whose heads do not come in blocks of q8 the keys are f16. */
static enum dtype draft_kv_type(const struct model *draft, enum dtype kv_type) {
    bool fits = model_config(draft)->head_dim % dtype_info(kv_type)->block == 0;
    return fits ? kv_type : DTYPE_F16;
}

/* Its logits are wanted of a row a sequence. */
struct shard_options engine_draft_options(const struct model *draft, const struct shard_options *options) {
    struct shard_options own = *options;
    own.kv_type = draft_kv_type(draft, options->kv_type);
    own.max_out = own.max_seqs;
    return own;
}

static size_t runner_kv_block_bytes(const struct runner *r, int32_t block_size,
                                    enum dtype kv_type) {
    const struct rank_runner *self = (const struct rank_runner *)r;
    size_t bytes = model_kv_block_bytes(self->model, &self->plan, block_size, kv_type);
    const struct draft_shards *d = &self->draft;
    if (d->model) bytes += model_kv_block_bytes(d->model, &d->plan, block_size, draft_kv_type(d->model, kv_type));
    return bytes;
}

static size_t runner_memory_left(struct runner *r) {
    struct rank_runner *self = self_of(r);
    size_t left = ranks_memory_left(self->ranks, 0);
    size_t weights = model_weight_bytes(self->model) / (size_t)self->options.n;
    if (self->draft.model) weights += model_weight_bytes(self->draft.model) / (size_t)self->draft.tp;
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
        struct mem_use use, second;
        struct device_figures device;
        const struct kctx *ctx = ranks_at(self->ranks, rank)->ctx;
        ctx->ops->figures(ctx, &device);
        int err = plan_shard(&use, self->model, &self->plan, &planned, rank, &device, e);
        if (err) return err;
        size_t left = (size_t)(fraction * (double)ranks_memory_left(self->ranks, rank));
        if (self->draft.model && rank < self->draft.tp) {
            struct shard_options own = engine_draft_options(self->draft.model, &planned);
            err = plan_shard(&second, self->draft.model, &self->draft.plan, &own, rank, &device, e);
            if (err) return err;
            plan_add_beside(&use, &second);
        }
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

static int load_draft(struct rank *rank, struct draft_shards *d, const struct shard_options *options,
                      struct error *e) {
    struct shard_options own = engine_draft_options(d->model, options);
    struct comm *comm = rank->comm;
    if (d->world) {
        int err = comm_open(&d->comm[rank->index], d->world, rank->index, rank->ctx, e);
        if (err) return err;
        comm = d->comm[rank->index];
    }
    int err = shard_load(&d->shard[rank->index], d->model, &d->plan, rank->ctx, comm, &own, e);
    return err ? error_prefix(e, "draft model: ") : 0;
}

static int load_unit(struct rank *rank, void *arg, struct error *e) {
    const struct load_order *order = arg;
    struct draft_shards *d = &order->self->draft;
    int err = shard_load((struct shard **)&rank->state, order->self->model, &order->self->plan,
                         rank->ctx, rank->comm, order->options, e);
    return err || rank->index >= d->tp ? err : load_draft(rank, d, order->options, e);
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

struct row_order {
    struct draft_shards *draft; /* NULL: of the model */
    int32_t row;
    float *logits;
};

static int row_unit(struct rank *rank, void *arg, struct error *e) {
    const struct row_order *order = arg;
    struct draft_shards *d = order->draft;
    if (d && rank->index >= d->tp) return 0;
    int err = model_whole_row(d ? d->shard[rank->index] : rank->state, order->row, order->logits, e);
    if (err && d && d->world) comm_world_abort(d->world, e);
    return err;
}

static int runner_whole_row(struct runner *r, bool draft, int32_t row, float *logits, struct error *e) {
    struct draft_shards *d = &self_of(r)->draft;
    struct row_order order = {draft ? d : NULL, row, logits};
    int err = ranks_run(self_of(r)->ranks, row_unit, &order, e);
    if (err && draft && d->world) comm_world_reset(d->world);
    return err;
}

struct draft_order {
    struct draft_shards *draft;
    const struct step *step;
};

/* A rank that fails brings the others of the draft model's own world back. */
static int draft_unit(struct rank *rank, void *arg, struct error *e) {
    const struct draft_order *order = arg;
    struct draft_shards *d = order->draft;
    if (rank->index >= d->tp) return 0;
    int err = model_forward(d->shard[rank->index], order->step, e);
    if (err && d->world) comm_world_abort(d->world, e);
    return err;
}

static int runner_forward_draft(struct runner *r, const struct step *step, struct error *e) {
    struct draft_shards *d = &self_of(r)->draft;
    struct draft_order order = {d, step};
    int err = ranks_run(self_of(r)->ranks, draft_unit, &order, e);
    if (err && d->world) comm_world_reset(d->world);
    return err;
}

static int unload_unit(struct rank *rank, void *arg, struct error *e) {
    struct draft_shards *d = arg;
    (void)e;
    shard_free(rank->state);
    rank->state = NULL;
    shard_free(d->shard[rank->index]);
    d->shard[rank->index] = NULL;
    if (d->comm[rank->index]) comm_close(d->comm[rank->index]);
    d->comm[rank->index] = NULL;
    return 0;
}

static void runner_unload(struct runner *r) {
    ranks_run(self_of(r)->ranks, unload_unit, &self_of(r)->draft, NULL);
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
    if (self_of(r)->draft.world) comm_world_free(self_of(r)->draft.world);
    free(r);
}

static const struct runner_ops rank_runner_ops = {
    .start = runner_start,
    .kv_block_bytes = runner_kv_block_bytes,
    .memory_left = runner_memory_left,
    .cache_room = runner_cache_room,
    .load = runner_load,
    .forward = runner_forward,
    .forward_draft = runner_forward_draft,
    .whole_row = runner_whole_row,
    .unload = runner_unload,
    .ranks = runner_ranks,
    .memory = runner_memory,
    .loss = runner_loss,
    .join = runner_join,
};

/* Reading weights is what a row takes its time for. */
static double cost_of_draft(const struct rank_runner *self) {
    double own = (double)model_weight_bytes(self->draft.model) / self->draft.tp;
    return own / ((double)model_weight_bytes(self->model) / self->options.n);
}

static int plan_draft(struct rank_runner *self, const struct engine_options *options, struct error *e) {
    struct draft_shards *d = &self->draft;
    if (!options->draft) return 0;
    d->model = options->draft;
    d->tp = options->draft_tp ? options->draft_tp : 1;
    if (d->tp > options->tp)
        return error_set(e, ERR_CONFIG,
                         "draft_tp is %d, and there are %d ranks: the draft model runs on ranks of the model, "
                         "so choose 1 to %d",
                         d->tp, options->tp, options->tp);
    int err = model_plan(d->model, d->tp, &d->plan, e);
    if (err) return error_prefix(e, "draft model: ");
    self->base.draft_config = model_config(d->model);
    self->base.draft_cost = cost_of_draft(self);
    return d->tp == options->tp ? 0 : comm_world_new(&d->world, d->tp, 0, options->deadline_ms, e);
}

int runner_new(struct runner **out, const struct engine_options *options, struct error *e) {
    struct rank_runner *self = calloc(1, sizeof *self);
    if (!self) return error_set(e, ERR_MEMORY, "no memory for the ranks");
    self->base = (struct runner){.ops = &rank_runner_ops,
                                 .config = model_config(options->model),
                                 .f32 = model_dtype(options->model) == DTYPE_F32};
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
    err = plan_draft(self, options, e);
    if (err) {
        free(self);
        return err;
    }
    *out = &self->base;
    return 0;
}

int engine_start(struct engine **out, const struct engine_options *options, struct error *e) {
    struct runner *runner;
    int err = runner_new(&runner, options, e);
    return err ? err : engine_start_on(out, runner, options, e);
}
