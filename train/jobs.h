/* train/jobs.h: the store of fine-tune jobs: SQLite (WAL) in state_dir/tpd.db.
 *
 * Survives everything: a state is in the database before anybody is told of it. One connection
 * under a mutex; any thread (calls take well under a millisecond, plus a sync for changes of
 * state). */
#ifndef TPD_TRAIN_JOBS_H
#define TPD_TRAIN_JOBS_H

#include "train/job.h"
#include "train/part.h"

struct jobs;

enum job_state { JOB_QUEUED, JOB_RUNNING, JOB_PAUSED, JOB_DONE, JOB_FAILED, JOB_CANCELLED };
const char *job_state_name(enum job_state state);
bool job_state_ended(enum job_state state); /* done, failed, cancelled */

struct job {
    int64_t id;
    char name[65];
    enum job_state state;
    json_t *spec; /* canonical */
    int64_t step, steps;
    double loss, eval_loss;         /* NaN = none yet; of a done job: its result's eval loss */
    char *error;                    /* of a failed job, or NULL */
    char *result;                   /* where its output is, or NULL */
    double eval_loss_before;        /* of what it was judged against; NaN = not judged */
    int activated;                  /* 1, 0, or -1: not asked for, or not yet decided */
    char *verdict;                  /* why, as a sentence, or NULL */
    double created, started, ended; /* seconds since 1970; 0 = not yet */
    double deadline;                /* the same; when it is to be paused, 0 = never */
    struct data_part part;          /* what it reads of its data; to 0 = it did not read yet */
};
void job_free_fields(struct job *job);

/* One line of a job's log: an event with its numbers ("step", "eval", "checkpoint", "note" …). Each
 * change of state is one too, written with it: {"event": "state", "state": "done"}. */
struct job_event {
    int64_t cursor; /* grows; `after` of finetune.log */
    double time;
    json_t *fields; /* {"event": "step", "step": 3, "loss": …} */
};

/* state_dir must exist. A file that is damaged, foreign or of a newer tpd is ERR_BAD_FILE. */
int jobs_open(struct jobs **out, const char *state_dir, struct error *e);
void jobs_close(struct jobs *jobs);
/* Calls listener after every change, on the thread that made it, with no lock held. Set it before
 * others use the store. */
void jobs_listen(struct jobs *jobs, void (*listener)(void *user), void *user);
/* Jobs that were running when the last daemon ended are queued again. Returns how many. */
int jobs_recover(struct jobs *jobs, struct error *e);

/* *id: the new job, or the live one with the same `once` key (then *existing is true). That one goes
 * on if it is paused, and if it does not run has the deadline of this spec. */
int jobs_submit(struct jobs *jobs, const struct job_spec *spec, int64_t *id, bool *existing,
                struct error *e);
/* Whether a job with this `once` key (or NULL: none) is queued, running or paused. */
bool jobs_live_once(struct jobs *jobs, const char *once);
/* The newest job with this `once` key among those of a number below `before`; ERR_NOT_FOUND. */
int jobs_last_once(struct jobs *jobs, const char *once, int64_t before, struct job *out,
                   struct error *e);
/* ERR_NOT_FOUND when there is none. id or, when id is 0, the newest job of that name. */
int jobs_get(struct jobs *jobs, int64_t id, const char *name, struct job *out, struct error *e);
/* The job that runs; ERR_NOT_FOUND when none does. */
int jobs_running(struct jobs *jobs, struct job *out, struct error *e);
/* Newest first; *out is an array to free with jobs_list_free. */
int jobs_list(struct jobs *jobs, struct job **out, size_t *n, struct error *e);
void jobs_list_free(struct job *list, size_t n);
/* The oldest queued job, made running; ERR_NOT_FOUND when none waits. */
int jobs_take(struct jobs *jobs, struct job *out, struct error *e);
/* Pauses the jobs, queued or running, whose deadline has come. */
int jobs_pause_late(struct jobs *jobs, struct error *e);
/* Moves a job if the move is legal (ERR_CONFLICT says what it is now): queued, running -> paused,
 * cancelled; paused -> queued (its deadline counts from now), cancelled; running -> done, failed,
 * queued. A job that is done has taught its name what it read. */
int jobs_move(struct jobs *jobs, int64_t id, enum job_state to, const char *error,
              const char *result, struct error *e);

/* How a job ended well. */
struct job_outcome {
    const char *result;
    double eval_loss, eval_loss_before; /* NaN = none */
    int activated;                      /* as in struct job */
    const char *verdict;                /* or NULL */
};
/* running -> done. keep (or NULL) replaces the text under key in the same transaction: a job is done
 * and its adapter in use, or neither. */
int jobs_done(struct jobs *jobs, int64_t id, const struct job_outcome *outcome, const char *key,
              const char *keep, struct error *e);
/* A text that belongs beside the jobs, under a key. *out is NULL when there is none, else the
 * caller's. */
int jobs_keep(struct jobs *jobs, const char *key, const char *text, struct error *e);
int jobs_kept(struct jobs *jobs, const char *key, char **out, struct error *e);
/* Where the newest done job of that name left its result; ERR_NOT_FOUND when none did. */
int jobs_result(struct jobs *jobs, const char *name, char **out, struct error *e);

int jobs_delete(struct jobs *jobs, int64_t id, struct error *e); /* ended ones only */
/* NaN leaves the loss that is there. */
int jobs_progress(struct jobs *jobs, int64_t id, int64_t step, int64_t steps, double loss,
                  double eval_loss, struct error *e);
/* What a job reads of its data, fixed when it first does. */
int jobs_set_part(struct jobs *jobs, int64_t id, const struct data_part *part, struct error *e);
/* What the last success of this name had read of a data file: from 0 to `to`, which is 0 when there
 * was none. *job: its number. */
int jobs_learnt(struct jobs *jobs, const char *name, const char *data, struct data_part *out,
                int64_t *job, struct error *e);
int jobs_log(struct jobs *jobs, int64_t id, json_t *fields /* taken */, struct error *e);
/* Events after a cursor, oldest first, at most max. */
int jobs_events(struct jobs *jobs, int64_t id, int64_t after, size_t max, struct job_event **out,
                size_t *n, struct error *e);
void jobs_events_free(struct job_event *events, size_t n);

#endif
