/* Promises of serve/sampler.h and of sampling_check. */
#include "serve/sampler.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_VOCAB = 4096 };

/* The token chosen from logits after history; logits are not touched. */
static token_id pick(const struct sampling *p, const float *logits, int32_t vocab,
                     const token_id *history, size_t n, uint64_t position,
                     struct token_report *report) {
    float row[MAX_VOCAB];
    memcpy(row, logits, (size_t)vocab * sizeof *row);
    struct sampler *s;
    struct token_report own;
    struct error e = {0};
    assert_int_equal(sampler_new(&s, p, vocab, &e), 0);
    if (!report) report = &own;
    assert_int_equal(sampler_pick(s, row, history, n, position, report, &e), 0);
    sampler_free(s);
    assert_in_range(report->id, 0, vocab - 1);
    return report->id;
}

static struct sampling greedy(void) {
    struct sampling p;
    sampling_default(&p);
    p.temperature = 0;
    return p;
}

static uint32_t noise_state;
static double noise(void) {
    noise_state = noise_state * 1664525u + 1013904223u;
    return noise_state / 4294967296.0;
}

static void fill_noise(float *logits, int32_t n, double scale) {
    for (int32_t i = 0; i < n; i++)
        logits[i] = (float)((noise() + noise() + noise() - 1.5) * scale);
}

/* --- random numbers -------------------------------------------------------------------------- */

static void bits_are_philox_and_depend_on_their_key_alone(void **state) {
    (void)state;
    /* Philox 4x32-10 of counter 0 and key 0 begins with 6627e8d5 e169c58d (published test vector). */
    assert_true(sampler_bits(0, 0) == 0xe169c58d6627e8d5ull);
    assert_true(sampler_bits(7, 3) == sampler_bits(7, 3));
    assert_true(sampler_bits(7, 3) != sampler_bits(7, 4));
    assert_true(sampler_bits(7, 3) != sampler_bits(8, 3));
    assert_true(sampler_bits(7, 3) != sampler_bits(7ull << 32, 3));
}

/* Chi-square of n draws against the expected shares; what has no share must not come. */
static double chi_square(const struct sampling *p, const float *logits, const double *share,
                         int32_t vocab, int n) {
    int count[MAX_VOCAB] = {0};
    for (int i = 0; i < n; i++) count[pick(p, logits, vocab, NULL, 0, (uint64_t)i, NULL)]++;
    double sum = 0;
    for (int32_t v = 0; v < vocab; v++) {
        if (share[v] == 0) {
            assert_int_equal(count[v], 0);
            continue;
        }
        double expected = share[v] * n, d = count[v] - expected;
        sum += d * d / expected;
    }
    return sum;
}

/* With 5 degrees of freedom 20.5 is passed once in a thousand; seeds are fixed. */
static const float six[6] = {2.0f, 1.0f, 0.0f, 1.5f, -1.0f, 0.5f};

static void shares_of(const float *logits, int n, double temperature, double *share) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += share[i] = exp(logits[i] / temperature);
    for (int i = 0; i < n; i++) share[i] /= sum;
}

static void draws_follow_the_softmax_at_every_temperature(void **state) {
    (void)state;
    for (int t = 0; t < 3; t++) {
        struct sampling p;
        sampling_default(&p);
        p.seed = 11 + (uint64_t)t;
        p.temperature = (const double[]){0.5, 1, 3}[t];
        double share[6];
        shares_of(six, 6, p.temperature, share);
        assert_true(chi_square(&p, six, share, 6, 20000) < 20.5);
    }
}

static void keep_only(double *share, int n, double least) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += share[i] = share[i] >= least ? share[i] : 0;
    for (int i = 0; i < n; i++) share[i] /= sum;
}

static void filters_cut_and_the_rest_keeps_its_shares(void **state) {
    (void)state;
    struct sampling p;
    double share[6];
    /* Shares at temperature 1, best first: tokens 0, 3, 1, 5, 2, 4. */
    shares_of(six, 6, 1, share);
    double third = share[1], second = share[3];

    sampling_default(&p);
    p.seed = 5;
    p.top_k = 3;
    keep_only(share, 6, third);
    assert_true(chi_square(&p, six, share, 6, 20000) < 20.5);

    sampling_default(&p);
    p.seed = 6;
    shares_of(six, 6, 1, share);
    p.top_p = share[0] + share[3] + share[1] - 0.01;
    keep_only(share, 6, third);
    assert_true(chi_square(&p, six, share, 6, 20000) < 20.5);

    sampling_default(&p);
    p.seed = 7;
    p.min_p = 0.5;
    shares_of(six, 6, 1, share);
    keep_only(share, 6, second);
    assert_true(chi_square(&p, six, share, 6, 20000) < 20.5);
}

