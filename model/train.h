/* model/train.h: a model that learns, on one rank: parameters, forward and backward of a micro-batch
 * layer by layer, gradients, AdamW.
 *
 * `struct trainee` is one rank's part. With LoRA it borrows the serving shard's weights and owns only
 * A and B; with full fine-tuning it owns fp32 masters of everything. Every function is called on the
 * rank's thread, by all ranks with the same arguments: each is one unit. Functions that take an
 * error wait for the device; the others only enqueue.
 *
 * The order of a micro-batch: trainee_begin, trainee_forward(0 … L-1), trainee_loss_chunk(0 …),
 * trainee_loss, then
 * trainee_backward(L-1 … 0), trainee_end. After the last micro-batch of a step: trainee_norm, then
 * trainee_update over all slices. Math: docs/training.md.
 */
#ifndef TPD_MODEL_TRAIN_H
#define TPD_MODEL_TRAIN_H

#include "model/model.h"

enum train_method { TRAIN_LORA, TRAIN_FULL };

/* Bits of train_options.targets, in the order of the names "q_proj", "k_proj", "v_proj", "o_proj",
 * "gate_proj", "up_proj", "down_proj". */
enum { TRAIN_TARGETS = 7, TRAIN_ALL_TARGETS = (1 << TRAIN_TARGETS) - 1 };
const char *train_target_name(int target);

struct train_options {
    enum train_method method;
    int32_t rank;        /* LoRA: r */
    float scale;         /* LoRA: alpha / r, or alpha / sqrt(r) with rslora */
    float dropout;       /* LoRA: of the adapter's input */
    unsigned targets;    /* LoRA */
    int32_t max_rows;    /* rows of the largest micro-batch */
    int32_t loss_rows;   /* rows whose logits exist at once */
    int32_t checkpoint_layers; /* of the first so many layers only the input is kept, and backward
                                * computes the rest again; at most all but the last, which loses
                                * nothing by staying */
    bool bf16;           /* products in bf16 where the device multiplies that (sums stay fp32), and what
                          * backward needs of a layer kept in bf16 */
    bool sequence_parallel;    /* between the linear layers each rank holds its share of the rows */
    uint64_t seed;       /* of A's first values and of dropout */
};

/* Rows of packed sequences; arrays in host memory, [n_rows]. */
struct train_batch {
    int32_t n_rows;
    const int32_t *ids, *pos;
    const int32_t *labels;  /* the token that should follow; -1: no loss here */
    const int32_t *first;   /* the row where the row's sequence begins */
    const int32_t *len;     /* length of the row's sequence (dynamic rope scaling) */
    float weight;           /* what each trained row's loss counts: 1 / trained rows of the step */
    uint64_t number;        /* micro-batches since the job's start: keys dropout */
    bool evaluate;          /* forward and loss alone: no gradients, no dropout */
};

struct trainee;

int trainee_new(struct trainee **out, const struct model *model, struct shard *serving,
                const struct train_options *options, struct error *e);
void trainee_free(struct trainee *t);

void trainee_begin(struct trainee *t, const struct train_batch *batch);
void trainee_forward(struct trainee *t, int32_t layer);
/* The loss in chunks of loss_rows rows, 0 … n-1 in turn: logits, their loss and their gradient are made
 * and used at once. */
int32_t trainee_loss_chunks(const struct trainee *t);
void trainee_loss_chunk(struct trainee *t, int32_t chunk);
/* After the last chunk. *loss: the sum over trained rows of their loss (not weighted), the same on all
 * ranks. */
int trainee_loss(struct trainee *t, double *loss, struct error *e);
void trainee_backward(struct trainee *t, int32_t layer);
/* The embedding's gradient; waits for the device. */
int trainee_end(struct trainee *t, struct error *e);

/* Sums gradients that ranks hold in part; *norm: the global norm. Same on all ranks. */
int trainee_norm(struct trainee *t, double *norm, struct error *e);
/* Slices of about the same work, so that a unit stays short. */
int trainee_slices(const struct trainee *t);
/* AdamW on the parameters of a slice; gradients times grad_scale, then cleared. Weight decay is left
 * out for norms and biases. */
int trainee_update(struct trainee *t, int slice, const struct adamw_params *params,
                   float grad_scale, struct error *e);

/* Forgets gradients: a step is begun anew. */
void trainee_clear(struct trainee *t);

/* --- whole tensors, for files ------------------------------------------------------------------ */
/* What a parameter has: its value, AdamW's moments, and (for tests) its gradient. */
enum train_part { PART_VALUE, PART_M, PART_V, PART_GRAD };

struct train_tensor {
    char name[96];      /* "layers.3.self_attn.q_proj.lora_A", "layers.3.mlp.up_proj.weight" … */
    int32_t rows, cols; /* of the whole tensor; rows 1 for vectors */
};
int trainee_tensor_count(const struct trainee *t);
void trainee_tensor(const struct trainee *t, int index, struct train_tensor *out);
/* Copies this rank's part of a whole tensor [rows, cols] out to, or in from, host memory that all
 * ranks share; the parts do not overlap (what several ranks hold is written by one). */
int trainee_get(struct trainee *t, int index, enum train_part part, float *whole, struct error *e);
int trainee_set(struct trainee *t, int index, enum train_part part, const float *whole,
                struct error *e);

#endif
