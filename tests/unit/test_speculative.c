/* What is drawn with a draft model's proposals has the distribution of what is drawn without: one token, and
 * pairs of tokens, under every filter. The statistic that says so refuses rules that are nearly right. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "serve/sampler.h"

enum { VOCAB = 7, DRAFT_VOCAB = 6, RUNS = 40000 };

enum rule { RIGHT, ALWAYS_ACCEPTS, DRAWS_P_INSTEAD, NO_RULE };

/* The models: logits of the token after `last`, and those of a draft model that is of another opinion. */
static void target_row(token_id last, float row[VOCAB]) {
    for (int i = 0; i < VOCAB; i++) row[i] = (float)((last * 5 + i * i * 3) % 7) * 0.5f;
}

static void draft_row(token_id last, float row[DRAFT_VOCAB]) {
    for (int i = 0; i < DRAFT_VOCAB; i++) row[i] = (float)((last * 3 + i * 5) % 6) * 0.4f;
}

/* The token behind history [n], of which `position` are drawn. */
static token_id draw_next(struct sampler *s, const token_id *history, size_t n, uint64_t position, enum rule rule) {
    float p[VOCAB], q[DRAFT_VOCAB];
    struct token_report report;
    struct proposal proposal;
    struct error e = {0};
    target_row(history[n - 1], p);
    draft_row(history[n - 1], q);
    if (rule != NO_RULE &&
        sampler_propose(s, q, DRAFT_VOCAB, history, n, 0, position, &proposal, &e))
        fail_msg("%s", e.message);
    int err = rule == NO_RULE ? sampler_pick(s, p, history, n, position, &report, &e)
                              : sampler_judge(s, p, history, n, position, &proposal, &report, &e);
    if (err) fail_msg("%s", e.message);
    if (rule == ALWAYS_ACCEPTS) return proposal.id;
    if (rule == DRAWS_P_INSTEAD && report.id != proposal.id) {
        target_row(history[n - 1], p);
        if (sampler_pick(s, p, history, n, position, &report, &e)) fail_msg("%s", e.message);
    }
    return report.id;
}

/* How often each pair of tokens came. */
static void count_pairs(const struct sampling *how, uint64_t first_seed, enum rule rule,
                        int counts[VOCAB * VOCAB]) {
    memset(counts, 0, VOCAB * VOCAB * sizeof *counts);
    for (uint64_t run = 0; run < RUNS; run++) {
        struct sampling own = *how;
        struct sampler *s;
        struct error e = {0};
        token_id text[4] = {2, 4};
        own.seed = first_seed + run;
        if (sampler_new(&s, &own, VOCAB, &e)) fail_msg("%s", e.message);
        text[2] = draw_next(s, text, 2, 0, rule);
        text[3] = draw_next(s, text, 3, 1, rule);
        counts[text[2] * VOCAB + text[3]]++;
        sampler_free(s);
    }
}

static void first_of(const int pairs[VOCAB * VOCAB], int counts[VOCAB]) {
    for (int i = 0; i < VOCAB; i++) {
        counts[i] = 0;
        for (int k = 0; k < VOCAB; k++) counts[i] += pairs[i * VOCAB + k];
    }
}

/* Chi-square of two samples of equal size, as a number of standard deviations (Wilson and Hilferty). */
static double deviation(const int *a, const int *b, int n) {
    double chi = 0, cells = 0;
    for (int i = 0; i < n; i++) {
        if (a[i] + b[i] == 0) continue;
        double d = a[i] - b[i];
        chi += d * d / (a[i] + b[i]);
        cells++;
    }
    double free = cells > 1 ? cells - 1 : 1;
    return (cbrt(chi / free) - (1 - 2 / (9 * free))) / sqrt(2 / (9 * free));
}

static struct sampling kind(double temperature) {
    struct sampling s;
    sampling_default(&s);
    s.temperature = temperature;
    return s;
}

/* Of pairs and of first tokens, the one that deviates more. */
static double worst(const struct sampling *how, enum rule rule) {
    int plain[VOCAB * VOCAB], ahead[VOCAB * VOCAB], plain_first[VOCAB], ahead_first[VOCAB];
    count_pairs(how, 1, NO_RULE, plain);
    count_pairs(how, 1000000, rule, ahead);
    first_of(plain, plain_first);
    first_of(ahead, ahead_first);
    double pairs = deviation(plain, ahead, VOCAB * VOCAB), first = deviation(plain_first, ahead_first, VOCAB);
    return pairs > first ? pairs : first;
}

/* Seeds are fixed: it passes always or never. One in 30 000 right samples deviates by 4. */
static void proposals_leave_the_distribution_as_it_is(void **state) {
    (void)state;
    struct sampling kinds[6] = {kind(1), kind(0.7), kind(1), kind(1.3), kind(1), kind(1)};
    kinds[1].top_k = 4;
    kinds[2].top_p = 0.8;
    kinds[3].min_p = 0.15;
    kinds[4].repetition_penalty = 1.5;
    kinds[4].presence_penalty = 0.4;
    kinds[5].logit_bias = (struct logit_bias[]){{6, 1.5f}, {1, -2}};
    kinds[5].n_logit_bias = 2;
    for (int i = 0; i < 6; i++) {
        double d = worst(&kinds[i], RIGHT);
        if (d > 4) fail_msg("kind %d deviates by %.1f", i, d);
    }
}

static void wrong_rules_are_seen(void **state) {
    (void)state;
    struct sampling how = kind(1);
    assert_true(worst(&how, ALWAYS_ACCEPTS) > 10);
    assert_true(worst(&how, DRAWS_P_INSTEAD) > 10);
}

static void greedy_tokens_are_the_models_own(void **state) {
    (void)state;
    struct sampling how = kind(0);
    struct sampler *s;
    struct error e = {0};
    assert_int_equal(sampler_new(&s, &how, VOCAB, &e), 0);
    for (token_id last = 0; last < VOCAB; last++)
        assert_int_equal(draw_next(s, &last, 1, 0, RIGHT), draw_next(s, &last, 1, 0, NO_RULE));
    sampler_free(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(proposals_leave_the_distribution_as_it_is),
        cmocka_unit_test(wrong_rules_are_seen),
        cmocka_unit_test(greedy_tokens_are_the_models_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
