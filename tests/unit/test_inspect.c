/* tpd inspect: shows what good files hold, in a table or as JSON; for a bad one it ends with 65 and
 * one line that names the file and the fault. */
#include "tests/unit/tiny_files.h"

#include "base/json.h"
#include "daemon/offline_inspect.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>

struct run {
    int exit_code;
    char *out, *err;
};

static char *slurp(const char *path) {
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    long size = ftell(f);
    rewind(f);
    char *text = calloc(1, (size_t)size + 1);
    assert_int_equal(fread(text, 1, (size_t)size, f), (size_t)size);
    fclose(f);
    return text;
}

static int redirect(int fd, const char *path) {
    fflush(NULL);
    int saved = dup(fd), file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(saved >= 0 && file >= 0);
    dup2(file, fd);
    close(file);
    return saved;
}

static void restore(int fd, int saved) {
    fflush(NULL);
    dup2(saved, fd);
    close(saved);
}

/* Runs the command and keeps what it wrote. */
static struct run inspect(const char *a, const char *b) {
    char out[512], err[512];
    snprintf(out, sizeof out, "%s", tiny_path("stdout"));
    snprintf(err, sizeof err, "%s", tiny_path("stderr"));
    int saved_out = redirect(1, out), saved_err = redirect(2, err);
    char *argv[] = {(char *)a, (char *)b, NULL};
    int code = offline_inspect((a != NULL) + (b != NULL), argv);
    restore(1, saved_out);
    restore(2, saved_err);
    return (struct run){code, slurp(out), slurp(err)};
}

static void run_free(struct run *r) {
    free(r->out);
    free(r->err);
}

static void refused(const char *path, int exit_code, const char *fault) {
    struct run r = inspect(path, NULL);
    if (r.exit_code != exit_code)
        fail_msg("%s: exit code %d, not %d: %s", path, r.exit_code, exit_code, r.err);
    assert_string_equal(r.out, "");
    assert_names(r.err, path);
    assert_names(r.err, fault);
    char *end = strchr(r.err, '\n');
    if (!end || end[1]) fail_msg("not one line: %s", r.err);
    run_free(&r);
}

static json_t *report_of(const char *path) {
    struct run r = inspect(path, "--json");
    if (r.exit_code != 0) fail_msg("%s", r.err);
    struct error e = {0};
    json_t *report = json_read(r.out, strlen(r.out), &e);
    if (!report) fail_msg("%s: %s", e.message, r.out);
    run_free(&r);
    return report;
}

static void expect_int(json_t *object, const char *key, json_int_t value) {
    json_t *member = json_object_get(object, key);
    if (!json_is_integer(member) || json_integer_value(member) != value)
        fail_msg("%s is not %lld", key, (long long)value);
}

static void expect_text(json_t *object, const char *key, const char *value) {
    const char *text = json_string_value(json_object_get(object, key));
    if (!text || strcmp(text, value) != 0) fail_msg("%s is %s, not %s", key, text, value);
}

/* A llama of one layer, hidden 2, one head; the head is missing unless with_head. */
static const char *write_model(const char *dir, bool tied, bool with_head) {
    char path[600], config[600], header[4000] = "{";
    tiny_mkdir(dir);
    snprintf(config, sizeof config,
             "{\"model_type\":\"llama\",\"hidden_size\":2,\"intermediate_size\":2,"
             "\"num_hidden_layers\":1,\"num_attention_heads\":1,\"vocab_size\":2,"
             "\"tie_word_embeddings\":%s}",
             tied ? "true" : "false");
    snprintf(path, sizeof path, "%s/config.json", dir);
    tiny_write_text(path, config);
    const char *matrices[] = {"model.embed_tokens",
                              "model.layers.0.self_attn.q_proj",
                              "model.layers.0.self_attn.k_proj",
                              "model.layers.0.self_attn.v_proj",
                              "model.layers.0.self_attn.o_proj",
                              "model.layers.0.mlp.gate_proj",
                              "model.layers.0.mlp.up_proj",
                              "model.layers.0.mlp.down_proj",
                              "lm_head"};
    const char *norms[] = {"model.norm", "model.layers.0.input_layernorm",
                           "model.layers.0.post_attention_layernorm"};
    size_t n = 1, at = 0;
    for (int i = 0; i < (with_head ? 9 : 8); i++, at += 16)
        n += (size_t)snprintf(header + n, sizeof header - n,
                              "\"%s.weight\":{\"dtype\":\"F32\",\"shape\":[2,2],"
                              "\"data_offsets\":[%zu,%zu]},",
                              matrices[i], at, at + 16);
    for (int i = 0; i < 3; i++, at += 8)
        n += (size_t)snprintf(header + n, sizeof header - n,
                              "\"%s.weight\":{\"dtype\":\"F32\",\"shape\":[2],"
                              "\"data_offsets\":[%zu,%zu]}%s",
                              norms[i], at, at + 8, i < 2 ? "," : "}");
    struct bytes b = {0};
    put_safetensors(&b, header, at);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    tiny_write(path, b.data, b.n);
    return tiny_path(dir);
}

