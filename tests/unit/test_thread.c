/* Core sets, teams and waiting. */
#include "base/thread.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

/* n members on the cores that there are, which may be fewer. */
static struct core_set cores_for(int n) {
    struct core_set allowed, set = {.n = n};
    core_set_allowed(&allowed);
    for (int i = 0; i < n; i++) set.cpus[i] = allowed.cpus[i % allowed.n];
    return set;
}

static void core_lists_are_read_and_written(void **state) {
    (void)state;
    struct core_set set;
    struct error e;
    char text[64];
    assert_int_equal(core_set_parse(&set, "8,0-3,2", &e), 0);
    assert_int_equal(set.n, 5);
    assert_int_equal(set.cpus[4], 8);
    core_set_format(&set, text, sizeof text);
    assert_string_equal(text, "0-3,8");
    char small[4];
    core_set_format(&set, small, sizeof small);
    assert_string_equal(small, "0-3");
}

static void wrong_core_lists_are_refused(void **state) {
    (void)state;
    const char *wrong[] = {"", ",", "1,", "a", "3-1", "-1", "1-", "0-1024", "99999999999", "1 2"};
    struct core_set set;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct error e;
        assert_int_equal(core_set_parse(&set, wrong[i], &e), -(int)ERR_CONFIG);
        assert_non_null(strstr(e.message, "list of cores"));
    }
}

static void cores_that_are_not_there_are_refused_by_number(void **state) {
    (void)state;
    struct core_set allowed, absent;
    struct error e;
    core_set_allowed(&allowed);
    assert_int_equal(core_set_check(&allowed, &e), 0);
    absent = allowed;
    absent.cpus[absent.n++] = CORE_SET_MAX - 1;
    assert_int_equal(core_set_check(&absent, &e), -(int)ERR_CONFIG);
    assert_non_null(strstr(e.message, "core 1023"));
}

static void parts_are_disjoint_even_and_whole(void **state) {
    (void)state;
    for (int n = 1; n <= 20; n++)
        for (int parts = 1; parts <= 8; parts++) {
            struct core_set all = {.n = n}, part;
            for (int i = 0; i < n; i++) all.cpus[i] = 2 * i;
            int next = 0;
            for (int p = 0; p < parts; p++) {
                core_set_part(&all, parts, p, &part);
                if (n < parts) {
                    assert_int_equal(part.n, 1);
                    assert_int_equal(part.cpus[0], 2 * (p % n));
                    continue;
                }
                assert_in_range(part.n, n / parts, (n + parts - 1) / parts);
                for (int i = 0; i < part.n; i++) assert_int_equal(part.cpus[i], 2 * next++);
            }
            if (n >= parts) assert_int_equal(next, n);
        }
}

static void the_process_has_a_core(void **state) {
    (void)state;
    struct core_set set;
    core_set_allowed(&set);
    assert_in_range(set.n, 1, CORE_SET_MAX);
}

static void slices_cover_once_in_grains(void **state) {
    (void)state;
    for (int64_t total = 0; total < 70; total++)
        for (int n = 1; n <= 5; n++) {
            int64_t next = 0;
            for (int m = 0; m < n; m++) {
                int64_t from, to;
                team_slice(total, 16, m, n, &from, &to);
                assert_int_equal(from, next);
                assert_true(to >= from && (to % 16 == 0 || to == total));
                next = to;
            }
            assert_int_equal(next, total);
        }
}

struct tally {
    struct team *team;
    int64_t part[16][8]; /* one cache line a member */
    int64_t seen[16];
};

static void add_and_compare(void *arg, int member, int n) {
    struct tally *t = arg;
    for (int round = 0; round < 3; round++) {
        t->part[member][0]++;
        team_barrier(t->team);
        int64_t sum = 0;
        for (int m = 0; m < n; m++) sum += t->part[m][0];
        t->seen[member] = sum;
        team_barrier(t->team);
    }
}

