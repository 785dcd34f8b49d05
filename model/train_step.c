/* After the micro-batches of a step: gradients summed over ranks, the global norm, AdamW; and whole
 * tensors for files. */
#include "model/trainee.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static size_t floats_of(const struct train_param *p) {
    return (size_t)p->rows * (size_t)p->cols;
}

/* A KV head that several ranks hold: each has a part of its gradient. The whole tensor is summed,
 * zeros where a rank holds nothing, and each takes its piece back. */
static void sum_shared(struct trainee *t, const struct train_param *p) {
    const struct kernels *ops = t->ctx->ops;
    size_t whole = (size_t)p->whole_rows * (size_t)p->whole_cols;
    dev_addr mine = t->shared +
                    ((size_t)p->row0 * (size_t)p->whole_cols + (size_t)p->col0) * sizeof(float);
    ops->scale(t->ctx, t->shared, whole, 0);
    ops->copy(t->ctx, mine, p->g, floats_of(p) * sizeof(float));
    comm_all_reduce(t->comm, t->shared, p->whole_rows, p->whole_cols, DTYPE_F32);
    ops->copy(t->ctx, p->g, mine, floats_of(p) * sizeof(float));
}

static void drop_first_head(struct train_param *p, int32_t heads) {
    dev_addr *const parts[] = {&p->p, &p->g, &p->m, &p->v};
    bool vector = p->whole_rows == 1;
    int32_t n = (vector ? p->cols : p->rows) / heads;
    for (int i = 0; i < 4; i++) *parts[i] += floats_of(p) / (size_t)heads * sizeof(float);
    *(vector ? &p->col0 : &p->row0) += n;
    *(vector ? &p->cols : &p->rows) -= n;
    p->own_cols = p->cols;
}

/* The part of p that this rank speaks for: of all ranks together that is the tensor, once. */
static struct train_param spoken_for(const struct trainee *t, const struct train_param *p) {
    const struct shard_plan *plan = t->serving->plan;
    struct train_param own = *p;
    switch (p->sum) {
    case GRAD_WHOLE:
    case GRAD_PARTIAL:
        if (t->rank != 0) own.rows = 0;
        break;
    case GRAD_SPLIT: break;
    case GRAD_SHARED:
        if (shard_plan_shares_first_kv(plan, t->rank)) drop_first_head(&own, plan->kv_count[t->rank]);
        break;
    }
    return own;
}

int trainee_norm(struct trainee *t, double *norm, struct error *e) {
    const struct kernels *ops = t->ctx->ops;
    ops->scale(t->ctx, t->scalar, 1, 0);
    for (int i = 0; i < t->n_params && !kctx_failed(t->ctx); i++) {
        const struct train_param *p = &t->params[i];
        if (t->n_ranks > 1 && p->sum == GRAD_SHARED) sum_shared(t, p);
        /* A rank without columns (no FFN share) has no A, but every rank has B. */
        if (t->n_ranks > 1 && p->sum == GRAD_PARTIAL)
            comm_all_reduce(t->comm, p->g, p->rows, p->cols, DTYPE_F32);
        struct train_param own = spoken_for(t, p);
        if (p->g && floats_of(&own)) ops->sum_squares(t->ctx, t->scalar, own.g, floats_of(&own));
    }
    comm_all_reduce(t->comm, t->scalar, 1, 1, DTYPE_F32);
    float sum = 0;
    ops->download(t->ctx, &sum, t->scalar, sizeof sum);
    int err = ops->wait(t->ctx, e);
    *norm = sqrt((double)sum);
    return err;
}

/* Elements that one update unit goes over, about. */
enum { SLICE_FLOATS = 4 << 20 };

/* By whole sizes, so that all ranks cut alike. */
int trainee_cut_slices(struct trainee *t, struct error *e) {
    size_t sum = SLICE_FLOATS;
    t->slice_from = calloc((size_t)t->n_params + 1, sizeof *t->slice_from);
    if (!t->slice_from) return error_set(e, ERR_MEMORY, "no memory for parameters");
    for (int i = 0; i < t->n_params; i++) {
        if (sum >= SLICE_FLOATS) {
            t->slice_from[t->n_slices++] = i;
            sum = 0;
        }
        sum += (size_t)t->params[i].whole_rows * (size_t)t->params[i].whole_cols /
               (size_t)t->n_ranks;
    }
    t->slice_from[t->n_slices] = t->n_params;
    return 0;
}

