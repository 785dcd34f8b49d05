/* Forward and backward of a micro-batch, a layer at a time: each forward next to its backward.
 *
 * A rank enters a column-parallel product with a whole input and leaves a row-parallel one with a
 * partial sum, which is all-reduced; in backward it is the other way round: the gradient of the whole
 * input is a partial sum. So two all-reduces a layer each way. Gradients flow into t->dx, which holds
 * that of the residual stream. Residual branches are scaled by residual_multiplier (granite).
 *
 * With sequence parallel a rank holds only its own rows of the residual stream and of dx. Then a partial
 * sum is reduced to these (reduce), and what enters a linear layer is put together from all ranks
 * (gather): the two halves of the all-reduce, with the norm between them. */
#include "model/trainee.h"

#include <string.h>

/* x [T, d], a partial sum on each rank, becomes whole in the rank's own rows. */
static void reduce(struct trainee *t, dev_addr x) {
    int32_t d = t->config->hidden;
    if (t->options.sequence_parallel)
        comm_reduce_scatter_rows(t->comm, x, d, t->offsets, DTYPE_F32);
    else comm_all_reduce(t->comm, x, t->batch.n_rows, d, DTYPE_F32);
}

/* x [T, d], of which each rank has its own rows, becomes whole everywhere. */
static void gather(struct trainee *t, dev_addr x) {
    if (t->options.sequence_parallel)
        comm_all_gather_rows(t->comm, x, t->config->hidden, t->offsets, DTYPE_F32);
}

static size_t floats(int64_t rows, int64_t cols) { return (size_t)(rows * cols); }

/* The rank's own rows of x [T, d]. */
static dev_addr own(const struct trainee *t, dev_addr x) {
    return x + floats(t->row0, t->config->hidden) * sizeof(float);
}

static size_t own_floats(const struct trainee *t) { return floats(t->n_own, t->config->hidden); }

static void deal_rows(struct trainee *t) {
    int64_t T = t->batch.n_rows;
    for (int r = 0; r <= t->n_ranks; r++) t->offsets[r] = (int32_t)(T * r / t->n_ranks);
    bool dealt = t->options.sequence_parallel;
    t->row0 = dealt ? t->offsets[t->rank] : 0;
    t->n_own = dealt ? t->offsets[t->rank + 1] - t->row0 : t->batch.n_rows;
}

static void upload_rows(struct trainee *t, dev_addr to, const void *from) {
    t->ctx->ops->upload(t->ctx, to, from, (size_t)t->batch.n_rows * 4);
}

/* Every rank's rows of the embedding, summed. */
static void embed(struct trainee *t) {
    const struct kernels *ops = t->ctx->ops;
    const struct model_config *c = t->config;
    dev_addr x = t->partial;
    int32_t T = t->batch.n_rows, first = t->serving->plan->vocab[t->rank];
    const struct weight *frozen = &t->serving->embed;
    if (t->embed)
        ops->embed_rows(t->ctx, x, t->embed->p, t->ids, T, c->hidden, t->embed->rows, first,
                        c->embedding_multiplier);
    else if (frozen->data)
        ops->embed(t->ctx, x, frozen, t->ids, T, first, c->embedding_multiplier);
    else ops->scale(t->ctx, x, floats(T, c->hidden), 0);
    reduce(t, x);
    ops->copy(t->ctx, t->layers[0].acts.x_in, own(t, x), own_floats(t) * sizeof(float));
}

void trainee_begin(struct trainee *t, const struct train_batch *batch) {
    const struct kernels *ops = t->ctx->ops;
    t->batch = *batch;
    deal_rows(t);
    upload_rows(t, t->ids, batch->ids);
    upload_rows(t, t->pos, batch->pos);
    upload_rows(t, t->labels, batch->labels);
    upload_rows(t, t->first, batch->first);
    upload_rows(t, t->len, batch->len);
    memcpy(t->host_labels, batch->labels, (size_t)batch->n_rows * sizeof *t->host_labels);
    for (int32_t i = 0; i < batch->n_rows; i++) t->host_loss[i] = batch->weight;
    upload_rows(t, t->weights, t->host_loss);
    ops->rope_table(t->ctx, t->cos_sin, &t->serving->rope, t->pos, t->len, batch->n_rows);
    embed(t);
}

