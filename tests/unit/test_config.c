/* Model configurations: what config.json and GGUF metadata say is understood as transformers and
 * llama.cpp understand it; what tpd cannot do right is refused by name. */
#include "tests/unit/tiny_files.h"

#include "formats/gguf.h"
#include "model/config.h"

#define SIZES                                                                                      \
    "\"hidden_size\":64,\"intermediate_size\":128,\"num_hidden_layers\":4,"                        \
    "\"num_attention_heads\":8,\"vocab_size\":100"
#define LLAMA "\"model_type\":\"llama\"," SIZES

static json_t *parse(const char *text) {
    struct error e = {0};
    json_t *value = json_read(text, strlen(text), &e);
    if (!value) fail_msg("%s: %s", e.message, text);
    return value;
}

static struct model_config read_with(const char *config_text, const char *generation_text) {
    struct model_config c;
    struct error e = {0};
    json_t *config = parse(config_text);
    json_t *generation = generation_text ? parse(generation_text) : NULL;
    if (config_from_hf(&c, config, generation, "config.json", &e) != 0)
        fail_msg("refused: %s", e.message);
    json_decref(config);
    json_decref(generation);
    return c;
}

static struct model_config hf(const char *members) {
    char text[2000];
    snprintf(text, sizeof text, "{%s}", members);
    return read_with(text, NULL);
}

/* members on top of a small llama; a key given there wins. */
static void refused_members(const char *base, const char *members, const char *fault) {
    char text[2000];
    struct model_config c;
    struct error e = {0};
    json_t *config = parse(base);
    snprintf(text, sizeof text, "{%s}", members);
    json_t *more = parse(text);
    json_object_update(config, more);
    if (config_from_hf(&c, config, NULL, "m/config.json", &e) == 0)
        fail_msg("taken, but should name %s", fault);
    assert_int_equal(e.kind, ERR_BAD_FILE);
    assert_names(e.message, "m/config.json: ");
    assert_names(e.message, fault);
    json_decref(config);
    json_decref(more);
}

static void refused(const char *members, const char *fault) {
    refused_members("{" LLAMA "}", members, fault);
}

static void llama_has_the_defaults_of_its_class(void **state) {
    (void)state;
    struct model_config c = hf(LLAMA);
    assert_int_equal(c.arch, ARCH_LLAMA);
    assert_int_equal(c.n_layers, 4), assert_int_equal(c.hidden, 64), assert_int_equal(c.ffn, 128);
    assert_int_equal(c.n_heads, 8), assert_int_equal(c.n_kv_heads, 8);
    assert_int_equal(c.head_dim, 8), assert_int_equal(c.vocab, 100);
    assert_int_equal(c.max_len, 2048), assert_true(c.norm_eps == 1e-6f);
    assert_false(c.tied_head), assert_false(c.q_bias), assert_false(c.mlp_bias);
    assert_int_equal(c.sliding_window, 0);
    assert_int_equal(c.rope.kind, ROPE_DEFAULT), assert_true(c.rope.base == 10000);
    assert_true(c.embedding_multiplier == 1 && c.residual_multiplier == 1);
    assert_true(c.logits_scaling == 1 && c.attention_multiplier == 0);
    assert_int_equal(c.bos_id, 1), assert_int_equal(c.n_eos, 1), assert_int_equal(c.eos_ids[0], 2);
    assert_false(c.gguf_permuted);
}

static void the_architecture_is_found_by_model_type_or_class(void **state) {
    (void)state;
    assert_int_equal(
        hf("\"architectures\":[\"Qwen2ForCausalLM\"]," SIZES ",\"num_key_value_heads\":2").arch,
        ARCH_QWEN2);
    assert_int_equal(hf("\"model_type\":\"granite\",\"architectures\":null," SIZES).arch,
                     ARCH_GRANITE);
    refused("\"model_type\":\"gpt_neox\"", "architecture \"gpt_neox\" is not supported; tpd runs "
                                           "llama, mistral, granite, qwen2, qwen3");
    refused("\"architectures\":[\"LlamaForSequenceClassification\"]",
            "\"LlamaForSequenceClassification\" is not supported");
    refused("\"model_type\":null", "model_type: is missing");
    refused("\"model_type\":7", "model_type must be a string");
}

