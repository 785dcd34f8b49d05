#include "daemon/plan_report.h"

#include "base/file.h"
#include "base/json.h"
#include "base/machine.h"
#include "model/quant.h"
#include "serve/engine.h"
#include "train/sizes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The tables of a plan's own steps take a little memory for each position. */
static const int64_t max_positions = 1 << 28;

struct planner {
    const struct plan_context *context;
    const json_t *params;
    struct model *own; /* opened here; NULL when the loaded one is meant */
    const struct model *model;
    bool type_assumed;

    struct model *own_draft;
    const struct model *draft; /* NULL: there is none */
    struct shard_plan draft_split;

    struct shard_plan split;
    struct plan_question question;
    struct device_figures device;
    struct job_spec job;
    struct job_sizes sizes;
    struct trainee_cost trainee;
    bool trains;

    size_t memory;       /* a rank has */
    bool speed_known;
    struct speed speed;  /* of a rank */
    struct rank_cost cost[PLAN_MAX_RANKS];
};

static const json_t *param(const struct planner *p, const char *name) {
    const json_t *value = json_object_get(p->params, name);
    return json_is_null(value) ? NULL : value;
}

static int64_t integer(const struct planner *p, const char *name, int64_t absent) {
    const json_t *value = param(p, name);
    return value ? (int64_t)json_number_value(value) : absent;
}

/* --- the model --------------------------------------------------------------------------------- */

enum { CONFIG_MAX_BYTES = 4 << 20 };

static int outline_of_file(struct model **out, const char *path, int type, bool *type_assumed,
                           struct error *e) {
    json_t *config = json_read_file(path, CONFIG_MAX_BYTES, e);
    if (!config) return -(int)(e && e->kind ? e->kind : ERR_BAD_FILE);
    int err = model_outline(out, config, path, type, type_assumed, e);
    json_decref(config);
    return err;
}

static bool holds(const char *dir, const char *name) {
    char *path = path_join(dir, name);
    bool there = path && path_exists(path);
    free(path);
    return there;
}

/* A directory with weights is opened as the daemon would; without, or when another type is asked for, its
 * config.json is enough. */
static int open_path(struct model **out, const char *path, int type, bool *type_assumed,
                     struct error *e) {
    if (path_has_suffix(path, ".json")) return outline_of_file(out, path, type, type_assumed, e);
    bool weights = !path_is_dir(path) || holds(path, "model.safetensors") ||
                   holds(path, "model.safetensors.index.json") || holds(path, "model.gguf");
    if (weights && type < 0) return model_open(out, path, e);
    if (!path_is_dir(path) || !holds(path, "config.json"))
        return weights ? error_set(e, ERR_PARAMS, "%s: dtype is for a model whose config.json is "
                                   "given; a file of weights has types of its own", path)
                       : error_bad_file(e, path, NULL, NULL, "has no config.json: give a model "
                                        "directory, a .gguf file or a config.json");
    char *config = path_join(path, "config.json");
    int err = config ? outline_of_file(out, config, type, type_assumed, e)
                     : error_set(e, ERR_MEMORY, "no memory for a path");
    free(config);
    return err;
}

static int read_dtype(const struct planner *p, int *type, struct error *e) {
    const json_t *value = param(p, "dtype");
    *type = -1;
    if (!value) return 0;
    const char *word = json_word(value);
    if (word) *type = dtype_from_name(word);
    if (*type >= 0) return 0;
    error_set(e, ERR_PARAMS, "dtype must be a type of weights, such as bf16, q8_0 or q4_k");
    error_note(e, "field", "dtype");
    return -(int)ERR_PARAMS;
}

/* As the daemon would with `quant`. */
static int take_quant(struct planner *p, struct error *e) {
    const char *word = json_word(param(p, "quant"));
    int quant = word ? quant_from_name(word) : QUANT_NONE;
    if (quant <= QUANT_NONE) return 0;
    if (!p->own) return error_set(e, ERR_PARAMS, "quant is for a model that is named: give its path");
    return model_quantise_shapes(p->own, (enum quant)quant, e);
}

static int open_model(struct planner *p, struct error *e) {
    const json_t *config = param(p, "config");
    const char *path = json_word(param(p, "path"));
    int type, err = read_dtype(p, &type, e);
    if (err) return err;
    if (config) err = model_outline(&p->own, config, "config", type, &p->type_assumed, e);
    else if (path) err = open_path(&p->own, path, type, &p->type_assumed, e);
    else if (!p->context->loaded) err = error_set(e, ERR_PARAMS, "path (or config) is required");
    p->model = p->own ? p->own : p->context->loaded;
    return err ? err : take_quant(p, e);
}

