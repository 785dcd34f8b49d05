#include "daemon/inspect_report.h"

#include "base/file.h"
#include "daemon/inspect_adapter.h"
#include "daemon/json_out.h"
#include "formats/gguf.h"
#include "model/model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { INLINE_ELEMENTS = 16 };

/* What was opened: a model with its store, or a store alone. */
struct subject {
    struct model *model;
    struct store *own;
    const struct store *store;
    struct model_config gguf_config;
    const struct model_config *config; /* NULL: no model, only tensors */
    char note[512];
};

/* ---- opening ---- */

static bool has_foreign_types(const struct store *store) {
    for (size_t i = 0; i < store_count(store); i++)
        if (store_at(store, i)->type < 0) return true;
    return false;
}

/* A .gguf or .safetensors file. A GGUF file that names an architecture and has tensors must be a
 * whole model; where tpd does not compute with its types, it is still shown. */
static int open_file(struct subject *s, const char *path, struct error *e) {
    int err = store_open(&s->own, path, e);
    if (err) return err;
    s->store = s->own;
    const struct gguf *gguf = store_gguf(s->own);
    struct gguf_string arch;
    int got = gguf ? gguf_get_string(gguf, "general.architecture", &arch, e) : 0;
    if (got < 0) return got;
    if (got == 0 || store_count(s->own) == 0) return 0;

    if (has_foreign_types(s->own)) {
        err = config_from_gguf(&s->gguf_config, gguf, e);
        if (err) return err;
        s->config = &s->gguf_config;
        struct error why;
        if (model_open(&s->model, path, &why) != 0) memcpy(s->note, why.message, sizeof s->note);
        return 0;
    }
    store_close(s->own);
    s->own = NULL;
    err = model_open(&s->model, path, e);
    if (err) return err;
    s->store = model_store(s->model);
    s->config = model_config(s->model);
    return 0;
}

static int open_directory(struct subject *s, const char *path, struct error *e) {
    int err = model_open(&s->model, path, e);
    if (err) return err;
    s->store = model_store(s->model);
    s->config = model_config(s->model);
    return 0;
}

/* ---- describing ---- */

static json_t *describe_config(const struct model_config *c) {
    json_t *eos = json_array();
    for (int32_t i = 0; i < c->n_eos; i++) json_array_append_new(eos, json_integer(c->eos_ids[i]));
    json_t *out = json_pack(
        "{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:f, s:b, s:b, s:b, s:b, s:i}",
        "architecture", arch_name(c->arch), "layers", c->n_layers, "hidden", c->hidden, "ffn",
        c->ffn, "heads", c->n_heads, "kv_heads", c->n_kv_heads, "head_dim", c->head_dim, "vocab",
        c->vocab, "context", c->max_len, "norm_eps", (double)c->norm_eps, "tied_head", c->tied_head,
        "attention_bias", c->q_bias || c->k_bias || c->v_bias || c->o_bias, "mlp_bias", c->mlp_bias,
        "qk_norm", c->qk_norm, "sliding_window", c->sliding_window);
    json_object_set_new(out, "rope",
                        json_pack("{s:s, s:f, s:f, s:i, s:b}", "type", rope_kind_name(c->rope.kind),
                                  "theta", c->rope.base, "factor", c->rope.factor,
                                  "original_context", c->rope.original_len, "factors_tensor",
                                  c->rope.freq_factors_tensor));
    if (c->arch == ARCH_GRANITE)
        json_object_set_new(
            out, "multipliers",
            json_pack("{s:f, s:f, s:f, s:f}", "embedding", (double)c->embedding_multiplier,
                      "attention", (double)c->attention_multiplier, "residual",
                      (double)c->residual_multiplier, "logits", (double)c->logits_scaling));
    if (c->bos_id >= 0) json_object_set_new(out, "bos_id", json_integer(c->bos_id));
    json_object_set_new(out, "eos_ids", eos);
    return out;
}

static void describe_tensors(json_t *out, const struct store *store) {
    json_t *list = json_array(), *by_dtype = json_object();
    json_int_t parameters = 0, bytes = 0;
    for (size_t i = 0; i < store_count(store); i++) {
        const struct store_tensor *t = store_at(store, i);
        json_t *shape = json_array();
        json_int_t elements = 1;
        for (int d = 0; d < t->n_dims; d++) {
            json_array_append_new(shape, json_integer(t->dims[d]));
            elements *= t->dims[d];
        }
        json_int_t before = json_integer_value(json_object_get(by_dtype, t->type_name));
        json_object_set_new(by_dtype, t->type_name, json_integer(before + (json_int_t)t->bytes));
        parameters += elements;
        bytes += (json_int_t)t->bytes;
        json_t *entry = json_object();
        json_object_set_new(entry, "name", json_text(t->name, strlen(t->name)));
        json_object_set_new(entry, "dtype", json_string(t->type_name));
        json_object_set_new(entry, "shape", shape);
        json_object_set_new(entry, "bytes", json_integer((json_int_t)t->bytes));
        json_array_append_new(list, entry);
    }
    json_object_set_new(out, "parameters", json_integer(parameters));
    json_object_set_new(out, "bytes", json_integer(bytes));
    json_object_set_new(out, "bytes_by_dtype", by_dtype);
    json_object_set_new(out, "tensor_count", json_integer((json_int_t)store_count(store)));
    json_object_set_new(out, "tensors", list);
}

