/* train/trainer.h: runs one job as units on the ranks, from data to result.
 *
 * The engine's driver calls trainer_unit between serving steps, on rank 0's thread; a unit is one
 * layer of a micro-batch, one chunk of the loss, one slice of the optimizer, or a checkpoint. Between
 * two units a job can be paused or cancelled. Everything that a job's numbers depend on is in its spec
 * and its checkpoint, so a job that was killed at any moment ends with the same bits. */
#ifndef TPD_TRAIN_TRAINER_H
#define TPD_TRAIN_TRAINER_H

#include "model/adapter.h"
#include "ranks/ranks.h"
#include "train/dataset.h"
#include "train/jobs.h"

struct trainer;

/* What requests get now, where a finished adapter would be used. */
struct incumbent {
    char path[4096];  /* of its adapter; "" = the base alone */
    char label[96];   /* "the base", "adapter NAME" */
    uint64_t version; /* changes with what it is */
};

/* A finished adapter that is to be used. */
struct activation {
    int64_t job;
    const char *name, *as, *path; /* of the job; as in the job; where the adapter is */
    struct adapter *adapter;      /* the same, opened; taken over when it is activated */
    uint64_t instead_of;          /* only while that version is what requests get */
    const struct job_outcome *outcome;
};

/* The daemon's adapters. Called on rank 0's thread, between steps. */
struct activator {
    void (*incumbent)(void *user, const char *as, struct incumbent *out);
    /* Puts the adapter on the ranks, then in one transaction makes the job done and its adapter the one
     * that is used. 0: done. 1: nothing was changed, for something else than instead_of is used now.
     * Else an error, and nothing was changed; ERR_CONFLICT: the job does not run any more. */
    int (*activate)(void *user, struct ranks *ranks, const struct activation *a, struct error *e);
    void *user;
};

struct trainer_options {
    const struct model *model;         /* borrowed */
    const struct tokenizer *tokenizer; /* borrowed */
    const struct chat *chat;           /* borrowed; NULL: no messages */
    struct jobs *jobs;                 /* borrowed */
    const char *state_dir; /* jobs/ID and results below it; a job's data path is absolute already */
    int threads;           /* for reading data */
    const struct activator *activator; /* borrowed; NULL: nothing is activated */
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
