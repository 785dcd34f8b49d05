/* tests/unit/token_cases.c: see token_cases.h. */
#include "token_cases.h"

#include "text/buffer.h"
#include "text/unicode.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

struct tokenizer *open_tokenizer(const char *path) {
    struct tokenizer *t = NULL;
    struct error e = {0};
    if (tokenizer_open(&t, path, &e) != 0) fail_msg("%s", e.message);
    return t;
}

size_t each_case(const char *path, const struct tokenizer *t, case_fn *check) {
    FILE *file = fopen(path, "r");
    char *line = NULL;
    size_t capacity = 0, n = 0;
    ssize_t size;
    if (!file) fail_msg("%s cannot be read", path);
    while ((size = getline(&line, &capacity, file)) > 0) {
        json_error_t why;
        json_t *json = json_loadb(line, (size_t)size, JSON_ALLOW_NUL, &why);
        if (!json && json_error_code(&why) == json_error_numeric_overflow)
            continue; /* not for us */
        if (!json) fail_msg("%s: %s", path, why.text);
        check(t, json);
        json_decref(json);
        n++;
    }
    free(line);
    fclose(file);
    return n;
}

struct token_ids ids_of(const json_t *array) {
    struct token_ids ids = {0};
    ids.n = ids.capacity = json_array_size(array);
    ids.ids = malloc((ids.n + 1) * sizeof *ids.ids);
    assert_non_null(ids.ids);
    for (size_t i = 0; i < ids.n; i++)
        ids.ids[i] = (token_id)json_integer_value(json_array_get(array, i));
    return ids;
}

static char *line_text(const json_t *line) {
    return json_dumps(line, JSON_COMPACT);
}

static void print_ids(const char *label, const struct token_ids *ids) {
    print_message("%s", label);
    for (size_t i = 0; i < ids->n && i < 60; i++) print_message(" %d", ids->ids[i]);
    print_message("\n");
}

void check_encode(const struct tokenizer *t, const json_t *line, const char *text, size_t size,
                  bool special, const json_t *expected) {
    struct token_ids ids = {0}, want = ids_of(expected);
    struct error e = {0};
    if (tokenizer_encode(t, text, size, special, &ids, &e) != 0)
        fail_msg("%s: %s", line_text(line), e.message);
    if (ids.n != want.n ||
        memcmp(ids.ids ? ids.ids : want.ids, want.ids, ids.n * sizeof *ids.ids) != 0) {
        print_ids("got ", &ids);
        print_ids("want", &want);
        fail_msg("ids%s differ: %s", special ? " with special tokens" : "", line_text(line));
    }
    token_ids_free(&ids);
    token_ids_free(&want);
}

void check_pieces(const struct tokenizer *t, const json_t *line, const json_t *ids,
                  const json_t *expected) {
    size_t i, size;
    const json_t *id;
    json_array_foreach(ids, i, id) {
        const char *piece = tokenizer_piece(t, (token_id)json_integer_value(id), &size);
        const json_t *want = json_array_get(expected, i);
        /* Hugging Face's token is what it covers: an added one with the white space it took. */
        if (!piece || !memmem(json_string_value(want), json_string_length(want), piece, size))
            fail_msg("piece %zu differs: %s", i, line_text(line));
    }
}

void check_decode(const struct tokenizer *t, const json_t *line, const struct token_ids *ids,
                  bool skip_special, const json_t *expected) {
    char *text;
    size_t size;
    struct error e = {0};
    if (tokenizer_decode(t, ids->ids, ids->n, skip_special, &text, &size, &e) != 0)
        fail_msg("%s: %s", line_text(line), e.message);
    if (size != json_string_length(expected) ||
        memcmp(text, json_string_value(expected), size) != 0)
        fail_msg("decoded \"%s\", want \"%s\": %s", text, json_string_value(expected),
                 line_text(line));
    free(text);
}

void check_stream(const struct tokenizer *t, const json_t *line, const struct token_ids *ids,
                  bool skip_special) {
    struct token_stream *s;
    struct buf all = {0};
    struct error e = {0};
    assert_int_equal(token_stream_new(&s, t, skip_special, false, &e), 0);
    for (size_t i = 0; i <= ids->n; i++) {
        const char *piece;
        size_t size;
        int err = i < ids->n ? token_stream_push(s, ids->ids[i], &piece, &size, &e)
                             : token_stream_end(s, &piece, &size, &e);
        if (err) fail_msg("%s: %s", line_text(line), e.message);
        if (utf8_check(piece, size) != size)
            fail_msg("piece %zu is not UTF-8: %s", i, line_text(line));
        buf_add(&all, piece, size);
    }
    json_t *whole = json_stringn(all.data ? all.data : "", all.size);
    assert_non_null(whole);
    check_decode(t, line, ids, skip_special, whole);
    json_decref(whole);
    buf_free(&all);
    token_stream_free(s);
}
