/* What becomes of a finished job's adapter: judged against what it would replace, on the same eval rows,
 * and used if that is what the job asks for.
 *
 * The result is on the disk when this begins, and the job is not done before it ends. What the daemon
 * dies of in between changes nothing: the next start goes on from the last checkpoint, finds the result
 * and judges again. That the job is done and its adapter used is one transaction. */
#include "train/run.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void __attribute__((format(printf, 2, 3))) say(struct run *r, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(r->verdict, sizeof r->verdict, format, args);
    va_end(args);
}

/* The result stands as it is; only its use is given up. */
static void give_up(struct run *r, const struct error *why) {
    say(r, "not activated: %s", why->message);
    r->activated = 0;
    r->phase = RUN_FINISH;
}

/* --- opening ---------------------------------------------------------------------------------------- */

static int opening_task(void *arg, struct error *e) {
    struct run *r = arg;
    int err = r->adapter ? 0 : adapter_open(&r->adapter, r->options->model, r->result, e);
    if (!err && r->spec.activate_if_better && *r->incumbent.path)
        err = adapter_open(&r->against, r->options->model, r->incumbent.path, e);
    return err;
}

/* Also once more, when something else took the incumbent's place meanwhile. */
static int begin_opening(struct run *r, struct error *e) {
    const struct activator *a = r->options->activator;
    adapter_close(r->against);
    r->against = NULL;
    a->incumbent(a->user, r->spec.activate_as, &r->incumbent);
    r->phase = RUN_OPENING;
    return task_start(&r->task, opening_task, r, e);
}

int judge_begin(struct run *r, struct error *e) {
    r->activated = -1;
    r->incumbent_loss = NAN;
    r->phase = RUN_FINISH;
    if (!r->spec.activate_as || !r->options->activator) return 0;
    return begin_opening(r, e);
}

void judge_nothing(struct run *r) {
    r->result_eval_loss = r->incumbent_loss = NAN;
    r->activated = r->spec.activate_as ? 0 : -1;
    if (r->spec.activate_as) say(r, "not activated: there was nothing new to learn");
    r->phase = RUN_FINISH;
}

void judge_opened(struct run *r, int err, const struct error *e) {
    if (err) give_up(r, e);
    else r->phase = r->spec.activate_if_better ? RUN_JUDGE : RUN_ACTIVATE;
}

/* --- judging ---------------------------------------------------------------------------------------- */

/* A LoRA that has learnt nothing yet is the base; any other begins with the incumbent's values. */
static int put_incumbent(struct run *r, struct ranks *ranks, struct error *e) {
    struct train_options *o = &r->sizes.options; /* the job's own have served their purpose */
    if (r->against) {
        o->rank = adapter_rank(r->against);
        o->scale = adapter_scale(r->against);
        o->targets = adapter_targets(r->against);
    }
    run_free_trainees(r, ranks);
    host_tensors_free(&r->host);
    int err = run_make_trainees(r, ranks, e);
    if (err || !r->against) return err;
    struct host_tensors *t = &r->host;
    err = host_tensors_new(t, r->on_rank[0], e);
    if (!err) host_tensors_begin(t, 1);
    for (int i = 0; i < host_pieces(t) && !err; i++) {
        err = host_piece_make(t, i, e);
        if (err) break;
        adapter_read(r->against, t->shape[i].name, host_piece_floats(t, i), t->at[i]);
        err = run_put_piece(r, ranks, i, e);
    }
    if (!err) err = adapter_check(r->against, e);
    host_tensors_end(t);
    return err;
}

static void judge(struct run *r, struct ranks *ranks) {
    struct error e = {0};
    r->judging = true;
    if (put_incumbent(r, ranks, &e)) give_up(r, &e);
    else run_begin_eval(r);
}

void judge_take_loss(struct run *r, double loss) {
    double ours = r->result_eval_loss;
    r->incumbent_loss = loss;
    /* A loss that is no number is worse than any. */
    if (isfinite(ours) && !(ours >= loss)) {
        r->phase = RUN_ACTIVATE;
        return;
    }
    say(r, "not activated: its eval loss is %.4f, and %s has %.4f on the same rows", ours,
        r->incumbent.label, loss);
    r->activated = 0;
    r->phase = RUN_FINISH;
}

/* --- the end ---------------------------------------------------------------------------------------- */

static struct job_outcome outcome_of(const struct run *r) {
    return (struct job_outcome){.result = *r->result ? r->result : NULL,
                                .eval_loss = r->result_eval_loss,
                                .eval_loss_before = r->incumbent_loss,
                                .activated = r->activated,
                                .verdict = *r->verdict ? r->verdict : NULL};
}

static void say_activated(struct run *r) {
    const char *as = r->spec.activate_as;
    char role[80];
    if (strcmp(as, "default") == 0) snprintf(role, sizeof role, "the default");
    else snprintf(role, sizeof role, "adapter %s", as);
    if (!r->spec.activate_if_better) say(r, "activated as %s in place of %s", role, r->incumbent.label);
    else
        say(r, "activated as %s: its eval loss is %.4f, and %s had %.4f on the same rows", role,
            r->result_eval_loss, r->incumbent.label, r->incumbent_loss);
}

static int activate(struct run *r, struct ranks *ranks, bool *idle, struct error *e) {
    const struct activator *to = r->options->activator;
    struct error why = {0};
    r->activated = 1;
    say_activated(r);
    struct job_outcome outcome = outcome_of(r);
    struct activation a = {.job = r->id,
                           .name = r->spec.name,
                           .as = r->spec.activate_as,
                           .path = r->result,
                           .adapter = r->adapter,
                           .instead_of = r->incumbent.version,
                           .outcome = &outcome};
    int err = to->activate(to->user, ranks, &a, &why);
    if (err == 1) return begin_opening(r, e);
    if (err == -(int)ERR_CONFLICT) *idle = true; /* paused or cancelled: the trainer is told soon */
    else if (err) give_up(r, &why);
    else {
        r->adapter = NULL;
        r->phase = RUN_OVER;
    }
    return 0;
}

static int finish(struct run *r, bool *idle, struct error *e) {
    struct job_outcome outcome = outcome_of(r);
    int err = jobs_done(r->options->jobs, r->id, &outcome, NULL, NULL, e);
    if (err == -(int)ERR_CONFLICT) *idle = true;
    else if (!err) r->phase = RUN_OVER;
    return err == -(int)ERR_CONFLICT ? 0 : err;
}

int judge_unit(struct run *r, struct ranks *ranks, bool *idle, struct error *e) {
    if (r->phase == RUN_JUDGE) judge(r, ranks);
    else if (r->phase == RUN_ACTIVATE) return activate(r, ranks, idle, e);
    else return finish(r, idle, e);
    return 0;
}