/* JSON has no NaN and no infinity; GGUF may. */
static json_t *number_of(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *array_of(const struct gguf_array *array) {
    if (array->count > INLINE_ELEMENTS)
        return json_pack("{s:s, s:I}", "array", gguf_type_name(array->element), "count",
                         (json_int_t)array->count);
    json_t *out = json_array();
    struct gguf_string text;
    size_t cursor = 0;
    while (gguf_array_next_string(array, &cursor, &text))
        json_array_append_new(out, json_text(text.data, text.size));
    bool is_float = array->element == GGUF_F32 || array->element == GGUF_F64;
    for (uint64_t i = 0; array->element != GGUF_STRING && i < array->count; i++)
        json_array_append_new(out, is_float ? number_of(gguf_array_float(array, i))
                                            : json_integer(gguf_array_int(array, i)));
    return out;
}

static json_t *value_of(const struct gguf *gguf, const char *key, enum gguf_type type) {
    struct gguf_string text;
    struct gguf_array array;
    double number;
    int64_t integer;
    bool yes;
    switch (type) {
    case GGUF_STRING:
        return gguf_get_string(gguf, key, &text, NULL) == 1 ? json_text(text.data, text.size) : NULL;
    case GGUF_ARRAY: return gguf_get_array(gguf, key, &array, NULL) == 1 ? array_of(&array) : NULL;
    case GGUF_F32:
    case GGUF_F64: return gguf_get_float(gguf, key, &number, NULL) == 1 ? number_of(number) : NULL;
    case GGUF_BOOL: return gguf_get_bool(gguf, key, &yes, NULL) == 1 ? json_boolean(yes) : NULL;
    case GGUF_U8:
    case GGUF_I8:
    case GGUF_U16:
    case GGUF_I16:
    case GGUF_U32:
    case GGUF_I32:
    case GGUF_U64:
    case GGUF_I64:
        return gguf_get_int(gguf, key, &integer, NULL) == 1 ? json_integer(integer) : NULL;
    case GGUF_TYPE_COUNT: break;
    }
    return NULL;
}

static json_t *describe_metadata(const struct gguf *gguf) {
    json_t *out = json_object();
    for (uint64_t i = 0; i < gguf_key_count(gguf); i++) {
        enum gguf_type type;
        struct gguf_string name = gguf_key(gguf, i, &type);
        char *key = strndup(name.data, name.size);
        if (!key) continue;
        json_t *value = value_of(gguf, key, type);
        json_object_set_new(out, key, value ? value : json_null());
        free(key);
    }
    return out;
}

int inspect_report(json_t **out, const char *path, struct error *e) {
    struct subject s = {0};
    json_t *adapter = NULL;
    int err;
    if (path_is_dir(path) && adapter_directory(path)) err = inspect_adapter_open(&s.own, &adapter, path, e);
    else if (path_is_dir(path)) err = open_directory(&s, path, e);
    else err = open_file(&s, path, e);
    if (!err) {
        if (adapter) s.store = s.own;
        json_t *report = json_object();
        json_object_set_new(report, "path", json_text(path, strlen(path)));
        json_object_set_new(report, "kind",
                            json_string(adapter    ? "adapter"
                                        : s.config ? "model"
                                                   : "tensors"));
        json_object_set_new(report, "format", json_string(store_format(s.store)));
        json_object_set_new(report, "files", json_integer((json_int_t)store_file_count(s.store)));
        if (s.config) json_object_set_new(report, "model", describe_config(s.config));
        if (adapter) json_object_set(report, "adapter", adapter);
        if (s.note[0]) json_object_set_new(report, "note", json_string(s.note));
        const struct gguf *gguf = store_gguf(s.store);
        if (gguf) {
            json_object_set_new(report, "gguf_version", json_integer(gguf_version(gguf)));
            json_object_set_new(report, "metadata", describe_metadata(gguf));
        }
        describe_tensors(report, s.store);
        *out = report;
    }
    json_decref(adapter);
    model_free(s.model);
    store_close(s.own);
    return err;
}
