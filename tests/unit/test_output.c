/* Promises of serve/stop.h and serve/output.h. */
#include "serve/output.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_TEXT = 4096, MAX_TOKENS = 512 };

/* What a client of a stream ends up with. */
struct seen {
    char text[MAX_TEXT];
    size_t size;
    size_t n_tokens, n_pieces;
    int stop;
    char *whole;
};

static void read_piece(struct output *o, struct seen *seen) {
    struct output_piece piece;
    while (output_piece(o, &piece)) {
        assert_int_equal(piece.first_token, seen->n_tokens);
        memcpy(seen->text + seen->size, piece.text, piece.size);
        seen->size += piece.size;
        seen->n_tokens += piece.n_tokens;
        seen->n_pieces++;
    }
}

/* Pushes tokens until a stop string is met or they end; *used is how many were taken. */
static void run(char *const *stops, int n_stops, const char *const *tokens, size_t n,
                struct seen *seen, size_t *used) {
    struct output *o;
    memset(seen, 0, sizeof *seen);
    assert_int_equal(output_new(&o, stops, n_stops, NULL), 0);
    size_t i = 0;
    for (; i < n && output_stop(o) < 0; i++) {
        assert_int_equal(output_push(o, tokens[i], strlen(tokens[i]), NULL), 0);
        read_piece(o, seen);
    }
    output_end(o);
    read_piece(o, seen);
    seen->stop = output_stop(o);
    size_t size;
    seen->whole = output_take(o, &size);
    assert_int_equal(size, seen->size);
    assert_memory_equal(seen->whole, seen->text, size);
    assert_int_equal(seen->n_tokens, i);
    if (used) *used = i;
    output_free(o);
}

#define TOKENS(...)                                                                                \
    (const char *const[]){__VA_ARGS__}, sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *)

static void assert_output(const char *stop, const char *const *tokens, size_t n, const char *text,
                          bool stopped) {
    struct seen seen;
    char *stops[1] = {(char *)stop};
    run(stops, 1, tokens, n, &seen, NULL);
    assert_string_equal(seen.whole, text);
    assert_int_equal(seen.stop, stopped ? 0 : -1);
    free(seen.whole);
}

static void a_token_that_runs_past_the_stop_string_stops(void **state) {
    (void)state;
    assert_output("DE", TOKENS("ABC", "DEF", "GHI"), "ABC", true);
}

static void a_stop_string_inside_one_token_cuts_the_token(void **state) {
    (void)state;
    assert_output("lo w", TOKENS("hello world", "!"), "hel", true);
}

static void a_stop_string_over_several_tokens_sends_nothing_of_itself(void **state) {
    (void)state;
    assert_output("beta gamma", TOKENS("alpha", " beta", " gam", "ma del", "ta"), "alpha ", true);
}

static void a_held_back_tail_comes_at_the_end(void **state) {
    (void)state;
    assert_output("own fox", TOKENS("The quick br", "own"), "The quick brown", false);
}

static void holding_back_keeps_what_is_before_it_whole(void **state) {
    (void)state;
    assert_output("b,c", TOKENS("</think>", "a,", "b", ",c"), "</think>a,", true);
}

static void a_false_start_is_given_out_again(void **state) {
    (void)state;
    assert_output("aab", TOKENS("a", "a", "a", "a", "b", "x"), "aa", true);
    assert_output("aab", TOKENS("a", "a", "c", "a", "a"), "aacaa", false);
}

static void a_stop_string_at_the_very_start_leaves_nothing(void **state) {
    (void)state;
    assert_output("x", TOKENS("x"), "", true);
    assert_output("xyz", TOKENS("x", "y", "z"), "", true);
}

static void a_cut_never_falls_inside_a_character(void **state) {
    (void)state;
    /* e-acute and e-grave share their first byte. */
    assert_output("\xC3\xA8", TOKENS("a\xC3\xA9", "b\xC3\xA8!"),
                  "a\xC3\xA9"
                  "b",
                  true);
}

static void of_two_complete_at_one_byte_the_longest_wins(void **state) {
    (void)state;
    struct seen seen;
    char *stops[3] = {"c", "abc", "bc"};
    run(stops, 3, TOKENS("xab", "cd"), &seen, NULL);
    assert_string_equal(seen.whole, "x");
    assert_int_equal(seen.stop, 1);
    free(seen.whole);
}

static void the_first_to_be_complete_wins_over_one_that_began_before(void **state) {
    (void)state;
    struct seen seen;
    char *stops[2] = {"abcd", "bc"};
    run(stops, 2, TOKENS("xabcd"), &seen, NULL);
    assert_string_equal(seen.whole, "xa");
    assert_int_equal(seen.stop, 1);
    free(seen.whole);
}

static void a_piece_has_the_tokens_whose_text_ends_in_it(void **state) {
    (void)state;
    struct output *o;
    struct output_piece piece;
    char *stops[1] = {"END"};
    assert_int_equal(output_new(&o, stops, 1, NULL), 0);
    assert_false(output_piece(o, &piece));
    /* "aE" is half held: its first letter goes out, the token is counted with its last. */
    output_push(o, "aE", 2, NULL);
    assert_true(output_piece(o, &piece));
    assert_int_equal(piece.size, 1);
    assert_int_equal(piece.n_tokens, 0);
    output_push(o, "", 0, NULL);
    assert_false(output_piece(o, &piece));
    output_push(o, "Nx", 2, NULL);
    assert_true(output_piece(o, &piece));
    assert_int_equal(piece.size, 3);
    assert_int_equal(piece.first_token, 0);
    assert_int_equal(piece.n_tokens, 3);
    /* A token without text waits for a piece that has some, or for the end. */
    output_push(o, "", 0, NULL);
    assert_false(output_piece(o, &piece));
    output_end(o);
    assert_true(output_piece(o, &piece));
    assert_int_equal(piece.size, 0);
    assert_int_equal(piece.n_tokens, 1);
    assert_false(output_piece(o, &piece));
    output_free(o);
}

