/* Runs a rank's life on the plan backend and reads the books. */
#include "model/planning.h"

#include <stdlib.h>

/* One rank on the plan backend. */
struct rehearsal {
    struct comm_world *world;
    struct kctx *ctx;
    struct comm *comm;
    uint64_t received; /* as of the last add_cost */
    struct shard *shard;
    struct trainee *trainee;
};

static void close_rehearsal(struct rehearsal *r) {
    trainee_free(r->trainee);
    shard_free(r->shard);
    if (r->comm) comm_close(r->comm);
    if (r->ctx) r->ctx->ops->close(r->ctx);
    comm_world_free(r->world);
}

static int open_rehearsal(struct rehearsal *r, const struct model *model,
                          const struct shard_plan *split, const struct shard_options *serving,
                          int rank, const struct device_figures *device, struct error *e) {
    enum { NO_STAGING = 64 }; /* nothing is sent */
    *r = (struct rehearsal){0};
    int err = comm_world_new(&r->world, split->n, NO_STAGING, 0, e);
    if (!err) err = kernels_plan_open(&r->ctx, rank, 0, device, e);
    if (!err) err = comm_open(&r->comm, r->world, rank, r->ctx, e);
    if (!err) err = shard_load(&r->shard, model, split, r->ctx, r->comm, serving, e);
    if (err) close_rehearsal(r);
    return err;
}

/* What has been done since the last call. */
static void add_cost(struct step_cost *cost, struct rehearsal *r) {
    const struct plan_counts *c = kernels_plan_counts(r->ctx);
    uint64_t received = comm_received(r->comm);
    cost->bytes += c->bytes_read + c->bytes_written;
    cost->flops += c->flops;
    cost->received += received - r->received;
    r->received = received;
    kernels_plan_reset(r->ctx);
}

/* --- serving --------------------------------------------------------------------------------------- */

/* A step of `seqs` sequences of `rows` rows each, which end at position ctx - 1; logits are wanted of the
 * last `outs` rows of each, as far as there is room for them. */
static int forward(struct rehearsal *r, const struct plan_question *q, int32_t seqs, int32_t rows,
                   int32_t outs, struct error *e) {
    size_t T = (size_t)seqs * (size_t)rows, max_blocks = (size_t)q->serving.max_blocks;
    size_t n_out = (size_t)seqs * (size_t)outs;
    if (n_out > (size_t)q->serving.max_out) n_out = (size_t)q->serving.max_out;
    int32_t *ids = calloc(4 * T + (size_t)seqs * max_blocks + (size_t)seqs * (size_t)outs, sizeof *ids);
    float *logits = calloc(n_out * (size_t)model_config(q->model)->vocab, sizeof *logits);
    if (!ids || !logits) {
        free(ids);
        free(logits);
        return error_set(e, ERR_MEMORY, "no memory for a step");
    }
    int32_t *pos = ids + T, *len = pos + T, *seq = len + T, *out_rows = seq + T;
    for (size_t t = 0; t < T; t++) {
        pos[t] = q->ctx - rows + (int32_t)t % rows;
        len[t] = q->ctx;
        seq[t] = (int32_t)t / rows;
    }
    for (int32_t i = 0; i < seqs * outs; i++) out_rows[i] = (i / outs + 1) * rows - outs + i % outs;
    struct step step = {.n_rows = (int32_t)T,
                        .n_seqs = seqs,
                        .n_out = (int32_t)n_out,
                        .ids = ids,
                        .pos = pos,
                        .len = len,
                        .seq = seq,
                        .blocks = out_rows + seqs * outs,
                        .out_rows = out_rows,
                        .logits = logits};
    int err = model_forward(r->shard, &step, e);
    free(ids);
    free(logits);
    return err;
}

static int32_t largest_step(const struct plan_question *q) {
    return q->serving.max_rows < q->ctx ? q->serving.max_rows : q->ctx;
}

static int32_t most_together(const struct plan_question *q) {
    return q->serving.max_seqs < q->serving.max_rows ? q->serving.max_seqs : q->serving.max_rows;
}

