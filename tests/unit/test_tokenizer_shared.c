/* Published tokenizers give the ids and texts that Hugging Face's library and llama.cpp give.
 * Reads $TPD_SHARED; skipped where that is absent. */
#include "sha256.h"
#include "token_cases.h"

#include "base/file.h"
#include "base/json.h"
#include "text/buffer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

static char root[512];

static const char *in_root(const char *format, const char *name) {
    static char path[4][1024];
    static int next;
    char *out = path[next++ & 3], tail[400];
    snprintf(tail, sizeof tail, format, name);
    snprintf(out, sizeof path[0], "%s/%s", root, tail);
    return out;
}

/* The cases and what each tokenizer is called on disk. */
static const struct {
    const char *name, *path;
} published[] = {{"gpt2", "tokenizers/gpt2"},
                 {"granite-code-derived", "tokenizers/granite-code-derived"},
                 {"granite3", "tokenizers/granite3"},
                 {"mistral", "tokenizers/mistral"},
                 {"phi3-mini", "tokenizers/phi3-mini"},
                 {"smollm2", "tokenizers/smollm2"},
                 {"stories260K-derived", "tokenizers/stories260K-derived"},
                 {"torchtune-tiny", "tokenizers/torchtune"},
                 {"torchtune-tiny-bpe", "tokenizers/torchtune/tiny_bpe_tokenizer.json"}};
enum { N_PUBLISHED = sizeof published / sizeof *published };

static void check_text_case(const struct tokenizer *t, const json_t *line) {
    const json_t *text = json_object_get(line, "text"), *ids = json_object_get(line, "ids");
    const json_t *special = json_object_get(line, "ids_special");
    check_encode(t, line, json_string_value(text), json_string_length(text), false, ids);
    check_encode(t, line, json_string_value(text), json_string_length(text), true, special);
    check_pieces(t, line, ids, json_object_get(line, "tokens"));
    struct token_ids plain = ids_of(ids), all = ids_of(special);
    check_decode(t, line, &plain, false, json_object_get(line, "decoded"));
    check_decode(t, line, &all, false, json_object_get(line, "decoded_special_kept"));
    check_decode(t, line, &all, true, json_object_get(line, "decoded_special_skipped"));
    check_stream(t, line, &all, false);
    check_stream(t, line, &all, true);
    token_ids_free(&plain);
    token_ids_free(&all);
}

static void texts_and_ids_are_the_published_ones(void **state) {
    (void)state;
    size_t n = 0;
    for (int i = 0; i < N_PUBLISHED; i++) {
        const char *cases = in_root("tokcases/%s.jsonl", published[i].name);
        if (!path_exists(cases)) continue;
        struct tokenizer *t = open_tokenizer(in_root("%s", published[i].path));
        n += each_case(cases, t, check_text_case);
        tokenizer_free(t);
    }
    print_message("%zu texts\n", n);
}

static void check_stream_case(const struct tokenizer *t, const json_t *line) {
    struct token_ids ids = ids_of(json_object_get(line, "ids"));
    const json_t *prefixes = json_object_get(line, "prefix_decode");
    const json_t *suffixes = json_object_get(line, "suffix_decode"), *want;
    size_t i;
    json_array_foreach(prefixes, i, want) {
        struct token_ids part = {ids.ids, i, i};
        check_decode(t, line, &part, false, want);
        check_stream(t, line, &part, false);
    }
    json_array_foreach(suffixes, i, want) {
        struct token_ids part = {ids.ids + i, ids.n - i, ids.n - i};
        check_decode(t, line, &part, false, want);
        check_stream(t, line, &part, false);
    }
    token_ids_free(&ids);
}

static void every_prefix_and_suffix_decodes_as_published(void **state) {
    (void)state;
    for (int i = 0; i < N_PUBLISHED; i++) {
        const char *cases = in_root("tokcases/%s.stream.jsonl", published[i].name);
        if (!path_exists(cases)) continue;
        struct tokenizer *t = open_tokenizer(in_root("%s", published[i].path));
        each_case(cases, t, check_stream_case);
        tokenizer_free(t);
    }
}

static const char *wanted_tokenizer; /* cases of the others are passed over */

static bool is_for(const json_t *tokenizer) {
    return json_is_string(tokenizer) && strcmp(json_string_value(tokenizer), wanted_tokenizer) == 0;
}

