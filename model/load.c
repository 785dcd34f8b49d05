/* Takes one rank's part of every tensor from the mapped files into its device's memory, in two passes over
 * them: first room for all, then what fills it. So a device that is too small is known before anything is
 * read, and what is touched at once stands together. */
#include "model/planning.h"
#include "model/rope.h"
#include "model/shard.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Rows go over in pieces of about this many file bytes. The kernel reads the next piece from the file
 * meanwhile; the pages are let go after each, so that loading needs little more memory than what is
 * loaded. */
enum { PIECE_BYTES = 8 << 20 };

/* Where a shard's rows lie in a file: row i of a run begins at first + i * step (rows). */
struct row_run {
    int32_t to, n;     /* rows of the shard */
    int64_t from, step; /* rows of the file */
};

static void put_run(struct shard *s, const struct store *store, const struct store_tensor *t,
                    const struct weight *w, struct row_run run, size_t row_bytes,
                    size_t col_offset) {
    size_t stride = (size_t)run.step * row_bytes;
    int32_t piece = (int32_t)(PIECE_BYTES / stride);
    if (piece < 1) piece = 1;
    if (s->ctx->ops->counts_only) { /* the first piece is the largest */
        s->ctx->ops->weight_put(s->ctx, w, run.to, run.n < piece ? run.n : piece, NULL, stride);
        return;
    }
    if (run.step == 1) store_want(store, t, (size_t)run.from * row_bytes, (size_t)piece * stride);
    for (int32_t i = 0; i < run.n; i += piece) {
        int32_t n = run.n - i < piece ? run.n - i : piece, next = run.n - i - n;
        size_t at = ((size_t)run.from + (size_t)i * (size_t)run.step) * row_bytes;
        if (next > piece) next = piece;
        if (run.step == 1) store_want(store, t, at + (size_t)n * stride, (size_t)next * stride);
        s->ctx->ops->weight_put(s->ctx, w, run.to + i, n, t->data + at + col_offset, stride);
        if (run.step == 1) store_drop(store, t, at, (size_t)n * row_bytes);
    }
}

/* What was read of t was there. */
static int check_read(const struct shard *s, const struct store_tensor *t, struct error *e) {
    return s->ctx->ops->counts_only ? 0 : store_tensor_check(t, e);
}

enum pass { PASS_ROOM, PASS_FILL };

static int put_matrix(struct shard *s, enum pass pass, const struct store *store, const struct store_tensor *t,
                      struct matrix_rule rule, bool permuted, struct weight *out, struct error *e) {
    enum dtype type = (enum dtype)t->type;
    int32_t row0, row1, col0, col1;
    axis_range(s->config, s->plan, s->rank, rule.rows, &row0, &row1);
    axis_range(s->config, s->plan, s->rank, rule.cols, &col0, &col1);
    if (rule.cols == AXIS_HEADS) {
        col0 -= s->attn_first;
        col1 = col0 + s->attn_cols;
    }
    if (row0 == row1 || col0 == col1) return 0;
    if (pass == PASS_ROOM) {
        int err = s->ctx->ops->weight_new(s->ctx, type, row1 - row0, col1 - col0, out, e);
        return err ? error_prefix(e, "tensor %s: ", t->name) : 0;
    }
    if (s->options.abandon && atomic_load(s->options.abandon))
        return error_set(e, ERR_CANCELLED, "loading was given up");
    size_t row_bytes = dtype_row_bytes(type, t->dims[1]);
    size_t col_offset = dtype_row_bytes(type, col0);
    if (!permuted) {
        put_run(s, store, t, out, (struct row_run){0, row1 - row0, row0, 1}, row_bytes, col_offset);
        return check_read(s, t, e);
    }
    int32_t half = s->config->head_dim / 2;
    if (!s->ctx->ops->counts_only)
        store_want(store, t, (size_t)row0 * row_bytes, (size_t)(row1 - row0) * row_bytes);
    for (int32_t at = row0; at < row1; at += half) {
        int32_t odd = (at / half) % 2, head = at - odd * half;
        put_run(s, store, t, out, (struct row_run){at - row0, half, head + odd, 2}, row_bytes,
                col_offset);
    }
    if (!s->ctx->ops->counts_only)
        store_drop(store, t, (size_t)row0 * row_bytes, (size_t)(row1 - row0) * row_bytes);
    return check_read(s, t, e);
}