static void biases_and_ties_are_read(void **state) {
    (void)state;
    struct model_config c = hf(LLAMA ",\"attention_bias\":true,\"mlp_bias\":true,"
                                     "\"tie_word_embeddings\":true");
    assert_true(c.q_bias && c.k_bias && c.v_bias && c.o_bias && c.mlp_bias && c.tied_head);
    c = hf("\"model_type\":\"qwen2\",\"num_key_value_heads\":2,\"attention_bias\":false," SIZES);
    assert_true(c.q_bias && c.k_bias && c.v_bias), assert_false(c.o_bias);
    c = hf("\"model_type\":\"mistral\",\"attention_bias\":true,\"mlp_bias\":true," SIZES);
    assert_false(c.q_bias || c.mlp_bias);
    c = hf("\"model_type\":\"qwen3\",\"num_key_value_heads\":2,\"attention_bias\":true," SIZES);
    assert_true(c.q_bias && c.o_bias && c.qk_norm);
}

static void head_dim_is_given_or_made(void **state) {
    (void)state;
    assert_int_equal(hf(LLAMA ",\"head_dim\":16").head_dim, 16);
    assert_int_equal(hf(LLAMA ",\"head_dim\":null").head_dim, 8);
    assert_int_equal(hf("\"model_type\":\"qwen3\",\"num_key_value_heads\":2," SIZES).head_dim, 128);
    struct model_config c = hf("\"model_type\":\"llama\",\"hidden_size\":1792,\"head_dim\":128,"
                               "\"num_attention_heads\":24,\"num_key_value_heads\":8,"
                               "\"intermediate_size\":8,\"num_hidden_layers\":1,\"vocab_size\":9");
    assert_int_equal(c.head_dim, 128);
    refused("\"hidden_size\":60", "hidden_size: 60 is not a multiple of num_attention_heads = 8");
    refused("\"hidden_size\":12,\"num_attention_heads\":4", "head_dim: is 3");
    refused("\"head_dim\":7", "head_dim: is 7");
}

static void sizes_are_sane_or_refused(void **state) {
    (void)state;
    const char *required[] = {"hidden_size", "intermediate_size", "num_hidden_layers",
                              "num_attention_heads", "vocab_size"};
    const char *bad[] = {"null", "0", "-1", "1.5", "\"64\"", "4294967297", "1e300"};
    for (size_t i = 0; i < 5; i++)
        for (size_t k = 0; k < 7; k++) {
            char members[100];
            snprintf(members, sizeof members, "\"%s\":%s", required[i], bad[k]);
            refused(members, required[i]);
        }
    refused("\"num_key_value_heads\":3", "num_key_value_heads: 3 does not divide");
    refused("\"num_key_value_heads\":16", "num_key_value_heads");
    refused("\"max_position_embeddings\":0", "max_position_embeddings");
    refused("\"rms_norm_eps\":0", "rms_norm_eps");
    refused("\"rope_theta\":0", "rope_theta");
    refused("\"tie_word_embeddings\":1", "tie_word_embeddings");
    struct model_config c = hf(LLAMA ",\"num_key_value_heads\":null");
    assert_int_equal(c.n_kv_heads, 8);
    assert_int_equal(hf("\"model_type\":\"mistral\"," SIZES).n_kv_heads, 8);
}

