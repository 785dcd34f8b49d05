/* A model's directory as strangers may have made it: what model_open takes and what it refuses. */
#include "model/model.h"
#include "tests/unit/tiny_files.h"

/* A llama of one layer with all sizes 2, in f32. */
static const char config[] = "{\"model_type\":\"llama\",\"hidden_size\":2,\"intermediate_size\":2,"
                             "\"num_hidden_layers\":1,\"num_attention_heads\":1,\"vocab_size\":2}";
static const char *const matrices[] = {
    "model.embed_tokens.weight",
    "lm_head.weight",
    "model.layers.0.self_attn.q_proj.weight",
    "model.layers.0.self_attn.k_proj.weight",
    "model.layers.0.self_attn.v_proj.weight",
    "model.layers.0.self_attn.o_proj.weight",
    "model.layers.0.mlp.gate_proj.weight",
    "model.layers.0.mlp.up_proj.weight",
    "model.layers.0.mlp.down_proj.weight",
};
static const char *const vectors[] = {
    "model.norm.weight",
    "model.layers.0.input_layernorm.weight",
    "model.layers.0.post_attention_layernorm.weight",
};

static size_t add_tensor(char *header, const char *name, const char *shape, size_t at, size_t n) {
    size_t used = strlen(header);
    snprintf(header + used, 4096 - used,
             "%s\"%s\":{\"dtype\":\"F32\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}",
             used > 1 ? "," : "", name, shape, at, at + n);
    return at + n;
}

/* The directory of that model with one more vector, or without when extra is NULL. */
static const char *write_model(const char *dir, const char *extra) {
    static struct bytes file;
    char header[4096] = "{", path[128];
    size_t at = 0;
    for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++)
        at = add_tensor(header, matrices[i], "[2,2]", at, 16);
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++)
        at = add_tensor(header, vectors[i], "[2]", at, 8);
    if (extra) at = add_tensor(header, extra, "[2]", at, 8);
    strcat(header, "}");
    file.n = 0;
    put_safetensors(&file, header, at);
    tiny_mkdir(dir);
    snprintf(path, sizeof path, "%s/config.json", dir);
    tiny_write_text(path, config);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    tiny_write(path, file.data, file.n);
    return tiny_path(dir);
}

static void a_whole_model_opens(void **state) {
    (void)state;
    struct model *model;
    struct error e;
    if (model_open(&model, write_model("whole", NULL), &e) != 0) fail_msg("%s", e.message);
    model_free(model);
}

static void a_bias_that_the_configuration_does_not_ask_for_is_refused(void **state) {
    (void)state;
    struct model *model;
    struct error e;
    const char *path = write_model("bias", "model.layers.0.self_attn.q_proj.bias");
    assert_true(model_open(&model, path, &e) < 0);
    assert_names(e.message, "q_proj.bias");
}

static void layer_numbers_that_are_no_layers_are_passed_over(void **state) {
    (void)state;
    static const char *const names[] = {
        "model.layers.1.x.bias",          "model.layers.-1.x.bias",
        "model.layers.-1000000.x.bias",   "model.layers.4294967295.x.bias",
        "model.layers.99999999999999999999.x.bias",
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char dir[16];
        struct model *model;
        struct error e;
        snprintf(dir, sizeof dir, "layer%zu", i);
        if (model_open(&model, write_model(dir, names[i]), &e) != 0) fail_msg("%s", e.message);
        model_free(model);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_whole_model_opens),
        cmocka_unit_test(a_bias_that_the_configuration_does_not_ask_for_is_refused),
        cmocka_unit_test(layer_numbers_that_are_no_layers_are_passed_over),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
