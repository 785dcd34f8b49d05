/* The store: one face for a .safetensors file, a directory with or without shards, and a .gguf;
 * what is missing is named. */
#include "tests/unit/tiny_files.h"

#include "base/file.h"
#include "formats/gguf.h"
#include "formats/store.h"

#include <fcntl.h>
#include <unistd.h>

#define F32(name, from, to)                                                                        \
    "\"" name "\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[" #from "," #to "]}"

static void write_shard(const char *name, const char *header, size_t data_bytes) {
    struct bytes b = {0};
    put_safetensors(&b, header, data_bytes);
    tiny_write(name, b.data, b.n);
}

static struct store *open_ok(const char *name) {
    struct store *store;
    struct error e = {0};
    if (store_open(&store, tiny_path(name), &e) != 0) fail_msg("refused: %s", e.message);
    return store;
}

static void refused(const char *name, const char *fault) {
    struct store *store = NULL;
    struct error e = {0};
    if (store_open(&store, tiny_path(name), &e) == 0) fail_msg("taken, but should name %s", fault);
    assert_int_equal(e.kind, ERR_BAD_FILE);
    assert_null(store);
    assert_names(e.message, name);
    assert_names(e.message, fault);
}

static void a_directory_without_index_loads(void **state) {
    (void)state;
    tiny_mkdir("single");
    write_shard("single/model.safetensors", "{" F32("a", 0, 4) "}", 4);
    struct store *store = open_ok("single");
    assert_int_equal(store_count(store), 1);
    assert_string_equal(store_format(store), "safetensors");
    assert_int_equal(store_find(store, "a")->data[1], 1);
    assert_null(store_find(store, "b"));
    store_drop(store, store_find(store, "a"), 0, 4);
    store_close(store);
}

/* Pages of the map that this process holds. */
static int pages_held(const struct file_map *map) {
    long page = sysconf(_SC_PAGESIZE);
    int held = 0, fd = open("/proc/self/pagemap", O_RDONLY);
    if (fd < 0) skip();
    for (size_t at = 0; at < map->size; at += (size_t)page) {
        uint64_t entry;
        off_t offset = (off_t)((uintptr_t)(map->data + at) / (uintptr_t)page * sizeof entry);
        assert_int_equal(pread(fd, &entry, sizeof entry, offset), sizeof entry);
        held += (int)(entry >> 63);
    }
    close(fd);
    return held;
}

static void what_was_read_leaves_with_all_that_came_with_it(void **state) {
    (void)state;
    enum { MIB = 1 << 20 };
    char *data = malloc(6 * MIB);
    assert_non_null(data);
    memset(data, 'x', 6 * MIB);
    tiny_write("large", data, 6 * MIB);
    free(data);
    struct file_map map;
    struct error e = {0};
    assert_int_equal(file_map_open(&map, tiny_path("large"), &e), 0);
    /* As a loader does: a matrix, then a vector behind it, each let go when it was read. */
    volatile uint8_t sum = 0;
    for (size_t i = 0; i < 5 * MIB; i += 512) sum = (uint8_t)(sum + map.data[i]);
    file_map_drop(&map, 0, 5 * MIB);
    sum = (uint8_t)(sum + map.data[5 * MIB + 5000]);
    assert_true(pages_held(&map) > 0);
    file_map_drop(&map, 5 * MIB + 5000, 1);
    assert_int_equal(pages_held(&map), 0);
    assert_int_equal(map.data[3 * MIB], 'x');
    file_map_close(&map);
}

static void shards_are_joined_as_the_index_says(void **state) {
    (void)state;
    tiny_mkdir("shards");
    write_shard("shards/one.safetensors", "{" F32("a", 0, 4) "," F32("b", 4, 8) "}", 8);
    write_shard("shards/two.safetensors", "{" F32("c", 0, 4) "," F32("a", 4, 8) "}", 8);
    tiny_write_text("shards/model.safetensors.index.json",
                    "{\"metadata\":{\"total_size\":12},\"weight_map\":{\"a\":\"one.safetensors\","
                    "\"c\":\"two.safetensors\",\"b\":\"one.safetensors\"}}");
    struct store *store = open_ok("shards");
    assert_int_equal(store_count(store), 3);
    assert_int_equal(store_file_count(store), 2);
    assert_int_equal(store_find(store, "a")->data[0], 0); /* from shard one */
    assert_non_null(strstr(store_find(store, "c")->file, "two.safetensors"));
    store_close(store);
}