static void features_that_tpd_lacks_are_refused_by_name(void **state) {
    (void)state;
    refused("\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":4}", "gptq");
    refused("\"quantization_config\":{}", "quantization_config");
    refused("\"num_local_experts\":8", "mixture of experts");
    refused("\"num_experts\":8", "mixture of experts");
    refused("\"attn_logit_softcapping\":50.0", "attn_logit_softcapping");
    refused("\"final_logit_softcapping\":30.0", "final_logit_softcapping");
    refused("\"partial_rotary_factor\":0.5", "partial_rotary_factor");
    refused("\"hidden_act\":\"gelu\"", "hidden_act: \"gelu\"");
    struct model_config c = hf(LLAMA ",\"quantization_config\":null,\"num_local_experts\":0,"
                                     "\"partial_rotary_factor\":1.0,\"hidden_act\":\"silu\"");
    assert_int_equal(c.arch, ARCH_LLAMA);
}

static void granite_has_its_four_multipliers(void **state) {
    (void)state;
    struct model_config c = hf("\"model_type\":\"granite\"," SIZES
                               ",\"embedding_multiplier\":12.0,\"attention_multiplier\":0.0078125,"
                               "\"residual_multiplier\":0.22,\"logits_scaling\":16.0");
    assert_true(c.embedding_multiplier == 12 && c.attention_multiplier == 0.0078125f);
    assert_true(c.residual_multiplier == 0.22f && c.logits_scaling == 16);
    c = hf("\"model_type\":\"granite\"," SIZES);
    assert_true(c.attention_multiplier == 1 && c.logits_scaling == 1);
    refused_members("{\"model_type\":\"granite\"," SIZES "}", "\"logits_scaling\":0",
                    "logits_scaling");
    c = hf(LLAMA ",\"embedding_multiplier\":12.0");
    assert_true(c.embedding_multiplier == 1);
}

static void sliding_windows_are_as_each_class_has_them(void **state) {
    (void)state;
#define MISTRAL "\"model_type\":\"mistral\"," SIZES
#define QWEN    "\"model_type\":\"qwen2\",\"num_key_value_heads\":2," SIZES
    assert_int_equal(hf(MISTRAL).sliding_window, 4096);
    assert_int_equal(hf(MISTRAL ",\"sliding_window\":null").sliding_window, 0);
    assert_int_equal(hf(MISTRAL ",\"sliding_window\":7").sliding_window, 7);
    assert_int_equal(hf(LLAMA ",\"sliding_window\":7").sliding_window, 0);
    assert_int_equal(hf(QWEN ",\"sliding_window\":7").sliding_window, 0);
    struct model_config c = hf(QWEN ",\"sliding_window\":7,\"use_sliding_window\":true,"
                                    "\"max_window_layers\":2");
    assert_int_equal(c.sliding_window, 7), assert_int_equal(c.window_from_layer, 2);
    c = hf(QWEN ",\"use_sliding_window\":true");
    assert_int_equal(c.sliding_window, 4096), assert_int_equal(c.window_from_layer, 28);
    c = hf(QWEN ",\"use_sliding_window\":true,\"sliding_window\":7,\"layer_types\":["
                "\"full_attention\",\"sliding_attention\",\"sliding_attention\","
                "\"sliding_attention\"]");
    assert_int_equal(c.sliding_window, 7), assert_int_equal(c.window_from_layer, 1);
    c = hf(QWEN ",\"use_sliding_window\":true,\"layer_types\":[\"full_attention\","
                "\"full_attention\",\"full_attention\",\"full_attention\"]");
    assert_int_equal(c.sliding_window, 0);
    refused_members("{" QWEN ",\"use_sliding_window\":true}",
                    "\"layer_types\":[\"sliding_attention\",\"full_attention\","
                    "\"sliding_attention\",\"full_attention\"]",
                    "layer_types");
    refused_members("{" QWEN ",\"use_sliding_window\":true}", "\"layer_types\":[\"mamba\"]",
                    "layer_types");
}

