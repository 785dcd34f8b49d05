/* The forward pass: one page, the same for every device and every tp.
 *
 * Per layer (math: llama; granite adds multipliers, qwen3 head norms, qwen2 biases):
 *   h = rmsnorm(x);  q, k, v = h Wq, h Wk, h Wv;  attention over the cache;  y = o Wo  -> all-reduce
 *   x += y;  h = rmsnorm(x);  y = (silu(h Wg) * (h Wu)) Wd                             -> all-reduce
 * The residual add is fused with the norm that follows it, so x += y of a layer's FFN happens at the
 * head of the next layer. */
#include "model/shard.h"

#include <string.h>

/* Addresses of the step's integers in device memory. */
struct step_ints {
    dev_addr ids, len, out_rows, wishes;
    struct step_rows rows;
};

/* Whether the step's rows may be whole or not, as each is wished for; else all are. */
static bool wants_wishes(const struct shard *s, const struct step *step) {
    return s->options.candidates && step->wishes && step->logits;
}

static struct step_ints upload_ints(struct shard *s, const struct step *step) {
    int32_t *at = s->ints_host;
    size_t n = (size_t)step->n_rows;
    struct step_ints out;
    const struct {
        const int32_t *from;
        size_t n;
        dev_addr *to;
    } parts[] = {
        {step->ids, n, &out.ids},
        {step->len, n, &out.len},
        {step->pos, n, &out.rows.pos},
        {step->seq, n, &out.rows.seq},
        {step->blocks, (size_t)step->n_seqs * (size_t)s->options.max_blocks, &out.rows.blocks},
        {step->out_rows, (size_t)step->n_out, &out.out_rows},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        *parts[i].to = s->ints + (size_t)(at - s->ints_host) * sizeof *at;
        if (parts[i].n) memcpy(at, parts[i].from, parts[i].n * sizeof *at);
        at += parts[i].n;
    }
    out.wishes = s->ints + (size_t)(at - s->ints_host) * sizeof *at;
    for (int32_t i = 0; wants_wishes(s, step) && i < step->n_out; i++, at += CANDIDATES_WISH_WORDS)
        memcpy(at, &step->wishes[i].few, sizeof step->wishes[i].few);
    out.rows.n_rows = step->n_rows;
    out.rows.n_seqs = step->n_seqs;
    out.rows.max_blocks = s->options.max_blocks;
    s->ctx->ops->upload(s->ctx, s->ints, s->ints_host, (size_t)(at - s->ints_host) * sizeof *at);
    return out;
}

/* partial = this rank's part of the sum over ranks of x W (+ bias, on the rank that holds it). A rank
 * without columns gives 0. An adapter's part is linear too, so it joins before the sum. */
static void row_parallel(struct shard *s, const struct step *step, int32_t layer, enum matrix m,
                         dev_addr x) {
    const struct kernels *ops = s->ctx->ops;
    const struct weight *w = &s->layers[layer].matrix[m];
    int32_t T = step->n_rows;
    struct linear_job job = {w, s->layers[layer].bias[m], s->partial};
    if (w->data) ops->linear(s->ctx, &job, 1, x, T);
    else ops->scale(s->ctx, s->partial, (size_t)T * (size_t)s->config->hidden, 0);
    shard_adapters_add(s, step, layer, m, x, s->partial);
}

/* The rows of a step that go through a layer together. */
struct part {
    struct step step;    /* those rows alone: its arrays begin at the first of them */
    struct step_rows at; /* the same in device memory */
    dev_addr x, hidden, cos_sin;
};

static struct part part_of(const struct shard *s, const struct step *step, const struct step_ints *in,
                           int32_t first) {
    size_t rows = (size_t)first, row = rows * (size_t)s->config->hidden * sizeof(float);
    struct part p = {*step, in->rows, s->x + row, s->hidden + row,
                     s->cos_sin + rows * (size_t)s->config->head_dim * sizeof(float)};
    p.step.n_rows = step->n_rows - first < s->part_rows ? step->n_rows - first : s->part_rows;
    p.step.seq += first;
    p.at.n_rows = p.step.n_rows;
    p.at.pos += rows * sizeof(int32_t);
    p.at.seq += rows * sizeof(int32_t);
    return p;
}

