/* bench_grammar TOKENIZER: what masks cost a token, as a document is written under its schema; the
 * first time that a grammar is used, for a second document after it, and for the first one again. */
#include "base/json.h"
#include "base/thread.h"
#include "serve/grammar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PERSON                                                                                     \
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"bio\":{\"type\":\"string\","    \
    "\"maxLength\":400},\"age\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":130},\"tags\":{\"type\":"  \
    "\"array\",\"items\":{\"type\":\"string\"},\"maxItems\":50},\"mail\":{\"type\":\"string\",\"format\":" \
    "\"email\"}},\"required\":[\"name\",\"bio\",\"age\"],\"additionalProperties\":false}"

static const struct {
    const char *name, *schema, *texts[2];
} cases[] = {
    {"an object of five properties",
     PERSON,
     {"{\"name\": \"Ada Lovelace\", \"bio\": \"She wrote the first program for a machine that was never "
      "built, and saw further than its maker.\", \"age\": 36, \"tags\": [\"mathematics\", \"engines\"], "
      "\"mail\": \"ada@example.org\"}",
      "{\"name\": \"Grace Hopper\", \"bio\": \"Rear admiral; found a moth, and made compilers a thing that "
      "people could believe in.\", \"age\": 85, \"tags\": [\"navy\", \"compilers\", \"moths\"], "
      "\"mail\": \"grace@example.com\"}"}},
    {"any JSON",
     "true",
     {"{\"a\": [1, 2.5, {\"b\": null, \"c\": \"some words here\"}], \"d\": {\"e\": {\"f\": [true, false]}}}",
      "[{\"title\": \"a longer text with many words in it\", \"n\": -3e5}, [[[]]], \"end\"]"}},
};

static void follow(const char *what, struct grammar *g, struct grammar_vocab *vocab,
                   const struct tokenizer *t, const char *text) {
    struct grammar_run *run;
    struct token_ids ids = {0};
    struct error e;
    int64_t total = 0, most = 0;
    const uint64_t *mask;
    bool may_end;
    if (tokenizer_encode(t, text, strlen(text), false, &ids, &e) != 0 ||
        grammar_run_new(&run, g, vocab, tokenizer_size(t), &e) != 0) {
        fprintf(stderr, "%s\n", e.message);
        exit(1);
    }
    for (size_t i = 0; i <= ids.n; i++) {
        int64_t from = clock_ns();
        if (grammar_run_mask(run, ids.ids, i, &mask, &may_end, &e) != 0) {
            fprintf(stderr, "  %s: after %zu tokens: %s\n", what, i, e.message);
            break; /* a tokenizer that puts a space before every text */
        }
        grammar_run_must_end(run, ids.ids, i);
        int64_t took = clock_ns() - from;
        total += took;
        if (took > most) most = took;
    }
    printf("  %-28s %4zu tokens  %8.1f us a token, %8.1f us the slowest\n", what, ids.n,
           (double)total / 1e3 / (double)(ids.n + 1), (double)most / 1e3);
    grammar_run_free(run);
    token_ids_free(&ids);
}

int main(int argc, char **argv) {
    struct tokenizer *t;
    struct grammar_vocab *vocab;
    struct grammar_run *run;
    struct grammar *g;
    struct error e;
    if (argc != 2) return fprintf(stderr, "usage: bench_grammar TOKENIZER\n"), 64;
    if (tokenizer_open(&t, argv[1], &e) != 0 || grammar_vocab_new(&vocab, t, &e) != 0)
        return fprintf(stderr, "%s\n", e.message), 65;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t from = clock_ns();
        json_t *schema = json_loads(cases[i].schema, JSON_DECODE_ANY, NULL);
        if (grammar_from_schema(&g, schema, &e) != 0) return fprintf(stderr, "%s\n", e.message), 1;
        json_decref(schema);
        printf("%s: compiled in %.2f ms\n", cases[i].name, (double)(clock_ns() - from) / 1e6);
        from = clock_ns();
        if (grammar_run_new(&run, g, vocab, tokenizer_size(t), &e) != 0) return 1;
        if (i == 0)
            printf("  the vocabulary (%d ids), once: %.1f ms\n", tokenizer_size(t),
                   (double)(clock_ns() - from) / 1e6);
        grammar_run_free(run);
        follow("its first document", g, vocab, t, cases[i].texts[0]);
        follow("another one after it", g, vocab, t, cases[i].texts[1]);
        follow("the first one again", g, vocab, t, cases[i].texts[0]);
        grammar_release(g);
    }
    grammar_vocab_free(vocab);
    tokenizer_free(t);
    return 0;
}
