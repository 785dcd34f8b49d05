#include "tests/unit/model_runner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct run {
    struct runner runner;
    struct runner_options options;
    runner_body *body;
    void *arg;
};

static void must(int err, const struct error *e, const char *what, const char *path) {
    if (!err) return;
    fprintf(stderr, "%s: %s: %s\n", path, what, e->message);
    abort();
}

static int load_unit(struct rank *rank, void *arg, struct error *e) {
    struct runner *r = arg;
    return shard_load((struct shard **)&rank->state, r->model, &r->plan, rank->ctx, rank->comm,
                      &r->options, e);
}

static int free_unit(struct rank *rank, void *arg, struct error *e) {
    (void)arg;
    (void)e;
    shard_free(rank->state);
    rank->state = NULL;
    return 0;
}

static int forward_unit(struct rank *rank, void *arg, struct error *e) {
    return model_forward(rank->state, arg, e);
}

static void drive(struct ranks *ranks, void *arg) {
    struct run *run = arg;
    struct runner *r = &run->runner;
    r->ranks = ranks;
    struct error e = {0};
    must(ranks_run(ranks, load_unit, r, &e), &e, "loading shards", model_path(r->model));
    run->body(r, run->arg);
    must(ranks_run(ranks, free_unit, r, &e), &e, "freeing shards", model_path(r->model));
}

void runner_run(const char *path, const struct runner_options *options, runner_body *body,
                void *arg) {
    struct error e = {0};
    struct run run = {.options = *options, .body = body, .arg = arg};
    struct runner *r = &run.runner;
    struct model *model = NULL;
    must(model_open(&model, path, &e), &e, "opening", path);
    r->model = model;
    r->adapter = -1;
    must(model_plan(model, options->tp, &r->plan, &e), &e, "planning", path);
    int32_t context = options->context ? options->context : 256;
    r->options = (struct shard_options){.max_rows = options->max_rows ? options->max_rows : 64,
                                        .max_out = options->max_rows ? options->max_rows : 64,
                                        .part_rows = options->part_rows,
                                        .max_seqs = 1,
                                        .block_size = 16,
                                        .max_blocks = (context + 15) / 16,
                                        .kv_blocks = (context + 15) / 16,
                                        .kv_type = options->kv_type};
    struct ranks_options ro = {.device = options->device, .n = options->tp};
    const char *gpus = getenv("TPD_TEST_GPUS");
    if (gpus && options->device == RANK_CPU) {
        ro.device = RANK_CUDA;
        ro.n_gpus = atoi(gpus);
        r->options.part_rows = 0; /* as the engine has it on GPUs */
        ro.same_bits = !options->library_products;
        for (int i = 0; i < ro.n_gpus; i++) ro.gpus[i] = i;
    }
    core_set_allowed(&ro.cores);
    struct ranks *ranks = NULL;
    must(ranks_start(&ranks, &ro, drive, &run, &e), &e, "starting ranks", path);
    ranks_join(ranks);
    model_free(model);
}

int runner_feed(struct runner *r, const int32_t *ids, int32_t pos0, int32_t n, int32_t prompt_len,
                float *out) {
    size_t vocab = (size_t)model_config(r->model)->vocab;
    int32_t *ints = malloc((size_t)(4 * r->options.max_rows + r->options.max_blocks) * sizeof *ints);
    int32_t *pos = ints, *len = pos + r->options.max_rows, *seq = len + r->options.max_rows;
    int32_t *rows = seq + r->options.max_rows, *blocks = rows + r->options.max_rows;
    for (int32_t i = 0; i < r->options.max_blocks; i++) blocks[i] = i;
    int err = 0;
    for (int32_t done = 0; done < n && !err; done += r->options.max_rows) {
        int32_t T = n - done < r->options.max_rows ? n - done : r->options.max_rows;
        for (int32_t i = 0; i < T; i++) {
            pos[i] = pos0 + done + i;
            len[i] = prompt_len ? prompt_len : pos[i] + 1;
            seq[i] = 0;
            rows[i] = i;
        }
        struct step step = {.n_rows = T,
                            .n_seqs = 1,
                            .n_out = out ? T : 0,
                            .ids = ids + done,
                            .pos = pos,
                            .len = len,
                            .seq = seq,
                            .blocks = blocks,
                            .adapter = &r->adapter,
                            .out_rows = rows,
                            .logits = out ? out + (size_t)done * vocab : NULL};
        err = ranks_run(r->ranks, forward_unit, &step, &r->error);
    }
    free(ints);
    return err;
}

bool runner_wants(const char *variable, const char *name) {
    const char *only = getenv(variable);
    char padded[512], word[300];
    if (!only) return true;
    snprintf(padded, sizeof padded, " %s ", only);
    snprintf(word, sizeof word, " %s ", name);
    return strstr(padded, word) != NULL;
}

bool runner_wants_number(const char *variable, int n) {
    char name[16];
    snprintf(name, sizeof name, "%d", n);
    return runner_wants(variable, name);
}
