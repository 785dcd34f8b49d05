/* What a text may go on with, and how many tokens of it are guessed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "serve/guess.h"

static void it_copies_what_followed_the_last_tokens_before(void **state) {
    (void)state;
    struct guesser g = {0};
    token_id text[] = {1, 2, 3, 4, 5, 6, 9, 2, 3, 4}, out[GUESS_MOST];
    assert_int_equal(guess_next(&g, text, 10, 8, out), 4);
    const token_id want[] = {5, 6, 9, 2};
    assert_memory_equal(out, want, sizeof want);
}

static void the_latest_place_counts(void **state) {
    (void)state;
    struct guesser g = {0};
    token_id text[] = {1, 2, 3, 7, 1, 2, 3, 8, 1, 2, 3}, out[GUESS_MOST];
    assert_int_equal(guess_next(&g, text, 11, 1, out), 1);
    assert_int_equal(out[0], 8);
}

static void what_it_copies_may_run_into_itself(void **state) {
    (void)state;
    struct guesser g = {0};
    token_id text[] = {5, 5, 5, 5}, out[GUESS_MOST];
    assert_int_equal(guess_next(&g, text, 4, 4, out), 4);
    for (int i = 0; i < 4; i++) assert_int_equal(out[i], 5);
}

static void nothing_is_guessed_of_a_new_or_short_text(void **state) {
    (void)state;
    struct guesser g = {0};
    token_id text[] = {1, 2, 3, 4, 5, 6}, out[GUESS_MOST];
    for (size_t n = 0; n <= 6; n++) assert_int_equal(guess_next(&g, text, n, 8, out), 0);
    assert_int_equal(guess_next(&(struct guesser){0}, (token_id[]){1, 1, 1, 1}, 4, 0, out), 0);
}

static void more_is_guessed_while_it_comes_true_and_less_when_not(void **state) {
    (void)state;
    struct guesser g = {0};
    token_id text[200], out[GUESS_MOST];
    size_t n = 100;
    for (size_t i = 0; i < 200; i++) text[i] = (token_id)(i % 5);
    int first = guess_next(&g, text, n, 8, out);
    n += (size_t)first + 1; /* all of it, and the token that its last row gave */
    int second = guess_next(&g, text, n, 8, out);
    assert_true(second > first);
    assert_int_equal(g.n_guessed, first);
    assert_int_equal(g.n_accepted, first);
    /* Nothing came true: one token more, and then a rest that grows with every failure. */
    n += 1;
    int looks = 0;
    while (guess_next(&g, text, n++, 8, out) == 0) looks++;
    assert_int_equal(looks, 1);
    looks = 0;
    while (guess_next(&g, text, n++, 8, out) == 0) looks++;
    assert_int_equal(looks, 3);
    assert_true(g.n_accepted < g.n_guessed);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_copies_what_followed_the_last_tokens_before),
        cmocka_unit_test(the_latest_place_counts),
        cmocka_unit_test(what_it_copies_may_run_into_itself),
        cmocka_unit_test(nothing_is_guessed_of_a_new_or_short_text),
        cmocka_unit_test(more_is_guessed_while_it_comes_true_and_less_when_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