static void rope_scaling_is_read_in_all_its_spellings(void **state) {
    (void)state;
    struct model_config c = hf(LLAMA ",\"rope_theta\":500000.0,\"rope_scaling\":{\"factor\":8.0,"
                                     "\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
                                     "\"original_max_position_embeddings\":8192,"
                                     "\"rope_type\":\"llama3\"}");
    assert_int_equal(c.rope.kind, ROPE_LLAMA3), assert_true(c.rope.base == 500000);
    assert_true(c.rope.factor == 8 && c.rope.low_freq_factor == 1 && c.rope.high_freq_factor == 4);
    assert_int_equal(c.rope.original_len, 8192);

    c = hf(LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}");
    assert_int_equal(c.rope.kind, ROPE_LINEAR), assert_true(c.rope.factor == 2);
    c = hf(LLAMA ",\"max_position_embeddings\":99,\"rope_scaling\":{\"type\":\"dynamic\","
                 "\"factor\":2,\"original_max_position_embeddings\":50}");
    assert_int_equal(c.rope.kind, ROPE_DYNAMIC), assert_int_equal(c.rope.original_len, 99);

    c = hf(LLAMA ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,"
                 "\"original_max_position_embeddings\":512,\"beta_fast\":16,\"truncate\":false}");
    assert_int_equal(c.rope.kind, ROPE_YARN), assert_int_equal(c.rope.original_len, 512);
    assert_true(c.rope.beta_fast == 16 && c.rope.beta_slow == 1 && !c.rope.truncate);
    assert_true(c.rope.attention_factor == 0);
    c = hf(LLAMA ",\"rope_scaling\":{\"type\":\"yarn\",\"original_max_position_embeddings\":512}");
    assert_true(c.rope.factor == 4); /* 2048 / 512 */

    /* transformers 5 */
    c = hf(LLAMA ",\"rope_parameters\":{\"rope_theta\":7e5,\"rope_type\":\"default\"}");
    assert_int_equal(c.rope.kind, ROPE_DEFAULT), assert_true(c.rope.base == 7e5);
    c = hf(LLAMA ",\"rope_scaling\":null,\"rope_parameters\":{\"rope_theta\":7e5,"
                 "\"rope_type\":\"linear\",\"factor\":3}");
    assert_int_equal(c.rope.kind, ROPE_LINEAR), assert_true(c.rope.base == 7e5);
    assert_int_equal(hf(LLAMA ",\"rope_scaling\":null").rope.kind, ROPE_DEFAULT);
    assert_int_equal(hf(LLAMA ",\"rope_scaling\":{}").rope.kind, ROPE_DEFAULT);
}

static void rope_scaling_that_tpd_lacks_is_refused(void **state) {
    (void)state;
    refused("\"rope_scaling\":{\"type\":\"longrope\",\"factor\":2}", "\"longrope\"");
    refused("\"rope_scaling\":{\"rope_type\":\"mrope\"}", "\"mrope\"");
    refused("\"rope_scaling\":{\"factor\":2}", "rope_scaling: has a factor but no rope_type");
    refused("\"rope_scaling\":{\"type\":\"linear\"}", "factor: is missing");
    refused("\"rope_scaling\":{\"type\":\"linear\",\"factor\":0}", "factor");
    refused("\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8}", "low_freq_factor");
    refused("\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,"
            "\"high_freq_factor\":4}",
            "high_freq_factor: 4 is not above");
    refused("\"rope_scaling\":[1]", "rope_scaling: must be an object");
    refused("\"rope_parameters\":{\"full_attention\":{\"rope_theta\":1e6}}", "full_attention");
    refused("\"rope_parameters\":{\"partial_rotary_factor\":0.25}", "partial_rotary_factor");
    refused("\"head_dim\":2,\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2}",
            "head_dim: is 2");
}