/* --- attention ----------------------------------------------------------------------------------- */

static float attention_scale(const struct model_config *c) {
    return c->attention_multiplier > 0 ? c->attention_multiplier
                                       : 1 / __builtin_sqrtf((float)c->head_dim);
}

static int32_t window_of(const struct model_config *c, int32_t layer) {
    return layer >= c->window_from_layer ? c->sliding_window : 0;
}

static void qkv_forward(struct trainee *t, const struct train_layer *l) {
    const struct kernels *ops = t->ctx->ops;
    const struct model_config *c = t->config;
    const struct layer_acts *a = &l->acts;
    const struct shard *s = t->serving;
    int32_t T = t->batch.n_rows, e = c->head_dim;
    const struct train_linear *const in[] = {&l->matrix[MAT_Q], &l->matrix[MAT_K],
                                             &l->matrix[MAT_V]};
    bool norms = c->qk_norm;
    const dev_addr out[] = {norms ? a->q_raw : a->q, norms ? a->k_raw : a->k, a->v};
    train_linear_forward(t, in, out, 3, t->hidden, T);
    if (norms) {
        ops->rmsnorm(t->ctx, a->q, a->q_raw, l->norm[NORM_Q], T * s->n_heads, e, c->norm_eps);
        ops->rmsnorm(t->ctx, a->k, a->k_raw, l->norm[NORM_K], T * s->n_kv_heads, e, c->norm_eps);
    }
    ops->rope_rows(t->ctx, a->q, s->n_heads, t->cos_sin, T, e, false);
    ops->rope_rows(t->ctx, a->k, s->n_kv_heads, t->cos_sin, T, e, false);
}

/* partial = what attention adds to the stream. Reads hidden. */
static void attention_forward(struct trainee *t, const struct train_layer *l, int32_t layer) {
    const struct layer_acts *a = &l->acts;
    const struct shard *s = t->serving;
    const struct model_config *c = t->config;
    int32_t T = t->batch.n_rows;
    qkv_forward(t, l);
    t->ctx->ops->attention_rows(t->ctx, a->attn + (size_t)t->attn_first * 4, t->attn_cols, a->lse,
                                a->q, s->n_heads, a->k, a->v, s->n_kv_heads, s->kv_of_head,
                                c->head_dim, t->first, T, attention_scale(c), window_of(c, layer));
    const struct train_linear *o = &l->matrix[MAT_O];
    train_linear_forward(t, &o, &t->partial, 1, a->attn, T);
    reduce(t, t->partial);
}

static dev_addr norm_grad(const struct train_param *p) { return p ? p->g : 0; }

