/* Data files that people really have: what is of a known form is taken whole, everything else is
 * refused with the line and the reason. Skipped where the shared inputs are absent. */
#include "tests/unit/train_data.h"

static struct tokenizer *chat;

static int try_open(struct dataset **d, const char *path, bool skip_bad, struct error *e) {
    struct dataset_options o = options_for(chat);
    o.skip_bad = skip_bad;
    o.vocab = 128256; /* some files bring ids of larger vocabularies */
    return dataset_open(d, path, &o, e);
}

/* Every example once, labels where they belong, nothing beyond seq_len: whatever the file was. */
static void check_rows(const struct dataset *d, const struct dataset_report *report) {
    struct shown_rows *s = rows_new();
    struct dataset_view view = {
        .data = d, .seq_len = 256, .rows = 1024, .packing = true, .seed = 7};
    struct dataset_epoch *ep = open_epoch(&view, 3);
    int64_t rows = 0, trained = 0, examples = 0;
    for (int64_t i = 0; i < dataset_epoch_batches(ep); i++) {
        dataset_epoch_rows(ep, i, &s->rows);
        const struct dataset_rows *r = &s->rows;
        assert_in_range(r->n_rows, 1, 1024);
        for (int32_t t = 0; t < r->n_rows; t++) {
            assert_int_equal(r->pos[t], t - r->first[t]);
            assert_in_range(r->len[t], 1, 256);
            assert_in_range(t, r->first[t], r->first[t] + r->len[t] - 1);
            if (r->labels[t] >= 0 && r->pos[t] + 1 < r->len[t])
                assert_int_equal(r->labels[t], r->ids[t + 1]);
            examples += r->pos[t] == 0;
            trained += r->labels[t] >= 0;
        }
        rows += r->n_rows;
    }
    assert_int_equal(examples, report->examples);
    assert_int_equal(rows, report->tokens);
    assert_int_equal(trained, report->trained_tokens);
    dataset_epoch_free(ep);
    free(s);
}

static const struct {
    const char *name, *form; /* NULL: refused */
    int64_t records;         /* 0: not known beforehand */
    const char *fault;
} files[] = {
    {"axolotl_alpaca.json", "instruction", 2, NULL},
    {"torchtune_alpaca_tiny.json", "instruction", 0, NULL},
    {"fms_single_turn_chat.jsonl", "messages", 0, NULL},
    {"fms_multi_turn_chat.jsonl", "messages", 0, NULL},
    {"openai_toy_chat_fine_tuning.jsonl", "messages", 0, NULL},
    {"fms_twitter_complaints_tokenized_with_maykeye_tinyllama_v0.jsonl", "input_ids", 0, NULL},
    {"axolotl_conversation.tokenized_llama2chat.json", "input_ids", 0, NULL},
    {"tinyshakespeare.txt", "document", 0, NULL},
    {"ng_more.txt", "document", 0, NULL},
    {"HumanEval.jsonl", NULL, 0, "line 1: a record with the keys task_id"},
    {"HumanEval.jsonl.gz", NULL, 0, "packed with gzip"},
    {"fms_empty_data.json", NULL, 0, "no records"},
    {"fms_malformatted_data.json", NULL, 0, "line 1"},
    {"axolotl_conversation.json", NULL, 0, "line 1: the record ends too early"},
    {"fms_twitter_complaints_input_output.jsonl", NULL, 0, "line 1: a record with the keys ID"},
    {"gsm8k_test.jsonl", NULL, 0, "question"},
    {"torchtune_chat_tiny.json", NULL, 0, "conversations"},
    {"fms_multi_turn_chat_conversations.jsonl", NULL, 0, "line 1: a record with the keys conversations"},
    {"fms_multi_turn_chat_granite_instruct.jsonl", NULL, 0, "line 3: \"tools\""},
    {"fms_twitter_complaints_small.json", NULL, 0, "line 2: a record with the keys Tweet text"},
    {"fms_twitter_complaints_small.jsonl", NULL, 0, "line 1: a record with the keys Tweet text"},
    {"human_eval_example_samples.jsonl", NULL, 0, "line 1: a record with the keys task_id, completion"},
    {"instructlab_dk.jsonl", NULL, 0, "line 1: a record with the keys user_input, reference"},
    {"torchtune_hh_rlhf_tiny.json", NULL, 0, "line 1: a record with the keys chosen, rejected"},
    {"torchtune_instruct_tiny.json", NULL, 0, "line 2: a record with the keys instruction, response"},
    {"torchtune_stack_exchange_paired_tiny.json", NULL, 0, "line 1: a record with the keys question"},
};

static void real_files_are_taken_or_refused_with_the_reason(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char name[200];
        snprintf(name, sizeof name, "datasets/%s", files[i].name);
        const char *path = shared_path(name);
        if (!path) continue;
        struct dataset *d;
        struct error e = {0};
        int err = try_open(&d, path, false, &e);
        if (err && files[i].form) fail_msg("%s", e.message);
        if (!err && !files[i].form) fail_msg("%s was taken", files[i].name);
        if (err) {
            assert_int_equal(e.kind, ERR_BAD_FILE);
            assert_names(e.message, files[i].name);
            assert_names(e.message, files[i].fault);
            continue;
        }
        struct dataset_report report;
        dataset_report(d, &report);
        assert_string_equal(report.form, files[i].form);
        if (files[i].records) assert_int_equal(report.examples + report.untrained, files[i].records);
        check_rows(d, &report);
        dataset_close(d);
    }
}

/* Records that broke other programs: an error with its line, or taken; never a silent loss. */
static void cases_that_broke_others_do_not_break_us(void **state) {
    (void)state;
    static const struct {
        const char *text, *fault; /* NULL: taken */
    } cases[] = {
        {"{\"text\":\"a\"}{\"text\":\"b\"}\n", "line 1"},
        {"{\"text\":\"a\tb\"}\n", "line 1"},
        {"{\"text\":\"a\"}\n{\"text\":\"b", "line 2"},
        {"{\n  \"text\": \"a\"\n}\n", "line 1"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},"
         "{\"role\":\"assistant\",\"content\":null}]}\n",
         "line 1: messages[1]"},
        {"{\"text\":\"{\\\"location\\\": \\\"current\\\"}\"}\n", NULL},
        {"\xff\xfe{", "UTF-16"},
        {"{\"text\":\"one\\r\\ntwo\"}\r\n", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dataset *d;
        struct error e = {0};
        char name[32];
        snprintf(name, sizeof name, "case%zu.jsonl", i);
        int err = try_open(&d, tiny_write_text(name, cases[i].text), false, &e);
        if (!err) dataset_close(d);
        if (!err && cases[i].fault) fail_msg("case %zu was taken", i);
        if (err && !cases[i].fault) fail_msg("case %zu: %s", i, e.message);
        if (err) assert_names(e.message, cases[i].fault);
    }
}

static int open_chat(void **state) {
    (void)state;
    chat = open_tokenizer_at(chat_tokenizer);
    return 0;
}

static int close_chat(void **state) {
    (void)state;
    tokenizer_free(chat);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(real_files_are_taken_or_refused_with_the_reason),
        cmocka_unit_test(cases_that_broke_others_do_not_break_us),
    };
    return cmocka_run_group_tests(tests, open_chat, close_chat);
}