/* Elements from … to-1 of a vector, as fp32. */
static int put_vector(struct shard *s, enum pass pass, const struct store *store, const struct store_tensor *t,
                      int32_t from, int32_t to, bool permuted, dev_addr *out, struct error *e) {
    size_t bytes = (size_t)(to - from) * sizeof(float);
    if (bytes == 0) return 0;
    if (pass == PASS_ROOM) {
        int err = s->ctx->ops->mem_alloc(s->ctx, MEM_WEIGHTS, bytes, out, e);
        return err ? error_prefix(e, "tensor %s: ", t->name) : 0;
    }
    float *values = NULL;
    if (!s->ctx->ops->counts_only) {
        values = malloc(bytes);
        if (!values) return error_set(e, ERR_MEMORY, "no memory for tensor %s", t->name);
        tensor_read(t, permuted ? s->config->head_dim : 0, from, to, 0, 1, values);
        store_drop(store, t, 0, t->bytes);
    }
    s->ctx->ops->upload(s->ctx, *out, values, bytes);
    free(values);
    return check_read(s, t, e);
}

static int load_layer(struct shard *s, enum pass pass, const struct model *m, int32_t layer, struct error *e) {
    const struct layer_tensors *from = &m->layers[layer];
    struct layer_weights *to = &s->layers[layer];
    int err = 0;
    for (int i = 0; i < MAT_COUNT && !err; i++) {
        const struct matrix_rule *rule = &matrix_rules[i];
        bool permuted = matrix_is_permuted(s->config, (enum matrix)i);
        err = put_matrix(s, pass, m->store, from->matrix[i], *rule, permuted, &to->matrix[i], e);
        bool row_parallel = rule->rows == AXIS_HIDDEN;
        if (err || !from->bias[i] || (row_parallel && s->rank != 0)) continue;
        int32_t row0, row1;
        axis_range(s->config, s->plan, s->rank, rule->rows, &row0, &row1);
        err = put_vector(s, pass, m->store, from->bias[i], row0, row1, permuted, &to->bias[i], e);
    }
    for (int i = 0; i < NORM_COUNT && !err; i++)
        if (from->norm[i])
            err = put_vector(s, pass, m->store, from->norm[i], 0, axis_size(s->config, norm_rules[i].size),
                             false, &to->norm[i], e);
    return err;
}

static int load_rope(struct shard *s, const struct model *m, struct error *e) {
    const struct model_config *c = s->config;
    int32_t half = c->head_dim / 2;
    float *freq = malloc((size_t)half * 2 * sizeof *freq);
    if (!freq) return error_set(e, ERR_MEMORY, "no memory for rotary frequencies");
    float *factors = m->rope_factors ? freq + half : NULL;
    if (factors)
        dtype_row_to_f32((enum dtype)m->rope_factors->type, m->rope_factors->data, factors, half);
    s->rope = (struct rope_freqs){.head_dim = c->head_dim, .base = (float)c->rope.base};
    if (c->rope.kind == ROPE_DYNAMIC) {
        s->rope.ntk_factor = (float)c->rope.factor;
        s->rope.original_len = c->rope.original_len;
    }
    rope_inv_freq(c, factors, freq, &s->rope.scale);
    int err = s->ctx->ops->mem_alloc(s->ctx, MEM_WEIGHTS, (size_t)half * sizeof *freq,
                                     &s->rope.inv_freq, e);
    if (!err)
        s->ctx->ops->upload(s->ctx, s->rope.inv_freq, freq, (size_t)half * sizeof *freq);
    free(freq);
    return !err && factors ? check_read(s, m->rope_factors, e) : err;
}

static int load_weights(struct shard *s, enum pass pass, const struct model *m, struct error *e) {
    struct matrix_rule vocab = {.rows = AXIS_VOCAB, .cols = AXIS_HIDDEN};
    int err = put_matrix(s, pass, m->store, m->embed, vocab, false, &s->embed, e);
    if (!err && m->head != m->embed)
        err = put_matrix(s, pass, m->store, m->head, vocab, false, &s->head_own, e);
    s->head = m->head == m->embed ? &s->embed : &s->head_own;
    if (!err) err = put_vector(s, pass, m->store, m->norm, 0, s->config->hidden, false, &s->norm, e);
    for (int32_t i = 0; i < s->config->n_layers && !err; i++) err = load_layer(s, pass, m, i, e);
    return err;
}

void shard_attn_columns(const struct model *m, const struct shard_plan *p, int rank, int32_t *first,
                        int32_t *cols) {
    const struct model_config *c = &m->config;
    int32_t block = 1;
    /* One width for all layers, that of the largest quant block (blocks divide each other). */
    for (int32_t i = 0; i < c->n_layers; i++) {
        int32_t b = dtype_info((enum dtype)m->layers[i].matrix[MAT_O]->type)->block;
        block = b > block ? b : block;
    }
    int32_t from = p->head[rank] * c->head_dim, to = p->head[rank + 1] * c->head_dim;
    int32_t last = (to + block - 1) / block * block, all = c->n_heads * c->head_dim;
    *first = from % block;
    *cols = (last < all ? last : all) - (from - *first);
}

