/* train/tensors.h: the trained tensors of a job in host memory, whole: what checkpoints and results are
 * written from and read into. */
#ifndef TPD_TRAIN_TENSORS_H
#define TPD_TRAIN_TENSORS_H

#include "model/train.h"

struct host_tensor {
    struct train_tensor shape;
    float *part[3]; /* PART_VALUE, PART_M, PART_V; NULL where not wanted */
};

struct host_tensors {
    int n;
    struct host_tensor *at;
};

/* Memory for all tensors of a trainee; with moments or the values alone. */
int host_tensors_new(struct host_tensors *out, const struct trainee *of, bool moments,
                     struct error *e);
void host_tensors_free(struct host_tensors *t);
size_t host_tensor_floats(const struct host_tensor *t);

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

/* Writes dir/step-N (tensors.safetensors, position.json) by a temporary name, fsync and rename, then
 * removes all but the newest `keep` and the one of position->best_step. */
int checkpoint_write(const char *dir, const struct host_tensors *t,
                     const struct train_position *position, int keep, struct error *e);
/* The newest whole checkpoint of dir into t; damaged says what is wrong with a newer one, or has no
 * kind. ERR_NOT_FOUND when there is none at all, ERR_BAD_FILE when none is whole. */
int checkpoint_read(const char *dir, struct host_tensors *t, struct train_position *position,
                    struct error *damaged, struct error *e);
/* The values (no moments) of that step's checkpoint. */
int checkpoint_read_values(const char *dir, int64_t step, struct host_tensors *t, struct error *e);

#endif