/* dhidden = gradient of the layer's normed input, from dpartial in t->partial. */
static void attention_backward(struct trainee *t, const struct train_layer *l, int32_t layer) {
    const struct kernels *ops = t->ctx->ops;
    const struct layer_acts *a = &l->acts;
    const struct shard *s = t->serving;
    const struct model_config *c = t->config;
    int32_t T = t->batch.n_rows, e = c->head_dim;
    size_t at = (size_t)t->attn_first * 4;
    const struct train_linear *o = &l->matrix[MAT_O];
    train_linear_backward(t, &o, &t->partial, 1, a->attn, t->dattn, T);
    ops->attention_rows_dx(t->ctx, t->dq, t->dk, t->dv, t->dattn + at, a->attn + at, t->attn_cols,
                           a->lse, a->q, s->n_heads, a->k, a->v, s->n_kv_heads, s->kv_of_head, e,
                           t->first, T, attention_scale(c), window_of(c, layer));
    ops->rope_rows(t->ctx, t->dq, s->n_heads, t->cos_sin, T, e, true);
    ops->rope_rows(t->ctx, t->dk, s->n_kv_heads, t->cos_sin, T, e, true);
    dev_addr dq = t->dq, dk = t->dk;
    if (c->qk_norm) { /* q and k are done with: they take the gradients of q_raw and k_raw */
        dq = a->q;
        dk = a->k;
        ops->scale(t->ctx, dq, floats(T, s->n_heads * e), 0);
        ops->scale(t->ctx, dk, floats(T, s->n_kv_heads * e), 0);
        ops->rmsnorm_dx(t->ctx, dq, norm_grad(l->norm_param[NORM_Q]), t->dq, a->q_raw,
                        l->norm[NORM_Q], T * s->n_heads, e, c->norm_eps);
        ops->rmsnorm_dx(t->ctx, dk, norm_grad(l->norm_param[NORM_K]), t->dk, a->k_raw,
                        l->norm[NORM_K], T * s->n_kv_heads, e, c->norm_eps);
    }
    const struct train_linear *const in[] = {&l->matrix[MAT_Q], &l->matrix[MAT_K],
                                             &l->matrix[MAT_V]};
    const dev_addr dy[] = {dq, dk, t->dv};
    train_linear_backward(t, in, dy, 3, t->hidden, t->dhidden, T);
    reduce(t, t->dhidden);
}

/* --- FFN ----------------------------------------------------------------------------------------- */

/* partial = what the FFN adds to the stream. Reads hidden. */
static void ffn_forward(struct trainee *t, const struct train_layer *l) {
    const struct layer_acts *a = &l->acts;
    int32_t T = t->batch.n_rows, F = t->serving->n_ffn;
    if (F == 0) {
        t->ctx->ops->scale(t->ctx, t->partial, floats(T, t->config->hidden), 0);
    } else {
        const struct train_linear *const in[] = {&l->matrix[MAT_GATE], &l->matrix[MAT_UP]};
        const dev_addr out[] = {a->gate, a->up};
        train_linear_forward(t, in, out, 2, t->hidden, T);
        t->ctx->ops->silu_mul(t->ctx, t->act, a->gate, a->up, T, F);
        const struct train_linear *down = &l->matrix[MAT_DOWN];
        train_linear_forward(t, &down, &t->partial, 1, t->act, T);
    }
    reduce(t, t->partial);
}

/* dhidden, from dpartial in t->partial. */
static void ffn_backward(struct trainee *t, const struct train_layer *l) {
    const struct kernels *ops = t->ctx->ops;
    const struct layer_acts *a = &l->acts;
    int32_t T = t->batch.n_rows, F = t->serving->n_ffn;
    if (F == 0) {
        ops->scale(t->ctx, t->dhidden, floats(T, t->config->hidden), 0);
    } else {
        ops->silu_mul(t->ctx, t->act, a->gate, a->up, T, F);
        const struct train_linear *down = &l->matrix[MAT_DOWN];
        train_linear_backward(t, &down, &t->partial, 1, t->act, t->dact, T);
        ops->silu_mul_dx(t->ctx, a->gate, a->up, t->dact, a->gate, a->up, T, F);
        const struct train_linear *const in[] = {&l->matrix[MAT_GATE], &l->matrix[MAT_UP]};
        const dev_addr dy[] = {a->gate, a->up};
        train_linear_backward(t, in, dy, 2, t->hidden, t->dhidden, T);
    }
    reduce(t, t->dhidden);
}

/* --- a layer ------------------------------------------------------------------------------------- */

static dev_addr layer_out(struct trainee *t, int32_t layer) {
    return layer + 1 < t->config->n_layers ? t->layers[layer + 1].acts.x_in : t->x_out;
}

/* hidden = the norm of x [own rows, d], whole. */
static void normed(struct trainee *t, dev_addr x, dev_addr norm) {
    const struct model_config *c = t->config;
    t->ctx->ops->rmsnorm(t->ctx, own(t, t->hidden), x, norm, t->n_own, c->hidden, c->norm_eps);
    gather(t, t->hidden);
}