static void top_p_looks_at_what_top_k_left(void **state) {
    (void)state;
    struct sampling p;
    sampling_default(&p);
    p.top_k = 2;
    /* Of the two left, the first has e^2 / (e^2 + e^1.5) = 0.62. */
    p.top_p = 0.6;
    for (uint64_t i = 0; i < 300; i++) assert_int_equal(pick(&p, six, 6, NULL, 0, i, NULL), 0);
    p.top_p = 0.65;
    bool second = false;
    for (uint64_t i = 0; i < 300; i++) second |= pick(&p, six, 6, NULL, 0, i, NULL) == 3;
    assert_true(second);
}

/* --- cuts against a full sort ---------------------------------------------------------------- */

struct sorted {
    float logit;
    token_id id;
};
static int by_rank(const void *a, const void *b) {
    const struct sorted *x = a, *y = b;
    if (x->logit != y->logit) return x->logit < y->logit ? 1 : -1;
    return x->id < y->id ? -1 : 1;
}

/* The ids that may be drawn, by sorting. Returns how many. */
static int allowed_by_sorting(const struct sampling *p, const float *logits, int n, bool *allowed) {
    struct sorted all[MAX_VOCAB];
    for (int i = 0; i < n; i++) all[i] = (struct sorted){logits[i], i};
    qsort(all, (size_t)n, sizeof *all, by_rank);
    int kept = p->top_k > 0 && p->top_k < n ? (int)p->top_k : n;
    double sum = 0, part = 0;
    for (int i = 0; i < kept; i++) sum += exp((all[i].logit - all[0].logit) / p->temperature);
    memset(allowed, 0, MAX_VOCAB * sizeof *allowed);
    int count = 0;
    for (int i = 0; i < kept; i++) {
        double w = exp((all[i].logit - all[0].logit) / p->temperature);
        if (i > 0 && p->top_p < 1 && part >= p->top_p * sum) break;
        part += w;
        if (w < p->min_p) continue;
        allowed[all[i].id] = true;
        count++;
    }
    return count;
}

static void cuts_are_those_of_a_full_sort(void **state) {
    (void)state;
    noise_state = 3;
    for (int round = 0; round < 60; round++) {
        float logits[MAX_VOCAB];
        int n = 1 + (int)(noise() * 600);
        fill_noise(logits, n, round % 3 ? 6 : 0.01);
        /* Many equals, zeros of both signs and far outliers. */
        if (round % 4 == 0)
            for (int i = 0; i < n; i++) logits[i] = roundf(logits[i]);
        if (round % 5 == 0) logits[n / 2] = -1e20f;
        struct sampling p;
        sampling_default(&p);
        p.seed = (uint64_t)round;
        p.temperature = 0.2 + 2 * noise();
        p.top_k = round % 2 ? (int64_t)(noise() * 50) : 0;
        p.top_p = round % 7 ? noise() : 1;
        p.min_p = round % 3 == 0 ? noise() * 0.3 : 0;
        bool allowed[MAX_VOCAB], seen[MAX_VOCAB] = {0};
        int count = allowed_by_sorting(&p, logits, n, allowed), found = 0;
        for (uint64_t i = 0; i < 400; i++) {
            token_id id = pick(&p, logits, n, NULL, 0, i, NULL);
            assert_true(allowed[id]);
            found += !seen[id];
            seen[id] = true;
        }
        if (count <= 3) assert_true(found >= 1);
        if (count == 1) assert_int_equal(found, 1);
    }
}

