/* Opens a PEFT adapter and holds every tensor of it against the model. */
#include "model/adapter_private.h"

#include "base/file.h"
#include "base/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int32_t adapter_rank(const struct adapter *a) { return a->r; }
float adapter_scale(const struct adapter *a) { return a->scale; }

static int refuse(struct error *e, const char *path, const char *key, const char *why) {
    return error_bad_file(e, path, "field", key, "%s %s", key, why);
}

static int read_config(struct adapter *a, const char *path, struct error *e) {
    json_t *json = json_read_file(path, 1 << 20, e);
    if (!json) return -(int)ERR_BAD_FILE;
    const char *type = NULL, *bias = "none";
    bool rslora = false, dora = false;
    int64_t r = 0;
    double alpha = 0;
    int err = json_get_string(json, "peft_type", &type, e);
    if (!err) err = json_get_string(json, "bias", &bias, e);
    if (!err) err = json_get_int(json, "r", 1, 4096, &r, e);
    if (!err) err = json_get_number(json, "lora_alpha", -1e6, 1e6, &alpha, e);
    if (!err) err = json_get_bool(json, "use_rslora", &rslora, e);
    if (!err) err = json_get_bool(json, "use_dora", &dora, e);
    if (err) error_bad_file(e, path, NULL, NULL, "%s", e ? e->message : "");
    else if (!type || strcmp(type, "LORA") != 0)
        err = refuse(e, path, "peft_type", "is not LORA: tpd serves LoRA adapters");
    else if (strcmp(bias, "none") != 0)
        err = refuse(e, path, "bias", "is not \"none\": trained biases are not served");
    else if (dora) err = refuse(e, path, "use_dora", "is true: DoRA is not served");
    else if (r == 0) err = refuse(e, path, "r", "is missing");
    else if (json_array_size(json_object_get(json, "modules_to_save")) > 0)
        err = refuse(e, path, "modules_to_save", "is not empty: whole modules are not served");
    else if (json_object_size(json_object_get(json, "rank_pattern")) ||
             json_object_size(json_object_get(json, "alpha_pattern")))
        err = refuse(e, path, "rank_pattern",
                     "(or alpha_pattern) is not empty: one rank and alpha for all targets are served");
    a->r = (int32_t)r;
    a->scale = (float)(alpha / (rslora ? sqrt((double)r) : (double)r));
    json_decref(json);
    return err;
}

static int fit(const struct store_tensor *t, int64_t rows, int64_t cols, struct error *e) {
    if (t->n_dims == 2 && t->dims[0] == rows && t->dims[1] == cols && t->type >= 0 &&
        !dtype_is_quantised((enum dtype)t->type))
        return 0;
    return error_bad_file(e, t->file, "tensor", t->name,
                          "tensor %s does not fit the model: it should be [%lld, %lld] of F32, F16 or "
                          "BF16",
                          t->name, (long long)rows, (long long)cols);
}

static int find_pair(struct adapter *a, const struct model_config *c, int32_t layer, int m,
                     struct error *e) {
    char name[128];
    const struct matrix_rule *rule = &matrix_rules[m];
    struct adapter_pair *pair = &a->pairs[layer * MAT_COUNT + m];
    snprintf(name, sizeof name, "base_model.model.model.layers.%d.%s.lora_A.weight", layer,
             rule->name);
    pair->a = store_find(a->store, name);
    snprintf(name, sizeof name, "base_model.model.model.layers.%d.%s.lora_B.weight", layer,
             rule->name);
    pair->b = store_find(a->store, name);
    if (!pair->a && !pair->b) return 0;
    if (!pair->a || !pair->b)
        return error_bad_file(e, (pair->a ? pair->a : pair->b)->file, "tensor", name,
                              "tensor %s has no partner: A and B come in pairs",
                              (pair->a ? pair->a : pair->b)->name);
    int err = fit(pair->a, a->r, axis_size(c, rule->cols), e);
    if (!err) err = fit(pair->b, axis_size(c, rule->rows), a->r, e);
    a->n_pairs += !err;
    a->targets |= 1u << m;
    return err;
}

