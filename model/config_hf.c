/* config.json and generation_config.json, with the defaults of the model classes of transformers.
 */
#include "model/config_parts.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { NONE = -1 };

struct class {
    const char *architecture;
    /* Defaults of absent members. */
    int32_t kv_heads; /* 0: as many as heads */
    int32_t head_dim; /* 0: hidden / heads */
    int32_t max_len, bos, eos;
    int32_t window;       /* sliding_window, where the class looks at it; 0: it does not */
    bool window_switched; /* only with use_sliding_window, and from max_window_layers on */
    bool attention_bias;  /* looks at attention_bias (q, k, v and o) */
    bool mlp_bias;        /* looks at mlp_bias */
};

static const struct class classes[ARCH_COUNT] = {
    [ARCH_LLAMA] = {"LlamaForCausalLM", 0, 0, 2048, 1, 2, 0, false, true, true},
    [ARCH_MISTRAL] = {"MistralForCausalLM", 8, 0, 131072, 1, 2, 4096, false, false, false},
    [ARCH_GRANITE] = {"GraniteForCausalLM", 0, 0, 2048, 1, 2, 0, false, true, true},
    [ARCH_QWEN2] = {"Qwen2ForCausalLM", 32, 0, 32768, NONE, NONE, 4096, true, false, false},
    [ARCH_QWEN3] = {"Qwen3ForCausalLM", 32, 128, 32768, NONE, NONE, 4096, true, true, false},
};

/* ---- members ---- */

static int as_bad_file(const struct error *why, const char *path, struct error *e) {
    return error_bad_file(e, path, "field", why->n_notes ? why->notes[0].text : "", "%s",
                          why->message);
}

int hf_int(const json_t *object, const char *key, int64_t min, int64_t max, int32_t *out,
           const char *path, struct error *e) {
    struct error why;
    int64_t value = *out;
    if (json_get_int(object, key, min, max, &value, &why) != 0) return as_bad_file(&why, path, e);
    *out = (int32_t)value;
    return 0;
}

int hf_number(const json_t *object, const char *key, double min, double max, double *out,
              const char *path, struct error *e) {
    struct error why;
    return json_get_number(object, key, min, max, out, &why) ? as_bad_file(&why, path, e) : 0;
}

int hf_bool(const json_t *object, const char *key, bool *out, const char *path, struct error *e) {
    struct error why;
    return json_get_bool(object, key, out, &why) ? as_bad_file(&why, path, e) : 0;
}

int hf_string(const json_t *object, const char *key, const char **out, const char *path,
              struct error *e) {
    struct error why;
    return json_get_string(object, key, out, &why) ? as_bad_file(&why, path, e) : 0;
}

static bool absent(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return !value || json_is_null(value);
}

static int required_int(const json_t *config, const char *key, int64_t max, int32_t *out,
                        const char *path, struct error *e) {
    if (absent(config, key)) return FIELD_FAULT(e, path, key, "is missing");
    return hf_int(config, key, 1, max, out, path, e);
}

/* ---- architecture ---- */

static int unsupported(const char *path, const char *field, const char *name, struct error *e) {
    char list[128] = "";
    for (int i = 0; i < ARCH_COUNT; i++)
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? ", " : "",
                 arch_name((enum arch)i));
    return error_bad_file(e, path, "field", field,
                          "architecture \"%.80s\" is not supported; tpd runs %s", name, list);
}

static int read_arch(struct model_config *c, const json_t *config, const char *path,
                     struct error *e) {
    const char *model_type = NULL;
    int err = hf_string(config, "model_type", &model_type, path, e);
    if (err) return err;
    const json_t *list = json_object_get(config, "architectures");
    const char *architecture = json_string_value(json_array_get(list, 0));
    if (!model_type && !architecture)
        return FIELD_FAULT(e, path, "model_type", "is missing, and so is architectures");

    for (int i = 0; i < ARCH_COUNT; i++) {
        if (model_type ? strcmp(model_type, arch_name((enum arch)i)) != 0
                       : strcasecmp(architecture, classes[i].architecture) != 0)
            continue;
        /* A classifier or a bare encoder has the same model_type, but other tensors. */
        if (architecture && strcasecmp(architecture, classes[i].architecture) != 0)
            return unsupported(path, "architectures", architecture, e);
        c->arch = (enum arch)i;
        return 0;
    }
    return unsupported(path, model_type ? "model_type" : "architectures",
                       model_type ? model_type : architecture, e);
}

/* ---- features that would change the numbers, and that tpd does not have ---- */

static const struct {
    const char *key;
    bool allow_number; /* this value is as good as absent: */
    double harmless;
    const char *feature;
} refused[] = {
    {"num_local_experts", true, 0, "a mixture of experts is not supported"},
    {"num_experts", true, 0, "a mixture of experts is not supported"},
    {"n_routed_experts", true, 0, "a mixture of experts is not supported"},
    {"attn_logit_softcapping", true, 0, "soft capping of attention scores is not supported"},
    {"final_logit_softcapping", true, 0, "soft capping of logits is not supported"},
    {"partial_rotary_factor", true, 1, "partial rotary embeddings are not supported"},
    {"rotary_pct", true, 1, "partial rotary embeddings are not supported"},
    {"alibi", false, 0, "ALiBi positions are not supported"},
    {"use_qk_norm", false, 0, "norms of q and k are supported in qwen3 only"},
    {"qk_layernorm", false, 0, "norms of q and k are supported in qwen3 only"},
    {"no_rope_layers", false, 0, "layers without rotary positions are not supported"},
};

