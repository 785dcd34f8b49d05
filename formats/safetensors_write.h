/* formats/safetensors_write.h: writes a safetensors file tensor by tensor, so that no copy of the whole
 * is needed. The file appears under its name whole or not at all. One thread. */
#ifndef TPD_FORMATS_SAFETENSORS_WRITE_H
#define TPD_FORMATS_SAFETENSORS_WRITE_H

#include "base/dtype.h"
#include "base/file.h"

struct safetensors_entry {
    const char *name; /* borrowed until safetensors_writer_open returns */
    enum dtype type;  /* F32, F16 or BF16: what the file holds */
    int n_dims;       /* 1 or 2 */
    int64_t dims[2];
};

struct safetensors_writer {
    struct file_writer file;
    enum dtype *types;
    size_t *elements; /* of each entry */
    size_t n, next;   /* the entry that is being written */
    size_t at;        /* elements of it so far */
};

int safetensors_writer_open(struct safetensors_writer *w, const char *path,
                            const struct safetensors_entry *entries, size_t n, struct error *e);
/* The next n values, in the order of the entries; a tensor may come in pieces, no piece has parts of two.
 */
void safetensors_writer_add(struct safetensors_writer *w, const float *values, size_t n);
int safetensors_writer_commit(struct safetensors_writer *w, struct error *e);
void safetensors_writer_abandon(struct safetensors_writer *w);

#endif