/* What a share of the plan means for sizes. */
static int measure(struct shard *s, const struct model *m, struct error *e) {
    const struct shard_plan *p = s->plan;
    const struct model_config *c = s->config;
    int32_t group = c->n_heads / c->n_kv_heads;
    s->n_heads = p->head[s->rank + 1] - p->head[s->rank];
    s->n_kv_heads = p->kv_count[s->rank];
    s->n_ffn = p->ffn[s->rank + 1] - p->ffn[s->rank];
    s->n_vocab = p->vocab[s->rank + 1] - p->vocab[s->rank];
    shard_attn_columns(m, p, s->rank, &s->attn_first, &s->attn_cols);
    s->kv_of_head = malloc((size_t)s->n_heads * sizeof *s->kv_of_head);
    s->layers = calloc((size_t)c->n_layers, sizeof *s->layers);
    if (!s->kv_of_head || !s->layers) return error_set(e, ERR_MEMORY, "no memory for a shard");
    for (int32_t h = 0; h < s->n_heads; h++)
        s->kv_of_head[h] = (p->head[s->rank] + h) / group - p->kv_first[s->rank];
    return 0;
}

static int alloc_floats(struct shard *s, int64_t rows, int64_t cols, dev_addr *out,
                        struct error *e) {
    if (rows * cols == 0) return 0;
    return s->ctx->ops->mem_alloc(s->ctx, MEM_ACTIVATIONS, (size_t)(rows * cols) * sizeof(float),
                                  out, e);
}

/* What attention and the FFN keep between their products: the one begins when the other has ended, so both
 * have the same memory. */
static int alloc_between(struct shard *s, struct error *e) {
    enum { APART = 64 }; /* floats */
    int64_t head = s->config->head_dim;
    const struct {
        dev_addr *at;
        int64_t cols;
        bool first; /* of those that are there together */
    } want[] = {
        {&s->q, s->n_heads * head, true},
        {&s->k, s->n_kv_heads * head, false},
        {&s->v, s->n_kv_heads * head, false},
        {&s->gate, s->n_ffn, true},
        {&s->up, s->n_ffn, false},
    };
    enum { N = sizeof want / sizeof *want };
    int64_t from[N], most = 0, next = 0;
    for (int i = 0; i < N; i++) {
        from[i] = want[i].first ? 0 : next;
        next = from[i] + (s->part_rows * want[i].cols + APART - 1) / APART * APART;
        most = next > most ? next : most;
    }
    int err = alloc_floats(s, 1, most, &s->between, e);
    for (int i = 0; i < N; i++) *want[i].at = s->between + (size_t)from[i] * sizeof(float);
    return err;
}

static int alloc_activations(struct shard *s, struct error *e) {
    const struct model_config *c = s->config;
    int64_t rows = s->options.max_rows, outs = s->options.max_out, head = c->head_dim;
    bool split = s->plan->n > 1;
    s->part_rows = s->options.part_rows ? s->options.part_rows : s->options.max_rows;
    if (s->part_rows > s->options.max_rows) s->part_rows = s->options.max_rows;
    int64_t fews = s->options.candidates ? outs : 0, words = CANDIDATES_BYTES / (int64_t)sizeof(float);
    struct {
        dev_addr *at;
        int64_t rows, cols;
    } want[] = {
        {&s->x, rows, c->hidden},
        {&s->hidden, rows, c->hidden},
        {&s->cos_sin, rows, head},
        {&s->partial, s->part_rows, c->hidden},
        {&s->attn, s->part_rows, s->attn_cols},
        {&s->out_hidden, outs, c->hidden},
        {&s->logits_part, outs, split ? s->n_vocab : 0},
        {&s->logits, outs, c->vocab},
        {&s->few_part, split ? fews : 0, words},
        {&s->few_work, fews, (int64_t)candidates_work(s->n_vocab) * words},
        {&s->few, fews, s->plan->n * words},
    };
    int err = alloc_between(s, e);
    for (size_t i = 0; i < sizeof want / sizeof *want && !err; i++)
        err = alloc_floats(s, want[i].rows, want[i].cols, want[i].at, e);
    size_t ints = (size_t)(4 * rows + outs + CANDIDATES_WISH_WORDS * fews +
                           (int64_t)s->options.max_seqs * s->options.max_blocks);
    s->ints_host = malloc(ints * sizeof *s->ints_host);
    if (fews && s->rank == 0) s->few_host = malloc((size_t)(fews * s->plan->n) * sizeof *s->few_host);
    if (!err && (!s->ints_host || (fews && s->rank == 0 && !s->few_host)))
        err = error_set(e, ERR_MEMORY, "no memory for a step's table");
    if (!err)
        err = s->ctx->ops->mem_alloc(s->ctx, MEM_BUFFERS, ints * sizeof(int32_t), &s->ints, e);
    return err;
}

