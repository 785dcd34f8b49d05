/* Tokenizer files of strangers: ours with bytes changed. Whatever they have become, opening them
 * ends with a tokenizer or with an error that names the file, and a tokenizer that opens encodes
 * any text and decodes any ids to whole UTF-8. The same seed gives the same files; TPD_FUZZ_SECONDS
 * makes it run on. */
#include "tests/unit/mutate.h"
#include "token_cases.h"

#include "base/file.h"
#include "text/buffer.h"
#include "text/unicode.h"

#include <time.h>

enum { MAX_SEEDS = 128, ROUNDS = 3000 };

static struct bytes *seeds[MAX_SEEDS];
static bool seed_is_gguf[MAX_SEEDS];
static int n_seeds;

static void add_seed(const void *data, size_t size, bool gguf) {
    struct bytes *b = calloc(1, sizeof *b);
    assert_non_null(b);
    assert_true(n_seeds < MAX_SEEDS);
    put(b, data, size);
    seed_is_gguf[n_seeds] = gguf;
    seeds[n_seeds++] = b;
}

static void add_json_seed(const struct tokenizer *none, const json_t *line) {
    (void)none;
    char *text = json_dumps(json_object_get(line, "tokenizer"), JSON_COMPACT);
    assert_non_null(text);
    if (strlen(text) < sizeof seeds[0]->data) add_seed(text, strlen(text), false);
    free(text);
}

static void add_gguf_seed(const char *path) {
    char *data;
    size_t size;
    struct error e = {0};
    if (file_read(path, sizeof seeds[0]->data, &data, &size, &e) != 0) fail_msg("%s", e.message);
    add_seed(data, size, true);
    free(data);
}

static void use_stream(const struct tokenizer *t, const struct token_ids *ids) {
    struct token_stream *s;
    struct error e = {0};
    struct buf all = {0};
    const char *piece;
    char *text;
    size_t size;
    assert_int_equal(token_stream_new(&s, t, rnd(2), false, &e), 0);
    token_stream_free(s);
    assert_int_equal(token_stream_new(&s, t, false, false, &e), 0);
    for (size_t i = 0; i < ids->n; i++) {
        if (token_stream_push(s, ids->ids[i], &piece, &size, &e) != 0) break;
        assert_int_equal(utf8_check(piece, size), size);
        buf_add(&all, piece, size);
    }
    if (e.kind == ERR_NONE && token_stream_end(s, &piece, &size, &e) == 0) {
        buf_add(&all, piece, size);
        assert_int_equal(tokenizer_decode(t, ids->ids, ids->n, false, &text, &size, &e), 0);
        assert_int_equal(size, all.size);
        assert_memory_equal(text, all.data ? all.data : "", size);
        free(text);
    }
    buf_free(&all);
    token_stream_free(s);
}

static void use(const struct tokenizer *t) {
    static const char text[] = "They're  here:\n 123 <s>Stra\xC3\x9F"
                               "e</s> \xE7\x8C\xAB [MASK]\tword";
    struct token_ids ids = {0};
    struct error e = {0};
    uint8_t bytes[8];
    if (tokenizer_encode(t, text, sizeof text - 1, true, &ids, &e) == 0) use_stream(t, &ids);
    else assert_true(e.message[0]);
    ids.n = 0;
    for (int i = 0; i < 12 && ids.capacity >= 12; i++) {
        ids.ids[ids.n++] = (token_id)rnd((uint64_t)tokenizer_size(t) + 1);
        tokenizer_bytes(t, ids.ids[i], bytes, sizeof bytes);
    }
    use_stream(t, &ids);
    token_ids_free(&ids);
}

/* A few bytes become others: a file that often still opens, and says something else. */
static void change_bytes(struct bytes *out, const struct bytes *from) {
    memcpy(out->data, from->data, from->n);
    out->n = from->n;
    for (uint64_t i = 1 + rnd(3); i > 0; i--)
        out->data[rnd(out->n)] = rnd(2) ? (uint8_t)('0' + rnd(10)) : (uint8_t)('a' + rnd(26));
}

static bool go_on(int round, time_t start) {
    const char *seconds = getenv("TPD_FUZZ_SECONDS");
    return seconds ? time(NULL) - start < atoi(seconds) : round < ROUNDS;
}

static void mutated_tokenizers_open_and_work_or_are_refused(void **state) {
    (void)state;
    static struct bytes file;
    int opened = 0;
    each_case("tests/data/text/tokenizers.jsonl", NULL, add_json_seed);
    add_gguf_seed("tests/data/text/spm.gguf");
    add_gguf_seed("tests/data/text/gpt2-llama-bpe.gguf");
    time_t start = time(NULL);
    for (int round = 0; go_on(round, start); round++) {
        int which = rnd(4) ? (int)rnd((uint64_t)n_seeds) : n_seeds - 1 - (int)rnd(2);
        if (rnd(2)) mutate(&file, seeds[which]);
        else change_bytes(&file, seeds[which]);
        const char *path = tiny_write(seed_is_gguf[which] ? "t.gguf" : "t.json", file.data, file.n);
        struct tokenizer *t;
        struct error e = {0};
        if (tokenizer_open(&t, path, &e) == 0) {
            use(t);
            tokenizer_free(t);
            opened++;
        } else {
            assert_int_equal(e.kind, ERR_BAD_FILE);
            assert_names(e.message, path);
        }
    }
    print_message("%d opened\n", opened);
    for (int i = 0; i < n_seeds; i++) free(seeds[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mutated_tokenizers_open_and_work_or_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
