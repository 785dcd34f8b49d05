/* Opens a model and holds every tensor against what its architecture needs, before any rank loads. */
#include "model/model.h"

#include "base/file.h"
#include "formats/gguf.h"
#include "model/draw.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONFIG_MAX_BYTES = 4 << 20 };

static void describe_dims(const struct store_tensor *t, char *out, size_t size) {
    size_t n = (size_t)snprintf(out, size, "[");
    for (int i = 0; i < t->n_dims && n < size; i++)
        n += (size_t)snprintf(out + n, size - n, "%s%lld", i ? ", " : "", (long long)t->dims[i]);
    if (n < size) snprintf(out + n, size - n, "]");
}

/* The layer of "model.layers.N.…"; -1: it is of none. */
static long layer_of(const char *name) {
    char *end;
    if (strncmp(name, "model.layers.", 13) != 0 || name[13] < '0' || name[13] > '9') return -1;
    long layer = strtol(name + 13, &end, 10);
    return *end == '.' && layer < INT32_MAX ? layer : -1;
}

/* The tensor NAME of [rows, cols], or of [cols] when rows is 0. */
static int need(const struct model *m, const char *name, int64_t rows, int64_t cols,
                const struct store_tensor **out, struct error *e) {
    if (m->outline) return outline_add(m->outline, name, rows, cols, out, e);
    const struct store_tensor *t = store_find(m->store, name);
    if (!t)
        return error_bad_file(e, m->path, "tensor", name,
                              layer_of(name) < 0
                                  ? "tensor %s is missing, which a %s model needs"
                                  : "tensor %s is missing, which a %s model of %d layers needs "
                                    "(num_hidden_layers)",
                              name, arch_name(m->config.arch), m->config.n_layers);
    bool fits = rows ? t->n_dims == 2 && t->dims[0] == rows && t->dims[1] == cols
                     : t->n_dims == 1 && t->dims[0] == cols;
    if (!fits) {
        char have[128], want[64];
        describe_dims(t, have, sizeof have);
        if (rows) snprintf(want, sizeof want, "[%lld, %lld]", (long long)rows, (long long)cols);
        else snprintf(want, sizeof want, "[%lld]", (long long)cols);
        return error_bad_file(e, t->file, "tensor", name,
                              "tensor %s has shape %s, but the configuration asks for %s", name,
                              have, want);
    }
    if (t->type < 0 || (!rows && dtype_is_quantised((enum dtype)t->type)))
        return error_bad_file(e, t->file, "tensor", name,
                              "tensor %s has type %s, which tpd does not compute with (it takes %s)",
                              name, t->type_name,
                              rows ? "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, "
                                     "Q4_K, Q5_K, Q6_K"
                                   : "F32, F16, BF16");
    *out = t;
    return 0;
}

static int find_layer(struct model *m, int32_t layer, struct error *e) {
    const struct model_config *c = &m->config;
    struct layer_tensors *out = &m->layers[layer];
    char name[96];
    int err = 0;
    for (int i = 0; i < MAT_COUNT && !err; i++) {
        const struct matrix_rule *rule = &matrix_rules[i];
        int32_t rows = axis_size(c, rule->rows), cols = axis_size(c, rule->cols);
        snprintf(name, sizeof name, "model.layers.%d.%s.weight", layer, rule->name);
        err = need(m, name, rows, cols, &out->matrix[i], e);
        if (err || !config_has_bias(c, (enum matrix)i)) continue;
        snprintf(name, sizeof name, "model.layers.%d.%s.bias", layer, rule->name);
        err = need(m, name, 0, rows, &out->bias[i], e);
    }
    for (int i = 0; i < NORM_COUNT && !err; i++) {
        if (!config_has_norm(c, (enum norm)i)) continue;
        snprintf(name, sizeof name, "model.layers.%d.%s.weight", layer, norm_rules[i].name);
        err = need(m, name, 0, axis_size(c, norm_rules[i].size), &out->norm[i], e);
    }
    return err;
}

