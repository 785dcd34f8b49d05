/* Every form of data file becomes the examples that train/README.md promises, and what is wrong
 * with a file is said with its line before anything is trained. */
#include "train_data.h"

#include "base/file.h"
#include "base/json.h"
#include "train/records.h"

#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>
#include <utime.h>

static struct tokenizer *chat, *spm;

/* --- right files ------------------------------------------------------------------------------ */

struct sample {
    const char *file, *content, *form;
    const char *examples[4]; /* what is learnt in {braces} */
    bool on_all;
};

static void check_examples(const struct tokenizer *t, const struct dataset *d,
                           const struct sample *s) {
    struct dataset_epoch *ep = in_file_order(d, 256);
    struct shown_rows *rows = rows_new();
    int64_t n = dataset_epoch_batches(ep);
    for (int64_t i = 0; i < n; i++) {
        dataset_epoch_rows(ep, i, &rows->rows);
        char *shown = show_example(t, &rows->rows);
        assert_true(i < 4 && s->examples[i]);
        assert_string_equal(shown, s->examples[i]);
        free(shown);
    }
    assert_true(n == 4 || !s->examples[n]);
    dataset_epoch_free(ep);
    free(rows);
}

static void check_sample(const struct tokenizer *t, const struct sample *s) {
    struct dataset_options o = options_for(t);
    o.on_completion = !s->on_all;
    struct dataset *d = open_data(tiny_write_text(s->file, s->content), &o);
    struct dataset_report report;
    dataset_report(d, &report);
    assert_string_equal(report.form, s->form);
    check_examples(t, d, s);
    dataset_close(d);
}

static void each_form_becomes_its_examples(void **state) {
    (void)state;
    static const struct sample samples[] = {
        {"a.jsonl",
         "{\"text\":\"A red\"}\n{\"text\":\"two\"}\n",
         "text",
         {"<s>{A red</s>}", "<s>{two</s>}"},
         false},
        {"a.jsonl",
         "{\"prompt\":\"Q: 2\\nA:\",\"completion\":\" yes\"}",
         "completion",
         {"<s>Q: 2\nA:{ yes</s>}"},
         false},
        {"b.jsonl",
         "{\"prompt\":\"Q: 2\\nA:\",\"completion\":\" yes\"}",
         "completion",
         {"<s>{Q: 2\nA: yes</s>}"},
         true},
        {"c.jsonl",
         "{\"prompt\":\"\",\"completion\":\"alone\"}",
         "completion",
         {"<s>{alone</s>}"},
         false},
        {"d.jsonl",
         "{\"instruction\":\"Add\",\"input\":\"1\",\"output\":\"2\"}\n"
         "{\"instruction\":\"Go\",\"input\":\"\",\"output\":\"ok\"}\n"
         "{\"instruction\":\"Go\",\"output\":\"ok\"}\n",
         "instruction",
         {"<s>### Instruction:\nAdd\n\n### Input:\n1\n\n### Response:\n{2</s>}",
          "<s>### Instruction:\nGo\n\n### Response:\n{ok</s>}",
          "<s>### Instruction:\nGo\n\n### Response:\n{ok</s>}"},
         false},
        {"e.jsonl",
         "{\"messages\":[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\",\"content\":"
         "\"U\"},"
         "{\"role\":\"assistant\",\"content\":\"A1\"},{\"role\":\"user\",\"content\":\"V\"},"
         "{\"role\":\"assistant\",\"content\":\"A2\"},{\"role\":\"user\",\"content\":\"W\"}]}",
         "messages",
         {"<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n"
          "{A1<|im_end|>}\n<|im_start|>user\nV<|im_end|>\n<|im_start|>assistant\n{A2<|im_end|>}"},
         false},
        {"f.jsonl",
         "{\"input_ids\":[0,5,6,7],\"labels\":[-100,-100,6,7]}\n{\"input_ids\":[1,5]}",
         "input_ids",
         {NULL},
         false},
    };
    for (size_t i = 0; i + 1 < sizeof samples / sizeof *samples; i++)
        check_sample(chat, &samples[i]);
    /* ids as they are: no end is added */
    struct dataset_options o = options_for(chat);
    struct dataset *d = open_data(tiny_write_text("f.jsonl", samples[6].content), &o);
    struct dataset_epoch *ep = in_file_order(d, 256);
    struct shown_rows *r = rows_new();
    dataset_epoch_rows(ep, 0, &r->rows);
    assert_int_equal(r->rows.n_rows, 3);
    assert_memory_equal(r->rows.ids, ((int32_t[]){0, 5, 6}), 12);
    assert_memory_equal(r->rows.labels, ((int32_t[]){-1, 6, 7}), 12);
    dataset_epoch_rows(ep, 1, &r->rows);
    assert_memory_equal(r->rows.labels, ((int32_t[]){5}), 4);
    dataset_epoch_free(ep);
    dataset_close(d);
    free(r);
}

