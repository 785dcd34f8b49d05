#include "train/sizes.h"

#include "train/tensors.h"

#include <math.h>

/* Rows of a micro-batch, about: enough for the products, few enough that a layer is a short unit. */
enum { MICRO_ROWS = 512, LOSS_ROWS = 64 };

static int64_t largest_divisor(int64_t n, int64_t most) {
    for (int64_t d = most < n ? most : n; d > 1; d--)
        if (n % d == 0) return d;
    return 1;
}

void job_sizes_of(struct job_sizes *out, const struct job_spec *s) {
    int64_t together = largest_divisor(s->batch_size, MICRO_ROWS / s->seq_len);
    int32_t rows = (int32_t)(together * s->seq_len);
    double divisor = s->lora.rslora ? sqrt(s->lora.r) : s->lora.r;
    out->micro_per_step = s->batch_size / together * s->grad_accum;
    out->options = (struct train_options){
        .method = s->method,
        .rank = s->lora.r,
        .scale = (float)(s->lora.alpha / divisor),
        .dropout = (float)s->lora.dropout,
        .targets = s->lora.targets,
        .max_rows = rows,
        .loss_rows = rows < LOSS_ROWS ? rows : LOSS_ROWS,
        .checkpoint_layers = s->grad_checkpointing == CHECKPOINTING_ON ? INT32_MAX : 0,
        .bf16 = s->compute == COMPUTE_BF16 || (s->compute == COMPUTE_AUTO && kernels_cpu_bf16()),
        .sequence_parallel = s->sequence_parallel,
        .seed = s->seed,
    };
}

size_t job_host_bytes(const struct trainee_cost *cost) {
    enum { PARTS = 3 }; /* value, m, v */
    size_t window = HOST_FLOATS + cost->largest_floats, all = PARTS * cost->whole_floats;
    return (window < all ? window : all) * sizeof(float);
}

size_t job_room(size_t left) {
    return left - left / 20;
}

size_t job_bytes(const struct trainee_cost *cost, int n_ranks) {
    return cost->bytes + job_host_bytes(cost) / (size_t)n_ranks;
}

int job_checkpoint_layers(int32_t *out, struct trainee_cost *cost, const struct model *model,
                          const struct shard_plan *split, const struct train_options *options,
                          size_t room, const struct device_figures *device, struct error *e) {
    struct train_options tried = *options;
    int32_t low = 0, high = model_config(model)->n_layers - 1; /* the answer is in low … high */
    int err = 0;
    for (;;) {
        tried.checkpoint_layers = (low + high) / 2;
        err = plan_trainee(cost, model, split, &tried, device, e);
        if (err || low == high) break;
        if (job_bytes(cost, split->n) <= room) high = tried.checkpoint_layers;
        else low = tried.checkpoint_layers + 1;
    }
    *out = low;
    return err;
}
