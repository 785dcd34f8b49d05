/* A file that grows night after night: what is new in it is learnt once, nothing is lost, and what was
 * pinned stays. */
#include "tests/unit/train_data.h"

#include "train/records.h"

#include <sys/stat.h>
#include <unistd.h>

#define RECORD(word) "{\"text\": \"" word "\"}\n"

static struct tokenizer *chat;

/* All examples of d, one after another, to be freed. */
static char *show_all(const struct dataset *d) {
    struct dataset_report report;
    struct buf out = {0};
    dataset_report(d, &report);
    struct dataset_epoch *ep = report.examples ? in_file_order(d, 256) : NULL;
    struct shown_rows *r = rows_new();
    for (int64_t i = 0; i < report.examples; i++) {
        dataset_epoch_rows(ep, i, &r->rows);
        char *shown = show_example(chat, &r->rows);
        buf_add(&out, shown, strlen(shown));
        free(shown);
    }
    buf_add_char(&out, '\0');
    free(r);
    dataset_epoch_free(ep);
    return out.data;
}

/* What one night learns of the file, and where it stands then. */
struct night {
    char *learnt; /* to be freed; NULL: it failed */
    struct dataset_report report;
    struct error error;
};

static struct night a_night(const char *path, const struct data_want *want) {
    struct dataset_options o = options_for(chat);
    struct night night = {0};
    struct dataset *d;
    o.want = *want;
    if (dataset_open(&d, path, &o, &night.error) != 0) return night;
    dataset_report(d, &night.report);
    night.learnt = show_all(d);
    dataset_close(d);
    return night;
}

/* A night of --since-last after one that ended with `known`; what it learnt as text. */
static struct data_part expect_night(const char *path, const struct data_part *known,
                                     bool rewritten, const char *learnt) {
    struct night night = a_night(path, &(struct data_want){.known = *known, .growing = true});
    if (!night.learnt) fail_msg("%s", night.error.message);
    assert_string_equal(night.learnt, learnt);
    assert_int_equal(night.report.rewritten, rewritten);
    free(night.learnt);
    return night.report.part;
}