/* x += the sum over ranks of partial, hidden = the norm g of it. */
static void reduce_and_norm(struct shard *s, const struct part *p, dev_addr g) {
    const struct model_config *c = s->config;
    struct comm_norm norm = {.y = s->partial,
                             .x = p->x,
                             .out = p->hidden,
                             .g = g,
                             .scale = c->residual_multiplier,
                             .eps = c->norm_eps};
    comm_all_reduce_norm(s->comm, &norm, p->step.n_rows, c->hidden);
}

static struct kv_view layer_kv(const struct shard *s, int32_t layer) {
    dev_addr k = s->kv + 2 * (size_t)layer * s->kv_half_bytes;
    return (struct kv_view){.type = s->options.kv_type,
                            .n_blocks = s->options.kv_blocks,
                            .block_size = s->options.block_size,
                            .n_heads = s->n_kv_heads,
                            .head_dim = s->config->head_dim,
                            .k = k,
                            .v = k + s->kv_half_bytes};
}

/* partial = this rank's part of the attention of hidden. */
static void attention(struct shard *s, const struct part *p, int32_t layer) {
    const struct model_config *c = s->config;
    const struct layer_weights *w = &s->layers[layer];
    const struct kernels *ops = s->ctx->ops;
    int32_t T = p->step.n_rows;
    const struct linear_job qkv[] = {{&w->matrix[MAT_Q], w->bias[MAT_Q], s->q},
                                     {&w->matrix[MAT_K], w->bias[MAT_K], s->k},
                                     {&w->matrix[MAT_V], w->bias[MAT_V], s->v}};
    ops->linear(s->ctx, qkv, 3, p->hidden, T);
    for (int m = MAT_Q; m <= MAT_V; m++)
        shard_adapters_add(s, &p->step, layer, (enum matrix)m, p->hidden, qkv[m - MAT_Q].y);
    if (c->qk_norm) {
        ops->head_norm(s->ctx, s->q, w->norm[NORM_Q], T, s->n_heads, c->head_dim, c->norm_eps);
        ops->head_norm(s->ctx, s->k, w->norm[NORM_K], T, s->n_kv_heads, c->head_dim, c->norm_eps);
    }
    struct kv_view kv = layer_kv(s, layer);
    ops->rope_kv(s->ctx, s->q, s->n_heads, s->k, s->v, p->cos_sin, &kv, &p->at);
    float scale = c->attention_multiplier > 0 ? c->attention_multiplier
                                              : 1 / __builtin_sqrtf((float)c->head_dim);
    int32_t window = layer >= c->window_from_layer ? c->sliding_window : 0;
    ops->attention(s->ctx, s->attn + (size_t)s->attn_first * sizeof(float), s->attn_cols, s->q,
                   s->n_heads, s->kv_of_head, &kv, &p->at, scale, window);
    row_parallel(s, &p->step, layer, MAT_O, s->attn);
}

/* The same of the FFN. */
static void ffn(struct shard *s, const struct part *p, int32_t layer) {
    const struct layer_weights *w = &s->layers[layer];
    const struct kernels *ops = s->ctx->ops;
    int32_t T = p->step.n_rows;
    if (s->n_ffn > 0) {
        const struct linear_job in[] = {{&w->matrix[MAT_GATE], w->bias[MAT_GATE], s->gate},
                                        {&w->matrix[MAT_UP], w->bias[MAT_UP], s->up}};
        ops->linear(s->ctx, in, 2, p->hidden, T);
        shard_adapters_add(s, &p->step, layer, MAT_GATE, p->hidden, s->gate);
        shard_adapters_add(s, &p->step, layer, MAT_UP, p->hidden, s->up);
        ops->silu_mul(s->ctx, s->gate, s->gate, s->up, T, s->n_ffn);
    }
    row_parallel(s, &p->step, layer, MAT_DOWN, s->gate);
}

/* This rank's part of the logits of the first n rows of out_hidden. */
static dev_addr logits_part(const struct shard *s) {
    return s->plan->n > 1 ? s->logits_part : s->logits;
}

