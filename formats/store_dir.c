#include "formats/store_dir.h"

#include "base/file.h"
#include "formats/name_index.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_INDEX = 64 << 20 };

static bool is_plain_name(const json_t *value) {
    const char *name = json_string_value(value);
    return name && name[0] && strlen(name) == json_string_length(value) && !strchr(name, '/') &&
           strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

static int add_shard(struct shard_index *index, const char *dir, const char *name,
                     struct error *e) {
    char *path = path_join(dir, name);
    if (!path) return error_set(e, ERR_MEMORY, "%s: no memory", index->path);
    index->shards[index->n_shards++] = path;
    if (path_exists(path)) return 0;
    return error_bad_file(
        e, index->path, "file", name,
        "names the shard %s, which is not in the directory: fetch the model again", name);
}

/* Every file that weight_map names, once. */
static int list_shards(struct shard_index *index, const char *dir, struct name_index *seen,
                       struct error *e) {
    const char *tensor;
    json_t *value;
    json_object_foreach(index->weight_map, tensor, value) {
        if (!is_plain_name(value))
            return error_bad_file(e, index->path, "tensor", tensor,
                                  "weight_map gives tensor \"%.120s\" the file \"%.120s\": not the "
                                  "plain name of a file in this directory",
                                  tensor, json_is_string(value) ? json_string_value(value) : "?");
        const char *name = json_string_value(value);
        if (!name_index_add(seen, name, strlen(name), index->n_shards)) continue;
        int err = add_shard(index, dir, name, e);
        if (err) return err;
    }
    return 0;
}

int shard_index_read(struct shard_index *out, const char *dir, const char *path, struct error *e) {
    *out = (struct shard_index){.path = path};
    out->root = json_read_file(path, MAX_INDEX, e);
    if (!out->root) return -(int)ERR_BAD_FILE;
    out->weight_map = json_object_get(out->root, "weight_map");
    size_t n = json_object_size(out->weight_map);
    if (n == 0)
        return error_bad_file(e, path, "field", "weight_map",
                              "weight_map is not an object that names tensors");
    struct name_index seen = {0};
    out->shards = calloc(n, sizeof *out->shards);
    int err = out->shards && name_index_init(&seen, n)
                  ? list_shards(out, dir, &seen, e)
                  : error_set(e, ERR_MEMORY, "%s: no memory for %zu tensors", path, n);
    name_index_free(&seen);
    return err;
}

void shard_index_free(struct shard_index *index) {
    for (size_t i = 0; i < index->n_shards; i++) free(index->shards[i]);
    free(index->shards);
    json_decref(index->root);
    *index = (struct shard_index){0};
}

const char *shard_index_find(const struct shard_index *index, const char *tensor) {
    return json_string_value(json_object_get(index->weight_map, tensor));
}

int store_dir_explain(const char *dir, struct error *e) {
    DIR *d = opendir(dir);
    if (!d) return error_errno(e, errno, dir, "open");
    char shard[256] = "", gguf[256] = "", pickle[256] = "";
    for (struct dirent *entry; (entry = readdir(d));) {
        char *slot = path_has_suffix(entry->d_name, ".safetensors") ? shard
                     : path_has_suffix(entry->d_name, ".gguf")      ? gguf
                     : path_has_suffix(entry->d_name, ".bin")       ? pickle
                                                              : NULL;
        if (slot) snprintf(slot, sizeof shard, "%s", entry->d_name);
    }
    closedir(d);
    if (shard[0])
        return error_bad_file(e, dir, "file", "model.safetensors.index.json",
                              "has %s but neither model.safetensors nor "
                              "model.safetensors.index.json, which says what each file holds",
                              shard);
    if (gguf[0])
        return error_bad_file(e, dir, "file", gguf,
                              "holds no model.safetensors; to use %s, give the path of that file",
                              gguf);
    if (pickle[0])
        return error_bad_file(
            e, dir, "file", pickle,
            "holds no model.safetensors; %s is a pickle, which tpd does not read: "
            "convert it to safetensors",
            pickle);
    return error_bad_file(e, dir, "file", "model.safetensors",
                          "holds neither model.safetensors nor model.safetensors.index.json: fetch "
                          "the weights, or begin with new ones (tpd --init SEED)");
}
