/* Promises of serve/scheduler.h. */
#include "serve/scheduler.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 512 };

static uint32_t random_state;
static uint32_t random_below(uint32_t n) {
    random_state = random_state * 1664525u + 1013904223u;
    return (uint32_t)((uint64_t)random_state * n >> 32);
}

static struct scheduler *scheduler_of(int32_t slots, int32_t rows, int32_t n_blocks) {
    const struct sched_limits limits = {slots, rows, rows, n_blocks, 4,
                                        n_blocks < 128 ? n_blocks : 128};
    struct scheduler *s;
    assert_int_equal(scheduler_new(&s, &limits, NULL), 0);
    return s;
}

/* A sequence that generates: a prompt, then n_new tokens. */
struct seq {
    struct sched_entry entry;
    int32_t tokens[MOST], n_prompt, n_new;
};

/* The first token makes prompts differ. */
static void seq_init(struct seq *q, int32_t first, int32_t n_prompt, int32_t n_new,
                     uint64_t group) {
    *q = (struct seq){.n_prompt = n_prompt, .n_new = n_new};
    for (int32_t i = 0; i < MOST; i++) q->tokens[i] = i ? i : first;
    q->entry = (struct sched_entry){.n_positions = n_prompt + n_new,
                                    .root = KV_ROOT,
                                    .group = group,
                                    .tokens = q->tokens,
                                    .n_known = n_prompt,
                                    .out_from = n_prompt - 1};
}

static struct seq *seq_of(const struct sched_part *p) {
    return (struct seq *)p->entry;
}

static bool finished(const struct seq *q) {
    return q->entry.n_known >= q->n_prompt + q->n_new;
}

/* Runs one step: those whose last row is in it get a token, and leave with their last. Returns the
 * number of parts; copies them where wanted. */
static int32_t go(struct scheduler *s, struct sched_part *copy) {
    const struct sched_part *parts;
    int32_t n = scheduler_next(s, &parts);
    for (int32_t i = 0; i < n; i++) {
        struct sched_part p = parts[i];
        struct seq *q = seq_of(&p);
        if (copy) copy[i] = p;
        assert_true(p.n_rows > 0 && p.first + p.n_rows <= q->entry.n_known);
        assert_true(q->entry.table.n * 4 >= p.first + p.n_rows);
        if (p.first + p.n_rows == q->entry.n_known) {
            q->entry.out_from++;
            q->entry.n_known++;
        }
        scheduler_done(s, &p, p.n_rows);
        if (finished(q)) scheduler_remove(s, &q->entry, false);
    }
    assert_true(scheduler_sound(s));
    return n;
}

static void a_step_has_a_row_of_each_that_generates_and_chunks_beside_them(void **state) {
    (void)state;
    struct scheduler *s = scheduler_of(4, 32, 1000);
    struct seq q[4];
    struct sched_part parts[4];
    for (int i = 0; i < 3; i++) {
        seq_init(&q[i], 900 + i, 3, 50, 1);
        scheduler_add(s, &q[i].entry, NULL);
    }
    assert_int_equal(go(s, parts), 3); /* three whole prompts */
    for (int i = 0; i < 3; i++) assert_int_equal(parts[i].n_rows, 3);
    seq_init(&q[3], 903, 100, 50, 1);
    scheduler_add(s, &q[3].entry, NULL);
    for (int32_t at = 0; at < 96; at += 8) {
        assert_int_equal(go(s, parts), 4);
        for (int i = 0; i < 3; i++) assert_int_equal(parts[i].n_rows, 1);
        assert_ptr_equal(parts[3].entry, &q[3].entry);
        assert_int_equal(parts[3].first, at);
        assert_int_equal(parts[3].n_rows, 8); /* a quarter of the step */
    }
    for (int i = 0; i < 3; i++) scheduler_remove(s, &q[i].entry, false);
    assert_int_equal(go(s, parts), 1);
    assert_int_equal(parts[0].n_rows, 4);
    scheduler_remove(s, &q[3].entry, false);
    scheduler_free(s);
}

