/* model/config.h: the shape of a model, as config.json or GGUF metadata tell it.
 *
 * Filled by config_from_hf or config_from_gguf, which check that every number is sane and that the
 * architecture is one of ours; read-only afterwards. Any thread. */
#ifndef TPD_MODEL_CONFIG_H
#define TPD_MODEL_CONFIG_H

#include "base/error.h"
#include "base/json.h"

enum arch { ARCH_LLAMA, ARCH_MISTRAL, ARCH_GRANITE, ARCH_QWEN2, ARCH_QWEN3, ARCH_COUNT };

enum rope_kind { ROPE_DEFAULT, ROPE_LINEAR, ROPE_DYNAMIC, ROPE_LLAMA3, ROPE_YARN };

struct rope_config {
    enum rope_kind kind;
    double base; /* rope_theta */
    double factor;
    int32_t original_len; /* original_max_position_embeddings, else max_position_embeddings */
    /* llama3 */
    double low_freq_factor, high_freq_factor;
    /* yarn */
    double beta_fast, beta_slow, attention_factor /* 0 = 0.1 ln(factor) + 1 */, mscale,
        mscale_all_dim;
    bool truncate; /* yarn: round the correction range to whole dimensions (default true) */
    /* A GGUF file has the tensor "rope_freqs.weight", [head_dim / 2] f32: each frequency is divided
     * by its factor (Llama 3's scaling, worked out by the converter). kind is then what the
     * metadata say, as a rule ROPE_DEFAULT. */
    bool freq_factors_tensor;
};

enum { CONFIG_MAX_EOS = 16 };

struct model_config {
    enum arch arch;
    int32_t n_layers, hidden, ffn, n_heads, n_kv_heads, head_dim, vocab, max_len;
    float norm_eps;
    bool tied_head;
    bool q_bias, k_bias, v_bias, o_bias; /* attention */
    bool mlp_bias;                       /* gate, up, down */
    bool qk_norm;                        /* qwen3: rmsnorm over each head of q and k */
    int32_t sliding_window;              /* 0 = none */
    int32_t window_from_layer; /* layers below it attend to all (qwen2 max_window_layers) */
    struct rope_config rope;
    float embedding_multiplier, attention_multiplier /* 0 = 1/sqrt(head_dim) */,
        residual_multiplier, logits_scaling; /* 1 but for granite */
    /* From config.json, generation_config.json and tokenizer_config.json, or GGUF; -1 = none. */
    int32_t bos_id;
    int32_t n_eos, eos_ids[CONFIG_MAX_EOS];
    bool gguf_permuted; /* q and k rows are in GGUF's interleaved order: the loader un-permutes */
};

/* As config.json's model_type has it: "llama". */
const char *arch_name(enum arch arch);
/* "linear", "llama3", … */
const char *rope_kind_name(enum rope_kind kind);

struct gguf;

/* config: the parsed config.json; generation may be NULL. path is for messages. Errors are
 * ERR_BAD_FILE naming the file and the field; an unknown architecture names itself and what is
 * supported. What a model class of transformers has a default for may be absent and gets that
 * default, but for the five sizes hidden_size, intermediate_size, num_hidden_layers,
 * num_attention_heads and vocab_size. */
int config_from_hf(struct model_config *out, const json_t *config, const json_t *generation,
                   const char *path, struct error *e);
/* Also looks at which tensors there are: biases, a head, rope_freqs. */
int config_from_gguf(struct model_config *out, const struct gguf *gguf, struct error *e);

#endif
