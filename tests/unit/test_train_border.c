/* A prompt that is learnt from has the tokens that it has when it is served: no token goes over the
 * border to what is learnt, and the answer's tokens say the answer and nothing more. */
#include "tests/unit/train_data.h"

#include "train/example.h"
#include "train/mark.h"

static struct tokenizer *chat, *spm;

static const struct {
    const char *prompt, *completion;
} pairs[] = {
    {"Once upon", " a time"},
    {"Once upon ", "a time"},
    {"Once upon  ", "  a time"},
    {"Once upon a ti", "me there was"},
    {"th", "e"},
    {"Say hello.\n", "\nHello."},
    {"Say hello.\r", "\nHello."},
    {"", "Once upon a time"},
    {"it", "'s"},
    {"1", "2"},
    {"caf\xc3\xa9 ", "\xc3\xa9t\xc3\xa9"},
    {"Q: who?\nA:", " I"},
    {"  ", "  "},
};
enum { N_PAIRS = sizeof pairs / sizeof *pairs };

static void expect_ids(const token_id *ids, size_t n, const struct token_ids *want) {
    assert_true(n >= want->n);
    for (size_t i = 0; i < want->n; i++) assert_int_equal(ids[i], want->ids[i]);
}

static struct token_ids encode(const struct tokenizer *t, const char *text, bool special) {
    struct token_ids ids = {0};
    struct error e = {0};
    if (tokenizer_encode(t, text, strlen(text), special, &ids, &e)) fail_msg("%s", e.message);
    return ids;
}

/* The example's tokens, all of them, and how many are not learnt; ids to be freed. */
static token_id *only_example(const struct tokenizer *t, const char *line, size_t *n, size_t *silent) {
    struct dataset_options o = options_for(t);
    struct dataset *d = open_data(tiny_write_text("border.jsonl", line), &o);
    struct dataset_epoch *ep = in_file_order(d, 256);
    struct shown_rows *r = rows_new();
    dataset_epoch_rows(ep, 0, &r->rows);
    *n = (size_t)r->rows.n_rows + 1;
    *silent = *n - (size_t)r->rows.n_trained;
    token_id *ids = malloc(*n * sizeof *ids);
    assert_non_null(ids);
    memcpy(ids, r->rows.ids, (*n - 1) * sizeof *ids);
    ids[*n - 1] = r->rows.labels[*n - 2];
    for (size_t i = 0; i + 1 < *n; i++) assert_int_equal(r->rows.labels[i] >= 0, i + 1 >= *silent);
    free(r);
    dataset_epoch_free(ep);
    dataset_close(d);
    return ids;
}

/* Without the end token that follows every completion. */
static char *say(const struct tokenizer *t, const token_id *ids, size_t n, bool after_prompt) {
    struct token_stream *s;
    struct error e = {0};
    struct buf out = {0};
    const char *piece;
    size_t size;
    if (token_stream_new(&s, t, true, after_prompt, &e)) fail_msg("%s", e.message);
    for (size_t i = 0; i < n; i++) {
        if (token_stream_push(s, ids[i], &piece, &size, &e)) fail_msg("%s", e.message);
        buf_add(&out, piece, size);
    }
    if (token_stream_end(s, &piece, &size, &e)) fail_msg("%s", e.message);
    buf_add(&out, piece, size);
    buf_add_char(&out, '\0');
    token_stream_free(s);
    return out.data;
}

/* Returns whether a token of the whole text would have gone over the border. */
static bool check_pair(const struct tokenizer *t, const char *prompt, const char *completion) {
    size_t n, silent;
    json_t *json = json_pack("{s:s, s:s}", "prompt", prompt, "completion", completion);
    char *line = json_dumps(json, 0), both[128];
    struct token_ids served = encode(t, prompt, true);
    token_id *ids = only_example(t, line, &n, &silent);
    assert_int_equal(ids[n - 1], tokenizer_find(t, "</s>"));
    if (*prompt) assert_int_equal(silent, served.n);
    expect_ids(ids, silent, &served);
    char *said = say(t, ids + silent, n - 1 - silent, *prompt != '\0');
    assert_string_equal(said, completion);
    snprintf(both, sizeof both, "%s%s", prompt, completion);
    struct token_ids whole = encode(t, both, true);
    bool crossing = whole.n < served.n || memcmp(whole.ids, served.ids, served.n * sizeof *served.ids);
    free(said);
    free(ids);
    free(line);
    json_decref(json);
    token_ids_free(&served);
    token_ids_free(&whole);
    return crossing;
}

static void a_prompt_has_the_tokens_that_it_is_served_with(void **state) {
    (void)state;
    int crossings[2] = {0};
    for (int i = 0; i < N_PAIRS; i++) {
        crossings[0] += check_pair(chat, pairs[i].prompt, pairs[i].completion);
        crossings[1] += check_pair(spm, pairs[i].prompt, pairs[i].completion);
    }
    assert_true(crossings[0] > 0 && crossings[1] > 0); /* or nothing was tested */
}

