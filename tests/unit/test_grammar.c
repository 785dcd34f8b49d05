/* Promises of serve/grammar.h about texts: what a GBNF grammar has and has not, and what is refused. */
#include "serve/grammar.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct grammar *grammar_of(const char *text) {
    struct grammar *g;
    struct error e = {0};
    if (grammar_from_gbnf(&g, text, strlen(text), &e) != 0) fail_msg("%s: %s", text, e.message);
    return g;
}

/* texts: NULL-terminated; those before "|" are of the grammar, those behind are not. */
static void check_texts(const char *grammar, const char *const *texts) {
    struct grammar *g = grammar_of(grammar);
    bool wanted = true;
    for (; *texts; texts++) {
        if (strcmp(*texts, "|") == 0) wanted = false;
        else if (grammar_accepts(g, *texts, strlen(*texts)) != wanted)
            fail_msg("%s: \"%s\" is %s", grammar, *texts, wanted ? "not taken" : "taken");
    }
    grammar_release(g);
}

#define CHECK(grammar, ...) check_texts(grammar, (const char *const[]){__VA_ARGS__, NULL})

static void literals_classes_and_escapes_are_bytes(void **state) {
    (void)state;
    CHECK("root ::= \"a\\n\\\"\\x41\\u00e9\\U0001F600\"", "a\n\"Aé😀", "|", "a", "", "a\n\"Aé😀 ");
    CHECK("root ::= [a-cx\\]-]", "a", "b", "c", "x", "]", "-", "|", "d", "ab", "");
    CHECK("root ::= [^a-z\\n]", "A", "é", "😀", "-", "|", "m", "\n", "\xc3", "");
    CHECK("root ::= [α-ω]+", "αβγ", "ω", "|", "a", "Ω", "\xce");
    CHECK("root ::= .", "x", "\n", "€", "|", "", "xx", "\xff", "\xed\xa0\x80");
    CHECK("root ::= [\\u0001-\\U0010FFFF]", "\xef\xbf\xbf", "\xf4\x8f\xbf\xbf", "\xdf\xbf", "|",
          "\xf4\x90\x80\x80", "\xc0\x80", "\xe0\x80\x80");
}

static void repetitions_count(void **state) {
    (void)state;
    CHECK("root ::= \"a\"? \"b\"* \"c\"+", "c", "abbcc", "bc", "|", "", "ab", "aac");
    CHECK("root ::= \"a\"{2}", "aa", "|", "a", "aaa");
    CHECK("root ::= \"a\"{2,}", "aa", "aaaaaaa", "|", "a", "");
    CHECK("root ::= \"a\"{,2}", "", "aa", "|", "aaa");
    CHECK("root ::= \"x\" ([a-c] \"y\"){2,3} \"z\"", "xaybyz", "xaybycyz", "|", "xayz", "xayayayayz");
    CHECK("root ::= \"a\"{0}", "", "|", "a");
}

/* Over COPY_SIZE a repetition is counted instead of copied. */
static void long_repetitions_count_as_short_ones_do(void **state) {
    (void)state;
    char text[2001];
    struct grammar *g = grammar_of("root ::= \"<\" [a-z]{100,1000} \">\"");
    memset(text, 'a', sizeof text);
    text[0] = '<';
    for (size_t n = 95; n <= 1005; n += n == 105 ? 890 : 1) {
        text[n + 1] = '>';
        assert_int_equal(grammar_accepts(g, text, n + 2), n >= 100 && n <= 1000);
        text[n + 1] = 'a';
    }
    grammar_release(g);
    g = grammar_of("root ::= (\"[\" [0-9]{50,60} \"]\"){30,}");
    char *many = malloc(40 * 62);
    size_t size = 0;
    for (int i = 1; i <= 35; i++) {
        many[size++] = '[';
        memset(many + size, '7', 55);
        size += 55;
        many[size++] = ']';
        assert_int_equal(grammar_accepts(g, many, size), i >= 30);
    }
    many[3] = ']';
    assert_false(grammar_begins(g, many, size));
    free(many);
    grammar_release(g);
}

static void lists_of_words_are_long_and_share_beginnings(void **state) {
    (void)state;
    CHECK("root ::= \"a\" | \"ab\" | \"abc\" | \"abd\" | \"b\" | \"ab\"", "a", "ab", "abc", "abd", "b", "|", "", "abe",
          "c", "bc");
    static char text[60000];
    size_t size = (size_t)sprintf(text, "root ::= \"w0\"");
    for (int i = 1; i < 5000; i++) size += (size_t)sprintf(text + size, "|\"w%d\"", i * 7);
    struct grammar *g = grammar_of(text);
    assert_true(grammar_accepts(g, "w34986", 6));
    assert_false(grammar_accepts(g, "w34987", 6));
    assert_true(grammar_begins(g, "w3499", 5));
    assert_false(grammar_begins(g, "w35001", 6));
    grammar_release(g);
}