static void a_model_directory_is_shown(void **state) {
    (void)state;
    const char *path = write_model("tied", true, false);
    json_t *report = report_of(path);
    expect_text(report, "kind", "model"), expect_text(report, "format", "safetensors");
    expect_int(report, "tensor_count", 11), expect_int(report, "parameters", 38);
    expect_int(report, "bytes", 152);
    expect_int(json_object_get(report, "bytes_by_dtype"), "F32", 152);
    json_t *model = json_object_get(report, "model");
    expect_text(model, "architecture", "llama"), expect_int(model, "layers", 1);
    expect_int(model, "head_dim", 2);
    json_t *first = json_array_get(json_object_get(report, "tensors"), 0);
    expect_text(first, "dtype", "F32"), expect_int(first, "bytes", 16);
    assert_int_equal(json_array_size(json_object_get(first, "shape")), 2);
    json_decref(report);

    struct run r = inspect(path, NULL);
    assert_int_equal(r.exit_code, 0);
    assert_names(r.out, "architecture: llama");
    assert_names(r.out, "model.layers.0.mlp.down_proj.weight");
    run_free(&r);
}

static void a_model_that_does_not_fit_its_configuration_is_refused(void **state) {
    (void)state;
    refused(write_model("headless", false, false), 65, "lm_head.weight");
    const char *path = write_model("alien", true, false);
    tiny_write_text("alien/config.json", "{\"model_type\":\"gpt_neox\"}");
    refused(path, 65, "architecture \"gpt_neox\" is not supported");
    path = write_model("extra-head", true, true); /* a tied model may carry its head */
    json_decref(report_of(path));
    path = write_model("deep", true, false);
    char nested[20100] = "";
    memset(nested, '[', 10000), memset(nested + 10000, ']', 10000);
    tiny_write_text("deep/config.json", nested);
    refused(path, 65, "config.json: too deeply nested");
    tiny_mkdir("bare"), tiny_write_text("bare/model.safetensors", "x");
    refused(tiny_path("bare"), 65, "config.json");
}

/* A download that stopped: the index names only what came first. */
static void a_tensor_that_no_shard_has_is_named(void **state) {
    (void)state;
    const char *path = write_model("partial", true, false);
    assert_int_equal(rename(tiny_path("partial/model.safetensors"),
                            tiny_path("partial/model-00001-of-00002.safetensors")),
                     0);
    tiny_write_text("partial/model.safetensors.index.json",
                    "{\"weight_map\":{\"model.embed_tokens.weight\":"
                    "\"model-00001-of-00002.safetensors\",\"model.norm.weight\":"
                    "\"model-00001-of-00002.safetensors\"}}");
    refused(path, 65, "model.layers.0");
}

static void a_gguf_file_is_shown_with_its_metadata(void **state) {
    (void)state;
    struct bytes b = {0};
    put_gguf(&b, 3, 1, 4);
    put_key_string(&b, "general.name", "bad \xFF text \x1B[31m");
    put_key(&b, "few", 9), put_u32(&b, 4), put_u64(&b, 2), put_u32(&b, 5), put_u32(&b, 6);
    put_key(&b, "many", 9), put_u32(&b, 0), put_u64(&b, 100), put_zeros(&b, 100);
    put_key(&b, "nan", 6), put_u32(&b, 0x7FC00000);
    put_tensor(&b, "blk.0.attn_q.weight", 2, (uint64_t[]){32, 1}, 20, 0);
    put_pad(&b, 32), put_zeros(&b, 18);
    const char *path = tiny_write("shown.gguf", b.data, b.n);
    json_t *report = report_of(path);
    expect_text(report, "kind", "tensors"), expect_int(report, "gguf_version", 3);
    json_t *metadata = json_object_get(report, "metadata");
    expect_text(metadata, "general.name", "bad \xEF\xBF\xBD text \x1B[31m");
    assert_int_equal(json_integer_value(json_array_get(json_object_get(metadata, "few"), 1)), 6);
    expect_int(json_object_get(metadata, "many"), "count", 100);
    assert_true(json_is_null(json_object_get(metadata, "nan")));
    json_t *tensor = json_array_get(json_object_get(report, "tensors"), 0);
    expect_text(tensor, "dtype", "IQ4_NL"), expect_int(tensor, "bytes", 18);
    json_decref(report);
    struct run r = inspect(path, NULL);
    assert_int_equal(r.exit_code, 0);
    assert_null(strchr(r.out, '\x1B')); /* a file's text does not reach the terminal raw */
    run_free(&r);
}