static void compute_logits(struct shard *s, int32_t n) {
    const struct model_config *c = s->config;
    const struct kernels *ops = s->ctx->ops;
    if (s->n_vocab == 0) return;
    struct linear_job job = {s->head, 0, logits_part(s)};
    ops->linear(s->ctx, &job, 1, s->out_hidden, n);
    if (c->logits_scaling != 1)
        ops->scale(s->ctx, job.y, (size_t)n * (size_t)s->n_vocab, 1 / c->logits_scaling);
}

/* Rows first … first + n - 1 of the logits, whole on every rank. */
static void gather_logits(struct shard *s, int32_t first, int32_t n) {
    if (s->plan->n == 1) return;
    dev_addr part = s->logits_part + (size_t)first * (size_t)s->n_vocab * sizeof(float);
    dev_addr whole = s->logits + (size_t)first * (size_t)s->config->vocab * sizeof(float);
    comm_all_gather(s->comm, whole, part, n, s->plan->vocab, DTYPE_F32);
}

/* The candidates of n rows, those of all ranks on every rank. */
static void find_candidates(struct shard *s, int32_t n, dev_addr wishes) {
    int ranks = s->plan->n;
    int32_t offsets[PLAN_MAX_RANKS + 1];
    dev_addr own = ranks > 1 ? s->few_part : s->few;
    s->ctx->ops->candidates(s->ctx, own, s->few_work, logits_part(s), wishes, n, s->n_vocab,
                            s->plan->vocab[s->rank]);
    for (int r = 0; r <= ranks; r++) offsets[r] = r * (int32_t)(CANDIDATES_BYTES / sizeof(float));
    if (ranks > 1) comm_all_gather(s->comm, s->few, own, n, offsets, DTYPE_F32);
}

/* The wanted rows after the last norm, and their logits. */
static void head(struct shard *s, const struct step *step, const struct step_ints *in) {
    int32_t n = step->n_out;
    s->ctx->ops->gather_rows(s->ctx, s->out_hidden, s->hidden, in->out_rows, n, s->config->hidden);
    if (!step->logits) return;
    compute_logits(s, n);
    if (wants_wishes(s, step)) find_candidates(s, n, in->wishes);
    else gather_logits(s, 0, n);
}

static void download_logits(struct shard *s, float *to, int32_t first, int32_t n) {
    size_t row = (size_t)s->config->vocab * sizeof(float);
    if (s->rank == 0) s->ctx->ops->download(s->ctx, to, s->logits + (size_t)first * row, (size_t)n * row);
}

/* All candidates, and the rows that are wanted whole. */
static void fetch_by_wish(struct shard *s, const struct step *step) {
    int32_t vocab = s->config->vocab, next;
    if (s->rank == 0)
        s->ctx->ops->download(s->ctx, s->few_host, s->few,
                              (size_t)step->n_out * (size_t)s->plan->n * sizeof *s->few_host);
    for (int32_t i = 0; i < step->n_out; i = next) {
        for (next = i + 1; next < step->n_out && step->wishes[next].whole == step->wishes[i].whole;) next++;
        if (!step->wishes[i].whole) continue;
        gather_logits(s, i, next - i);
        download_logits(s, step->logits + (size_t)i * (size_t)vocab, i, next - i);
    }
}

/* What is wanted of them, to the host on rank 0. */
static void fetch(struct shard *s, const struct step *step) {
    if (s->rank == 0 && step->states)
        s->ctx->ops->download(s->ctx, step->states, s->out_hidden,
                              (size_t)step->n_out * (size_t)s->config->hidden * sizeof(float));
    if (wants_wishes(s, step)) fetch_by_wish(s, step);
    else if (step->logits) download_logits(s, step->logits, 0, step->n_out);
}

/* When they are there. */
static void join_candidates(struct shard *s, const struct step *step) {
    if (s->rank != 0 || !wants_wishes(s, step)) return;
    for (int32_t i = 0; i < step->n_out; i++)
        if (!step->wishes[i].whole)
            candidates_join(&step->candidates[i], s->few_host + (size_t)i * (size_t)s->plan->n, s->plan->n,
                            &step->wishes[i].few);
}

