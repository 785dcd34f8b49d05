/* Micro-batches: every example once an epoch, none over its bin, none mixed with another; the same
 * for the same seed, epoch and place, in whatever order they are asked for. */
#include "train_data.h"

enum { N = 500, SEQ = 32 };

static struct tokenizer *tokenizer;
static struct dataset *data;

/* Example i is of 2 … 32 rows, ends with i in base 100 and is learnt from the second token on. */
static int open_examples(void **state) {
    (void)state;
    static char text[N * 200];
    size_t at = 0;
    for (int i = 0; i < N; i++) {
        int tokens = 3 + i * 37 % 31;
        at += (size_t)snprintf(text + at, sizeof text - at, "{\"input_ids\":[1");
        for (int k = 3; k < tokens; k++)
            at += (size_t)snprintf(text + at, sizeof text - at, ",%d", k);
        at += (size_t)snprintf(text + at, sizeof text - at, ",%d,%d]}\n", 100 + i / 100,
                               100 + i % 100);
    }
    tokenizer = open_tokenizer_at(chat_tokenizer);
    struct dataset_options o = options_for(tokenizer);
    o.seq_len = SEQ;
    data = open_data(tiny_write("ids.jsonl", text, at), &o);
    return 0;
}

static int close_examples(void **state) {
    (void)state;
    dataset_close(data);
    tokenizer_free(tokenizer);
    return 0;
}

static int rows_of(int example) {
    return 2 + example * 37 % 31;
}

/* Checks the example that begins at row `at`; returns which one it is. */
static int check_one(const struct dataset_rows *r, int32_t at) {
    int32_t len = r->len[at], last = at + len - 1;
    assert_in_range(len, 2, SEQ);
    assert_true(at + len <= r->n_rows);
    int example = (r->ids[last] - 100) * 100 + r->labels[last] - 100;
    assert_in_range(example, 0, N - 1);
    assert_int_equal(len, rows_of(example));
    for (int32_t t = 0; t < len; t++) {
        assert_int_equal(r->first[at + t], at);
        assert_int_equal(r->len[at + t], len);
        assert_int_equal(r->pos[at + t], t);
        if (t + 1 < len) assert_int_equal(r->labels[at + t], r->ids[at + t + 1]);
    }
    return example;
}

struct pass {
    int n; /* examples, in the order they come */
    int order[N];
    int bins;
};

static void walk(const struct dataset_view *view, int64_t number, struct pass *pass) {
    struct dataset_epoch *ep = open_epoch(view, number);
    struct shown_rows *s = rows_new();
    *pass = (struct pass){0};
    for (int64_t i = 0; i < dataset_epoch_batches(ep); i++) {
        dataset_epoch_rows(ep, i, &s->rows);
        assert_in_range(s->rows.n_rows, 1, view->rows);
        assert_int_equal(s->rows.n_trained, s->rows.n_rows);
        int in_batch = 0;
        for (int32_t at = 0; at < s->rows.n_rows; at += s->rows.len[at], in_batch++) {
            assert_true(pass->n < N);
            pass->order[pass->n++] = check_one(&s->rows, at);
        }
        if (!view->packing) assert_true(in_batch <= view->rows / view->seq_len);
    }
    free(s);
    dataset_epoch_free(ep);
}

static void check_complete(const struct pass *a, const struct pass *b) {
    char seen[N] = {0};
    for (int i = 0; i < a->n; i++) assert_int_equal(seen[a->order[i]]++, 0);
    for (int i = 0; b && i < b->n; i++) assert_int_equal(seen[b->order[i]]++, 0);
    assert_int_equal(a->n + (b ? b->n : 0), N);
}

static struct dataset_view view_of(bool packing, double fraction, bool eval, uint64_t seed) {
    return (struct dataset_view){.data = data,
                                 .packing = packing,
                                 .eval_fraction = fraction,
                                 .eval = eval,
                                 .seed = seed,
                                 .seq_len = SEQ,
                                 .rows = 4 * SEQ};
}

static void every_example_comes_once_an_epoch(void **state) {
    (void)state;
    for (int packing = 0; packing < 2; packing++)
        for (int64_t number = 0; number < 3; number++) {
            struct pass train, eval;
            struct dataset_view v = view_of(packing, 0, false, 7);
            walk(&v, number, &train);
            check_complete(&train, NULL);
            v.eval_fraction = 0.1;
            walk(&v, number, &train);
            assert_int_equal(train.n, N - N / 10);
            v.eval = true;
            walk(&v, number, &eval);
            check_complete(&train, &eval);
        }
}

