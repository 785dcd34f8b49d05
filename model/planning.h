/* model/planning.h: what a model at a split costs each rank, without weights and without a device.
 *
 * Runs the real code (shard_load, model_forward, trainee_…) on the plan backend, one rank after the other
 * on the calling thread, so that it cannot drift from what it tells about. Nothing of the model's size is
 * allocated. Any thread. */
#ifndef TPD_MODEL_PLANNING_H
#define TPD_MODEL_PLANNING_H

#include "model/train.h"

/* What a step of some kind does on one rank. */
struct step_cost {
    int64_t rows;
    uint64_t bytes; /* that operations read and write */
    uint64_t flops;
    uint64_t received; /* bytes that come from other ranks (comm_received) */
};

struct rank_cost {
    struct mem_use peak; /* when the most was in use */
    struct step_cost prefill; /* the last chunk of a prompt that fills the context */
    struct step_cost decode;  /* a token of each sequence, all at the context's end */
    struct step_cost train;   /* an optimizer step */
};

struct plan_question {
    const struct model *model; /* an outline will do */
    const struct shard_plan *split;
    const struct device_figures *device; /* of each rank; NULL: as kernels_plan_open has it */
    struct shard_options serving;
    int32_t ctx, sequences;              /* that are decoded, in steps of serving.max_seqs */
    const struct train_options *train;   /* NULL: no training */
    int64_t micro_batches;               /* of an optimizer step */
};

int plan_rank(struct rank_cost *out, const struct plan_question *q, int rank, struct error *e);

/* What a rank holds for serving: its shard (the KV cache as `serving` has it), and the scratch memory of its
 * largest steps. */
int plan_shard(struct mem_use *out, const struct model *model, const struct shard_plan *split,
               const struct shard_options *serving, int rank, const struct device_figures *device,
               struct error *e);
/* use becomes what the rank holds with a second shard beside: both work in the same scratch memory. */
void plan_add_beside(struct mem_use *use, const struct mem_use *second);

/* What a trainee takes beside the serving shard. */
struct trainee_cost {
    size_t bytes; /* on the rank that takes most: what trainee_new takes, and the scratch memory of a step */
    size_t whole_floats, largest_floats; /* of all trained tensors, whole; of the largest */
};
int plan_trainee(struct trainee_cost *out, const struct model *model, const struct shard_plan *split,
                 const struct train_options *options, const struct device_figures *device,
                 struct error *e);

#endif