static void an_echo_goes_out_first_and_is_no_place_for_stop_strings(void **state) {
    (void)state;
    struct output *o;
    struct output_piece piece;
    char *stops[1] = {"ab"};
    assert_int_equal(output_new(&o, stops, 1, NULL), 0);
    output_echo(o, "ab a", 4, NULL);
    assert_true(output_piece(o, &piece));
    assert_int_equal(piece.size, 4);
    assert_int_equal(piece.n_tokens, 0);
    output_push(o, "b", 1, NULL);
    assert_int_equal(output_stop(o), -1);
    output_push(o, "ab", 2, NULL);
    assert_int_equal(output_stop(o), 0);
    size_t size;
    char *text = output_take(o, &size);
    assert_string_equal(text, "ab ab");
    free(text);
    output_free(o);
}

/* --- against a naive search ------------------------------------------------------------------ */

static uint32_t random_state;
static uint32_t random_below(uint32_t n) {
    random_state = random_state * 1664525u + 1013904223u;
    return (uint32_t)((uint64_t)random_state * n >> 32);
}

static void random_word(char *out, size_t size, const char *alphabet) {
    for (size_t i = 0; i < size; i++) out[i] = alphabet[random_below((uint32_t)strlen(alphabet))];
    out[size] = '\0';
}

/* For every end, whether some string ends there; of those the longest. Returns the length of the
 * text before it. */
static size_t naive_cut(const char *text, size_t size, char *const *stops, int n, int *which) {
    *which = -1;
    for (size_t end = 1; end <= size; end++) {
        size_t longest = 0;
        for (int i = 0; i < n; i++) {
            size_t len = strlen(stops[i]);
            if (len > end || len <= longest || memcmp(text + end - len, stops[i], len)) continue;
            longest = len;
            *which = i;
        }
        if (longest) return end - longest;
    }
    return size;
}

/* How much of text may be shown: no suffix of it is a proper prefix of a stop string. */
static size_t naive_safe(const char *text, size_t size, char *const *stops, int n) {
    for (size_t from = 0; from < size; from++)
        for (int i = 0; i < n; i++)
            if (size - from < strlen(stops[i]) && memcmp(text + from, stops[i], size - from) == 0)
                return from;
    return size;
}

static void streams_agree_with_a_naive_search(void **state) {
    (void)state;
    random_state = 1;
    for (int round = 0; round < 3000; round++) {
        const char *alphabet = round % 2 ? "ab" : "abc";
        char words[16][24], *stops[16];
        int n = (int)random_below(5);
        for (int i = 0; i < n; i++) {
            random_word(words[i], 1 + random_below(round % 3 ? 6 : 20), alphabet);
            stops[i] = words[i];
        }
        struct output *o;
        assert_int_equal(output_new(&o, stops, n, NULL), 0);
        char text[MAX_TEXT];
        size_t size = 0;
        struct seen seen = {0};
        while (size < 120 && output_stop(o) < 0) {
            size_t grow = random_below(5);
            random_word(text + size, grow, alphabet);
            output_push(o, text + size, grow, NULL);
            size += grow;
            read_piece(o, &seen);
            if (output_stop(o) < 0) assert_int_equal(seen.size, naive_safe(text, size, stops, n));
        }
        output_end(o);
        read_piece(o, &seen);
        int which;
        size_t cut = naive_cut(text, size, stops, n, &which);
        assert_int_equal(seen.size, cut);
        assert_memory_equal(seen.text, text, cut);
        if (which < 0) assert_int_equal(output_stop(o), -1);
        else assert_string_equal(stops[output_stop(o)], stops[which]);
        output_free(o);
    }
}

static void sixteen_long_strings_of_one_letter_take_linear_time(void **state) {
    (void)state;
    static char words[16][1025];
    char *stops[16];
    for (int i = 0; i < 16; i++) {
        memset(words[i], 'a', 1024);
        words[i][1023] = (char)('b' + i);
        stops[i] = words[i];
    }
    struct output *o;
    assert_int_equal(output_new(&o, stops, 16, NULL), 0);
    struct output_piece piece;
    size_t shown = 0;
    for (int i = 0; i < 1 << 18; i++) {
        output_push(o, "a", 1, NULL);
        while (output_piece(o, &piece)) shown += piece.size;
    }
    assert_int_equal(shown, (1 << 18) - 1023);
    output_free(o);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_token_that_runs_past_the_stop_string_stops),
        cmocka_unit_test(a_stop_string_inside_one_token_cuts_the_token),
        cmocka_unit_test(a_stop_string_over_several_tokens_sends_nothing_of_itself),
        cmocka_unit_test(a_held_back_tail_comes_at_the_end),
        cmocka_unit_test(holding_back_keeps_what_is_before_it_whole),
        cmocka_unit_test(a_false_start_is_given_out_again),
        cmocka_unit_test(a_stop_string_at_the_very_start_leaves_nothing),
        cmocka_unit_test(a_cut_never_falls_inside_a_character),
        cmocka_unit_test(of_two_complete_at_one_byte_the_longest_wins),
        cmocka_unit_test(the_first_to_be_complete_wins_over_one_that_began_before),
        cmocka_unit_test(a_piece_has_the_tokens_whose_text_ends_in_it),
        cmocka_unit_test(an_echo_goes_out_first_and_is_no_place_for_stop_strings),
        cmocka_unit_test(streams_agree_with_a_naive_search),
        cmocka_unit_test(sixteen_long_strings_of_one_letter_take_linear_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