static void append(const char *path, const char *text) {
    FILE *f = fopen(path, "a");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void a_night_learns_what_the_nights_before_did_not(void **state) {
    (void)state;
    const char *path = tiny_write_text("grows.jsonl", RECORD("ab") RECORD("cd"));
    struct data_part part = expect_night(path, &(struct data_part){0}, false, "<s>{ab</s>}<s>{cd</s>}");
    part = expect_night(path, &part, false, "");
    append(path, "\n \n");
    part = expect_night(path, &part, false, "");
    append(path, RECORD("ef"));
    part = expect_night(path, &part, false, "<s>{ef</s>}");
    assert_int_equal(part.to, 3 * strlen(RECORD("ef")) + 3);
    part = expect_night(path, &part, false, "");
}

static void a_half_written_record_is_left_for_the_next_night(void **state) {
    (void)state;
    const char *path = tiny_write_text("half.jsonl", RECORD("ab") "{\"text\": \"c");
    struct data_part part = expect_night(path, &(struct data_part){0}, false, "<s>{ab</s>}");
    part = expect_night(path, &part, false, "");
    append(path, "d\"}");
    part = expect_night(path, &part, false, "<s>{cd</s>}"); /* an object that is whole needs no newline */
    append(path, "\n{");
    part = expect_night(path, &part, false, "");
    append(path, "\"text\": \"ef\"}\n");
    part = expect_night(path, &part, false, "<s>{ef</s>}");
    path = tiny_write_text("first.jsonl", "{\"te");
    part = expect_night(path, &(struct data_part){0}, false, "");
    append(path, "xt\": \"gh\"}\n");
    expect_night(path, &part, false, "<s>{gh</s>}");
}

static void a_text_is_learnt_up_to_its_last_whole_line(void **state) {
    (void)state;
    const char *path = tiny_write_text("notes.txt", "ab\nc");
    struct data_part part = expect_night(path, &(struct data_part){0}, false, "<s>{ab\n</s>}");
    part = expect_night(path, &part, false, "");
    append(path, "d\nef");
    expect_night(path, &part, false, "<s>{cd\n</s>}");
}

static void a_file_that_was_rotated_or_edited_is_learnt_whole(void **state) {
    (void)state;
    const char *path = tiny_write_text("rotated.jsonl", RECORD("ab") RECORD("cd"));
    struct data_part part = expect_night(path, &(struct data_part){0}, false, "<s>{ab</s>}<s>{cd</s>}");
    tiny_write_text("rotated.jsonl", RECORD("ef")); /* shorter */
    expect_night(path, &part, true, "<s>{ef</s>}");
    tiny_write_text("rotated.jsonl", RECORD("ax") RECORD("cd") RECORD("ef")); /* longer */
    expect_night(path, &part, true, "<s>{ax</s>}<s>{cd</s>}<s>{ef</s>}");
    tiny_write_text("rotated.jsonl", "");
    expect_night(path, &part, true, "");
}

/* Blocks of the hash are a MiB: the known bytes end inside one, at its end, and behind several. */
static void a_big_file_is_known_again_wherever_the_night_ended(void **state) {
    (void)state;
    enum { LINE = 64, BLOCK = 1 << 20 };
    static const int64_t ends[] = {LINE, BLOCK - LINE, BLOCK, BLOCK + LINE, 3 * BLOCK - LINE,
                                   3 * BLOCK};
    const char *path = tiny_path("big.jsonl");
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (int i = 0; i < 4 * BLOCK / LINE; i++)
        fprintf(f, "{\"text\": \"ab\", \"more\": \"%0*d\"}\n", LINE - 27, i);
    assert_int_equal(fclose(f), 0);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, 4 * BLOCK);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        struct records r;
        const struct record *some;
        struct error e = {0};
        size_t n = 0;
        struct data_part pinned = {0, ends[i], 0};
        assert_int_equal(truncate(path, 4 * BLOCK), 0);
        int64_t records = 0;
        struct data_want want = {.pinned = pinned};
        assert_int_equal(records_open(&r, path, &want, &e), 0);
        while (records_next(&r, &some, &n, &e) == 0 && n > 0) records += (int64_t)n;
        assert_int_equal(records, ends[i] / LINE);
        pinned.hash = r.hash;
        records_close(&r);
        want = (struct data_want){.known = pinned, .growing = true};
        assert_int_equal(records_open(&r, path, &want, &e), 0);
        assert_false(r.rewritten);
        assert_int_equal(records_next(&r, &some, &n, &e), 0);
        assert_int_equal(some[0].line, ends[i] / LINE + 1);
        for (records = (int64_t)n; records_next(&r, &some, &n, &e) == 0 && n > 0;)
            records += (int64_t)n;
        assert_int_equal(records, (4 * BLOCK - ends[i]) / LINE);
        assert_int_equal(records_check(&r, &e), 0);
        records_close(&r);
        want.known.hash ^= 1;
        assert_int_equal(records_open(&r, path, &want, &e), 0);
        assert_true(r.rewritten);
        records_close(&r);
    }
}

static void broken_records_that_are_new_are_named_by_their_line_in_the_file(void **state) {
    (void)state;
    const char *path = tiny_write_text("broken.jsonl", RECORD("ab") RECORD("cd"));
    struct data_part part = expect_night(path, &(struct data_part){0}, false, "<s>{ab</s>}<s>{cd</s>}");
    append(path, RECORD("ef") "{\"text\": 5}\n");
    struct night night = a_night(path, &(struct data_want){.known = part, .growing = true});
    assert_null(night.learnt);
    assert_non_null(strstr(night.error.message, "line 4: "));
}

static void an_array_cannot_grow(void **state) {
    (void)state;
    const char *path = tiny_write_text("array.json", "[{\"text\": \"ab\"}]");
    struct night night = a_night(path, &(struct data_want){.growing = true});
    assert_null(night.learnt);
    assert_non_null(strstr(night.error.message, "since_last wants a record a line"));
}

