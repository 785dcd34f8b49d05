/* A job's way from data to result, unit by unit. */
#include "train/run.h"

#include "base/file.h"
#include "model/hf_dir.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- units on the ranks -------------------------------------------------------------------------- */

struct order {
    struct run *run;
    enum {
        ORDER_NEW, ORDER_FREE, ORDER_BEGIN, ORDER_FORWARD, ORDER_LOSS_CHUNK, ORDER_LOSS, ORDER_BACKWARD, ORDER_END,
        ORDER_NORM, ORDER_UPDATE, ORDER_CLEAR, ORDER_GET, ORDER_SET
    } what;
    int index;
    struct train_options options;
    struct train_batch batch;
    struct adamw_params adamw;
    double result; /* of rank 0 */
};

static enum train_part part_of(const struct run *r, int piece) {
    return (enum train_part)(piece % r->host.n_parts);
}

static int obey(struct rank *rank, void *arg, struct error *e) {
    struct order *o = arg;
    struct run *r = o->run;
    struct trainee **mine = &r->on_rank[rank->index], *t = *mine;
    double result = 0;
    int err = 0;
    switch (o->what) {
    case ORDER_NEW: err = trainee_new(mine, r->options->model, rank->state, &o->options, e); break;
    case ORDER_FREE:
        trainee_free(t);
        *mine = NULL;
        break;
    case ORDER_BEGIN: trainee_begin(t, &o->batch); break;
    case ORDER_FORWARD: trainee_forward(t, o->index); break;
    case ORDER_LOSS_CHUNK: trainee_loss_chunk(t, o->index); break;
    case ORDER_LOSS: err = trainee_loss(t, &result, e); break;
    case ORDER_BACKWARD: trainee_backward(t, o->index); break;
    case ORDER_END: err = trainee_end(t, e); break;
    case ORDER_NORM: err = trainee_norm(t, &result, e); break;
    case ORDER_UPDATE:
        err = trainee_update(t, o->index, &o->adamw, (float)r->grad_scale, e);
        break;
    case ORDER_CLEAR: trainee_clear(t); break;
    case ORDER_GET:
        err = trainee_get(t, o->index / r->host.n_parts, part_of(r, o->index), r->host.at[o->index], e);
        break;
    case ORDER_SET:
        err = trainee_set(t, o->index / r->host.n_parts, part_of(r, o->index), r->host.at[o->index], e);
        break;
    }
    if (rank->index == 0) o->result = result;
    return err;
}

static int command(struct run *r, struct ranks *ranks, struct order *o, struct error *e) {
    o->run = r;
    return ranks_run(ranks, obey, o, e);
}

static int command_simple(struct run *r, struct ranks *ranks, int what, int index, double *result,
                          struct error *e) {
    struct order o = {.what = what, .index = index};
    int err = command(r, ranks, &o, e);
    if (result) *result = o.result;
    return err;
}

int run_put_piece(struct run *r, struct ranks *ranks, int index, struct error *e) {
    return command_simple(r, ranks, ORDER_SET, index, NULL, e);
}

/* --- the log -------------------------------------------------------------------------------------- */

void run_tell(struct run *r, json_t *fields) {
    if (fields) jobs_log(r->options->jobs, r->id, fields, NULL);
    if (r->options->on_event) r->options->on_event(r->options->user, r->id);
}

static void tell_progress(struct run *r) {
    jobs_progress(r->options->jobs, r->id, r->position.step, r->steps, r->position.loss,
                  r->position.eval_loss, NULL);
}

static void gather(struct run *r, enum gather_for why) {
    r->gather_for = why;
    r->phase = RUN_GATHER;
    r->index = 0;
}

/* --- starting ------------------------------------------------------------------------------------- */

/* Bytes that each rank has left for a trainee. */
static size_t memory_left(struct ranks *ranks) {
    size_t least = SIZE_MAX;
    for (int i = 0; i < ranks_count(ranks); i++) {
        size_t left = ranks_memory_left(ranks, i);
        if (left < least) least = left;
    }
    return least;
}

/* What does not fit is refused here, by reckoning: on the CPU memory that was granted may turn out not to
 * be there, and then the whole daemon ends. "auto" checkpoints as few layers as it takes. */
