/* model/trainee.h: what a learning rank holds. Private to model/. */
#ifndef TPD_MODEL_TRAINEE_H
#define TPD_MODEL_TRAINEE_H

#include "model/shard.h"
#include "model/train.h"

/* How a parameter's gradient stands after backward, and who counts it. */
enum grad_sum {
    GRAD_WHOLE,   /* the same on every rank: replicated, nothing to add; rank 0 counts it */
    GRAD_SPLIT,   /* each rank has its own rows or columns; each counts its own */
    GRAD_PARTIAL, /* replicated, a part of the sum on each rank: all-reduce; rank 0 counts it */
    GRAD_SHARED   /* rows of KV heads that several ranks hold: all-reduce over the whole tensor; the
                     first holder counts a head */
};

/* One parameter: a piece [rows, cols] of a tensor [whole_rows, whole_cols] at (row0, col0). */
struct train_param {
    char name[96];
    dev_addr p, g, m, v;
    int32_t rows, cols, row0, col0, whole_rows, whole_cols;
    int32_t own_cols; /* columns that are the tensor's; cols - own_cols are a quant block's foreign
                         ones, before (pad of them) and after: always zero */
    int32_t pad;
    enum grad_sum sum;
    bool decay;
};

/* A linear layer that learns: y = x W^T + bias + scale * (drop(x) A^T) B^T. */
struct train_linear {
    const struct weight *frozen; /* LoRA: the serving weight */
    dev_addr frozen_bias;
    struct train_param *w, *bias; /* full */
    struct train_param *a, *b;    /* LoRA, NULL when not a target */
    int32_t rows, cols;           /* of this rank */
    int32_t first_col, whole_cols; /* column 0 is this one of the whole input (keys dropout) */
    uint64_t key;                 /* of dropout: layer and matrix */
};

/* What backward needs of a layer's forward. fp32; with options.bf16 all layers work in one such set, and
 * what one of them must keep of it (all but x_in and lse) stands in a set of bf16 of its own. */
struct layer_acts {
    dev_addr x_in;         /* [own rows, d] */
    dev_addr q_raw, k_raw; /* qwen3: before the head norms */
    dev_addr q, k, v;      /* after rotation */
    dev_addr attn, lse;    /* [T, attn_cols], [T, H] */
    dev_addr x_mid;        /* [own rows, d] after attention */
    dev_addr gate, up;     /* [T, F] */
};

struct train_layer {
    struct train_linear matrix[MAT_COUNT];
    dev_addr norm[NORM_COUNT];             /* values, frozen or learning */
    struct train_param *norm_param[NORM_COUNT];
    struct layer_acts acts, kept;
};

struct trainee {
    struct train_options options;
    const struct model *model;
    const struct model_config *config;
    struct shard *serving;
    struct kctx *ctx;
    struct comm *comm;
    int rank, n_ranks;
    int32_t attn_cols, attn_first;

    struct train_param *params;
    int n_params, max_params;
    int *slice_from; /* [n_slices + 1] parameters where an update's slices begin */
    int n_slices;
    struct train_layer *layers;
    struct train_param *embed, *norm, *head; /* full; head == embed when tied */
    dev_addr norm_value;

    /* activations */
    struct layer_acts work;                /* options.bf16: what all layers work in */
    dev_addr x_out, dx;                    /* [own rows, d]: after the last layer; the stream's gradient */
    dev_addr hidden, dhidden, partial;     /* [T, d] */
    dev_addr dq, dk, dv, dattn, act, dact; /* as q, k, v, attn, gate */
    dev_addr cos_sin, ones;
    dev_addr low, dlow, dropped;           /* LoRA: [T, r] twice, [T, widest input] */
    dev_addr logits, stats, all_stats;     /* of loss_rows rows */
    dev_addr loss, weights;                /* [T] */
    dev_addr ids, pos, labels, first, len; /* [T] i32 */
    dev_addr scalar, shared;               /* one f32; a whole tensor of KV rows (GRAD_SHARED) */
    size_t shared_floats;

    struct train_batch batch; /* of the micro-batch that runs; arrays are not kept */
    /* Whose rows of the residual stream: of rank r offsets[r] … offsets[r+1]-1 with sequence parallel,
     * else all rows on every rank. Own rows: row0 … row0+n_own-1. */
    int32_t offsets[PLAN_MAX_RANKS + 1], row0, n_own;
    int32_t *host_labels;     /* [max_rows] */
    float *host_loss;
};

/* trainee_params.c */
int trainee_make_params(struct trainee *t, struct error *e);
/* train_step.c */
int trainee_cut_slices(struct trainee *t, struct error *e);
/* trainee_linear.c: y[T, rows] of one or more layers that read x[T, cols]; and backward, which
 * writes dx [T, cols] (the sum over ranks of a column-parallel layer is still to be taken). */
void train_linear_forward(struct trainee *t, const struct train_linear *const *l, const dev_addr *y,
                          int n, dev_addr x, int32_t T);
void train_linear_backward(struct trainee *t, const struct train_linear *const *l,
                           const dev_addr *dy, int n, dev_addr x, dev_addr dx, int32_t T);

#endif