static void orders_follow_seed_and_epoch(void **state) {
    (void)state;
    struct pass a, b;
    struct dataset_view v = view_of(false, 0, false, 7), other = view_of(false, 0, false, 8);
    walk(&v, 0, &a);
    walk(&v, 0, &b);
    assert_memory_equal(&a, &b, sizeof a);
    walk(&v, 1, &b);
    assert_memory_not_equal(a.order, b.order, sizeof a.order);
    walk(&other, 0, &b);
    assert_memory_not_equal(a.order, b.order, sizeof a.order);
    int fixed = 0; /* a shuffle leaves about one in its place */
    for (int i = 0; i < N; i++) fixed += a.order[i] == i;
    assert_in_range(fixed, 0, 8);
}

static void the_eval_part_is_chosen_by_seed_alone(void **state) {
    (void)state;
    struct pass a, b;
    struct dataset_view v = view_of(false, 0.05, true, 7), other = view_of(false, 0.05, true, 8);
    walk(&v, 0, &a);
    walk(&v, 5, &b);
    assert_int_equal(a.n, N / 20);
    assert_memory_equal(&a, &b, sizeof a);
    for (int i = 1; i < a.n; i++) assert_true(a.order[i - 1] < a.order[i]);
    walk(&other, 0, &b);
    assert_memory_not_equal(a.order, b.order, sizeof a.order);
    v.eval_fraction = 1; /* a file of its own for evaluation */
    walk(&v, 0, &a);
    for (int i = 0; i < N; i++) assert_int_equal(a.order[i], i);
}

static void batches_can_be_asked_for_in_any_order(void **state) {
    (void)state;
    struct dataset_view v = view_of(true, 0.05, false, 3);
    struct dataset_epoch *once = open_epoch(&v, 2), *again = open_epoch(&v, 2);
    struct shown_rows *a = rows_new(), *b = rows_new();
    int64_t n = dataset_epoch_batches(once);
    assert_int_equal(n, dataset_epoch_batches(again));
    for (int64_t i = 0; i < n; i++) {
        int64_t k = (i * 17 + 5) % n;
        dataset_epoch_rows(again, (k + 1) % n, &b->rows);
        dataset_epoch_rows(once, k, &a->rows);
        memset(b->at, 0, sizeof b->at);
        memset(a->at, 0, sizeof a->at);
        dataset_epoch_rows(once, k, &a->rows);
        dataset_epoch_rows(again, k, &b->rows);
        assert_int_equal(a->rows.n_rows, b->rows.n_rows);
        assert_memory_equal(a->at, b->at, sizeof a->at);
    }
    free(a);
    free(b);
    dataset_epoch_free(once);
    dataset_epoch_free(again);
}

static void packing_leaves_little_empty(void **state) {
    (void)state;
    struct dataset_view v = view_of(true, 0, false, 1);
    v.rows = SEQ;
    struct dataset_epoch *ep = open_epoch(&v, 0);
    int64_t rows = 0, bins = dataset_epoch_batches(ep);
    for (int i = 0; i < N; i++) rows += rows_of(i);
    assert_true((double)rows / (double)(bins * SEQ) > 0.93);
    dataset_epoch_free(ep);
    v.packing = false;
    ep = open_epoch(&v, 0);
    assert_int_equal(dataset_epoch_batches(ep), N);
    dataset_epoch_free(ep);
}

static void views_that_cannot_be_are_refused(void **state) {
    (void)state;
    struct dataset_epoch *ep;
    struct error e = {0};
    struct dataset_view v = view_of(true, 1, false, 1);
    assert_int_not_equal(dataset_epoch_new(&ep, &v, 0, &e), 0);
    assert_names(e.message, "no examples to train on");
    v = view_of(true, 0, false, 1);
    v.rows = SEQ - 1;
    assert_int_not_equal(dataset_epoch_new(&ep, &v, 0, &e), 0);
    v = view_of(true, 0, false, 1);
    v.seq_len = SEQ - 1;
    assert_int_not_equal(dataset_epoch_new(&ep, &v, 0, &e), 0);
    v = view_of(true, 0, true, 1); /* nothing held out: an epoch without batches */
    ep = open_epoch(&v, 0);
    assert_int_equal(dataset_epoch_batches(ep), 0);
    dataset_epoch_free(ep);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_example_comes_once_an_epoch),
        cmocka_unit_test(orders_follow_seed_and_epoch),
        cmocka_unit_test(the_eval_part_is_chosen_by_seed_alone),
        cmocka_unit_test(batches_can_be_asked_for_in_any_order),
        cmocka_unit_test(packing_leaves_little_empty),
        cmocka_unit_test(views_that_cannot_be_are_refused),
    };
    return cmocka_run_group_tests(tests, open_examples, close_examples);
}
