/* A learning linear layer, forward and backward side by side.
 *
 * y = x W^T + bias + s (x' A^T) B^T, with x' = dropout(x). With the incoming gradient dy:
 *   full:  dW += dy^T x, dbias += column sums of dy, dx += dy W
 *   LoRA:  z = x' A^T;  dB += s dy^T z;  dz = s dy B;  dA += dz^T x';  dx += dropout(dz A)
 * W of LoRA is frozen and may be quantised; its gradient is never formed. */
#include "model/trainee.h"

static bool keep_all(const struct trainee *t) {
    return t->options.dropout <= 0 || t->batch.evaluate;
}

/* The adapter's input: x, or x with elements dropped; the same elements on every rank that holds the
 * column, in forward and in backward. */
static dev_addr adapter_input(struct trainee *t, const struct train_linear *l, dev_addr x,
                              int32_t T) {
    if (keep_all(t)) return x;
    t->ctx->ops->dropout(t->ctx, t->dropped, x, T, l->cols, l->whole_cols, l->first_col,
                         t->options.dropout, t->options.seed ^ l->key, t->batch.number << 40);
    return t->dropped;
}

static void adapter_forward(struct trainee *t, const struct train_linear *l, dev_addr y, dev_addr x,
                            int32_t T) {
    const struct kernels *ops = t->ctx->ops;
    int32_t r = t->options.rank;
    dev_addr in = adapter_input(t, l, x, T);
    ops->matmul(t->ctx, t->low, T, r, l->cols, in, false, l->a->p, true, 1, 0);
    ops->matmul(t->ctx, y, T, l->rows, r, t->low, false, l->b->p, true, t->options.scale, 1);
}

void train_linear_forward(struct trainee *t, const struct train_linear *const *l, const dev_addr *y,
                          int n, dev_addr x, int32_t T) {
    const struct kernels *ops = t->ctx->ops;
    struct linear_job jobs[3];
    int n_jobs = 0;
    for (int i = 0; i < n; i++) {
        if (l[i]->frozen) {
            jobs[n_jobs++] = (struct linear_job){l[i]->frozen, l[i]->frozen_bias, y[i]};
            continue;
        }
        ops->matmul(t->ctx, y[i], T, l[i]->rows, l[i]->cols, x, false, l[i]->w->p, true, 1, 0);
        if (l[i]->bias)
            ops->matmul(t->ctx, y[i], T, l[i]->rows, 1, t->ones, false, l[i]->bias->p, false, 1, 1);
    }
    if (n_jobs) ops->linear(t->ctx, jobs, n_jobs, x, T);
    for (int i = 0; i < n; i++)
        if (l[i]->a) adapter_forward(t, l[i], y[i], x, T);
}

static void adapter_backward(struct trainee *t, const struct train_linear *l, dev_addr dy,
                             dev_addr x, dev_addr dx, int32_t T) {
    const struct kernels *ops = t->ctx->ops;
    int32_t r = t->options.rank;
    float s = t->options.scale;
    dev_addr in = adapter_input(t, l, x, T);
    ops->matmul(t->ctx, t->low, T, r, l->cols, in, false, l->a->p, true, 1, 0);
    ops->matmul(t->ctx, l->b->g, l->rows, r, T, dy, true, t->low, false, s, 1);
    ops->matmul(t->ctx, t->dlow, T, r, l->rows, dy, false, l->b->p, false, s, 0);
    ops->matmul(t->ctx, l->a->g, r, l->cols, T, t->dlow, true, in, false, 1, 1);
    if (keep_all(t)) {
        ops->matmul(t->ctx, dx, T, l->cols, r, t->dlow, false, l->a->p, false, 1, 1);
        return;
    }
    ops->matmul(t->ctx, t->dropped, T, l->cols, r, t->dlow, false, l->a->p, false, 1, 0);
    adapter_input(t, l, t->dropped, T);
    ops->axpy(t->ctx, dx, t->dropped, (size_t)T * (size_t)l->cols, 1);
}

void train_linear_backward(struct trainee *t, const struct train_linear *const *l,
                           const dev_addr *dy, int n, dev_addr x, dev_addr dx, int32_t T) {
    const struct kernels *ops = t->ctx->ops;
    struct linear_job jobs[3];
    int n_jobs = 0;
    for (int i = 0; i < n; i++)
        if (l[i]->frozen) jobs[n_jobs++] = (struct linear_job){l[i]->frozen, 0, dy[i]};
    if (n_jobs) ops->linear_dx(t->ctx, jobs, n_jobs, dx, T, false);
    for (int i = 0; i < n; i++) {
        if (l[i]->a) adapter_backward(t, l[i], dy[i], x, dx, T);
        if (l[i]->frozen) continue;
        ops->matmul(t->ctx, dx, T, l[i]->cols, l[i]->rows, dy[i], false, l[i]->w->p, false, 1,
                    i > 0);
        ops->matmul(t->ctx, l[i]->w->g, l[i]->rows, l[i]->cols, T, dy[i], true, x, false, 1, 1);
        if (l[i]->bias) ops->col_sum(t->ctx, l[i]->bias->g, dy[i], T, l[i]->rows);
    }
}