static int fit(struct run *r, struct ranks *ranks, struct error *e) {
    struct train_options *o = &r->sizes.options;
    const struct model *model = r->options->model;
    bool choose = r->spec.grad_checkpointing == CHECKPOINTING_AUTO;
    struct shard_plan split;
    struct trainee_cost cost;
    struct device_figures device;
    size_t left = memory_left(ranks), room = job_room(left);
    const struct kctx *ctx = ranks_at(ranks, 0)->ctx;
    ctx->ops->figures(ctx, &device);
    int err = model_plan(model, ranks_count(ranks), &split, e);
    if (!err && choose)
        err = job_checkpoint_layers(&o->checkpoint_layers, &cost, model, &split, o, room,
                                    &device, e);
    else if (!err) err = plan_trainee(&cost, model, &split, o, &device, e);
    if (err) return err;
    size_t needed = job_bytes(&cost, split.n);
    if (needed <= room) return 0;
    err = error_set(e, ERR_MEMORY, "training needs %.1f MiB a rank beside the model and %.1f MiB are "
                    "left: %slower seq_len or batch_size, raise tp, or train an adapter (method lora) of "
                    "few targets", (double)needed / (1 << 20), (double)left / (1 << 20),
                    choose || o->checkpoint_layers ? "" : "set grad_checkpointing, ");
    error_note_number(e, "needed", (int64_t)needed);
    error_note_number(e, "free", (int64_t)left);
    return err;
}

int run_make_trainees(struct run *r, struct ranks *ranks, struct error *e) {
    /* job_sizes_of knows what "auto" is on a CPU; every GPU multiplies bf16 faster. */
    bool on_gpus = strcmp(ranks_at(ranks, 0)->ctx->ops->name, "cuda") == 0;
    if (on_gpus && r->spec.compute == COMPUTE_AUTO) r->sizes.options.bf16 = true;
    int err = fit(r, ranks, e);
    if (err) return err;
    struct order o = {.what = ORDER_NEW, .options = r->sizes.options};
    r->have_trainees = true;
    return command(r, ranks, &o, e);
}

void run_free_trainees(struct run *r, struct ranks *ranks) {
    if (r->have_trainees) command_simple(r, ranks, ORDER_FREE, 0, NULL, NULL);
    r->have_trainees = false;
}

/* The newest checkpoint into the trainees. */
static int restore(struct run *r, struct ranks *ranks, struct error *e) {
    struct train_position position;
    struct error damaged;
    char note[600];
    int err = checkpoint_read(r->dir, &r->host, &position, &damaged, e);
    if (!err && damaged.kind) {
        snprintf(note, sizeof note, "goes on from step %lld, for the newest checkpoint is not whole: %s",
                 (long long)position.step, damaged.message);
        run_tell_note(r, note);
    }
    for (int i = 0; !err && i < host_pieces(&r->host); i++)
        err = host_tensors_next(&r->host, e) ? run_put_piece(r, ranks, i, e) : -(int)ERR_MEMORY;
    host_tensors_end(&r->host);
    if (!err) err = command_simple(r, ranks, ORDER_CLEAR, 0, NULL, e);
    if (!err) r->position = position;
    return err;
}

/* From the newest checkpoint, or from the beginning: *save when that is to become a checkpoint, for it
 * could not be found again. */
static int find_place(struct run *r, struct ranks *ranks, bool *save, struct error *e) {
    int err = r->spec.resume ? restore(r, ranks, e) : dir_remove(r->dir, e);
    *save = false;
    if (r->spec.resume && !err)
        run_tell(r, json_pack("{s:s, s:I}", "event", "resume", "step", (json_int_t)r->position.step));
    else if (!err || err == -(int)ERR_NOT_FOUND) err = start_put(r, ranks, save, e);
    return err ? err : dir_make(r->dir, e);
}

static int setup(struct run *r, struct ranks *ranks, struct error *e) {
    struct dataset_report report;
    bool save;
    dataset_report(r->data, &report);
    if (report.examples == 0) return run_end_without_news(r, &report);
    int err = r->spec.method == TRAIN_FULL ? hf_companions_check(r->options->model, e) : 0;
    if (!err) err = run_plan_steps(r, e);
    if (!err && run_cannot_judge(r)) return run_leave_for_later(r, e);
    if (!err) err = run_make_trainees(r, ranks, e);
    if (!err) err = host_tensors_new(&r->host, r->on_rank[0], e);
    if (err) return err;
    r->host.wake = r->options->on_work;
    r->host.user = r->options->user;
    run_tell_data(r, &report);
    err = find_place(r, ranks, &save, e);
    r->saved_step = save ? -1 : r->position.step;
    tell_progress(r);
    r->phase = r->position.step >= r->steps ? RUN_STEP_END : RUN_STEP_BEGIN;
    if (save) gather(r, GATHER_CHECKPOINT);
    return err;
}

