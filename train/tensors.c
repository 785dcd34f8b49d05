#include "train/tensors.h"

#include <stdlib.h>

size_t host_tensor_floats(const struct host_tensor *t) {
    return (size_t)t->shape.rows * (size_t)t->shape.cols;
}

int host_tensors_new(struct host_tensors *out, const struct trainee *of, bool moments,
                     struct error *e) {
    *out = (struct host_tensors){.n = trainee_tensor_count(of)};
    out->at = calloc((size_t)out->n, sizeof *out->at);
    bool ok = out->at != NULL;
    for (int i = 0; i < out->n && ok; i++) {
        struct host_tensor *t = &out->at[i];
        trainee_tensor(of, i, &t->shape);
        for (int k = 0; k < (moments ? 3 : 1) && ok; k++)
            ok = (t->part[k] = calloc(host_tensor_floats(t), sizeof(float))) != NULL;
    }
    if (ok) return 0;
    host_tensors_free(out);
    return error_set(e, ERR_MEMORY, "no memory for a copy of the trained tensors");
}

void host_tensors_free(struct host_tensors *t) {
    for (int i = 0; t->at && i < t->n; i++)
        for (int k = 0; k < 3; k++) free(t->at[i].part[k]);
    free(t->at);
    *t = (struct host_tensors){0};
}