/* A tensor that belongs to no pair of the model's layers: left out, the adapter would say something else
 * than where it was made. */
static int check_all_used(const struct adapter *a, size_t n_pairs, const char *path, struct error *e) {
    for (size_t i = 0; 2 * a->n_pairs != store_count(a->store) && i < store_count(a->store); i++) {
        const struct store_tensor *t = store_at(a->store, i);
        bool used = false;
        for (size_t p = 0; p < n_pairs && !used; p++) used = a->pairs[p].a == t || a->pairs[p].b == t;
        if (!used)
            return error_bad_file(e, path, "tensor", t->name,
                                  "tensor %s is no LoRA of a linear layer of this model: the adapter was "
                                  "made for another model, or trains more than tpd serves",
                                  t->name);
    }
    return 0;
}

int adapter_open(struct adapter **out, const struct model *model, const char *dir,
                 struct error *e) {
    struct adapter *a = calloc(1, sizeof *a);
    char *config = path_join(dir, "adapter_config.json");
    char *tensors = path_join(dir, "adapter_model.safetensors");
    const struct model_config *c = &model->config;
    int err = 0;
    if (a) a->pairs = calloc((size_t)c->n_layers * MAT_COUNT, sizeof *a->pairs);
    if (!a || !a->pairs || !config || !tensors)
        err = error_set(e, ERR_MEMORY, "no memory to open an adapter");
    else if (!path_exists(config)) {
        err = error_set(e, ERR_NOT_FOUND,
                        "%s: no adapter is here: it would have adapter_config.json and "
                        "adapter_model.safetensors",
                        dir);
        error_note(e, "path", dir);
    }
    if (!err) err = read_config(a, config, e);
    if (!err) err = store_open(&a->store, tensors, e);
    for (int32_t i = 0; i < c->n_layers && !err; i++)
        for (int m = 0; m < MAT_COUNT && !err; m++) err = find_pair(a, c, i, m, e);
    if (!err) err = check_all_used(a, (size_t)c->n_layers * MAT_COUNT, tensors, e);
    free(config);
    free(tensors);
    if (err) {
        adapter_close(a);
        return err;
    }
    *out = a;
    return 0;
}

unsigned adapter_targets(const struct adapter *a) { return a->targets; }

bool adapter_read(const struct adapter *a, const char *name, size_t floats, float *out) {
    const struct store_tensor *t = store_find(a->store, name);
    if (!t || (size_t)(t->dims[0] * t->dims[1]) != floats) {
        memset(out, 0, floats * sizeof *out);
        return false;
    }
    tensor_read(t, 0, 0, (int32_t)t->dims[0], 0, (int32_t)t->dims[1], out);
    return true;
}

int adapter_check(const struct adapter *a, struct error *e) {
    for (size_t i = 0; i < store_count(a->store); i++) {
        int err = store_tensor_check(store_at(a->store, i), e);
        if (err) return err;
    }
    return 0;
}

void adapter_close(struct adapter *a) {
    if (!a) return;
    store_close(a->store);
    free(a->pairs);
    free(a);
}

/* --- on a rank ----------------------------------------------------------------------------------- */

static void release(struct shard *s, struct shard_adapter *slot) {
    for (int32_t i = 0; slot->low && i < s->config->n_layers * MAT_COUNT; i++) {
        if (slot->low[i].a) s->ctx->ops->mem_free(s->ctx, slot->low[i].a);
        if (slot->low[i].b) s->ctx->ops->mem_free(s->ctx, slot->low[i].b);
    }
    if (slot->z) s->ctx->ops->mem_free(s->ctx, slot->z);
    free(slot->low);
    *slot = (struct shard_adapter){0};
}

