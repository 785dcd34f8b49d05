/* model/model.h: a model on disk, its shards on the ranks, and the forward pass.
 *
 * `struct model` is the host's view: config, tensors, checked whole before any rank loads. Read-only
 * after model_open; any thread. `struct shard` is one rank's part: it lives on the rank's thread.
 */
#ifndef TPD_MODEL_MODEL_H
#define TPD_MODEL_MODEL_H

#include "formats/store.h"
#include "ipc/comm.h"
#include "model/config.h"
#include "model/plan.h"

struct model;

/* path: a Hugging Face directory or a .gguf file. Checks that every tensor the architecture needs is
 * there with the right shape and a type we compute with. */
int model_open(struct model **out, const char *path, struct error *e);
/* The same for a directory that has config.json but no weights yet: they are drawn from the seed, as
 * transformers begins a model of that class, and live in memory. ERR_CONFIG where there are weights. */
int model_open_new(struct model **out, const char *path, uint64_t seed, struct error *e);
void model_free(struct model *model);
/* A model's shapes alone, as config.json says them, for what counts and never computes (struct kernels,
 * counts_only): model_store is NULL. config: the parsed config.json; path is for messages. type: of all
 * weights, or -1 for what the configuration says in torch_dtype or dtype; *assumed: it says nothing,
 * and bf16 was taken. */
int model_outline(struct model **out, const json_t *config, const char *path, int type,
                  bool *assumed, struct error *e);
const struct model_config *model_config(const struct model *model);
const struct store *model_store(const struct model *model);
const char *model_path(const struct model *model);
/* Type of most of the weight bytes, for people. */
enum dtype model_dtype(const struct model *model);
/* Who holds what at tp n: shard_plan_make with the grain that the model's quant blocks ask for. */
int model_plan(const struct model *model, int n, struct shard_plan *out, struct error *e);
/* Bytes of weights in the file that the architecture uses. */
size_t model_weight_bytes(const struct model *model);

/* One rank's part of a model; every rank makes its own, on its thread. */
struct shard;

struct shard_options {
    int32_t max_rows;   /* rows of the largest step */
    int32_t part_rows;  /* rows of a step that go through a layer together: memory for what is within a
                           layer. 0: all; fewer where products gain nothing by more. Changes no bit */
    int32_t max_out;    /* rows whose logits a step may ask for */
    int32_t max_seqs;   /* sequences in a step */
    int32_t kv_blocks;  /* blocks of KV cache, the same on all ranks */
    int32_t block_size; /* positions in a block */
    int32_t max_blocks; /* blocks of the longest sequence */
    enum dtype kv_type; /* f32, f16, bf16; Q8_0 where head_dim is a multiple of 32 */
    bool narrow_activations; /* in model_forward alone: kernels.h */
    bool candidates;    /* tokens may be chosen from candidates where the device finds them: memory for that */
    const _Atomic bool *abandon; /* loading ends with ERR_CANCELLED when it becomes true; or NULL */
};

/* Bytes of KV cache that one block takes on the rank that holds most. */
size_t model_kv_block_bytes(const struct model *model, const struct shard_plan *plan,
                            int32_t block_size, enum dtype kv_type);

/* On the rank's thread: takes this rank's part of every tensor. */
int shard_load(struct shard **out, const struct model *model, const struct shard_plan *plan,
               struct kctx *ctx, struct comm *comm, const struct shard_options *options,
               struct error *e);
void shard_free(struct shard *shard);

/* What is wanted of a row's logits. */
struct logits_wish {
    bool whole; /* all of them; else the candidates */
    struct candidates_wish few;
};

/* One pass of the model over a batch of rows: immutable, the same for all ranks. Arrays are in host
 * memory. Rows of a sequence stand together and ascend by position. */
struct step {
    int32_t n_rows, n_seqs, n_out;
    const int32_t *ids;      /* [n_rows] tokens */
    const int32_t *pos;      /* [n_rows] positions */
    const int32_t *len;      /* [n_rows] length that dynamic rope scaling looks at: the prompt's length
                                for prompt rows, pos + 1 for generated ones */
    const int32_t *seq;      /* [n_rows] 0 … n_seqs-1, ascending */
    const int32_t *blocks;   /* [n_seqs, max_blocks] block tables */
    const int32_t *adapter;  /* [n_seqs] adapter slot of each sequence, -1 none; NULL: none at all */
    const int32_t *out_rows; /* [n_out] rows whose outcome is wanted, ascending */
    float *logits;           /* [n_out, vocab], filled on rank 0; NULL: not wanted */
    float *states;           /* [n_out, hidden] after the last norm, likewise */
    /* With logits: what is wanted of each row, and where its candidates go, on rank 0. A row's n stays as it was
     * where the whole row is there, because it was wanted or because this device finds none. NULL: whole rows. */
    const struct logits_wish *wishes; /* [n_out] */
    struct candidates *candidates;    /* [n_out] */
};

/* All ranks call it with the same step. On return logits, candidates and states are there (rank 0 has waited). */
int model_forward(struct shard *shard, const struct step *step, struct error *e);
/* The whole row of a step whose candidates did not do: all ranks call it, before the next step. row: of its n_out;
 * logits [vocab] is filled on rank 0. */
int model_whole_row(struct shard *shard, int32_t row, float *logits, struct error *e);

#endif
