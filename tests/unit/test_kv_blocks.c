/* Promises of serve/kv_blocks.h. */
#include "serve/kv_blocks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SIZE = 4, ROOM = 32 };

struct held {
    struct kv_table table;
    int32_t room[ROOM];
};

static struct kv_blocks *open_books(int32_t n) {
    struct kv_blocks *kv;
    assert_int_equal(kv_blocks_new(&kv, n, SIZE, NULL), 0);
    return kv;
}

static void start(struct held *h, uint64_t root) {
    h->table = (struct kv_table){h->room, 0, 0, KV_ROOT | root};
}

/* Shares what is there, takes the rest and has it computed. Returns the shared positions. */
static int32_t compute(struct kv_blocks *kv, struct held *h, const int32_t *tokens, int32_t n) {
    int32_t shared = kv_blocks_share(kv, &h->table, tokens, n) * SIZE;
    assert_true(kv_blocks_extend(kv, &h->table, (n + SIZE - 1) / SIZE));
    kv_blocks_name(kv, &h->table, tokens, n);
    return shared;
}

static uint32_t random_state;
static uint32_t random_below(uint32_t n) {
    random_state = random_state * 1664525u + 1013904223u;
    return (uint32_t)((uint64_t)random_state * n >> 32);
}

static const int32_t text[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};

static void full_blocks_are_shared_by_those_who_begin_alike(void **state) {
    (void)state;
    struct kv_blocks *kv = open_books(10);
    struct held a, b, c;
    start(&a, 0), start(&b, 0), start(&c, 0);
    assert_int_equal(compute(kv, &a, text, 14), 0);
    assert_int_equal(compute(kv, &b, text, 10), 8); /* its last two positions are its own */
    assert_int_equal(a.table.blocks[1], b.table.blocks[1]);
    assert_int_not_equal(a.table.blocks[2], b.table.blocks[2]);
    assert_int_equal(kv_blocks_available(kv), 10 - 5);
    int32_t other[12];
    memcpy(other, text, sizeof other);
    other[5] = 99;
    assert_int_equal(compute(kv, &c, other, 12), 4);
    assert_true(kv_blocks_sound(kv, (const struct kv_table *[]){&a.table, &b.table, &c.table}, 3));
    kv_blocks_give(kv, &a.table, false);
    kv_blocks_give(kv, &b.table, false);
    kv_blocks_give(kv, &c.table, false);
    assert_int_equal(kv_blocks_available(kv), 10);
    assert_int_equal(kv_blocks_cached(kv), 3 + 2);
    kv_blocks_free(kv);
}

static void equal_tokens_after_different_beginnings_are_not_shared(void **state) {
    (void)state;
    struct kv_blocks *kv = open_books(10);
    struct held a, b;
    int32_t other[8] = {50, 51, 52, 53, 5, 6, 7, 8};
    start(&a, 0);
    compute(kv, &a, text, 8);
    start(&b, 0);
    assert_int_equal(compute(kv, &b, other, 8), 0);
    kv_blocks_give(kv, &b.table, false);
    start(&b, 7); /* the same text with another adapter */
    assert_int_equal(compute(kv, &b, text, 8), 0);
    kv_blocks_give(kv, &a.table, false);
    kv_blocks_give(kv, &b.table, false);
    kv_blocks_free(kv);
}

static void the_block_unused_for_longest_goes_first_and_ends_before_beginnings(void **state) {
    (void)state;
    struct kv_blocks *kv = open_books(6);
    struct held a, b, c;
    int32_t other[8] = {21, 22, 23, 24, 25, 26, 27, 28}, third[12] = {31, 32};
    start(&a, 0), start(&b, 0), start(&c, 0);
    compute(kv, &a, text, 12);
    kv_blocks_give(kv, &a.table, false);
    compute(kv, &b, other, 8);
    kv_blocks_give(kv, &b.table, false);
    assert_int_equal(kv_blocks_cached(kv), 5);
    assert_true(kv_blocks_extend(kv, &c.table, 3)); /* the empty one, then two of a's end */
    assert_int_equal(kv_blocks_cached(kv), 3);
    start(&a, 0), start(&b, 0);
    assert_int_equal(kv_blocks_share(kv, &a.table, text, 12), 1);
    assert_int_equal(kv_blocks_share(kv, &b.table, other, 8), 2);
    kv_blocks_name(kv, &c.table, third, 12);
    assert_false(kv_blocks_extend(kv, &a.table, 2)); /* all are in use */
    assert_int_equal(a.table.n, 1);
    assert_true(kv_blocks_sound(kv, (const struct kv_table *[]){&a.table, &b.table, &c.table}, 3));
    kv_blocks_give(kv, &a.table, false);
    kv_blocks_give(kv, &b.table, false);
    kv_blocks_give(kv, &c.table, false);
    kv_blocks_free(kv);
}