/* --- a step --------------------------------------------------------------------------------------- */

static double lr_of(const struct run *r) {
    const struct job_spec *s = &r->spec;
    double step = (double)r->position.step, warmup = floor(s->warmup_ratio * (double)r->steps + 0.5);
    if (step < warmup) return s->lr * (step + 1) / warmup;
    double left = fmax((double)r->steps - warmup, 1), done = (step - warmup) / left;
    switch (s->schedule) {
    case SCHEDULE_COSINE: return s->lr * 0.5 * (1 + cos(M_PI * done));
    case SCHEDULE_LINEAR: return s->lr * (1 - done);
    case SCHEDULE_CONSTANT: return s->lr;
    }
    return s->lr;
}

/* A step ends with its epoch, so that no example is seen twice in one. */
static int begin_step(struct run *r, struct error *e) {
    int err = r->epoch_number == r->position.epoch ? 0 : run_open_epoch(r, r->position.epoch, e);
    if (!err && r->position.batch >= dataset_epoch_batches(r->epoch)) {
        r->position.epoch++;
        r->position.batch = 0;
        err = run_open_epoch(r, r->position.epoch, e);
    }
    if (err) return err;
    int64_t left = dataset_epoch_batches(r->epoch) - r->position.batch;
    r->micro_in_step = left < r->sizes.micro_per_step ? left : r->sizes.micro_per_step;
    r->micro_of_step = 0;
    r->step_rows = 0;
    r->step_tokens = 0;
    r->step_loss = 0;
    r->step_began_ns = clock_ns();
    for (int64_t i = 0; i < r->micro_in_step; i++) {
        dataset_epoch_rows(r->epoch, r->position.batch + i, &r->rows);
        r->step_rows += r->rows.n_trained;
        r->step_tokens += r->rows.n_rows;
    }
    return 0;
}

static int begin_micro(struct run *r, struct ranks *ranks, const struct dataset_epoch *epoch,
                       int64_t batch, bool evaluate, struct error *e) {
    dataset_epoch_rows(epoch, batch, &r->rows);
    struct order o = {.what = ORDER_BEGIN,
                      .batch = {.n_rows = r->rows.n_rows,
                                .ids = r->rows.ids,
                                .pos = r->rows.pos,
                                .labels = r->rows.labels,
                                .first = r->rows.first,
                                .len = r->rows.len,
                                .weight = r->step_rows ? 1 / (float)r->step_rows : 0,
                                .number = r->position.micro + (uint64_t)r->micro_of_step,
                                .evaluate = evaluate}};
    return command(r, ranks, &o, e);
}

/* A loss that is no number: back to the newest checkpoint, once. */
static int roll_back(struct run *r, struct ranks *ranks, struct error *e) {
    struct error why;
    if (r->rolled_back)
        return error_set(e, ERR_DEVICE,
                         "the loss is not a number at step %lld, again after going back to the last "
                         "good checkpoint: lower lr or look at the data",
                         (long long)r->position.step + 1);
    r->rolled_back = true;
    int64_t step = r->position.step;
    int err = restore(r, ranks, &why);
    if (err)
        return error_set(e, ERR_DEVICE,
                         "the loss is not a number at step %lld and there is no checkpoint to go "
                         "back to: lower lr or look at the data",
                         (long long)step + 1);
    run_tell(r, json_pack("{s:s, s:I, s:I}", "event", "rollback", "from", (json_int_t)step + 1, "step",
                      (json_int_t)r->position.step));
    r->phase = RUN_STEP_BEGIN;
    return 0;
}

static int clip(struct run *r, struct ranks *ranks, struct error *e) {
    int err = command_simple(r, ranks, ORDER_NORM, 0, &r->grad_norm, e);
    if (err) return err;
    if (!isfinite(r->grad_norm) || !isfinite(r->step_loss)) return roll_back(r, ranks, e);
    double factor = r->spec.clip > 0 ? r->spec.clip / (r->grad_norm + 1e-6) : 1;
    r->grad_scale = factor < 1 ? factor : 1;
    r->lr = lr_of(r);
    r->phase = RUN_UPDATE;
    r->index = 0;
    return 0;
}

