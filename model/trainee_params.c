/* Makes a learning rank's parameters: LoRA's A and B beside the serving weights, or fp32 masters of
 * everything. All ranks make the same list; a rank's piece may be empty. */
#include "model/trainee.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *train_target_name(int target) { return strrchr(matrix_rules[target].name, '.') + 1; }

/* Reserves value, gradient and moments of the next parameter. The list has room (max_params). */
static struct train_param *add_param(struct trainee *t, const struct train_param *shape,
                                     struct error *e) {
    struct train_param *p = &t->params[t->n_params++];
    *p = *shape;
    size_t bytes = (size_t)p->rows * (size_t)p->cols * sizeof(float);
    if (bytes == 0) return p;
    const struct kernels *ops = t->ctx->ops;
    dev_addr *parts[] = {&p->p, &p->g, &p->m, &p->v};
    const enum mem_kind kinds[] = {MEM_PARAMETERS, MEM_GRADIENTS, MEM_OPTIMIZER, MEM_OPTIMIZER};
    for (int i = 0; i < 4; i++)
        if (ops->mem_alloc(t->ctx, kinds[i], bytes, parts[i], e)) {
            error_prefix(e, "%s: ", p->name);
            return NULL;
        }
    return p;
}

/* Of a parameter that is cut along the rule's rows. */
static enum grad_sum rows_sum(const struct trainee *t, const struct matrix_rule *rule) {
    bool shared = rule->rows == AXIS_KV_HEADS && shard_plan_shares_kv(t->serving->plan);
    return shared ? GRAD_SHARED : GRAD_SPLIT;
}

/* The piece of an axis that this rank trains. */
static void piece(const struct trainee *t, enum axis axis, int32_t *from, int32_t *n) {
    int32_t to;
    axis_range(t->config, t->serving->plan, t->rank, axis, from, &to);
    *n = to - *from;
}

/* --- LoRA ---------------------------------------------------------------------------------------- */

/* Uniform in [-1, 1) by counter: the same for a tensor whatever the tp. */
static float uniform(uint64_t seed, uint64_t counter) {
    uint64_t x = seed * 0x9E3779B97F4A7C15u + counter * 0xD1342543DE82EF95u + 0x2545F4914F6CDD1Du;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    x ^= x >> 31;
    return (float)(x >> 40) * 0x1p-23f - 1;
}

/* Kaiming-uniform with a = sqrt(5), as PEFT begins: |A| < 1 / sqrt(inputs). */
static int init_a(struct trainee *t, const struct train_param *a, uint64_t key, struct error *e) {
    size_t n = (size_t)a->rows * (size_t)a->cols;
    float *values = calloc(n, sizeof *values), bound = 1 / sqrtf((float)a->whole_cols);
    if (!values) return error_set(e, ERR_MEMORY, "no memory to begin %s", a->name);
    for (int32_t r = 0; r < a->rows; r++)
        for (int32_t i = 0; i < a->own_cols; i++)
            values[(size_t)r * (size_t)a->cols + (size_t)(a->pad + i)] =
                bound * uniform(t->options.seed ^ key,
                                (uint64_t)r * (uint64_t)a->whole_cols + (uint64_t)(a->col0 + i));
    t->ctx->ops->upload(t->ctx, a->p, values, n * sizeof *values);
    free(values);
    return 0;
}