static void prompts_take_turns(void **state) {
    (void)state;
    struct scheduler *s = scheduler_of(3, 16, 1000);
    struct seq q[3];
    struct sched_part part;
    for (int i = 0; i < 3; i++) {
        seq_init(&q[i], 900 + i, 160, 1, 1);
        scheduler_add(s, &q[i].entry, NULL);
    }
    for (int i = 0; i < 27; i++) {
        assert_int_equal(go(s, &part), 1);
        assert_ptr_equal(part.entry, &q[i % 3].entry);
        assert_int_equal(part.n_rows, 16);
    }
    while (go(s, NULL)) {}
    scheduler_free(s);
}

static void all_have_their_turn_where_a_step_has_less_rows_or_logits_than_there_are(void **state) {
    (void)state;
    for (int by_outs = 0; by_outs < 2; by_outs++) {
        const struct sched_limits limits = {10, by_outs ? 100 : 3, 3, 1000, 4, 100};
        struct scheduler *s;
        struct seq q[10];
        struct sched_part parts[10];
        int count[10] = {0};
        assert_int_equal(scheduler_new(&s, &limits, NULL), 0);
        for (int i = 0; i < 10; i++) {
            seq_init(&q[i], 900 + i, 1, 200, 1);
            scheduler_add(s, &q[i].entry, NULL);
        }
        for (int i = 0; i < 100; i++) {
            assert_int_equal(go(s, parts), 3);
            for (int k = 0; k < 3; k++) count[seq_of(&parts[k]) - q]++;
        }
        for (int i = 0; i < 10; i++) assert_int_equal(count[i], 30);
        for (int i = 0; i < 10; i++) scheduler_remove(s, &q[i].entry, false);
        scheduler_free(s);
    }
}

static void rows_with_logits_are_bounded(void **state) {
    (void)state;
    const struct sched_limits limits = {4, 64, 8, 1000, 4, 100};
    struct scheduler *s;
    struct seq q;
    struct sched_part part;
    assert_int_equal(scheduler_new(&s, &limits, NULL), 0);
    seq_init(&q, 900, 60, 1, 1);
    q.entry.out_from = 20; /* a score: logits of every row from there on */
    scheduler_add(s, &q.entry, NULL);
    assert_int_equal(scheduler_next(s, &(const struct sched_part *){NULL}), 1);
    const struct sched_part first = {&q.entry, 0, 28};
    q.entry.out_from = 28;
    scheduler_done(s, &first, first.n_rows);
    assert_int_equal(go(s, &part), 1);
    assert_int_equal(part.first, 28);
    assert_int_equal(part.n_rows, 8);
    scheduler_remove(s, &q.entry, false);
    scheduler_free(s);
}

/* --- becoming live ----------------------------------------------------------------------------- */

/* The order in which sequences of one position end, one slot there being. */
static void assert_order(struct scheduler *s, struct seq *q, const int *expected, int n) {
    struct sched_part part;
    for (int i = 0; i < n; i++) {
        assert_int_equal(go(s, &part), 1);
        assert_int_equal(seq_of(&part) - q, expected[i]);
    }
}

static void groups_are_admitted_in_turn_and_in_order_within(void **state) {
    (void)state;
    struct scheduler *s = scheduler_of(1, 16, 1000);
    /* Group 1 asks five times before group 2 asks twice, then group 3 once. */
    struct seq q[8];
    const uint64_t groups[8] = {1, 1, 1, 1, 1, 2, 2, 3};
    for (int i = 0; i < 8; i++) {
        seq_init(&q[i], 900 + i, 1, 1, groups[i]);
        scheduler_add(s, &q[i].entry, NULL);
    }
    assert_order(s, q, (const int[]){0, 5, 7, 1, 6, 2, 3, 4}, 8);
    assert_int_equal(go(s, NULL), 0);
    scheduler_free(s);
}