static void a_tokenizer_that_marks_word_starts_gets_the_same_masks(void **state) {
    (void)state;
    static const struct sample samples[] = {
        {"a.jsonl",
         "{\"prompt\":\"Say\",\"completion\":\" yes\"}",
         "completion",
         {"<s> Say{ yes</s>}"},
         false},
        {"b.jsonl",
         "{\"instruction\":\"Go\",\"output\":\"ok\"}",
         "instruction",
         {"<s> ### Instruction:\nGo\n\n### Response:\n{ok</s>}"},
         false},
    };
    for (size_t i = 0; i < 2; i++) check_sample(spm, &samples[i]);
}

static void line_ends_marks_blank_lines_and_arrays_are_taken(void **state) {
    (void)state;
    static const char *const contents[] = {
        "{\"text\":\"one\"}\n{\"text\":\"two\"}\n",
        "{\"text\":\"one\"}\r\n{\"text\":\"two\"}\r\n",
        "\xEF\xBB\xBF{\"text\":\"one\"}\n{\"text\":\"two\"}",
        "\n\n  \t{\"text\":\"one\"}  \n \r\n\n{\"text\":\"two\"}\n\n",
        "[{\"text\":\"one\"},{\"text\":\"two\"}]",
        ("\xEF\xBB\xBF [\r\n {\r\n\"text\" : \"one\" "
         "}\n,\n{\"text\":\"two\",\"x\":[1,{\"],\":2}]}\n]\n \n"),
        "{\"id\":1,\"text\":\"one\"}\n{\"text\":\"two\",\"label\":null}\n",
    };
    for (size_t i = 0; i < sizeof contents / sizeof *contents; i++)
        check_sample(chat,
                     &(struct sample){
                         "x.json", contents[i], "text", {"<s>{one</s>}", "<s>{two</s>}"}, false});
    /* escaped line ends are part of a string */
    check_sample(chat,
                 &(struct sample){
                     "y.jsonl", "{\"text\":\"a\\r\\nb\"}\n", "text", {"<s>{a\r\nb</s>}"}, false});
}

/* --- wrong files ------------------------------------------------------------------------------ */

static void refuse(const struct tokenizer *t, const char *file, const char *content, int64_t line,
                   const char *fault) {
    struct dataset_options o = options_for(t);
    struct dataset *d;
    struct error e = {0};
    const char *path = tiny_write_text(file, content);
    if (dataset_open(&d, path, &o, &e) == 0) fail_msg("%s was taken", content);
    assert_int_equal(e.kind, ERR_BAD_FILE);
    assert_names(e.message, path);
    assert_names(e.message, fault);
    int64_t noted = 0;
    for (int i = 0; i < e.n_notes; i++)
        if (!strcmp(e.notes[i].key, "line")) noted = e.notes[i].number;
    assert_int_equal(noted, line);
}