static size_t kv_half_bytes(const struct model_config *c, int32_t kv_heads, int32_t blocks,
                            int32_t block_size, enum dtype type) {
    return (size_t)blocks * (size_t)kv_heads * (size_t)block_size *
           dtype_row_bytes(type, c->head_dim);
}

size_t model_kv_block_bytes(const struct model *model, const struct shard_plan *plan,
                            int32_t block_size, enum dtype kv_type) {
    int32_t most = 0;
    for (int r = 0; r < plan->n; r++) most = plan->kv_count[r] > most ? plan->kv_count[r] : most;
    return 2 * (size_t)model->config.n_layers *
           kv_half_bytes(&model->config, most, 1, block_size, kv_type);
}

/* Takes the memory of the whole shard at once, where the device has it so. */
static int reserve(struct shard *s, const struct model *model, struct error *e) {
    struct device_figures device;
    struct mem_use planned;
    if (!s->ctx->ops->mem_reserve) return 0;
    s->ctx->ops->figures(s->ctx, &device);
    int err = plan_shard(&planned, model, s->plan, &s->options, s->rank, &device, e);
    return err ? err : s->ctx->ops->mem_reserve(s->ctx, &planned, e);
}

int shard_load(struct shard **out, const struct model *model, const struct shard_plan *plan,
               struct kctx *ctx, struct comm *comm, const struct shard_options *options,
               struct error *e) {
    struct shard *s = calloc(1, sizeof *s);
    if (!s) return error_set(e, ERR_MEMORY, "no memory for a shard");
    s->config = &model->config;
    s->plan = plan;
    s->ctx = ctx;
    s->comm = comm;
    s->options = *options;
    s->options.candidates = options->candidates && ctx->ops->candidates;
    s->rank = ctx->rank;
    int err = measure(s, model, e);
    if (!err) err = reserve(s, model, e);
    if (!err) err = load_weights(s, PASS_ROOM, model, e);
    if (!err) err = load_weights(s, PASS_FILL, model, e);
    if (!err) err = load_rope(s, model, e);
    if (!err) err = alloc_activations(s, e);
    if (!err) {
        s->kv_half_bytes = kv_half_bytes(s->config, s->n_kv_heads, options->kv_blocks,
                                         options->block_size, options->kv_type);
        err = ctx->ops->mem_alloc(ctx, MEM_KV,
                                  2 * (size_t)s->config->n_layers * s->kv_half_bytes, &s->kv, e);
        if (err) error_prefix(e, "KV cache of %d blocks: ", options->kv_blocks);
    }
    if (!err) err = ctx->ops->wait(ctx, e);
    if (err) {
        shard_free(s);
        return err;
    }
    *out = s;
    return 0;
}

void shard_free(struct shard *s) {
    if (!s) return;
    const struct kernels *ops = s->ctx->ops;
    shard_adapters_free(s);
    for (int32_t i = 0; s->layers && i < s->config->n_layers; i++) {
        struct layer_weights *w = &s->layers[i];
        for (int k = 0; k < MAT_COUNT; k++) {
            if (w->matrix[k].data) ops->weight_free(s->ctx, &w->matrix[k]);
            if (w->bias[k]) ops->mem_free(s->ctx, w->bias[k]);
        }
        for (int k = 0; k < NORM_COUNT; k++)
            if (w->norm[k]) ops->mem_free(s->ctx, w->norm[k]);
    }
    if (s->embed.data) ops->weight_free(s->ctx, &s->embed);
    if (s->head_own.data) ops->weight_free(s->ctx, &s->head_own);
    dev_addr rest[] = {s->norm, s->rope.inv_freq, s->kv, s->x, s->hidden, s->cos_sin, s->partial, s->attn,
                       s->between, s->out_hidden, s->logits_part, s->logits, s->few_part, s->few_work, s->few,
                       s->ints};
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++)
        if (rest[i]) ops->mem_free(s->ctx, rest[i]);
    free(s->ints_host);
    free(s->few_host);
    free(s->layers);
    free(s->kv_of_head);
    free(s);
}
