/* finetune.watch: the events of a job as notifications, until it has ended.
 *
 * A watch reads the log on the worker pool, one read at a time, from its cursor on; a change that
 * comes meanwhile makes it read again. The loop alone touches a watch while it is not busy. */
#include "daemon/methods.h"
#include "daemon/rpc.h"
#include "daemon/training.h"

#include <stdlib.h>
#include <string.h>

enum { BATCH = 256 }; /* events of a read: far less than max_outbound */

struct watch {
    struct watch *prev, *next;
    struct call *call;
    int64_t after;    /* cursor of the last event that was sent */
    bool busy;        /* being read, or its events being sent */
    bool again, held; /* there may be more; the client does not read */
    bool ending;      /* the daemon drains */
    int rc;           /* of the read: */
    struct error error;
    struct job job;
    struct job_event *events;
    size_t n;
};

static void watch_free(struct watch *w) {
    struct training *t = w->call->server->training;
    if (w->prev) w->prev->next = w->next;
    else t->watches = w->next;
    if (w->next) w->next->prev = w->prev;
    w->call->state = NULL;
    w->call->work = NULL;
    job_free_fields(&w->job);
    jobs_events_free(w->events, w->n);
    free(w);
}

static void fail(struct watch *w, const struct error *e) {
    struct call *call = w->call;
    struct error copy = *e;
    watch_free(w);
    call_fail(call, &copy);
}

static void fail_draining(struct watch *w) {
    struct error e;
    error_set(&e, ERR_SHUTTING_DOWN,
              "the daemon is shutting down; the job goes on when it runs again");
    fail(w, &e);
}

/* The state first: then the events of an ended job are all there are. */
static void read_in_thread(struct call *call) {
    struct watch *w = call->state;
    struct jobs *jobs = call->server->training->jobs;
    w->rc = job_named(jobs, call->params, &w->job, &w->error);
    if (w->rc == 0)
        w->rc = jobs_events(jobs, w->job.id, w->after, BATCH, &w->events, &w->n, &w->error);
}

static void send_event(struct call *call, int64_t job, const struct job_event *event) {
    struct json_out out;
    if (!call->conn || !call->id) return;
    json_t *params = job_event_json(event);
    if (params) {
        json_object_set(params, "id", call->id);
        json_object_set_new(params, "job", json_integer(job));
    }
    rpc_begin_notify(&out, "job");
    json_out_json(&out, params);
    json_decref(params);
    rpc_end_notify(call, &out);
}

static void start_read(struct watch *w);

static void after_read(struct call *call) {
    struct watch *w = call->state;
    if (w->rc != 0) {
        fail(w, &w->error);
        return;
    }
    for (size_t i = 0; i < w->n; i++) {
        send_event(call, w->job.id, &w->events[i]);
        w->after = w->events[i].cursor;
    }
    bool more = w->n == BATCH;
    bool ended = call->cancelled || (job_state_ended(w->job.state) && !more);
    if (ended) {
        json_t *result = job_json(&w->job, false);
        watch_free(w);
        call_result(call, result);
        return;
    }
    /* From now on the job is meant by its number: a newer one may take its name. */
    json_object_set_new(call->params, "job", json_integer(w->job.id));
    job_free_fields(&w->job);
    jobs_events_free(w->events, w->n);
    w->events = NULL;
    w->n = 0;
    w->busy = false;
    if (w->ending) fail_draining(w);
    else if (more || w->again) start_read(w);
}

static void start_read(struct watch *w) {
    w->again = true;
    if (w->busy || w->held) return;
    w->again = false;
    w->busy = true;
    call_in_thread(w->call, read_in_thread, after_read);
}

static void on_cancel(struct call *call) {
    struct watch *w = call->state;
    w->held = false;
    start_read(w);
}

static void on_hold(struct call *call, bool hold) {
    struct watch *w = call->state;
    w->held = hold;
    if (!hold && w->again) start_read(w);
}

static const struct call_work work = {.cancel = on_cancel, .hold = on_hold};

void watches_look(struct training *training) {
    for (struct watch *w = training->watches; w; w = w->next) start_read(w);
}

void watches_end(struct training *training) {
    struct watch *next;
    for (struct watch *w = training->watches; w; w = next) {
        next = w->next;
        w->ending = true;
        if (!w->busy) fail_draining(w);
    }
}

void handle_finetune_watch(struct call *call) {
    struct training *t = call->server->training;
    struct watch *w = calloc(1, sizeof *w);
    /* The parameters are the call's own from here on: they are changed. */
    json_t *params = json_copy(call->params);
    if (!w || !params) {
        struct error e;
        free(w);
        json_decref(params);
        error_set(&e, ERR_MEMORY, "no memory for the request");
        call_fail(call, &e);
        return;
    }
    json_decref(call->params);
    call->params = params;
    w->call = call;
    w->after = (int64_t)json_number_value(json_object_get(params, "after"));
    w->next = t->watches;
    if (w->next) w->next->prev = w;
    t->watches = w;
    call->state = w;
    call->work = &work;
    start_read(w);
}
