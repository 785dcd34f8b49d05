/* Promises of serve/grammar.h about tokens: a mask is what trying each token alone would say, whatever
 * the vocabulary, and texts drawn under masks are of the grammar. */
#include "base/file.h"
#include "base/json.h"
#include "serve/grammar.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { MAX_TEXT = 4096, MAX_STEPS = 48 };

static uint64_t random_state = 1;
static uint32_t rnd(uint32_t n) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 33) % n);
}

static const char *const schemas[] = {
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"age\":{\"type\":\"integer\",\"minimum\":0,"
    "\"maximum\":130},\"mail\":{\"type\":\"string\",\"format\":\"email\"}},\"required\":[\"name\"]}",
    "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"minLength\":3,\"maxLength\":70},\"maxItems\":90}",
    "{\"$defs\":{\"t\":{\"properties\":{\"kids\":{\"items\":{\"$ref\":\"#/$defs/t\"}},\"v\":{\"enum\":[\"é€\",\"日本\",0]}}}},"
    "\"$ref\":\"#/$defs/t\"}",
    "{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{}},\"additionalProperties\":{\"type\":\"number\"}}",
};
static const char *const grammars[] = {
    "root ::= (word \" \"){3,40} word \".\"\nword ::= [a-zA-Z]{1,9}",
    "root ::= expr\nexpr ::= term ([-+*/] term)*\nterm ::= [0-9]+ | \"(\" expr \")\"",
    "root ::= [^\\n]{2,200} \"\\n\"",
    "root ::= \"«\" [α-ω]* \"»\" | .{5}",
};

static struct grammar *grammar_at(size_t i) {
    struct grammar *g;
    struct error e = {0};
    size_t n = sizeof schemas / sizeof *schemas;
    int err;
    if (i < n) {
        json_t *schema = json_read(schemas[i], strlen(schemas[i]), &e);
        err = grammar_from_schema(&g, schema, &e);
        json_decref(schema);
    } else err = grammar_from_gbnf(&g, grammars[i - n], strlen(grammars[i - n]), &e);
    if (err) fail_msg("grammar %zu: %s", i, e.message);
    return g;
}

enum { N_GRAMMARS = sizeof schemas / sizeof *schemas + sizeof grammars / sizeof *grammars };

static bool has(const uint64_t *mask, token_id id) {
    return mask[id / 64] >> (id % 64) & 1;
}

/* Every step-th token, from a random one on: is the mask right about it? */
static void check_mask(const struct tokenizer *t, struct grammar *g, const char *text, size_t size,
                       const uint64_t *mask, int32_t step) {
    char longer[MAX_TEXT + 1024];
    memcpy(longer, text, size);
    for (token_id id = (token_id)rnd((uint32_t)step); id < tokenizer_size(t); id += step) {
        size_t n = tokenizer_bytes(t, id, (uint8_t *)longer + size, 1024);
        bool may = n > 0 && n < 256 && !tokenizer_is_special(t, id) && grammar_begins(g, longer, size + n);
        if (has(mask, id) != may)
            fail_msg("after \"%.*s\" token %d \"%.*s\" is %s", (int)size, text, id, (int)n,
                     longer + size, may ? "masked" : "let through");
    }
}

static token_id draw(const uint64_t *mask, int32_t n_ids) {
    for (int tries = 0; tries < 300; tries++) {
        token_id id = (token_id)rnd((uint32_t)n_ids);
        if (has(mask, id)) return id;
    }
    token_id from = (token_id)rnd((uint32_t)n_ids);
    for (token_id i = 0; i < n_ids; i++)
        if (has(mask, (from + i) % n_ids)) return (from + i) % n_ids;
    return -1;
}

/* One text drawn blindly under masks. Returns whether it came to its end. */
static bool draw_text(const struct tokenizer *t, struct grammar_vocab *vocab, struct grammar *g) {
    struct grammar_run *run;
    struct token_stream *stream;
    struct error e = {0};
    char text[MAX_TEXT] = "", shown[MAX_TEXT];
    token_id ids[MAX_STEPS];
    size_t size = 0, n_shown = 0, n = 0, piece_size;
    int32_t n_ids = tokenizer_size(t), step = n_ids > 4096 ? 101 : 1;
    const uint64_t *mask;
    const char *piece;
    bool may_end = false;
    assert_int_equal(grammar_run_new(&run, g, vocab, n_ids, &e), 0);
    assert_int_equal(token_stream_new(&stream, t, true, true, &e), 0);
    while (n < MAX_STEPS && size < MAX_TEXT - 300) {
        if (grammar_run_mask(run, ids, n, &mask, &may_end, &e) != 0) fail_msg("%s", e.message);
        assert_int_equal(may_end, grammar_accepts(g, text, size));
        check_mask(t, g, text, size, mask, step);
        if (may_end && rnd(8) == 0) break;
        ids[n] = draw(mask, n_ids);
        if (ids[n] < 0) break;
        size += tokenizer_bytes(t, ids[n], (uint8_t *)text + size, 256);
        assert_int_equal(token_stream_push(stream, ids[n++], &piece, &piece_size, &e), 0);
        memcpy(shown + n_shown, piece, piece_size);
        n_shown += piece_size;
        bool must = grammar_run_must_end(run, ids, n);
        if (must) assert_true(grammar_accepts(g, text, size));
        if ((may_end = must)) break;
    }
    assert_true(grammar_begins(g, text, size));
    if (may_end) { /* what a client sees is what the grammar was told */
        assert_int_equal(token_stream_end(stream, &piece, &piece_size, &e), 0);
        memcpy(shown + n_shown, piece, piece_size);
        n_shown += piece_size;
        if (n_shown != size || memcmp(shown, text, size) != 0)
            fail_msg("shown \"%.*s\", not \"%.*s\"", (int)n_shown, shown, (int)size, text);
        assert_true(grammar_accepts(g, text, size));
    }
    token_stream_free(stream);
    grammar_run_free(run);
    return may_end;
}