/* From x_in to x_mid and hidden (normed x_mid). */
static void first_half(struct trainee *t, int32_t layer) {
    const struct kernels *ops = t->ctx->ops;
    const struct model_config *c = t->config;
    const struct train_layer *l = &t->layers[layer];
    normed(t, l->acts.x_in, l->norm[NORM_ATTN]);
    attention_forward(t, l, layer);
    ops->copy(t->ctx, l->acts.x_mid, l->acts.x_in, own_floats(t) * sizeof(float));
    ops->add_rmsnorm(t->ctx, own(t, t->hidden), l->acts.x_mid, own(t, t->partial),
                     c->residual_multiplier, l->norm[NORM_FFN], t->n_own, c->hidden, c->norm_eps);
    gather(t, t->hidden);
}

/* Between forward and backward a layer's activations are kept in bf16: out of the set that all layers work
 * in, or back into it. */
static void keep(struct trainee *t, const struct train_layer *l, bool back) {
    const struct layer_acts *a = &l->acts, *k = &l->kept;
    const struct shard *s = t->serving;
    int32_t T = t->batch.n_rows, e = t->config->head_dim;
    size_t q = floats(T, s->n_heads * e), kv = floats(T, s->n_kv_heads * e), ffn = floats(T, s->n_ffn);
    const struct {
        dev_addr work, kept;
        size_t n;
    } all[] = {{a->q_raw, k->q_raw, q}, {a->k_raw, k->k_raw, kv},
               {a->q, k->q, q},         {a->k, k->k, kv},
               {a->v, k->v, kv},        {a->attn, k->attn, floats(T, t->attn_cols)},
               {a->gate, k->gate, ffn}, {a->up, k->up, ffn},
               {a->x_mid, k->x_mid, own_floats(t)}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (!all[i].kept) continue;
        if (back) t->ctx->ops->widen(t->ctx, all[i].work, all[i].kept, all[i].n);
        else t->ctx->ops->narrow(t->ctx, all[i].kept, all[i].work, all[i].n);
    }
}

void trainee_forward(struct trainee *t, int32_t layer) {
    const struct train_layer *l = &t->layers[layer];
    size_t n = own_floats(t);
    if (kctx_failed(t->ctx)) return;
    t->ctx->ops->bf16_products(t->ctx, t->options.bf16);
    first_half(t, layer);
    ffn_forward(t, l);
    t->ctx->ops->bf16_products(t->ctx, false);
    if (t->options.bf16 && layer >= t->options.checkpoint_layers && !t->batch.evaluate) keep(t, l, false);
    t->ctx->ops->copy(t->ctx, layer_out(t, layer), l->acts.x_mid, n * sizeof(float));
    t->ctx->ops->axpy(t->ctx, layer_out(t, layer), own(t, t->partial), n,
                      t->config->residual_multiplier);
}

/* What checkpointing left out: all of the layer's forward but the FFN's last product. */
static void recompute(struct trainee *t, int32_t layer) {
    const struct train_layer *l = &t->layers[layer];
    first_half(t, layer);
    if (t->serving->n_ffn == 0) return;
    const struct train_linear *const in[] = {&l->matrix[MAT_GATE], &l->matrix[MAT_UP]};
    const dev_addr out[] = {l->acts.gate, l->acts.up};
    train_linear_forward(t, in, out, 2, t->hidden, t->batch.n_rows);
}

/* partial = residual_multiplier * dx, whole: the gradient that enters a branch. */
static void enter_branch(struct trainee *t) {
    size_t n = own_floats(t);
    dev_addr mine = own(t, t->partial);
    t->ctx->ops->copy(t->ctx, mine, t->dx, n * sizeof(float));
    if (t->config->residual_multiplier != 1)
        t->ctx->ops->scale(t->ctx, mine, n, t->config->residual_multiplier);
    gather(t, t->partial);
}