/* The books of a step that was just done. */
static void close_step(struct run *r) {
    double seconds = (double)(clock_ns() - r->step_began_ns) / 1e9;
    r->position.step++;
    r->position.batch += r->micro_in_step;
    r->position.micro += (uint64_t)r->micro_in_step;
    r->position.loss = r->step_rows ? r->step_loss / r->step_rows : 0;
    r->tokens_per_s = (double)r->step_tokens / seconds;
    double eta = (double)(r->steps - r->position.step) * seconds;
    tell_progress(r);
    run_tell(r, json_pack("{s:s, s:I, s:I, s:f, s:f, s:f, s:I, s:f, s:f}", "event", "step", "step",
                      (json_int_t)r->position.step, "steps", (json_int_t)r->steps, "loss",
                      r->position.loss, "lr", r->lr, "grad_norm", r->grad_norm, "tokens",
                      (json_int_t)r->step_tokens, "tokens_per_s", r->tokens_per_s, "eta_s", eta));
}

static int update(struct run *r, struct ranks *ranks, struct error *e) {
    const struct job_spec *s = &r->spec;
    double n = (double)r->position.step + 1;
    struct order o = {.what = ORDER_UPDATE,
                      .index = r->index,
                      .adamw = {.lr = (float)r->lr,
                                .beta1 = (float)s->beta1,
                                .beta2 = (float)s->beta2,
                                .eps = (float)s->eps,
                                .weight_decay = (float)s->weight_decay,
                                .c1 = (float)(1 - pow(s->beta1, n)),
                                .c2 = (float)(1 - pow(s->beta2, n))}};
    int err = command(r, ranks, &o, e);
    if (err || ++r->index < trainee_slices(r->on_rank[0])) return err;
    close_step(r);
    r->phase = RUN_STEP_END;
    return 0;
}

static bool due(int64_t step, int64_t every) { return every > 0 && step % every == 0; }

void run_begin_eval(struct run *r) {
    r->phase = RUN_EVAL_BEGIN;
    r->eval_at = 0;
    r->eval_sum = 0;
    r->eval_rows = 0;
}

static bool best_is_older(const struct run *r) {
    return r->spec.result_best && r->position.best_step > 0 &&
           r->position.best_step != r->position.step;
}

/* What follows a step, an eval or a checkpoint: eval, then save, then on. */
static void choose_next(struct run *r) {
    const struct job_spec *s = &r->spec;
    int64_t step = r->position.step;
    bool stop_early = s->patience > 0 && r->position.bad_evals >= s->patience;
    bool last = step >= r->steps || stop_early;
    bool best = step == r->position.best_step;
    if (run_has_eval(r) && step != r->position.evaluated_step && (last || due(step, s->eval_every)))
        run_begin_eval(r);
    else if (step != r->saved_step && (last || best || due(step, s->save_every)))
        gather(r, GATHER_CHECKPOINT);
    else if (last) {
        gather(r, GATHER_RESULT);
    } else r->phase = RUN_STEP_BEGIN;
}

/* --- eval ------------------------------------------------------------------------------------------ */

static void close_eval(struct run *r) {
    double loss = r->eval_rows ? r->eval_sum / (double)r->eval_rows : NAN;
    if (r->judging) {
        judge_take_loss(r, loss);
        return;
    }
    struct train_position *p = &r->position;
    p->evaluated_step = p->step;
    p->eval_loss = loss;
    if (isfinite(loss) && !(loss >= p->best_eval)) {
        p->best_eval = loss;
        p->best_step = p->step;
        p->bad_evals = 0;
    } else p->bad_evals++;
    tell_progress(r);
    run_tell(r, json_pack("{s:s, s:I, s:o}", "event", "eval", "step", (json_int_t)r->position.step,
                      "eval_loss", isfinite(loss) ? json_real(loss) : json_null()));
    choose_next(r);
}

/* --- gathering and writing -------------------------------------------------------------------------- */

