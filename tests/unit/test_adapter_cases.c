/* Adapters that went wrong elsewhere: scales, patterns, the order of keys, and tensors that are no LoRA
 * of a linear layer. Made from one of tests/data's own. */
#include "tests/unit/tiny_files.h"

#include "base/json.h"
#include "formats/safetensors_write.h"
#include "formats/store.h"
#include "model/adapter.h"
#include "train/job.h"

#include <math.h>

#define MODEL "tests/data/models/llama-gqa-tied"
#define ADAPTER "tests/data/training/lora-llama-gqa-tied/adapter"

static struct model *model;

/* --- made adapters -------------------------------------------------------------------------------- */

/* The adapter's tensors as they are changed for a test. */
struct made {
    struct safetensors_entry entries[256];
    float *values[256];
    size_t n;
};

static void read_tensors(struct made *m) {
    struct store *store;
    struct error e = {0};
    if (store_open(&store, ADAPTER "/adapter_model.safetensors", &e)) fail_msg("%s", e.message);
    m->n = store_count(store);
    assert_in_range(m->n, 2, 250);
    for (size_t i = 0; i < m->n; i++) {
        const struct store_tensor *t = store_at(store, i);
        assert_int_equal(t->type, DTYPE_F32);
        m->entries[i] =
            (struct safetensors_entry){strdup(t->name), DTYPE_F32, 2, {t->dims[0], t->dims[1]}};
        m->values[i] = malloc(t->bytes);
        memcpy(m->values[i], t->data, t->bytes);
    }
    store_close(store);
}

static void add_tensor(struct made *m, const char *name, int64_t rows, int64_t cols) {
    m->entries[m->n] = (struct safetensors_entry){strdup(name), DTYPE_F32, 2, {rows, cols}};
    m->values[m->n++] = calloc((size_t)(rows * cols), sizeof(float));
}

/* Writes the adapter to a directory, in the order of entries, and forgets it. Its configuration is that
 * of ADAPTER with `change` (taken) laid over it. */
static const char *write_made(struct made *m, json_t *change) {
    struct safetensors_writer w;
    struct error e = {0};
    json_t *config = json_read_file(ADAPTER "/adapter_config.json", 1 << 20, &e);
    assert_non_null(config);
    if (change) json_object_update(config, change);
    json_decref(change);
    static int made;
    char name[64], path[600];
    snprintf(name, sizeof name, "made%d", ++made);
    const char *dir = tiny_mkdir(name);
    snprintf(path, sizeof path, "%s/adapter_config.json", dir);
    assert_int_equal(json_dump_file(config, path, 0), 0);
    json_decref(config);
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", dir);
    if (safetensors_writer_open(&w, path, m->entries, m->n, &e)) fail_msg("%s", e.message);
    for (size_t i = 0; i < m->n; i++)
        safetensors_writer_add(&w, m->values[i],
                               (size_t)(m->entries[i].dims[0] * m->entries[i].dims[1]));
    if (safetensors_writer_commit(&w, &e)) fail_msg("%s", e.message);
    for (size_t i = 0; i < m->n; i++) {
        free((char *)m->entries[i].name);
        free(m->values[i]);
    }
    m->n = 0;
    return dir;
}

static struct adapter *take(struct made *m, json_t *change) {
    struct adapter *a;
    struct error e = {0};
    if (adapter_open(&a, model, write_made(m, change), &e)) fail_msg("%s", e.message);
    return a;
}

static void refuse(struct made *m, json_t *change, const char *fault) {
    struct adapter *a;
    struct error e = {0};
    if (adapter_open(&a, model, write_made(m, change), &e) == 0) fail_msg("taken: %s", fault);
    assert_int_equal(e.kind, ERR_BAD_FILE);
    assert_names(e.message, fault);
}

/* --- tests ---------------------------------------------------------------------------------------- */

static void rank_stabilised_scales_are_alpha_over_the_root(void **state) {
    (void)state;
    struct made m = {0};
    read_tensors(&m);
    struct adapter *a = take(&m, json_pack("{s:i, s:b}", "lora_alpha", 16, "use_rslora", 1));
    int r = adapter_rank(a);
    assert_true(r > 1);
    assert_true(fabs(adapter_scale(a) - 16 / sqrt(r)) < 1e-6);
    adapter_close(a);
    read_tensors(&m);
    a = take(&m, json_pack("{s:i, s:b}", "lora_alpha", 16, "use_rslora", 0));
    assert_true(fabs(adapter_scale(a) - 16.0 / r) < 1e-6);
    adapter_close(a);
}