static void extreme_values_never_leave_an_empty_set_or_a_nan(void **state) {
    (void)state;
    noise_state = 9;
    float logits[64];
    fill_noise(logits, 64, 8);
    token_id best = 0;
    for (int i = 1; i < 64; i++)
        if (logits[i] > logits[best]) best = i;
    struct sampling p;
    sampling_default(&p);
    p.temperature = 1e-4;
    p.top_p = 1e-4;
    assert_int_equal(pick(&p, logits, 64, NULL, 0, 0, NULL), best);
    p.top_p = 1;
    for (int i = 0; i < 4; i++) {
        p.temperature = (const double[]){1e-4, 1e-30, 1e-300, 5e-324}[i];
        assert_int_equal(pick(&p, logits, 64, NULL, 0, 0, NULL), best);
    }
    p.temperature = 1;
    p.top_p = 0;
    assert_int_equal(pick(&p, logits, 64, NULL, 0, 0, NULL), best);
    p.top_p = 1;
    p.min_p = 1;
    assert_int_equal(pick(&p, logits, 64, NULL, 0, 0, NULL), best);
    p.min_p = 0;
    p.top_k = 1;
    assert_int_equal(pick(&p, logits, 64, NULL, 0, 0, NULL), best);
    p.temperature = 1e300;
    p.top_k = 1000000;
    pick(&p, logits, 64, NULL, 0, 0, NULL);
    p.top_k = INT64_MAX;
    p.top_p = 0.9999999999;
    pick(&p, logits, 64, NULL, 0, 0, NULL);
    float flat[3] = {3e38f, -3e38f, 3e38f};
    p.temperature = 1e-3;
    assert_int_not_equal(pick(&p, flat, 3, NULL, 0, 0, NULL), 1);
}

static void top_k_off_values_all_mean_no_limit(void **state) {
    (void)state;
    noise_state = 21;
    float logits[64];
    fill_noise(logits, 64, 2);
    struct sampling p;
    sampling_default(&p);
    p.seed = 4;
    for (uint64_t i = 0; i < 50; i++) {
        p.top_k = 0;
        token_id id = pick(&p, logits, 64, NULL, 0, i, NULL);
        for (int k = 0; k < 3; k++) {
            p.top_k = (const int64_t[]){-1, 64, 1000000}[k];
            assert_int_equal(pick(&p, logits, 64, NULL, 0, i, NULL), id);
        }
    }
}

static void greedy_takes_the_lowest_id_of_equals_and_filters_have_no_effect(void **state) {
    (void)state;
    float logits[5] = {1, 7, 3, 7, 7};
    struct sampling p = greedy();
    p.top_p = 0.9;
    p.top_k = 3;
    p.min_p = 0.1;
    assert_int_equal(pick(&p, logits, 5, NULL, 0, 0, NULL), 1);
}

/* --- penalties and bias ---------------------------------------------------------------------- */

/* Whether token 0's penalised logit is over level: token 1 has that level. */
static bool is_over(const struct sampling *p, float logit, float level, const token_id *history,
                    size_t n, size_t n_made) {
    float logits[8] = {logit, level, -1e9f, -1e9f, -1e9f, -1e9f, -1e9f, -1e9f};
    return pick(p, logits, 8, history, n, n_made, NULL) == 0;
}

static void assert_penalised_after(const struct sampling *p, float logit, float expected,
                                   const token_id *history, size_t n, size_t n_made) {
    assert_true(is_over(p, logit, expected - 1e-4f, history, n, n_made));
    assert_false(is_over(p, logit, expected + 1e-4f, history, n, n_made));
}

/* All of the history was generated. */
static void assert_penalised(const struct sampling *p, float logit, float expected,
                             const token_id *history, size_t n) {
    assert_penalised_after(p, logit, expected, history, n, n);
}

static void repetition_penalty_divides_positive_and_multiplies_negative_logits_once(void **state) {
    (void)state;
    struct sampling p = greedy();
    p.repetition_penalty = 1.5;
    assert_penalised(&p, -2, -3, (token_id[]){0}, 1);
    assert_penalised(&p, 3, 2, (token_id[]){0}, 1);
    assert_penalised(&p, 3, 2, (token_id[]){0, 0, 0, 5, 0}, 5);
    assert_penalised(&p, 3, 3, (token_id[]){5, 6}, 2);
}

static void presence_counts_once_and_frequency_every_time(void **state) {
    (void)state;
    struct sampling p = greedy();
    p.presence_penalty = 0.5;
    assert_penalised(&p, 3, 2.5f, (token_id[]){0, 0, 0}, 3);
    p.presence_penalty = 0;
    p.frequency_penalty = 0.25;
    assert_penalised(&p, 3, 2.25f, (token_id[]){0, 0, 0}, 3);
    p.frequency_penalty = -0.25;
    assert_penalised(&p, 3, 3.75f, (token_id[]){0, 0, 0}, 3);
}

