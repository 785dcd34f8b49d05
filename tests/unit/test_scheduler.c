/* Promises of serve/scheduler.h and serve/kv_blocks.h. */
#include "serve/scheduler.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint32_t random_state;
static uint32_t random_below(uint32_t n) {
    random_state = random_state * 1664525u + 1013904223u;
    return (uint32_t)((uint64_t)random_state * n >> 32);
}

static void every_block_is_free_or_in_one_table(void **state) {
    (void)state;
    enum { BLOCKS = 50, TABLES = 12 };
    struct kv_blocks *kv;
    struct kv_table tables[TABLES] = {0};
    const struct kv_table *all[TABLES];
    for (int i = 0; i < TABLES; i++) all[i] = &tables[i];
    assert_int_equal(kv_blocks_new(&kv, BLOCKS, NULL), 0);
    assert_true(kv_blocks_sound(kv, all, TABLES));
    random_state = 2;
    for (int round = 0; round < 5000; round++) {
        struct kv_table *t = &tables[random_below(TABLES)];
        int32_t before = kv_blocks_available(kv), n = (int32_t)random_below(20);
        if (t->n) {
            kv_blocks_give(kv, t);
            assert_null(t->blocks);
        } else {
            int err = kv_blocks_take(kv, t, n, NULL);
            assert_int_equal(err == 0, n <= before);
            if (err) assert_int_equal(kv_blocks_available(kv), before);
        }
        assert_true(kv_blocks_sound(kv, all, TABLES));
    }
    for (int i = 0; i < TABLES; i++) kv_blocks_give(kv, &tables[i]);
    assert_int_equal(kv_blocks_available(kv), BLOCKS);
    kv_blocks_free(kv);
}

static void taking_more_than_there_is_says_how_much_there_is(void **state) {
    (void)state;
    struct kv_blocks *kv;
    struct kv_table table = {0};
    struct error e = {0};
    assert_int_equal(kv_blocks_new(&kv, 3, NULL), 0);
    assert_int_equal(kv_blocks_take(kv, &table, 4, &e), -ERR_MEMORY);
    assert_int_equal(e.notes[0].number, 4);
    assert_int_equal(e.notes[1].number, 3);
    kv_blocks_free(kv);
}

static void wrong_books_are_found(void **state) {
    (void)state;
    struct kv_blocks *kv;
    struct kv_table a = {0};
    assert_int_equal(kv_blocks_new(&kv, 8, NULL), 0);
    assert_int_equal(kv_blocks_take(kv, &a, 3, NULL), 0);
    struct kv_table twice = a;
    assert_false(kv_blocks_sound(kv, (const struct kv_table *[]){&a, &twice}, 2));
    assert_false(kv_blocks_sound(kv, NULL, 0));
    assert_true(kv_blocks_sound(kv, (const struct kv_table *[]){&a}, 1));
    kv_blocks_give(kv, &a);
    kv_blocks_free(kv);
}

static struct sched_entry entry_of(int32_t n_prompt, int32_t n_positions, uint64_t group) {
    return (struct sched_entry){
        .n_prompt = n_prompt, .n_positions = n_positions, .chunk_rows = 8, .group = group};
}

/* Hands out the next step and takes the entry away when all its positions are done. */
static struct sched_entry *go(struct scheduler *s, struct sched_step *step) {
    struct sched_step own;
    if (!step) step = &own;
    if (!scheduler_next(s, step)) return NULL;
    if (step->first + step->n_rows == step->entry->n_positions) scheduler_remove(s, step->entry);
    return step->entry;
}

static void chunks_depend_on_the_prompt_alone(void **state) {
    (void)state;
    for (int company = 0; company < 4; company++) {
        struct scheduler *s;
        assert_int_equal(scheduler_new(&s, 8, 1000, 4, NULL), 0);
        struct sched_entry e = entry_of(21, 23, 0), others[3];
        for (int i = 0; i < company; i++) {
            others[i] = entry_of(5 + i, 30, 0);
            scheduler_add(s, &others[i], NULL);
        }
        scheduler_add(s, &e, NULL);
        const int32_t expected[][2] = {{0, 8}, {8, 8}, {16, 5}, {21, 1}, {22, 1}};
        size_t seen = 0;
        for (struct sched_step step; seen < 5;) {
            if (go(s, &step) != &e) continue;
            assert_int_equal(step.first, expected[seen][0]);
            assert_int_equal(step.n_rows, expected[seen][1]);
            seen++;
        }
        while (go(s, NULL)) {}
        scheduler_free(s);
    }
}

