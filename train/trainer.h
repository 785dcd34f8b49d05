/* train/trainer.h: runs one job as units on the ranks, from data to result.
 *
 * The engine's driver calls trainer_unit between serving steps, on rank 0's thread; a unit is one
 * layer of a micro-batch, one chunk of the loss, one slice of the optimizer, or a checkpoint. Between
 * two units a job can be paused or cancelled. Everything that a job's numbers depend on is in its spec
 * and its checkpoint, so a job that was killed at any moment ends with the same bits. */
#ifndef TPD_TRAIN_TRAINER_H
#define TPD_TRAIN_TRAINER_H

#include "ranks/ranks.h"
#include "train/dataset.h"
#include "train/jobs.h"

struct trainer;

struct trainer_options {
    const struct model *model;         /* borrowed */
    const struct tokenizer *tokenizer; /* borrowed */
    struct jobs *jobs;                 /* borrowed */
    const char *state_dir; /* jobs/ID and results below it; a job's data path is absolute already */
    int threads;           /* for reading data */
    /* Any thread: there is work again (wakes the engine's driver). */
    void (*on_work)(void *user);
    /* Told on rank 0's thread after each event of the job's log. */
    void (*on_event)(void *user, int64_t job);
    void *user;
};

int trainer_new(struct trainer **out, const struct trainer_options *options, struct error *e);
/* Not while the engine runs. */
void trainer_free(struct trainer *t);

/* Any thread: looks at the queue again (a job came, was paused, cancelled …). */
void trainer_wake(struct trainer *t);
/* Driver only: does one unit; rank->state is the serving shard. Failures end the job, not the caller.
 * Returns false when there was nothing to do. As struct engine_background wants it: arg is the trainer. */
bool trainer_unit(void *arg, struct ranks *ranks);
/* Driver only: saves a running job's state, so that the next start goes on from here. */
void trainer_stop(void *arg, struct ranks *ranks);

/* Any thread: trained tokens a second over the last steps, 0 when no job runs. */
double trainer_tokens_per_s(struct trainer *t);

#endif
