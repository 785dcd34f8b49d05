#include "formats/store.h"

#include "base/file.h"
#include "formats/gguf.h"
#include "formats/gguf_names.h"
#include "formats/name_index.h"
#include "formats/safetensors.h"
#include "formats/store_dir.h"

#include <stdlib.h>
#include <string.h>

struct store {
    struct gguf *gguf; /* or: */
    size_t n_files;
    struct safetensors *files; /* or: */
    uint8_t *made;             /* what store_make filled */
    char *made_path;

    size_t n_tensors;
    struct store_tensor *tensors; /* but for safetensors, their names are owned */
    char **file_names;            /* GGUF's own names of them; NULL: they have no others */
    struct name_index index;
};

static int no_memory(const char *path, struct error *e) {
    return error_set(e, ERR_MEMORY, "%s: no memory for the list of tensors", path);
}

static int make_room(struct store *store, size_t n, const char *path, struct error *e) {
    store->tensors = calloc(n + 1, sizeof *store->tensors);
    if (!store->tensors || !name_index_init(&store->index, n)) return no_memory(path, e);
    return 0;
}

static bool add(struct store *store, const struct store_tensor *tensor) {
    store->tensors[store->n_tensors] = *tensor;
    return name_index_add(&store->index, tensor->name, strlen(tensor->name), store->n_tensors++);
}

static int refuse_split(const struct gguf *gguf, struct error *e) {
    int64_t parts = 1;
    int err = gguf_get_int(gguf, "split.count", &parts, e);
    if (err < 0) return err;
    if (parts > 1)
        return error_bad_file(e, gguf_path(gguf), "key", "split.count",
                              "is one of %lld parts of a split model: merge them into one file "
                              "(llama-gguf-split --merge)",
                              (long long)parts);
    return 0;
}

static int open_gguf(struct store *store, const char *path, struct error *e) {
    int err = gguf_open(&store->gguf, path, e);
    if (!err) err = refuse_split(store->gguf, e);
    if (!err) err = make_room(store, gguf_tensor_count(store->gguf), path, e);
    if (err) return err;
    store->file_names = calloc(gguf_tensor_count(store->gguf) + 1, sizeof *store->file_names);
    if (!store->file_names) return no_memory(path, e);
    for (size_t i = 0; i < gguf_tensor_count(store->gguf); i++) {
        const struct gguf_tensor *from = gguf_tensor_at(store->gguf, i);
        struct store_tensor to = {.name = gguf_name_to_hf(from->name),
                                  .file = gguf_path(store->gguf),
                                  .type_name = from->type_name,
                                  .type = from->type,
                                  .n_dims = from->n_dims,
                                  .data = from->data,
                                  .bytes = from->bytes};
        store->file_names[i] = strndup(from->name.data, from->name.size);
        if (!to.name || !store->file_names[i]) {
            free((char *)to.name);
            return no_memory(path, e);
        }
        for (int d = 0; d < from->n_dims; d++) to.dims[d] = from->dims[from->n_dims - 1 - d];
        if (!add(store, &to))
            return error_bad_file(e, path, "tensor", to.name,
                                  "tensor \"%s\": is there twice, in GGUF's and in "
                                  "Hugging Face's naming",
                                  to.name);
    }
    return 0;
}

static int open_single(struct store *store, const char *path, struct error *e) {
    store->files = calloc(1, sizeof *store->files);
    if (!store->files) return no_memory(path, e);
    int err = safetensors_open(&store->files[0], path, e);
    if (err) return err;
    store->n_files = 1;
    err = make_room(store, store->files[0].n_tensors, path, e);
    for (size_t i = 0; i < store->files[0].n_tensors && !err; i++)
        add(store, &store->files[0].tensors[i]); /* JSON has no key twice */
    return err;
}