static int refuse_features(const json_t *config, const char *path, struct error *e) {
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        const json_t *value = json_object_get(config, refused[i].key);
        if (!value || json_is_null(value) || json_is_false(value)) continue;
        if (refused[i].allow_number && json_is_number(value) &&
            json_number_value(value) == refused[i].harmless)
            continue;
        return FIELD_FAULT(e, path, refused[i].key, "%s", refused[i].feature);
    }
    const json_t *quant = json_object_get(config, "quantization_config");
    if (quant && !json_is_null(quant)) {
        const char *method = json_string_value(json_object_get(quant, "quant_method"));
        return FIELD_FAULT(e, path, "quantization_config",
                           "weights quantized with %.40s are not supported: use F32, F16 or BF16 "
                           "weights, or a GGUF file",
                           method ? method : "an unnamed method");
    }
    const char *act = "silu";
    int err = hf_string(config, "hidden_act", &act, path, e);
    if (!err && strcmp(act, "silu") != 0 && strcmp(act, "swish") != 0)
        return FIELD_FAULT(e, path, "hidden_act", "\"%.40s\" is not supported; only silu is", act);
    return err;
}

/* ---- sizes ---- */

static int read_head_dim(struct model_config *c, const json_t *config, const struct class *class,
                         const char *path, struct error *e) {
    bool is_null = json_is_null(json_object_get(config, "head_dim"));
    c->head_dim = is_null ? 0 : class->head_dim;
    int err = hf_int(config, "head_dim", 1, MAX_HEAD_DIM, &c->head_dim, path, e);
    if (err || c->head_dim) return err;
    if (c->hidden % c->n_heads != 0)
        return FIELD_FAULT(e, path, "hidden_size",
                           "%d is not a multiple of num_attention_heads = %d, and there is no "
                           "head_dim",
                           c->hidden, c->n_heads);
    c->head_dim = c->hidden / c->n_heads;
    if (c->head_dim > MAX_HEAD_DIM)
        return FIELD_FAULT(e, path, "hidden_size", "%d makes heads of %d; at most %d is taken",
                           c->hidden, c->head_dim, MAX_HEAD_DIM);
    return 0;
}

static int read_sizes(struct model_config *c, const json_t *config, const struct class *class,
                      const char *path, struct error *e) {
    int err = required_int(config, "hidden_size", MAX_HIDDEN, &c->hidden, path, e);
    if (!err) err = required_int(config, "num_attention_heads", MAX_HEADS, &c->n_heads, path, e);
    if (!err) err = read_head_dim(c, config, class, path, e);
    if (!err) err = required_int(config, "num_hidden_layers", MAX_LAYERS, &c->n_layers, path, e);
    if (!err) err = required_int(config, "intermediate_size", MAX_FFN, &c->ffn, path, e);
    if (!err) err = required_int(config, "vocab_size", MAX_VOCAB, &c->vocab, path, e);
    if (err) return err;

    bool is_null = json_is_null(json_object_get(config, "num_key_value_heads"));
    c->n_kv_heads = is_null || !class->kv_heads ? c->n_heads : class->kv_heads;
    err = hf_int(config, "num_key_value_heads", 1, MAX_HEADS, &c->n_kv_heads, path, e);
    c->max_len = class->max_len;
    if (!err) err = hf_int(config, "max_position_embeddings", 1, MAX_LEN, &c->max_len, path, e);
    double eps = 1e-6;
    if (!err) err = hf_number(config, "rms_norm_eps", 1e-30, 1, &eps, path, e);
    c->norm_eps = (float)eps;
    return err;
}

static int read_biases(struct model_config *c, const json_t *config, const struct class *class,
                       const char *path, struct error *e) {
    bool attention = false;
    int err = class->attention_bias ? hf_bool(config, "attention_bias", &attention, path, e) : 0;
    if (!err && class->mlp_bias) err = hf_bool(config, "mlp_bias", &c->mlp_bias, path, e);
    c->q_bias = c->k_bias = c->v_bias = attention || c->arch == ARCH_QWEN2;
    c->o_bias = attention;
    c->qk_norm = c->arch == ARCH_QWEN3;
    if (!err) err = hf_bool(config, "tie_word_embeddings", &c->tied_head, path, e);
    return err;
}

