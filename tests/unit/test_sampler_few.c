/* Promise of serve/sampler.h: from a row's candidates comes the token that the whole row gives, or none. */
#include "serve/sampler.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { VOCAB_MAX = 3000 };

static uint32_t state = 1;

static double noise(void) {
    state = state * 1664525u + 1013904223u;
    return state / 4294967296.0;
}

static int32_t below(int32_t n) {
    return (int32_t)(noise() * n);
}

static double worth[VOCAB_MAX];

static int better_first(const void *a, const void *b) {
    int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    if (worth[i] != worth[j]) return worth[i] > worth[j] ? -1 : 1;
    return i < j ? -1 : 1;
}

/* By a logit, or by when it arrives in a race: then off by what fp32 may be. */
static double worth_of(float logit, int32_t id, const struct candidates_wish *wish) {
    if (wish->cold == 0) return logit;
    double x = (double)logit * wish->cold, key = race_key(wish->bits, id, x);
    return key + (noise() * 2 - 1) * 0x1p-24 * (fabs(x) + fabs(key) + 100);
}

/* What a device finds; its sums are off by as much as they may be. */
static struct candidates find(const float *row, int32_t vocab, const struct candidates_wish *wish, double off) {
    struct candidates c = {.of = vocab, .n = vocab < CANDIDATES ? vocab : CANDIDATES};
    int32_t order[VOCAB_MAX];
    for (int32_t i = 0; i < vocab; i++) {
        order[i] = i;
        worth[i] = worth_of(row[i], i, wish);
    }
    qsort(order, (size_t)vocab, sizeof *order, better_first);
    for (int32_t i = 0; i < c.n; i++) {
        c.id[i] = order[i];
        c.logit[i] = row[order[i]];
    }
    c.max = row[0];
    for (int32_t i = 1; i < vocab; i++) c.max = fmaxf(c.max, row[i]);
    for (int32_t i = vocab - 1; i >= 0; i--) { /* another order than the host's */
        c.strange |= !isfinite(row[i]);
        for (int s = 0; s < 2; s++) c.sum[s] += exp(((double)row[i] - c.max) * wish->factor[s]);
    }
    c.sum[0] *= off;
    return c;
}

/* Nothing, ties, a sharp row, a flat one. */
static void fill(float *row, int32_t vocab) {
    double scale = pow(10, noise() * 3 - 1.5);
    bool ties = below(3) == 0;
    for (int32_t i = 0; i < vocab; i++) {
        double x = (noise() + noise() + noise() - 1.5) * scale;
        row[i] = (float)(ties ? floor(x * 8) : x);
    }
}

static struct sampling draw_sampling(struct logit_bias *biases, int32_t vocab) {
    static const double temperatures[] = {0, 0.2, 1, 1.7}, top_ps[] = {1, 1, 0, 0.3, 0.9, 0.999};
    static const double min_ps[] = {0, 0, 0.02, 0.3, 1};
    static const int64_t top_ks[] = {0, 0, 1, 40, 128, 129, 500};
    struct sampling p;
    sampling_default(&p);
    p.temperature = temperatures[below(4)];
    p.top_p = top_ps[below(6)];
    p.min_p = min_ps[below(5)];
    p.top_k = top_ks[below(7)];
    p.seed = (uint64_t)below(1000);
    if (below(3) == 0) p.logprobs = below(21);
    if (below(3) == 0) p.repetition_penalty = 0.9 + noise();
    if (below(4) == 0) p.presence_penalty = noise() * 2 - 0.2;
    if (below(4) == 0) p.frequency_penalty = noise() * 2 - 0.2;
    if (below(3) == 0) { /* plain temperature */
        p.top_k = 0;
        p.top_p = 1;
        p.min_p = 0;
    }
    if (below(4) == 0) {
        p.logit_bias = biases;
        p.n_logit_bias = (size_t)below(4);
        for (size_t i = 0; i < p.n_logit_bias; i++)
            biases[i] = (struct logit_bias){below(vocab), (float)(noise() * 12 - 10)};
    }
    return p;
}

static void same_report(const struct token_report *a, const struct token_report *b) {
    assert_int_equal(a->id, b->id);
    assert_int_equal(a->has_logprob, b->has_logprob);
    assert_true(fabsf(a->logprob - b->logprob) <= 1e-6f * fabsf(b->logprob));
    assert_int_equal(a->n_top, b->n_top);
    for (int i = 0; i < a->n_top; i++) {
        assert_int_equal(a->top[i].id, b->top[i].id);
        assert_true(fabsf(a->top[i].logprob - b->top[i].logprob) <= 1e-6f * fabsf(b->top[i].logprob));
    }
}

