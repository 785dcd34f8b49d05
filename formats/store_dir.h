/* formats/store_dir.h: what a Hugging Face model directory says about its shards. Used by store.c.
 */
#ifndef TPD_FORMATS_STORE_DIR_H
#define TPD_FORMATS_STORE_DIR_H

#include "base/error.h"
#include "base/json.h"

struct shard_index {
    const char *path; /* of the index file; borrowed */
    json_t *root;
    json_t *weight_map; /* tensor → file name; every value is a plain name; borrowed from root */
    size_t n_shards;
    char **shards; /* paths; all are there */
};

/* Reads dir's index. A shard that is not on disk, or a name that leads out of dir, is ERR_BAD_FILE
 * naming it. shard_index_free is due also after a failure. */
int shard_index_read(struct shard_index *out, const char *dir, const char *path, struct error *e);
void shard_index_free(struct shard_index *index);
/* File name of the shard that the index gives for a tensor, or NULL. */
const char *shard_index_find(const struct shard_index *index, const char *tensor);

/* ERR_BAD_FILE saying why a directory with neither model.safetensors nor an index is no model. */
int store_dir_explain(const char *dir, struct error *e);

#endif