static void newcomers_do_not_starve_those_who_wait(void **state) {
    (void)state;
    struct scheduler *s = scheduler_of(1, 16, 1000);
    struct seq patient[2], fresh[50];
    struct sched_part part;
    for (int i = 0; i < 2; i++) {
        seq_init(&patient[i], 900 + i, 1, 1, 1);
        scheduler_add(s, &patient[i].entry, NULL);
    }
    int served_after = -1;
    /* Every step another group comes with its first request. */
    for (int i = 0; i < 50; i++) {
        seq_init(&fresh[i], 800 + i, 1, 1, 100 + (uint64_t)i);
        scheduler_add(s, &fresh[i].entry, NULL);
        go(s, &part);
        if (part.entry == &patient[1].entry && served_after < 0) served_after = i;
    }
    assert_in_range(served_after, 0, 4);
    while (go(s, NULL)) {}
    scheduler_free(s);
}

static void the_next_one_waits_for_the_blocks_of_its_prompt_and_is_not_overtaken(void **state) {
    (void)state;
    struct scheduler *s = scheduler_of(8, 64, 10);
    struct seq first, second, third, huge;
    struct error e = {0};
    seq_init(&first, 900, 20, 8, 1);
    seq_init(&second, 901, 20, 2, 2);
    seq_init(&third, 902, 2, 2, 3);
    seq_init(&huge, 903, 1, 40, 1);
    assert_int_equal(scheduler_add(s, &huge.entry, &e), -ERR_MEMORY);
    assert_int_equal(e.notes[0].number, 11);
    assert_int_equal(e.notes[1].number, 10);
    scheduler_add(s, &first.entry, NULL);
    scheduler_add(s, &second.entry, NULL);
    scheduler_add(s, &third.entry, NULL);
    go(s, NULL);
    /* Five blocks are the first one's and a sixth is promised to it; the second needs five. */
    assert_true(first.entry.live);
    assert_false(second.entry.live || third.entry.live);
    struct sched_stats stats;
    scheduler_stats(s, &stats);
    assert_int_equal(stats.blocks_used, 5);
    assert_int_equal(stats.live, 1);
    assert_int_equal(stats.waiting, 2);
    for (int i = 0; i < 7; i++) go(s, NULL);
    assert_true(finished(&first));
    go(s, NULL);
    assert_true(second.entry.live && third.entry.live);
    while (go(s, NULL)) {}
    scheduler_stats(s, &stats);
    assert_int_equal(stats.blocks_used, 0);
    assert_int_equal(stats.set_back, 0);
    scheduler_free(s);
}

/* --- blocks run out ---------------------------------------------------------------------------- */

static void when_blocks_run_out_the_youngest_begins_anew_and_the_oldest_is_never_set_back(
    void **state) {
    (void)state;
    struct scheduler *s = scheduler_of(4, 64, 20);
    struct seq q[4];
    struct sched_stats stats;
    for (int i = 0; i < 4; i++) {
        seq_init(&q[i], 900 + i, 8, 60, (uint64_t)i);
        scheduler_add(s, &q[i].entry, NULL);
    }
    int ended[4], n_ended = 0;
    for (int step = 0; n_ended < 4; step++) {
        assert_true(step < 1000);
        assert_true(go(s, NULL) > 0);
        assert_true(!q[0].entry.set_back);
        for (int i = 0; i < 4; i++) {
            bool known = false;
            for (int k = 0; k < n_ended; k++) known |= ended[k] == i;
            if (!known && finished(&q[i])) ended[n_ended++] = i;
        }
    }
    for (int i = 0; i < 4; i++) assert_int_equal(ended[i], i);
    scheduler_stats(s, &stats);
    /* Each of the younger ones a few times, not with every block that the others take. */
    assert_in_range(stats.set_back, 1, 12);
    assert_int_equal(stats.blocks_used, 0);
    scheduler_free(s);
}

