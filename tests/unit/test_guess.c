/* What a text may go on with, how many tokens of it are guessed, and from which source. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "serve/guess.h"

static struct guesser ngram(void) {
    return (struct guesser){.terms = {[GUESS_NGRAM] = {true, 0.05, SIZE_MAX}}};
}

static struct guesser draft(double cost) {
    return (struct guesser){.terms = {[GUESS_DRAFT] = {true, cost, SIZE_MAX}}};
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
    guess_look(&g, text, 10, 4);
    const token_id want[] = {5, 6, 9, 2};
    assert_int_equal(g.n, 4);
    assert_memory_equal(g.ids, want, sizeof want);
}

static void the_latest_place_counts(void **state) {
    (void)state;
    struct guesser g = ngram();
    token_id text[] = {1, 2, 3, 7, 1, 2, 3, 8, 1, 2, 3};
    guess_look(&g, text, 11, 1);
    assert_int_equal(g.n, 1);
    assert_int_equal(g.ids[0], 8);
}

static void what_it_copies_may_run_into_itself(void **state) {
    (void)state;
    struct guesser g = ngram();
    token_id text[] = {5, 5, 5, 5};
    guess_look(&g, text, 4, 4);
    assert_int_equal(g.n, 4);
    for (int i = 0; i < 4; i++) assert_int_equal(g.ids[i], 5);
}

static void nothing_is_guessed_of_a_new_or_short_text(void **state) {
    (void)state;
    struct guesser g = ngram();
    token_id text[] = {1, 2, 3, 4, 5, 6};
    for (size_t n = 1; n <= 6; n++) {
        guess_look(&g, text, n, 8);
        assert_int_equal(g.n, 0);
    }
    g = ngram();
    guess_look(&g, (token_id[]){1, 1, 1, 1}, 4, 0);
    assert_int_equal(g.n, 0);
}

static void a_round_is_open_until_it_is_wrong_or_used_up(void **state) {
    (void)state;
    struct guesser g = ngram();
    token_id text[20] = {1, 2, 3, 4, 5, 6, 9, 2, 3, 4};
    guess_look(&g, text, 10, 3);
    assert_int_equal(guess_of(&g, 9), -1);
    assert_int_equal(guess_of(&g, 12), 2);
    assert_int_equal(guess_of(&g, 13), -1);
    guess_decided(&g, 10, 5);
    text[10] = 5;
    guess_look(&g, text, 11, 3); /* as often as one likes */
    guess_look(&g, text, 11, 3);
    assert_int_equal(guess_of(&g, 11), 1);
    guess_decided(&g, 11, 7);
    assert_int_equal(guess_of(&g, 12), -1);
    assert_int_equal(g.n_guessed, 3);
    assert_int_equal(g.n_accepted, 1);
}

static void more_is_guessed_while_it_comes_true_and_less_when_not(void **state) {
    (void)state;
    struct guesser g = draft(0.3);
    size_t n = 10;
    token_id text[1] = {0};
    guess_look(&g, text, n, 8);
    int first = g.wanted;
    assert_in_range(first, 1, GUESS_MOST - 1);
    for (int i = 0; i < 10; i++) {
        n = draft_round(&g, n, 8);
        guess_look(&g, text, n, 8);
    }
    assert_true(g.wanted > first);
    assert_int_equal(g.n_accepted, g.n_guessed);
    int rests = 0;
    for (int i = 0; i < 60; i++) {
        if (g.wanted) n = draft_round(&g, n, 0);
        else n++, rests++;
        guess_look(&g, text, n, 8);
    }
    assert_true(rests > 30);
    /* It looks again from time to time, and is back when it has become better. */
    for (int i = 0; i < 200; i++) {
        if (g.wanted) n = draft_round(&g, n, 8);
        else n++;
        guess_look(&g, text, n, 8);
    }
    assert_true(g.wanted > 1);
}

static void a_look_at_the_same_place_changes_nothing(void **state) {
    (void)state;
    struct guesser g = draft(0.3);
    token_id text[1] = {0};
    guess_look(&g, text, 10, 8);
    size_t n = 10;
    while (g.wanted) {
        n = draft_round(&g, n, 0);
        guess_look(&g, text, n, 8);
    }
    struct guesser before = g;
    for (int i = 0; i < 50; i++) guess_look(&g, text, n, 8);
    assert_memory_equal(&g, &before, sizeof g);
}

/* The row of a last guess that came true gives a token at once, or a step later: no guess stands there. */
static void the_token_behind_a_round_is_not_guessed(void **state) {
    (void)state;
    struct guesser g = draft(0.3);
    token_id text[1] = {0};
    guess_look(&g, text, 10, 2);
    assert_int_equal(g.wanted, 2);
    guess_begin(&g, (token_id[]){1, 1}, 2);
    guess_decided(&g, 10, 1);
    guess_decided(&g, 11, 1);
    guess_look(&g, text, 12, 2);
    assert_int_equal(g.wanted, 0);
    guess_look(&g, text, 13, 2);
    assert_int_equal(g.wanted, 2);
}

static void the_length_follows_rate_and_cost(void **state) {
    (void)state;
    assert_int_equal(guess_best_length(0.05, 0.3), 0);
    assert_int_equal(guess_best_length(1, 0.3), GUESS_MOST);
    assert_int_equal(guess_best_length(1, 1.1), 0);
    for (double rate = 0; rate < 1; rate += 0.05)
        assert_true(guess_best_length(rate, 0.2) >= guess_best_length(rate, 0.4) &&
                    guess_best_length(rate + 0.05, 0.2) >= guess_best_length(rate, 0.2));
}

static void of_two_sources_the_one_that_pays_is_asked(void **state) {
    (void)state;
    struct guesser g = draft(0.3);
    g.terms[GUESS_NGRAM] = (struct guess_terms){true, 0.05, SIZE_MAX};
    token_id text[] = {1, 2, 3, 4, 5, 6, 9, 2, 3, 4};
    guess_look(&g, text, 10, 8); /* the text is cheaper */
    assert_int_equal(g.wanted, 0);
    assert_int_equal(g.source, GUESS_NGRAM);
    assert_true(g.n > 0);
    guess_decided(&g, 10, 99);
    token_id fresh[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    guess_look(&g, fresh, 11, 8); /* and has nothing to say here */
    assert_true(g.wanted > 0);
}

static void nothing_is_guessed_beyond_the_sources_reach(void **state) {
    (void)state;
    struct guesser g = draft(0.1);
    g.terms[GUESS_DRAFT].reach = 12;
    token_id text[1] = {0};
    guess_look(&g, text, 10, 8);
    assert_int_equal(g.wanted, 2);
    draft_round(&g, 10, 1);
    guess_look(&g, text, 12, 8);
    assert_int_equal(g.wanted, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_copies_what_followed_the_last_tokens_before),
        cmocka_unit_test(the_latest_place_counts),
        cmocka_unit_test(what_it_copies_may_run_into_itself),
        cmocka_unit_test(nothing_is_guessed_of_a_new_or_short_text),
        cmocka_unit_test(a_round_is_open_until_it_is_wrong_or_used_up),
        cmocka_unit_test(more_is_guessed_while_it_comes_true_and_less_when_not),
        cmocka_unit_test(a_look_at_the_same_place_changes_nothing),
        cmocka_unit_test(the_token_behind_a_round_is_not_guessed),
        cmocka_unit_test(the_length_follows_rate_and_cost),
        cmocka_unit_test(of_two_sources_the_one_that_pays_is_asked),
        cmocka_unit_test(nothing_is_guessed_beyond_the_sources_reach),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