static void end_tokens_are_united(void **state) {
    (void)state;
    struct model_config c = read_with("{" LLAMA ",\"eos_token_id\":[7,8],\"bos_token_id\":5}",
                                      "{\"eos_token_id\":[8,9],\"bos_token_id\":6}");
    assert_int_equal(c.bos_id, 5), assert_int_equal(c.n_eos, 3);
    assert_int_equal(c.eos_ids[0], 7), assert_int_equal(c.eos_ids[2], 9);
    c = read_with("{" LLAMA ",\"eos_token_id\":null,\"bos_token_id\":null}", NULL);
    assert_int_equal(c.bos_id, -1), assert_int_equal(c.n_eos, 0);
    c = read_with("{" LLAMA "}", "{\"eos_token_id\":9}");
    assert_int_equal(c.n_eos, 1), assert_int_equal(c.eos_ids[0], 9);
    c = hf("\"model_type\":\"qwen2\",\"num_key_value_heads\":2," SIZES);
    assert_int_equal(c.bos_id, -1), assert_int_equal(c.n_eos, 0);
    c = hf(LLAMA ",\"eos_token_id\":[-1,4294967295,3]"); /* what is no token ends nothing */
    assert_int_equal(c.n_eos, 1), assert_int_equal(c.eos_ids[0], 3);
    refused("\"eos_token_id\":\"</s>\"", "eos_token_id");
    refused("\"eos_token_id\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]", "more than 16");
}

/* ---- GGUF ---- */

/* keys: how many more there are than the ones put here. */
static struct bytes gguf_head(const char *arch, uint64_t tensors, uint64_t keys) {
    struct bytes b = {0};
    char key[100];
    const struct {
        const char *name;
        uint32_t value;
    } ints[] = {{"block_count", 2},          {"embedding_length", 64}, {"feed_forward_length", 128},
                {"attention.head_count", 8}, {"context_length", 512},  {"vocab_size", 100}};
    put_gguf(&b, 3, tensors, 8 + keys);
    put_key_string(&b, "general.architecture", arch);
    for (size_t i = 0; i < 6; i++) {
        snprintf(key, sizeof key, "%s.%s", arch, ints[i].name);
        put_key_u32(&b, key, ints[i].value);
    }
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", arch);
    put_key_f32(&b, key, 1e-5f);
    return b;
}

static int read_gguf(struct model_config *c, const struct bytes *b, struct error *e) {
    struct gguf *gguf;
    if (gguf_open(&gguf, tiny_write("m.gguf", b->data, b->n), e) != 0) fail_msg("%s", e->message);
    int err = config_from_gguf(c, gguf, e);
    gguf_close(gguf);
    return err;
}

static struct model_config gguf_ok(const struct bytes *b) {
    struct model_config c;
    struct error e = {0};
    if (read_gguf(&c, b, &e) != 0) fail_msg("refused: %s", e.message);
    return c;
}

static void gguf_refused(const struct bytes *b, const char *fault) {
    struct model_config c;
    struct error e = {0};
    if (read_gguf(&c, b, &e) == 0) fail_msg("taken, but should name %s", fault);
    assert_int_equal(e.kind, ERR_BAD_FILE);
    assert_names(e.message, "m.gguf");
    assert_names(e.message, fault);
}