static int read_granite(struct model_config *c, const json_t *config, const char *path,
                        struct error *e) {
    c->embedding_multiplier = c->residual_multiplier = c->logits_scaling = 1;
    if (c->arch != ARCH_GRANITE) return 0;
    c->attention_multiplier = 1; /* the class's default, not 1/sqrt(head_dim) */
    const struct {
        const char *key;
        float *out;
    } members[] = {{"embedding_multiplier", &c->embedding_multiplier},
                   {"attention_multiplier", &c->attention_multiplier},
                   {"residual_multiplier", &c->residual_multiplier},
                   {"logits_scaling", &c->logits_scaling}};
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        double value = (double)*members[i].out;
        int err = hf_number(config, members[i].key, 1e-9, 1e9, &value, path, e);
        if (err) return err;
        *members[i].out = (float)value;
    }
    return 0;
}

/* ---- sliding window ---- */

/* layer_types says it layer by layer; what we can run is "the first so many layers see all". */
static int read_layer_types(struct model_config *c, const json_t *list, const char *path,
                            struct error *e) {
    if (json_array_size(list) != (size_t)c->n_layers)
        return FIELD_FAULT(e, path, "layer_types", "must be an array of num_hidden_layers = %d",
                           c->n_layers);
    int32_t full = 0;
    bool sliding = false;
    for (size_t i = 0; i < (size_t)c->n_layers; i++) {
        const char *type = json_string_value(json_array_get(list, i));
        bool is_full = type && strcmp(type, "full_attention") == 0;
        if (!is_full && (!type || strcmp(type, "sliding_attention") != 0))
            return FIELD_FAULT(e, path, "layer_types", "\"%.40s\" is not supported",
                               type ? type : "?");
        if (is_full && sliding)
            return FIELD_FAULT(e, path, "layer_types",
                               "full attention after sliding attention is not supported");
        if (is_full) full++;
        else sliding = true;
    }
    c->window_from_layer = full;
    if (!sliding) c->sliding_window = 0;
    return 0;
}

static int read_window(struct model_config *c, const json_t *config, const struct class *class,
                       const char *path, struct error *e) {
    if (!class->window) return 0;
    const json_t *value = json_object_get(config, "sliding_window");
    c->sliding_window = json_is_null(value) ? 0 : class->window;
    bool on = !class->window_switched;
    int err = hf_int(config, "sliding_window", 1, INT32_MAX, &c->sliding_window, path, e);
    if (!err && class->window_switched) err = hf_bool(config, "use_sliding_window", &on, path, e);
    if (err) return err;
    if (!on) c->sliding_window = 0;
    if (!class->window_switched || !c->sliding_window) return 0;

    const json_t *types = json_object_get(config, "layer_types");
    if (types && !json_is_null(types)) return read_layer_types(c, types, path, e);
    c->window_from_layer = 28;
    return hf_int(config, "max_window_layers", 0, INT32_MAX, &c->window_from_layer, path, e);
}

/* ---- token ids ---- */

static int add_eos(struct model_config *c, const json_t *object, const char *file, const char *path,
                   struct error *e) {
    const json_t *value = json_object_get(object, "eos_token_id");
    size_t n = json_is_array(value) ? json_array_size(value) : value && !json_is_null(value);
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_is_array(value) ? json_array_get(value, i) : value;
        if (!json_is_integer(id))
            return FIELD_FAULT(e, path, "eos_token_id", "%smust be an integer or a list of them",
                               file);
        if (!config_add_eos(c, json_integer_value(id)))
            return FIELD_FAULT(e, path, "eos_token_id", "%smore than %d ids", file, CONFIG_MAX_EOS);
    }
    return 0;
}

static int read_tokens(struct model_config *c, const json_t *config, const json_t *generation,
                       const struct class *class, const char *path, struct error *e) {
    int err = add_eos(c, config, "", path, e);
    if (!err) err = add_eos(c, generation, "of generation_config.json: ", path, e);
    if (!err && c->n_eos == 0 && !json_object_get(config, "eos_token_id")) /* null means none */
        config_add_eos(c, class->eos);

    c->bos_id = class->bos;
    if (json_is_null(json_object_get(config, "bos_token_id"))) c->bos_id = NONE;
    if (!err) err = hf_int(generation, "bos_token_id", NONE, MAX_VOCAB, &c->bos_id, path, e);
    if (!err) err = hf_int(config, "bos_token_id", NONE, MAX_VOCAB, &c->bos_id, path, e);
    if (c->bos_id >= c->vocab) c->bos_id = NONE;
    return err;
}

int config_from_hf(struct model_config *out, const json_t *config, const json_t *generation,
                   const char *path, struct error *e) {
    *out = (struct model_config){.bos_id = NONE};
    if (!json_is_object(config)) return error_bad_file(e, path, NULL, NULL, "is not a JSON object");
    int err = read_arch(out, config, path, e);
    if (err) return err;
    const struct class *class = &classes[out->arch];
    err = refuse_features(config, path, e);
    if (!err) err = read_sizes(out, config, class, path, e);
    if (!err) err = read_biases(out, config, class, path, e);
    if (!err) err = read_granite(out, config, path, e);
    if (!err) err = read_window(out, config, class, path, e);
    if (!err) err = config_rope_from_hf(out, config, path, e);
    if (!err) err = read_tokens(out, config, generation, class, path, e);
    static const struct config_names names = {"num_attention_heads", "num_key_value_heads",
                                              "head_dim"};
    return err ? err : config_check(out, &names, path, e);
}