static void ranks_and_alphas_of_single_layers_are_refused(void **state) {
    (void)state;
    struct made m = {0};
    read_tensors(&m);
    refuse(&m, json_pack("{s:{s:i}}", "rank_pattern", "layers.1.self_attn.q_proj", 2), "rank_pattern");
    read_tensors(&m);
    refuse(&m, json_pack("{s:{s:i}}", "alpha_pattern", "layers.1.self_attn.q_proj", 99),
           "alpha_pattern");
}

static void a_rank_that_is_not_the_configurations_is_refused_by_name(void **state) {
    (void)state;
    struct made m = {0};
    read_tensors(&m);
    refuse(&m, json_pack("{s:i}", "r", 64), "lora_A");
    read_tensors(&m); /* one pair of another rank among the others */
    size_t i = 0;
    while (!strstr(m.entries[i].name, "layers.1.self_attn.v_proj.lora_A")) i++;
    m.entries[i].dims[0] /= 2;
    refuse(&m, NULL, "layers.1.self_attn.v_proj.lora_A");
}

static void the_order_of_keys_means_nothing(void **state) {
    (void)state;
    struct made m = {0};
    read_tensors(&m);
    struct adapter *straight = take(&m, NULL);
    read_tensors(&m);
    for (size_t i = 0; i < m.n / 2; i++) {
        struct safetensors_entry entry = m.entries[i];
        float *values = m.values[i];
        m.entries[i] = m.entries[m.n - 1 - i];
        m.values[i] = m.values[m.n - 1 - i];
        m.entries[m.n - 1 - i] = entry;
        m.values[m.n - 1 - i] = values;
    }
    struct adapter *turned = take(&m, NULL);
    assert_true(adapter_scale(turned) == adapter_scale(straight));
    read_tensors(&m);
    for (size_t i = 0; i < m.n; i++) {
        size_t n = (size_t)(m.entries[i].dims[0] * m.entries[i].dims[1]);
        float *x = malloc(n * sizeof *x);
        assert_true(adapter_read(turned, m.entries[i].name, n, x));
        assert_memory_equal(x, m.values[i], n * sizeof *x);
        free(x);
    }
    write_made(&m, NULL); /* frees */
    adapter_close(straight);
    adapter_close(turned);
}

/* A head that is tied to the embedding cannot have an adapter of its own, here or in a job. */
static void heads_and_embeddings_have_no_adapters(void **state) {
    (void)state;
    struct made m = {0};
    read_tensors(&m);
    add_tensor(&m, "base_model.model.lm_head.lora_A.weight", 4, 32);
    add_tensor(&m, "base_model.model.lm_head.lora_B.weight", 64, 4);
    refuse(&m, NULL, "lm_head.lora_A");
    read_tensors(&m);
    refuse(&m, json_pack("{s:[s]}", "modules_to_save", "lm_head"), "modules_to_save");
    read_tensors(&m); /* only the rows of added tokens, as some trainers write them */
    add_tensor(&m, "base_model.model.model.embed_tokens.weight", 5, 32);
    refuse(&m, NULL, "embed_tokens.weight");
    struct job_spec spec;
    struct error e = {0};
    json_t *job = json_pack("{s:s, s:{s:[s]}}", "data", "x.jsonl", "lora", "targets", "lm_head");
    assert_int_equal(job_spec_parse(&spec, job, &e), -(int)ERR_PARAMS);
    assert_names(e.message, "targets");
    json_decref(job);
}

static void a_published_adapter_with_added_tokens_is_refused_with_the_reason(void **state) {
    (void)state;
    const char *dir = shared_path("fixtures/lora");
    struct adapter *a;
    struct error e = {0};
    if (!dir) return;
    assert_int_not_equal(adapter_open(&a, model, dir, &e), 0);
    assert_int_equal(e.kind, ERR_BAD_FILE);
    assert_names(e.message, "fixtures/lora");
}

static int open_model(void **state) {
    (void)state;
    struct error e = {0};
    tiny_path("");
    return model_open(&model, MODEL, &e);
}

static int close_model(void **state) {
    (void)state;
    model_free(model);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rank_stabilised_scales_are_alpha_over_the_root),
        cmocka_unit_test(ranks_and_alphas_of_single_layers_are_refused),
        cmocka_unit_test(a_rank_that_is_not_the_configurations_is_refused_by_name),
        cmocka_unit_test(the_order_of_keys_means_nothing),
        cmocka_unit_test(heads_and_embeddings_have_no_adapters),
        cmocka_unit_test(a_published_adapter_with_added_tokens_is_refused_with_the_reason),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
