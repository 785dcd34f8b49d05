/* A merged model gives the logits of base and adapter together, from every kind of base; it appears whole or
 * not at all; what cannot be written is refused with the reason. That transformers loads it and agrees is
 * checked by tests/golden/check_merge.py. */
#include "tests/unit/model_runner.h"

#include "base/file.h"
#include "base/json.h"
#include "formats/safetensors_write.h"
#include "model/merge.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { PROMPT = 12 };
static const int32_t prompt[PROMPT] = {5, 17, 3, 29, 11, 8, 40, 22, 9, 31, 14, 6};

static char dir[64];

static int make_dir(void **state) {
    (void)state;
    strcpy(dir, "/tmp/tpd-test-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state) {
    (void)state;
    return dir_remove(dir, NULL);
}

static const char *in_dir(const char *name) {
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

/* --- logits --------------------------------------------------------------------------------------- */

struct said {
    struct adapter *adapter; /* NULL: the model alone */
    float *logits;
};

static int set_unit(struct rank *rank, void *arg, struct error *e) {
    return shard_adapter_set(rank->state, 0, arg, e);
}

static void say(struct runner *r, void *arg) {
    struct said *s = arg;
    struct error e = {0};
    s->logits = malloc(PROMPT * (size_t)model_config(r->model)->vocab * sizeof(float));
    if (s->adapter) {
        if (ranks_run(r->ranks, set_unit, s->adapter, &e)) fail_msg("%s", e.message);
        r->adapter = 0;
    }
    assert_int_equal(runner_feed(r, prompt, 0, PROMPT, PROMPT, s->logits), 0);
}

static float *logits_of(const char *path, struct adapter *adapter) {
    struct said s = {.adapter = adapter};
    struct runner_options o = {.tp = 2, .device = RANK_CPU};
    runner_run(path, &o, say, &s);
    return s.logits;
}

static double difference(const float *a, const float *b, int32_t vocab) {
    double worst = 0;
    for (size_t i = 0; i < PROMPT * (size_t)vocab; i++)
        worst = fmax(worst, fabs((double)a[i] - (double)b[i]));
    return worst;
}

/* --- merging -------------------------------------------------------------------------------------- */

struct merged {
    struct model *base;
    struct adapter *adapter;
    struct merge_report report;
};

/* An adapter of q and k for any model: rank 2, all layers. */
static void make_adapter(const struct model *base) {
    const struct model_config *c = model_config(base);
    enum { R = 2, MOST = 64 };
    static char names[MOST][96];
    struct safetensors_entry entries[MOST];
    struct safetensors_writer w;
    struct file_writer config;
    struct error e = {0};
    int n = 0;
    for (int32_t i = 0; i < c->n_layers; i++)
        for (int k = 0; k < 4; k++, n++) {
            int32_t out = (k < 2 ? c->n_heads : c->n_kv_heads) * c->head_dim;
            snprintf(names[n], sizeof names[n],
                     "base_model.model.model.layers.%d.self_attn.%c_proj.lora_%c.weight", i,
                     "qk"[k / 2], "AB"[k % 2]);
            entries[n] = (struct safetensors_entry){
                names[n], DTYPE_F32, 2, {k % 2 ? out : R, k % 2 ? R : c->hidden}};
        }
    dir_make(in_dir("lora"), NULL);
    if (safetensors_writer_open(&w, in_dir("lora/adapter_model.safetensors"), entries, (size_t)n, &e))
        fail_msg("%s", e.message);
    for (int i = 0; i < n; i++)
        for (int64_t k = 0; k < entries[i].dims[0] * entries[i].dims[1]; k++) {
            float value = 0.3f * sinf((float)(i * 100) + (float)k * 1.7f);
            safetensors_writer_add(&w, &value, 1);
        }
    if (safetensors_writer_commit(&w, &e)) fail_msg("%s", e.message);
    static const char text[] = "{\"peft_type\": \"LORA\", \"r\": 2, \"lora_alpha\": 6}";
    if (file_writer_open(&config, in_dir("lora/adapter_config.json"), &e)) fail_msg("%s", e.message);
    file_writer_add(&config, text, sizeof text - 1);
    if (file_writer_commit(&config, &e)) fail_msg("%s", e.message);
}

/* adapter: a case of tests/data/training; NULL: one made for the base. */
static void open_pair(struct merged *m, const char *base, const char *adapter) {
    struct error e = {0};
    char path[160];
    snprintf(path, sizeof path, "tests/data/%s", base);
    if (model_open(&m->base, path, &e)) fail_msg("%s", e.message);
    snprintf(path, sizeof path, "tests/data/training/%s/adapter", adapter);
    if (!adapter) {
        make_adapter(m->base);
        snprintf(path, sizeof path, "%s", in_dir("lora"));
    }
    if (adapter_open(&m->adapter, m->base, path, &e)) fail_msg("%s", e.message);
}

static void close_pair(struct merged *m) {
    adapter_close(m->adapter);
    model_free(m->base);
}

static void merge_well(struct merged *m, const char *out, const struct merge_options *o) {
    struct error e = {0};
    if (model_merge(&m->report, m->base, m->adapter, out, o, &e)) fail_msg("%s", e.message);
    assert_false(path_exists(in_dir("out.part")));
}

/* type: of the result's matrices; rounding: what that type may change of a logit. */
static void check(const char *base, const char *adapter, size_t file_bytes, enum dtype type,
                  double rounding) {
    struct merged m;
    struct merge_options o = {.file_bytes = file_bytes};
    struct error e = {0};
    char out[128];
    snprintf(out, sizeof out, "%s", in_dir("out"));
    open_pair(&m, base, adapter);
    merge_well(&m, out, &o);
    struct model *model;
    if (model_open(&model, out, &e)) fail_msg("%s: %s", base, e.message);
    assert_int_equal(model_dtype(model), type);
    assert_int_equal(m.report.type, type);
    assert_int_equal(store_count(model_store(model)), m.report.tensors);
    assert_int_equal(store_file_count(model_store(model)), m.report.files);
    assert_int_equal(m.report.files > 1, file_bytes > 0);
    int32_t vocab = model_config(model)->vocab;
    float *want = logits_of(model_path(m.base), m.adapter), *got = logits_of(out, NULL);
    float *plain = logits_of(model_path(m.base), NULL);
    double off = difference(want, got, vocab);
    if (!(off <= rounding)) fail_msg("%s: logits are off by %g", base, off);
    if (!(difference(want, plain, vocab) > 4 * rounding))
        fail_msg("%s: the adapter changes too little for this test", base);
    free(want);
    free(got);
    free(plain);
    model_free(model);
    close_pair(&m);
    dir_remove(out, NULL);
}

static void a_merged_directory_says_what_base_and_adapter_said(void **state) {
    (void)state;
    check("models/llama-gqa-tied", "lora-llama-gqa-tied", 0, DTYPE_F32, 1e-5);
    check("models/llama-biases", "lora-llama-biases", 0, DTYPE_F32, 1e-5);
    check("models/granite", "lora-granite", 0, DTYPE_F32, 1e-5);
    check("models/llama-uneven", "lora-llama-uneven", 0, DTYPE_F32, 1e-5); /* rslora */
}

static void a_large_model_is_several_files(void **state) {
    (void)state;
    check("models/llama-gqa-tied", "lora-llama-gqa-tied", 12000, DTYPE_F32, 1e-5);
    check("models/llama-gqa-tied", "lora-llama-gqa-tied", 1, DTYPE_F32, 1e-5); /* one a tensor */
}

/* Rows of q and k go back to Hugging Face's order, names too; quantised tensors become bf16. */
static void a_gguf_base_becomes_a_directory(void **state) {
    (void)state;
    check("gguf/llama-f32/model.gguf", "lora-llama-q4_0", 0, DTYPE_F32, 3e-5);
    check("gguf/llama-f16/model.gguf", "lora-llama-q4_0", 0, DTYPE_F16, 2e-2);
    check("gguf/llama-bf16/model.gguf", "lora-llama-q4_0", 0, DTYPE_BF16, 1.5e-1);
    check("gguf/llama-q4_0/model.gguf", "lora-llama-q4_0", 0, DTYPE_BF16, 1.5e-1);
    check("gguf/llama-q8_0/model.gguf", "lora-llama-q4_0", 0, DTYPE_BF16, 1.5e-1);
    check("gguf/llama-biases-f16/model.gguf", NULL, 0, DTYPE_F16, 2e-2);
    check("gguf/llama-uneven-f16/model.gguf", NULL, 0, DTYPE_F16, 2e-2);
    check("gguf/llama-rope-yarn-f16/model.gguf", NULL, 0, DTYPE_F16, 2e-2);
    check("gguf/llama-rope-linear-f16/model.gguf", NULL, 0, DTYPE_F16, 2e-2);
    check("gguf/granite-f16/model.gguf", NULL, 0, DTYPE_F16, 2e-2);
    check("gguf/qwen2-f16/model.gguf", NULL, 0, DTYPE_F16, 2e-2);
    check("gguf/qwen3-f16/model.gguf", NULL, 0, DTYPE_F16, 2e-2);
    check("gguf/llama-q6_k/model.gguf", NULL, 0, DTYPE_BF16, 1.5e-1);
}

/* --- weights -------------------------------------------------------------------------------------- */

static float *values_of(const struct store *store, const char *name, size_t *n) {
    const struct store_tensor *t = store_find(store, name);
    if (!t) fail_msg("no tensor %s", name);
    *n = (size_t)(t->dims[0] * t->dims[1]);
    float *out = malloc(*n * sizeof *out);
    for (int64_t r = 0; r < t->dims[0]; r++)
        dtype_row_to_f32((enum dtype)t->type,
                         t->data + (size_t)r * dtype_row_bytes((enum dtype)t->type, t->dims[1]),
                         out + r * t->dims[1], t->dims[1]);
    return out;
}

/* One rounding: half a unit of the last place, and what fp32 adds to it. */
static void check_weight(const char *base, double half_unit) {
    struct merged m;
    struct merge_options o = {0};
    struct error e = {0};
    struct store *lora, *result;
    size_t n, na, nb;
    const char *name = "model.layers.0.mlp.down_proj.weight"; /* no rows to put in order */
    open_pair(&m, base, "lora-llama-q4_0");
    merge_well(&m, in_dir("out"), &o);
    if (store_open(&result, in_dir("out"), &e)) fail_msg("%s", e.message);
    if (store_open(&lora, "tests/data/training/lora-llama-q4_0/adapter/adapter_model.safetensors", &e))
        fail_msg("%s", e.message);
    float *w = values_of(model_store(m.base), name, &n), *got = values_of(result, name, &n);
    float *a = values_of(lora, "base_model.model.model.layers.0.mlp.down_proj.lora_A.weight", &na);
    float *b = values_of(lora, "base_model.model.model.layers.0.mlp.down_proj.lora_B.weight", &nb);
    size_t r = (size_t)adapter_rank(m.adapter), cols = na / r, rows = nb / r;
    assert_int_equal(rows * cols, n);
    for (size_t i = 0; i < n; i++) {
        double sum = 0;
        for (size_t k = 0; k < r; k++)
            sum += (double)b[i / cols * r + k] * (double)a[k * cols + i % cols];
        double want = (double)w[i] + 2 * sum; /* alpha 8, r 4 */
        assert_true(fabs(got[i] - want) <= half_unit * fabs(want) + 1e-6);
    }
    free(w);
    free(got);
    free(a);
    free(b);
    store_close(lora);
    store_close(result);
    close_pair(&m);
    dir_remove(in_dir("out"), NULL);
}

static void sums_are_rounded_once(void **state) {
    (void)state;
    check_weight("gguf/llama-f32/model.gguf", 0);
    check_weight("gguf/llama-f16/model.gguf", 0x1p-11);
    check_weight("gguf/llama-q4_0/model.gguf", 0x1p-8);
}

/* --- what stands beside --------------------------------------------------------------------------- */

static void expect_notes(const struct merge_report *report, const char *const *want, int n) {
    const char *notes[MERGE_NOTES];
    int have;
    merge_notes(report, notes, &have);
    assert_int_equal(have, n);
    for (int i = 0; i < n; i++) assert_non_null(strstr(notes[i], want[i]));
}

static void copy(const char *from, const char *to) {
    struct error e = {0};
    struct file_writer w;
    char *text;
    size_t size;
    if (file_read(from, 16 << 20, &text, &size, &e)) fail_msg("%s", e.message);
    if (file_writer_open(&w, to, &e)) fail_msg("%s", e.message);
    file_writer_add(&w, text, size);
    if (file_writer_commit(&w, &e)) fail_msg("%s", e.message);
    free(text);
}

/* A GGUF file takes what lies beside it, if that is of the same model, and says so where it is not. */
static void a_gguf_file_takes_what_lies_beside_it(void **state) {
    (void)state;
    struct merged m;
    struct merge_options o = {0};
    struct error e = {0};
    open_pair(&m, "gguf/llama-q4_0/model.gguf", "lora-llama-q4_0");
    merge_well(&m, in_dir("alone"), &o);
    expect_notes(&m.report, (const char *[]){"bf16", "metadata", "tokenizer.json"}, 3);
    model_free(m.base);

    dir_make(in_dir("base"), NULL);
    copy("tests/data/gguf/llama-q4_0/model.gguf", in_dir("base/model.gguf"));
    copy("tests/data/models/tiny-chat/tokenizer.json", in_dir("base/tokenizer.json"));
    copy("tests/data/models/granite/config.json", in_dir("base/config.json"));
    if (model_open(&m.base, in_dir("base/model.gguf"), &e)) fail_msg("%s", e.message);
    merge_well(&m, in_dir("other"), &o);
    expect_notes(&m.report, (const char *[]){"bf16", "metadata", "tokenizer.json"}, 3);
    assert_false(path_exists(in_dir("other/tokenizer.json")));

    char config[128];
    snprintf(config, sizeof config, "%s", in_dir("alone/config.json"));
    copy(config, in_dir("base/config.json"));
    merge_well(&m, in_dir("same"), &o);
    expect_notes(&m.report, (const char *[]){"bf16"}, 1);
    assert_true(path_exists(in_dir("same/tokenizer.json")));
    close_pair(&m);
}

static void a_gguf_file_with_frequency_factors_needs_its_config(void **state) {
    (void)state;
    struct merged m;
    struct merge_options o = {0};
    struct error e = {0};
    open_pair(&m, "gguf/llama-rope-llama3-f16/model.gguf", NULL);
    assert_int_equal(model_merge(&m.report, m.base, m.adapter, in_dir("out"), &o, &e), -ERR_CONFIG);
    assert_non_null(strstr(e.message, "rope_freqs"));
    assert_false(path_exists(in_dir("out")));
    assert_false(path_exists(in_dir("out.part")));
    close_pair(&m);
}

/* --- whole or not at all -------------------------------------------------------------------------- */

static int pieces_left;

static bool stop_later(void *user) {
    (void)user;
    return --pieces_left < 0;
}

static void a_merge_that_is_cancelled_leaves_nothing(void **state) {
    (void)state;
    struct merged m;
    struct merge_options o = {.file_bytes = 12000, .stopped = stop_later};
    struct error e = {0};
    open_pair(&m, "models/llama-gqa-tied", "lora-llama-gqa-tied");
    for (int after = 0; after < 15; after += 7) {
        pieces_left = after;
        assert_int_equal(model_merge(&m.report, m.base, m.adapter, in_dir("out"), &o, &e),
                         -ERR_CANCELLED);
        assert_false(path_exists(in_dir("out")));
        assert_false(path_exists(in_dir("out.part")));
    }
    close_pair(&m);
}

static void what_is_there_is_never_written_over(void **state) {
    (void)state;
    struct merged m;
    struct merge_options o = {0};
    struct error e = {0};
    open_pair(&m, "models/llama-gqa-tied", "lora-llama-gqa-tied");
    dir_make(in_dir("out"), NULL);
    assert_int_equal(model_merge(&m.report, m.base, m.adapter, in_dir("out/"), &o, &e),
                     -ERR_CONFLICT);
    assert_int_equal(rmdir(in_dir("out")), 0); /* and nothing is in it */
    dir_make(in_dir("out.part/old"), NULL);    /* of a merge that was killed */
    merge_well(&m, in_dir("out/"), &o);
    assert_false(path_exists(in_dir("out/old")));
    close_pair(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_merged_directory_says_what_base_and_adapter_said, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(a_large_model_is_several_files, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(a_gguf_base_becomes_a_directory, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(sums_are_rounded_once, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(a_gguf_file_takes_what_lies_beside_it, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(a_gguf_file_with_frequency_factors_needs_its_config, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(a_merge_that_is_cancelled_leaves_nothing, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(what_is_there_is_never_written_over, make_dir, remove_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
