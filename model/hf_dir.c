#include "model/hf_dir.h"

#include "base/file.h"
#include "base/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CONFIG = 4 << 20, MAX_COMPANION = 64 << 20 };

static int write_text(const char *dir, const char *name, const char *text, size_t size,
                      struct error *e) {
    char *path = path_join(dir, name);
    struct file_writer w;
    if (!path) return error_set(e, ERR_MEMORY, "no memory to write %s", name);
    int err = file_writer_open(&w, path, e);
    free(path);
    if (err) return err;
    file_writer_add(&w, text, size);
    return file_writer_commit(&w, e);
}

/* --- copying -------------------------------------------------------------------------------------- */

static int copy_file(const char *to, const char *from, const char *name, bool *found,
                     struct error *e) {
    char *path = path_join(from, name), *text;
    size_t size;
    if (!path) return error_set(e, ERR_MEMORY, "no memory to copy %s", name);
    *found = path_exists(path);
    int err = *found ? file_read(path, MAX_COMPANION, &text, &size, e) : 0;
    if (!err && *found) {
        err = write_text(to, name, text, size, e);
        free(text);
    }
    free(path);
    return err;
}

static int copy_all(struct hf_companions *out, const char *to, const char *from, struct error *e) {
    static const char *const names[] = {"config.json",           "generation_config.json",
                                        "tokenizer_config.json", "special_tokens_map.json",
                                        "added_tokens.json",     "chat_template.jinja",
                                        "chat_template.json",    "tokenizer.model"};
    bool found;
    int err = copy_file(to, from, "tokenizer.json", &out->tokenizer, e);
    for (size_t i = 0; i < sizeof names / sizeof *names && !err; i++)
        err = copy_file(to, from, names[i], &found, e);
    return err;
}

/* --- config.json from a shape ------------------------------------------------------------------------ */

/* A float as the decimal that it was read from: 1e-5, not 9.99999975e-06. */
static json_t *number(double value) {
    char text[32];
    snprintf(text, sizeof text, "%.7g", value);
    return json_real(strtod(text, NULL));
}

static void set(json_t *to, const char *key, json_t *value) { json_object_set_new(to, key, value); }

/* Mistral is llama to GGUF, but for its window. */
static enum arch arch_of(const struct model_config *c) {
    return c->arch == ARCH_LLAMA && c->sliding_window ? ARCH_MISTRAL : c->arch;
}