/* A round: one row, looked at both ways by samplers that have seen the same; true when it was decided. */
static bool decides_alike(void) {
    float row[VOCAB_MAX];
    struct logit_bias biases[4];
    token_id history[60];
    int32_t vocab = below(4) == 0 ? 1 + below(200) : 200 + below(VOCAB_MAX - 200);
    struct sampling p = draw_sampling(biases, vocab);
    struct sampler *few, *whole;
    struct token_report got, want;
    struct logits_wish wish;
    struct error e;
    assert_int_equal(sampler_new(&few, &p, vocab, &e), 0);
    assert_int_equal(sampler_new(&whole, &p, vocab, &e), 0);
    fill(row, vocab);
    for (int i = 0; i < 60; i++) history[i] = below(vocab);
    size_t position = (size_t)below(60);
    sampler_wish(few, position, &wish);
    struct candidates c = find(row, vocab, &wish.few, 1 + (noise() * 2 - 1) * 9e-6);
    int err = wish.whole ? SAMPLER_UNDECIDED : sampler_pick_few(few, &c, history, 60, position, &got);
    assert_int_equal(sampler_pick(whole, row, history, 60, position, &want, &e), 0);
    if (!err) same_report(&got, &want);
    else assert_int_equal(err, SAMPLER_UNDECIDED);
    sampler_free(few);
    sampler_free(whole);
    return !err;
}

static void whatever_candidates_decide_the_whole_row_decides_alike(void **unused) {
    int decided = 0;
    (void)unused;
    for (int i = 0; i < 4000; i++) decided += decides_alike();
    assert_in_range(decided, 1000, 3999); /* neither way is left out */
}

/* A sequence's sampler over some rows, one way or the other. */
static int count_decided(const struct sampling *p, double scale, int n) {
    float row[VOCAB_MAX];
    struct sampler *s;
    struct error e;
    int decided = 0;
    assert_int_equal(sampler_new(&s, p, VOCAB_MAX, &e), 0);
    for (int i = 0; i < n; i++) {
        struct token_report report;
        struct logits_wish wish;
        for (int32_t v = 0; v < VOCAB_MAX; v++) row[v] = (float)((noise() + noise() + noise() - 1.5) * scale);
        sampler_wish(s, (uint64_t)i, &wish);
        struct candidates c = find(row, VOCAB_MAX, &wish.few, 1);
        if (!wish.whole && sampler_pick_few(s, &c, NULL, 0, (uint64_t)i, &report) == 0) decided++;
        else assert_int_equal(sampler_pick(s, row, NULL, 0, (uint64_t)i, &report, &e), 0);
    }
    sampler_free(s);
    return decided;
}

static void what_people_ask_for_is_decided_by_candidates(void **unused) {
    struct sampling p;
    (void)unused;
    sampling_default(&p);
    p.temperature = 0;
    assert_int_equal(count_decided(&p, 1, 50), 50);
    p.temperature = 1;
    p.top_k = 40;
    p.top_p = 0.9;
    assert_int_equal(count_decided(&p, 1, 50), 50);
    p.top_k = 0;
    assert_int_equal(count_decided(&p, 30, 50), 50);
    p.top_p = 1;
    p.min_p = 0.05;
    assert_int_equal(count_decided(&p, 30, 50), 50);
}

/* What a request that sets nothing has, at any temperature that is one; of 1000 rows one may be undecided. */
static void a_draw_from_the_whole_vocabulary_is_decided_by_who_arrives_first(void **unused) {
    static const double temperatures[] = {1, 0.1, 2, 1e-3, 1e6};
    struct sampling p;
    (void)unused;
    sampling_default(&p);
    assert_true(p.temperature == 1 && p.top_p == 1 && p.min_p == 0 && p.top_k <= 0);
    p.logprobs = 0;
    p.presence_penalty = 0.5;
    for (int i = 0; i < 5; i++)
        for (int k = 0; k < 3; k++) {
            p.seed = (uint64_t)(10 * i + k);
            p.temperature = temperatures[i];
            assert_in_range(count_decided(&p, (const double[]){0.01, 1, 20}[k], 100), 99, 100);
        }
}

/* Two tokens that arrive at almost the same time are left to the whole row, and so is a list that ends with one who is
 * about as early as its first: another one may be before it. */
static void a_race_that_is_too_close_is_left_to_the_whole_row(void **unused) {
    struct sampling p;
    struct sampler *s;
    struct token_report report;
    struct logits_wish wish;
    struct error e;
    float row[VOCAB_MAX];
    (void)unused;
    sampling_default(&p);
    assert_int_equal(sampler_new(&s, &p, VOCAB_MAX, &e), 0);
    sampler_wish(s, 5, &wish);
    assert_false(wish.whole);
    for (int32_t i = 0; i < VOCAB_MAX; i++) row[i] = -20;
    for (int32_t i = 0; i < 2; i++) row[i] = (float)(10 - race_key(wish.few.bits, i, 0));
    struct candidates c = find(row, VOCAB_MAX, &wish.few, 1);
    assert_int_equal(sampler_pick_few(s, &c, NULL, 0, 5, &report), SAMPLER_UNDECIDED);
    row[1] -= 4e-5f;
    c = find(row, VOCAB_MAX, &wish.few, 1);
    assert_int_equal(sampler_pick_few(s, &c, NULL, 0, 5, &report), 0);
    assert_int_equal(report.id, 0);
    c.n = 2;
    assert_int_equal(sampler_pick_few(s, &c, NULL, 0, 5, &report), SAMPLER_UNDECIDED);
    c.of = 2; /* which is all there are */
    assert_int_equal(sampler_pick_few(s, &c, NULL, 0, 5, &report), 0);
    sampler_wish(s, 5, &wish); /* it says nothing of the next row */
    assert_false(wish.whole);
    sampler_free(s);
}

