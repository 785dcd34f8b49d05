/* What a job learns of a conversation is, token by token, what the daemon is given when it serves it:
 * each assistant's turn stands behind the very prompt that `chat` makes for it, and what is learnt is the
 * turn up to its end. Held for tpd's own templates, for one that needs prefixes, and for published ones. */
#include "tests/unit/train_data.h"

#include "train/example.h"

#include <dirent.h>

static struct tokenizer *tokenizer;

static const char record_text[] =
    "{\"messages\":[{\"role\":\"user\",\"content\":\"Say a number.\"},"
    "{\"role\":\"assistant\",\"content\":\"Seven, I th\xC3\xADnk.\"},"
    "{\"role\":\"user\",\"content\":\"And  another?\"},"
    "{\"role\":\"assistant\",\"content\":\"Eight\"}]}";

enum verdict { SAME, REFUSED };

static void served_prompt(const struct chat *chat, const json_t *record, size_t n,
                          struct token_ids *ids) {
    struct error e = {0};
    struct jinja_output out = {0};
    json_t *all = chat_messages(chat, json_object_get(record, "messages"), &e), *some = json_array();
    for (size_t i = 0; i < n; i++) json_array_append(some, json_array_get(all, i));
    struct chat_request request = {.messages = some, .add_generation_prompt = true};
    if (chat_render(chat, &request, &out, &e) != 0) fail_msg("%s", e.message);
    assert_int_equal(tokenizer_encode(tokenizer, out.text.data ? out.text.data : "", out.text.size,
                                      false, ids, &e),
                     0);
    jinja_output_free(&out);
    json_decref(all);
    json_decref(some);
}

/* The turn that begins at token `at`: its text is the answer, and a stop behind it or nothing. */
static size_t check_turn(const struct token_ids *example, size_t at, const char *answer) {
    struct token_ids turn = {.ids = calloc(example->n + 1, sizeof *turn.ids)};
    struct error e = {0};
    char *text;
    size_t size;
    for (; at < example->n && (example->ids[at] & TOKEN_TRAINED); at++)
        turn.ids[turn.n++] = token_of(example->ids[at]);
    assert_true(turn.n > 0);
    assert_int_equal(tokenizer_decode(tokenizer, turn.ids, turn.n, false, &text, &size, &e), 0);
    assert_true(strstr(text, answer) != NULL);
    free(text);
    token_ids_free(&turn);
    return at;
}

static void check_prefix(const char *name, const struct token_ids *example,
                         const struct token_ids *prompt, size_t turn) {
    bool same = prompt->n < example->n;
    for (size_t i = 0; i < prompt->n && same; i++) same = token_of(example->ids[i]) == prompt->ids[i];
    same = same && (example->ids[prompt->n] & TOKEN_TRAINED) &&
           !(example->ids[prompt->n - 1] & TOKEN_TRAINED);
    if (!same) fail_msg("%s: turn %zu does not stand behind its prompt", name, turn);
}

static enum verdict compare(const char *name, const struct chat *chat) {
    struct record record = {.text = record_text, .size = strlen(record_text)};
    struct dataset_options o = options_for(tokenizer);
    struct token_ids example = {0}, prompt = {0};
    struct error e = {0};
    static const char *const answers[] = {"Seven, I th", "Eight"};
    o.chat = chat;
    if (example_encode(&o, FORM_MESSAGES, &record, &example, &e) != 0) {
        print_message("%s: %.150s\n", name, e.message);
        token_ids_free(&example);
        return REFUSED;
    }
    json_t *json = json_read(record_text, strlen(record_text), &e);
    for (size_t turn = 0; turn < 2; turn++) {
        prompt.n = 0;
        served_prompt(chat, json, 1 + 2 * turn, &prompt);
        check_prefix(name, &example, &prompt, turn);
        check_turn(&example, prompt.n, answers[turn]);
    }
    json_decref(json);
    token_ids_free(&example);
    token_ids_free(&prompt);
    return SAME;
}

static enum verdict compare_choice(const char *choice) {
    struct chat *chat;
    struct error e = {0};
    if (chat_open(&chat, chat_tokenizer, choice, tokenizer, &e) != 0) fail_msg("%s", e.message);
    enum verdict verdict = compare(choice ? choice : "tiny-chat", chat);
    chat_free(chat);
    return verdict;
}

static void own_templates_train_as_they_serve(void **state) {
    (void)state;
    static const char *const names[] = {NULL,    "chatml", "llama2", "llama3", "mistral",
                                        "gemma", "phi3",   "zephyr", "vicuna", "alpaca"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_int_equal(compare_choice(names[i]), SAME);
}

/* The same form with and without {% generation %} blocks marks the same tokens. */
static void blocks_and_prefixes_find_the_same(void **state) {
    (void)state;
    static const char *const forms[] = {
        "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}"
        "{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}{{ '\n' }}"
        "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}",
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}<|im_end|>{{ '\n' }}"
        "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"};
    struct record record = {.text = record_text, .size = strlen(record_text)};
    struct token_ids found[2] = {{0}, {0}};
    for (int i = 0; i < 2; i++) {
        struct chat *chat;
        struct error e = {0};
        struct dataset_options o = options_for(tokenizer);
        const char *path = tiny_write_text("form.jinja", forms[i]);
        assert_int_equal(chat_open(&chat, chat_tokenizer, path, tokenizer, &e), 0);
        o.chat = chat;
        if (example_encode(&o, FORM_MESSAGES, &record, &found[i], &e) != 0) fail_msg("%s", e.message);
        chat_free(chat);
    }
    assert_int_equal(found[0].n, found[1].n);
    assert_memory_equal(found[0].ids, found[1].ids, found[0].n * sizeof *found[0].ids);
    token_ids_free(&found[0]);
    token_ids_free(&found[1]);
}