static void a_broken_index_is_refused_by_name(void **state) {
    (void)state;
    tiny_mkdir("broken");
    write_shard("broken/model-00001-of-00003.safetensors", "{" F32("a", 0, 4) "}", 4);
    refused("broken", "has model-00001-of-00003.safetensors but neither");
    const struct {
        const char *index, *fault;
    } cases[] = {
        {"{\"weight_map\":{\"a\":\"model-00001-of-00003.safetensors\","
         "\"b\":\"model-00002-of-00003.safetensors\"}}",
         "model-00002-of-00003.safetensors, which is not in the directory"},
        {"{\"weight_map\":{\"a\":\"model-00001-of-00003.safetensors\","
         "\"b\":\"model-00001-of-00003.safetensors\"}}",
         "tensor \"b\": shard model-00001-of-00003.safetensors does not hold it"},
        {"{\"weight_map\":{\"a\":\"../broken/model-00001-of-00003.safetensors\"}}", "plain name"},
        {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "plain name"},
        {"{\"weight_map\":{\"a\":\"..\"}}", "plain name"},
        {"{\"weight_map\":{\"a\":\"\"}}", "plain name"},
        {"{\"weight_map\":{\"a\":7}}", "plain name"},
        {"{\"weight_map\":{\"a\":\"model-00001-of-00003.safetensors\\u0000\"}}", "plain name"},
        {"{\"weight_map\":[]}", "weight_map"},
        {"{}", "weight_map"},
        {"{", "not valid JSON"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tiny_write_text("broken/model.safetensors.index.json", cases[i].index);
        refused("broken", cases[i].fault);
    }
}

static void what_is_no_model_is_explained(void **state) {
    (void)state;
    tiny_mkdir("empty");
    refused("empty", "holds neither model.safetensors nor");
    tiny_mkdir("pickle"), tiny_write_text("pickle/pytorch_model.bin", "x");
    refused("pickle", "pytorch_model.bin is a pickle");
    tiny_mkdir("gguf"), tiny_write_text("gguf/x.gguf", "x");
    refused("gguf", "x.gguf, give the path of that file");
    tiny_write_text("text.txt", "hello");
    refused("text.txt", "neither a .safetensors nor a .gguf");
    struct store *store;
    struct error e = {0};
    assert_true(store_open(&store, tiny_path("absent"), &e) < 0);
    assert_int_equal(e.kind, ERR_NOT_FOUND);
}

static void gguf_tensors_have_hugging_face_names_and_shapes(void **state) {
    (void)state;
    const char *names[][2] = {
        {"token_embd.weight", "model.embed_tokens.weight"},
        {"output.weight", "lm_head.weight"},
        {"output_norm.weight", "model.norm.weight"},
        {"blk.0.attn_norm.weight", "model.layers.0.input_layernorm.weight"},
        {"blk.10.attn_q.weight", "model.layers.10.self_attn.q_proj.weight"},
        {"blk.10.attn_k.bias", "model.layers.10.self_attn.k_proj.bias"},
        {"blk.1.attn_v.weight", "model.layers.1.self_attn.v_proj.weight"},
        {"blk.1.attn_output.weight", "model.layers.1.self_attn.o_proj.weight"},
        {"blk.1.attn_q_norm.weight", "model.layers.1.self_attn.q_norm.weight"},
        {"blk.1.attn_k_norm.weight", "model.layers.1.self_attn.k_norm.weight"},
        {"blk.1.ffn_norm.weight", "model.layers.1.post_attention_layernorm.weight"},
        {"blk.1.ffn_gate.weight", "model.layers.1.mlp.gate_proj.weight"},
        {"blk.1.ffn_up.weight", "model.layers.1.mlp.up_proj.weight"},
        {"blk.1.ffn_down.bias", "model.layers.1.mlp.down_proj.bias"},
        {"rope_freqs.weight", "rope_freqs.weight"},
        {"blk.01.attn_q.weight", "blk.01.attn_q.weight"},
        {"blk.x.attn_q.weight", "blk.x.attn_q.weight"},
        {"blk.1.weight", "blk.1.weight"},
        {"blk.1..weight", "blk.1..weight"},
        {"blk.1.ffn_gate_exps.weight", "blk.1.ffn_gate_exps.weight"},
        {".weight", ".weight"},
    };
    size_t n = sizeof names / sizeof *names;
    struct bytes b = {0};
    put_gguf(&b, 3, n, 0);
    for (size_t i = 0; i < n; i++) put_tensor(&b, names[i][0], 2, (uint64_t[]){4, 2}, 0, i * 32);
    put_pad(&b, 32), put_zeros(&b, n * 32);
    tiny_write("names.gguf", b.data, b.n);
    struct store *store = open_ok("names.gguf");
    assert_string_equal(store_format(store), "gguf");
    assert_non_null(store_gguf(store));
    for (size_t i = 0; i < n; i++) {
        const struct store_tensor *tensor = store_find(store, names[i][1]);
        if (!tensor) fail_msg("%s is not there as %s", names[i][0], names[i][1]);
        assert_int_equal(tensor->dims[0], 2), assert_int_equal(tensor->dims[1], 4);
    }
    store_drop(store, store_at(store, 0), 0, 32);
    store_close(store);
}

static void gguf_files_that_cannot_be_one_model_are_refused(void **state) {
    (void)state;
    struct bytes b = {0};
    put_gguf(&b, 3, 2, 0);
    put_tensor(&b, "output.weight", 1, (uint64_t[]){8}, 0, 0);
    put_tensor(&b, "lm_head.weight", 1, (uint64_t[]){8}, 0, 32);
    put_pad(&b, 32), put_zeros(&b, 64);
    tiny_write("both.gguf", b.data, b.n);
    refused("both.gguf", "\"lm_head.weight\"");
    b = (struct bytes){0};
    put_gguf(&b, 3, 0, 1), put_key(&b, "split.count", 2), put(&b, "\x03\x00", 2);
    tiny_write("split.gguf", b.data, b.n);
    refused("split.gguf", "one of 3 parts");
}

static void real_models_are_read_in_every_form(void **state) {
    (void)state;
    const char *names[] = {"models/stories260K-hf", "models/stories260K-hf-bf16",
                           "models/stories260K-hf-sharded-untied", "models/stories260K.gguf"};
    for (size_t i = 0; i < 4; i++) {
        const char *path = shared_path(names[i]);
        if (!path) continue;
        struct store *store;
        struct error e = {0};
        if (store_open(&store, path, &e) != 0) fail_msg("%s", e.message);
        const struct store_tensor *t = store_find(store, "model.layers.4.self_attn.k_proj.weight");
        assert_non_null(t);
        assert_int_equal(t->dims[0], 32), assert_int_equal(t->dims[1], 64);
        assert_int_equal(t->type, i == 1 ? DTYPE_BF16 : DTYPE_F32);
        store_close(store);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_directory_without_index_loads),
        cmocka_unit_test(what_was_read_leaves_with_all_that_came_with_it),
        cmocka_unit_test(shards_are_joined_as_the_index_says),
        cmocka_unit_test(a_broken_index_is_refused_by_name),
        cmocka_unit_test(what_is_no_model_is_explained),
        cmocka_unit_test(gguf_tensors_have_hugging_face_names_and_shapes),
        cmocka_unit_test(gguf_files_that_cannot_be_one_model_are_refused),
        cmocka_unit_test(real_models_are_read_in_every_form),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