int trainee_slices(const struct trainee *t) { return t->n_slices; }

int trainee_update(struct trainee *t, int slice, const struct adamw_params *params,
                   float grad_scale, struct error *e) {
    const struct kernels *ops = t->ctx->ops;
    for (int i = t->slice_from[slice]; i < t->slice_from[slice + 1]; i++) {
        const struct train_param *p = &t->params[i];
        struct adamw_params mine = *params;
        if (!p->decay) mine.weight_decay = 0;
        if (!p->p) continue;
        ops->adamw(t->ctx, p->p, p->g, p->m, p->v, floats_of(p), &mine, grad_scale);
        ops->scale(t->ctx, p->g, floats_of(p), 0);
    }
    return ops->wait(t->ctx, e);
}

void trainee_clear(struct trainee *t) {
    for (int i = 0; i < t->n_params; i++)
        if (t->params[i].g) t->ctx->ops->scale(t->ctx, t->params[i].g, floats_of(&t->params[i]), 0);
}

/* --- whole tensors ------------------------------------------------------------------------------- */

int trainee_tensor_count(const struct trainee *t) { return t->n_params; }

void trainee_tensor(const struct trainee *t, int index, struct train_tensor *out) {
    const struct train_param *p = &t->params[index];
    snprintf(out->name, sizeof out->name, "%s", p->name);
    out->rows = p->whole_rows;
    out->cols = p->whole_cols;
}

static dev_addr part_of(const struct train_param *p, enum train_part part) {
    switch (part) {
    case PART_VALUE: return p->p;
    case PART_M: return p->m;
    case PART_V: return p->v;
    case PART_GRAD: return p->g;
    }
    return 0;
}

/* Moves rows between the piece [rows, cols] and the whole [whole_rows, whole_cols]. */
static void move_rows(const struct train_param *p, float *piece, float *whole, bool out) {
    for (int32_t r = 0; r < p->rows; r++) {
        float *a = piece + (size_t)r * (size_t)p->cols + p->pad;
        float *b = whole + (size_t)(p->row0 + r) * (size_t)p->whole_cols + p->col0;
        if (out) memcpy(b, a, (size_t)p->own_cols * sizeof *a);
        else memcpy(a, b, (size_t)p->own_cols * sizeof *a);
    }
}

/* The piece is whole rows, so it needs no copy in between. */
static bool is_rows(const struct train_param *p) {
    return p->cols == p->whole_cols && p->own_cols == p->cols;
}

static size_t row_at(const struct train_param *p) {
    return (size_t)p->row0 * (size_t)p->whole_cols;
}

int trainee_get(struct trainee *t, int index, enum train_part part, float *whole, struct error *e) {
    struct train_param own = spoken_for(t, &t->params[index]);
    const struct train_param *p = &own;
    size_t bytes = floats_of(p) * sizeof(float);
    if (!p->p || bytes == 0) return 0;
    if (is_rows(p)) {
        t->ctx->ops->download(t->ctx, whole + row_at(p), part_of(p, part), bytes);
        return t->ctx->ops->wait(t->ctx, e);
    }
    float *piece = malloc(bytes);
    if (!piece) return error_set(e, ERR_MEMORY, "no memory to copy %s", p->name);
    t->ctx->ops->download(t->ctx, piece, part_of(p, part), bytes);
    int err = t->ctx->ops->wait(t->ctx, e);
    if (!err) move_rows(p, piece, whole, true);
    free(piece);
    return err;
}

int trainee_set(struct trainee *t, int index, enum train_part part, const float *whole,
                struct error *e) {
    const struct train_param *p = &t->params[index];
    size_t bytes = floats_of(p) * sizeof(float);
    if (!p->p) return 0;
    if (is_rows(p)) {
        t->ctx->ops->upload(t->ctx, part_of(p, part), whole + row_at(p), bytes);
        return t->ctx->ops->wait(t->ctx, e);
    }
    float *piece = calloc(1, bytes);
    if (!piece) return error_set(e, ERR_MEMORY, "no memory to copy %s", p->name);
    move_rows(p, piece, (float *)whole, false);
    t->ctx->ops->upload(t->ctx, part_of(p, part), piece, bytes);
    int err = t->ctx->ops->wait(t->ctx, e);
    free(piece);
    return err;
}