static void broken_records_are_named_with_their_line(void **state) {
    (void)state;
#define GOOD "{\"text\":\"a\"}\n"
    static const struct {
        const char *content;
        int64_t line;
        const char *fault;
    } cases[] = {
        {GOOD "{\"text\":\"a\"}{\"text\":\"b\"}\n", 2, "byte 13"},
        {GOOD GOOD "{\"text\":\"a\tb\"}\n", 3, "control character"},
        {GOOD "{\"text\":\"b", 2, "ends too early"},
        {"{\n  \"text\": \"a\"\n}\n", 1, "one whole JSON object a line"},
        {GOOD "\r\n\n[1]\n", 4, "an array of 1, not an object"},
        {GOOD "{\"prompt\":\"a\",\"completion\":\"b\"}\n", 2, "text is missing"},
        {GOOD "{\"text\":5}\n", 2, "\"text\" must be a string, not 5"},
        {GOOD "{\"text\":\"\"}\n", 2, "is empty"},
        {GOOD "{\"text\":\"\xff\"}\n", 2, "decode byte 0xff"},
        {GOOD "{\"text\":\"a\",\"text\":\"b\"}\n", 2, "duplicate"},
        {"{\"prompt\":\"a\",\"completion\":null}", 1, "\"completion\" must be a string"},
        {"{\"conversations\":[],\"id\":3}", 1, "conversations, id"},
        {"{}", 1, "no keys"},
        {"This is no data", 1, "not valid JSON"},
        {"[{\"text\":\"a\"},\n\n{\"text\":7}]", 3, "must be a string"},
        {"[{\"text\":\"a\"},\n]", 2, "no record behind it"},
        {"[,{\"text\":\"a\"}]", 1, "no record before it"},
        {"[{\"text\":\"a\"}\n", 1, "a ] is missing"},
        {"[{\"text\":\"a\"}]\n\nx", 3, "after the array's end"},
        {"[{\"text\":\"a\"}}]", 1, "not valid JSON"},
        {"[{\"text\":\"a]}", 1, "a ] is missing"},
        {"{\"input_ids\":[0,1,2],\"labels\":[1]}", 1, "as long as input_ids"},
        {"{\"input_ids\":[0,1,2],\"labels\":[0,1,3]}", 1, "labels[2]"},
        {"{\"input_ids\":[0,1,352]}", 1, "352 is not in the model's vocabulary of 352"},
        {"{\"input_ids\":[0,-1]}", 1, "input_ids[1]"},
        {"{\"input_ids\":[]}", 1, "array of token ids"},
        {"{\"messages\":[]}", 1, "at least one"},
        {"{\"messages\":[{\"content\":\"a\"}]}", 1, "messages[0] has no role"},
        {"{\"messages\":[{\"role\":\"gpt\",\"content\":\"a\"}]}", 1, "messages[0].role"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},"
         "{\"role\":\"assistant\",\"content\":null}]}",
         1, "messages[1].content"},
        {"{\"messages\":[{\"role\":\"assistant\",\"content\":\"\"}]}", 1, "is empty"},
        {"{\"messages\":[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{}]}]}", 1,
         "messages[0].tool_calls"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refuse(chat, "bad.jsonl", cases[i].content, cases[i].line, cases[i].fault);
    refuse(chat, "bad.jsonl", "", 0, "has no records");
    refuse(chat, "bad.json", "[ ]", 0, "has no records");
    refuse(chat, "bad.jsonl", " \n\r\n", 0, "has no records");
    refuse(chat, "bad.txt", "", 0, "has no records");
    refuse(chat, "bad.txt",
           "one\ntwo\nthr\xff"
           "e\n",
           3, "0xff");
    refuse(spm, "bad.jsonl", "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}", 1,
           "chat template");
}

static void files_that_are_none_are_refused(void **state) {
    (void)state;
    struct dataset_options o = options_for(chat);
    struct dataset *d;
    struct error e = {0};
    assert_int_not_equal(dataset_open(&d, tiny_path("absent"), &o, &e), 0);
    assert_int_equal(e.kind, ERR_NOT_FOUND);
    assert_int_not_equal(dataset_open(&d, tiny_mkdir("dir"), &o, &e), 0);
    assert_int_equal(e.kind, ERR_BAD_FILE);
    const char *fifo = tiny_path("fifo");
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_not_equal(dataset_open(&d, fifo, &o, &e), 0);
    assert_int_equal(e.kind, ERR_BAD_FILE);
}

static void skip_bad_counts_what_it_passes_over(void **state) {
    (void)state;
    struct dataset_options o = options_for(chat);
    o.skip_bad = true;
    struct dataset_report report;
    struct dataset *d = open_data(
        tiny_write_text("skip.jsonl", "nonsense\n" GOOD "{\"text\":1}\n{\"x\":1}\n" GOOD), &o);
    dataset_report(d, &report);
    assert_int_equal(report.examples, 2);
    assert_int_equal(report.skipped, 3);
    assert_int_equal(report.first_skipped_line, 1);
    dataset_close(d);
    struct error e = {0};
    assert_int_not_equal(dataset_open(&d, tiny_write_text("all.jsonl", "a\nb\n"), &o, &e), 0);
    assert_names(e.message, "all of its 2 records are broken");
}

/* --- lengths ---------------------------------------------------------------------------------- */

static void long_examples_are_cut_and_counted(void **state) {
    (void)state;
    struct dataset_options o = options_for(chat);
    o.seq_len = 8;
    struct dataset_report report;
    struct dataset *d = open_data(
        tiny_write_text("long.jsonl",
                        "{\"prompt\":\"0123\",\"completion\":\"4567890123\"}\n" /* 4 + 4 of 10 */
                        "{\"prompt\":\"01234567890\",\"completion\":\"1\"}\n" /* nothing is left */
                        "{\"prompt\":\"0\",\"completion\":\"123456\"}\n"),    /* fits with </s> */
        &o);
    dataset_report(d, &report);
    assert_int_equal(report.examples, 2);
    assert_int_equal(report.cut, 2);
    assert_int_equal(report.untrained, 1);
    assert_int_equal(report.tokens, 8 + 8);
    assert_int_equal(report.trained_tokens, 4 + 7);
    struct dataset_epoch *ep = in_file_order(d, 8);
    struct shown_rows *r = rows_new();
    static const char *const expected[] = {"<s>0123{4567}", "<s>0{123456</s>}"};
    for (int i = 0; i < 2; i++) {
        dataset_epoch_rows(ep, i, &r->rows);
        char *shown = show_example(chat, &r->rows);
        assert_string_equal(shown, expected[i]);
        free(shown);
    }
    free(r);
    dataset_epoch_free(ep);
    dataset_close(d);
    struct error e = {0};
    o.seq_len = 2;
    assert_int_not_equal(
        dataset_open(&d,
                     tiny_write_text("none.jsonl", "{\"prompt\":\"0123\",\"completion\":\"4\"}"),
                     &o, &e),
        0);
    assert_names(e.message, "has a token to learn within seq_len 2");
}

/* Lines of digits (a token each) and words, longer than several pieces of a round. */
static char *long_text(size_t lines) {
    char *text = malloc(lines * 80 + 1), *at = text;
    assert_non_null(text);
    for (size_t i = 0; i < lines; i++)
        at += snprintf(at, 80, "%zu\xC3\xA9 there is a line %zu\n%s", i, i * 7919 % 1000,
                       i % 5 ? "" : "\n  indented\n");
    return text;
}

static void check_text(const struct tokenizer *t, int32_t seq_len) {
    char *text = long_text(9000);
    struct dataset_options o = options_for(t);
    o.seq_len = seq_len;
    struct dataset *d = open_data(tiny_write_text("long.txt", text), &o);
    struct token_ids want = {0};
    struct error e = {0};
    if (tokenizer_encode(t, text, strlen(text), true, &want, &e)) fail_msg("%s", e.message);
    struct dataset_epoch *ep = in_file_order(d, seq_len);
    struct shown_rows *r = rows_new();
    size_t at = 0; /* the token in row 0 of the next example */
    for (int64_t i = 0; i < dataset_epoch_batches(ep); i++) {
        dataset_epoch_rows(ep, i, &r->rows);
        if (i + 1 < dataset_epoch_batches(ep)) assert_int_equal(r->rows.n_rows, seq_len);
        for (int32_t k = 0; k < r->rows.n_rows; k++, at++) {
            if (r->rows.ids[k] != want.ids[at]) fail_msg("token %zu is another", at);
            assert_int_equal(r->rows.labels[k], at + 1 < want.n ? want.ids[at + 1] : o.eos);
        }
    }
    assert_int_equal(at, want.n);
    free(r);
    token_ids_free(&want);
    dataset_epoch_free(ep);
    dataset_close(d);
    free(text);
}

static void a_text_file_is_learnt_whole_whatever_the_pieces(void **state) {
    (void)state;
    check_text(chat, 64);
    check_text(spm, 200);
    check_sample(chat, &(struct sample){"s.txt",
                                        "\xEF\xBB\xBF"
                                        "A red\r\n",
                                        "document",
                                        {"<s>{A red\r\n</s>}"},
                                        false});
}

static void rounds_and_threads_do_not_show(void **state) {
    (void)state;
    size_t n = 120000, size = 0;
    char *text = malloc(n * 64);
    assert_non_null(text);
    for (size_t i = 0; i < n; i++)
        size += (size_t)snprintf(text + size, 64,
                                 "{\"prompt\":\"%zu\",\"completion\":\" is %zu\"}\n", i, i * 31);
    const char *path = tiny_write("many.jsonl", text, size); /* more than one round */
    struct dataset_options o = options_for(chat);
    struct shown_rows *r = rows_new();
    uint64_t sums[2] = {0};
    for (int k = 0; k < 2; k++) {
        o.threads = k ? 3 : 1;
        o.cache_dir = tiny_mkdir(k ? "cache-3" : "cache-1");
        struct dataset *d = open_data(path, &o);
        struct dataset_epoch *ep = in_file_order(d, 256);
        assert_int_equal(dataset_epoch_batches(ep), n);
        for (int64_t i = 0; i < (int64_t)n; i++) {
            dataset_epoch_rows(ep, i, &r->rows);
            for (int32_t t = 0; t < r->rows.n_rows; t++)
                sums[k] = sums[k] * 31 + (uint64_t)(r->rows.ids[t] * 7 + r->rows.labels[t]);
        }
        dataset_epoch_rows(ep, 77777, &r->rows);
        char *shown = show_example(chat, &r->rows);
        assert_string_equal(shown, "<s>77777{ is 2411087</s>}");
        free(shown);
        dataset_epoch_free(ep);
        dataset_close(d);
    }
    assert_int_equal(sums[0], sums[1]);
    /* a fault near the end is found before anything is trained */
    memcpy(text + size - 20, "{}{}", 4);
    refuse(chat, "many.jsonl", text, (int64_t)n, "not valid JSON");
    free(text);
    free(r);
}

/* --- cache ------------------------------------------------------------------------------------ */

static bool was_cached(const char *path, const struct dataset_options *o) {
    struct dataset *d = open_data(path, o);
    struct dataset_report report;
    dataset_report(d, &report);
    dataset_close(d);
    return report.cached;
}

static void the_cache_serves_the_same_data_and_options_alone(void **state) {
    (void)state;
    struct dataset_options o = options_for(chat);
    o.cache_dir = tiny_mkdir("cache");
    const char *path = tiny_write_text("c.jsonl", GOOD);
    assert_false(was_cached(path, &o));
    assert_true(was_cached(path, &o));
    o.seq_len = 32;
    assert_false(was_cached(path, &o));
    o.on_completion = false;
    assert_false(was_cached(path, &o));
    o.eos = -1;
    assert_false(was_cached(path, &o));
    o.tokenizer = spm;
    assert_false(was_cached(path, &o));
    assert_true(was_cached(path, &o));
    /* touched, but the same */
    assert_int_equal(utime(path, NULL), 0);
    assert_true(was_cached(path, &o));
    /* another content of the same size, and back in time */
    tiny_write_text("c.jsonl", "{\"text\":\"b\"}\n");
    assert_int_equal(utime(path, &(struct utimbuf){1000, 1000}), 0);
    assert_false(was_cached(path, &o));
    assert_true(was_cached(path, &o));
}

static void spoil(const char *path, long at) {
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, at, at < 0 ? SEEK_END : SEEK_SET), 0);
    assert_int_equal(fputc(0x5A, f), 0x5A);
    assert_int_equal(fclose(f), 0);
}