/* dx += the gradient of x [own rows, d], from dhidden of its norm. */
static void norm_backward(struct trainee *t, const struct train_param *param, dev_addr norm,
                          dev_addr x) {
    const struct model_config *c = t->config;
    t->ctx->ops->rmsnorm_dx(t->ctx, t->dx, norm_grad(param), own(t, t->dhidden), x, norm, t->n_own,
                            c->hidden, c->norm_eps);
}

void trainee_backward(struct trainee *t, int32_t layer) {
    const struct train_layer *l = &t->layers[layer];
    bool again = layer < t->options.checkpoint_layers;
    if (kctx_failed(t->ctx)) return;
    t->ctx->ops->bf16_products(t->ctx, t->options.bf16);
    if (again) recompute(t, layer);
    if (t->options.bf16) {
        if (again) keep(t, l, false); /* the same bits as of a layer that was not computed again */
        keep(t, l, true);
    }
    if (!again || t->options.bf16) normed(t, l->acts.x_mid, l->norm[NORM_FFN]);
    enter_branch(t);
    ffn_backward(t, l);
    norm_backward(t, l->norm_param[NORM_FFN], l->norm[NORM_FFN], l->acts.x_mid);

    normed(t, l->acts.x_in, l->norm[NORM_ATTN]);
    enter_branch(t);
    attention_backward(t, l, layer);
    norm_backward(t, l->norm_param[NORM_ATTN], l->norm[NORM_ATTN], l->acts.x_in);
    t->ctx->ops->bf16_products(t->ctx, false);
}

/* --- the ends ------------------------------------------------------------------------------------ */

static void head_forward(struct trainee *t, dev_addr h, int32_t n) {
    const struct kernels *ops = t->ctx->ops;
    int32_t V = t->serving->n_vocab, d = t->config->hidden;
    if (t->head) {
        ops->matmul(t->ctx, t->logits, n, V, d, h, false, t->head->p, true, 1, 0);
    } else {
        struct linear_job job = {t->serving->head, 0, t->logits};
        ops->linear(t->ctx, &job, 1, h, n);
    }
    if (t->config->logits_scaling != 1)
        ops->scale(t->ctx, t->logits, floats(n, V), 1 / t->config->logits_scaling);
}

/* dh of n rows, a partial sum, from the logits' gradient. */
static void head_backward(struct trainee *t, dev_addr dh, dev_addr h, int32_t n) {
    const struct kernels *ops = t->ctx->ops;
    int32_t V = t->serving->n_vocab, d = t->config->hidden;
    if (V == 0) {
        ops->scale(t->ctx, dh, floats(n, d), 0);
    } else {
        if (t->config->logits_scaling != 1)
            ops->scale(t->ctx, t->logits, floats(n, V), 1 / t->config->logits_scaling);
        if (t->head) {
            ops->matmul(t->ctx, dh, n, d, V, t->logits, false, t->head->p, false, 1, 0);
            ops->matmul(t->ctx, t->head->g, V, d, n, t->logits, true, h, false, 1, 1);
        } else {
            struct linear_job job = {t->serving->head, 0, t->logits};
            ops->linear_dx(t->ctx, &job, 1, dh, n, false);
        }
    }
}

static bool any_trained(const struct trainee *t, int32_t from, int32_t n) {
    for (int32_t i = from; i < from + n; i++)
        if (t->host_labels[i] >= 0) return true;
    return false;
}

