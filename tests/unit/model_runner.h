/* Runs a model's forward pass in tests: opens it, starts ranks, loads shards, calls a body on rank
 * 0's thread, frees everything. One sequence, whose KV blocks are 0, 1, 2, … With TPD_TEST_GPUS=n what would
 * run on the CPU runs on n (simulated) GPUs. */
#ifndef TPD_TESTS_MODEL_RUNNER_H
#define TPD_TESTS_MODEL_RUNNER_H

#include "model/model.h"
#include "ranks/ranks.h"

struct runner {
    const struct model *model;
    struct ranks *ranks;
    struct shard_plan plan;
    struct shard_options options;
    int32_t adapter;    /* slot that the sequence uses; -1 none */
    struct error error; /* of the last step */
};

struct runner_options {
    int tp;
    enum rank_device device;
    int32_t max_rows; /* 0 = 64: longer prompts go in chunks of it */
    int32_t part_rows; /* of struct shard_options */
    int32_t context;  /* 0 = 256 */
    enum dtype kv_type; /* DTYPE_F32 is 0 */
    bool library_products; /* on (simulated) GPUs: cuBLAS multiplies, not our own kernels */
};

typedef void runner_body(struct runner *r, void *arg);

/* Fails the test when the model can't be opened or loaded. */
void runner_run(const char *path, const struct runner_options *options, runner_body *body,
                void *arg);

/* Whether a test is to do what has this name or number: the environment variable names all, between spaces, and
 * without it all are wanted. */
bool runner_wants(const char *variable, const char *name);
bool runner_wants_number(const char *variable, int n);

/* Feeds n tokens at positions pos0 … ; prompt_len > 0 makes them prompt rows (step.len), 0 decoded
 * ones. Logits [n, vocab] of all of them into out (NULL: none wanted). Returns 0 or an error. */
int runner_feed(struct runner *r, const int32_t *ids, int32_t pos0, int32_t n, int32_t prompt_len,
                float *out);

#endif
