/* The tokenizer's two tables answer what a plain list would: the vocabulary by id and by piece, up to the last id
 * that may be, and the merges, of which each pair counts once. */
#include "text/merges.h"
#include "text/vocab.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint32_t random_state = 1;

static int32_t below(int32_t n) {
    random_state = random_state * 1664525 + 1013904223;
    return (int32_t)((uint64_t)random_state * (uint64_t)n >> 32);
}

static int piece_of(char *piece, token_id id) { return snprintf(piece, 32, "%s%d", id % 3 ? "a" : "", id); }

static void check_has(const struct vocab *v, token_id id) {
    char piece[32];
    size_t n = (size_t)piece_of(piece, id), size;
    assert_true(vocab_has(v, id));
    assert_int_equal(vocab_find(v, piece, n), id);
    assert_string_equal(vocab_piece(v, id, &size), piece);
    assert_int_equal(size, n);
}

static enum vocab_added add(struct vocab *v, token_id id) {
    char piece[32];
    return vocab_add(v, id, piece, (size_t)piece_of(piece, id));
}

/* Expected to be a few, it becomes many; ids come in no order, and some are holes. */
static void every_piece_has_its_id_up_to_the_last(void **state) {
    enum { MANY = 20000 };
    struct vocab v;
    (void)state;
    assert_true(vocab_init(&v, 3));
    assert_int_equal(vocab_find(&v, "a1", 2), -1);
    for (token_id i = 0; i < MANY; i++) assert_int_equal(add(&v, i * 7 % MANY * 2), VOCAB_ADDED);
    for (token_id id = VOCAB_MAX_ID; id > VOCAB_MAX_ID - 3000; id--) assert_int_equal(add(&v, id), VOCAB_ADDED);
    assert_int_equal(v.n, VOCAB_MAX_ID + 1);
    for (token_id i = 0; i < MANY; i++) {
        check_has(&v, 2 * i);
        assert_false(vocab_has(&v, 2 * i + 1));
    }
    for (token_id id = VOCAB_MAX_ID; id > VOCAB_MAX_ID - 3000; id--) check_has(&v, id);
    assert_int_equal(vocab_find(&v, "nowhere", 7), -1);
    assert_int_equal(add(&v, 4), VOCAB_ID_TAKEN);
    assert_int_equal(vocab_add(&v, 1, "a4", 2), VOCAB_PIECE_TAKEN);
    vocab_free(&v);
}

/* What counts of the pair in the list: its rank, or -1. */
static int rank_in(const struct merge_ids *list, int n, token_id left, token_id right, bool last_counts) {
    int rank = -1;
    for (int i = 0; i < n && (rank < 0 || last_counts); i++)
        if (list[i].left == left && list[i].right == right) rank = i;
    return rank;
}

static void merges_are_found_as_in_their_list(void **state) {
    (void)state;
    for (int round = 0; round < 60; round++) {
        int32_t n_tokens = 1 + below(40);
        int n = round ? below(300) : 0;
        bool last_counts = round % 2;
        struct merge_list list = {0};
        struct merges m;
        for (int i = 0; i < n; i++)
            assert_true(merge_list_add(&list, (struct merge_ids){below(n_tokens), below(n_tokens), below(n_tokens)}));
        assert_true(merges_make(&m, list.at, list.n, n_tokens, last_counts));
        for (token_id left = -1; left <= n_tokens; left++)
            for (token_id right = -1; right <= n_tokens; right++) {
                int rank = rank_in(list.at, n, left, right, last_counts);
                const struct merge *found = merges_find(&m, left, right);
                assert_int_equal(found ? (int)found->rank : -1, rank);
                if (found) assert_int_equal(found->id, list.at[rank].whole);
            }
        merges_free(&m);
        free(list.at);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_piece_has_its_id_up_to_the_last),
        cmocka_unit_test(merges_are_found_as_in_their_list),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
