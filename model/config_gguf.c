/* The shape of a model as GGUF metadata tell it: keys under the architecture's name. */
#include "model/config_parts.h"

#include "formats/gguf.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct source {
    const struct gguf *gguf;
    const char *path;
    const char *arch;
    char key[128]; /* the key last made */
    struct error *e;
};

/* ARCH.name, good until the next call. */
static const char *key_of(struct source *s, const char *name) {
    snprintf(s->key, sizeof s->key, "%s.%s", s->arch, name);
    return s->key;
}

#define KEY_FAULT(s, key, format, ...)                                                             \
    error_bad_file((s)->e, (s)->path, "key", key, "key \"%s\": " format, key, ##__VA_ARGS__)

/* 1 when it is there, 0 when not (out stays). */
static int get_int(struct source *s, const char *name, int64_t min, int64_t max, int32_t *out) {
    int64_t value;
    const char *key = key_of(s, name);
    int got = gguf_get_int(s->gguf, key, &value, s->e);
    if (got != 1) return got;
    if (value < min || value > max)
        return KEY_FAULT(s, key, "is %lld; it must be from %lld to %lld", (long long)value,
                         (long long)min, (long long)max);
    *out = (int32_t)value;
    return 1;
}

static int get_number(struct source *s, const char *name, double min, double max, double *out) {
    double value;
    const char *key = key_of(s, name);
    int got = gguf_get_float(s->gguf, key, &value, s->e);
    if (got != 1) return got;
    if (!(value >= min && value <= max))
        return KEY_FAULT(s, key, "is %g; it must be from %g to %g", value, min, max);
    *out = value;
    return 1;
}

static int missing(struct source *s) {
    return KEY_FAULT(s, s->key, "is missing");
}

static int required_int(struct source *s, const char *name, int64_t max, int32_t *out) {
    int got = get_int(s, name, 1, max, out);
    return got < 0 ? got : got == 0 ? missing(s) : 0;
}

static int refused(struct source *s, const char *what) {
    return KEY_FAULT(s, s->key, "%s", what);
}

static int read_arch(struct model_config *c, struct source *s) {
    struct gguf_string text = {"", 0};
    int got = gguf_get_string(s->gguf, "general.type", &text, s->e);
    if (got < 0) return got;
    if (got == 1 && !(text.size == 5 && memcmp(text.data, "model", 5) == 0))
        return KEY_FAULT(s, "general.type", "is \"%.*s\", not a model",
                         (int)(text.size < 40 ? text.size : 40), text.data);
    got = gguf_get_string(s->gguf, "general.architecture", &text, s->e);
    if (got < 0) return got;
    if (got == 0) return KEY_FAULT(s, "general.architecture", "is missing");
    /* Mistral models are llama to GGUF. */
    static const enum arch archs[] = {ARCH_LLAMA, ARCH_GRANITE, ARCH_QWEN2, ARCH_QWEN3};
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++) {
        const char *name = arch_name(archs[i]);
        if (text.size != strlen(name) || memcmp(text.data, name, text.size) != 0) continue;
        c->arch = archs[i];
        s->arch = name;
        return 0;
    }
    return KEY_FAULT(s, "general.architecture",
                     "architecture \"%.*s\" is not supported; tpd runs llama (mistral included), "
                     "granite, qwen2, qwen3",
                     (int)(text.size < 80 ? text.size : 80), text.data);
}

static int refuse_features(struct source *s) {
    int32_t experts = 0;
    int got = get_int(s, "expert_count", 0, INT32_MAX, &experts);
    if (got < 0) return got;
    if (experts > 0) return refused(s, "a mixture of experts is not supported");
    static const char *const caps[] = {"attn_logit_softcapping", "final_logit_softcapping"};
    for (int i = 0; i < 2; i++) {
        double cap = 0;
        got = get_number(s, caps[i], -1e9, 1e9, &cap);
        if (got < 0) return got;
        if (cap != 0) return refused(s, "soft capping is not supported");
    }
    bool positions = true;
    got = gguf_get_bool(s->gguf, key_of(s, "rope.scaling.finetuned"), &positions, s->e);
    if (got < 0) return got;
    /* llama.cpp reads it so for granite alone; elsewhere it is only a remark. */
    if (!positions && strcmp(s->arch, "granite") == 0)
        return refused(s, "a granite model without rotary positions is not supported");
    struct gguf_array sections;
    got = gguf_get_array(s->gguf, key_of(s, "rope.dimension_sections"), &sections, s->e);
    return got < 0 ? got : got ? refused(s, "rotary positions in sections are not supported") : 0;
}

