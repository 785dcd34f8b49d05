/* formats/store.h: the tensors of a model on disk, whatever the format.
 *
 * Opens a Hugging Face directory (model.safetensors, or shards with model.safetensors.index.json, or
 * model.gguf with tensors under Hugging Face's names, as `tpd quantize` writes it), a single .safetensors file, or a .gguf file; checks all of it; gives tensors by their Hugging
 * Face name ("model.layers.0.self_attn.q_proj.weight"; GGUF names are translated). Data is mapped,
 * never copied. Read-only after open; any thread.
 *
 * With an index, weight_map alone says which tensors there are and where; every shard that it names
 * is opened and checked. */
#ifndef TPD_FORMATS_STORE_H
#define TPD_FORMATS_STORE_H

#include "base/dtype.h"
#include "base/error.h"

struct gguf;

enum { STORE_MAX_DIMS = 8 };

struct store_tensor {
    const char *name;      /* Hugging Face name */
    const char *file;      /* path of the file that holds it */
    const char *type_name; /* as the file says: "BF16", "I64", "Q4_K" */
    int type;              /* enum dtype, or -1: not a type that tpd computes with */
    int n_dims;
    int64_t dims[STORE_MAX_DIMS]; /* outermost first, as Hugging Face has it: [out, in] */
    const uint8_t *data;          /* safetensors promise no alignment: read with memcpy */
    size_t bytes;
};

struct store;

int store_open(struct store **out, const char *path, struct error *e);
/* Tensors in memory of the store's own: name, type, n_dims and dims of the entries say which; fill is
 * called for each in turn, with its place (zeroed) to write to. path names them in messages. */
int store_make(struct store **out, const char *path, const struct store_tensor *entries, size_t n,
               void (*fill)(void *user, const struct store_tensor *t, uint8_t *data), void *user,
               struct error *e);
void store_close(struct store *store);
/* NULL when there is none. */
const struct store_tensor *store_find(const struct store *store, const char *name);
size_t store_count(const struct store *store);
const struct store_tensor *store_at(const struct store *store, size_t i);
/* Its name in the file: GGUF has names of its own. */
const char *store_file_name(const struct store *store, const struct store_tensor *tensor);
/* "gguf", "safetensors", or "memory" (store_make); and how many files hold it. */
const char *store_format(const struct store *store);
size_t store_file_count(const struct store *store);
/* The GGUF file behind the store, or NULL. */
const struct gguf *store_gguf(const struct store *store);
/* Whoever has read from a tensor asks this before it believes what it has read: ERR_BAD_FILE when the
 * file was cut short meanwhile (then zeros were read). */
int store_tensor_check(const struct store_tensor *tensor, struct error *e);
/* Sets that error; tensor may be NULL. */
int store_file_torn(const char *path, const char *tensor, struct error *e);
/* Lets the pages of bytes at data (inside a tensor's data) leave memory. */
void store_drop(const struct store *store, const struct store_tensor *tensor, size_t offset,
                size_t bytes);
/* Lets the kernel begin to read them, while the caller is busy with others. What lies behind the tensor's
 * end is not asked for. */
void store_want(const struct store *store, const struct store_tensor *tensor, size_t offset,
                size_t bytes);

#endif