static void check_long_case(const struct tokenizer *t, const json_t *line) {
    if (!is_for(json_object_get(line, "tokenizer"))) return;
    const json_t *unit = json_object_get(line, "unit");
    struct buf text = {0}, list = {0};
    struct token_ids ids = {0};
    struct error e = {0};
    char number[16], hex[65];
    for (json_int_t i = 0; i < json_integer_value(json_object_get(line, "repeat")); i++)
        buf_add(&text, json_string_value(unit), json_string_length(unit));
    if (tokenizer_encode(t, text.data, text.size, false, &ids, &e) != 0) fail_msg("%s", e.message);
    for (size_t i = 0; i < ids.n; i++)
        buf_add(&list, number,
                (size_t)snprintf(number, sizeof number, i ? ",%d" : "%d", ids.ids[i]));
    sha256_hex(list.data, list.size, hex);
    if (strcmp(hex, json_string_value(json_object_get(line, "ids_sha256_of_comma_joined"))) != 0)
        fail_msg("%zu ids differ: %s", ids.n, json_dumps(line, JSON_COMPACT));
    token_ids_free(&ids);
    buf_free(&text);
    buf_free(&list);
}

static void long_runs_give_the_published_ids(void **state) {
    (void)state;
    for (int i = 0; i < N_PUBLISHED; i++) {
        wanted_tokenizer = published[i].name;
        struct tokenizer *t = open_tokenizer(in_root("%s", published[i].path));
        each_case(in_root("%s", "tokcases/longrun.jsonl"), t, check_long_case);
        tokenizer_free(t);
    }
}

static void check_ids_case(const struct tokenizer *t, const json_t *line) {
    const json_t *text = json_object_get(line, "text");
    check_encode(t, line, json_string_value(text), json_string_length(text), false,
                 json_object_get(line, "ids"));
    struct token_ids ids = ids_of(json_object_get(line, "ids"));
    check_stream(t, line, &ids, false);
    token_ids_free(&ids);
}

static void gguf_vocabularies_give_llama_cpps_ids(void **state) {
    (void)state;
    static const char *const names[] = {"gpt-2", "phi-3", "refact", "starcoder"};
    for (int i = 0; i < 4; i++) {
        struct tokenizer *t = open_tokenizer(in_root("gguf_vocab/ggml-vocab-%s.gguf", names[i]));
        assert_null(tokenizer_warning(t));
        each_case(in_root("tokcases/llamacpp-%s.jsonl", names[i]), t, check_ids_case);
        tokenizer_free(t);
    }
}

static void check_text_in_gguf(const struct tokenizer *t, const json_t *line) {
    const json_t *text = json_object_get(line, "text");
    check_encode(t, line, json_string_value(text), json_string_length(text), false,
                 json_object_get(line, "ids"));
    check_encode(t, line, json_string_value(text), json_string_length(text), true,
                 json_object_get(line, "ids_special"));
    struct token_ids ids = ids_of(json_object_get(line, "ids_special"));
    check_decode(t, line, &ids, true, json_object_get(line, "decoded_special_skipped"));
    token_ids_free(&ids);
}

/* Scores of the GGUF and merges of the tokenizer.json say the same; no add_bos key means add. */
static void the_gguf_of_stories_speaks_as_its_tokenizer_json(void **state) {
    (void)state;
    struct tokenizer *t = open_tokenizer(in_root("%s", "models/stories260K.gguf"));
    assert_int_equal(tokenizer_bos(t), 1);
    assert_int_equal(tokenizer_eos(t), 2);
    each_case(in_root("%s", "tokcases/stories260K-derived.jsonl"), t, check_text_in_gguf);
    tokenizer_free(t);
}

static size_t n_reports;

static void check_report(const struct tokenizer *t, const json_t *line) {
    const json_t *input = json_object_get(line, "input");
    const json_t *want = json_object_get(line, "hf_tokenizers_0_22_2");
    const json_t *text = json_object_get(input, "text");
    if (!is_for(json_object_get(input, "tokenizer")) || !json_is_object(want)) return;
    check_encode(t, line, json_string_value(text), json_string_length(text),
                 json_is_true(json_object_get(input, "add_special")), json_object_get(want, "ids"));
    check_pieces(t, line, json_object_get(want, "ids"), json_object_get(want, "tokens"));
    struct token_ids ids = ids_of(json_object_get(want, "ids"));
    check_decode(t, line, &ids, false, json_object_get(want, "decoded"));
    check_stream(t, line, &ids, false);
    token_ids_free(&ids);
    n_reports++;
}

static void reports_about_others_do_not_hold_here(void **state) {
    (void)state;
    for (int i = 0; i < N_PUBLISHED; i++) {
        wanted_tokenizer = published[i].name;
        struct tokenizer *t = open_tokenizer(in_root("%s", published[i].path));
        each_case(in_root("%s", "bugcases.jsonl"), t, check_report);
        tokenizer_free(t);
    }
    print_message("%zu reports\n", n_reports);
}

/* The reports name llama2, whose vocabulary phi3-mini's begins with; what it adds is not in them.
 */
