/* A model that begins: what its weights are drawn like, and what is refused. */
#include "model/model.h"
#include "tests/unit/tiny_files.h"

#include <math.h>

#define CONFIG                                                                                     \
    "\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":96,"                        \
    "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,"                 \
    "\"vocab_size\":301,\"attention_bias\":true"

static struct model *open_new(const char *dir, const char *more, uint64_t seed) {
    char path[128], text[1024];
    struct model *m;
    struct error e;
    tiny_mkdir(dir);
    snprintf(path, sizeof path, "%s/config.json", dir);
    snprintf(text, sizeof text, "{" CONFIG "%s}", more);
    tiny_write_text(path, text);
    if (model_open_new(&m, tiny_path(dir), seed, &e) != 0) fail_msg("%s", e.message);
    return m;
}

static void values_of(const struct store_tensor *t, float *out, size_t n) {
    assert_int_equal(t->bytes, n * dtype_row_bytes((enum dtype)t->type, 1));
    dtype_row_to_f32((enum dtype)t->type, t->data, out, (int64_t)n);
}

static const struct store_tensor *tensor(const struct model *m, const char *name) {
    const struct store_tensor *t = store_find(model_store(m), name);
    if (!t) fail_msg("no tensor %s", name);
    return t;
}

/* Mean, deviation and the part beyond two deviations are those of a normal distribution. */
static void check_normal(const struct store_tensor *t, double deviation) {
    static float values[301 * 64];
    size_t n = (size_t)t->dims[0] * (size_t)t->dims[1];
    double sum = 0, squares = 0, far = 0, root = sqrt((double)n);
    values_of(t, values, n);
    for (size_t i = 0; i < n; i++) {
        sum += values[i];
        squares += (double)values[i] * values[i];
        far += fabs(values[i]) > 2 * deviation;
    }
    assert_true(fabs(sum / (double)n) < 5 * deviation / root);
    assert_true(fabs(sqrt(squares / (double)n) / deviation - 1) < 4 / root);
    assert_true(fabs(far / (double)n - 0.0455) < 1 / root);
}

static void matrices_are_normal_norms_one_and_biases_zero(void **state) {
    (void)state;
    struct model *m = open_new("drawn", ",\"initializer_range\":0.1,\"dtype\":\"float32\"", 7);
    const struct store *s = model_store(m);
    size_t matrices = 0, norms = 0, biases = 0;
    for (size_t i = 0; i < store_count(s); i++) {
        const struct store_tensor *t = store_at(s, i);
        assert_int_equal(t->type, DTYPE_F32);
        if (t->n_dims == 2) {
            check_normal(t, 0.1);
            matrices++;
            continue;
        }
        bool bias = strstr(t->name, ".bias") != NULL;
        float values[96];
        values_of(t, values, (size_t)t->dims[0]);
        for (int64_t k = 0; k < t->dims[0]; k++) assert_true(values[k] == (bias ? 0 : 1));
        bias ? biases++ : norms++;
    }
    assert_int_equal(matrices, 2 * 7 + 2); /* with an embedding and a head */
    assert_int_equal(norms, 2 * 2 + 1);
    assert_int_equal(biases, 2 * 4);
    model_free(m);
}

static void a_seed_gives_the_same_weights_and_another_others(void **state) {
    (void)state;
    struct model *m[] = {open_new("seed1", "", 1), open_new("again", "", 1), open_new("seed2", "", 2)};
    for (size_t i = 0; i < store_count(model_store(m[0])); i++) {
        const struct store_tensor *t = store_at(model_store(m[0]), i);
        const struct store_tensor *same = tensor(m[1], t->name), *other = tensor(m[2], t->name);
        assert_memory_equal(t->data, same->data, t->bytes);
        if (t->n_dims == 2) assert_memory_not_equal(t->data, other->data, t->bytes);
    }
    const struct store_tensor *gate = tensor(m[0], "model.layers.0.mlp.gate_proj.weight");
    const struct store_tensor *up = tensor(m[0], "model.layers.0.mlp.up_proj.weight");
    assert_memory_not_equal(gate->data, up->data, gate->bytes);
    for (int i = 0; i < 3; i++) model_free(m[i]);
}

static void the_configuration_says_type_tying_and_padding(void **state) {
    (void)state;
    struct model *m = open_new(
        "says", ",\"torch_dtype\":\"float16\",\"tie_word_embeddings\":true,\"pad_token_id\":5", 1);
    const struct store_tensor *embed = tensor(m, "model.embed_tokens.weight");
    assert_int_equal(embed->type, DTYPE_F16);
    assert_null(store_find(model_store(m), "lm_head.weight"));
    static float values[301 * 64];
    values_of(embed, values, 301 * 64);
    for (size_t i = 0; i < 64; i++) {
        assert_true(values[5 * 64 + i] == 0);
        assert_true(values[4 * 64 + i] != 0);
    }
    model_free(m);
}

static void refused_new(const char *path, const char *expected) {
    struct model *m;
    struct error e;
    assert_true(model_open_new(&m, path, 1, &e) < 0);
    assert_names(e.message, expected);
}

static void weights_that_are_there_are_not_drawn_over(void **state) {
    (void)state;
    refused_new("tests/data/models/tiny-chat", "has weights");
    refused_new("tests/data/gguf/llama-f16/model.gguf", "is a file of weights");
}

static void without_weights_the_error_names_the_way_out(void **state) {
    (void)state;
    struct model *m = open_new("none", "", 1);
    struct error e;
    model_free(m);
    assert_true(model_open(&m, tiny_path("none"), &e) < 0);
    assert_names(e.message, "--init SEED");
    tiny_write_text("none/config.json", "{" CONFIG ",\"initializer_range\":-1}");
    refused_new(tiny_path("none"), "initializer_range");
    tiny_write_text("none/config.json", "{" CONFIG ",\"dtype\":\"int8\"}");
    refused_new(tiny_path("none"), "dtype");
    tiny_write_text("none/config.json", "{" CONFIG ",\"pad_token_id\":301}");
    refused_new(tiny_path("none"), "pad_token_id");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matrices_are_normal_norms_one_and_biases_zero),
        cmocka_unit_test(a_seed_gives_the_same_weights_and_another_others),
        cmocka_unit_test(the_configuration_says_type_tying_and_padding),
        cmocka_unit_test(weights_that_are_there_are_not_drawn_over),
        cmocka_unit_test(without_weights_the_error_names_the_way_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
