/* Files of strangers, by the thousand: small valid files with bytes flipped, fields replaced,
 * pieces cut out or added. Whatever they have become, opening them ends with a model or with an
 * error that names the file, and what was opened can be read to its end. The same seed gives the
 * same files; TPD_FUZZ_SECONDS makes it run on. */
#include "tests/unit/mutate.h"

#include "formats/gguf.h"
#include "formats/store.h"
#include "model/config.h"

#include <time.h>

enum { ROUNDS = 4000 };

static void check_error(const struct error *e, const char *path) {
    assert_int_equal(e->kind, ERR_BAD_FILE);
    assert_names(e->message, path);
    assert_null(strchr(e->message, '\n'));
}

/* Reads everything that there is to read; the sum keeps the reads alive. */
static uint64_t read_store(const struct store *store) {
    uint64_t sum = 0;
    for (size_t i = 0; i < store_count(store); i++) {
        const struct store_tensor *t = store_at(store, i);
        assert_non_null(store_find(store, t->name));
        for (size_t k = 0; k < t->bytes; k++) sum += t->data[k];
        store_drop(store, t, 0, t->bytes);
    }
    return sum;
}

static uint64_t read_gguf(const struct gguf *gguf) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < gguf_key_count(gguf); i++) {
        enum gguf_type type;
        struct gguf_string name = gguf_key(gguf, i, &type), text;
        char *key = strndup(name.data, name.size);
        struct gguf_array array;
        int64_t integer;
        double number;
        bool yes;
        if (gguf_get_array(gguf, key, &array, NULL) == 1) {
            size_t cursor = 0;
            while (gguf_array_next_string(&array, &cursor, &text)) sum += text.size;
            for (uint64_t k = 0; array.element != GGUF_STRING && k < array.count; k++)
                sum += (uint64_t)gguf_array_int(&array, k) + (gguf_array_float(&array, k) > 0);
        }
        if (gguf_get_string(gguf, key, &text, NULL) == 1 && text.size)
            sum += (uint64_t)text.data[text.size - 1];
        sum += (uint64_t)gguf_get_int(gguf, key, &integer, NULL);
        sum += (uint64_t)gguf_get_float(gguf, key, &number, NULL);
        sum += (uint64_t)gguf_get_bool(gguf, key, &yes, NULL);
        free(key);
    }
    return sum;
}

static void try_file(const struct bytes *b, const char *name) {
    UNUSED static volatile uint64_t sink;
    const char *path = tiny_write(name, b->data, b->n);
    struct store *store;
    struct error e = {0};
    if (store_open(&store, path, &e) != 0) {
        check_error(&e, path);
        return;
    }
    sink += read_store(store);
    const struct gguf *gguf = store_gguf(store);
    if (gguf) {
        struct model_config config;
        sink += read_gguf(gguf);
        if (config_from_gguf(&config, gguf, &e) != 0) check_error(&e, path);
    }
    store_close(store);
}

static void try_config(const struct bytes *b) {
    struct error e = {0};
    struct model_config config;
    json_t *json = json_read((const char *)b->data, b->n, &e);
    if (!json) return;
    if (config_from_hf(&config, json, json, "config.json", &e) != 0) check_error(&e, "config.json");
    json_decref(json);
}

static bool go_on(int round, time_t start) {
    const char *seconds = getenv("TPD_FUZZ_SECONDS");
    return seconds ? time(NULL) - start < atoi(seconds) / 3 + 1 : round < ROUNDS;
}

static struct bytes gguf_seed(void) {
    struct bytes b = {0};
    put_gguf(&b, 3, 3, 11);
    put_key_string(&b, "general.architecture", "llama");
    put_key_u32(&b, "general.alignment", 32);
    put_key_u32(&b, "llama.block_count", 1), put_key_u32(&b, "llama.embedding_length", 32);
    put_key_u32(&b, "llama.feed_forward_length", 32), put_key_u32(&b, "llama.context_length", 64);
    put_key_u32(&b, "llama.attention.head_count", 4);
    put_key_f32(&b, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    put_key(&b, "tokenizer.ggml.tokens", 9), put_u32(&b, 8), put_u64(&b, 3);
    put_string(&b, "<s>"), put_string(&b, "a"), put_string(&b, "b");
    put_key(&b, "tokenizer.ggml.scores", 9), put_u32(&b, 6), put_u64(&b, 3), put_zeros(&b, 12);
    put_key_u32(&b, "tokenizer.ggml.eos_token_id", 2);
    put_tensor(&b, "token_embd.weight", 2, (uint64_t[]){32, 3}, 0, 0);
    put_tensor(&b, "blk.0.attn_q.weight", 2, (uint64_t[]){32, 2}, 2, 384);
    put_tensor(&b, "rope_freqs.weight", 1, (uint64_t[]){4}, 1, 448);
    put_pad(&b, 32), put_zeros(&b, 456);
    return b;
}

static void mutated_gguf_files_are_read_or_refused(void **state) {
    (void)state;
    struct bytes from = gguf_seed(), b;
    try_file(&from, "seed.gguf");
    time_t start = time(NULL);
    for (int i = 0; go_on(i, start); i++) mutate(&b, &from), try_file(&b, "fuzz.gguf");
}

static void mutated_safetensors_files_are_read_or_refused(void **state) {
    (void)state;
    struct bytes from = {0}, b;
    put_safetensors(
        &from,
        "{\"__metadata__\":{\"format\":\"pt\"},"
        "\"model.norm.weight\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]},"
        "\"lm_head.weight\":{\"dtype\":\"BF16\",\"shape\":[2,4],"
        "\"data_offsets\":[16,32]}}",
        32);
    try_file(&from, "seed.safetensors");
    time_t start = time(NULL);
    for (int i = 0; go_on(i, start); i++) mutate(&b, &from), try_file(&b, "fuzz.safetensors");
}

static void mutated_configurations_are_read_or_refused(void **state) {
    (void)state;
    struct bytes from = {0}, b;
    const char *text =
        "{\"architectures\":[\"Qwen2ForCausalLM\"],\"model_type\":\"qwen2\",\"hidden_size\":64,"
        "\"intermediate_size\":128,\"num_hidden_layers\":2,\"num_attention_heads\":8,"
        "\"num_key_value_heads\":4,\"vocab_size\":100,\"head_dim\":null,\"use_sliding_window\":"
        "true,"
        "\"layer_types\":[\"full_attention\",\"sliding_attention\"],\"eos_token_id\":[1,2],"
        "\"rope_theta\":1e4,\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4.0,"
        "\"beta_fast\":32,\"original_max_position_embeddings\":64}}";
    put(&from, text, strlen(text));
    time_t start = time(NULL);
    for (int i = 0; go_on(i, start); i++) mutate(&b, &from), try_config(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mutated_gguf_files_are_read_or_refused),
        cmocka_unit_test(mutated_safetensors_files_are_read_or_refused),
        cmocka_unit_test(mutated_configurations_are_read_or_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