/* The one that is named, or that of the loaded model. "" names none. */
static int open_draft(struct planner *p, struct error *e) {
    const char *path = json_word(param(p, "draft"));
    bool assumed;
    if (!path) {
        p->draft = p->own ? NULL : p->context->draft;
        return 0;
    }
    int err = *path ? open_path(&p->own_draft, path, -1, &assumed, e) : 0;
    p->draft = p->own_draft;
    return err ? error_prefix(e, "draft: ") : 0;
}

/* --- what is asked ----------------------------------------------------------------------------- */

static int split_draft(struct planner *p, int tp, struct error *e) {
    int draft_tp = (int)integer(p, "draft_tp", p->context->draft_tp);
    if (!p->draft) return 0;
    if (draft_tp > tp)
        return error_set(e, ERR_CONFIG, "draft_tp is %d, and there are %d ranks: choose 1 to %d", draft_tp,
                         tp, tp);
    int err = model_plan(p->draft, draft_tp, &p->draft_split, e);
    return err ? error_prefix(e, "draft: ") : 0;
}

static void ask_device(struct planner *p, int tp) {
    const char *word = json_word(param(p, "device"));
    bool gpus = word ? strcmp(word, "cuda") == 0 : p->context->gpus;
    int cores = p->context->cores / tp;
    if (gpus) kernels_cuda_figures(&p->device);
    else kernels_cpu_figures(&p->device, cores > 1 ? cores : 1);
    p->question.device = &p->device;
}

static int ask_serving(struct planner *p, struct error *e) {
    const char *kv = json_word(param(p, "kv_type"));
    int tp = (int)integer(p, "tp", p->context->tp);
    int32_t batch = (int32_t)integer(p, "batch", 1);
    struct plan_question *q = &p->question;
    q->ctx = (int32_t)integer(p, "ctx", model_config(p->model)->max_len);
    if ((int64_t)q->ctx * batch > max_positions)
        return error_set(e, ERR_PARAMS, "batch %d of ctx %d is more than the %lld positions that can be "
                         "planned for", batch, q->ctx, (long long)max_positions);
    ask_device(p, tp);
    struct engine_options options = {.model = p->model,
                                     .tp = tp,
                                     .n_gpus = p->device.kind == DEVICE_CUDA ? tp : 0,
                                     .ctx = q->ctx,
                                     .slots = batch,
                                     .narrow_activations = !p->context->f32_activations,
                                     .kv_type = kv ? kv_type_from_name(kv) : -1};
    int err = model_plan(p->model, tp, &p->split, e);
    if (!err) err = engine_shard_options(&q->serving, &options, e);
    if (!err) err = split_draft(p, tp, e);
    q->model = p->model;
    q->split = &p->split;
    q->sequences = batch;
    return err;
}

/* The job as finetune.submit would get it; a step of batch sequences of ctx where it does not say. */
static int ask_training(struct planner *p, struct error *e) {
    enum { MAX_SEQ_LEN = 1 << 18 };
    const json_t *train = param(p, "train"), *switched = param(p, "grad_checkpointing");
    json_t *job = json_pack("{s:s, s:i, s:i}", "data", "-", "batch_size", p->question.sequences,
                            "seq_len", p->question.ctx < 2 ? 2 : p->question.ctx);
    p->trains = train || param(p, "job");
    if (train) json_object_set(job, "method", (json_t *)train);
    if (switched) json_object_set(job, "grad_checkpointing", (json_t *)switched);
    if (param(p, "job")) json_object_update(job, (json_t *)param(p, "job"));
    int err = p->trains ? job_spec_parse(&p->job, job, e) : 0;
    json_decref(job);
    if (err || !p->trains) {
        p->trains = false;
        return err;
    }
    if (p->job.seq_len > MAX_SEQ_LEN)
        return error_set(e, ERR_PARAMS, "seq_len %d is more than the %d that can be planned for",
                         p->job.seq_len, MAX_SEQ_LEN);
    job_sizes_of(&p->sizes, &p->job);
    /* As jobs on GPUs have it (train/run.c). */
    if (p->device.kind == DEVICE_CUDA && p->job.compute == COMPUTE_AUTO) p->sizes.options.bf16 = true;
    p->question.train = &p->sizes.options;
    p->question.micro_batches = p->sizes.micro_per_step;
    return 0;
}