static void live_ones_take_turns(void **state) {
    (void)state;
    struct scheduler *s;
    assert_int_equal(scheduler_new(&s, 3, 1000, 4, NULL), 0);
    struct sched_entry e[3] = {entry_of(100, 120, 0), entry_of(1, 50, 0), entry_of(1, 50, 1)};
    for (int i = 0; i < 3; i++) scheduler_add(s, &e[i], NULL);
    int count[3] = {0};
    for (int i = 0; i < 30; i++) count[go(s, NULL) - e]++;
    for (int i = 0; i < 3; i++) assert_int_equal(count[i], 10);
    for (int i = 0; i < 3; i++) scheduler_remove(s, &e[i]);
    scheduler_free(s);
}

static void groups_are_admitted_in_turn_and_in_order_within(void **state) {
    (void)state;
    struct scheduler *s;
    assert_int_equal(scheduler_new(&s, 1, 1000, 4, NULL), 0);
    /* Group 1 asks five times before group 2 asks twice, then group 3 once. */
    struct sched_entry e[8];
    const uint64_t groups[8] = {1, 1, 1, 1, 1, 2, 2, 3};
    for (int i = 0; i < 8; i++) {
        e[i] = entry_of(1, 1, groups[i]);
        scheduler_add(s, &e[i], NULL);
    }
    const int expected[8] = {0, 5, 7, 1, 6, 2, 3, 4};
    for (int i = 0; i < 8; i++) assert_int_equal(go(s, NULL) - e, expected[i]);
    assert_null(go(s, NULL));
    scheduler_free(s);
}

static void newcomers_do_not_starve_those_who_wait(void **state) {
    (void)state;
    struct scheduler *s;
    assert_int_equal(scheduler_new(&s, 1, 1000, 4, NULL), 0);
    struct sched_entry patient[2] = {entry_of(1, 1, 1), entry_of(1, 1, 1)}, fresh[50];
    scheduler_add(s, &patient[0], NULL);
    scheduler_add(s, &patient[1], NULL);
    int served_after = -1;
    /* Every step another group comes with its first request. */
    for (int i = 0; i < 50; i++) {
        fresh[i] = entry_of(1, 1, 100 + (uint64_t)i);
        scheduler_add(s, &fresh[i], NULL);
        if (go(s, NULL) == &patient[1] && served_after < 0) served_after = i;
    }
    assert_in_range(served_after, 0, 4);
    while (go(s, NULL)) {}
    scheduler_free(s);
}

static void all_blocks_are_reserved_before_the_first_step(void **state) {
    (void)state;
    struct scheduler *s;
    assert_int_equal(scheduler_new(&s, 8, 10, 4, NULL), 0);
    struct sched_entry large = entry_of(1, 32, 1), huge = entry_of(1, 41, 1),
                       second = entry_of(1, 12, 2), small = entry_of(1, 4, 3);
    struct error e = {0};
    assert_int_equal(scheduler_add(s, &huge, &e), -ERR_MEMORY);
    scheduler_add(s, &large, NULL);
    scheduler_add(s, &second, NULL);
    scheduler_add(s, &small, NULL);
    /* 8 of 10 blocks are large's; second needs 3 and is not overtaken by small, which needs 1. */
    assert_ptr_equal(go(s, NULL), &large);
    assert_int_equal(large.table.n, 8);
    assert_false(second.live);
    assert_false(small.live);
    struct sched_stats stats;
    scheduler_stats(s, &stats);
    assert_int_equal(stats.blocks_used, 8);
    assert_int_equal(stats.live, 1);
    assert_int_equal(stats.waiting, 2);
    scheduler_remove(s, &large);
    go(s, NULL);
    assert_true(second.live);
    assert_true(small.live);
    scheduler_remove(s, &second);
    scheduler_remove(s, &small);
    scheduler_stats(s, &stats);
    assert_int_equal(stats.blocks_used, 0);
    scheduler_free(s);
}