static void gguf_metadata_give_the_shape(void **state) {
    (void)state;
    struct bytes b = gguf_head("llama", 0, 0);
    struct model_config c = gguf_ok(&b);
    assert_int_equal(c.arch, ARCH_LLAMA), assert_true(c.gguf_permuted), assert_true(c.tied_head);
    assert_int_equal(c.n_layers, 2), assert_int_equal(c.hidden, 64), assert_int_equal(c.ffn, 128);
    assert_int_equal(c.n_heads, 8), assert_int_equal(c.n_kv_heads, 8);
    assert_int_equal(c.head_dim, 8), assert_int_equal(c.vocab, 100),
        assert_int_equal(c.max_len, 512);
    assert_true(c.norm_eps == 1e-5f && c.rope.base == 10000);
    assert_int_equal(c.bos_id, -1), assert_int_equal(c.n_eos, 0);

    b = gguf_head("qwen3", 4, 10);
    put_key_u32(&b, "qwen3.attention.head_count_kv", 2);
    put_key_u32(&b, "qwen3.attention.key_length", 16);
    put_key_u32(&b, "qwen3.attention.value_length", 16);
    put_key_u32(&b, "qwen3.rope.dimension_count", 16);
    put_key_f32(&b, "qwen3.rope.freq_base", 1e6f);
    put_key_u32(&b, "qwen3.attention.sliding_window", 32);
    put_key_u32(&b, "tokenizer.ggml.bos_token_id", 4294967295u);
    put_key_u32(&b, "tokenizer.ggml.eos_token_id", 3);
    put_key_u32(&b, "tokenizer.ggml.eot_token_id", 4);
    put_key_u32(&b, "tokenizer.ggml.eom_token_id", 3);
    put_tensor(&b, "token_embd.weight", 2, (uint64_t[]){64, 5}, 0, 0);
    put_tensor(&b, "output.weight", 1, (uint64_t[]){1}, 0, 1280);
    put_tensor(&b, "blk.0.attn_q.bias", 1, (uint64_t[]){1}, 0, 1312);
    put_tensor(&b, "rope_freqs.weight", 1, (uint64_t[]){8}, 0, 1344);
    put_pad(&b, 32), put_zeros(&b, 1376);
    c = gguf_ok(&b);
    assert_int_equal(c.arch, ARCH_QWEN3), assert_false(c.gguf_permuted), assert_false(c.tied_head);
    assert_int_equal(c.n_kv_heads, 2), assert_int_equal(c.head_dim, 16),
        assert_int_equal(c.vocab, 5);
    assert_int_equal(c.sliding_window, 32), assert_true(c.qk_norm && c.q_bias && !c.k_bias);
    assert_true(c.rope.base == 1e6 && c.rope.freq_factors_tensor);
    assert_int_equal(c.bos_id, -1), assert_int_equal(c.n_eos, 2), assert_int_equal(c.eos_ids[1], 4);
}

static void gguf_rope_scaling_is_read(void **state) {
    (void)state;
    struct bytes b = gguf_head("llama", 0, 2);
    put_key_string(&b, "llama.rope.scaling.type", "linear");
    put_key_f32(&b, "llama.rope.scaling.factor", 4);
    struct model_config c = gguf_ok(&b);
    assert_int_equal(c.rope.kind, ROPE_LINEAR), assert_true(c.rope.factor == 4);

    b = gguf_head("llama", 0, 5);
    put_key_string(&b, "llama.rope.scaling.type", "yarn");
    put_key_f32(&b, "llama.rope.scaling.factor", 4);
    put_key_u32(&b, "llama.rope.scaling.original_context_length", 128);
    put_key_f32(&b, "llama.rope.scaling.attn_factor", 2);
    put_key_f32(&b, "llama.rope.scaling.yarn_beta_fast", 16);
    c = gguf_ok(&b);
    assert_int_equal(c.rope.kind, ROPE_YARN), assert_int_equal(c.rope.original_len, 128);
    assert_true(c.rope.beta_fast == 16 && c.rope.beta_slow == 1);
    assert_true(c.rope.attention_factor > 2.277 && c.rope.attention_factor < 2.278);

    b = gguf_head("llama", 0, 1), put_key_string(&b, "llama.rope.scaling.type", "none");
    assert_int_equal(gguf_ok(&b).rope.kind, ROPE_DEFAULT);
    b = gguf_head("llama", 0, 1), put_key_string(&b, "llama.rope.scaling.type", "longrope");
    gguf_refused(&b, "\"longrope\" is not supported");
}

static void gguf_granite_scales_are_read(void **state) {
    (void)state;
    struct bytes b = gguf_head("granite", 0, 4);
    put_key_f32(&b, "granite.embedding_scale", 12),
        put_key_f32(&b, "granite.residual_scale", 0.22f);
    put_key_f32(&b, "granite.attention.scale", 0.0078125f);
    put_key_f32(&b, "granite.logit_scale", 16);
    struct model_config c = gguf_ok(&b);
    assert_true(c.gguf_permuted && c.embedding_multiplier == 12 && c.residual_multiplier == 0.22f);
    assert_true(c.attention_multiplier == 0.0078125f && c.logits_scaling == 16);
    b = gguf_head("granite", 0, 0);
    gguf_refused(&b, "\"granite.logit_scale\": is missing");
}