/* Where no token goes over the border, the text's own tokens stand. */
static void an_ordinary_pair_has_the_tokens_of_the_whole_text(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        const struct tokenizer *t = i ? spm : chat;
        size_t n, silent;
        token_id *ids = only_example(t, "{\"prompt\": \"Once upon\", \"completion\": \" a time\"}", &n,
                                     &silent);
        struct token_ids whole = encode(t, "Once upon a time", true);
        assert_int_equal(n, whole.n + 1);
        expect_ids(ids, n, &whole);
        token_ids_free(&whole);
        free(ids);
    }
}

static bool check_turn(const struct tokenizer *t, const char *content) {
    static const char prompt[] = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
    size_t n, silent;
    char both[128];
    json_t *json = json_pack("{s:[{s:s, s:s}, {s:s, s:s}]}", "messages", "role", "user", "content",
                             "Hi", "role", "assistant", "content", content);
    char *line = json_dumps(json, 0);
    struct token_ids served = encode(t, prompt, false);
    token_id *ids = only_example(t, line, &n, &silent);
    assert_int_equal(silent, served.n);
    expect_ids(ids, silent, &served);
    assert_int_equal(ids[n - 1], tokenizer_find(t, "<|im_end|>"));
    char *said = say(t, ids + silent, n - 1 - silent, true);
    assert_string_equal(said, content);
    snprintf(both, sizeof both, "%s%s", prompt, content);
    struct token_ids whole = encode(t, both, false);
    bool crossing = memcmp(whole.ids, served.ids, served.n * sizeof *served.ids) != 0;
    free(said);
    free(ids);
    free(line);
    json_decref(json);
    token_ids_free(&served);
    token_ids_free(&whole);
    return crossing;
}

/* What an assistant says may begin with what would join the newline before it. */
static void an_assistants_turn_begins_where_its_prompt_ends(void **state) {
    (void)state;
    static const char *const contents[] = {"\n\nHello", "  Hello", "\tHello", "Hello"};
    const char *shared = shared_path("tokenizers/smollm2/tokenizer.json");
    struct tokenizer *big = shared ? open_tokenizer_at(shared) : NULL;
    int crossings = 0;
    for (size_t i = 0; i < sizeof contents / sizeof *contents; i++) {
        check_turn(chat, contents[i]);
        if (big) crossings += check_turn(big, contents[i]);
    }
    if (big) assert_true(crossings > 0); /* tiny-chat's few merges join no newlines */
    tokenizer_free(big);
}

/* A conversation in a form whose turns end with a text of several tokens: what is learnt is what the spans
 * say to the byte, for they are known from the writing and not looked for in the tokens. */
static void ends_of_several_tokens_are_learnt_whole(void **state) {
    (void)state;
    static const struct {
        const char *text;
        bool learnt;
    } parts[] = {{"[U]Hi there[/U] ", false}, {"Hello.</end>", true}, {"\n[U]Hi[/U] ", false},
                 {"Bye</end>", true}, {"\n", false}};
    for (int k = 0; k < 2; k++) {
        const struct tokenizer *t = k ? spm : chat;
        struct rendered r = {0};
        struct token_ids ids = {0}, learnt = {0};
        struct error e = {0};
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
            size_t from = r.text.size;
            buf_add(&r.text, parts[i].text, strlen(parts[i].text));
            if (parts[i].learnt) spans_add(&r.learnt, from, r.text.size);
        }
        assert_int_equal(mark_encode(t, &r, true, false, &ids, &e), 0);
        struct token_ids end = encode(t, "</end>", false);
        assert_true(end.n > 1);
        learnt.ids = malloc(ids.n * sizeof *learnt.ids);
        for (size_t i = 0; i < ids.n; i++)
            if (ids.ids[i] & TOKEN_TRAINED) learnt.ids[learnt.n++] = token_of(ids.ids[i]);
        char *said = say(t, learnt.ids, learnt.n, true);
        assert_string_equal(said, "Hello.</end>Bye</end>");
        free(said);
        token_ids_free(&end);
        token_ids_free(&ids);
        token_ids_free(&learnt);
        rendered_free(&r);
    }
}

static int open_tokenizers(void **state) {
    (void)state;
    chat = open_tokenizer_at(chat_tokenizer);
    spm = open_tokenizer_at(spm_tokenizer);
    return 0;
}

static int close_tokenizers(void **state) {
    (void)state;
    tokenizer_free(chat);
    tokenizer_free(spm);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prompt_has_the_tokens_that_it_is_served_with),
        cmocka_unit_test(an_ordinary_pair_has_the_tokens_of_the_whole_text),
        cmocka_unit_test(an_assistants_turn_begins_where_its_prompt_ends),
        cmocka_unit_test(ends_of_several_tokens_are_learnt_whole),
    };
    return cmocka_run_group_tests(tests, open_tokenizers, close_tokenizers);
}