static int write_result(struct run *r, struct error *e) {
    char other[RESULT_PATH];
    int err = 0;
    r->result_eval_loss = r->position.eval_loss;
    if (best_is_older(r)) {
        err = checkpoint_read_values(r->dir, r->position.best_step, &r->host, e);
        r->result_eval_loss = r->position.best_eval;
    }
    snprintf(other, sizeof other, "%s/%s/%s-%lld", r->options->state_dir,
             r->spec.method == TRAIN_LORA ? "adapters" : "models", r->spec.name, (long long)r->id);
    return err ? err
               : result_write(r->out, other, r->id, &r->spec, r->options->model, &r->host, r->result,
                              e);
}

static int writing_task(void *arg, struct error *e) {
    struct run *r = arg;
    int err = r->gather_for == GATHER_RESULT
                  ? write_result(r, e)
                  : checkpoint_write(r->dir, &r->host, &r->position, r->spec.keep, e);
    host_tensors_stop(&r->host);
    return err;
}

static int close_writing(struct run *r, struct error *e) {
    int64_t step = r->position.step;
    if (r->gather_for == GATHER_RESULT) {
        run_tell(r, json_pack("{s:s, s:s, s:I}", "event", "result", "path", r->result, "step",
                              (json_int_t)(best_is_older(r) ? r->position.best_step : step)));
        return judge_begin(r, e);
    }
    r->saved_step = step;
    run_tell(r, json_pack("{s:s, s:I}", "event", "checkpoint", "step", (json_int_t)step));
    if (r->leaving) r->phase = RUN_OVER;
    else choose_next(r);
    return 0;
}

/* The best weights are read from their checkpoint, not gathered. */
static bool is_gathered(const struct run *r) {
    return r->gather_for == GATHER_CHECKPOINT || !best_is_older(r);
}

static int start_writing(struct run *r, struct error *e) {
    host_tensors_begin(&r->host, r->gather_for == GATHER_CHECKPOINT ? 3 : 1);
    int err = task_start(&r->task, writing_task, r, e);
    if (!err && !is_gathered(r)) r->phase = RUN_WRITING;
    return err;
}

/* Enough pieces for a unit's worth of copying, as long as the task that writes keeps up. */
static int gather_some(struct run *r, struct ranks *ranks, bool *idle, struct error *e) {
    struct host_tensors *t = &r->host;
    int err = r->task.running ? 0 : start_writing(r, e);
    if (err || r->phase == RUN_WRITING) return err;
    size_t floats = 0;
    while (r->index < host_pieces(t) && floats < HOST_FLOATS && !host_tensors_stopped(t)) {
        if (!host_tensors_room(t)) {
            *idle = floats == 0;
            return 0;
        }
        err = host_piece_make(t, r->index, e);
        if (!err) err = command_simple(r, ranks, ORDER_GET, r->index, NULL, e);
        if (err) return err;
        floats += host_piece_floats(t, r->index);
        host_piece_ready(t);
        r->index++;
    }
    if (r->index >= host_pieces(t) || host_tensors_stopped(t)) r->phase = RUN_WRITING;
    return 0;
}

static int wait_for_task(struct run *r, bool *idle, struct error *e) {
    int result;
    if (!task_poll(&r->task, &result, e)) {
        *idle = true;
        return 0;
    }
    if (r->phase == RUN_OPENING) judge_opened(r, result, e);
    else if (result) return result;
    else if (r->phase == RUN_WRITING) return close_writing(r, e);
    else r->phase = RUN_SETUP;
    return 0;
}

static bool has_unsaved(const struct run *r) {
    return r->host.n && r->position.step != r->saved_step;
}

/* The slices of a step's update belong together. */
static int finish_update(struct run *r, struct ranks *ranks, struct error *e) {
    int err = 0;
    while (!err && r->phase == RUN_UPDATE) err = update(r, ranks, e);
    return err;
}

/* A checkpoint of where it stands, waiting for the disk. */
static int save_now(struct run *r, struct ranks *ranks, struct error *e) {
    int err = 0;
    gather(r, GATHER_CHECKPOINT);
    while (!err && r->phase == RUN_GATHER) {
        bool full = false;
        err = gather_some(r, ranks, &full, e);
        if (full) host_tensors_wait_room(&r->host);
    }
    if (err) host_tensors_stop(&r->host);
    int written = r->task.running ? task_join(&r->task, err ? NULL : e) : 0;
    if (!err) err = written;
    if (!err) r->saved_step = r->position.step;
    return err;
}