/* The steps that take most scratch memory: the largest part of a prompt with all the logits that there is room
 * for, and a token of each sequence. What they cost is nobody's. */
static int rehearse_scratch(struct rehearsal *r, const struct plan_question *q, struct error *e) {
    int32_t rows = largest_step(q), outs = q->serving.max_out < rows ? q->serving.max_out : rows;
    int err = forward(r, q, 1, rows, outs, e);
    if (!err) err = forward(r, q, most_together(q), 1, 1, e);
    kernels_plan_reset(r->ctx);
    r->received = comm_received(r->comm);
    return err;
}

static int rehearse_serving(struct rehearsal *r, struct rank_cost *out,
                            const struct plan_question *q, struct error *e) {
    int32_t rows = largest_step(q), together = most_together(q);
    out->prefill.rows = rows;
    out->decode.rows = q->sequences;
    int err = rehearse_scratch(r, q, e); /* nor is loading a part of a step */
    if (!err) err = forward(r, q, 1, rows, 1, e);
    add_cost(&out->prefill, r);
    for (int32_t done = 0; done < q->sequences && !err; done += together)
        err = forward(r, q, q->sequences - done < together ? q->sequences - done : together, 1, 1, e);
    add_cost(&out->decode, r);
    return err;
}

/* --- training -------------------------------------------------------------------------------------- */

/* A micro-batch of the most rows, as one sequence that is trained on throughout. */
static int micro_batch(struct rehearsal *r, const struct model *model,
                       const struct train_options *options, struct error *e) {
    int32_t T = options->max_rows, layers = model_config(model)->n_layers;
    int32_t *rows = calloc((size_t)T * 3, sizeof *rows);
    if (!rows) return error_set(e, ERR_MEMORY, "no memory for a micro-batch");
    int32_t *pos = rows + T, *len = pos + T;
    for (int32_t t = 0; t < T; t++) {
        pos[t] = t;
        len[t] = T;
    }
    struct train_batch batch = {.n_rows = T,
                                .ids = rows,
                                .pos = pos,
                                .labels = rows,
                                .first = rows,
                                .len = len,
                                .weight = 1 / (float)T};
    struct trainee *t = r->trainee;
    double loss;
    trainee_begin(t, &batch);
    for (int32_t i = 0; i < layers; i++) trainee_forward(t, i);
    for (int32_t i = 0; i < trainee_loss_chunks(t); i++) trainee_loss_chunk(t, i);
    int err = trainee_loss(t, &loss, e);
    for (int32_t i = layers - 1; i >= 0 && !err; i--) trainee_backward(t, i);
    if (!err) err = trainee_end(t, e);
    free(rows);
    return err;
}

static int optimizer_step(struct rehearsal *r, struct error *e) {
    struct adamw_params adamw = {.lr = 1, .c1 = 1, .c2 = 1};
    double norm;
    int err = trainee_norm(r->trainee, &norm, e);
    int slices = err ? 0 : trainee_slices(r->trainee);
    for (int i = 0; i < slices && !err; i++) err = trainee_update(r->trainee, i, &adamw, 1, e);
    return err;
}

static int rehearse_training(struct rehearsal *r, struct rank_cost *out,
                             const struct plan_question *q, struct error *e) {
    int err = trainee_new(&r->trainee, q->model, r->shard, q->train, e);
    if (err) return err;
    struct step_cost before = {0};
    add_cost(&before, r);
    err = micro_batch(r, q->model, q->train, e);
    add_cost(&out->train, r);
    out->train.bytes *= (uint64_t)q->micro_batches;
    out->train.flops *= (uint64_t)q->micro_batches;
    out->train.received *= (uint64_t)q->micro_batches;
    out->train.rows = q->train->max_rows * q->micro_batches;
    if (!err) err = optimizer_step(r, e);
    add_cost(&out->train, r);
    return err;
}

/* --------------------------------------------------------------------------------------------------- */