static int open_shards(struct store *store, const struct shard_index *index, struct error *e) {
    store->files = calloc(index->n_shards + 1, sizeof *store->files);
    if (!store->files) return no_memory(index->path, e);
    size_t total = 0;
    for (size_t i = 0; i < index->n_shards; i++) {
        int err = safetensors_open(&store->files[i], index->shards[i], e);
        if (err) return err;
        store->n_files++;
        total += store->files[i].n_tensors;
    }
    int err = make_room(store, total, index->path, e);
    if (err) return err;

    size_t found = 0;
    for (size_t i = 0; i < store->n_files; i++)
        for (size_t t = 0; t < store->files[i].n_tensors; t++) {
            const struct store_tensor *tensor = &store->files[i].tensors[t];
            const char *shard = shard_index_find(index, tensor->name);
            if (!shard || strcmp(shard, path_base(store->files[i].path)) != 0) continue;
            add(store, tensor); /* in one place only: weight_map names one shard for it */
            found++;
        }
    if (found == json_object_size(index->weight_map)) return 0;

    const char *name;
    json_t *shard;
    json_object_foreach(index->weight_map, name, shard) {
        if (store_find(store, name)) continue;
        return error_bad_file(e, index->path, "tensor", name,
                              "tensor \"%.120s\": shard %s does not hold it", name,
                              json_string_value(shard));
    }
    return 0;
}

/* Weights as `tpd quantize` writes them beside a config.json. Rows of GGUF's own tensor names may be in
 * another order than Hugging Face's, which the configuration goes by. */
static int open_dir_gguf(struct store *store, const char *path, struct error *e) {
    int err = open_gguf(store, path, e);
    if (err || gguf_tensor_find(store->gguf, "model.embed_tokens.weight")) return err;
    return error_bad_file(e, path, NULL, NULL,
                          "has tensors under GGUF's names, not Hugging Face's: it is a model by itself, "
                          "so give the path of this file");
}

static int open_dir(struct store *store, const char *path, struct error *e) {
    char *single = path_join(path, "model.safetensors");
    char *index_path = path_join(path, "model.safetensors.index.json");
    char *gguf = path_join(path, "model.gguf");
    int err;
    if (!single || !index_path || !gguf) {
        err = no_memory(path, e);
    } else if (path_exists(single)) {
        err = open_single(store, single, e);
    } else if (path_exists(index_path)) {
        struct shard_index index;
        err = shard_index_read(&index, path, index_path, e);
        if (!err) err = open_shards(store, &index, e);
        shard_index_free(&index);
    } else if (path_exists(gguf)) {
        err = open_dir_gguf(store, gguf, e);
    } else {
        err = store_dir_explain(path, e);
    }
    free(gguf);
    free(single);
    free(index_path);
    return err;
}

int store_open(struct store **out, const char *path, struct error *e) {
    struct store *store = calloc(1, sizeof *store);
    if (!store) return no_memory(path, e);
    int err;
    if (path_is_dir(path)) err = open_dir(store, path, e);
    else if (!path_exists(path)) err = error_set(e, ERR_NOT_FOUND, "%s: no such file", path);
    else if (path_has_suffix(path, ".safetensors")) err = open_single(store, path, e);
    else if (path_has_suffix(path, ".gguf") || file_begins_with(path, "GGUF")) err = open_gguf(store, path, e);
    else
        err = error_bad_file(e, path, NULL, NULL,
                             "is neither a .safetensors nor a .gguf file, nor a directory");
    if (err) {
        store_close(store);
        return err;
    }
    *out = store;
    return 0;
}

/* --- made in memory ----------------------------------------------------------------------------- */

enum { MADE_ALIGN = 64 };

/* Copies the entries, each at its offset in `made`; *total becomes what they need. */
static int lay_out(struct store *store, const struct store_tensor *entries, size_t n, size_t *total,
                   struct error *e) {
    *total = 0;
    for (size_t i = 0; i < n; i++) {
        struct store_tensor t = entries[i];
        size_t elements = 1;
        bool fits = true;
        for (int d = 0; d < t.n_dims; d++)
            fits &= !__builtin_mul_overflow(elements, (size_t)t.dims[d], &elements);
        const struct dtype_info *info = dtype_info((enum dtype)t.type); /* rows are whole blocks */
        fits &= !__builtin_mul_overflow(elements / (size_t)info->block, (size_t)info->block_bytes, &t.bytes);
        fits &= t.bytes < SIZE_MAX / 2 - *total;
        if (!fits)
            return error_set(e, ERR_MEMORY, "%s: %s is larger than memory can be", store->made_path,
                             t.name);
        t.name = strdup(t.name);
        if (!t.name) return no_memory(store->made_path, e);
        t.file = store->made_path;
        t.type_name = dtype_info((enum dtype)t.type)->name;
        t.data = NULL;
        *total += (t.bytes + MADE_ALIGN - 1) / MADE_ALIGN * MADE_ALIGN;
        add(store, &t);
    }
    return 0;
}