static void only_the_repetition_penalty_counts_the_prompt(void **state) {
    (void)state;
    struct sampling p = greedy();
    const token_id history[] = {0, 0, 5, 0}; /* the first three are the prompt */
    p.repetition_penalty = 1.5;
    assert_penalised_after(&p, 3, 2, history, 3, 0);
    p.repetition_penalty = 1;
    p.presence_penalty = 0.5;
    assert_penalised_after(&p, 3, 3, history, 3, 0);
    assert_penalised_after(&p, 3, 2.5f, history, 4, 1);
    p.frequency_penalty = 0.25;
    assert_penalised_after(&p, 3, 2.25f, history, 4, 1);
    p.penalty_last_n = 2;
    assert_penalised_after(&p, 3, 3, (token_id[]){5, 0, 6, 6}, 4, 3);
}

static void penalties_look_at_the_last_n_tokens_as_the_history_grows(void **state) {
    (void)state;
    struct sampling p = greedy();
    p.frequency_penalty = 1;
    p.penalty_last_n = 2;
    assert_penalised(&p, 9, 9, (token_id[]){0, 0, 5, 6}, 4);
    assert_penalised(&p, 9, 8, (token_id[]){0, 0, 5}, 3);
    p.penalty_last_n = 0;
    assert_penalised(&p, 9, 9, (token_id[]){0, 0}, 2);

    /* One sampler over a whole generation with a window of 2. Logits 1.0 and 0.5, minus 1 for each
     * occurrence in the window: 0, then 1 (0 has 0.0), then 0 (0.0 against -0.5), then, with 1 and
     * 0 in the window, 0 again (0.0 against -0.5), then 1 (window 0 0: -1.0 against 0.5). */
    struct sampler *s;
    struct token_report report;
    p.penalty_last_n = 2;
    assert_int_equal(sampler_new(&s, &p, 3, NULL), 0);
    token_id history[7] = {2, 2};
    const token_id expected[5] = {0, 1, 0, 0, 1};
    for (size_t i = 0; i < 5; i++) {
        float logits[3] = {1.0f, 0.5f, -50.0f};
        assert_int_equal(sampler_pick(s, logits, history, 2 + i, i, &report, NULL), 0);
        assert_int_equal(report.id, expected[i]);
        history[2 + i] = report.id;
    }
    sampler_free(s);
}

static void bias_comes_after_penalties_and_can_ban_and_force(void **state) {
    (void)state;
    struct sampling p = greedy();
    struct logit_bias bias[2] = {{0, -100}, {4, 100}};
    p.logit_bias = bias;
    p.n_logit_bias = 1;
    float logits[5] = {9, 1, 2, 3, -9};
    assert_int_equal(pick(&p, logits, 5, NULL, 0, 0, NULL), 3);
    p.n_logit_bias = 2;
    assert_int_equal(pick(&p, logits, 5, NULL, 0, 0, NULL), 4);
    p.repetition_penalty = 1e6;
    /* -9 * 1e6 + 100 is still far below. */
    assert_int_equal(pick(&p, logits, 5, (token_id[]){4}, 1, 0, NULL), 3);
}

/* --- log-probabilities ----------------------------------------------------------------------- */

static void logprobs_are_the_models_own_and_best_first(void **state) {
    (void)state;
    float logits[6] = {1, 4, 2, 4, -300, 0};
    double sum = 0;
    for (int i = 0; i < 6; i++) sum += exp(logits[i]);
    struct sampling p;
    sampling_default(&p);
    struct logit_bias bias = {2, 100};
    p.logit_bias = &bias;
    p.n_logit_bias = 1;
    p.top_k = 1;
    p.temperature = 0.3;
    p.repetition_penalty = 2;
    p.logprobs = 20;
    struct token_report r;
    assert_int_equal(pick(&p, logits, 6, (token_id[]){2}, 1, 0, &r), 2);
    assert_true(r.has_logprob);
    assert_true(fabs(r.logprob - (2 - log(sum))) < 1e-6);
    assert_int_equal(r.n_top, 6);
    token_id order[6] = {1, 3, 2, 0, 5, 4};
    for (int i = 0; i < 6; i++) assert_int_equal(r.top[i].id, order[i]);
    assert_true(fabs(r.top[0].logprob - (4 - log(sum))) < 1e-6);
    assert_true(r.top[5].logprob == -100);

    p.logprobs = 0;
    pick(&p, logits, 6, (token_id[]){2}, 1, 0, &r);
    assert_true(r.has_logprob);
    assert_int_equal(r.n_top, 0);
    p.logprobs = -1;
    pick(&p, logits, 6, (token_id[]){2}, 1, 0, &r);
    assert_false(r.has_logprob);
}

