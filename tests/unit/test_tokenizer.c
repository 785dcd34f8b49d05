/* Every component of a tokenizer does what Hugging Face's library does, on small tokenizers and
 * vocabularies of our own (tests/golden/make_tokenizers.py), and broken files are named. */
#include "tiny_files.h"
#include "token_cases.h"

#include "base/file.h"
#include "text/internal.h"

#include <stdio.h>

static const char data_dir[] = "tests/data/text";

static void check_strings(const struct tokenizer *t, const json_t *line, const char *ids_key,
                          const char *text_key, bool skip) {
    const json_t *ids = json_object_get(line, ids_key), *text = json_object_get(line, text_key);
    if (!ids || !text) return;
    struct token_ids list = ids_of(ids);
    check_decode(t, line, &list, skip, text);
    check_stream(t, line, &list, skip);
    token_ids_free(&list);
}

static void check_case(const struct tokenizer *t, const json_t *line) {
    const json_t *text = json_object_get(line, "text"), *ids = json_object_get(line, "ids");
    const json_t *special = json_object_get(line, "ids_special");
    check_encode(t, line, json_string_value(text), json_string_length(text), false, ids);
    if (special)
        check_encode(t, line, json_string_value(text), json_string_length(text), true, special);
    check_strings(t, line, "ids", "decoded", false);
    check_strings(t, line, "ids_special", "kept", false);
    check_strings(t, line, "ids_special", "skipped", true);
}

static void check_tokenizer(const struct tokenizer *none, const json_t *line) {
    (void)none;
    const json_t *item;
    size_t i;
    char *text = json_dumps(json_object_get(line, "tokenizer"), 0);
    struct tokenizer *t = open_tokenizer(tiny_write_text("tokenizer.json", text));
    print_message("  %s\n", json_string_value(json_object_get(line, "name")));
    json_array_foreach(json_object_get(line, "cases"), i, item) check_case(t, item);
    json_array_foreach(json_object_get(line, "streams"), i, item) {
        check_strings(t, item, "ids", "text", false);
        check_strings(t, item, "ids", "skipped", true);
    }
    tokenizer_free(t);
    free(text);
}

static void components_do_what_hugging_faces_do(void **state) {
    (void)state;
    assert_true(each_case("tests/data/text/tokenizers.jsonl", NULL, check_tokenizer) > 70);
}

static void gguf_vocabularies_give_the_reference_ids(void **state) {
    (void)state;
    static const char *const names[] = {"spm",         "spm-no-prefix",  "gpt2-gpt-2",
                                        "gpt2-smollm", "gpt2-llama-bpe", "gpt2-qwen2"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[256];
        snprintf(path, sizeof path, "%s/%s.gguf", data_dir, names[i]);
        struct tokenizer *t = open_tokenizer(path);
        assert_null(tokenizer_warning(t));
        assert_int_equal(tokenizer_bos(t), 1);
        assert_int_equal(tokenizer_eos(t), 2);
        snprintf(path, sizeof path, "%s/%s.cases.jsonl", data_dir, names[i]);
        assert_true(each_case(path, t, check_case) > 40);
        tokenizer_free(t);
    }
}

static void special_tokens_come_from_the_configuration_beside(void **state) {
    (void)state;
    static const char file[] =
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"<e>\":1},\"merges\":[]},"
        "\"added_tokens\":[{\"id\":7,\"content\":\"<b>\",\"special\":true}]}";
    struct tokenizer *t = open_tokenizer(tiny_write_text("tokenizer.json", file));
    assert_int_equal(tokenizer_bos(t), -1);
    assert_int_equal(tokenizer_eos(t), -1);
    assert_int_equal(tokenizer_size(t), 8);
    tokenizer_free(t);
    tiny_write_text("tokenizer_config.json",
                    "{\"bos_token\":{\"content\":\"<b>\"},\"eos_token\":\"<e>\","
                    "\"model_max_length\":1000000000000000019884624838656}");
    t = open_tokenizer(tiny_path("tokenizer.json"));
    assert_int_equal(tokenizer_bos(t), 7);
    assert_int_equal(tokenizer_eos(t), 1);
    assert_true(tokenizer_is_special(t, 7));
    assert_false(tokenizer_is_special(t, 1));
    size_t size;
    assert_null(tokenizer_piece(t, 3, &size)); /* a hole */
    assert_null(tokenizer_piece(t, 8, &size));
    assert_int_equal(tokenizer_find(t, "<b>"), 7);
    tokenizer_free(t);
    unlink(tiny_path("tokenizer_config.json"));
}

