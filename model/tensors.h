/* model/tensors.h: which tensors an architecture is made of, and along which axis each is cut.
 *
 * The plan of who is split how, as data: model.c checks files against it, load.c cuts by it, and
 * forward.c does not know that it exists. Private to model/. */
#ifndef TPD_MODEL_TENSORS_H
#define TPD_MODEL_TENSORS_H

#include "formats/store.h"
#include "model/config.h"
#include "model/plan.h"

/* What a dimension of a tensor counts. HIDDEN and HEAD_DIM are whole on every rank. */
enum axis { AXIS_HIDDEN, AXIS_HEADS, AXIS_KV_HEADS, AXIS_FFN, AXIS_VOCAB, AXIS_HEAD_DIM };

enum matrix { MAT_Q, MAT_K, MAT_V, MAT_O, MAT_GATE, MAT_UP, MAT_DOWN, MAT_COUNT };
enum norm { NORM_ATTN, NORM_FFN, NORM_Q, NORM_K, NORM_COUNT };

struct matrix_rule {
    const char *name; /* under "model.layers.N." */
    enum axis rows, cols;
};
struct norm_rule {
    const char *name;
    enum axis size;
};

extern const struct matrix_rule matrix_rules[MAT_COUNT];
extern const struct norm_rule norm_rules[NORM_COUNT];

bool config_has_bias(const struct model_config *config, enum matrix m);
bool config_has_norm(const struct model_config *config, enum norm n);
/* Elements of an axis in the whole model. */
int32_t axis_size(const struct model_config *config, enum axis axis);
/* The half-open part of it that rank holds. */
void axis_range(const struct model_config *config, const struct shard_plan *plan, int rank,
                enum axis axis, int32_t *from, int32_t *to);

/* llama.cpp's converter writes row (head, i, half) of q and k where Hugging Face has (head, half, i). */
bool matrix_is_permuted(const struct model_config *config, enum matrix m);
/* Values of rows row0 … row1-1, columns col0 … col1-1 in Hugging Face's order, as fp32 [row1 - row0,
 * col1 - col0]. A vector has one column. permuted_head_dim: the head size when the rows are in GGUF's
 * order, else 0. */
void tensor_read(const struct store_tensor *t, int32_t permuted_head_dim, int32_t row0,
                 int32_t row1, int32_t col0, int32_t col1, float *out);

/* outline.c: makes up the tensor `name` of [rows, cols], or of [cols] when rows is 0, without data. */
struct outline;
int outline_add(struct outline *o, const char *name, int64_t rows, int64_t cols,
                const struct store_tensor **out, struct error *e);
void outline_free(struct outline *o);

/* The tensors of a model on disk; a pointer is NULL where the architecture has none. */
struct layer_tensors {
    const struct store_tensor *matrix[MAT_COUNT], *bias[MAT_COUNT], *norm[NORM_COUNT];
};

struct model {
    char *path;
    struct model_config config;
    struct store *store;     /* NULL with an outline */
    struct outline *outline; /* the tensors of a model without weights (outline.c); else NULL */
    struct store_tensor *shapes; /* of model_quantise_shapes, in place of the files' own; else NULL */
    const struct store_tensor *embed, *norm, *head; /* head == embed when tied */
    const struct store_tensor *rope_factors;        /* GGUF's frequency factors, or NULL */
    struct layer_tensors *layers;
};

/* model.c: finds (with an outline: makes up) every tensor that the configuration asks for. */
int model_find_tensors(struct model *m, struct error *e);

#endif