int run_save(struct run *r, struct ranks *ranks, struct error *e) {
    atomic_store(&r->stop, true);
    if (r->task.running) {
        if (r->phase == RUN_GATHER) host_tensors_stop(&r->host); /* it is written anew below */
        int err = task_join(&r->task, e);
        bool writes = r->phase == RUN_WRITING;
        if (!writes && r->phase != RUN_GATHER) return 0; /* it read: nothing is lost */
        if (writes && err) return err;
        if (writes && r->gather_for == GATHER_CHECKPOINT) r->saved_step = r->position.step;
    }
    int err = finish_update(r, ranks, e);
    return err || !has_unsaved(r) ? err : save_now(r, ranks, e);
}

void run_leave(struct run *r, bool save) {
    atomic_store(&r->stop, true);
    r->leaving = true;
    r->leave_saved = save;
}

/* Ends what cannot be left half done, then saves where that is wanted. */
static int leave(struct run *r, struct ranks *ranks, bool *idle, struct error *e) {
    int ignored;
    bool checkpoint = r->gather_for == GATHER_CHECKPOINT;
    if (r->phase == RUN_WRITING && checkpoint) return wait_for_task(r, idle, e);
    if (r->phase == RUN_GATHER && checkpoint && r->leave_saved) return gather_some(r, ranks, idle, e);
    if (r->task.running) {
        host_tensors_stop(&r->host);
        *idle = !task_poll(&r->task, &ignored, NULL);
    } else if (!r->leave_saved || !has_unsaved(r)) r->phase = RUN_OVER;
    else if (r->phase == RUN_UPDATE) return update(r, ranks, e);
    else gather(r, GATHER_CHECKPOINT);
    return 0;
}

/* --- the machine ------------------------------------------------------------------------------------- */

/* Layer by layer up, or (down) from the last to the first; then `next`. */
static int layers(struct run *r, struct ranks *ranks, int what, enum run_phase next,
                  struct error *e) {
    bool down = what == ORDER_BACKWARD;
    int layer = down ? r->n_layers - 1 - r->index : r->index;
    int err = command_simple(r, ranks, what, layer, NULL, e);
    if (++r->index >= r->n_layers) {
        r->phase = next;
        r->index = 0;
    }
    return err;
}

/* One chunk of the loss; *done with the last, and then *loss is the micro-batch's. */
static int loss_chunk(struct run *r, struct ranks *ranks, bool *done, double *loss,
                      struct error *e) {
    int err = command_simple(r, ranks, ORDER_LOSS_CHUNK, r->index, NULL, e);
    *done = ++r->index >= trainee_loss_chunks(r->on_rank[0]);
    return err || !*done ? err : command_simple(r, ranks, ORDER_LOSS, 0, loss, e);
}

static int micro_end(struct run *r, struct ranks *ranks, struct error *e) {
    int err = command_simple(r, ranks, ORDER_END, 0, NULL, e);
    if (err) return err;
    if (++r->micro_of_step >= r->micro_in_step) {
        r->phase = RUN_NORM;
        return 0;
    }
    r->phase = RUN_FORWARD;
    return begin_micro(r, ranks, r->epoch, r->position.batch + r->micro_of_step, false, e);
}

static int eval_loss(struct run *r, struct ranks *ranks, struct error *e) {
    double loss;
    bool done;
    int err = loss_chunk(r, ranks, &done, &loss, e);
    if (err || !done) return err;
    r->eval_sum += loss;
    r->eval_rows += r->rows.n_trained;
    if (++r->eval_at < dataset_epoch_batches(r->eval)) r->phase = RUN_EVAL_BEGIN;
    else close_eval(r);
    return 0;
}