static void a_template_that_rewrites_a_turn_is_refused_by_line(void **state) {
    (void)state;
    /* What was thought goes once more follows. */
    const char *path = tiny_write_text(
        "thinks.jinja", "{% for m in messages %}{{ m.role }}:{% if m.role == 'assistant' and loop.last %}"
                        "(thinks) {% endif %}{{ m.content }}\n{% endfor %}"
                        "{% if add_generation_prompt %}assistant:{% endif %}");
    struct chat *chat;
    struct error e = {0};
    struct dataset *d;
    assert_int_equal(chat_open(&chat, chat_tokenizer, path, tokenizer, &e), 0);
    struct dataset_options o = options_for(tokenizer);
    char two[512];
    snprintf(two, sizeof two,
             "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},"
             "{\"role\":\"assistant\",\"content\":\"b\"}]}\n%s\n",
             record_text);
    o.chat = chat;
    assert_true(dataset_open(&d, tiny_write_text("two.jsonl", two), &o, &e) != 0);
    assert_names(e.message, "line 2: ");
    assert_names(e.message, "messages[1]");
    assert_names(e.message, "another way once more follows");
    chat_free(chat);
}

/* Templates that write an end, or the next turn's beginning, behind the last message in any case. */
static void what_always_stands_at_the_end_is_not_learnt(void **state) {
    (void)state;
    const char *path = tiny_write_text(
        "tail.jinja", "{% for m in messages %}<{{ m.role }}>{{ m.content }}<|im_end|>{{ '\\n' }}"
                      "{% endfor %}{% if add_generation_prompt %}<assistant>{% else %}<|im_end|>{% endif %}");
    struct record record = {.text = record_text, .size = strlen(record_text)};
    struct dataset_options o = options_for(tokenizer);
    struct token_ids ids = {0};
    struct chat *chat;
    struct error e = {0};
    char *text;
    size_t size, n = 0;
    assert_int_equal(compare_choice(path), SAME);
    assert_int_equal(chat_open(&chat, chat_tokenizer, path, tokenizer, &e), 0);
    o.chat = chat;
    assert_int_equal(example_encode(&o, FORM_MESSAGES, &record, &ids, &e), 0);
    for (size_t i = 0; i < ids.n; i++)
        if (ids.ids[i] & TOKEN_TRAINED) ids.ids[n++] = token_of(ids.ids[i]);
    assert_int_equal(tokenizer_decode(tokenizer, ids.ids, n, false, &text, &size, &e), 0);
    assert_string_equal(text, "Seven, I th\xC3\xADnk.<|im_end|>Eight<|im_end|>");
    free(text);
    token_ids_free(&ids);
    chat_free(chat);
}

static void tools_reach_the_template(void **state) {
    (void)state;
    const char *path = tiny_write_text(
        "tools.jinja", "{% if tools %}{{ tools|tojson }}{% endif %}{% for m in messages %}{{ m.role }}:"
                       "{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.arguments.x }}"
                       "{% endfor %}<|im_end|>{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}");
    static const char text[] =
        "{\"tools\":[{\"name\":\"f\"}],\"messages\":[{\"role\":\"user\",\"content\":\"a\"},"
        "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"function\":{\"name\":\"f\","
        "\"arguments\":\"{\\\"x\\\": 5}\"}}]}]}";
    struct record record = {.text = text, .size = strlen(text)};
    struct dataset_options o = options_for(tokenizer);
    struct token_ids ids = {0};
    struct chat *chat;
    struct error e = {0};
    char *decoded;
    size_t size;
    assert_int_equal(chat_open(&chat, chat_tokenizer, path, tokenizer, &e), 0);
    o.chat = chat;
    if (example_encode(&o, FORM_MESSAGES, &record, &ids, &e) != 0) fail_msg("%s", e.message);
    for (size_t i = 0; i < ids.n; i++) ids.ids[i] = token_of(ids.ids[i]);
    assert_int_equal(tokenizer_decode(tokenizer, ids.ids, ids.n, false, &decoded, &size, &e), 0);
    assert_string_equal(decoded, "[{\"name\": \"f\"}]user:a<|im_end|>assistant:5<|im_end|>");
    free(decoded);
    token_ids_free(&ids);
    chat_free(chat);
}

static void published_templates_train_as_they_serve(void **state) {
    (void)state;
    const char *shared = getenv("TPD_SHARED");
    char folder[512], path[1024];
    int same = 0, refused = 0;
    snprintf(folder, sizeof folder, "%s/cases/templates", shared ? shared : "../shared");
    DIR *dir = opendir(folder);
    if (!dir) {
        print_message("skipped: %s is absent\n", folder);
        return;
    }
    for (struct dirent *entry; (entry = readdir(dir));) {
        size_t n = strlen(entry->d_name);
        if (n < 7 || strcmp(entry->d_name + n - 6, ".jinja") != 0) continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (compare_choice(path) == SAME) same++;
        else refused++;
    }
    closedir(dir);
    print_message("%d templates train as they serve, %d refuse\n", same, refused);
    assert_true(same >= 30);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(own_templates_train_as_they_serve),
        cmocka_unit_test(blocks_and_prefixes_find_the_same),
        cmocka_unit_test(a_template_that_rewrites_a_turn_is_refused_by_line),
        cmocka_unit_test(what_always_stands_at_the_end_is_not_learnt),
        cmocka_unit_test(tools_reach_the_template),
        cmocka_unit_test(published_templates_train_as_they_serve),
    };
    tokenizer = open_tokenizer_at(chat_tokenizer);
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    chat_free((struct chat *)chat_for(tokenizer));
    tokenizer_free(tokenizer);
    return rc;
}
