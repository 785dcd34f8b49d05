/* formats/safetensors.h: one .safetensors file, mapped and checked whole when it is opened: header
 * size, JSON, dtypes, shapes, and that the tensors tile the data without gap or overlap. Read-only
 * afterwards; any thread. The public face is formats/store.h. */
#ifndef TPD_FORMATS_SAFETENSORS_H
#define TPD_FORMATS_SAFETENSORS_H

#include "base/file.h"
#include "base/json.h"
#include "formats/store.h"

struct safetensors {
    char *path;
    struct file_map map;
    size_t n_tensors;
    struct store_tensor *tensors; /* by offset in the file; the names are owned */
    json_t *metadata;             /* object of strings, or NULL */
};

int safetensors_open(struct safetensors *out, const char *path, struct error *e);
void safetensors_close(struct safetensors *file);

#endif
