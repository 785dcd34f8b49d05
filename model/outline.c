/* A model without weights: the tensors that a configuration asks for, by name, type and shape. */
#include "model/model.h"
#include "model/tensors.h"

#include <stdlib.h>
#include <string.h>

struct made {
    struct made *next;
    struct store_tensor tensor;
    char name[96];
};

struct outline {
    const char *path; /* borrowed from the model */
    enum dtype type;
    struct made *all;
};

int outline_add(struct outline *o, const char *name, int64_t rows, int64_t cols,
                const struct store_tensor **out, struct error *e) {
    const struct dtype_info *info = dtype_info(o->type);
    enum dtype type = o->type;
    if (!rows && dtype_is_quantised(type)) type = DTYPE_F32; /* vectors never are */
    else if (cols % info->block)
        return error_bad_file(e, o->path, "tensor", name,
                              "tensor %s cannot be %s: its rows of %lld are not whole blocks of %d",
                              name, info->name, (long long)cols, info->block);
    struct made *m = calloc(1, sizeof *m);
    if (!m) return error_set(e, ERR_MEMORY, "no memory for the list of tensors");
    strncpy(m->name, name, sizeof m->name - 1);
    m->tensor = (struct store_tensor){.name = m->name,
                                      .file = o->path,
                                      .type_name = dtype_info(type)->name,
                                      .type = (int)type,
                                      .n_dims = rows ? 2 : 1,
                                      .dims = {rows ? rows : cols, rows ? cols : 0}};
    m->tensor.bytes = (size_t)(rows ? rows : 1) * dtype_row_bytes(type, cols);
    m->next = o->all;
    o->all = m;
    *out = &m->tensor;
    return 0;
}

void outline_free(struct outline *o) {
    while (o && o->all) {
        struct made *m = o->all;
        o->all = m->next;
        free(m);
    }
    free(o);
}

/* The type that the configuration names; -1 when it names none. */
static int read_type(const json_t *config, const char *path, int *type, struct error *e) {
    static const struct {
        const char *word;
        enum dtype type;
    } words[] = {{"bfloat16", DTYPE_BF16}, {"float16", DTYPE_F16}, {"float32", DTYPE_F32}};
    const json_t *value = json_object_get(config, "dtype");
    if (!value || json_is_null(value)) value = json_object_get(config, "torch_dtype");
    *type = -1;
    if (!value || json_is_null(value)) return 0;
    const char *word = json_word(value);
    for (size_t i = 0; word && i < sizeof words / sizeof *words; i++)
        if (strcmp(word, words[i].word) == 0) *type = (int)words[i].type;
    if (*type >= 0) return 0;
    return error_bad_file(e, path, "field", "torch_dtype",
                          "torch_dtype must be \"bfloat16\", \"float16\" or \"float32\"");
}

int model_outline(struct model **out, const json_t *config, const char *path, int type,
                  bool *assumed, struct error *e) {
    struct model *m = calloc(1, sizeof *m);
    if (m) m->path = strdup(path);
    if (m) m->outline = calloc(1, sizeof *m->outline);
    int err = m && m->path && m->outline ? 0 : error_set(e, ERR_MEMORY, "no memory for a model");
    if (!err) err = config_from_hf(&m->config, config, NULL, path, e);
    if (!err && type < 0) err = read_type(config, path, &type, e);
    *assumed = !err && type < 0;
    if (!err) {
        m->outline->path = m->path;
        m->outline->type = type < 0 ? DTYPE_BF16 : (enum dtype)type;
        err = model_find_tensors(m, e);
    }
    if (err) {
        model_free(m);
        return err;
    }
    *out = m;
    return 0;
}