static void llama2_reports_hold_for_its_vocabulary(void **state) {
    (void)state;
    static const struct {
        const char *text;
        token_id ids[12];
    } cases[] = {{"<s>text</s>", {1, 1426, 2}},
                 {"This is 🦙.cpp", {910, 338, 29871, 243, 162, 169, 156, 29889, 8223}},
                 {"The train is moving very fast!", {450, 7945, 338, 8401, 1407, 5172, 29991}},
                 {"a:<s>->", {263, 29901, 1, 1599}}};
    struct tokenizer *t = open_tokenizer(in_root("%s", "tokenizers/phi3-mini"));
    struct error e = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct token_ids ids = {0};
        size_t n = 0;
        while (n < 12 && cases[i].ids[n]) n++;
        assert_int_equal(tokenizer_encode(t, cases[i].text, strlen(cases[i].text), true, &ids, &e),
                         0);
        assert_int_equal(ids.n, n);
        assert_memory_equal(ids.ids, cases[i].ids, n * sizeof *ids.ids);
        token_ids_free(&ids);
    }
    tokenizer_free(t);
}

static void a_truncation_in_the_file_does_not_cut_a_prompt(void **state) {
    (void)state;
    struct tokenizer *t = open_tokenizer(in_root("%s", "tokenizers/gpt2"));
    struct token_ids ids = {0};
    struct error e = {0};
    char text[400];
    for (int i = 0; i < 400; i += 2) memcpy(text + i, " a", 2);
    assert_int_equal(tokenizer_encode(t, text, sizeof text, true, &ids, &e), 0);
    assert_int_equal(ids.n, 200); /* the file says max_length 50 */
    token_ids_free(&ids);
    tokenizer_free(t);
}

/* Cut bytes before a space can never be completed: one U+FFFD, at once. */
static void a_cut_character_becomes_one_replacement(void **state) {
    (void)state;
    struct tokenizer *t = open_tokenizer(in_root("%s", "tokenizers/gpt2"));
    struct token_stream *s;
    struct error e = {0};
    const char *piece;
    size_t size;
    token_id cut = tokenizer_find(t, "æĪ"), next = tokenizer_find(t, "Ġa");
    assert_true(cut >= 0 && next >= 0);
    assert_int_equal(token_stream_new(&s, t, false, false, &e), 0);
    assert_int_equal(token_stream_push(s, cut, &piece, &size, &e), 0);
    assert_int_equal(size, 0);
    assert_int_equal(token_stream_push(s, next, &piece, &size, &e), 0);
    assert_int_equal(size, 5);
    assert_memory_equal(piece, "\xEF\xBF\xBD a", 5);
    token_stream_free(s);
    tokenizer_free(t);
}

static void a_continuation_keeps_its_leading_space(void **state) {
    (void)state;
    struct tokenizer *t = open_tokenizer(in_root("%s", "tokenizers/mistral"));
    struct token_stream *s;
    struct error e = {0};
    const char *piece;
    size_t size;
    assert_int_equal(token_stream_new(&s, t, true, true, &e), 0);
    assert_int_equal(token_stream_push(s, tokenizer_find(t, "▁leading"), &piece, &size, &e), 0);
    assert_int_equal(size, 8);
    assert_memory_equal(piece, " leading", 8);
    token_stream_free(s);
    /* At the start of a text one space goes, and only one. */
    token_id ids[] = {tokenizer_find(t, "▁"), tokenizer_find(t, "▁leading"),
                      tokenizer_find(t, "▁x")};
    char *text;
    assert_int_equal(tokenizer_decode(t, ids, 3, false, &text, &size, &e), 0);
    assert_string_equal(text, " leading x");
    free(text);
    tokenizer_free(t);
}

static void a_merge_with_too_many_spaces_is_named(void **state) {
    (void)state;
    const char *path = in_root("%s", "tokenizers/llama2-corrupt-nbsp/tokenizer.json");
    if (!path_exists(path)) return;
    struct tokenizer *t;
    struct error e = {0};
    assert_int_not_equal(tokenizer_open(&t, path, &e), 0);
    assert_int_equal(e.kind, ERR_BAD_FILE);
    assert_non_null(strstr(e.message, "model.merges[18917]"));
}

int main(void) {
    const char *shared = getenv("TPD_SHARED");
    snprintf(root, sizeof root, "%s/cases", shared ? shared : "../shared");
    if (!path_is_dir(root)) {
        printf("skipped: %s is not there\n", root);
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_and_ids_are_the_published_ones),
        cmocka_unit_test(every_prefix_and_suffix_decodes_as_published),
        cmocka_unit_test(long_runs_give_the_published_ids),
        cmocka_unit_test(gguf_vocabularies_give_llama_cpps_ids),
        cmocka_unit_test(the_gguf_of_stories_speaks_as_its_tokenizer_json),
        cmocka_unit_test(reports_about_others_do_not_hold_here),
        cmocka_unit_test(llama2_reports_hold_for_its_vocabulary),
        cmocka_unit_test(a_truncation_in_the_file_does_not_cut_a_prompt),
        cmocka_unit_test(a_cut_character_becomes_one_replacement),
        cmocka_unit_test(a_continuation_keeps_its_leading_space),
        cmocka_unit_test(a_merge_with_too_many_spaces_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