static void gguf_that_tpd_cannot_run_is_refused_by_key(void **state) {
    (void)state;
    struct bytes b = gguf_head("gemma2", 0, 0);
    gguf_refused(&b, "architecture \"gemma2\" is not supported; tpd runs llama");
    b = gguf_head("llama", 0, 1), put_key_string(&b, "general.type", "adapter");
    gguf_refused(&b, "is \"adapter\", not a model");
    b = gguf_head("llama", 0, 1), put_key_u32(&b, "llama.expert_count", 8);
    gguf_refused(&b, "\"llama.expert_count\": a mixture of experts");
    b = gguf_head("llama", 0, 1), put_key_f32(&b, "llama.attn_logit_softcapping", 50);
    gguf_refused(&b, "llama.attn_logit_softcapping");
    b = gguf_head("llama", 0, 1), put_key_u32(&b, "llama.rope.dimension_count", 4);
    gguf_refused(&b, "partial rotary");
    b = gguf_head("llama", 0, 1), put_key_u32(&b, "llama.attention.value_length", 4);
    gguf_refused(&b, "llama.attention.value_length");
    b = gguf_head("llama", 0, 1), put_key_u32(&b, "llama.attention.head_count_kv", 3);
    gguf_refused(&b, "attention.head_count_kv: 3 does not divide");
    b = gguf_head("llama", 0, 1), put_key_string(&b, "llama.attention.head_count_kv", "8");
    gguf_refused(&b, "has type string");
    b = (struct bytes){0}, put_gguf(&b, 3, 0, 0), gguf_refused(&b, "general.architecture");
    b = (struct bytes){0}, put_gguf(&b, 3, 0, 1);
    put_key_string(&b, "general.architecture", "llama");
    gguf_refused(&b, "\"llama.embedding_length\": is missing");
}

static void real_configurations_are_read(void **state) {
    (void)state;
    struct error e = {0};
    struct model_config c;
    const char *path = shared_path("models/stories260K-hf/config.json");
    json_t *config = path ? json_read_file(path, 1 << 20, &e) : NULL;
    if (config) {
        assert_int_equal(config_from_hf(&c, config, NULL, path, &e), 0);
        assert_int_equal(c.n_layers, 5), assert_int_equal(c.n_kv_heads, 4),
            assert_true(c.tied_head);
        json_decref(config);
    }
    struct gguf *gguf;
    path = shared_path("models/stories260K.gguf");
    if (path && gguf_open(&gguf, path, &e) == 0) {
        assert_int_equal(config_from_gguf(&c, gguf, &e), 0);
        assert_int_equal(c.n_layers, 5), assert_int_equal(c.n_kv_heads, 4);
        assert_int_equal(c.vocab, 512), assert_int_equal(c.eos_ids[0], 2);
        gguf_close(gguf);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama_has_the_defaults_of_its_class),
        cmocka_unit_test(the_architecture_is_found_by_model_type_or_class),
        cmocka_unit_test(biases_and_ties_are_read),
        cmocka_unit_test(head_dim_is_given_or_made),
        cmocka_unit_test(sizes_are_sane_or_refused),
        cmocka_unit_test(features_that_tpd_lacks_are_refused_by_name),
        cmocka_unit_test(granite_has_its_four_multipliers),
        cmocka_unit_test(sliding_windows_are_as_each_class_has_them),
        cmocka_unit_test(rope_scaling_is_read_in_all_its_spellings),
        cmocka_unit_test(rope_scaling_that_tpd_lacks_is_refused),
        cmocka_unit_test(end_tokens_are_united),
        cmocka_unit_test(gguf_metadata_give_the_shape),
        cmocka_unit_test(gguf_rope_scaling_is_read),
        cmocka_unit_test(gguf_granite_scales_are_read),
        cmocka_unit_test(gguf_that_tpd_cannot_run_is_refused_by_key),
        cmocka_unit_test(real_configurations_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
