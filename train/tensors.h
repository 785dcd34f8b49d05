/* train/tensors.h: the trained tensors of a job on their way between ranks and files: whole, but only a few
 * of them in host memory at a time.
 *
 * A piece is a tensor's value or one of its moments; pieces come in order. One end makes them: rank 0's
 * thread gathers them from the ranks, or they are read from a checkpoint. The other end takes one after
 * another: a task that writes a file, or rank 0's thread, which puts them onto the ranks. */
#ifndef TPD_TRAIN_TENSORS_H
#define TPD_TRAIN_TENSORS_H

#include "model/train.h"

#include <pthread.h>

struct store;

struct host_tensors {
    int n;                      /* tensors; 0 = not made */
    struct train_tensor *shape; /* [n] */
    int n_parts;                /* of what is under way: 3, or 1 for values alone */
    float **at;                 /* [3 n] piece i is part i % n_parts of tensor i / n_parts; NULL: not here */
    struct store *from;         /* the checkpoint that is read; NULL: pieces are gathered */
    int taken;                  /* pieces that were asked for */

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t moved;
    int ready;       /* pieces that were gathered */
    size_t floats;   /* in memory */
    bool stopped;    /* one of the ends has gone */
    void (*wake)(void *user); /* told when there is room again */
    void *user;
};

enum { HOST_FLOATS = 4 << 20 }; /* that are gathered ahead, about */

/* Shapes of what the trainee trains. */
int host_tensors_new(struct host_tensors *out, const struct trainee *of, struct error *e);
void host_tensors_free(struct host_tensors *t);
int host_pieces(const struct host_tensors *t);
size_t host_piece_floats(const struct host_tensors *t, int piece);
/* Memory for a piece, zeroed, at t->at[piece]. */
int host_piece_make(struct host_tensors *t, int piece, struct error *e);

/* --- gathering: rank 0's thread ------------------------------------------------------------------ */
void host_tensors_begin(struct host_tensors *t, int n_parts);
/* Whether the next piece may be made now (or is not wanted any more: host_tensors_stopped). */
bool host_tensors_room(struct host_tensors *t);
void host_tensors_wait_room(struct host_tensors *t);
/* The next piece, which host_piece_make has made, is filled. */
void host_piece_ready(struct host_tensors *t);
/* Any thread: the other end need not wait. */
void host_tensors_stop(struct host_tensors *t);
bool host_tensors_stopped(struct host_tensors *t);

/* --- taking: one thread -------------------------------------------------------------------------- */
/* The next piece; it lives until the one after is asked for. NULL: ERR_CANCELLED when the other end has
 * gone, or ERR_MEMORY. */
const float *host_tensors_next(struct host_tensors *t, struct error *e);
/* Nothing more is taken: frees what is left. */
void host_tensors_end(struct host_tensors *t);

/* Where a job is in its data and numbers, beside the tensors. */
struct train_position {
    int64_t step;        /* optimizer steps done */
    int64_t epoch, batch; /* the next micro-batch */
    uint64_t micro;      /* micro-batches done, of all epochs */
    double best_eval;    /* NaN = none yet */
    int64_t best_step;   /* of best_eval; 0 = none yet */
    int64_t bad_evals;   /* evals since the best */
    int64_t evaluated_step; /* of the newest eval; 0 = none yet */
    double loss, eval_loss; /* newest, NaN = none */
};

/* Takes all pieces (values and moments) and writes dir/step-N (tensors.safetensors, position.json) by a
 * temporary name, fsync and rename, then removes all but the newest `keep` and the one of
 * position->best_step. */
int checkpoint_write(const char *dir, struct host_tensors *t, const struct train_position *position,
                     int keep, struct error *e);
/* Opens the newest whole checkpoint of dir, whose pieces (values and moments) are then taken from t; damaged
 * says what is wrong with a newer one, or has no kind. ERR_NOT_FOUND when there is none at all,
 * ERR_BAD_FILE when none is whole. */
int checkpoint_read(const char *dir, struct host_tensors *t, struct train_position *position,
                    struct error *damaged, struct error *e);
/* The same for the values alone of that step's checkpoint. */
int checkpoint_read_values(const char *dir, int64_t step, struct host_tensors *t, struct error *e);
/* For host_tensors_next: copies a piece out of the checkpoint that t reads. */
int checkpoint_copy_piece(const struct host_tensors *t, int piece, float *out, struct error *e);

#endif