static void an_adapter_is_shown_and_checked(void **state) {
    (void)state;
#define A       "\"x.lora_A.weight\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}"
#define B       "\"x.lora_B.weight\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[24,32]}"
#define B_WRONG "\"x.lora_B.weight\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[24,32]}"
    struct bytes b = {0};
    const char *dir = tiny_mkdir("adapter");
    tiny_write_text("adapter/adapter_config.json",
                    "{\"peft_type\":\"LORA\",\"r\":2,\"lora_alpha\":4,\"target_modules\":[\"x\"]}");
    refused(dir, 65, "no adapter_model.safetensors");
    put_safetensors(&b, "{" A "," B "}", 32);
    tiny_write("adapter/adapter_model.safetensors", b.data, b.n);
    json_t *report = report_of(dir);
    expect_text(report, "kind", "adapter"), expect_int(json_object_get(report, "adapter"), "r", 2);
    json_decref(report);

    b = (struct bytes){0}, put_safetensors(&b, "{" A "," B_WRONG "}", 32);
    tiny_write("adapter/adapter_model.safetensors", b.data, b.n);
    refused(dir, 65, "does not fit");
    b = (struct bytes){0}, put_safetensors(&b, "{" A "}", 24);
    tiny_write("adapter/adapter_model.safetensors", b.data, b.n);
    refused(dir, 65, "\"x.lora_B.weight\" is missing");
    tiny_write_text("adapter/adapter_config.json", "{\"peft_type\":\"IA3\"}");
    refused(dir, 65, "only LORA adapters");
}

static void wrong_use_and_missing_files_have_their_exit_codes(void **state) {
    (void)state;
    refused(tiny_path("absent.gguf"), 66, "no such file");
    refused(tiny_path("absent-directory/"), 66, "no such file");
    const char *wrong[][2] = {
        {NULL, NULL}, {"--json", NULL}, {"a", "b"}, {"a", "--yaml"}, {"", NULL}};
    for (size_t i = 0; i < 5; i++) {
        struct run r = inspect(wrong[i][0], wrong[i][1]);
        assert_int_equal(r.exit_code, 64);
        assert_names(r.err, "usage: tpd inspect PATH");
        run_free(&r);
    }
}

/* What the message must name, by file; the shared bug cases tell which. */
static const struct {
    const char *file, *fault;
} malformed[] = {
    {"gguf-034.gguf", "\"a\""},
    {"gguf-036.gguf", "\"general.name\""},
    {"gguf-037.gguf", "\"general.alignment\""},
    {"gguf-039.gguf", "\"general.alignment\": has type string"},
    {"gguf-040.gguf", "\"t.weight\": dimension 1 is 0"},
    {"gguf-042.gguf", "\"t\": has 9 dimensions"},
    {"gguf-043.gguf", "\"t\": dimension 0"},
    {"gguf-045.gguf", "array of arrays"},
    {"gguf-046.gguf", "value type 255"},
    {"gguf-048.gguf", "version 4294967295"},
    {"st-019.safetensors", "header too large"},
    {"st-021.safetensors", "4096 bytes"},
    {"st-022.safetensors", "has 2 bytes"},
    {"st-024.safetensors", "\"a\": data_offsets"},
    {"st-025.safetensors", "\"a\": data_offsets [4, 0]"},
    {"st-027.safetensors", "\"a\": the product of its shape overflows"},
    {"st-028.safetensors", "\"a\": data_offsets"},
    {"st-030.safetensors", "overlaps tensor"},
    {"st-031.safetensors", "duplicate"},
};