static void every_member_runs_every_job(int n, int spins, int jobs) {
    struct core_set cores = cores_for(n);
    struct tally t = {0};
    struct error e;
    int before = wait_spin_get();
    wait_spin_set(spins);
    assert_int_equal(team_new(&t.team, &cores, &e), 0);
    assert_int_equal(team_size(t.team), n);
    for (int j = 1; j <= jobs; j++) {
        team_run(t.team, add_and_compare, &t);
        for (int m = 0; m < n; m++) assert_int_equal(t.seen[m], (int64_t)3 * n * j);
    }
    team_free(t.team);
    wait_spin_set(before);
}

static void teams_of_all_sizes_run_every_job(void **state) {
    (void)state;
    for (int n = 1; n <= 2; n++) every_member_runs_every_job(n, WAIT_SPIN_DEFAULT, 2000);
    for (int n = 1; n <= 9; n += 2) every_member_runs_every_job(n, 0, 200);
    every_member_runs_every_job(2, 1, 2000);
}

struct ping {
    struct wait_word to, from, bell;
    _Atomic int goal;
    int rounds;
};

static void *ponger(void *arg) {
    struct ping *p = arg;
    for (int i = 1; i <= p->rounds; i++) {
        wait_while_equal(&p->to, (uint32_t)i - 1, 0);
        wait_store(&p->from, (uint32_t)i);
    }
    return NULL;
}

static void wait_for_goal(struct ping *p, int goal) {
    while (atomic_load(&p->goal) < goal) {
        uint32_t ticket = wait_begin(&p->bell);
        if (atomic_load(&p->goal) < goal) wait_sleep(&p->bell, ticket, 0);
        wait_end(&p->bell);
    }
}

static void *bell_ringer(void *arg) {
    struct ping *p = arg;
    for (int i = 1; i <= p->rounds; i++) {
        atomic_store(&p->goal, i);
        wait_notify(&p->bell);
        wait_while_equal(&p->from, (uint32_t)i - 1, 0);
    }
    return NULL;
}

static void no_wake_up_is_lost(void **state) {
    (void)state;
    int before = wait_spin_get();
    for (int spins = 0; spins <= 64; spins += 32) {
        struct ping p = {.rounds = 5000};
        struct error e;
        pthread_t thread;
        wait_spin_set(spins);
        assert_int_equal(thread_start(&thread, ponger, &p, &e), 0);
        for (int i = 1; i <= p.rounds; i++) {
            wait_store(&p.to, (uint32_t)i);
            wait_while_equal(&p.from, (uint32_t)i - 1, 0);
        }
        pthread_join(thread, NULL);

        struct ping q = {.rounds = 5000};
        assert_int_equal(thread_start(&thread, bell_ringer, &q, &e), 0);
        for (int i = 1; i <= q.rounds; i++) {
            wait_for_goal(&q, i);
            wait_add(&q.from, 1);
        }
        pthread_join(thread, NULL);
        assert_int_equal(atomic_load(&q.bell.sleepers), 0);
    }
    wait_spin_set(before);
}

static void a_wait_ends_at_its_deadline(void **state) {
    (void)state;
    struct wait_word word = {0};
    int64_t deadline = clock_ns() + 2000000;
    assert_false(wait_while_equal(&word, 0, deadline));
    assert_true(clock_ns() >= deadline);
    wait_store(&word, 7);
    assert_true(wait_while_equal(&word, 0, deadline));
    assert_int_equal(wait_load(&word), 7);
}

static void the_number_of_sleepers_returns_to_none(void **state) {
    (void)state;
    struct wait_word word = {0};
    assert_false(wait_while_equal(&word, 0, clock_ns()));
    assert_int_equal(atomic_load(&word.sleepers), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(core_lists_are_read_and_written),
        cmocka_unit_test(wrong_core_lists_are_refused),
        cmocka_unit_test(cores_that_are_not_there_are_refused_by_number),
        cmocka_unit_test(parts_are_disjoint_even_and_whole),
        cmocka_unit_test(the_process_has_a_core),
        cmocka_unit_test(slices_cover_once_in_grains),
        cmocka_unit_test(teams_of_all_sizes_run_every_job),
        cmocka_unit_test(no_wake_up_is_lost),
        cmocka_unit_test(a_wait_ends_at_its_deadline),
        cmocka_unit_test(the_number_of_sleepers_returns_to_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
