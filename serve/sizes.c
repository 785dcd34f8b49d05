#include "serve/sizes.h"

#include <string.h>

/* Logits of a step: at most this many rows and this many bytes. */
enum { MAX_OUT_ROWS = 128, MAX_OUT_BYTES = 64 << 20 };

/* As many as a CPU's products take at once. */
enum { CPU_PART_ROWS = 192 };

static int32_t min_i32(int64_t a, int64_t b) {
    return (int32_t)(a < b ? a : b);
}

/* The longest sequence that the rope scaling of the model is made for. */
static int64_t reach_of(const struct model_config *c) {
    switch (c->rope.kind) {
    case ROPE_DEFAULT: return c->max_len;
    case ROPE_LINEAR:
    case ROPE_DYNAMIC:
    case ROPE_LLAMA3:
    case ROPE_YARN: {
        double scaled = (double)c->rope.original_len * c->rope.factor;
        return scaled > c->max_len && scaled < INT32_MAX ? (int64_t)scaled : c->max_len;
    }
    }
    return c->max_len;
}

int kv_type_from_name(const char *name) {
    int type = strcmp(name, "q8") == 0 ? (int)DTYPE_Q8_0 : dtype_from_name(name);
    return type == DTYPE_Q8_0 || (type >= 0 && !dtype_is_quantised((enum dtype)type)) ? type : -1;
}

int engine_sizes_ask(struct engine_sizes *out, const struct engine_options *options,
                     const struct runner *runner, struct error *e) {
    const struct model_config *c = runner->config;
    if (options->ctx > reach_of(c))
        return error_set(
            e, ERR_CONFIG,
            "ctx %d is more than the %lld positions that the model was made for: lower it "
            "or leave it out",
            options->ctx, (long long)reach_of(c));
    int32_t ctx = options->ctx ? options->ctx : c->max_len;
    int32_t slots = options->slots ? options->slots : ENGINE_SLOTS;
    int32_t rows = min_i32(options->step_rows ? options->step_rows : ENGINE_STEP_ROWS, ctx);
    int64_t out_rows = MAX_OUT_BYTES / ((int64_t)c->vocab * (int64_t)sizeof(float));
    out_rows = out_rows < 1 ? 1 : min_i32(out_rows, MAX_OUT_ROWS);
    *out = (struct engine_sizes){
        .ctx = ctx,
        .slots = slots,
        .max_queue = options->max_queue ? options->max_queue : ENGINE_MAX_QUEUE,
        .shard = {.max_rows = rows,
                  .part_rows = options->n_gpus ? 0 : CPU_PART_ROWS,
                  .max_out = min_i32(out_rows, rows),
                  .max_seqs = min_i32(slots, rows),
                  .block_size = KV_BLOCK_SIZE,
                  .narrow_activations = options->narrow_activations,
                  .candidates = options->n_gpus > 0,
                  .max_blocks = (ctx + KV_BLOCK_SIZE - 1) / KV_BLOCK_SIZE}};
    if (options->kv_type >= 0) out->shard.kv_type = (enum dtype)options->kv_type;
    else out->shard.kv_type = runner->f32 ? DTYPE_F32 : DTYPE_F16;
    int32_t block = dtype_info(out->shard.kv_type)->block;
    if (c->head_dim % block != 0)
        return error_set(e, ERR_CONFIG,
                         "a KV cache of q8 keeps values in blocks of %d, and the heads of this model "
                         "have %d: choose f16 or bf16",
                         block, c->head_dim);
    return 0;
}

int engine_shard_options(struct shard_options *out, const struct engine_options *options,
                         struct error *e) {
    struct engine_sizes sizes;
    struct runner runner = {.config = model_config(options->model),
                            .f32 = model_dtype(options->model) == DTYPE_F32};
    int err = engine_sizes_ask(&sizes, options, &runner, e);
    if (err) return err;
    *out = sizes.shard;
    out->kv_blocks = sizes.slots * out->max_blocks;
    return 0;
}

/* What the activations of the largest step may take on a rank, generously. */
static size_t activation_bytes(const struct shard_options *s, const struct model_config *c) {
    size_t floats = (size_t)s->max_rows * (8 * (size_t)c->hidden + 3 * (size_t)c->ffn) +
                    2 * (size_t)s->max_out * (size_t)c->vocab;
    return floats * sizeof(float);
}

double engine_memory_fraction(const struct engine_options *options) {
    enum { GPU_PERCENT = 90 };
    if (options->memory_fraction > 0) return options->memory_fraction;
    return options->n_gpus > 0 ? GPU_PERCENT / 100.0 : 0;
}

/* How many blocks the cache may have of the `fits` that there is memory for. What was not asked for
 * leaves half of it to others (fine-tune jobs), as long as one sequence fits; a memory_fraction says itself
 * what is left to them. */
static int64_t blocks_allowed(const struct engine_sizes *sizes, const struct engine_options *options,
                              size_t block_bytes, int64_t fits) {
    int64_t one = sizes->shard.max_blocks, all = (int64_t)sizes->slots * one;
    if (options->kv_memory) {
        int64_t asked = (int64_t)(options->kv_memory / block_bytes);
        return asked < fits ? asked : fits;
    }
    if (engine_memory_fraction(options) > 0) return all < fits ? all : fits;
    int64_t half = fits / 2 > one ? fits / 2 : fits < one ? fits : one;
    return all < half ? all : half;
}

int engine_sizes_fit(struct engine_sizes *sizes, const struct engine_options *options,
                     const struct runner *runner, size_t block_bytes, size_t memory_left,
                     struct error *e) {
    struct shard_options *s = &sizes->shard;
    bool planned = engine_memory_fraction(options) > 0;
    size_t other = planned ? 0 : activation_bytes(s, runner->config), room = memory_left;
    if (!planned && runner->draft_config) other += activation_bytes(s, runner->draft_config);
    /* A fifth stays free: for what the sum above does not know. */
    if (!planned) room = memory_left > other ? (memory_left - other) / 5 * 4 : 0;
    int64_t blocks = blocks_allowed(sizes, options, block_bytes, (int64_t)(room / block_bytes));
    if (blocks < s->max_blocks && options->ctx == 0 && blocks > 0) {
        s->max_blocks = (int32_t)blocks;
        sizes->ctx = s->max_blocks * s->block_size;
        s->max_rows = min_i32(s->max_rows, sizes->ctx);
        s->max_seqs = min_i32(s->max_seqs, s->max_rows);
    }
    if (blocks < s->max_blocks) {
        size_t cache = (size_t)s->max_blocks * block_bytes;
        int64_t needed = (int64_t)(planned ? cache : cache / 4 * 5 + other);
        int err =
            error_set(e, ERR_MEMORY,
                      "a context of %d positions needs %.1f MiB a rank beside the weights and "
                      "%.1f MiB are left%s: lower ctx, raise tp or choose a smaller KV type",
                      sizes->ctx, (double)needed / (1 << 20), (double)memory_left / (1 << 20),
                      options->kv_memory ? " (kv_memory allows less)"
                      : planned          ? " of memory_fraction"
                                         : "");
        error_note_number(e, "needed", needed);
        error_note_number(e, "free", (int64_t)memory_left);
        return err;
    }
    s->kv_blocks = min_i32(blocks, INT32_MAX / s->block_size);
    return 0;
}