static void every_malformed_file_is_refused_by_name(void **state) {
    (void)state;
    const char *dir = shared_path("fixtures/malformed");
    if (!dir) skip();
    char folder[1024], path[2048];
    snprintf(folder, sizeof folder, "%s", dir);
    size_t seen = 0;
    DIR *d = opendir(folder);
    for (struct dirent *entry; (entry = readdir(d));) {
        if (entry->d_name[0] == '.') continue;
        const char *fault = "";
        for (size_t i = 0; i < sizeof malformed / sizeof *malformed; i++)
            if (strcmp(malformed[i].file, entry->d_name) == 0) fault = malformed[i].fault, seen++;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        refused(path, 65, fault);
    }
    closedir(d);
    assert_int_equal(seen, sizeof malformed / sizeof *malformed);
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    assert_true(use.ru_maxrss < 400 * 1024); /* kB; sanitizers included */
}

/* The files of fixtures/planner-vectors come as hexadecimal text. */
static const char *from_hex(const char *name, size_t zero_tail) {
    char path[200];
    snprintf(path, sizeof path, "fixtures/planner-vectors/%s.hex", name);
    const char *hex = shared_path(path);
    if (!hex) return NULL;
    char *text = slurp(hex);
    size_t n = strcspn(text, "\n") / 2;
    uint8_t *data = calloc(1, n + zero_tail + 1);
    for (size_t i = 0; i < n; i++) {
        unsigned byte;
        assert_int_equal(sscanf(text + 2 * i, "%2x", &byte), 1);
        data[i] = (uint8_t)byte;
    }
    snprintf(path, sizeof path, "%s.%s", name, name[0] == 'g' ? "gguf" : "safetensors");
    const char *out = tiny_write(path, data, n + zero_tail);
    free(data);
    free(text);
    return out;
}

static void planner_vectors_are_taken_or_refused_as_classified(void **state) {
    (void)state;
    const struct {
        const char *name;
        size_t zero_tail;
        const char *fault; /* NULL: valid */
    } cases[] = {
        {"gguf-v2-f32", 0, NULL},
        {"gguf-v3-q4-0", 0, NULL},
        {"safetensors-header-only", 0, NULL},
        {"safetensors-two-tensors", 0, NULL},
        {"safetensors-fp8-te137-canonical-member-units", 589824, NULL},
        {"safetensors-fp8-flux2-worker-output", 23592960, NULL},
        {"gguf-unknown-type", 0, "\"future.weight\": tensor type 43"},
        {"gguf-unsupported-version", 0, "version 4"},
        {"safetensors-unknown-dtype", 0, "unknown dtype \"F128\""},
        {"safetensors-gap", 0, "a gap"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *path = from_hex(cases[i].name, cases[i].zero_tail);
        if (!path) skip();
        if (cases[i].fault) refused(path, 65, cases[i].fault);
        else json_decref(report_of(path));
    }
}

static void real_files_are_shown(void **state) {
    (void)state;
    const struct {
        const char *name, *kind;
        int tensors;
    } cases[] = {
        {"models/stories260K-hf", "model", 47},
        {"models/stories260K-hf-bf16", "model", 47},
        {"models/stories260K-hf-sharded-untied", "model", 48},
        {"models/stories260K.gguf", "model", 48},
        {"gguf_vocab/ggml-vocab-gpt-2.gguf", "tensors", 0},
        {"fixtures/lora", "adapter", 4},
        {"fixtures/safetensors/tensor-1d-int32.safetensors", "tensors", 1},
        {"fixtures/safetensors/tensor-2d-float64.safetensors", "tensors", 1},
        {"fixtures/safetensors/tensor-3d-float32.safetensors", "tensors", 1},
        {"fixtures/safetensors/tensor-4d-float32.safetensors", "tensors", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *path = shared_path(cases[i].name);
        if (!path) skip();
        json_t *report = report_of(path);
        expect_text(report, "kind", cases[i].kind);
        expect_int(report, "tensor_count", cases[i].tensors);
        json_decref(report);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_model_directory_is_shown),
        cmocka_unit_test(a_model_that_does_not_fit_its_configuration_is_refused),
        cmocka_unit_test(a_tensor_that_no_shard_has_is_named),
        cmocka_unit_test(a_gguf_file_is_shown_with_its_metadata),
        cmocka_unit_test(an_adapter_is_shown_and_checked),
        cmocka_unit_test(wrong_use_and_missing_files_have_their_exit_codes),
        cmocka_unit_test(every_malformed_file_is_refused_by_name),
        cmocka_unit_test(planner_vectors_are_taken_or_refused_as_classified),
        cmocka_unit_test(real_files_are_shown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