static void two_that_computed_the_same_end_up_with_one_block(void **state) {
    (void)state;
    struct kv_blocks *kv = open_books(8);
    struct held a, b;
    start(&a, 0), start(&b, 0);
    assert_true(kv_blocks_extend(kv, &a.table, 3) && kv_blocks_extend(kv, &b.table, 3));
    kv_blocks_name(kv, &a.table, text, 9);
    kv_blocks_name(kv, &b.table, text, 9);
    assert_int_equal(kv_blocks_available(kv), 8 - 4);
    assert_memory_equal(a.table.blocks, b.table.blocks, 2 * sizeof(int32_t));
    assert_true(kv_blocks_sound(kv, (const struct kv_table *[]){&a.table, &b.table}, 2));
    kv_blocks_give(kv, &a.table, false);
    kv_blocks_give(kv, &b.table, false);
    kv_blocks_free(kv);
}

static void what_is_not_trusted_is_not_found_again(void **state) {
    (void)state;
    struct kv_blocks *kv = open_books(8);
    struct held a, b;
    start(&a, 0), start(&b, 0);
    compute(kv, &a, text, 12);
    assert_int_equal(compute(kv, &b, text, 8), 8);
    kv_blocks_give(kv, &a.table, true);
    assert_int_equal(kv_blocks_cached(kv), 0);
    start(&a, 0);
    assert_int_equal(kv_blocks_share(kv, &a.table, text, 12), 0);
    assert_true(kv_blocks_sound(kv, (const struct kv_table *[]){&b.table}, 1));
    kv_blocks_give(kv, &b.table, false);
    assert_int_equal(kv_blocks_cached(kv), 0);
    kv_blocks_free(kv);
}

static void wrong_books_are_found(void **state) {
    (void)state;
    struct kv_blocks *kv = open_books(8);
    struct held a;
    start(&a, 0);
    compute(kv, &a, text, 12);
    assert_false(kv_blocks_sound(kv, (const struct kv_table *[]){&a.table, &a.table}, 2));
    assert_false(kv_blocks_sound(kv, NULL, 0));
    assert_true(kv_blocks_sound(kv, (const struct kv_table *[]){&a.table}, 1));
    kv_blocks_give(kv, &a.table, false);
    kv_blocks_free(kv);
}

/* Random lives over few tokens, so that much is shared. A model of the cache says what each block
 * holds: whoever shares one must find its own tokens there. */
static void random_lives_leave_sound_books_and_share_what_is_theirs(void **state) {
    (void)state;
    enum { BLOCKS = 40, N = 10, MOST = 40, ROUNDS = 20000 };
    struct kv_blocks *kv = open_books(BLOCKS);
    struct held held[N];
    const struct kv_table *tables[N];
    int32_t tokens[N][MOST], done[N] = {0}, content[BLOCKS][SIZE];
    int64_t shared = 0;
    random_state = 3;
    for (int i = 0; i < N; i++) tables[i] = &held[i].table, held[i].table = (struct kv_table){0};
    for (int round = 0; round < ROUNDS; round++) {
        int i = (int)random_below(N);
        struct kv_table *t = &held[i].table;
        if (done[i] == 0) {
            for (int k = 0; k < MOST; k++)
                tokens[i][k] = (int32_t)random_below(random_below(4) ? 1 : 3);
            start(&held[i], random_below(2));
            done[i] = kv_blocks_share(kv, t, tokens[i], MOST) * SIZE;
            shared += done[i];
            for (int32_t p = 0; p < done[i]; p++)
                assert_int_equal(content[t->blocks[p / SIZE]][p % SIZE], tokens[i][p]);
            if (done[i] == 0) kv_blocks_give(kv, t, false);
        }
        int32_t n = done[i] + 1 + (int32_t)random_below(9);
        if (n > MOST || random_below(8) == 0 ||
            !kv_blocks_extend(kv, t, (n + SIZE - 1) / SIZE)) {
            kv_blocks_give(kv, t, random_below(9) == 0);
            done[i] = 0;
        } else {
            for (int32_t p = done[i]; p < n; p++)
                content[t->blocks[p / SIZE]][p % SIZE] = tokens[i][p];
            kv_blocks_name(kv, t, tokens[i], n);
            done[i] = n;
        }
        assert_true(kv_blocks_sound(kv, tables, N));
    }
    assert_true(shared > ROUNDS / 10);
    for (int i = 0; i < N; i++) kv_blocks_give(kv, &held[i].table, false);
    assert_int_equal(kv_blocks_available(kv), BLOCKS);
    kv_blocks_free(kv);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(full_blocks_are_shared_by_those_who_begin_alike),
        cmocka_unit_test(equal_tokens_after_different_beginnings_are_not_shared),
        cmocka_unit_test(the_block_unused_for_longest_goes_first_and_ends_before_beginnings),
        cmocka_unit_test(two_that_computed_the_same_end_up_with_one_block),
        cmocka_unit_test(what_is_not_trusted_is_not_found_again),
        cmocka_unit_test(wrong_books_are_found),
        cmocka_unit_test(random_lives_leave_sound_books_and_share_what_is_theirs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