static void ids_out_of_range_are_refused(void **state) {
    (void)state;
    struct tokenizer *t = open_tokenizer("tests/data/text/spm.gguf");
    static const token_id bad[] = {-1, 100000, INT32_MAX};
    for (int i = 0; i < 3; i++) {
        struct error e = {0};
        char *text;
        size_t size;
        assert_int_equal(tokenizer_decode(t, &bad[i], 1, false, &text, &size, &e),
                         -(int)ERR_PARAMS);
        assert_names(e.message, "out of range");
    }
    tokenizer_free(t);
}

static void text_that_is_not_utf8_is_refused_with_its_offset(void **state) {
    (void)state;
    struct tokenizer *t = open_tokenizer("tests/data/text/spm.gguf");
    struct token_ids ids = {0};
    struct error e = {0};
    assert_int_equal(tokenizer_encode(t, "good \xC3 bad", 10, true, &ids, &e), -(int)ERR_PARAMS);
    assert_names(e.message, "byte 5");
    assert_int_equal(e.notes[0].number, 5);
    assert_int_equal(ids.n, 0);
    token_ids_free(&ids);
    tokenizer_free(t);
}

static void bytes_of_tokens_are_what_they_add_to_a_text(void **state) {
    (void)state;
    uint8_t bytes[16];
    struct tokenizer *t = open_tokenizer("tests/data/text/spm.gguf");
    assert_int_equal(tokenizer_bytes(t, tokenizer_find(t, "<0xE2>"), bytes, 16), 1);
    assert_int_equal(bytes[0], 0xE2);
    assert_int_equal(tokenizer_bytes(t, tokenizer_find(t, "▁the"), bytes, 16), 4);
    assert_memory_equal(bytes, " the", 4);
    assert_int_equal(tokenizer_bytes(t, tokenizer_find(t, "<|user|>"), bytes, 2), 8);
    assert_memory_equal(bytes, "<|", 2);
    tokenizer_free(t);
    t = open_tokenizer("tests/data/text/gpt2-gpt-2.gguf");
    assert_int_equal(tokenizer_bytes(t, tokenizer_find(t, "Ġthe"), bytes, 16), 4);
    assert_memory_equal(bytes, " the", 4);
    assert_int_equal(tokenizer_bytes(t, tokenizer_find(t, "Ã"), bytes, 16), 1);
    assert_int_equal(bytes[0], 0xC3);
    tokenizer_free(t);
}

static void a_stream_after_a_prompt_keeps_its_leading_space(void **state) {
    (void)state;
    struct tokenizer *t = open_tokenizer("tests/data/text/spm.gguf");
    token_id id = tokenizer_find(t, "▁the");
    for (int after = 0; after < 2; after++) {
        struct token_stream *s;
        struct error e = {0};
        const char *piece;
        size_t size;
        assert_int_equal(token_stream_new(&s, t, true, after, &e), 0);
        assert_int_equal(token_stream_push(s, id, &piece, &size, &e), 0);
        assert_int_equal(size, after ? 4 : 3);
        assert_memory_equal(piece, after ? " the" : "the", size);
        token_stream_free(s);
    }
    tokenizer_free(t);
}

static void an_unknown_kind_of_cutting_is_said(void **state) {
    (void)state;
    char *data;
    size_t size;
    struct error e = {0};
    assert_int_equal(file_read("tests/data/text/gpt2-qwen2.gguf", 1 << 20, &data, &size, &e), 0);
    char *name = memmem(data, size, "qwen2", 5);
    assert_non_null(name);
    memcpy(name, "qwenX", 5);
    struct tokenizer *t = open_tokenizer(tiny_write("unknown.gguf", data, size));
    assert_names(tokenizer_warning(t), "\"qwenX\"");
    tokenizer_free(t);
    free(data);
}