/* From token numbers to logits, all in device memory. */
static void compute(struct shard *s, const struct step *step, const struct step_ints *in) {
    const struct model_config *c = s->config;
    const struct kernels *ops = s->ctx->ops;
    int32_t T = step->n_rows;
    /* A rank without vocabulary rows (fewer rows than ranks) gives zeros too. */
    if (s->embed.data)
        ops->embed(s->ctx, s->x, &s->embed, in->ids, T, s->plan->vocab[s->rank],
                   c->embedding_multiplier);
    else ops->scale(s->ctx, s->x, (size_t)T * (size_t)c->hidden, 0);
    comm_all_reduce(s->comm, s->x, T, c->hidden, DTYPE_F32);
    ops->rope_table(s->ctx, s->cos_sin, &s->rope, in->rows.pos, in->len, T);

    ops->rmsnorm(s->ctx, s->hidden, s->x, s->layers[0].norm[NORM_ATTN], T, c->hidden, c->norm_eps);
    for (int32_t i = 0; i < c->n_layers && !kctx_failed(s->ctx); i++)
        for (int32_t first = 0; first < T; first += s->part_rows) {
            struct part p = part_of(s, step, in, first);
            attention(s, &p, i);
            reduce_and_norm(s, &p, s->layers[i].norm[NORM_FFN]);
            ffn(s, &p, i);
            reduce_and_norm(s, &p, i + 1 < c->n_layers ? s->layers[i + 1].norm[NORM_ATTN] : s->norm);
        }
    if (step->n_out > 0 && !kctx_failed(s->ctx)) head(s, step, in);
}

/* A step of one row a sequence, of all of which a token shall follow, comes again and again: where a device can
 * record it, it is one launch. Nothing but the number of rows may then tell it from another such step. */
static bool is_decode(const struct shard *s, const struct step *step) {
    int32_t T = step->n_rows;
    for (int32_t i = 0; step->adapter && i < step->n_seqs; i++)
        if (step->adapter[i] >= 0) return false;
    return T == step->n_seqs && T == step->n_out && step->logits &&
           (wants_wishes(s, step) || !s->options.candidates);
}

static void compute_again(struct shard *s, const struct step *step, const struct step_ints *in) {
    const struct kernels *ops = s->ctx->ops;
    uint64_t key = s->ints + (uint64_t)step->n_rows;
    enum replay how = comm_replay(s->comm, key);
    if (how == REPLAY_RECORD) {
        ops->replay_begin(s->ctx, key);
        compute(s, step, in);
        ops->replay_end(s->ctx);
        /* All have recorded: no rank makes ready any more while kernels of another wait for its own. */
        how = comm_replay(s->comm, key);
    }
    if (how == REPLAY_RUN) ops->replay_run(s->ctx, key);
    else compute(s, step, in);
}

/* Training on the same context goes on without. */
static void narrow_activations(struct shard *s, bool on) {
    const struct kernels *ops = s->ctx->ops;
    if (s->options.narrow_activations && ops->narrow_activations) ops->narrow_activations(s->ctx, on);
}

int model_forward(struct shard *s, const struct step *step, struct error *e) {
    int32_t T = step->n_rows;
    if (T > s->options.max_rows || step->n_out > s->options.max_out ||
        step->n_seqs > s->options.max_seqs)
        return error_set(e, ERR_INTERNAL, "a step of %d rows, %d sequences and %d logits is over "
                         "the shard's %d, %d and %d", T, step->n_seqs, step->n_out,
                         s->options.max_rows, s->options.max_seqs, s->options.max_out);
    struct step_ints in = upload_ints(s, step);
    narrow_activations(s, true);
    if (is_decode(s, step)) compute_again(s, step, &in);
    else compute(s, step, &in);
    narrow_activations(s, false);
    if (step->n_out > 0) fetch(s, step);
    int err = s->ctx->ops->wait(s->ctx, e);
    if (!err) join_candidates(s, step);
    return err;
}

int model_whole_row(struct shard *s, int32_t row, float *logits, struct error *e) {
    gather_logits(s, row, 1);
    download_logits(s, logits, row, 1);
    return s->ctx->ops->wait(s->ctx, e);
}