/* Rows from … from+n-1: logits, their loss, their gradient, all made and used at once. */
static void loss_rows(struct trainee *t, int32_t from, int32_t n) {
    const struct kernels *ops = t->ctx->ops;
    const struct model_config *c = t->config;
    size_t at = floats(from, c->hidden) * 4;
    int32_t V = t->serving->n_vocab, first = t->serving->plan->vocab[t->rank];
    dev_addr h = t->hidden + at, dh = t->dhidden + at, labels = t->labels + (size_t)from * 4;
    bool rows_are_dealt = t->options.sequence_parallel;
    if (!rows_are_dealt)
        ops->rmsnorm(t->ctx, h, t->x_out + at, t->norm_value, n, c->hidden, c->norm_eps);
    if (V > 0) head_forward(t, h, n);
    ops->ce_stats(t->ctx, t->stats, t->logits, labels, n, V, first);
    int32_t offsets[PLAN_MAX_RANKS + 1];
    for (int r = 0; r <= t->n_ranks; r++) offsets[r] = 3 * r;
    comm_all_gather(t->comm, t->all_stats, t->stats, n, offsets, DTYPE_F32);
    ops->ce_grad(t->ctx, t->loss + (size_t)from * 4, t->logits, t->all_stats, t->n_ranks, labels,
                 t->weights + (size_t)from * 4, n, V, first);
    if (t->batch.evaluate) return;
    head_backward(t, dh, h, n);
    if (rows_are_dealt) return;
    comm_all_reduce(t->comm, dh, n, c->hidden, DTYPE_F32);
    ops->rmsnorm_dx(t->ctx, t->dx + at, norm_grad(t->norm), dh, t->x_out + at, t->norm_value, n,
                    c->hidden, c->norm_eps);
}

int32_t trainee_loss_chunks(const struct trainee *t) {
    return (t->batch.n_rows + t->options.loss_rows - 1) / t->options.loss_rows;
}

/* With sequence parallel a chunk's rows lie on some ranks: hidden is put together before the first
 * chunk, and its gradient dealt out after the last. */
static void before_chunks(struct trainee *t) {
    const struct kernels *ops = t->ctx->ops;
    ops->scale(t->ctx, t->dx, own_floats(t), 0);
    ops->scale(t->ctx, t->loss, floats(t->batch.n_rows, 1), 0);
    if (!t->options.sequence_parallel) return;
    normed(t, t->x_out, t->norm_value);
    ops->scale(t->ctx, t->dhidden, floats(t->batch.n_rows, t->config->hidden), 0);
}

static void after_chunks(struct trainee *t) {
    if (!t->options.sequence_parallel || t->batch.evaluate) return;
    reduce(t, t->dhidden);
    norm_backward(t, t->norm, t->norm_value, t->x_out);
}

void trainee_loss_chunk(struct trainee *t, int32_t chunk) {
    int32_t T = t->batch.n_rows, from = chunk * t->options.loss_rows;
    int32_t n = T - from < t->options.loss_rows ? T - from : t->options.loss_rows;
    if (kctx_failed(t->ctx)) return;
    if (chunk == 0) before_chunks(t);
    t->ctx->ops->bf16_products(t->ctx, t->options.bf16);
    if (any_trained(t, from, n)) loss_rows(t, from, n);
    t->ctx->ops->bf16_products(t->ctx, false);
    if (chunk == trainee_loss_chunks(t) - 1) after_chunks(t);
}

int trainee_loss(struct trainee *t, double *loss, struct error *e) {
    const struct kernels *ops = t->ctx->ops;
    int32_t T = t->batch.n_rows;
    ops->download(t->ctx, t->host_loss, t->loss, (size_t)T * sizeof *t->host_loss);
    int err = ops->wait(t->ctx, e);
    *loss = 0;
    for (int32_t i = 0; i < T && !err; i++)
        if (t->host_labels[i] >= 0) *loss += t->host_loss[i];
    return err;
}

static void embed_backward(struct trainee *t) {
    dev_addr dx = t->dx;
    if (t->options.sequence_parallel) {
        dx = t->partial;
        t->ctx->ops->copy(t->ctx, own(t, dx), t->dx, own_floats(t) * sizeof(float));
        gather(t, dx);
    }
    t->ctx->ops->embed_grad(t->ctx, t->embed->g, dx, t->ids, t->batch.n_rows, t->config->hidden,
                            t->embed->rows, t->serving->plan->vocab[t->rank],
                            t->config->embedding_multiplier);
}

int trainee_end(struct trainee *t, struct error *e) {
    if (t->embed && !kctx_failed(t->ctx)) embed_backward(t);
    return t->ctx->ops->wait(t->ctx, e);
}