static void held_ones_are_skipped_and_come_back(void **state) {
    (void)state;
    struct scheduler *s;
    assert_int_equal(scheduler_new(&s, 2, 100, 4, NULL), 0);
    struct sched_entry a = entry_of(1, 20, 1), b = entry_of(1, 20, 1), c = entry_of(1, 20, 1);
    scheduler_add(s, &a, NULL);
    scheduler_add(s, &b, NULL);
    scheduler_add(s, &c, NULL);
    a.held = true; /* before it was admitted: it takes no slot */
    for (int i = 0; i < 6; i++) assert_ptr_not_equal(go(s, NULL), &a);
    assert_true(b.live && c.live);
    b.held = c.held = true;
    assert_null(go(s, NULL));
    b.held = false;
    assert_ptr_equal(go(s, NULL), &b);
    a.held = c.held = false;
    scheduler_remove(s, &b);
    assert_ptr_equal(go(s, NULL), &c);
    assert_ptr_equal(go(s, NULL), &a);
    scheduler_remove(s, &a);
    scheduler_remove(s, &c);
    assert_null(go(s, NULL));
    scheduler_free(s);
}

static void random_lives_leave_sound_books(void **state) {
    (void)state;
    enum { N = 40 };
    struct scheduler *s;
    struct sched_entry e[N];
    bool there[N] = {0};
    random_state = 5;
    assert_int_equal(scheduler_new(&s, 6, 60, 4, NULL), 0);
    for (int round = 0; round < 20000; round++) {
        int i = (int)random_below(N);
        struct sched_step step;
        switch (random_below(4)) {
        case 0:
            if (there[i]) break;
            e[i] = entry_of(1 + (int32_t)random_below(60), 0, random_below(5));
            e[i].n_positions = e[i].n_prompt + (int32_t)random_below(60);
            assert_int_equal(scheduler_add(s, &e[i], NULL), 0);
            there[i] = true;
            break;
        case 1:
            if (there[i] && random_below(4) == 0) {
                scheduler_remove(s, &e[i]);
                there[i] = false;
            } else if (there[i]) {
                e[i].held = random_below(2);
            }
            break;
        default:
            if (!scheduler_next(s, &step)) break;
            assert_true(there[step.entry - e] && !step.entry->held);
            if (step.entry->n_done == step.entry->n_positions) {
                scheduler_remove(s, step.entry);
                there[step.entry - e] = false;
            }
        }
        int32_t used = 0, live = 0, waiting = 0;
        for (int k = 0; k < N; k++) {
            if (!there[k]) continue;
            live += e[k].live;
            waiting += !e[k].live;
            used += e[k].table.n;
        }
        struct sched_stats stats;
        scheduler_stats(s, &stats);
        assert_true(stats.live == live && stats.waiting == waiting && stats.blocks_used == used);
        assert_true(live <= 6);
    }
    for (int k = 0; k < N; k++)
        if (there[k]) scheduler_remove(s, &e[k]);
    scheduler_free(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_block_is_free_or_in_one_table),
        cmocka_unit_test(taking_more_than_there_is_says_how_much_there_is),
        cmocka_unit_test(wrong_books_are_found),
        cmocka_unit_test(chunks_depend_on_the_prompt_alone),
        cmocka_unit_test(live_ones_take_turns),
        cmocka_unit_test(groups_are_admitted_in_turn_and_in_order_within),
        cmocka_unit_test(newcomers_do_not_starve_those_who_wait),
        cmocka_unit_test(all_blocks_are_reserved_before_the_first_step),
        cmocka_unit_test(held_ones_are_skipped_and_come_back),
        cmocka_unit_test(random_lives_leave_sound_books),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