static void put_sizes(json_t *to, const struct model_config *c) {
    const struct {
        const char *key;
        int32_t value;
    } sizes[] = {{"hidden_size", c->hidden},
                 {"intermediate_size", c->ffn},
                 {"num_hidden_layers", c->n_layers},
                 {"num_attention_heads", c->n_heads},
                 {"num_key_value_heads", c->n_kv_heads},
                 {"head_dim", c->head_dim},
                 {"vocab_size", c->vocab},
                 {"max_position_embeddings", c->max_len}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        set(to, sizes[i].key, json_integer(sizes[i].value));
    set(to, "rms_norm_eps", number((double)c->norm_eps));
    set(to, "hidden_act", json_string("silu"));
    set(to, "tie_word_embeddings", json_boolean(c->tied_head));
}

static void put_attention(json_t *to, const struct model_config *c) {
    enum arch arch = arch_of(c);
    if (arch == ARCH_LLAMA || arch == ARCH_GRANITE || arch == ARCH_QWEN3)
        set(to, "attention_bias", json_boolean(c->o_bias));
    if (arch == ARCH_LLAMA || arch == ARCH_GRANITE) set(to, "mlp_bias", json_boolean(c->mlp_bias));
    if (arch == ARCH_MISTRAL) set(to, "sliding_window", json_integer(c->sliding_window));
    if ((arch == ARCH_QWEN2 || arch == ARCH_QWEN3) && c->sliding_window) {
        set(to, "use_sliding_window", json_true());
        set(to, "sliding_window", json_integer(c->sliding_window));
        set(to, "max_window_layers", json_integer(c->window_from_layer));
    }
    if (arch != ARCH_GRANITE) return;
    float scale = c->attention_multiplier > 0 ? c->attention_multiplier
                                              : 1 / sqrtf((float)c->head_dim);
    set(to, "attention_multiplier", number((double)scale));
    set(to, "embedding_multiplier", number((double)c->embedding_multiplier));
    set(to, "residual_multiplier", number((double)c->residual_multiplier));
    set(to, "logits_scaling", number((double)c->logits_scaling));
}

/* What GGUF metadata can say: linear and yarn. */
static void put_rope(json_t *to, const struct rope_config *r) {
    set(to, "rope_theta", number(r->base));
    if (r->kind == ROPE_DEFAULT) return;
    json_t *scaling = json_pack("{s:s, s:o}", "rope_type", rope_kind_name(r->kind), "factor",
                                number(r->factor));
    if (r->kind == ROPE_YARN) {
        set(scaling, "original_max_position_embeddings", json_integer(r->original_len));
        set(scaling, "beta_fast", number(r->beta_fast));
        set(scaling, "beta_slow", number(r->beta_slow));
        if (r->attention_factor > 0) set(scaling, "attention_factor", number(r->attention_factor));
    }
    set(to, "rope_scaling", scaling);
}

static void put_tokens(json_t *to, const struct model_config *c) {
    set(to, "bos_token_id", c->bos_id >= 0 ? json_integer(c->bos_id) : json_null());
    json_t *eos = json_array();
    for (int32_t i = 0; i < c->n_eos; i++) json_array_append_new(eos, json_integer(c->eos_ids[i]));
    if (c->n_eos == 1) set(to, "eos_token_id", json_integer(c->eos_ids[0]));
    else set(to, "eos_token_id", c->n_eos ? json_incref(eos) : json_null());
    json_decref(eos);
}

static json_t *config_json(const struct model_config *c, enum dtype type) {
    static const char *const classes[] = {
        [ARCH_LLAMA] = "LlamaForCausalLM",   [ARCH_MISTRAL] = "MistralForCausalLM",
        [ARCH_GRANITE] = "GraniteForCausalLM", [ARCH_QWEN2] = "Qwen2ForCausalLM",
        [ARCH_QWEN3] = "Qwen3ForCausalLM"};
    enum arch arch = arch_of(c);
    json_t *out = json_pack("{s:[s], s:s, s:s}", "architectures", classes[arch], "model_type",
                            arch_name(arch), "torch_dtype",
                            type == DTYPE_F32   ? "float32"
                            : type == DTYPE_F16 ? "float16"
                                                : "bfloat16");
    put_sizes(out, c);
    put_attention(out, c);
    put_rope(out, &c->rope);
    put_tokens(out, c);
    return out;
}

/* --- is it the same model? --------------------------------------------------------------------------- */

static bool near(double a, double b) { return fabs(a - b) <= 1e-5 * fmax(fabs(a), fabs(b)); }

static bool same_sizes(const struct model_config *a, const struct model_config *b) {
    return a->n_layers == b->n_layers && a->hidden == b->hidden && a->ffn == b->ffn &&
           a->n_heads == b->n_heads && a->n_kv_heads == b->n_kv_heads &&
           a->head_dim == b->head_dim && a->vocab == b->vocab && a->tied_head == b->tied_head &&
           a->q_bias == b->q_bias && a->k_bias == b->k_bias && a->v_bias == b->v_bias &&
           a->o_bias == b->o_bias && a->mlp_bias == b->mlp_bias && a->qk_norm == b->qk_norm &&
           near((double)a->norm_eps, (double)b->norm_eps) && near(a->rope.base, b->rope.base);
}

static float attention_scale(const struct model_config *c) {
    return c->attention_multiplier > 0 ? c->attention_multiplier : 1 / sqrtf((float)c->head_dim);
}

/* The numbers that GGUF metadata and config.json both say. */
static bool same_model(const struct model_config *a, const struct model_config *b) {
    return same_sizes(a, b) && arch_of(a) == arch_of(b) && a->sliding_window == b->sliding_window &&
           (!a->sliding_window || a->window_from_layer == b->window_from_layer) &&
           near((double)attention_scale(a), (double)attention_scale(b)) &&
           near((double)a->embedding_multiplier, (double)b->embedding_multiplier) &&
           near((double)a->residual_multiplier, (double)b->residual_multiplier) &&
           near((double)a->logits_scaling, (double)b->logits_scaling);
}

static bool same_rope(const struct rope_config *a, const struct rope_config *b) {
    return a->kind == b->kind && near(a->factor, b->factor) &&
           (a->kind != ROPE_YARN ||
            (a->original_len == b->original_len && near(a->beta_fast, b->beta_fast) &&
             near(a->beta_slow, b->beta_slow) && near(a->attention_factor, b->attention_factor)));
}

/* Read back as others will read it: what a config.json cannot say shows as a difference. NULL with e set. */
static char *config_text(const struct model *base, enum dtype type, struct error *e) {
    const struct model_config *c = model_config(base);
    struct model_config back;
    char *text = NULL;
    json_t *json = config_json(c, type);
    if (c->rope.freq_factors_tensor)
        error_set(e, ERR_CONFIG,
                  "%s scales its rotary frequencies by a tensor (rope_freqs.weight), which a "
                  "config.json says in other words: put the model's own config.json and tokenizer "
                  "files beside the file",
                  model_path(base));
    else if (config_from_hf(&back, json, NULL, "config.json", e) == 0) {
        if (!same_model(c, &back) || !same_rope(&c->rope, &back.rope))
            error_set(e, ERR_CONFIG,
                      "%s has biases or scales that no config.json of its architecture can say: put "
                      "the model's own config.json and tokenizer files beside the file",
                      model_path(base));
        else if (!(text = json_dumps(json, JSON_INDENT(2) | JSON_REAL_PRECISION(9))))
            error_set(e, ERR_MEMORY, "no memory to write config.json");
    }
    json_decref(json);
    return text;
}

/* Whether dir's config.json is that of the model in a GGUF file. */
static bool has_its_config(const char *dir, const struct model *base) {
    char *path = path_join(dir, "config.json");
    struct model_config there;
    json_t *json = path && path_exists(path) ? json_read_file(path, MAX_CONFIG, NULL) : NULL;
    bool same = json && config_from_hf(&there, json, NULL, path, NULL) == 0 &&
                same_model(model_config(base), &there);
    json_decref(json);
    free(path);
    return same;
}

/* Where the base's own files lie: its directory, or a GGUF file's directory if that is of the same model;
 * *out is NULL when nowhere. */
static int find_own(char **out, const struct model *base, struct error *e) {
    const char *path = model_path(base), *name = path_base(path);
    bool directory = path_is_dir(path);
    *out = directory ? strdup(path) : name == path ? strdup(".") : strndup(path, (size_t)(name - path));
    if (!*out) return error_set(e, ERR_MEMORY, "no memory for a path");
    if (directory || has_its_config(*out, base)) return 0;
    free(*out);
    *out = NULL;
    return 0;
}

int hf_companions_write(struct hf_companions *out, const char *dir, const struct model *base,
                        enum dtype type, struct error *e) {
    char *own;
    *out = (struct hf_companions){0};
    int err = find_own(&own, base, e);
    if (err) return err;
    if (own) err = copy_all(out, dir, own, e);
    else {
        char *text = config_text(base, type, e);
        err = text ? write_text(dir, "config.json", text, strlen(text), e) : -(int)ERR_CONFIG;
        free(text);
        out->config_made = true;
    }
    free(own);
    return err;
}

int hf_companions_check(const struct model *base, struct error *e) {
    char *own, *text = NULL;
    int err = find_own(&own, base, e);
    if (!err && !own && !(text = config_text(base, DTYPE_F32, e))) err = -(int)ERR_CONFIG;
    free(text);
    free(own);
    return err;
}
