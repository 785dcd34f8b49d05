/* A learning rank's memory: made once for the largest micro-batch. */
#include "model/trainee.h"

#include <stdlib.h>
#include <string.h>

/* The most rows of the residual stream that one rank holds. */
static int64_t own_rows(const struct trainee *t) {
    int64_t T = t->options.max_rows;
    return t->options.sequence_parallel ? (T + t->n_ranks - 1) / t->n_ranks : T;
}

struct want {
    dev_addr *at;
    int64_t rows, cols;
};

static int alloc_of(struct trainee *t, size_t element, const struct want *want, size_t n,
                    struct error *e) {
    for (size_t i = 0; i < n; i++) {
        size_t bytes = (size_t)(want[i].rows * want[i].cols) * element;
        int err = bytes ? t->ctx->ops->mem_alloc(t->ctx, MEM_ACTIVATIONS, bytes, want[i].at, e) : 0;
        if (err) return error_prefix(e, "activations of training: ");
    }
    return 0;
}

static int alloc_all(struct trainee *t, const struct want *want, size_t n, struct error *e) {
    return alloc_of(t, sizeof(float), want, n, e);
}

static int alloc_lse(struct trainee *t, struct layer_acts *a, struct error *e) {
    const struct want lse = {&a->lse, t->options.max_rows, t->serving->n_heads};
    return alloc_all(t, &lse, 1, e);
}

/* All of a layer's but x_in and lse, of so many bytes each. */
static int alloc_acts(struct trainee *t, struct layer_acts *a, size_t element, struct error *e) {
    const struct shard *s = t->serving;
    int64_t T = t->options.max_rows, e_dim = t->config->head_dim;
    int64_t raw = t->config->qk_norm ? e_dim : 0;
    const struct want want[] = {
        {&a->q_raw, T, s->n_heads * raw}, {&a->k_raw, T, s->n_kv_heads * raw},
        {&a->q, T, s->n_heads * e_dim},   {&a->k, T, s->n_kv_heads * e_dim},
        {&a->v, T, s->n_kv_heads * e_dim}, {&a->attn, T, t->attn_cols},
        {&a->x_mid, own_rows(t), t->config->hidden},
        {&a->gate, T, s->n_ffn},          {&a->up, T, s->n_ffn},
    };
    return alloc_of(t, element, want, sizeof want / sizeof *want, e);
}

/* Layers that are computed again work in the place of the first that is not: before it in forward, after
 * it in backward. */
static int alloc_layers(struct trainee *t, struct error *e) {
    int err = t->options.bf16 ? alloc_acts(t, &t->work, sizeof(float), e) : 0;
    for (int32_t i = t->config->n_layers - 1; i >= 0 && !err; i--) {
        struct layer_acts *a = &t->layers[i].acts, *kept = &t->layers[i].kept;
        const struct train_layer *shared = &t->layers[t->options.checkpoint_layers];
        if (i < t->options.checkpoint_layers) {
            *a = shared->acts;
            *kept = shared->kept;
        } else if (t->options.bf16) {
            *a = t->work;
            err = alloc_acts(t, kept, sizeof(uint16_t), e);
        } else err = alloc_acts(t, a, sizeof(float), e);
        if (!err && i >= t->options.checkpoint_layers) err = alloc_lse(t, a, e);
        a->x_in = 0;
        struct want x_in = {&a->x_in, own_rows(t), t->config->hidden};
        if (!err) err = alloc_all(t, &x_in, 1, e);
    }
    return err;
}

static int32_t widest_input(const struct trainee *t) {
    int32_t widest = t->config->hidden;
    if (t->attn_cols > widest) widest = t->attn_cols;
    return t->serving->n_ffn > widest ? t->serving->n_ffn : widest;
}