static void who_was_set_back_finds_what_is_left_of_its_blocks(void **state) {
    (void)state;
    struct scheduler *s = scheduler_of(2, 64, 10);
    struct seq a, b;
    seq_init(&a, 900, 4, 28, 1);
    seq_init(&b, 901, 12, 24, 1);
    scheduler_add(s, &a.entry, NULL);
    scheduler_add(s, &b.entry, NULL);
    while (!b.entry.set_back) assert_true(go(s, NULL) > 0);
    struct sched_stats stats;
    while (!b.entry.live) assert_true(go(s, NULL) > 0);
    scheduler_stats(s, &stats);
    assert_true(stats.tokens_cached > 0);
    assert_int_equal(b.entry.n_cached, 0); /* it is not told that: it had computed them itself */
    while (go(s, NULL)) {}
    assert_true(finished(&a) && finished(&b));
    scheduler_free(s);
}

/* --- held ones --------------------------------------------------------------------------------- */

static void held_ones_are_skipped_and_come_back(void **state) {
    (void)state;
    struct scheduler *s = scheduler_of(2, 64, 100);
    struct seq a, b;
    struct sched_part parts[2];
    seq_init(&a, 900, 4, 20, 1);
    seq_init(&b, 901, 4, 20, 1);
    scheduler_add(s, &a.entry, NULL);
    scheduler_add(s, &b.entry, NULL);
    a.entry.held = true; /* before it was admitted: it takes no slot */
    for (int i = 0; i < 6; i++) {
        assert_int_equal(go(s, parts), 1);
        assert_ptr_equal(parts[0].entry, &b.entry);
    }
    assert_false(a.entry.live);
    b.entry.held = true;
    assert_int_equal(go(s, NULL), 0);
    assert_true(b.entry.live); /* nobody wants its slot */
    a.entry.held = b.entry.held = false;
    assert_int_equal(go(s, parts), 2);
    assert_false(b.entry.set_back);
    while (go(s, NULL)) {}
    assert_true(finished(&a) && finished(&b));
    scheduler_free(s);
}

static void held_ones_give_slots_and_blocks_to_those_who_wait(void **state) {
    (void)state;
    struct scheduler *s = scheduler_of(2, 64, 12);
    struct seq q[4];
    for (int i = 0; i < 4; i++) {
        seq_init(&q[i], 900 + i, 12, 12, 1);
        scheduler_add(s, &q[i].entry, NULL);
    }
    go(s, NULL);
    assert_true(q[0].entry.live && q[1].entry.live);
    q[0].entry.held = q[1].entry.held = true;
    while (!finished(&q[2]) || !finished(&q[3])) assert_true(go(s, NULL) > 0);
    q[0].entry.held = q[1].entry.held = false;
    while (go(s, NULL)) {}
    assert_true(finished(&q[0]) && finished(&q[1]));
    scheduler_free(s);
}

/* --- shared beginnings ------------------------------------------------------------------------- */

static void prompts_that_begin_alike_are_computed_once(void **state) {
    (void)state;
    struct scheduler *s = scheduler_of(8, 64, 200);
    struct seq q[6];
    struct sched_stats stats;
    int32_t rows = 0;
    for (int i = 0; i < 6; i++) {
        seq_init(&q[i], 900, 101, 5, 1); /* all the same, and all at once */
        scheduler_add(s, &q[i].entry, NULL);
    }
    struct sched_part parts[8];
    for (int32_t n; (n = go(s, parts)) > 0;)
        for (int32_t i = 0; i < n; i++) rows += parts[i].n_rows;
    for (int i = 0; i < 6; i++) assert_true(finished(&q[i]));
    assert_int_equal(rows, 101 + 5 * 1 + 6 * 4);
    assert_int_equal(q[0].entry.n_cached, 0);
    for (int i = 1; i < 6; i++) assert_true(q[i].entry.n_cached >= 64);
    /* Later ones too; of a prompt that is there whole the last block is computed, for its logits. */
    seq_init(&q[0], 900, 100, 1, 1);
    scheduler_add(s, &q[0].entry, NULL);
    assert_int_equal(go(s, parts), 1);
    assert_int_equal(q[0].entry.n_cached, 96);
    assert_int_equal(parts[0].n_rows, 4);
    /* A score of positions from 40 on needs the logits from there. */
    seq_init(&q[0], 900, 100, 1, 1);
    q[0].entry.out_from = 40;
    scheduler_add(s, &q[0].entry, NULL);
    const struct sched_part *part;
    assert_int_equal(scheduler_next(s, &part), 1);
    assert_int_equal(part[0].first, 40);
    scheduler_remove(s, &q[0].entry, false);
    scheduler_stats(s, &stats);
    assert_int_equal(stats.blocks_used, 0);
    assert_int_equal(stats.tokens_asked, 6 * 101 + 2 * 100);
    assert_int_equal(stats.tokens_cached, 500 + 96 + 40);
    scheduler_free(s);
}