/* Uploads columns col0 … of rows row0 …, with `pad` zero columns before and after up to `width`. */
static int put(struct shard *s, const struct store_tensor *t, int32_t row0, int32_t row1, int32_t col0,
               int32_t col1, int32_t pad, int32_t width, dev_addr *out, struct error *e) {
    size_t n = (size_t)(row1 - row0) * (size_t)width;
    float *values = calloc(n, sizeof *values);
    if (!values) return error_set(e, ERR_MEMORY, "no memory for tensor %s", t->name);
    for (int32_t r = row0; r < row1; r++)
        tensor_read(t, 0, r, r + 1, col0, col1, values + (size_t)(r - row0) * (size_t)width + pad);
    int err = store_tensor_check(t, e);
    if (!err) err = s->ctx->ops->mem_alloc(s->ctx, MEM_WEIGHTS, n * sizeof *values, out, e);
    if (!err) s->ctx->ops->upload(s->ctx, *out, values, n * sizeof *values);
    free(values);
    return err;
}

static int put_pair(struct shard *s, const struct adapter *a, int32_t layer, int m,
                    struct low_rank *out, struct error *e) {
    const struct adapter_pair *pair = &a->pairs[layer * MAT_COUNT + m];
    const struct matrix_rule *rule = &matrix_rules[m];
    int32_t row0, row1, col0, col1;
    axis_range(s->config, s->plan, s->rank, rule->rows, &row0, &row1);
    axis_range(s->config, s->plan, s->rank, rule->cols, &col0, &col1);
    if (!pair->a || row0 == row1 || col0 == col1) return 0;
    bool heads = rule->cols == AXIS_HEADS;
    out->rows = row1 - row0;
    out->cols = heads ? s->attn_cols : col1 - col0;
    int err = put(s, pair->a, 0, a->r, col0, col1, heads ? s->attn_first : 0, out->cols, &out->a, e);
    return err ? err : put(s, pair->b, row0, row1, 0, a->r, 0, a->r, &out->b, e);
}

int shard_adapter_set(struct shard *s, int slot, const struct adapter *a, struct error *e) {
    struct shard_adapter *to = &s->adapters[slot];
    release(s, to);
    if (!a) return 0;
    int32_t n = s->config->n_layers;
    to->r = a->r;
    to->scale = a->scale;
    to->low = calloc((size_t)n * MAT_COUNT, sizeof *to->low);
    int err = to->low ? 0 : error_set(e, ERR_MEMORY, "no memory for an adapter");
    for (int32_t i = 0; i < n && !err; i++)
        for (int m = 0; m < MAT_COUNT && !err; m++)
            err = put_pair(s, a, i, m, &to->low[i * MAT_COUNT + m], e);
    if (!err)
        err = s->ctx->ops->mem_alloc(s->ctx, MEM_ACTIVATIONS,
                                     (size_t)s->options.max_rows * (size_t)a->r * sizeof(float),
                                     &to->z, e);
    if (!err) err = s->ctx->ops->wait(s->ctx, e);
    if (err) release(s, to);
    return err;
}

void shard_adapters_free(struct shard *s) {
    for (int i = 0; i < SHARD_ADAPTERS; i++) release(s, &s->adapters[i]);
}

void shard_adapters_add(struct shard *s, const struct step *step, int32_t layer, enum matrix m,
                        dev_addr x, dev_addr y) {
    if (!step->adapter) return;
    for (int32_t from = 0, to; from < step->n_rows; from = to) {
        int slot = step->adapter[step->seq[from]];
        for (to = from + 1; to < step->n_rows && step->adapter[step->seq[to]] == slot;) to++;
        const struct shard_adapter *a = slot >= 0 ? &s->adapters[slot] : NULL;
        const struct low_rank *l = a && a->low ? &a->low[layer * MAT_COUNT + m] : NULL;
        if (!l || !l->a) continue;
        const struct kernels *ops = s->ctx->ops;
        dev_addr in = x + (size_t)from * (size_t)l->cols * sizeof(float);
        dev_addr out = y + (size_t)from * (size_t)l->rows * sizeof(float);
        ops->matmul(s->ctx, a->z, to - from, a->r, l->cols, in, false, l->a, true, 1, 0);
        ops->matmul(s->ctx, out, to - from, l->rows, a->r, a->z, false, l->b, true, a->scale, 1);
    }
}