static int alloc_buffers(struct trainee *t, struct error *e) {
    const struct shard *s = t->serving;
    const struct train_options *o = &t->options;
    int64_t T = o->max_rows, d = t->config->hidden, e_dim = t->config->head_dim, C = o->loss_rows;
    int64_t low = o->method == TRAIN_LORA ? o->rank : 0;
    for (int i = 0; i < t->n_params; i++) {
        const struct train_param *p = &t->params[i];
        size_t whole = (size_t)p->whole_rows * (size_t)p->whole_cols;
        if (p->sum == GRAD_SHARED && whole > t->shared_floats) t->shared_floats = whole;
    }
    const struct want want[] = {
        {&t->x_out, own_rows(t), d}, {&t->dx, own_rows(t), d}, {&t->hidden, T, d}, {&t->dhidden, T, d},
        {&t->partial, T, d}, {&t->dq, T, s->n_heads * e_dim}, {&t->dk, T, s->n_kv_heads * e_dim},
        {&t->dv, T, s->n_kv_heads * e_dim}, {&t->dattn, T, t->attn_cols}, {&t->act, T, s->n_ffn},
        {&t->dact, T, s->n_ffn}, {&t->cos_sin, T, e_dim}, {&t->ones, T, 1}, {&t->low, T, low},
        {&t->dlow, T, low}, {&t->dropped, o->dropout > 0 ? T : 0, widest_input(t)},
        {&t->logits, C, s->n_vocab}, {&t->stats, C, 3}, {&t->all_stats, C, 3 * t->n_ranks},
        {&t->loss, T, 1}, {&t->weights, T, 1}, {&t->ids, T, 1}, {&t->pos, T, 1}, {&t->labels, T, 1},
        {&t->first, T, 1}, {&t->len, T, 1}, {&t->scalar, 1, 1},
        {&t->shared, (int64_t)t->shared_floats, 1},
    };
    int err = alloc_all(t, want, sizeof want / sizeof *want, e);
    t->host_labels = malloc((size_t)T * sizeof *t->host_labels);
    t->host_loss = malloc((size_t)T * sizeof *t->host_loss);
    if (!err && (!t->host_labels || !t->host_loss))
        err = error_set(e, ERR_MEMORY, "no memory for a micro-batch");
    if (err) return err;
    for (int32_t i = 0; i < o->max_rows; i++) t->host_loss[i] = 1;
    t->ctx->ops->upload(t->ctx, t->ones, t->host_loss, (size_t)T * sizeof *t->host_loss);
    return 0;
}

int trainee_new(struct trainee **out, const struct model *model, struct shard *serving,
                const struct train_options *options, struct error *e) {
    struct trainee *t = calloc(1, sizeof *t);
    if (!t) return error_set(e, ERR_MEMORY, "no memory to train");
    t->options = *options;
    if (t->options.checkpoint_layers >= model->config.n_layers)
        t->options.checkpoint_layers = model->config.n_layers - 1;
    t->model = model;
    t->config = &model->config;
    t->serving = serving;
    t->ctx = serving->ctx;
    t->comm = serving->comm;
    t->rank = serving->rank;
    t->n_ranks = serving->plan->n;
    bool full = options->method == TRAIN_FULL;
    t->attn_first = full ? 0 : serving->attn_first;
    t->attn_cols = full ? serving->n_heads * t->config->head_dim : serving->attn_cols;
    int err = trainee_make_params(t, e);
    if (!err) err = trainee_cut_slices(t, e);
    if (!err) err = alloc_layers(t, e);
    if (!err) err = alloc_buffers(t, e);
    if (!err) err = t->ctx->ops->wait(t->ctx, e);
    if (err) {
        trainee_free(t);
        return err;
    }
    *out = t;
    return 0;
}

static void release(struct trainee *t, dev_addr addr) {
    if (addr) t->ctx->ops->mem_free(t->ctx, addr);
}

static void free_acts(struct trainee *t, const struct layer_acts *a) {
    const dev_addr all[] = {a->q_raw, a->k_raw, a->q,    a->k, a->v,
                            a->attn,  a->x_mid, a->gate, a->up};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) release(t, all[i]);
}

void trainee_free(struct trainee *t) {
    if (!t) return;
    for (int32_t i = 0; t->layers && i < t->config->n_layers; i++) {
        const struct train_layer *l = &t->layers[i];
        release(t, l->acts.x_in);
        if (i < t->options.checkpoint_layers) continue;
        release(t, l->acts.lse);
        free_acts(t, t->options.bf16 ? &l->kept : &l->acts);
    }
    free_acts(t, &t->work);
    for (int i = 0; i < t->n_params; i++) {
        const dev_addr all[] = {t->params[i].p, t->params[i].g, t->params[i].m, t->params[i].v};
        for (int k = 0; k < 4; k++) release(t, all[k]);
    }
    const dev_addr rest[] = {t->x_out, t->dx, t->hidden, t->dhidden, t->partial, t->dq, t->dk,
                             t->dv, t->dattn, t->act, t->dact, t->cos_sin, t->ones, t->low,
                             t->dlow, t->dropped, t->logits, t->stats, t->all_stats, t->loss,
                             t->weights, t->ids, t->pos, t->labels, t->first, t->len, t->scalar,
                             t->shared};
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++) release(t, rest[i]);
    free(t->host_labels);
    free(t->host_loss);
    free(t->params);
    free(t->slice_from);
    free(t->layers);
    free(t);
}