static void a_nucleus_that_is_too_wide_is_asked_for_whole_and_not_tried_at_every_row(void **unused) {
    struct sampling p;
    struct sampler *s;
    struct token_report report;
    struct logits_wish wish;
    struct error e;
    float row[VOCAB_MAX] = {0};
    (void)unused;
    sampling_default(&p);
    p.top_p = 0.5;
    assert_int_equal(count_decided(&p, 1, 30), 0);
    assert_int_equal(sampler_new(&s, &p, VOCAB_MAX, &e), 0);
    sampler_wish(s, 0, &wish);
    assert_true(!wish.whole && wish.few.factor[0] == 1 && wish.few.factor[1] == 0 && wish.few.cold == 0);
    struct candidates c = find(row, VOCAB_MAX, &wish.few, 1);
    assert_int_equal(sampler_pick_few(s, &c, NULL, 0, 0, &report), SAMPLER_UNDECIDED);
    int asked = 0;
    for (int i = 0; i < 30; i++) {
        sampler_wish(s, 0, &wish);
        if (!wish.whole) break;
        assert_int_equal(sampler_pick(s, row, NULL, 0, 0, &report, &e), 0);
        asked++;
    }
    assert_in_range(asked, 1, 29);
    sampler_free(s);
}

static void a_row_with_a_logit_that_is_no_number_is_left_to_the_whole_row(void **unused) {
    struct sampling p;
    struct sampler *s;
    struct token_report report;
    struct error e;
    (void)unused;
    sampling_default(&p);
    p.temperature = 0;
    assert_int_equal(sampler_new(&s, &p, 300, &e), 0);
    struct candidates c = {.of = 300, .n = CANDIDATES, .strange = 1};
    assert_int_equal(sampler_pick_few(s, &c, NULL, 0, 0, &report), SAMPLER_UNDECIDED);
    sampler_free(s);
}

/* What a draft model proposes behind other proposals, which are soon forgotten. */
static void proposals_are_alike_too(void **unused) {
    int decided = 0;
    (void)unused;
    for (int i = 0; i < 300; i++) {
        float q[VOCAB_MAX];
        token_id history[20], a, b;
        struct sampling p;
        struct sampler *few, *whole;
        struct logits_wish wish;
        struct error e;
        sampling_default(&p);
        p.temperature = i % 3 ? 0.8 : 0;
        p.top_k = i % 2 ? 50 : 0;
        p.min_p = i % 4 ? 0.1 : 0;
        p.seed = (uint64_t)i;
        if (i % 5 == 0) p.presence_penalty = 0.3;
        assert_int_equal(sampler_new(&few, &p, VOCAB_MAX, &e), 0);
        assert_int_equal(sampler_new(&whole, &p, VOCAB_MAX, &e), 0);
        fill(q, VOCAB_MAX);
        for (int k = 0; k < 20; k++) history[k] = below(VOCAB_MAX);
        sampler_wish(few, 8, &wish);
        struct candidates c = find(q, VOCAB_MAX, &wish.few, 1);
        assert_false(wish.whole);
        if (sampler_propose_few(few, &c, history, 20, 3, 8, &a) == 0) {
            assert_int_equal(sampler_propose(whole, q, VOCAB_MAX, history, 20, 3, 8, &b, &e), 0);
            assert_int_equal(a, b);
            decided++;
        }
        sampler_free(few);
        sampler_free(whole);
    }
    assert_in_range(decided, 150, 300);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whatever_candidates_decide_the_whole_row_decides_alike),
        cmocka_unit_test(what_people_ask_for_is_decided_by_candidates),
        cmocka_unit_test(a_draw_from_the_whole_vocabulary_is_decided_by_who_arrives_first),
        cmocka_unit_test(a_race_that_is_too_close_is_left_to_the_whole_row),
        cmocka_unit_test(a_nucleus_that_is_too_wide_is_asked_for_whole_and_not_tried_at_every_row),
        cmocka_unit_test(a_row_with_a_logit_that_is_no_number_is_left_to_the_whole_row),
        cmocka_unit_test(proposals_are_alike_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