static int read_head_dim(struct model_config *c, struct source *s) {
    int got = get_int(s, "attention.key_length", 1, MAX_HEAD_DIM, &c->head_dim);
    if (got < 0) return got;
    if (got == 0) {
        if (c->hidden % c->n_heads != 0 || c->hidden / c->n_heads > MAX_HEAD_DIM)
            return KEY_FAULT(s, s->key, "is missing, and an embedding of %d makes no %d heads",
                             c->hidden, c->n_heads);
        c->head_dim = c->hidden / c->n_heads;
    }
    static const char *const same[] = {"attention.value_length", "rope.dimension_count"};
    for (int i = 0; i < 2; i++) {
        int32_t value = c->head_dim;
        got = get_int(s, same[i], 0, INT32_MAX, &value);
        if (got < 0) return got;
        if (value != c->head_dim)
            return KEY_FAULT(s, s->key, "is %d, but a head has %d elements: %s", value, c->head_dim,
                             i ? "partial rotary embeddings are not supported"
                               : "they must be the same");
    }
    return 0;
}

/* Rows of the embedding, else the tokenizer's tokens, else vocab_size. */
static int read_vocab(struct model_config *c, struct source *s) {
    const struct gguf_tensor *embedding = gguf_tensor_find(s->gguf, "token_embd.weight");
    struct gguf_array tokens;
    int64_t vocab = 0;
    int got = gguf_get_array(s->gguf, "tokenizer.ggml.tokens", &tokens, s->e);
    if (got < 0) return got;
    if (embedding && embedding->n_dims == 2) vocab = embedding->dims[1];
    else if (got == 1) vocab = tokens.count > MAX_VOCAB ? INT64_MAX : (int64_t)tokens.count;
    else return required_int(s, "vocab_size", MAX_VOCAB, &c->vocab);
    if (vocab < 1 || vocab > MAX_VOCAB)
        return error_bad_file(s->e, s->path, NULL, NULL,
                              "a vocabulary of %lld tokens; it must be from 1 to %d",
                              (long long)vocab, MAX_VOCAB);
    c->vocab = (int32_t)vocab;
    return 0;
}

static int read_sizes(struct model_config *c, struct source *s) {
    int err = required_int(s, "embedding_length", MAX_HIDDEN, &c->hidden);
    if (!err) err = required_int(s, "block_count", MAX_LAYERS, &c->n_layers);
    if (!err) err = required_int(s, "feed_forward_length", MAX_FFN, &c->ffn);
    if (!err) err = required_int(s, "attention.head_count", MAX_HEADS, &c->n_heads);
    if (!err) err = required_int(s, "context_length", MAX_LEN, &c->max_len);
    if (err) return err;
    c->n_kv_heads = c->n_heads;
    int got = get_int(s, "attention.head_count_kv", 1, MAX_HEADS, &c->n_kv_heads);
    if (got < 0) return got;
    got = get_int(s, "attention.sliding_window", 0, INT32_MAX, &c->sliding_window);
    if (got < 0) return got;
    double eps;
    got = get_number(s, "attention.layer_norm_rms_epsilon", 1e-30, 1, &eps);
    if (got != 1) return got ? got : missing(s);
    c->norm_eps = (float)eps;
    err = read_head_dim(c, s);
    return err ? err : read_vocab(c, s);
}

static int read_granite(struct model_config *c, struct source *s) {
    c->embedding_multiplier = c->residual_multiplier = c->logits_scaling = 1;
    if (c->arch != ARCH_GRANITE) return 0;
    const struct {
        const char *key;
        float *out;
    } scales[] = {{"embedding_scale", &c->embedding_multiplier},
                  {"residual_scale", &c->residual_multiplier},
                  {"attention.scale", &c->attention_multiplier},
                  {"logit_scale", &c->logits_scaling}};
    for (size_t i = 0; i < 4; i++) {
        double value = 0;
        int got = get_number(s, scales[i].key, 0, 1e9, &value);
        if (got < 0) return got;
        /* Left out or 0, a scale is 1 (attention: 1/sqrt(head_dim)); but no converter leaves out
         * the logits' one, so without it the file is broken. */
        if (value == 0 && i == 3) return missing(s);
        if (value != 0) *scales[i].out = (float)value;
    }
    return 0;
}

/* llama.cpp multiplies the factors that the file has with YaRN's own. */
static int read_yarn(struct rope_config *r, struct source *s) {
    double from_file = 1;
    static const char *const factors[] = {"rope.scaling.attn_factor",
                                          "rope.scaling.yarn_attn_factor"};
    for (int i = 0; i < 2; i++) {
        double factor = 1;
        int got = get_number(s, factors[i], 1e-6, 1e6, &factor);
        if (got < 0) return got;
        from_file *= factor;
    }
    if (from_file != 1)
        r->attention_factor = from_file * (r->factor > 1 ? 0.1 * log(r->factor) + 1 : 1);
    double mix = 1;
    int got = get_number(s, "rope.scaling.yarn_ext_factor", -1e6, 1e6, &mix);
    if (got < 0) return got;
    if (mix >= 0 && mix != 1) return refused(s, "only 1 is supported");
    got = get_number(s, "rope.scaling.yarn_beta_fast", 1e-6, 1e6, &r->beta_fast);
    if (got >= 0) got = get_number(s, "rope.scaling.yarn_beta_slow", 1e-6, 1e6, &r->beta_slow);
    return got < 0 ? got : 0;
}

