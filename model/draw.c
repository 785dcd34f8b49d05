/* Begins a model: the weights that transformers' classes begin with, drawn from a seed.
 *
 * Every value follows from the seed, the tensor's name and its place in the tensor alone, so neither the
 * split nor the order of loading can move it. */
#include "model/draw.h"

#include "model/config_parts.h"
#include "model/model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- which tensors ------------------------------------------------------------------------------- */

static void list(struct store_tensor *all, size_t *n, const struct store_tensor *t) {
    if (t) all[(*n)++] = *t;
}

/* Every tensor of the model, in one array; the caller frees it. NULL: no memory. */
static struct store_tensor *list_tensors(const struct model *m, size_t *n) {
    int32_t layers = m->config.n_layers;
    struct store_tensor *all = calloc(3 + (size_t)layers * (2 * MAT_COUNT + NORM_COUNT), sizeof *all);
    *n = 0;
    if (!all) return NULL;
    list(all, n, m->embed);
    for (int32_t i = 0; i < layers; i++) {
        const struct layer_tensors *l = &m->layers[i];
        for (int k = 0; k < MAT_COUNT; k++) list(all, n, l->matrix[k]);
        for (int k = 0; k < MAT_COUNT; k++) list(all, n, l->bias[k]);
        for (int k = 0; k < NORM_COUNT; k++) list(all, n, l->norm[k]);
    }
    list(all, n, m->norm);
    if (m->head != m->embed) list(all, n, m->head);
    return all;
}

/* --- values --------------------------------------------------------------------------------------- */

struct drawing {
    uint64_t seed;
    double deviation;   /* initializer_range */
    int64_t padding_id; /* its row of the embedding is zero; -1 = none */
};

static uint64_t mix(uint64_t x) {
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

static uint64_t key_of(uint64_t seed, const char *name) {
    uint64_t key = mix(seed);
    for (; *name; name++) key = mix(key ^ (unsigned char)*name);
    return key;
}

/* Values 2 pair and 2 pair + 1 of a stream of standard normals (Box and Muller). */
static void normal_pair(uint64_t key, uint64_t pair, double out[2]) {
    uint64_t a = mix(key + 2 * pair), b = mix(key + 2 * pair + 1);
    double radius = sqrt(-2 * log(((double)(a >> 11) + 0.5) * 0x1p-53));
    double angle = 2 * M_PI * ((double)(b >> 11) * 0x1p-53);
    out[0] = radius * cos(angle);
    out[1] = radius * sin(angle);
}

static void put_value(uint8_t *data, int type, size_t i, float value) {
    uint16_t half = type == DTYPE_BF16 ? f32_to_bf16(value) : f32_to_f16(value);
    if (type == DTYPE_F32) memcpy(data + i * sizeof value, &value, sizeof value);
    else memcpy(data + i * sizeof half, &half, sizeof half);
}

static bool has_suffix(const char *name, const char *suffix) {
    size_t n = strlen(name), m = strlen(suffix);
    return n >= m && strcmp(name + n - m, suffix) == 0;
}

/* Fills one tensor; the memory is zero, as biases stay. */
static void draw(void *user, const struct store_tensor *t, uint8_t *data) {
    const struct drawing *d = user;
    if (t->n_dims == 1) { /* norms are one */
        for (int64_t i = 0; i < t->dims[0] && !has_suffix(t->name, ".bias"); i++)
            put_value(data, t->type, (size_t)i, 1);
        return;
    }
    uint64_t key = key_of(d->seed, t->name);
    size_t n = (size_t)t->dims[0] * (size_t)t->dims[1];
    for (size_t i = 0; i < n; i += 2) {
        double pair[2];
        normal_pair(key, i / 2, pair);
        put_value(data, t->type, i, (float)(d->deviation * pair[0]));
        if (i + 1 < n) put_value(data, t->type, i + 1, (float)(d->deviation * pair[1]));
    }
    if (strcmp(t->name, "model.embed_tokens.weight") != 0 || d->padding_id < 0) return;
    size_t row = t->bytes / (size_t)t->dims[0];
    memset(data + (size_t)d->padding_id * row, 0, row);
}

/* -------------------------------------------------------------------------------------------------- */

int draw_weights(struct store **out, const json_t *config, const char *path, uint64_t seed,
                 struct error *e) {
    struct drawing d = {.seed = seed, .deviation = 0.02};
    struct model *shapes;
    bool assumed;
    int err = model_outline(&shapes, config, path, -1, &assumed, e);
    if (err) return err;
    int32_t padding = -1;
    size_t n = 0;
    struct store_tensor *all = NULL;
    err = hf_number(config, "initializer_range", 0, 100, &d.deviation, path, e);
    if (!err) err = hf_int(config, "pad_token_id", -1, shapes->config.vocab - 1, &padding, path, e);
    d.padding_id = padding;
    if (!err && !(all = list_tensors(shapes, &n)))
        err = error_set(e, ERR_MEMORY, "no memory for the list of tensors");
    if (!err) err = store_make(out, path, all, n, draw, &d, e);
    free(all);
    model_free(shapes);
    return err;
}
