#include "model/export.h"

#include "model/shard.h"

#include <stdlib.h>
#include <string.h>

enum { KIND_EMBED, KIND_HEAD, KIND_LAST_NORM, KIND_MATRIX, KIND_BIAS, KIND_NORM };

/* --- the list --------------------------------------------------------------------------------- */

static void add(struct tensor_list *list, const struct model *m, const struct store_tensor *t,
                int32_t layer, int kind, int which) {
    bool matrix = kind == KIND_EMBED || kind == KIND_HEAD || kind == KIND_MATRIX;
    bool in_heads = kind == KIND_MATRIX || kind == KIND_BIAS;
    bool permuted = in_heads && matrix_is_permuted(&m->config, (enum matrix)which);
    if (!t) return;
    list->tensors[list->n++] = (struct model_tensor){
        .tensor = t,
        .file_name = m->store ? store_file_name(m->store, t) : t->name,
        .type = matrix ? (enum dtype)t->type : DTYPE_F32,
        .layer = layer,
        .permuted_head_dim = permuted ? m->config.head_dim : 0,
        .kind = kind,
        .which = which,
    };
}

int tensor_list_make(struct tensor_list *out, const struct model *m, struct error *e) {
    size_t most = 3 + (size_t)m->config.n_layers * (2 * MAT_COUNT + NORM_COUNT);
    *out = (struct tensor_list){.tensors = calloc(most, sizeof *out->tensors)};
    if (!out->tensors) return error_set(e, ERR_MEMORY, "no memory for the list of tensors");
    add(out, m, m->embed, -1, KIND_EMBED, 0);
    for (int32_t i = 0; i < m->config.n_layers; i++) {
        const struct layer_tensors *l = &m->layers[i];
        for (int k = 0; k < MAT_COUNT; k++) {
            add(out, m, l->matrix[k], i, KIND_MATRIX, k);
            add(out, m, l->bias[k], i, KIND_BIAS, k);
        }
        for (int k = 0; k < NORM_COUNT; k++) add(out, m, l->norm[k], i, KIND_NORM, k);
    }
    add(out, m, m->norm, -1, KIND_LAST_NORM, 0);
    if (m->head != m->embed) add(out, m, m->head, -1, KIND_HEAD, 0);
    return 0;
}

void tensor_list_free(struct tensor_list *list) {
    free(list->tensors);
    *list = (struct tensor_list){0};
}

const struct model_tensor *tensor_list_find(const struct tensor_list *list, const char *name) {
    for (size_t i = 0; i < list->n; i++)
        if (strcmp(list->tensors[i].file_name, name) == 0 ||
            strcmp(list->tensors[i].tensor->name, name) == 0)
            return &list->tensors[i];
    return NULL;
}

/* --- who holds what --------------------------------------------------------------------------- */

static void matrix_part(const struct model *m, const struct shard_plan *plan, int rank,
                        struct matrix_rule rule, struct tensor_part *out) {
    axis_range(&m->config, plan, rank, rule.rows, &out->row0, &out->row1);
    axis_range(&m->config, plan, rank, rule.cols, &out->col0, &out->col1);
    if (rule.cols != AXIS_HEADS) return;
    int32_t first, cols;
    shard_attn_columns(m, plan, rank, &first, &cols);
    out->col0 -= first;
    out->col1 = out->col0 + cols;
}

bool tensor_part_of(const struct model *m, const struct shard_plan *plan,
                    const struct model_tensor *t, int rank, struct tensor_part *out) {
    static const struct matrix_rule vocab = {.rows = AXIS_VOCAB, .cols = AXIS_HIDDEN};
    *out = (struct tensor_part){.row1 = (int32_t)t->tensor->dims[0], .col1 = 1};
    switch (t->kind) {
    case KIND_EMBED:
    case KIND_HEAD: matrix_part(m, plan, rank, vocab, out); break;
    case KIND_MATRIX: matrix_part(m, plan, rank, matrix_rules[t->which], out); break;
    case KIND_BIAS: {
        enum axis rows = matrix_rules[t->which].rows;
        if (rows == AXIS_HIDDEN && rank != 0) return false;
        axis_range(&m->config, plan, rank, rows, &out->row0, &out->row1);
        break;
    }
    default: break; /* norms are whole everywhere */
    }
    return out->row0 < out->row1 && out->col0 < out->col1;
}

/* --- on a rank -------------------------------------------------------------------------------- */

static const struct weight *matrix_of(const struct shard *s, const struct model_tensor *t) {
    switch (t->kind) {
    case KIND_EMBED: return &s->embed;
    case KIND_HEAD: return s->head;
    case KIND_MATRIX: return &s->layers[t->layer].matrix[t->which];
    default: return NULL;
    }
}

static dev_addr vector_of(const struct shard *s, const struct model_tensor *t) {
    switch (t->kind) {
    case KIND_LAST_NORM: return s->norm;
    case KIND_BIAS: return s->layers[t->layer].bias[t->which];
    case KIND_NORM: return s->layers[t->layer].norm[t->which];
    default: return 0;
    }
}

static void vector_layout(const struct model *m, const struct shard *s,
                          const struct model_tensor *t, struct weight_layout *out) {
    struct tensor_part part;
    tensor_part_of(m, s->plan, t, s->rank, &part);
    *out = (struct weight_layout){.lanes = 1, .columns = 1, .n_arrays = 1};
    out->arrays[0] = (struct weight_array){.name = "values",
                                           .type = "f32",
                                           .shape = {(size_t)(part.row1 - part.row0), 1, 1, 1},
                                           .stride = {4, 4, 4, 4}};
}

int shard_export(struct shard *s, const struct model *m, const struct model_tensor *t,
                 const struct mem_share *share, struct tensor_export *out, struct error *e) {
    const struct kernels *ops = s->ctx->ops;
    const struct weight *w = matrix_of(s, t);
    int err = ops->mem_export(s->ctx, w ? w->data : vector_of(s, t), share, &out->handle, e);
    if (err) return error_prefix(e, "tensor %s: ", t->file_name);
    if (w) ops->weight_layout(w, &out->layout);
    else vector_layout(m, s, t, &out->layout);
    return 0;
}
