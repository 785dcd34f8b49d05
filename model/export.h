/* model/export.h: the tensors of a model by name, which rank holds what of each, and how other processes
 * map it.
 *
 * A tensor_list is made from a model that is open and borrows from it; any thread, read-only.
 * shard_export runs on the rank's thread, between steps. */
#ifndef TPD_MODEL_EXPORT_H
#define TPD_MODEL_EXPORT_H

#include "model/model.h"

struct model_tensor {
    const struct store_tensor *tensor; /* its name is Hugging Face's */
    const char *file_name;             /* as the file says it */
    enum dtype type;                   /* as ranks hold it: vectors are f32 */
    int32_t layer;                     /* -1: none */
    /* Not 0: within each run of so many rows the file has rows i and i + half of it side by side, and the
     * ranks hold them in Hugging Face's order. */
    int32_t permuted_head_dim;
    int kind, which; /* private to model/ */
};

struct tensor_list {
    size_t n;
    struct model_tensor *tensors; /* in the order of the forward pass */
};

/* Those that the architecture uses. */
int tensor_list_make(struct tensor_list *out, const struct model *model, struct error *e);
void tensor_list_free(struct tensor_list *list);
/* By either name; NULL when there is none. */
const struct model_tensor *tensor_list_find(const struct tensor_list *list, const char *name);

/* The half-open ranges that a rank holds; a vector has rows alone (cols 0 … 1). */
struct tensor_part {
    int32_t row0, row1, col0, col1;
};
/* false: this rank holds nothing of it. */
bool tensor_part_of(const struct model *model, const struct shard_plan *plan,
                    const struct model_tensor *tensor, int rank, struct tensor_part *out);

struct tensor_export {
    struct mem_handle handle;
    struct weight_layout layout; /* offsets from the handle's offset */
};
/* Of a tensor that tensor_part_of says the rank holds. */
int shard_export(struct shard *shard, const struct model *model, const struct model_tensor *tensor,
                 const struct mem_share *share, struct tensor_export *out, struct error *e);

#endif
