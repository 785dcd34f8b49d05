/* What a text may go on with, how many tokens of it are guessed, and from which source. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "serve/guess.h"

static struct guess_market market;
static token_id no_text[4096]; /* in which nothing comes twice */

/* Prices as if they had been measured: of a row more, and of a draft model's guess. */
static void set_price(double row, double make) {
    for (size_t i = 0; i < sizeof no_text / sizeof *no_text; i++) no_text[i] = (token_id)i;
    market = (struct guess_market){.priced = true, .price = {.n_sequences = 1}};
    for (int k = 1; k <= GUESS_MOST; k++) market.price.rows[k] = row * k;
    market.price.make[GUESS_DRAFT] = make;
    market.price.catch_up = make / 10;
}

static struct guesser ngram(void) {
    return (struct guesser){.market = &market, .terms = {[GUESS_NGRAM] = {true, true, 0.05, SIZE_MAX}}};
}

/* A draft model that guesses always, at a usual cost. */
static struct guesser draft(double cost) {
    return (struct guesser){.market = &market, .terms = {[GUESS_DRAFT] = {true, true, cost, SIZE_MAX}}};
}

/* Both sources, that guess where it pays. */
static struct guesser choosing(void) {
    return (struct guesser){.market = &market,
                            .terms = {{true, false, 0.05, SIZE_MAX}, {true, false, 0.1, SIZE_MAX}}};
}

/* The draft model guesses 1, 1, … as many as it is asked for, of which the first n_right come true. Returns
 * how many tokens the text has then. */
static size_t draft_round(struct guesser *g, size_t n, int n_right) {
    const token_id ones[GUESS_MOST] = {1, 1, 1, 1, 1, 1, 1, 1};
    int wanted = g->wanted;
    guess_begin(g, ones, wanted);
    for (int i = 0; i < wanted && i < n_right; i++) guess_decided(g, n++, 1);
    guess_decided(g, n++, 2);
    assert_int_equal(guess_of(g, n), -1);
    return n;
}

static void it_copies_what_followed_the_last_tokens_before(void **state) {
    (void)state;
    struct guesser g = ngram();
    token_id text[] = {1, 2, 3, 4, 5, 6, 9, 2, 3, 4};
    guess_look(&g, text, 10, 4, 0);
    const token_id want[] = {5, 6, 9, 2};
    assert_int_equal(g.n, 4);
    assert_memory_equal(g.ids, want, sizeof want);
}

static void the_latest_place_counts(void **state) {
    (void)state;
    struct guesser g = ngram();
    token_id text[] = {1, 2, 3, 7, 1, 2, 3, 8, 1, 2, 3};
    guess_look(&g, text, 11, 1, 0);
    assert_int_equal(g.n, 1);
    assert_int_equal(g.ids[0], 8);
}

static void what_it_copies_may_run_into_itself(void **state) {
    (void)state;
    struct guesser g = ngram();
    token_id text[] = {5, 5, 5, 5};
    guess_look(&g, text, 4, 4, 0);
    assert_int_equal(g.n, 4);
    for (int i = 0; i < 4; i++) assert_int_equal(g.ids[i], 5);
}

static void nothing_is_guessed_of_a_new_or_short_text(void **state) {
    (void)state;
    struct guesser g = ngram();
    token_id text[] = {1, 2, 3, 4, 5, 6};
    for (size_t n = 1; n <= 6; n++) {
        guess_look(&g, text, n, 8, 0);
        assert_int_equal(g.n, 0);
    }
    g = ngram();
    guess_look(&g, (token_id[]){1, 1, 1, 1}, 4, 0, 0);
    assert_int_equal(g.n, 0);
}

static void a_round_is_open_until_it_is_wrong_or_used_up(void **state) {
    (void)state;
    struct guesser g = ngram();
    token_id text[20] = {1, 2, 3, 4, 5, 6, 9, 2, 3, 4};
    guess_look(&g, text, 10, 3, 0);
    assert_int_equal(guess_of(&g, 9), -1);
    assert_int_equal(guess_of(&g, 12), 2);
    assert_int_equal(guess_of(&g, 13), -1);
    guess_decided(&g, 10, 5);
    text[10] = 5;
    guess_look(&g, text, 11, 3, 0); /* as often as one likes */
    guess_look(&g, text, 11, 3, 0);
    assert_int_equal(guess_of(&g, 11), 1);
    guess_decided(&g, 11, 7);
    assert_int_equal(guess_of(&g, 12), -1);
    assert_int_equal(g.n_guessed, 3);
    assert_int_equal(g.n_accepted, 1);
}

