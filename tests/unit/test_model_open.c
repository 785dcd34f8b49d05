/* A model's directory as strangers may have made it: what model_open takes and what it refuses. */
#include "model/model.h"
#include "ranks/ranks.h"
#include "tests/unit/tiny_files.h"

#include <unistd.h>

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

static void layers_that_only_one_of_config_and_file_has_are_named(void **state) {
    (void)state;
    static const char extra[] = "model.layers.2.mlp.up_proj.weight";
    struct model *model;
    struct error e;
    assert_int_equal(model_open(&model, write_model("layers", extra), &e), -(int)ERR_BAD_FILE);
    assert_names(e.message, extra);
    assert_names(e.message, "has 1 layers");
    const char *dir = write_model("more", NULL);
    char *more = strdup(config);
    memcpy(strstr(more, "layers\":1") + 8, "3", 1);
    tiny_write_text("more/config.json", more);
    free(more);
    assert_int_equal(model_open(&model, dir, &e), -(int)ERR_BAD_FILE);
    assert_names(e.message, "model.layers.1.");
    assert_names(e.message, "3 layers");
}

/* A disk that fails looks the same. */
static void a_file_cut_short_is_an_error_and_no_crash(void **state) {
    (void)state;
    const char *dir = write_model("cut", NULL);
    struct model *model;
    struct error e;
    if (model_open(&model, dir, &e) != 0) fail_msg("%s", e.message);
    const struct store_tensor *t = store_find(model_store(model), "model.norm.weight");
    assert_int_equal(store_tensor_check(t, &e), 0);
    if (truncate(tiny_path("cut/model.safetensors"), 0) != 0) fail_msg("cannot cut");
    unsigned sum = 0;
    for (size_t i = 0; i < t->bytes; i++) sum += t->data[i];
    assert_int_equal(sum, 0);
    assert_int_equal(store_tensor_check(t, &e), -(int)ERR_BAD_FILE);
    assert_names(e.message, "model.norm.weight");
    assert_names(e.message, "cut/model.safetensors");
    model_free(model);
}

struct load {
    struct model *model;
    struct shard_plan plan;
    struct shard_options options;
    struct error error;
    int rc;
};

static int load_unit(struct rank *rank, void *arg, struct error *e) {
    struct load *load = arg;
    return shard_load((struct shard **)&rank->state, load->model, &load->plan, rank->ctx, rank->comm,
                      &load->options, e);
}

static void load_on_ranks(struct ranks *ranks, void *arg) {
    struct load *load = arg;
    load->rc = ranks_run(ranks, load_unit, load, &load->error);
}

static void a_file_cut_short_between_opening_and_loading_fails_the_load(void **state) {
    (void)state;
    struct error e;
    struct load load = {.options = {.max_rows = 1,
                                    .max_out = 1,
                                    .max_seqs = 1,
                                    .kv_blocks = 1,
                                    .block_size = 16,
                                    .max_blocks = 1}};
    struct ranks_options options = {.n = 1};
    struct ranks *ranks;
    assert_int_equal(model_open(&load.model, write_model("load", NULL), &e), 0);
    assert_int_equal(model_plan(load.model, 1, &load.plan, &e), 0);
    if (truncate(tiny_path("load/model.safetensors"), 0) != 0) fail_msg("cannot cut");
    core_set_allowed(&options.cores);
    assert_int_equal(ranks_start(&ranks, &options, load_on_ranks, &load, &e), 0);
    ranks_join(ranks);
    assert_int_equal(load.rc, -(int)ERR_BAD_FILE);
    assert_names(load.error.message, "load/model.safetensors");
    assert_names(load.error.message, "became shorter");
    model_free(load.model);
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
        "model.layers.-1.x.bias",         "model.layers.-1000000.x.bias",
        "model.layers.4294967295.x.bias", "model.layers.99999999999999999999.x.bias",
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
        cmocka_unit_test(layers_that_only_one_of_config_and_file_has_are_named),
        cmocka_unit_test(a_file_cut_short_is_an_error_and_no_crash),
        cmocka_unit_test(a_file_cut_short_between_opening_and_loading_fails_the_load),
        cmocka_unit_test(a_bias_that_the_configuration_does_not_ask_for_is_refused),
        cmocka_unit_test(layer_numbers_that_are_no_layers_are_passed_over),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
