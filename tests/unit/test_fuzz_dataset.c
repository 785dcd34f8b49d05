/* Data files of strangers: ours with bytes changed. Whatever they have become, opening them ends
 * with examples that hold together or with an error that names the file. The same seed gives the
 * same files; TPD_FUZZ_SECONDS makes it run on. */
#include "tests/unit/mutate.h"
#include "tests/unit/train_data.h"

#include <time.h>

enum { ROUNDS = 2000, SEQ = 24 };

static const char *const seeds[][2] = {
    {"f.jsonl", "{\"text\":\"A red\"}\n\n{\"text\":\"t\\u00e9 \\ud83d\\ude00\"}\r\n"},
    {"f.jsonl",
     "{\"prompt\":\"Q\",\"completion\":\" yes\"}\n{\"prompt\":\"\",\"completion\":\"a\"}"},
    {"f.jsonl", "{\"messages\":[{\"role\":\"user\",\"content\":\"U\"},{\"role\":\"assistant\","
                "\"content\":\"A\"}]}\n"},
    {"f.jsonl", "{\"input_ids\":[0,5,6,7],\"labels\":[-100,-100,6,7]}\n{\"input_ids\":[1,5]}\n"},
    {"f.json",
     "[{\"instruction\":\"Go\",\"input\":\"\",\"output\":\"ok\"},\n {\"instruction\":\"x\","
     "\"output\":\"y\"}]\n"},
    {"f.txt", "\xEF\xBB\xBFOne line\nand another, l\xC3\xA4nger one\r\n\r\nend"},
};

static void check_rows(const struct dataset_rows *r) {
    assert_in_range(r->n_rows, 1, 2 * SEQ);
    assert_in_range(r->n_trained, 1, r->n_rows);
    for (int32_t t = 0; t < r->n_rows; t++) {
        assert_in_range(r->ids[t], 0, 351);
        assert_true(r->labels[t] >= -1 && r->labels[t] < 352);
        assert_int_equal(r->pos[t], t - r->first[t]);
        assert_in_range(r->len[t], r->pos[t] + 1, SEQ);
    }
}

static void use(const struct dataset *d) {
    struct dataset_view v = {
        .data = d, .seed = rnd(9), .seq_len = SEQ, .rows = 2 * SEQ, .packing = rnd(2)};
    struct dataset_epoch *ep = open_epoch(&v, (int64_t)rnd(3));
    struct shown_rows *r = rows_new();
    struct dataset_report report;
    int64_t rows = 0, trained = 0;
    for (int64_t i = 0; i < dataset_epoch_batches(ep); i++) {
        dataset_epoch_rows(ep, i, &r->rows);
        check_rows(&r->rows);
        rows += r->rows.n_rows;
        trained += r->rows.n_trained;
    }
    dataset_report(d, &report);
    assert_int_equal(rows, report.tokens);
    assert_int_equal(trained, report.trained_tokens);
    dataset_epoch_free(ep);
    free(r);
}

static bool go_on(int round, time_t start) {
    const char *seconds = getenv("TPD_FUZZ_SECONDS");
    return seconds ? time(NULL) - start < atoi(seconds) : round < ROUNDS;
}

static void mutated_data_files_are_learnt_or_refused(void **state) {
    (void)state;
    static struct bytes seed_bytes, file;
    struct tokenizer *t = open_tokenizer_at(chat_tokenizer);
    int opened = 0;
    time_t start = time(NULL);
    for (int round = 0; go_on(round, start); round++) {
        const char *const *s = seeds[rnd(sizeof seeds / sizeof *seeds)];
        struct dataset_options o = options_for(t);
        struct dataset *d;
        struct error e = {0};
        seed_bytes.n = 0;
        put(&seed_bytes, s[1], strlen(s[1]));
        mutate(&file, &seed_bytes);
        o.seq_len = SEQ;
        o.skip_bad = rnd(2);
        o.on_completion = rnd(2);
        const char *path = tiny_write(s[0], file.data, file.n);
        if (dataset_open(&d, path, &o, &e) == 0) {
            use(d);
            dataset_close(d);
            opened++;
        } else {
            assert_int_equal(e.kind, ERR_BAD_FILE);
            assert_names(e.message, path);
        }
    }
    print_message("%d opened\n", opened);
    tokenizer_free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(mutated_data_files_are_learnt_or_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