static void a_spoilt_cache_is_made_again(void **state) {
    (void)state;
    struct dataset_options o = options_for(chat);
    o.cache_dir = tiny_mkdir("spoilt");
    const char *path = tiny_write_text("s.jsonl", GOOD GOOD);
    assert_false(was_cached(path, &o));
    DIR *dir = opendir(o.cache_dir);
    assert_non_null(dir);
    struct dirent *entry;
    while ((entry = readdir(dir)) && entry->d_name[0] == '.') continue;
    assert_non_null(entry);
    char file[800];
    snprintf(file, sizeof file, "%s/%s", o.cache_dir, entry->d_name);
    spoil(file, -1); /* the footer */
    assert_false(was_cached(path, &o));
    assert_true(was_cached(path, &o));
    spoil(file, 24 + 6); /* an end: 2 examples of 3 tokens go before */
    assert_false(was_cached(path, &o));
    assert_int_equal(truncate(file, 40), 0);
    assert_false(was_cached(path, &o));
    /* what a killed process left is no obstacle */
    char part[810];
    snprintf(part, sizeof part, "%s.part", file);
    FILE *f = fopen(part, "wb");
    assert_non_null(f);
    fclose(f);
    assert_int_equal(unlink(file), 0);
    assert_false(was_cached(path, &o));
    assert_true(was_cached(path, &o));
    assert_false(path_exists(part));
    closedir(dir);
}

