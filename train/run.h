/* train/run.h: one job that runs: what it has open, and where it stands. Private to train/. Driver only,
 * but for the tasks. */
#ifndef TPD_TRAIN_RUN_H
#define TPD_TRAIN_RUN_H

#include "train/sizes.h"
#include "train/result.h"
#include "train/task.h"
#include "train/tensors.h"
#include "train/trainer.h"

enum run_phase {
    RUN_READING,    /* a task opens the data */
    RUN_SETUP,      /* trainees on the ranks, the newest checkpoint */
    RUN_STEP_BEGIN, /* counts the step's rows, begins its first micro-batch */
    RUN_FORWARD,    /* layer */
    RUN_LOSS,       /* chunk */
    RUN_BACKWARD,   /* layer */
    RUN_MICRO_END,
    RUN_NORM,
    RUN_UPDATE,     /* slice */
    RUN_STEP_END,   /* books; what comes next */
    RUN_EVAL_BEGIN, /* a micro-batch of the eval part */
    RUN_EVAL_FORWARD,
    RUN_EVAL_LOSS,  /* chunk */
    RUN_GATHER,     /* pieces to host memory, while a task writes a checkpoint or the result of them */
    RUN_WRITING,    /* all are there, or nobody wants them */
    RUN_OPENING,    /* a task opens the result, and the adapter that it would replace */
    RUN_JUDGE,      /* what it would replace onto the ranks, for an eval of that */
    RUN_ACTIVATE,
    RUN_FINISH,     /* the job is done, whatever became of its adapter */
    RUN_OVER
};

/* Why tensors are gathered. */
enum gather_for { GATHER_CHECKPOINT, GATHER_RESULT };

struct run {
    const struct trainer_options *options;
    int64_t id;
    struct job_spec spec;
    char dir[4096]; /* state_dir/jobs/ID */
    char out[4096]; /* where the result is wanted */
    struct data_part part; /* of the data; to 0 = it was never read */

    char start_path[4096]; /* the adapter that the job goes on from (train/run_start.c); "" = none */
    struct adapter *start; /* opened; NULL when it cannot be, for the reason start_error */
    struct error start_error;

    struct dataset *data, *eval_data;
    struct dataset_view view, eval_view;
    struct dataset_epoch *epoch, *eval;
    int64_t epoch_number; /* of `epoch` */
    struct task task;
    _Atomic bool stop; /* the task that reads data: it is not wanted any more */

    struct trainee *on_rank[PLAN_MAX_RANKS];
    bool have_trainees;
    int32_t n_layers;
    struct job_sizes sizes;

    enum run_phase phase;
    int index; /* layer, chunk, slice or piece */
    struct train_position position;
    int64_t steps;
    int64_t micro_of_step, micro_in_step; /* done, and how many this step has */
    int32_t step_rows;                    /* trained rows of the step */
    struct dataset_rows rows;
    int32_t *row_memory;
    double step_loss, grad_norm, lr, grad_scale;
    int64_t step_tokens, step_began_ns;
    double tokens_per_s;
    bool rolled_back;

    int64_t eval_at;
    double eval_sum;
    int64_t eval_rows;
    int64_t saved_step;
    bool leaving, leave_saved; /* to be over soon, with a checkpoint */

    enum gather_for gather_for;
    struct host_tensors host;

    /* From the result on: train/run_judge.c. */
    char result[RESULT_PATH]; /* where it is; empty when there was nothing to learn */
    double result_eval_loss;
    struct incumbent incumbent;
    struct adapter *adapter, *against; /* the result's, and the incumbent's */
    bool judging;                      /* evals are of the incumbent */
    double incumbent_loss;
    int activated;
    char verdict[400];
};

/* Reads the spec of a job that was taken; the rest happens by units. */
int run_new(struct run **out, const struct trainer_options *options, const struct job *job,
            struct error *e);
/* Frees what the ranks hold too (ranks may be NULL when they hold nothing). */
void run_free(struct run *r, struct ranks *ranks);
/* One unit. *idle: waits for a task. Fails with the reason that ends the job. */
int run_unit(struct run *r, struct ranks *ranks, bool *idle, struct error *e);
bool run_is_over(const struct run *r);
/* Writes a checkpoint of the last whole step now, waiting for the disk. */
int run_save(struct run *r, struct ranks *ranks, struct error *e);
/* Goes on by units until it is over: at once, or after a checkpoint of the last whole step. */
void run_leave(struct run *r, bool save);

/* --- run.c for run_judge.c ---------------------------------------------------------------------- */
/* Trainees of r->sizes.options. */
int run_make_trainees(struct run *r, struct ranks *ranks, struct error *e);
void run_free_trainees(struct run *r, struct ranks *ranks);
/* Piece `index` of host, which is in memory, onto the ranks. */
int run_put_piece(struct run *r, struct ranks *ranks, int index, struct error *e);
void run_begin_eval(struct run *r);
/* A line of the job's log; fields are taken. */
void run_tell(struct run *r, json_t *fields);

/* --- run_data.c --------------------------------------------------------------------------------- */

/* A task: opens the data. */
int run_read_data(void *arg, struct error *e);
/* How many steps the data gives; ERR_PARAMS where there is nothing to train on, or to judge on. */
int run_plan_steps(struct run *r, struct error *e);
int run_open_epoch(struct run *r, int64_t number, struct error *e);
bool run_has_eval(const struct run *r);
/* The job is to be judged and nothing is held out for that. */
bool run_cannot_judge(const struct run *r);
void run_tell_note(struct run *r, const char *note);
void run_tell_data(struct run *r, const struct dataset_report *d);
/* Two ends without training: nothing is new, or too little of it. */
int run_end_without_news(struct run *r, const struct dataset_report *d);
int run_leave_for_later(struct run *r, struct error *e);

/* --- run_start.c -------------------------------------------------------------------------------- */
/* Finds out where a new job goes on from. Driver, before its task. */
void start_choose(struct run *r);
/* Opens it; on the task's thread. */
void start_open(struct run *r);
/* Puts it onto the ranks, where host has the job's tensors without values; *put: it was done. One that
 * does not fit is a note in the job's log. */
int start_put(struct run *r, struct ranks *ranks, bool *put, struct error *e);

/* --- run_judge.c -------------------------------------------------------------------------------- */
/* The result is written: what comes next. */
int judge_begin(struct run *r, struct error *e);
/* There was nothing to learn, so there is no result: a success that leaves everything as it is. */
void judge_nothing(struct run *r);
/* RUN_OPENING's task has ended, well or not. */
void judge_opened(struct run *r, int err, const struct error *e);
/* RUN_JUDGE, RUN_ACTIVATE, RUN_FINISH. */
int judge_unit(struct run *r, struct ranks *ranks, bool *idle, struct error *e);
/* The eval of the incumbent has ended. */
void judge_take_loss(struct run *r, double loss);

#endif