/* Figures in params are of a rank's device; those of the machine are shared by its ranks. */
static int ask_machine(struct planner *p, struct error *e) {
    const struct plan_context *c = p->context;
    int n = p->split.n;
    p->memory = c->memory ? c->memory : machine_memory_total() / (size_t)n;
    p->memory = (size_t)integer(p, "memory", (int64_t)p->memory);
    const json_t *bandwidth = param(p, "bandwidth"), *flops = param(p, "flops");
    if (bandwidth && flops) {
        p->speed = (struct speed){json_number_value(bandwidth), json_number_value(flops)};
        p->speed_known = true;
    } else if (bandwidth || flops) {
        return error_set(e, ERR_PARAMS, "bandwidth and flops are of one device: give both or neither");
    } else if (c->speed) {
        int err = c->speed(c->arg, &p->speed, e);
        if (err) return err;
        p->speed.bandwidth /= n;
        p->speed.flops /= n;
        p->speed_known = p->speed.bandwidth > 0;
    }
    return 0;
}

/* --- reckoning ---------------------------------------------------------------------------------- */

static size_t peak_of(const struct planner *p) {
    size_t most = 0;
    for (int r = 0; r < p->split.n; r++) {
        size_t used = mem_used(&p->cost[r].peak);
        if (used > most) most = used;
    }
    return most;
}

/* What a draft model holds on the rank, beside the model. */
static int add_draft(struct planner *p, const struct shard_options *serving, int rank, struct error *e) {
    if (!p->draft || rank >= p->draft_split.n) return 0;
    struct shard_options own = engine_draft_options(p->draft, serving);
    struct mem_use use;
    int err = plan_shard(&use, p->draft, &p->draft_split, &own, rank, &p->device, e);
    if (err) return error_prefix(e, "draft: ");
    plan_add_beside(&p->cost[rank].peak, &use);
    return 0;
}

static int plan_ranks(struct planner *p, const struct plan_question *q, struct error *e) {
    int err = 0;
    for (int r = 0; r < p->split.n && !err; r++) {
        err = plan_rank(&p->cost[r], q, r, e);
        if (!err) err = add_draft(p, &q->serving, r, e);
    }
    return err;
}

/* "auto" sees what serving leaves, as a job does. */
static int choose_layers(struct planner *p, struct error *e) {
    struct train_options *o = &p->sizes.options;
    struct plan_question serving = p->question;
    serving.train = NULL;
    int err = plan_ranks(p, &serving, e);
    if (err) return err;
    size_t peak = peak_of(p), left = p->memory > peak ? p->memory - peak : 0;
    return job_checkpoint_layers(&o->checkpoint_layers, &p->trainee, p->model, &p->split, o,
                                 job_room(left), &p->device, e);
}

static int reckon(struct planner *p, struct error *e) {
    int err = 0;
    if (p->trains && p->job.grad_checkpointing == CHECKPOINTING_AUTO) err = choose_layers(p, e);
    else if (p->trains)
        err = plan_trainee(&p->trainee, p->model, &p->split, &p->sizes.options, &p->device, e);
    return err ? err : plan_ranks(p, &p->question, e);
}

/* --- telling ------------------------------------------------------------------------------------ */

static json_t *ranks_json(const struct planner *p) {
    json_t *list = json_array();
    for (int r = 0; r < p->split.n; r++) {
        json_t *rank = json_pack("{s:i}", "rank", r);
        const struct mem_use *use = &p->cost[r].peak;
        for (int k = 0; k < MEM_KIND_COUNT; k++)
            json_object_set_new(rank, mem_kind_name((enum mem_kind)k),
                                json_integer((json_int_t)use->bytes[k]));
        json_object_set_new(rank, "total", json_integer((json_int_t)mem_used(use)));
        json_array_append_new(list, rank);
    }
    return list;
}

static double seconds_of(const struct planner *p, const struct step_cost *c) {
    return fmax((double)c->bytes / p->speed.bandwidth, (double)c->flops / p->speed.flops);
}

/* The step on the rank that takes longest: the others wait for it. */
static const struct step_cost *slowest(const struct planner *p, size_t member) {
    const struct step_cost *worst = NULL;
    for (int r = 0; r < p->split.n; r++) {
        const struct step_cost *c = (const void *)((const char *)&p->cost[r] + member);
        bool worse = !worst || (p->speed_known ? seconds_of(p, c) > seconds_of(p, worst)
                                               : c->bytes > worst->bytes);
        if (worse) worst = c;
    }
    return worst;
}

static void add_step(json_t *list, const struct planner *p, const char *name, size_t member) {
    const struct step_cost *c = slowest(p, member);
    json_t *step = json_pack("{s:s, s:I, s:I, s:I, s:I}", "step", name, "rows", (json_int_t)c->rows,
                             "bytes", (json_int_t)c->bytes, "flops", (json_int_t)c->flops,
                             "received_bytes", (json_int_t)c->received);
    if (p->speed_known) {
        double s = seconds_of(p, c);
        bool memory = (double)c->bytes / p->speed.bandwidth >= s;
        json_object_set_new(step, "bound", json_string(memory ? "memory" : "compute"));
        json_object_set_new(step, "expected_ms", json_real(s * 1e3));
        json_object_set_new(step, "tokens_per_s", json_real((double)c->rows / s));
    } else {
        static const char *const absent[] = {"bound", "expected_ms", "tokens_per_s"};
        for (int i = 0; i < 3; i++) json_object_set_new(step, absent[i], json_null());
    }
    json_array_append_new(list, step);
}