/* One name of each kind: no expression of the table is broken. */
static void every_kind_of_cutting_compiles(void **state) {
    (void)state;
    static const char *const names[] = {"default", "gpt-2",  "smollm",         "llama-bpe",
                                        "dbrx",    "qwen2",  "falcon",         "tekken",
                                        "gpt-4o",  "refact", "deepseek-coder", "deepseek-v3",
                                        "bloom",   "viking", "bailingmoe",     "seed-coder"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        bool known;
        const struct gguf_pre *pre = gguf_pre_find(names[i], strlen(names[i]), &known);
        assert_true(known);
        for (int k = 0; k < 4 && pre->regexes[k]; k++) {
            struct regex *regex;
            struct error e = {0};
            if (regex_new(&regex, pre->regexes[k], strlen(pre->regexes[k]), &e) != 0)
                fail_msg("%s: %s", names[i], e.message);
            regex_free(regex);
        }
    }
}

static void broken_files_are_named(void **state) {
    (void)state;
#define MODEL(vocab, merges)                                                                       \
    "{\"model\":{\"type\":\"BPE\",\"vocab\":" vocab ",\"merges\":" merges "}}"
#define WITH(member) "{" member ",\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}}"
    /* clang-format off */
    static const struct {
        const char *file, *fault;
    } cases[] = {
        {"", "not valid JSON at byte 0"},
        {"[]", "an object is expected"},
        {"{\"model\":", "ends too early"},
        {"{}", "model is missing"},
        {"{\"model\":3}", "model is not an object"},
        {"{\"model\":{\"type\":\"WordPiece\"}}", "model.type is \"WordPiece\""},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[]}}", "model.type is \"Unigram\""},
        {"{\"model\":{\"type\":\"BPE\"}}", "model.vocab is missing"},
        {MODEL("{\"a\":0}", "{}"), "model.merges is not an array"},
        {MODEL("{\"a\":-1}", "[]"), "the id -1"},
        {MODEL("{\"a\":2147483648}", "[]"), "the id 2147483648"},
        {MODEL("{\"a\":99999999999999999999}", "[]"), "a whole number is expected"},
        {MODEL("{\"a\":1.5}", "[]"), "a whole number is expected"},
        {MODEL("{\"a\":\"0\"}", "[]"), "a whole number is expected"},
        {MODEL("{\"a\":0,\"b\":0}", "[]"), "gives the id 0 twice, once to \"b\""},
        {MODEL("{\"a\":0,\"a\":1}", "[]"), "has twice \"a\""},
        {MODEL("{\"a\":0,\"b\":1,\"ab\":2}", "[\"a b\",\"a c\"]"), "model.merges[1] names a token"},
        {MODEL("{\"a\":0,\"b\":1}", "[\"a b\"]"), "not in the vocabulary: \"ab\""},
        {MODEL("{\"a\":0}", "[\"a a a a\"]"), "model.merges[0] must be two tokens"},
        {MODEL("{\"a\":0}", "[\"aa\"]"), "model.merges[0] must be two tokens"},
        {MODEL("{\"a\":0}", "[[\"a\"]]"), "model.merges[0] is not two strings"},
        {MODEL("{\"a\":0}", "[[\"a\",\"a\",\"a\"]]"), "model.merges[0] is not two strings"},
        {MODEL("{\"a\":0}", "[7]"), "model.merges[0] is neither"},
        {MODEL("{\"\\ud800\":0}", "[]"), "half a surrogate pair"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[],\"fuse_unk\":1}}", "model.fuse_unk"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[],\"unk_token\":1}}", "model.unk_token"},
        {WITH("\"added_tokens\":[{\"id\":0,\"content\":\"x\"}]"), "added_tokens[0].\"x\" has the id 0"},
        {WITH("\"added_tokens\":[{\"id\":4294967296,\"content\":\"x\"}]"), "added_tokens[0].id"},
        {WITH("\"added_tokens\":[{\"id\":1}]"), "added_tokens[0].content"},
        {WITH("\"normalizer\":{\"type\":\"Precompiled\"}"), "normalizer.type \"Precompiled\""},
        {WITH("\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\"}]}"),
         "normalizer.normalizers[0].prepend must be a string"},
        {WITH("\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(\"}}"), "\"(\" is broken"},
        {WITH("\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"a\"},\"behavior\":\"x\"}"),
         "pre_tokenizer.behavior must be"},
        {WITH("\"pre_tokenizer\":{\"type\":\"UnicodeScripts\"}"), "pre_tokenizer.type \"UnicodeScripts\""},
        {WITH("\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[]}"), "single has no sequence"},
        {WITH("\"post_processor\":{\"type\":\"BertProcessing\",\"cls\":[\"a\",9],\"sep\":[\"a\",0]}"), "id 9"},
        {WITH("\"decoder\":{\"type\":\"CTC\"}"), "decoder.type \"CTC\""},
        {WITH("\"decoder\":{\"type\":\"Strip\",\"content\":\" \",\"start\":-1}"), "decoder.start must be"},
        {WITH("\"decoder\":[]"), "decoder.type must name"},
        {WITH("\"x\":\"\xff\""), "not UTF-8 at byte"},
        {WITH("\"x\":1") " 2", "something behind the end"},
    };
    /* clang-format on */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct error e = {0};
        struct tokenizer *t;
        const char *path = tiny_write_text("broken.json", cases[i].file);
        if (tokenizer_open(&t, path, &e) == 0) fail_msg("opened: %s", cases[i].file);
        assert_int_equal(e.kind, ERR_BAD_FILE);
        assert_names(e.message, path);
        assert_names(e.message, cases[i].fault);
    }
}