/* A limit on file sizes stands for the full disk. */
static void a_full_disk_is_said_and_leaves_nothing(void **state) {
    (void)state;
    struct dataset_options o = options_for(chat);
    o.cache_dir = tiny_mkdir("full");
    char *text = long_text(3000);
    const char *path = tiny_write_text("full.txt", text);
    struct rlimit before, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = (struct rlimit){10000, before.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    struct dataset *d;
    struct error e = {0};
    int err = dataset_open(&d, path, &o, &e);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(err, -(int)ERR_IO);
    assert_names(e.message, o.cache_dir);
    assert_int_equal(rmdir(o.cache_dir), 0); /* it is empty */
    free(text);
}

static void a_file_that_changes_meanwhile_is_refused(void **state) {
    (void)state;
    const char *path = tiny_write_text("moving.jsonl", GOOD GOOD);
    struct records r;
    const struct record *records;
    size_t n;
    struct error e = {0};
    assert_int_equal(records_open(&r, path, NULL, &e), 0);
    assert_int_equal(records_next(&r, &records, &n, &e), 0);
    assert_int_equal(n, 2);
    assert_int_equal(records_check(&r, &e), 0);
    FILE *f = fopen(path, "a");
    assert_non_null(f);
    assert_true(fputs(GOOD, f) >= 0);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(records_check(&r, &e), -(int)ERR_BAD_FILE);
    assert_names(e.message, "was changed while it was read");
    records_close(&r);
}

/* What is learnt of a conversation is what its assistant says, and the ends of those turns. */
static void published_conversations_teach_the_assistants_turns(void **state) {
    (void)state;
    const char *shared = shared_path("tokenizers/smollm2/tokenizer.json"); /* has ChatML */
    struct tokenizer *t = shared ? open_tokenizer_at(shared) : NULL;
    const char *path = shared_path("datasets/fms_multi_turn_chat.jsonl");
    if (!t || !path) {
        tokenizer_free(t);
        return;
    }
    struct dataset_options o = options_for(t);
    o.seq_len = 8192;
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    struct dataset *d = open_data(path, &o);
    struct dataset_epoch *ep = in_file_order(d, 8192);
    struct shown_rows *r = rows_new();
    char *line = NULL;
    size_t capacity = 0;
    for (int64_t i = 0; getline(&line, &capacity, file) > 0; i++) {
        struct error e = {0};
        json_t *json = json_read(line, strlen(line), &e), *message;
        size_t k;
        struct buf learnt = {0};
        json_array_foreach(json_object_get(json, "messages"), k, message) {
            if (strcmp(json_string_value(json_object_get(message, "role")), "assistant")) continue;
            const char *text = json_string_value(json_object_get(message, "content"));
            buf_add(&learnt, text, strlen(text));
            buf_add(&learnt, "<|im_end|>", 10);
        }
        struct buf shown = {0};
        dataset_epoch_rows(ep, i, &r->rows);
        for (int32_t row = 0; row < r->rows.n_rows; row++)
            if (r->rows.labels[row] >= 0) show_token(t, r->rows.labels[row], &shown);
        assert_int_equal(shown.size, learnt.size);
        assert_memory_equal(shown.data, learnt.data, learnt.size);
        buf_free(&shown);
        buf_free(&learnt);
        json_decref(json);
    }
    free(line);
    fclose(file);
    free(r);
    dataset_epoch_free(ep);
    dataset_close(d);
    tokenizer_free(t);
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
        cmocka_unit_test(each_form_becomes_its_examples),
        cmocka_unit_test(a_tokenizer_that_marks_word_starts_gets_the_same_masks),
        cmocka_unit_test(line_ends_marks_blank_lines_and_arrays_are_taken),
        cmocka_unit_test(broken_records_are_named_with_their_line),
        cmocka_unit_test(files_that_are_none_are_refused),
        cmocka_unit_test(skip_bad_counts_what_it_passes_over),
        cmocka_unit_test(long_examples_are_cut_and_counted),
        cmocka_unit_test(a_text_file_is_learnt_whole_whatever_the_pieces),
        cmocka_unit_test(rounds_and_threads_do_not_show),
        cmocka_unit_test(the_cache_serves_the_same_data_and_options_alone),
        cmocka_unit_test(a_spoilt_cache_is_made_again),
        cmocka_unit_test(a_full_disk_is_said_and_leaves_nothing),
        cmocka_unit_test(a_file_that_changes_meanwhile_is_refused),
        cmocka_unit_test(published_conversations_teach_the_assistants_turns),
    };
    return cmocka_run_group_tests(tests, open_tokenizers, close_tokenizers);
}