static void rules_may_contain_themselves(void **state) {
    (void)state;
    CHECK("root ::= \"(\" root* \")\"", "()", "(()())", "((((()))))", "|", "(", "())", "");
    CHECK("root ::= list\nlist ::= item (\",\" list)?\nitem ::= [0-9]+ | \"[\" list \"]\"", "1",
          "1,2,[3,[4]],5", "|", "1,", "[1", "[]");
    CHECK("root ::= \"a\" root \"b\" | \"\"", "", "aabb", "|", "aab", "ba");
}

static void notation_is_read_as_others_write_it(void **state) {
    (void)state;
    CHECK("# a comment\nroot ::= (\n  \"a\" # one\n | \"b\"\n) tail\r\n\r\ntail ::=\n  \"c\"\n  | \"d\"\n",
          "ac", "bd", "|", "a", "cd");
    CHECK("root ::= a-b a_c\na-b ::= \"1\"\na_c ::= \"2\"", "12", "|", "1");
    CHECK("root ::= \"a\" |\n \"b\"", "a", "b", "|", "c");
    CHECK("root ::= \"\" | \"x\"", "", "x", "|", "y");
    CHECK("ws ::= [ \\t\\n]*\nroot ::= ws \"x\" ws", "x", " \n x  ", "|", "x y");
}

static void a_text_in_many_readings_stays_bounded(void **state) {
    (void)state;
    struct grammar *g = grammar_of("root ::= \"a\" root \"b\" | \"a\" root \"c\" | \"d\"");
    assert_true(grammar_accepts(g, "aaadbcb", 7));
    /* Twenty of them can be read in a million ways: given up, but not wrong. */
    assert_false(grammar_begins(g, "aaaaaaaaaaaaaaaaaaaaaaa", 23));
    assert_true(grammar_accepts(g, "aaadbcb", 7));
    grammar_release(g);
}

static void refuse(const char *text, int line, int column, const char *why) {
    struct grammar *g;
    struct error e = {0};
    if (grammar_from_gbnf(&g, text, strlen(text), &e) == 0) fail_msg("taken: %s", text);
    char place[48];
    snprintf(place, sizeof place, "line %d, column %d", line, column);
    if (e.kind != ERR_PARAMS || !strstr(e.message, why) || (line && !strstr(e.message, place)))
        fail_msg("%s: %s (wanted %s, %s)", text, e.message, place, why);
}

static void what_is_wrong_is_told_with_its_place(void **state) {
    (void)state;
    refuse("", 1, 1, "no rule named root");
    refuse("root ::= \"abc", 1, 10, "closing \"");
    refuse("root ::= [abc", 1, 10, "closing ]");
    refuse("root ::= (\"a\"", 1, 10, "closing )");
    refuse("root ::= \"a\")", 1, 13, "nothing was opened");
    refuse("root ::= \"\\q\"", 1, 12, "unknown escape");
    refuse("root ::= [z-a]", 1, 11, "ends before it begins");
    refuse("root ::= \"a\"{3,2}", 1, 13, "ends before it begins");
    refuse("root ::= \"a\"{x}", 1, 14, "number");
    refuse("root ::= * \"a\"", 1, 10, "expected a literal");
    refuse("root ::= \"a\"\nroot ::= \"b\"", 2, 1, "there already");
    refuse("root ::= \"a\"\n  € ::= \"b\"", 2, 3, "expected a rule");
    refuse("root ::= thing", 1, 10, "thing is used but not defined");
    refuse("root ::= root \"a\" | \"b\"", 1, 1, "left recursion");
    refuse("root ::= a\na ::= \"x\"? b\nb ::= a \"y\" | \"z\"", 1, 10, "left recursion");
    refuse("root ::= \"a\" root", 1, 1, "has no end");
    refuse("root ::= [^\\x00-\\U0010FFFF]", 1, 10, "no character");
    refuse("root ::= \"\\uD800\"", 1, 13, "surrogate");
    refuse("root ::= (\"a\"?){1000}", 0, 0, "too large");
    refuse("root ::= ((((\"ab\" [a-z]){7}){60}){60}){60} ((((\"ab\" [a-z]){7}){60}){60}){60} x\nx ::= (", 2, 7, "closing )");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(literals_classes_and_escapes_are_bytes),
        cmocka_unit_test(repetitions_count),
        cmocka_unit_test(long_repetitions_count_as_short_ones_do),
        cmocka_unit_test(lists_of_words_are_long_and_share_beginnings),
        cmocka_unit_test(rules_may_contain_themselves),
        cmocka_unit_test(notation_is_read_as_others_write_it),
        cmocka_unit_test(a_text_in_many_readings_stays_bounded),
        cmocka_unit_test(what_is_wrong_is_told_with_its_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