int store_make(struct store **out, const char *path, const struct store_tensor *entries, size_t n,
               void (*fill)(void *user, const struct store_tensor *t, uint8_t *data), void *user,
               struct error *e) {
    struct store *store = calloc(1, sizeof *store);
    if (!store || !(store->made_path = strdup(path))) {
        free(store);
        return no_memory(path, e);
    }
    size_t total;
    int err = make_room(store, n, path, e);
    if (!err) err = lay_out(store, entries, n, &total, e);
    if (!err && !(store->made = calloc(1, total)))
        err = error_set(e, ERR_MEMORY, "%s: no memory for weights of %zu bytes", path, total);
    if (err) {
        store_close(store);
        return err;
    }
    uint8_t *at = store->made;
    for (size_t i = 0; i < n; i++) {
        struct store_tensor *t = &store->tensors[i];
        t->data = at;
        fill(user, t, at);
        at += (t->bytes + MADE_ALIGN - 1) / MADE_ALIGN * MADE_ALIGN;
    }
    *out = store;
    return 0;
}

void store_close(struct store *store) {
    if (!store) return;
    if (store->gguf || store->made_path)
        for (size_t i = 0; i < store->n_tensors; i++) free((char *)store->tensors[i].name);
    for (char **name = store->file_names; name && *name; name++) free(*name);
    free(store->file_names);
    free(store->made);
    free(store->made_path);
    gguf_close(store->gguf);
    for (size_t i = 0; i < store->n_files; i++) safetensors_close(&store->files[i]);
    free(store->files);
    free(store->tensors);
    name_index_free(&store->index);
    free(store);
}

const struct store_tensor *store_find(const struct store *store, const char *name) {
    int64_t i = name_index_find(&store->index, name, strlen(name));
    return i < 0 ? NULL : &store->tensors[i];
}

size_t store_count(const struct store *store) {
    return store->n_tensors;
}
const struct store_tensor *store_at(const struct store *store, size_t i) {
    return &store->tensors[i];
}
const char *store_file_name(const struct store *store, const struct store_tensor *tensor) {
    return store->file_names ? store->file_names[tensor - store->tensors] : tensor->name;
}
const struct gguf *store_gguf(const struct store *store) {
    return store->gguf;
}
const char *store_format(const struct store *store) {
    return store->gguf ? "gguf" : store->made_path ? "memory" : "safetensors";
}
size_t store_file_count(const struct store *store) {
    return store->gguf ? 1 : store->n_files;
}

static const struct file_map *map_of(const struct store *store, const uint8_t *data) {
    if (store->gguf) return gguf_map(store->gguf);
    for (size_t i = 0; i < store->n_files; i++) {
        const struct file_map *map = &store->files[i].map;
        if (data >= map->data && data < map->data + map->size) return map;
    }
    return NULL;
}

void store_drop(const struct store *store, const struct store_tensor *tensor, size_t offset,
                size_t bytes) {
    const struct file_map *map = bytes ? map_of(store, tensor->data) : NULL;
    if (map) file_map_drop(map, (size_t)(tensor->data - map->data) + offset, bytes);
}

void store_want(const struct store *store, const struct store_tensor *tensor, size_t offset,
                size_t bytes) {
    if (offset >= tensor->bytes) return;
    if (bytes > tensor->bytes - offset) bytes = tensor->bytes - offset;
    const struct file_map *map = map_of(store, tensor->data);
    if (map) file_map_want(map, (size_t)(tensor->data - map->data) + offset, bytes);
}

int store_file_torn(const char *path, const char *tensor, struct error *e) {
    return error_bad_file(e, path, tensor ? "tensor" : NULL, tensor,
                          "%s%s cannot be read: the file became shorter while it was in use, or the "
                          "disk fails; put it back whole and load it again",
                          tensor ? "tensor " : "it", tensor ? tensor : "");
}

int store_tensor_check(const struct store_tensor *t, struct error *e) {
    return t->bytes && file_map_torn(t->data) ? store_file_torn(t->file, t->name, e) : 0;
}