static json_t *steps_json(const struct planner *p) {
    json_t *list = json_array();
    add_step(list, p, "prefill", offsetof(struct rank_cost, prefill));
    add_step(list, p, "decode", offsetof(struct rank_cost, decode));
    if (p->trains) add_step(list, p, "train", offsetof(struct rank_cost, train));
    return list;
}

static json_t *train_json(const struct planner *p) {
    if (!p->trains) return json_null();
    const struct train_options *o = &p->sizes.options;
    int32_t layers = model_config(p->model)->n_layers;
    int32_t again = o->checkpoint_layers < layers ? o->checkpoint_layers : layers - 1;
    bool lora = o->method == TRAIN_LORA;
    return json_pack("{s:s, s:i, s:i, s:i, s:I, s:i, s:i}", "method", lora ? "lora" : "full", "r",
                     lora ? (int)o->rank : 0, "seq_len", (int)p->job.seq_len, "micro_batch_rows",
                     (int)o->max_rows, "micro_batches", (json_int_t)p->sizes.micro_per_step,
                     "checkpointed_layers", (int)again, "layers", (int)layers);
}

static json_t *draft_json(const struct planner *p) {
    if (!p->draft) return json_null();
    json_t *path = json_string(model_path(p->draft)); /* NULL when it is not UTF-8 */
    return json_pack("{s:o, s:s, s:I, s:i}", "path", path ? path : json_null(), "dtype",
                     dtype_info(model_dtype(p->draft))->name, "bytes",
                     (json_int_t)model_weight_bytes(p->draft), "tp", p->draft_split.n);
}

/* The engine's copies of a step's logits, and what a job's checkpoints pass through. */
static size_t host_bytes(const struct planner *p) {
    const struct shard_options *serving = &p->question.serving;
    size_t logits = (size_t)serving->max_out * (size_t)model_config(p->model)->vocab * sizeof(float);
    if (p->draft) logits += (size_t)serving->max_seqs * (size_t)model_config(p->draft)->vocab * sizeof(float);
    return logits + (p->trains ? job_host_bytes(&p->trainee) : 0);
}

static json_t *report_json(const struct planner *p) {
    const struct model_config *c = model_config(p->model);
    size_t host = host_bytes(p);
    size_t needed = peak_of(p) + host / (size_t)p->split.n;
    json_t *path = json_string(model_path(p->model)); /* NULL when it is not UTF-8 */
    json_t *out = json_pack(
        "{s:o, s:s, s:s, s:b, s:I, s:i, s:i, s:i, s:s, s:o, s:o, s:I, s:I, s:I, s:b, s:o}", "path",
        path ? path : json_null(), "architecture", arch_name(c->arch), "dtype",
        dtype_info(model_dtype(p->model))->name, "dtype_assumed", (int)p->type_assumed, "bytes",
        (json_int_t)model_weight_bytes(p->model), "tp", p->split.n, "ctx", (int)p->question.ctx,
        "batch", (int)p->question.sequences, "kv_type",
        dtype_info(p->question.serving.kv_type)->name, "train", train_json(p), "ranks", ranks_json(p),
        "host_bytes", (json_int_t)host, "needed_bytes", (json_int_t)needed, "memory",
        (json_int_t)p->memory, "fits", (int)(needed <= p->memory), "steps", steps_json(p));
    if (!out) return NULL;
    json_object_set_new(out, "draft", draft_json(p));
    json_object_set_new(out, "bandwidth", p->speed_known ? json_real(p->speed.bandwidth) : json_null());
    json_object_set_new(out, "flops_per_s", p->speed_known ? json_real(p->speed.flops) : json_null());
    return out;
}

int plan_report(json_t **out, const json_t *params, const struct plan_context *context,
                struct error *e) {
    struct planner *p = calloc(1, sizeof *p);
    if (!p) return error_set(e, ERR_MEMORY, "no memory for a plan");
    p->context = context;
    p->params = params;
    int err = open_model(p, e);
    if (!err) err = open_draft(p, e);
    if (!err) err = ask_serving(p, e);
    if (!err) err = ask_training(p, e);
    if (!err) err = ask_machine(p, e);
    if (!err) err = reckon(p, e);
    if (!err && !(*out = report_json(p))) err = error_set(e, ERR_MEMORY, "no memory for a plan");
    if (p->trains) job_spec_free(&p->job);
    model_free(p->own);
    model_free(p->own_draft);
    free(p);
    return err;
}