/* A job that was paused goes on with what it began with. */
static void what_was_pinned_stays_whatever_becomes_of_the_file(void **state) {
    (void)state;
    const char *path = tiny_write_text("pinned.jsonl", RECORD("ab") RECORD("cd"));
    struct data_part known = expect_night(path, &(struct data_part){0}, false, "<s>{ab</s>}<s>{cd</s>}");
    append(path, RECORD("ef"));
    struct data_part part = expect_night(path, &known, false, "<s>{ef</s>}");
    struct data_want want = {.pinned = part};
    append(path, RECORD("gh"));
    struct night night = a_night(path, &want);
    assert_string_equal(night.learnt, "<s>{ef</s>}");
    assert_true(night.report.cached);
    free(night.learnt);
    free(a_night(path, &(struct data_want){0}).learnt); /* another job: its cache takes the place */
    night = a_night(path, &want);
    assert_string_equal(night.learnt, "<s>{ef</s>}");
    assert_false(night.report.cached);
    free(night.learnt);
    tiny_write_text("pinned.jsonl", "");
    night = a_night(path, &want); /* gone, but for its cache */
    assert_string_equal(night.learnt, "<s>{ef</s>}");
    free(night.learnt);
    tiny_write_text("pinned.jsonl", RECORD("ab") RECORD("cX") RECORD("ef"));
    free(a_night(path, &(struct data_want){0}).learnt);
    night = a_night(path, &want);
    assert_null(night.learnt);
    assert_non_null(strstr(night.error.message, "no longer the file that the job began with"));
    tiny_write_text("pinned.jsonl", RECORD("ab"));
    night = a_night(path, &want);
    assert_null(night.learnt);
}

/* Somebody appends while the file is read: no harm. Somebody changes what was read: refused. */
static void appending_while_it_is_read_is_no_harm(void **state) {
    (void)state;
    const char *path = tiny_write_text("busy.jsonl", RECORD("ab"));
    struct records r;
    const struct record *some;
    struct error e = {0};
    size_t n;
    for (int edited = 0; edited < 2; edited++) {
        tiny_write_text("busy.jsonl", RECORD("ab"));
        assert_int_equal(records_open(&r, path, &(struct data_want){.growing = true}, &e), 0);
        assert_int_equal(records_next(&r, &some, &n, &e), 0);
        assert_int_equal(n, 1);
        if (edited) tiny_write_text("busy.jsonl", RECORD("xx") RECORD("cd"));
        else append(path, RECORD("cd"));
        assert_int_equal(records_check(&r, &e), edited ? -(int)ERR_BAD_FILE : 0);
        records_close(&r);
    }
}

static void whether_there_is_news_is_found_out_without_a_job(void **state) {
    (void)state;
    const char *path = tiny_write_text("news.jsonl", RECORD("ab"));
    struct data_part part = expect_night(path, &(struct data_part){0}, false, "<s>{ab</s>}");
    assert_false(dataset_has_news(path, &part));
    append(path, "\n\n{\"te");
    assert_false(dataset_has_news(path, &part));
    append(path, "xt\": 1}\n");
    assert_true(dataset_has_news(path, &part));
    tiny_write_text("news.jsonl", RECORD("xx"));
    assert_true(dataset_has_news(path, &part));
    assert_int_equal(unlink(path), 0);
    assert_true(dataset_has_news(path, &part));
}

static int open_tokenizers(void **state) {
    (void)state;
    chat = open_tokenizer_at(chat_tokenizer);
    return 0;
}

static int close_tokenizers(void **state) {
    (void)state;
    tokenizer_free(chat);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_night_learns_what_the_nights_before_did_not),
        cmocka_unit_test(a_half_written_record_is_left_for_the_next_night),
        cmocka_unit_test(a_text_is_learnt_up_to_its_last_whole_line),
        cmocka_unit_test(a_file_that_was_rotated_or_edited_is_learnt_whole),
        cmocka_unit_test(a_big_file_is_known_again_wherever_the_night_ended),
        cmocka_unit_test(broken_records_that_are_new_are_named_by_their_line_in_the_file),
        cmocka_unit_test(an_array_cannot_grow),
        cmocka_unit_test(what_was_pinned_stays_whatever_becomes_of_the_file),
        cmocka_unit_test(appending_while_it_is_read_is_no_harm),
        cmocka_unit_test(whether_there_is_news_is_found_out_without_a_job),
    };
    return cmocka_run_group_tests(tests, open_tokenizers, close_tokenizers);
}