/* A layer that the file has and the configuration does not know would silently be left out. */
static int check_layers(const struct model *m, struct error *e) {
    const struct store_tensor *last = NULL;
    for (size_t i = 0; i < store_count(m->store); i++) {
        const struct store_tensor *t = store_at(m->store, i);
        if (!last || layer_of(t->name) > layer_of(last->name)) last = t;
    }
    long has = last ? layer_of(last->name) + 1 : 0;
    if (has <= m->config.n_layers) return 0;
    return error_bad_file(e, last->file, "tensor", last->name,
                          "tensor %s is of layer %ld, but by the configuration the model has %d layers, "
                          "0 to %d (num_hidden_layers): they are of two different models",
                          last->name, has - 1, m->config.n_layers, m->config.n_layers - 1);
}

/* The same for a bias. */
static int check_unused(const struct model *m, struct error *e) {
    for (size_t i = 0; i < store_count(m->store); i++) {
        const struct store_tensor *t = store_at(m->store, i);
        size_t n = strlen(t->name);
        long layer = layer_of(t->name);
        if (layer < 0 || n < 5 || strcmp(t->name + n - 5, ".bias") != 0) continue;
        bool used = false;
        for (int k = 0; k < MAT_COUNT; k++) used |= m->layers[layer].bias[k] == t;
        if (!used)
            return error_bad_file(e, t->file, "tensor", t->name,
                                  "tensor %s is in the file, but the configuration says that this "
                                  "model has no such bias (attention_bias, mlp_bias)",
                                  t->name);
    }
    return 0;
}

int model_find_tensors(struct model *m, struct error *e) {
    const struct model_config *c = &m->config;
    int err = m->outline ? 0 : check_layers(m, e);
    if (!err) err = need(m, "model.embed_tokens.weight", c->vocab, c->hidden, &m->embed, e);
    if (!err) err = need(m, "model.norm.weight", 0, c->hidden, &m->norm, e);
    if (!err && !c->tied_head) {
        err = need(m, "lm_head.weight", c->vocab, c->hidden, &m->head, e);
        if (err && !m->outline && !store_find(m->store, "lm_head.weight"))
            error_prefix(e, "tie_word_embeddings is false, so the model needs a head of its own: ");
    } else m->head = m->embed;
    m->rope_factors = m->outline ? NULL : store_find(m->store, "rope_freqs.weight");
    if (!err && m->rope_factors)
        err = need(m, "rope_freqs.weight", 0, c->head_dim / 2, &m->rope_factors, e);
    m->layers = calloc((size_t)c->n_layers, sizeof *m->layers);
    if (!err && !m->layers) err = error_set(e, ERR_MEMORY, "no memory for the list of tensors");
    for (int32_t i = 0; i < c->n_layers && !err; i++) err = find_layer(m, i, e);
    return err || m->outline ? err : check_unused(m, e);
}

static bool has_weights(const char *dir) {
    static const char *const names[] = {"model.safetensors", "model.safetensors.index.json",
                                        "model.gguf"};
    bool found = false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *path = path_join(dir, names[i]);
        found |= path && path_exists(path);
        free(path);
    }
    return found;
}

/* The tensors of a directory: those that are there, or with a seed new ones. */
static int open_store(struct model *m, const json_t *config, const char *config_path,
                      const uint64_t *seed, struct error *e) {
    if (!seed) return store_open(&m->store, m->path, e);
    if (has_weights(m->path))
        return error_set(e, ERR_CONFIG,
                         "%s has weights (model.safetensors): init draws new ones for a directory "
                         "without; leave init out to use those that are there",
                         m->path);
    return draw_weights(&m->store, config, config_path, *seed, e);
}

static int open_dir(struct model *m, const char *path, const uint64_t *seed, struct error *e) {
    char *config_path = path_join(path, "config.json");
    char *generation_path = path_join(path, "generation_config.json");
    json_t *config = NULL, *generation = NULL;
    int err = 0;
    if (!config_path || !generation_path) err = error_set(e, ERR_MEMORY, "no memory for a path");
    else if (!path_exists(config_path))
        err = error_bad_file(e, path, NULL, NULL,
                             "has no config.json: give a Hugging Face model directory or a .gguf "
                             "file");
    if (!err && !(config = json_read_file(config_path, CONFIG_MAX_BYTES, e)))
        err = -(int)ERR_BAD_FILE;
    if (!err && path_exists(generation_path) &&
        !(generation = json_read_file(generation_path, CONFIG_MAX_BYTES, e)))
        err = -(int)ERR_BAD_FILE;
    /* The configuration first: an architecture that we do not have is said before a shard that is
     * not there. */
    if (!err) err = config_from_hf(&m->config, config, generation, config_path, e);
    if (!err) err = open_store(m, config, config_path, seed, e);
    json_decref(config);
    json_decref(generation);
    free(config_path);
    free(generation_path);
    return err;
}