int plan_rank(struct rank_cost *out, const struct plan_question *q, int rank, struct error *e) {
    struct rehearsal r;
    *out = (struct rank_cost){0};
    int err = open_rehearsal(&r, q->model, q->split, &q->serving, rank, q->device, e);
    if (err) return err;
    err = rehearse_serving(&r, out, q, e);
    if (!err && q->train) err = rehearse_training(&r, out, q, e);
    out->peak = kernels_plan_counts(r.ctx)->peak;
    close_rehearsal(&r);
    return err;
}

/* The cache of a rehearsal holds what its steps look at, whatever the one that is asked for holds. */
static int shard_scratch(size_t *out, const struct plan_question *asked, int rank, struct error *e) {
    struct plan_question q = *asked;
    struct rehearsal r;
    q.serving.kv_blocks = q.serving.max_seqs * q.serving.max_blocks;
    int err = open_rehearsal(&r, q.model, q.split, &q.serving, rank, q.device, e);
    if (err) return err;
    err = rehearse_scratch(&r, &q, e);
    *out = kernels_plan_counts(r.ctx)->use.bytes[MEM_SCRATCH];
    close_rehearsal(&r);
    return err;
}

int plan_shard(struct mem_use *out, const struct model *model, const struct shard_plan *split,
               const struct shard_options *serving, int rank, const struct device_figures *device,
               struct error *e) {
    const struct plan_question q = {.model = model,
                                    .split = split,
                                    .device = device,
                                    .serving = *serving,
                                    .ctx = serving->max_blocks * serving->block_size};
    struct rehearsal r;
    int err = open_rehearsal(&r, model, split, serving, rank, device, e);
    if (err) return err;
    *out = kernels_plan_counts(r.ctx)->use;
    close_rehearsal(&r);
    return shard_scratch(&out->bytes[MEM_SCRATCH], &q, rank, e);
}

void plan_add_beside(struct mem_use *use, const struct mem_use *second) {
    size_t own = use->bytes[MEM_SCRATCH], others = second->bytes[MEM_SCRATCH];
    for (int kind = 0; kind < MEM_KIND_COUNT; kind++) use->bytes[kind] += second->bytes[kind];
    use->bytes[MEM_SCRATCH] = own > others ? own : others;
}

static void count_tensors(struct trainee_cost *out, const struct trainee *t) {
    struct train_tensor tensor;
    out->whole_floats = out->largest_floats = 0;
    for (int i = 0; i < trainee_tensor_count(t); i++) {
        trainee_tensor(t, i, &tensor);
        size_t floats = (size_t)tensor.rows * (size_t)tensor.cols;
        out->whole_floats += floats;
        if (floats > out->largest_floats) out->largest_floats = floats;
    }
}

int plan_trainee(struct trainee_cost *out, const struct model *model, const struct shard_plan *split,
                 const struct train_options *options, const struct device_figures *device,
                 struct error *e) {
    const struct shard_options least = {.max_rows = 1,
                                        .max_out = 1,
                                        .max_seqs = 1,
                                        .kv_blocks = 1,
                                        .block_size = 1,
                                        .max_blocks = 1,
                                        .kv_type = DTYPE_F32};
    *out = (struct trainee_cost){0};
    int err = 0;
    for (int rank = 0; rank < split->n && !err; rank++) {
        struct rehearsal r;
        err = open_rehearsal(&r, model, split, &least, rank, device, e);
        if (err) break;
        const struct mem_use *use = &kernels_plan_counts(r.ctx)->use;
        size_t before = mem_used(use) - use->bytes[MEM_SCRATCH];
        err = trainee_new(&r.trainee, model, r.shard, options, e);
        if (!err) err = micro_batch(&r, model, options, e);
        if (!err) err = optimizer_step(&r, e);
        size_t took = mem_used(use) - before;
        if (took > out->bytes) out->bytes = took;
        if (!err) count_tensors(out, r.trainee);
        close_rehearsal(&r);
    }
    return err;
}