/* Depth costs no stack, and an id costs memory only up to a bound. */
static void deep_nesting_is_refused(void **state) {
    (void)state;
    enum { DEPTH = 1000000 };
    char *text = malloc(DEPTH + 16);
    struct error e = {0};
    struct tokenizer *t;
    assert_non_null(text);
    strcpy(text, "{\"x\":");
    memset(text + 5, '[', DEPTH);
    text[5 + DEPTH] = '\0';
    assert_int_not_equal(tokenizer_open(&t, tiny_write_text("deep.json", text), &e), 0);
    assert_names(e.message, "nested too deeply");
    free(text);
}

/* "a" → "aaaa", forty times: the text must not fill memory. */
static void a_normalizer_that_grows_without_end_is_refused(void **state) {
    (void)state;
    static const char step[] =
        "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"aaaa\"}";
    char file[8192] = "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]},"
                      "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[";
    char text[1000];
    struct token_ids ids = {0};
    struct error e = {0};
    for (int i = 0; i < 40; i++) {
        if (i) strcat(file, ",");
        strcat(file, step);
    }
    strcat(file, "]}}");
    struct tokenizer *t = open_tokenizer(tiny_write_text("grows.json", file));
    memset(text, 'a', sizeof text);
    assert_int_equal(tokenizer_encode(t, text, sizeof text, true, &ids, &e), -(int)ERR_BAD_FILE);
    assert_names(e.message, "Replace makes more than");
    tokenizer_free(t);
}

static void a_missing_file_is_not_found(void **state) {
    (void)state;
    struct error e = {0};
    struct tokenizer *t;
    assert_int_not_equal(tokenizer_open(&t, tiny_path("no-such.json"), &e), 0);
    assert_int_equal(e.kind, ERR_NOT_FOUND);
    assert_int_not_equal(tokenizer_open(&t, tiny_mkdir("empty"), &e), 0);
    assert_int_equal(e.kind, ERR_NOT_FOUND);
    assert_names(e.message, "tokenizer.json");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(components_do_what_hugging_faces_do),
        cmocka_unit_test(gguf_vocabularies_give_the_reference_ids),
        cmocka_unit_test(special_tokens_come_from_the_configuration_beside),
        cmocka_unit_test(ids_out_of_range_are_refused),
        cmocka_unit_test(text_that_is_not_utf8_is_refused_with_its_offset),
        cmocka_unit_test(bytes_of_tokens_are_what_they_add_to_a_text),
        cmocka_unit_test(a_stream_after_a_prompt_keeps_its_leading_space),
        cmocka_unit_test(an_unknown_kind_of_cutting_is_said),
        cmocka_unit_test(every_kind_of_cutting_compiles),
        cmocka_unit_test(broken_files_are_named),
        cmocka_unit_test(deep_nesting_is_refused),
        cmocka_unit_test(a_normalizer_that_grows_without_end_is_refused),
        cmocka_unit_test(a_missing_file_is_not_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
