/* Takes jobs from the store and runs them one after another, between serving steps. */
#include "train/run.h"

#include "base/file.h"
#include "base/log.h"

#include <malloc.h>
#include <stdlib.h>
#include <time.h>

struct trainer {
    struct trainer_options options;
    _Atomic bool poked;       /* look at the store: new jobs, or what others want of the running one */
    _Atomic double tokens_per_s;
    struct run *run;
    double deadline; /* of the run, on the wall clock; 0 = none */
    bool leaving; /* the run ends without its job: paused, cancelled */
    struct task nap;    /* the store could not be written (a full disk): it is tried again behind it */
    int64_t untold;     /* a failed job of which the store does not know yet; 0 = none */
    struct error why;   /* of untold */
    bool queue_told;    /* the log knows that jobs cannot be taken */
};

int trainer_new(struct trainer **out, const struct trainer_options *options, struct error *e) {
    struct trainer *t = calloc(1, sizeof *t);
    if (!t) return error_set(e, ERR_MEMORY, "no memory for the trainer");
    t->options = *options;
    atomic_store(&t->poked, true);
    *out = t;
    return 0;
}

void trainer_free(struct trainer *t) {
    if (!t) return;
    run_free(t->run, NULL);
    if (t->nap.running) task_join(&t->nap, NULL);
    free(t);
}

void trainer_wake(struct trainer *t) {
    atomic_store(&t->poked, true);
    if (t->options.on_work) t->options.on_work(t->options.user);
}

double trainer_tokens_per_s(struct trainer *t) { return atomic_load(&t->tokens_per_s); }

static void let_go(struct trainer *t, struct ranks *ranks) {
    run_free(t->run, ranks);
    malloc_trim(0); /* the allocator would keep what it took */
    t->run = NULL;
    t->leaving = false;
    atomic_store(&t->tokens_per_s, 0);
    atomic_store(&t->poked, true);
}

static void tell(struct trainer *t, int64_t id) {
    if (t->options.on_event) t->options.on_event(t->options.user, id);
}

static int sleep_task(void *arg, struct error *e) {
    (void)arg, (void)e;
    nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
    return 0;
}

static void take_nap(struct trainer *t) {
    struct error e;
    t->nap.wake = t->options.on_work;
    t->nap.user = t->options.user;
    if (!t->nap.running && task_start(&t->nap, sleep_task, NULL, &e)) log_error("%s", e.message);
}

/* The store may be unwritable for the very reason that the job failed for: then it is told later. */
static void tell_failure(struct trainer *t) {
    struct error e = {0};
    int64_t id = t->untold;
    int err = jobs_move(t->options.jobs, id, JOB_FAILED, t->why.message, NULL, &e);
    if (err && e.kind != ERR_CONFLICT && e.kind != ERR_NOT_FOUND) {
        take_nap(t);
        return;
    }
    t->untold = 0;
    atomic_store(&t->poked, true);
    tell(t, id);
}

static void fail_job(struct trainer *t, struct ranks *ranks, const struct error *why) {
    log_error("job %lld failed: %s", (long long)t->run->id, why->message);
    t->untold = t->run->id;
    t->why = *why;
    let_go(t, ranks);
    tell_failure(t);
}

/* The run has noted in the store that the job is done. */
static void close_job(struct trainer *t, struct ranks *ranks) {
    const struct run *r = t->run;
    int64_t id = r->id;
    if (!t->leaving)
        log_info("job %lld is done: %s%s%s", (long long)id, *r->result ? r->result : "no result",
                 *r->verdict ? "; " : "", r->verdict);
    let_go(t, ranks);
    tell(t, id);
}

/* The store says that somebody paused, cancelled or deleted the running job. */
static void heed(struct trainer *t) {
    struct job job;
    struct error e = {0};
    enum job_state state = JOB_CANCELLED; /* a deleted one was cancelled before */
    if (jobs_get(t->options.jobs, t->run->id, NULL, &job, &e) == 0) state = job.state;
    else if (e.kind != ERR_NOT_FOUND) return;
    job_free_fields(&job);
    if (state == JOB_RUNNING) return;
    log_info("job %lld is %s", (long long)t->run->id, job_state_name(state));
    t->leaving = true;
    run_leave(t->run, state != JOB_CANCELLED);
}

/* It is tried again every second: the same trouble is told once. */
static void tell_queue_trouble(struct trainer *t, const struct error *e) {
    if (!t->queue_told) log_error("the queue of jobs: %s", e->message);
    t->queue_told = true;
}

static bool take_job(struct trainer *t) {
    struct job job;
    struct error e = {0};
    int late = jobs_pause_late(t->options.jobs, &e);
    if (late) tell_queue_trouble(t, &e);
    if (jobs_take(t->options.jobs, &job, &e)) {
        if (e.kind == ERR_NOT_FOUND) {
            if (!late) t->queue_told = false;
            return false;
        }
        tell_queue_trouble(t, &e);
        take_nap(t);
        return false;
    }
    t->queue_told = false;
    int64_t id = job.id;
    log_info("job %lld (%s) begins", (long long)id, job.name);
    t->deadline = job.deadline;
    int err = run_new(&t->run, &t->options, &job, &e);
    job_free_fields(&job);
    if (err) {
        log_error("job %lld failed: %s", (long long)id, e.message);
        t->untold = id;
        t->why = e;
        tell_failure(t);
    } else tell(t, id);
    return true;
}

/* Whether the run's deadline has come; then the store has paused it. */
static bool is_late(const struct trainer *t) {
    struct timespec now;
    struct error e = {0};
    if (t->deadline <= 0) return false;
    clock_gettime(CLOCK_REALTIME, &now);
    if ((double)now.tv_sec + (double)now.tv_nsec / 1e9 < t->deadline) return false;
    if (jobs_pause_late(t->options.jobs, &e)) log_error("the queue of jobs: %s", e.message);
    return true;
}

bool trainer_unit(void *arg, struct ranks *ranks) {
    struct trainer *t = arg;
    int ignored;
    if (t->nap.running) {
        if (!task_poll(&t->nap, &ignored, NULL)) return false;
        atomic_store(&t->poked, true);
    }
    if (t->untold) {
        tell_failure(t);
        return !t->untold;
    }
    bool poked = atomic_exchange(&t->poked, false), idle = false;
    if (t->run && !t->leaving && (poked || is_late(t))) heed(t);
    if (!t->run) return poked && take_job(t);
    struct error e = {0};
    int err = run_unit(t->run, ranks, &idle, &e);
    atomic_store(&t->tokens_per_s, t->run->tokens_per_s);
    if (err && t->leaving) {
        log_error("job %lld: its last steps could not be saved: %s", (long long)t->run->id, e.message);
        close_job(t, ranks);
    } else if (err) fail_job(t, ranks, &e);
    else if (run_is_over(t->run)) close_job(t, ranks);
    return !idle;
}

void trainer_stop(void *arg, struct ranks *ranks) {
    struct trainer *t = arg;
    struct error e = {0};
    if (!t->run) return;
    int64_t id = t->run->id;
    if (run_save(t->run, ranks, &e))
        log_error("job %lld: its last steps could not be saved: %s", (long long)id, e.message);
    if (!t->leaving) jobs_move(t->options.jobs, id, JOB_QUEUED, NULL, NULL, NULL);
    let_go(t, ranks);
}