static int next_unit(struct run *r, struct ranks *ranks, bool *idle, struct error *e) {
    double loss;
    bool done;
    int err;
    switch (r->phase) {
    case RUN_READING:
    case RUN_OPENING:
    case RUN_WRITING: return wait_for_task(r, idle, e);
    case RUN_SETUP: return setup(r, ranks, e);
    case RUN_STEP_BEGIN:
        r->index = 0;
        r->phase = RUN_FORWARD;
        err = begin_step(r, e);
        return err ? err : begin_micro(r, ranks, r->epoch, r->position.batch, false, e);
    case RUN_FORWARD: return layers(r, ranks, ORDER_FORWARD, RUN_LOSS, e);
    case RUN_LOSS:
        err = loss_chunk(r, ranks, &done, &loss, e);
        if (err || !done) return err;
        r->step_loss += loss;
        r->phase = RUN_BACKWARD;
        r->index = 0;
        return 0;
    case RUN_BACKWARD: return layers(r, ranks, ORDER_BACKWARD, RUN_MICRO_END, e);
    case RUN_MICRO_END: return micro_end(r, ranks, e);
    case RUN_NORM: return clip(r, ranks, e);
    case RUN_UPDATE: return update(r, ranks, e);
    case RUN_STEP_END: choose_next(r); return 0;
    case RUN_EVAL_BEGIN:
        r->index = 0;
        r->phase = RUN_EVAL_FORWARD;
        return begin_micro(r, ranks, r->eval, r->eval_at, true, e);
    case RUN_EVAL_FORWARD: return layers(r, ranks, ORDER_FORWARD, RUN_EVAL_LOSS, e);
    case RUN_EVAL_LOSS: return eval_loss(r, ranks, e);
    case RUN_GATHER: return gather_some(r, ranks, idle, e);
    case RUN_JUDGE:
    case RUN_ACTIVATE:
    case RUN_FINISH: return judge_unit(r, ranks, idle, e);
    case RUN_OVER: return 0;
    }
    return 0;
}

int run_unit(struct run *r, struct ranks *ranks, bool *idle, struct error *e) {
    *idle = false;
    return r->leaving ? leave(r, ranks, idle, e) : next_unit(r, ranks, idle, e);
}

bool run_is_over(const struct run *r) { return r->phase == RUN_OVER; }

/* --- from start to end -------------------------------------------------------------------------------- */

static int alloc_rows(struct run *r, struct error *e) {
    size_t most = (size_t)r->sizes.options.max_rows;
    r->row_memory = malloc(5 * most * sizeof *r->row_memory);
    if (!r->row_memory) return error_set(e, ERR_MEMORY, "no memory for a micro-batch");
    int32_t **parts[] = {&r->rows.ids, &r->rows.labels, &r->rows.pos, &r->rows.first, &r->rows.len};
    for (size_t i = 0; i < 5; i++) *parts[i] = r->row_memory + i * most;
    return 0;
}

int run_new(struct run **out, const struct trainer_options *options, const struct job *job,
            struct error *e) {
    struct run *r = calloc(1, sizeof *r);
    if (!r) return error_set(e, ERR_MEMORY, "no memory for a job");
    r->options = options;
    r->id = job->id;
    r->part = job->part;
    r->n_layers = model_config(options->model)->n_layers;
    r->position = (struct train_position){.best_eval = NAN, .loss = NAN, .eval_loss = NAN};
    snprintf(r->dir, sizeof r->dir, "%s/jobs/%lld", options->state_dir, (long long)job->id);
    int err = job_spec_parse(&r->spec, job->spec, e);
    if (!err && r->spec.out) snprintf(r->out, sizeof r->out, "%s", r->spec.out);
    else if (!err)
        snprintf(r->out, sizeof r->out, "%s/%s/%s", options->state_dir,
                 r->spec.method == TRAIN_LORA ? "adapters" : "models", r->spec.name);
    if (!err) job_sizes_of(&r->sizes, &r->spec);
    if (!err) err = alloc_rows(r, e);
    r->task.wake = options->on_work;
    r->task.user = options->user;
    if (!err) start_choose(r);
    if (!err) err = task_start(&r->task, run_read_data, r, e);
    if (err) {
        run_free(r, NULL);
        return err;
    }
    *out = r;
    return 0;
}

void run_free(struct run *r, struct ranks *ranks) {
    if (!r) return;
    atomic_store(&r->stop, true);
    host_tensors_stop(&r->host);
    if (r->task.running) task_join(&r->task, NULL);
    if (ranks) run_free_trainees(r, ranks);
    dataset_epoch_free(r->epoch);
    dataset_epoch_free(r->eval);
    dataset_close(r->data);
    dataset_close(r->eval_data);
    adapter_close(r->start);
    adapter_close(r->adapter);
    adapter_close(r->against);
    host_tensors_free(&r->host);
    job_spec_free(&r->spec);
    free(r->row_memory);
    free(r);
}