static void a_scored_token_has_its_logprob_and_alternatives(void **state) {
    (void)state;
    float logits[4] = {0, 0, 0, 0};
    struct token_report r = {0};
    assert_int_equal(logprob_report(logits, 4, 2, 2, &r, NULL), 0);
    assert_int_equal(r.id, 2);
    assert_true(fabs(r.logprob + log(4)) < 1e-6);
    assert_int_equal(r.n_top, 2);
    assert_int_equal(r.top[0].id, 0);
    assert_int_equal(r.top[1].id, 1);
}

static void a_logit_that_is_not_a_number_is_an_error_that_names_it(void **state) {
    (void)state;
    struct sampling p;
    sampling_default(&p);
    struct sampler *s;
    assert_int_equal(sampler_new(&s, &p, 4, NULL), 0);
    for (int i = 0; i < 3; i++) {
        float logits[4] = {0, 1, (const float[]){NAN, INFINITY, -INFINITY}[i], 2};
        struct token_report r;
        struct error e = {0};
        assert_int_equal(sampler_pick(s, logits, NULL, 0, 0, &r, &e), -ERR_DEVICE);
        assert_non_null(strstr(e.message, "token 2"));
        assert_int_equal(logprob_report(logits, 4, 0, 0, &r, &e), -ERR_DEVICE);
    }
    sampler_free(s);
}

/* --- parameters ------------------------------------------------------------------------------ */

static void assert_refused(const struct sampling *p, const char *field) {
    struct error e = {0};
    assert_int_equal(sampling_check(p, 100, &e), -ERR_PARAMS);
    assert_string_equal(e.notes[0].key, "field");
    assert_string_equal(e.notes[0].text, field);
    assert_non_null(strstr(e.message, field));
}

static void parameters_out_of_range_are_refused_by_name(void **state) {
    (void)state;
    struct sampling good, p;
    sampling_default(&good);
    assert_int_equal(sampling_check(&good, 100, NULL), 0);
#define REFUSED(member, value, field)                                                              \
    p = good;                                                                                      \
    p.member = value;                                                                              \
    assert_refused(&p, field)
    REFUSED(temperature, -0.1, "temperature");
    REFUSED(temperature, NAN, "temperature");
    REFUSED(top_p, 1.1, "top_p");
    REFUSED(top_p, -1, "top_p");
    REFUSED(min_p, 2, "min_p");
    REFUSED(repetition_penalty, 0, "repetition_penalty");
    REFUSED(presence_penalty, INFINITY, "presence_penalty");
    REFUSED(max_tokens, -2, "max_tokens");
    REFUSED(penalty_last_n, -2, "penalty_last_n");
    REFUSED(logprobs, 21, "logprobs");
    REFUSED(n_stop, 17, "stop");
#undef REFUSED
    p = good;
    p.stop[0] = (char[]){""};
    p.n_stop = 1;
    assert_refused(&p, "stop");
    p = good;
    p.stop_token_ids = (token_id[]){100};
    p.n_stop_token_ids = 1;
    assert_refused(&p, "stop_token_ids");
    struct logit_bias bias = {-1, 0};
    p = good;
    p.logit_bias = &bias;
    p.n_logit_bias = 1;
    assert_refused(&p, "logit_bias");
    bias = (struct logit_bias){1, NAN};
    assert_refused(&p, "logit_bias");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_are_philox_and_depend_on_their_key_alone),
        cmocka_unit_test(draws_follow_the_softmax_at_every_temperature),
        cmocka_unit_test(filters_cut_and_the_rest_keeps_its_shares),
        cmocka_unit_test(top_p_looks_at_what_top_k_left),
        cmocka_unit_test(cuts_are_those_of_a_full_sort),
        cmocka_unit_test(extreme_values_never_leave_an_empty_set_or_a_nan),
        cmocka_unit_test(top_k_off_values_all_mean_no_limit),
        cmocka_unit_test(greedy_takes_the_lowest_id_of_equals_and_filters_have_no_effect),
        cmocka_unit_test(repetition_penalty_divides_positive_and_multiplies_negative_logits_once),
        cmocka_unit_test(presence_counts_once_and_frequency_every_time),
        cmocka_unit_test(only_the_repetition_penalty_counts_the_prompt),
        cmocka_unit_test(penalties_look_at_the_last_n_tokens_as_the_history_grows),
        cmocka_unit_test(bias_comes_after_penalties_and_can_ban_and_force),
        cmocka_unit_test(logprobs_are_the_models_own_and_best_first),
        cmocka_unit_test(a_scored_token_has_its_logprob_and_alternatives),
        cmocka_unit_test(a_logit_that_is_not_a_number_is_an_error_that_names_it),
        cmocka_unit_test(parameters_out_of_range_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