static void hold_vocabulary(const char *path, int rounds) {
    struct tokenizer *t;
    struct grammar_vocab *vocab;
    struct error e = {0};
    if (tokenizer_open(&t, path, &e) != 0) fail_msg("%s", e.message);
    assert_int_equal(grammar_vocab_new(&vocab, t, &e), 0);
    for (size_t i = 0; i < N_GRAMMARS; i++) {
        struct grammar *g = grammar_at(i);
        for (int round = 0; round < rounds; round++) draw_text(t, vocab, g);
        grammar_release(g);
    }
    grammar_vocab_free(vocab);
    tokenizer_free(t);
}

static void masks_say_what_each_token_alone_would(void **state) {
    (void)state;
    hold_vocabulary("tests/data/models/tiny-chat", 3);
    hold_vocabulary("etc/models/alder", 2);
}

static void the_same_with_vocabularies_of_others(void **state) {
    (void)state;
    static const char *const names[] = {"gpt2", "smollm2", "mistral", "phi3-mini", "granite3",
                                        "stories260K-derived"};
    const char *shared = getenv("TPD_SHARED");
    int found = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/cases/tokenizers/%s/tokenizer.json", shared ? shared : "../shared", names[i]);
        if (access(path, R_OK) != 0) continue;
        found++;
        hold_vocabulary(path, 1);
    }
    if (!found) {
        print_message("skipped: no shared tokenizers\n");
        skip();
    }
}

/* Runs of one grammar in turn, and a run that is shown other tokens than before, as one that guessed. */
static void a_run_depends_on_its_tokens_alone(void **state) {
    (void)state;
    struct tokenizer *t;
    struct grammar_vocab *vocab;
    struct grammar_run *a, *b;
    struct token_ids ids = {0};
    struct error e = {0};
    const uint64_t *mask;
    bool may_end;
    assert_int_equal(tokenizer_open(&t, "tests/data/models/tiny-chat", &e), 0);
    assert_int_equal(grammar_vocab_new(&vocab, t, &e), 0);
    int32_t n_ids = tokenizer_size(t);
    size_t bytes = ((size_t)n_ids + 63) / 64 * 8;
    struct grammar *g = grammar_at(0);
    assert_int_equal(tokenizer_encode(t, "{\"name\": \"Ann\"}", 15, false, &ids, &e), 0);
    assert_int_equal(grammar_run_new(&a, g, vocab, n_ids, &e), 0);
    uint64_t *want = malloc(bytes * (ids.n + 1));
    for (size_t i = 0; i <= ids.n; i++) {
        assert_int_equal(grammar_run_mask(a, ids.ids, i, &mask, &may_end, &e), 0);
        memcpy((char *)want + i * bytes, mask, bytes);
    }
    assert_true(grammar_run_must_end(a, ids.ids, ids.n) || may_end);
    assert_int_equal(grammar_run_new(&b, g, vocab, n_ids, &e), 0);
    for (size_t i = ids.n + 1; i-- > 0;) {
        assert_int_equal(grammar_run_mask(b, ids.ids, i, &mask, &may_end, &e), 0);
        assert_memory_equal(mask, (char *)want + i * bytes, bytes);
        assert_int_equal(grammar_run_mask(a, ids.ids, i / 2, &mask, &may_end, &e), 0);
        assert_memory_equal(mask, (char *)want + i / 2 * bytes, bytes);
    }
    free(want);
    token_ids_free(&ids);
    grammar_run_free(a);
    grammar_run_free(b);
    grammar_release(g);
    grammar_vocab_free(vocab);
    tokenizer_free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(masks_say_what_each_token_alone_would),
        cmocka_unit_test(the_same_with_vocabularies_of_others),
        cmocka_unit_test(a_run_depends_on_its_tokens_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