static int open_gguf(struct model *m, const char *path, const uint64_t *seed, struct error *e) {
    if (seed)
        return error_set(e, ERR_CONFIG,
                         "%s is a file of weights: init draws new ones for a directory that has "
                         "config.json and a tokenizer",
                         path);
    int err = store_open(&m->store, path, e);
    if (err) return err;
    const struct gguf *gguf = store_gguf(m->store);
    return gguf ? config_from_gguf(&m->config, gguf, e)
                : error_bad_file(e, path, NULL, NULL,
                                 "is a lone .safetensors file: give the directory that also has its "
                                 "config.json");
}

static int open_model(struct model **out, const char *path, const uint64_t *seed, struct error *e) {
    struct model *m = calloc(1, sizeof *m);
    if (!m || !(m->path = strdup(path))) {
        free(m);
        return error_set(e, ERR_MEMORY, "no memory to open a model");
    }
    int err = 0;
    if (!path_exists(path)) {
        err = error_set(e, ERR_NOT_FOUND,
                        "%s: no such model: give a Hugging Face directory or a .gguf file", path);
        error_note(e, "path", path);
    }
    if (!err) err = path_is_dir(path) ? open_dir(m, path, seed, e) : open_gguf(m, path, seed, e);
    if (!err) err = model_find_tensors(m, e);
    if (err) {
        model_free(m);
        return err;
    }
    *out = m;
    return 0;
}

int model_open(struct model **out, const char *path, struct error *e) {
    return open_model(out, path, NULL, e);
}

int model_open_new(struct model **out, const char *path, uint64_t seed, struct error *e) {
    return open_model(out, path, &seed, e);
}

void model_free(struct model *m) {
    if (!m) return;
    store_close(m->store);
    outline_free(m->outline);
    free(m->shapes);
    free(m->layers);
    free(m->path);
    free(m);
}

const struct model_config *model_config(const struct model *m) { return &m->config; }
const struct store *model_store(const struct model *m) { return m->store; }
const char *model_path(const struct model *m) { return m->path; }

/* Adds up the bytes of the matrices by type. */
static size_t bytes_by_type(const struct model *m, size_t by_type[DTYPE_COUNT]) {
    size_t total = 0;
    memset(by_type, 0, DTYPE_COUNT * sizeof *by_type);
    for (int32_t i = 0; i < m->config.n_layers; i++)
        for (int k = 0; k < MAT_COUNT; k++) {
            const struct store_tensor *t = m->layers[i].matrix[k];
            by_type[t->type] += t->bytes;
            total += t->bytes;
        }
    by_type[m->embed->type] += m->embed->bytes;
    total += m->embed->bytes;
    if (m->head != m->embed) {
        by_type[m->head->type] += m->head->bytes;
        total += m->head->bytes;
    }
    return total;
}

enum dtype model_dtype(const struct model *m) {
    size_t by_type[DTYPE_COUNT];
    bytes_by_type(m, by_type);
    int best = 0;
    for (int i = 1; i < DTYPE_COUNT; i++)
        if (by_type[i] > by_type[best]) best = i;
    return (enum dtype)best;
}

size_t model_weight_bytes(const struct model *m) {
    size_t by_type[DTYPE_COUNT];
    return bytes_by_type(m, by_type);
}

int model_plan(const struct model *m, int n, struct shard_plan *out, struct error *e) {
    int32_t grain = m->config.ffn % 16 == 0 ? 16 : 1;
    for (int32_t i = 0; i < m->config.n_layers; i++) {
        int32_t block = dtype_info((enum dtype)m->layers[i].matrix[MAT_DOWN]->type)->block;
        if (block > grain) grain = block;
    }
    return shard_plan_make(out, &m->config, n, grain, e);
}