static void more_is_guessed_while_it_comes_true_and_one_at_least(void **state) {
    (void)state;
    struct guesser g = draft(0.3);
    size_t n = 10;
    guess_look(&g, no_text, n, 8, 0);
    int first = g.wanted;
    assert_in_range(first, 1, GUESS_MOST - 1);
    for (int i = 0; i < 10; i++) {
        n = draft_round(&g, n, 8);
        guess_look(&g, no_text, n, 8, 0);
    }
    assert_true(g.wanted > first);
    assert_int_equal(g.n_accepted, g.n_guessed);
    for (int i = 0; i < 60; i++) {
        n = draft_round(&g, n, 0);
        guess_look(&g, no_text, n, 8, 0);
        assert_true(g.wanted > 0);
    }
    assert_int_equal(g.wanted, 1);
}

/* Texts of 1000 tokens each, `right` guesses of a round coming true; their cost beside that of plain steps. */
static double cost_of_texts(int n_texts, int right, size_t n_prompt) {
    double cost = 0;
    for (int text = 0; text < n_texts; text++) {
        struct guesser g = choosing();
        size_t n = n_prompt, read = 0;
        while (n < n_prompt + 1000) {
            guess_look(&g, no_text, n, 1000, n - read);
            cost += 1;
            if (!g.wanted) {
                n++;
                continue;
            }
            cost += market.price.rows[g.wanted] + market.price.make[GUESS_DRAFT] * g.wanted;
            cost += market.price.catch_up * (double)(n - read);
            n = draft_round(&g, n, right);
            read = n - 1;
        }
    }
    return cost / (1000 * n_texts);
}

static void what_never_comes_true_costs_next_to_nothing(void **state) {
    (void)state;
    static const struct {
        double row, make;
        size_t n_prompt;
    } cases[] = {{0.15, 0.1, 10}, {0.6, 0.1, 300}, {0.05, 0.02, 10}, {1, 1, 2000}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        set_price(cases[i].row, cases[i].make);
        double cost = cost_of_texts(10, 0, cases[i].n_prompt);
        if (cost > 1.02) fail_msg("case %zu costs %.3f of plain generation", i, cost);
    }
}

static void what_comes_true_is_used_where_it_pays_and_only_there(void **state) {
    (void)state;
    set_price(0.1, 0.1);
    assert_true(cost_of_texts(10, 8, 10) < 0.4);
    set_price(0.02, 0.01);
    assert_true(cost_of_texts(10, 8, 400) < 0.2);
    /* A draft model as slow as the model itself, all of whose guesses come true. */
    set_price(0.3, 1);
    assert_true(cost_of_texts(10, 8, 10) < 1.02);
    /* Rows that are as dear as steps: nothing can be won. */
    set_price(1, 0.1);
    assert_true(cost_of_texts(10, 8, 10) < 1.02);
}

/* What became of others' guesses is where a new sequence begins. */
static void all_sequences_learn_of_each_other_and_a_bad_source_is_tried_again(void **state) {
    (void)state;
    set_price(0.15, 0.1);
    struct guesser g = choosing();
    assert_true(guess_will_ask(&g));
    cost_of_texts(3, 0, 10);
    assert_false(guess_will_ask(&g));
    double cost = cost_of_texts(20, 8, 10); /* it has become better */
    assert_true(cost < 0.8);
    assert_true(guess_will_ask(&g));
}

static void who_may_choose_waits_for_prices_and_who_must_does_not(void **state) {
    (void)state;
    set_price(0.01, 0.01);
    market.priced = false;
    struct guesser may = choosing(), must = draft(0.3);
    guess_look(&may, no_text, 10, 8, 0);
    guess_look(&must, no_text, 10, 8, 0);
    assert_int_equal(may.wanted, 0);
    assert_true(must.wanted > 0);
    /* And is not steered by them. */
    int usual = must.wanted;
    set_price(10, 10);
    must = draft(0.3);
    guess_look(&must, no_text, 10, 8, 0);
    assert_int_equal(must.wanted, usual);
}