static int make_adapter(struct trainee *t, int32_t layer, enum matrix m, struct train_linear *l,
                        struct error *e) {
    const struct matrix_rule *rule = &matrix_rules[m];
    bool row_parallel = rule->rows == AXIS_HIDDEN;
    int32_t row0, rows, col0, cols;
    piece(t, rule->rows, &row0, &rows);
    piece(t, rule->cols, &col0, &cols);
    struct train_param a = {.rows = l->cols ? t->options.rank : 0,
                            .cols = l->cols,
                            .col0 = col0,
                            .whole_rows = t->options.rank,
                            .whole_cols = axis_size(t->config, rule->cols),
                            .own_cols = cols,
                            .pad = m == MAT_O ? t->attn_first : 0,
                            .sum = row_parallel ? GRAD_SPLIT : GRAD_PARTIAL,
                            .decay = true};
    struct train_param b = {.rows = rows,
                            .cols = t->options.rank,
                            .row0 = row0,
                            .whole_rows = axis_size(t->config, rule->rows),
                            .whole_cols = t->options.rank,
                            .own_cols = t->options.rank,
                            .sum = row_parallel ? GRAD_PARTIAL : rows_sum(t, rule),
                            .decay = true};
    snprintf(a.name, sizeof a.name, "base_model.model.model.layers.%d.%s.lora_A.weight", layer,
             rule->name);
    snprintf(b.name, sizeof b.name, "base_model.model.model.layers.%d.%s.lora_B.weight", layer,
             rule->name);
    /* A rank without columns still adds zeros to the sum of dB, so it holds B. */
    if (!(l->a = add_param(t, &a, e)) || !(l->b = add_param(t, &b, e))) return -(int)ERR_MEMORY;
    return l->cols && !t->ctx->ops->counts_only ? init_a(t, l->a, l->key, e) : 0;
}

static int make_lora_layer(struct trainee *t, int32_t layer, struct error *e) {
    struct train_layer *to = &t->layers[layer];
    const struct layer_weights *from = &t->serving->layers[layer];
    int err = 0;
    for (int m = 0; m < MAT_COUNT && !err; m++) {
        struct train_linear *l = &to->matrix[m];
        if (from->matrix[m].data) l->frozen = &from->matrix[m];
        l->frozen_bias = from->bias[m];
        if (t->options.targets >> m & 1) err = make_adapter(t, layer, (enum matrix)m, l, e);
    }
    for (int k = 0; k < NORM_COUNT; k++) to->norm[k] = from->norm[k];
    return err;
}

/* --- full ---------------------------------------------------------------------------------------- */

/* A master of the piece of tensor `from` that rows and cols say; its first values from the file. */
static struct train_param *make_master(struct trainee *t, const struct store_tensor *from,
                                       enum axis rows, enum axis cols, bool vector, bool permuted,
                                       enum grad_sum sum, bool held, struct error *e) {
    struct train_param p = {.own_cols = 0, .sum = sum, .decay = !vector};
    snprintf(p.name, sizeof p.name, "%s", from->name);
    piece(t, rows, &p.row0, &p.rows);
    piece(t, cols, &p.col0, &p.cols);
    p.whole_rows = axis_size(t->config, rows);
    p.whole_cols = axis_size(t->config, cols);
    int32_t row0 = p.row0, n = p.rows;
    if (vector) { /* one row of as many columns as the axis has */
        p.whole_cols = p.whole_rows;
        p.col0 = p.row0;
        p.cols = p.rows;
        p.row0 = 0;
        p.rows = p.whole_rows = 1;
    }
    if (!held) p.rows = 0;
    p.own_cols = p.cols;
    struct train_param *out = add_param(t, &p, e);
    size_t floats = (size_t)p.rows * (size_t)p.cols;
    if (!out || floats == 0) return out;
    if (t->ctx->ops->counts_only) {
        t->ctx->ops->upload(t->ctx, out->p, NULL, floats * sizeof(float));
        return out;
    }
    float *values = malloc(floats * sizeof *values);
    if (!values) {
        error_set(e, ERR_MEMORY, "no memory to begin %s", p.name);
        return NULL;
    }
    tensor_read(from, permuted ? t->config->head_dim : 0, row0, row0 + n, vector ? 0 : p.col0,
                vector ? 1 : p.col0 + p.cols, values);
    store_drop(t->model->store, from, 0, from->bytes);
    bool whole = store_tensor_check(from, e) == 0;
    t->ctx->ops->upload(t->ctx, out->p, values, floats * sizeof *values);
    free(values);
    return whole ? out : NULL;
}

static enum grad_sum stream_norm_sum(const struct trainee *t) {
    return t->options.sequence_parallel ? GRAD_PARTIAL : GRAD_WHOLE;
}

