/* train/sizes.h: how large a job is: its micro-batches, what its ranks are told, and how many layers must
 * be computed again for it to fit. A job that runs and the planner both ask here. Any thread. */
#ifndef TPD_TRAIN_SIZES_H
#define TPD_TRAIN_SIZES_H

#include "model/planning.h"
#include "train/job.h"

struct job_sizes {
    int64_t micro_per_step;       /* micro-batches of an optimizer step, of options.max_rows rows */
    struct train_options options; /* checkpoint_layers 0 where grad_checkpointing is "auto" */
};

void job_sizes_of(struct job_sizes *out, const struct job_spec *spec);

/* Host memory of all ranks together, beside the devices', at most: trained tensors, whole, on their way to a
 * checkpoint (train/tensors.h). */
size_t job_host_bytes(const struct trainee_cost *cost);

/* Of the bytes that a rank has left, what a job may take: a little stays for what is not reckoned. */
size_t job_room(size_t left);
/* Bytes that a job takes of a rank: the trainee's, and its share of host memory. */
size_t job_bytes(const struct trainee_cost *cost, int n_ranks);

/* The fewest layers that must be computed again for a trainee to take no more than room bytes a rank
 * (host memory's share counted); all but the last when nothing fits. *cost: of the trainee, so made.
 * Rehearses it (model/planning.h): some milliseconds. */
int job_checkpoint_layers(int32_t *out, struct trainee_cost *cost, const struct model *model,
                          const struct shard_plan *split, const struct train_options *options,
                          size_t room, const struct device_figures *device, struct error *e);

#endif