static int read_rope(struct model_config *c, struct source *s) {
    struct rope_config *r = &c->rope;
    *r = (struct rope_config){.kind = ROPE_DEFAULT,
                              .base = 10000,
                              .factor = 1,
                              .original_len = c->max_len,
                              .beta_fast = 32,
                              .beta_slow = 1,
                              .truncate = true};
    r->freq_factors_tensor = gguf_tensor_find(s->gguf, "rope_freqs.weight") != NULL;
    int got = get_number(s, "rope.freq_base", 1.0001, 1e15, &r->base);
    if (got < 0) return got;
    double factor = 0;
    got = get_number(s, "rope.scaling.factor", 0, 1e6, &factor);
    if (got == 0) got = get_number(s, "rope.scale_linear", 0, 1e6, &factor); /* its old name */
    if (got < 0) return got;
    got = get_int(s, "rope.scaling.original_context_length", 1, MAX_LEN, &r->original_len);
    if (got < 0) return got;

    struct gguf_string type = {"linear", 6};
    got = gguf_get_string(s->gguf, key_of(s, "rope.scaling.type"), &type, s->e);
    if (got < 0) return got;
    char name[32];
    snprintf(name, sizeof name, "%.*s", (int)(type.size < 31 ? type.size : 31), type.data);
    if (strcmp(name, "none") == 0) return 0;
    if (factor != 0) r->factor = factor;
    if (strcmp(name, "linear") == 0) {
        r->kind = r->factor == 1 ? ROPE_DEFAULT : ROPE_LINEAR;
        return 0;
    }
    if (strcmp(name, "yarn") == 0) {
        r->kind = ROPE_YARN;
        return read_yarn(r, s);
    }
    return KEY_FAULT(s, s->key, "\"%s\" is not supported; tpd has none, linear and yarn", name);
}

/* Which biases and norms there are, the tensors of the first layer say. */
static void read_tensors(struct model_config *c, const struct gguf *gguf) {
    bool qwen2 = c->arch == ARCH_QWEN2;
    c->q_bias = qwen2 || gguf_tensor_find(gguf, "blk.0.attn_q.bias");
    c->k_bias = qwen2 || gguf_tensor_find(gguf, "blk.0.attn_k.bias");
    c->v_bias = qwen2 || gguf_tensor_find(gguf, "blk.0.attn_v.bias");
    c->o_bias = gguf_tensor_find(gguf, "blk.0.attn_output.bias") != NULL;
    c->mlp_bias = gguf_tensor_find(gguf, "blk.0.ffn_gate.bias") != NULL;
    c->qk_norm = c->arch == ARCH_QWEN3;
    c->tied_head = gguf_tensor_find(gguf, "output.weight") == NULL;
    /* The converter reorders the rows of q and k (weight and bias) for llama and what derives from
     * it, so that pairs to be turned stand together. */
    c->gguf_permuted = c->arch == ARCH_LLAMA || c->arch == ARCH_GRANITE;
}

static int read_tokens(struct model_config *c, struct source *s) {
    static const char *const ends[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    int64_t id;
    for (int i = 0; i < 3; i++) {
        int got = gguf_get_int(s->gguf, ends[i], &id, s->e);
        if (got < 0) return got;
        if (got == 1) config_add_eos(c, id); /* three fit */
    }
    c->bos_id = -1;
    int got = gguf_get_int(s->gguf, "tokenizer.ggml.bos_token_id", &id, s->e);
    if (got < 0) return got;
    if (got == 1 && id >= 0 && id < c->vocab) c->bos_id = (int32_t)id;
    return 0;
}

int config_from_gguf(struct model_config *out, const struct gguf *gguf, struct error *e) {
    *out = (struct model_config){.bos_id = -1};
    struct source s = {.gguf = gguf, .path = gguf_path(gguf), .arch = "", .e = e};
    int err = read_arch(out, &s);
    if (!err) err = refuse_features(&s);
    if (!err) err = read_sizes(out, &s);
    if (!err) err = read_granite(out, &s);
    if (!err) err = read_rope(out, &s);
    if (!err) err = read_tokens(out, &s);
    if (err) return err;
    read_tensors(out, gguf);
    static const struct config_names names = {"attention.head_count", "attention.head_count_kv",
                                              "attention.key_length"};
    return config_check(out, &names, s.path, e);
}