static int make_full_layer(struct trainee *t, int32_t layer, struct error *e) {
    struct train_layer *to = &t->layers[layer];
    const struct layer_tensors *from = &t->model->layers[layer];
    for (int m = 0; m < MAT_COUNT; m++) {
        const struct matrix_rule *rule = &matrix_rules[m];
        struct train_linear *l = &to->matrix[m];
        bool permuted = matrix_is_permuted(t->config, (enum matrix)m);
        bool row_parallel = rule->rows == AXIS_HIDDEN;
        enum grad_sum sum = rows_sum(t, rule);
        l->w = make_master(t, from->matrix[m], rule->rows, rule->cols, false, permuted, sum, true,
                           e);
        if (!l->w) return -(int)ERR_MEMORY;
        if (!from->bias[m]) continue;
        /* A row-parallel bias lives on rank 0, where it is added; its gradient is whole there. */
        struct train_param *bias =
            make_master(t, from->bias[m], rule->rows, AXIS_HEAD_DIM, true, permuted, sum,
                        !row_parallel || t->rank == 0, e);
        if (!bias) return -(int)ERR_MEMORY;
        l->bias = bias->p ? bias : NULL;
    }
    for (int k = 0; k < NORM_COUNT; k++) {
        if (!from->norm[k]) continue;
        /* Head norms see a rank's heads alone; the others the rows of the stream that it holds. */
        enum grad_sum sum = norm_rules[k].size == AXIS_HEAD_DIM ? GRAD_PARTIAL : stream_norm_sum(t);
        to->norm_param[k] = make_master(t, from->norm[k], norm_rules[k].size, AXIS_HEAD_DIM, true,
                                        false, sum, true, e);
        if (!to->norm_param[k]) return -(int)ERR_MEMORY;
        to->norm[k] = to->norm_param[k]->p;
    }
    return 0;
}

static int make_full_ends(struct trainee *t, struct error *e) {
    const struct model *m = t->model;
    t->embed = make_master(t, m->embed, AXIS_VOCAB, AXIS_HIDDEN, false, false, GRAD_SPLIT, true, e);
    t->head = t->embed;
    if (t->embed && m->head != m->embed)
        t->head = make_master(t, m->head, AXIS_VOCAB, AXIS_HIDDEN, false, false, GRAD_SPLIT, true,
                              e);
    t->norm = make_master(t, m->norm, AXIS_HIDDEN, AXIS_HEAD_DIM, true, false, stream_norm_sum(t),
                          true, e);
    if (!t->embed || !t->head || !t->norm) return -(int)ERR_MEMORY;
    t->norm_value = t->norm->p;
    return 0;
}

/* -------------------------------------------------------------------------------------------------- */

/* Sizes and keys of the linear layers of one layer, and whether their input is wider than what is
 * theirs. */
static void shape_layer(struct trainee *t, int32_t layer) {
    for (int m = 0; m < MAT_COUNT; m++) {
        struct train_linear *l = &t->layers[layer].matrix[m];
        const struct matrix_rule *rule = &matrix_rules[m];
        int32_t row0;
        piece(t, rule->rows, &row0, &l->rows);
        piece(t, rule->cols, &l->first_col, &l->cols);
        if (m == MAT_O) {
            l->cols = t->attn_cols;
            l->first_col -= t->attn_first;
        }
        l->whole_cols = axis_size(t->config, rule->cols);
        l->key = ((uint64_t)layer * MAT_COUNT + (uint64_t)m + 1) * 0x9E3779B97F4A7C15u;
    }
}

int trainee_make_params(struct trainee *t, struct error *e) {
    int32_t layers = t->config->n_layers;
    t->max_params = layers * (2 * MAT_COUNT + NORM_COUNT) + 3;
    t->params = calloc((size_t)t->max_params, sizeof *t->params);
    t->layers = calloc((size_t)layers, sizeof *t->layers);
    if (!t->params || !t->layers) return error_set(e, ERR_MEMORY, "no memory for parameters");
    int err = 0;
    for (int32_t i = 0; i < layers && !err; i++) {
        shape_layer(t, i);
        err = t->options.method == TRAIN_LORA ? make_lora_layer(t, i, e) : make_full_layer(t, i, e);
    }
    if (err) return err;
    t->norm_value = t->serving ? t->serving->norm : 0;
    return t->options.method == TRAIN_FULL ? make_full_ends(t, e) : 0;
}
