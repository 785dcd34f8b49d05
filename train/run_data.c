/* A job's data: what of it is read, into how many steps it goes, and what is said of it. */
#include "train/run.h"

#include "base/file.h"
#include "train/cache.h"

#include <math.h>
#include <stdio.h>
#include <time.h>

/* What the tokens of data files may take, but for those of the running job. */
static const int64_t cache_bytes = (int64_t)8 << 30;

static int open_data(struct run *r, const char *path, const struct data_want *want,
                     struct dataset **out, struct error *e) {
    char cache[4200];
    const struct model_config *c = model_config(r->options->model);
    snprintf(cache, sizeof cache, "%s/cache", r->options->state_dir);
    int err = dir_make(cache, e);
    token_id eos = tokenizer_eos(r->options->tokenizer);
    struct dataset_options o = {.tokenizer = r->options->tokenizer,
                                .chat = r->options->chat,
                                .cache_dir = cache,
                                .vocab = c->vocab,
                                .eos = eos >= 0 ? eos : c->n_eos ? c->eos_ids[0] : -1,
                                .seq_len = r->spec.seq_len,
                                .on_completion = r->spec.loss_on == LOSS_ON_COMPLETION,
                                .skip_bad = r->spec.skip_bad,
                                .threads = r->options->threads,
                                .want = *want};
    return err ? err : dataset_open(out, path, &o, e);
}

/* A job that was stopped reads what it read before; one that is new reads what is new, where it was
 * asked to, and from then on that. */
static int open_training_data(struct run *r, struct error *e) {
    struct data_want want = {.pinned = r->part, .growing = r->spec.since_last, .stop = &r->stop};
    struct dataset_report report;
    int64_t before;
    int err = r->spec.since_last && r->part.to == 0
                  ? jobs_learnt(r->options->jobs, r->spec.name, r->spec.data, &want.known, &before, e)
                  : 0;
    if (!err) err = open_data(r, r->spec.data, &want, &r->data, e);
    if (err || r->part.to > 0) return err;
    dataset_report(r->data, &report);
    r->part = report.part;
    return jobs_set_part(r->options->jobs, r->id, &r->part, e);
}

int run_read_data(void *arg, struct error *e) {
    struct run *r = arg;
    char cache[4200];
    struct timespec begin;
    clock_gettime(CLOCK_REALTIME_COARSE, &begin);
    int err = open_training_data(r, e);
    start_open(r);
    if (!err && r->spec.eval_data)
        err = open_data(r, r->spec.eval_data, &(struct data_want){.stop = &r->stop}, &r->eval_data, e);
    if (err) return err;
    snprintf(cache, sizeof cache, "%s/cache", r->options->state_dir);
    cache_trim(cache, cache_bytes, begin);
    return 0;
}

static void plan_views(struct run *r) {
    const struct job_spec *s = &r->spec;
    r->view = (struct dataset_view){.data = r->data,
                                    .eval_fraction = r->eval_data ? 0 : s->eval_fraction,
                                    .seed = s->seed,
                                    .seq_len = s->seq_len,
                                    .rows = r->sizes.options.max_rows,
                                    .packing = s->packing};
    r->eval_view = r->view;
    r->eval_view.eval = true;
    if (!r->eval_data) return;
    r->eval_view.data = r->eval_data;
    r->eval_view.eval_fraction = 1;
}

int run_open_epoch(struct run *r, int64_t number, struct error *e) {
    dataset_epoch_free(r->epoch);
    r->epoch = NULL;
    r->epoch_number = number;
    return dataset_epoch_new(&r->epoch, &r->view, number, e);
}

bool run_has_eval(const struct run *r) { return r->eval && dataset_epoch_batches(r->eval) > 0; }

bool run_cannot_judge(const struct run *r) {
    return r->spec.activate_as && r->spec.activate_if_better && !run_has_eval(r);
}

int run_plan_steps(struct run *r, struct error *e) {
    plan_views(r);
    int err = run_open_epoch(r, 0, e);
    if (!err && (r->eval_data || r->spec.eval_fraction > 0))
        err = dataset_epoch_new(&r->eval, &r->eval_view, 0, e);
    if (err) return err;
    int64_t batches = dataset_epoch_batches(r->epoch);
    if (batches == 0)
        return error_set(e, ERR_PARAMS, "the data has no example left to train on: all are in the "
                         "eval part (eval_fraction)");
    if (run_cannot_judge(r) && !r->spec.since_last)
        return error_set(e, ERR_PARAMS, "the data has too few examples to hold one out for judging: "
                         "give eval_data, or activate always");
    double steps = ceil((double)batches / (double)r->sizes.micro_per_step) * r->spec.epochs;
    r->steps = steps < 1 ? 1 : (int64_t)ceil(steps);
    if (r->spec.max_steps > 0 && r->spec.max_steps < r->steps) r->steps = r->spec.max_steps;
    return 0;
}

void run_tell_note(struct run *r, const char *note) {
    run_tell(r, json_pack("{s:s, s:s}", "event", "note", "note", note));
}

void run_tell_data(struct run *r, const struct dataset_report *d) {
    if (d->rewritten)
        run_tell_note(r, "the data no longer begins with what was learnt before (it was rotated or "
                     "rewritten): all of it is learnt");
    run_tell(r, json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "event",
                      "data", "form", d->form, "examples", (json_int_t)d->examples, "skipped",
                      (json_int_t)d->skipped, "cut", (json_int_t)d->cut, "untrained",
                      (json_int_t)d->untrained, "tokens", (json_int_t)d->tokens, "trained_tokens", (json_int_t)d->trained_tokens,
                      "steps", (json_int_t)r->steps, "eval_batches",
                      (json_int_t)(r->eval ? dataset_epoch_batches(r->eval) : 0), "from_byte",
                      (json_int_t)d->part.from, "to_byte", (json_int_t)d->part.to));
}

/* A growing file in which nothing was to be learnt: a success that leaves everything as it is. */
int run_end_without_news(struct run *r, const struct dataset_report *d) {
    run_tell_note(r, d->untrained || d->skipped ? "nothing can be learnt from what is new in the data"
                                            : "nothing is new in the data");
    judge_nothing(r);
    return 0;
}

/* One new record cannot be held out and learnt: it waits for more. */
int run_leave_for_later(struct run *r, struct error *e) {
    run_tell_note(r, "what is new is too little to hold something out for judging: it is left for the next "
                 "time");
    r->part = (struct data_part){0};
    judge_nothing(r);
    return jobs_set_part(r->options->jobs, r->id, &r->part, e);
}