/* Reading a long text is worth it for many tokens, not for few. */
static void a_draft_model_catches_up_where_enough_follows(void **state) {
    (void)state;
    set_price(0.1, 0.1);
    struct guesser g = choosing();
    guess_look(&g, no_text, 500, 5, 499);
    assert_int_equal(g.wanted, 0);
    guess_look(&g, no_text, 501, 1000, 500);
    assert_true(g.wanted > 0);
}

static void a_look_at_the_same_place_changes_nothing(void **state) {
    (void)state;
    set_price(1, 1);
    struct guesser g = choosing();
    guess_look(&g, no_text, 10, 8, 0);
    struct guesser before = g;
    struct guess_market market_before = market;
    for (int i = 0; i < 50; i++) guess_look(&g, no_text, 10, 8, 0);
    assert_memory_equal(&g, &before, sizeof g);
    assert_memory_equal(&market, &market_before, sizeof market);
}

/* The row of a last guess that came true gives a token at once, or a step later: no guess stands there. */
static void the_token_behind_a_round_is_not_guessed(void **state) {
    (void)state;
    struct guesser g = draft(0.3);
    token_id text[1] = {0};
    guess_look(&g, text, 10, 2, 0);
    assert_int_equal(g.wanted, 2);
    guess_begin(&g, (token_id[]){1, 1}, 2);
    guess_decided(&g, 10, 1);
    guess_decided(&g, 11, 1);
    guess_look(&g, text, 12, 2, 0);
    assert_int_equal(g.wanted, 0);
    guess_look(&g, text, 13, 2, 0);
    assert_int_equal(g.wanted, 2);
}

static void of_two_sources_the_one_that_pays_is_asked(void **state) {
    (void)state;
    set_price(0.05, 0.25);
    struct guesser g = choosing();
    token_id text[] = {1, 2, 3, 4, 5, 6, 9, 2, 3, 4};
    guess_look(&g, text, 10, 8, 0); /* the text is cheaper */
    assert_int_equal(g.wanted, 0);
    assert_int_equal(g.source, GUESS_NGRAM);
    assert_true(g.n > 0);
    guess_decided(&g, 10, 99);
    token_id fresh[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    guess_look(&g, fresh, 11, 8, 0); /* and has nothing to say here */
    assert_true(g.wanted > 0);
}

static void nothing_is_guessed_beyond_the_sources_reach(void **state) {
    (void)state;
    struct guesser g = draft(0.1);
    g.terms[GUESS_DRAFT].reach = 12;
    token_id text[1] = {0};
    guess_look(&g, text, 10, 8, 0);
    assert_int_equal(g.wanted, 2);
    draft_round(&g, 10, 1);
    guess_look(&g, text, 12, 8, 0);
    assert_int_equal(g.wanted, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_copies_what_followed_the_last_tokens_before),
        cmocka_unit_test(the_latest_place_counts),
        cmocka_unit_test(what_it_copies_may_run_into_itself),
        cmocka_unit_test(nothing_is_guessed_of_a_new_or_short_text),
        cmocka_unit_test(a_round_is_open_until_it_is_wrong_or_used_up),
        cmocka_unit_test(more_is_guessed_while_it_comes_true_and_one_at_least),
        cmocka_unit_test(what_never_comes_true_costs_next_to_nothing),
        cmocka_unit_test(what_comes_true_is_used_where_it_pays_and_only_there),
        cmocka_unit_test(all_sequences_learn_of_each_other_and_a_bad_source_is_tried_again),
        cmocka_unit_test(who_may_choose_waits_for_prices_and_who_must_does_not),
        cmocka_unit_test(a_draft_model_catches_up_where_enough_follows),
        cmocka_unit_test(a_look_at_the_same_place_changes_nothing),
        cmocka_unit_test(the_token_behind_a_round_is_not_guessed),
        cmocka_unit_test(of_two_sources_the_one_that_pays_is_asked),
        cmocka_unit_test(nothing_is_guessed_beyond_the_sources_reach),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
