/* Grammars and schemas of strangers: ours with bytes changed. Whatever they have become, compiling them
 * ends with a grammar or with an error that says where, and what is drawn under the masks of a grammar
 * is the beginning of one of its texts. The same seed gives the same grammars; TPD_FUZZ_SECONDS makes it
 * run on. */
#include "tests/unit/mutate.h"

#include "base/json.h"
#include "serve/grammar.h"

#include <time.h>

enum { ROUNDS = 4000, MAX_STEPS = 12, TEXT_BYTES = MAX_STEPS * 256 };

static const char *const grammars[] = {
    "root ::= expr (\"+\" expr)*\nexpr ::= [0-9]{1,9} | \"(\" root \")\" | name\nname ::= [a-z_] [a-z0-9_]{0,60}\n",
    "# list\nroot ::= item{2,80} | \"[\" root? \"]\"\nitem ::= \"- \" [^\\n]+ \"\\n\" # line\n",
    "root ::= (\"a\" | \"b\" root \"c\" | \"b\" root \"d\")\nx-1 ::= \"\\x41\\u00e9\\U0001F600\" .?\n",
    "root ::= a b? c* d+\na ::= [α-ω]\nb ::= \"é\" | \"\"\nc ::= (b a){,3}\nd ::= [\\]\\-^]\n",
};

static const char *const schemas[] = {
    "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"maxLength\":90},\"b\":{\"type\":[\"integer\",\"null\"],"
    "\"minimum\":-5,\"maximum\":105}},\"required\":[\"a\"],\"additionalProperties\":{\"enum\":[1,\"x\",[true]]}}",
    "{\"$defs\":{\"n\":{\"properties\":{\"k\":{\"items\":{\"$ref\":\"#/$defs/n\"},\"maxItems\":70}}}},\"allOf\":[{\"$ref\":"
    "\"#/$defs/n\"},{\"properties\":{\"v\":{\"const\":1.5}},\"required\":[\"v\"]}]}",
    "{\"anyOf\":[{\"pattern\":\"^(?:[a-z]+\\\\d{2,3}|\\\\w*?x)$\"},{\"format\":\"date-time\"},{\"prefixItems\":[{},false]}]}",
    "{\"type\":\"number\",\"exclusiveMinimum\":0,\"maximum\":12345,\"title\":\"t\",\"oneOf\":[{\"minimum\":3},{}]}",
};

enum { N_GRAMMARS = sizeof grammars / sizeof *grammars, N_SCHEMAS = sizeof schemas / sizeof *schemas };

static int compile(struct grammar **g, const struct bytes *b, bool is_schema, struct error *e) {
    if (!is_schema) return grammar_from_gbnf(g, (const char *)b->data, b->n, e);
    json_t *json = json_read((const char *)b->data, b->n, e);
    if (!json) return -1;
    int err = grammar_from_schema(g, json, e);
    json_decref(json);
    return err;
}

static void draw(const struct tokenizer *t, struct grammar_vocab *vocab, struct grammar *g) {
    struct grammar_run *run;
    struct error e = {0};
    token_id ids[MAX_STEPS], n_ids = tokenizer_size(t);
    uint8_t text[TEXT_BYTES];
    size_t n = 0, size = 0;
    const uint64_t *mask;
    bool may_end;
    assert_int_equal(grammar_run_new(&run, g, vocab, n_ids, &e), 0);
    while (grammar_run_mask(run, ids, n, &mask, &may_end, &e) == 0 && n < MAX_STEPS) {
        token_id id = (token_id)rnd((uint64_t)n_ids), tries = 0;
        while (tries < n_ids && !(mask[id / 64] >> (id % 64) & 1)) id = (id + 1) % n_ids, tries++;
        if (tries == n_ids) break;
        size += tokenizer_bytes(t, id, text + size, 255);
        ids[n++] = id;
    }
    /* Lost is a text only where it can be read in too many ways, and that is told. */
    if (!grammar_begins(g, (const char *)text, size)) assert_non_null(strstr(e.message, "too many ways"));
    grammar_run_free(run);
}

/* Bytes that stand elsewhere in the text: what comes out is often still a grammar. */
static void swap_bytes(struct bytes *out, const struct bytes *in) {
    out->n = in->n;
    memcpy(out->data, in->data, in->n);
    for (uint64_t i = 1 + rnd(2); i > 0; i--) out->data[rnd(in->n)] = in->data[rnd(in->n)];
}

static bool go_on(int round, time_t start) {
    const char *seconds = getenv("TPD_FUZZ_SECONDS");
    return seconds ? time(NULL) - start < atoi(seconds) : round < ROUNDS;
}

static void mutated_grammars_work_or_are_refused(void **state) {
    (void)state;
    static struct bytes from, b;
    struct tokenizer *t;
    struct grammar_vocab *vocab;
    struct error e = {0};
    int compiled = 0, refused = 0;
    assert_int_equal(tokenizer_open(&t, "tests/data/models/tiny-chat", &e), 0);
    assert_int_equal(grammar_vocab_new(&vocab, t, &e), 0);
    time_t start = time(NULL);
    for (int round = 0; go_on(round, start); round++) {
        struct grammar *g;
        size_t at = rnd(N_GRAMMARS + N_SCHEMAS);
        const char *text = at < N_GRAMMARS ? grammars[at] : schemas[at - N_GRAMMARS];
        from.n = 0;
        put(&from, text, strlen(text));
        if (rnd(2)) mutate(&b, &from);
        else swap_bytes(&b, &from);
        if (compile(&g, &b, at >= N_GRAMMARS, &e) == 0) {
            draw(t, vocab, g);
            grammar_release(g);
            compiled++;
        } else {
            assert_true(*e.message != '\0');
            refused++;
        }
    }
    assert_true(compiled > refused / 20 && refused > 0);
    grammar_vocab_free(vocab);
    tokenizer_free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(mutated_grammars_work_or_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
