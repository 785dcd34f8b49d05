/* daemon/training.h: fine-tune jobs in the daemon: the store, the trainer that the engine runs
 * between its steps, and the clients that watch.
 *
 * training_open before the loop, training_close after it; the rest on the loop's thread but for
 * what says otherwise. */
#ifndef TPD_DAEMON_TRAINING_H
#define TPD_DAEMON_TRAINING_H

#include "daemon/mailbox.h"
#include "daemon/server.h"
#include "train/trainer.h"

#include <stdatomic.h>

struct watch;

struct training {
    struct server *server;
    struct jobs *jobs;             /* any thread */
    struct activator activator;    /* the daemon's adapters, for the trainer */
    struct trainer *trainer;       /* NULL while no model is open */
    pthread_mutex_t mutex;         /* of the two below */
    struct engine *engine;         /* the server's, for threads that wake it; or NULL */
    char *model_path;              /* of what is served; or NULL */
    char *state_dir, *data_dir;    /* never change; any thread */
    struct letter letter;          /* "something changed", on its way to the loop */
    _Atomic bool posted;
    struct watch *watches; /* daemon/watch.c */
};

/* Opens the store in state_dir (queues again what was running) and makes server->training. */
int training_open(struct server *server, const char *state_dir, struct error *e);
/* The mailbox is there: watchers hear of changes from now on, until training_quiet. */
void training_listen(struct server *server);
void training_quiet(struct server *server);
/* Makes the trainer for the open model; *out is what the engine runs. n_threads: for
 * reading data. */
int training_background(struct server *server, int n_threads, struct engine_background *out,
                        struct error *e);
/* The engine runs. */
void training_started(struct server *server);
/* The model goes: nothing wakes the engine any more. The trainer is the caller's, to be freed when the
 * engine has ended; NULL when there is none. */
struct trainer *training_end(struct server *server);
/* The model at path is open. When it is another than the last one (of an earlier daemon on this state_dir, too),
 * the jobs that wait are paused: they were not meant for it. Any thread. */
void training_note_model(struct server *server, const char *path);
/* The model's path, the caller's to free; NULL: none is served. Any thread. */
char *training_model_path(struct training *t);
/* Something in the queue changed: the trainer looks at it. */
void training_wake(struct server *server);
/* Over the last steps; 0 when no job runs. */
double training_tokens_per_s(const struct server *server);
/* After the engine has ended. */
void training_close(struct server *server);

/* {"job": id, "name", "state", …}; with_spec adds what was asked for. NULL without memory. Any
 * thread. */
json_t *job_json(const struct job *job, bool with_spec);
/* The job that a request names in `job`, by number or name. Any thread. */
int job_named(struct jobs *jobs, const json_t *params, struct job *out, struct error *e);
/* {"cursor", "time", and the event's fields}. */
json_t *job_event_json(const struct job_event *event);

/* methods_finetune.c, for whoever else speaks of jobs. What a call does on the worker pool; changes: the
 * trainer is told afterwards. */
typedef int job_work(struct training *t, const json_t *params, json_t **result, struct error *e);
void training_call(struct call *call, job_work *work, bool changes);
/* finetune.submit. Worker pool. */
int training_submit(struct training *t, const json_t *params, json_t **result, struct error *e);
/* Cancels, pauses or resumes (JOB_QUEUED). Worker pool. */
int training_move(struct training *t, int64_t id, enum job_state to, struct error *e);

/* watch.c: something changed; the daemon drains. */
void watches_look(struct training *training);
void watches_end(struct training *training);

#endif