static void other_roots_share_nothing(void **state) {
    (void)state;
    struct scheduler *s = scheduler_of(8, 64, 200);
    struct seq q[2];
    for (int i = 0; i < 2; i++) {
        seq_init(&q[i], 900, 40, 2, 1);
        q[i].entry.root = KV_ROOT | (uint64_t)i;
        scheduler_add(s, &q[i].entry, NULL);
        while (go(s, NULL)) {}
        assert_int_equal(q[i].entry.n_cached, 0);
    }
    scheduler_free(s);
}

static void random_lives_leave_sound_books_and_all_get_to_their_end(void **state) {
    (void)state;
    enum { N = 40, ROUNDS = 6000 };
    struct scheduler *s = scheduler_of(6, 24, 60);
    struct seq *q = calloc(N, sizeof *q);
    bool there[N] = {0};
    int n_finished = 0;
    random_state = 5;
    for (int round = 0; round < ROUNDS; round++) {
        int i = (int)random_below(N);
        switch (random_below(4)) {
        case 0:
            if (there[i]) break;
            seq_init(&q[i], (int32_t)random_below(3), 1 + (int32_t)random_below(100),
                     1 + (int32_t)random_below(100), random_below(5));
            assert_int_equal(scheduler_add(s, &q[i].entry, NULL), 0);
            there[i] = true;
            break;
        case 1:
            if (there[i] && random_below(8) == 0) {
                scheduler_remove(s, &q[i].entry, random_below(2));
                there[i] = false;
            } else if (there[i]) q[i].entry.held = random_below(2);
            break;
        default: go(s, NULL);
        }
        for (int k = 0; k < N; k++)
            if (there[k] && finished(&q[k])) there[k] = false, n_finished++;
        assert_true(scheduler_sound(s));
    }
    struct sched_stats stats;
    scheduler_stats(s, &stats);
    assert_true(stats.set_back > 20 && stats.tokens_cached > 0 && n_finished > 50);
    for (int k = 0; k < N; k++) q[k].entry.held = false;
    for (int steps = 0; go(s, NULL) > 0; steps++) assert_true(steps < 20000);
    for (int k = 0; k < N; k++) assert_true(!there[k] || finished(&q[k]));
    scheduler_stats(s, &stats);
    assert_int_equal(stats.blocks_used, 0);
    free(q);
    scheduler_free(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_has_a_row_of_each_that_generates_and_chunks_beside_them),
        cmocka_unit_test(prompts_take_turns),
        cmocka_unit_test(all_have_their_turn_where_a_step_has_less_rows_or_logits_than_there_are),
        cmocka_unit_test(rows_with_logits_are_bounded),
        cmocka_unit_test(groups_are_admitted_in_turn_and_in_order_within),
        cmocka_unit_test(newcomers_do_not_starve_those_who_wait),
        cmocka_unit_test(the_next_one_waits_for_the_blocks_of_its_prompt_and_is_not_overtaken),
        cmocka_unit_test(
            when_blocks_run_out_the_youngest_begins_anew_and_the_oldest_is_never_set_back),
        cmocka_unit_test(who_was_set_back_finds_what_is_left_of_its_blocks),
        cmocka_unit_test(held_ones_are_skipped_and_come_back),
        cmocka_unit_test(held_ones_give_slots_and_blocks_to_those_who_wait),
        cmocka_unit_test(prompts_that_begin_alike_are_computed_once),
        cmocka_unit_test(other_roots_share_nothing),
        cmocka_unit_test(random_lives_leave_sound_books_and_all_get_to_their_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
