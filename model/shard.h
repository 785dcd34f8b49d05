/* model/shard.h: one rank's part of a model, in its device's memory. Private to model/. */
#ifndef TPD_MODEL_SHARD_H
#define TPD_MODEL_SHARD_H

#include "model/adapter.h"
#include "model/tensors.h"

struct layer_weights {
    struct weight matrix[MAT_COUNT];
    dev_addr bias[MAT_COUNT]; /* 0 = none here: row-parallel biases are held by rank 0 alone */
    dev_addr norm[NORM_COUNT];
};

/* One target of an adapter: A [r, cols], B [rows, r] of this rank; 0 = none. */
struct low_rank {
    dev_addr a, b;
    int32_t rows, cols;
};

struct shard_adapter {
    int32_t r;
    float scale;
    struct low_rank *low; /* [layers, MAT_COUNT]; NULL = the slot is empty */
    dev_addr z;           /* [max_rows, r] */
};

struct shard {
    const struct model_config *config;
    const struct shard_plan *plan;
    struct kctx *ctx;
    struct comm *comm;
    struct shard_options options;
    int rank;

    /* this rank's share */
    int32_t n_heads, n_kv_heads, n_ffn, n_vocab;
    int32_t *kv_of_head; /* [n_heads] local KV head */
    /* o_proj holds whole quant blocks: its input is attn_cols wide, the rank's own heads begin at
     * column attn_first, and what lies outside them is zero for ever */
    int32_t attn_cols, attn_first;

    struct weight embed, head_own;
    const struct weight *head; /* &embed when tied */
    dev_addr norm;
    struct layer_weights *layers;
    struct rope_freqs rope;

    /* KV cache of all layers: for each layer its keys, then its values */
    dev_addr kv;
    size_t kv_half_bytes; /* bytes of one layer's keys */

    /* activations, f32: [max_rows, …], and of a layer's inside [part_rows, …] */
    dev_addr x, hidden, cos_sin;
    int32_t part_rows; /* options.part_rows, or all */
    dev_addr partial, attn;
    dev_addr between, q, k, v, gate, up; /* q, k, v; then gate, up: all of them in between */
    /* [max_out, …] f32 */
    dev_addr out_hidden, logits_part, logits;
    struct shard_adapter adapters[SHARD_ADAPTERS];
    /* Where tokens are chosen from candidates: this rank's [max_out], work space for them, and those of all ranks
     * [max_out, n], in device memory and on rank 0 in the host's. Else 0. */
    dev_addr few_part, few_work, few;
    struct candidates *few_host;
    /* the step's integers, as one upload */
    dev_addr ints;
    int32_t *ints_host;
};

/* The attn_first and attn_cols of a rank. */
void shard_attn_columns(const struct model *m, const struct shard_plan *plan, int rank,
                        int32_t *first, int32_t *cols);

/* y += what the adapters of the step's sequences add at this matrix; x and y are this rank's. */
void shard_adapters_add(struct shard *s, const struct step *step, int32_t layer, enum matrix m,
                        dev_addr x, dev_addr y);
void shard_adapters_free(struct shard *s);

#endif
