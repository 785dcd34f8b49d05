/* Rank threads and their numbered units. */
#include "ranks/ranks.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

/* cmocka's assertions belong to the main thread; a unit that is wrong ends the test at once. */
#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

static void run_driver(int n, driver_fn *driver, void *arg) {
    struct ranks_options options = {.device = RANK_CPU, .n = n, .deadline_ms = 5000};
    struct ranks *ranks;
    struct error e;
    assert_int_equal(ranks_start(&ranks, &options, driver, arg, &e), 0);
    ranks_join(ranks);
}

struct work {
    int from; /* the rank that fails; -1 = none */
    _Atomic int ran;
    int64_t seen[8][8]; /* one cache line a rank */
};

static int add_up(struct rank *rank, void *arg, struct error *e) {
    struct work *work = arg;
    (void)e;
    work->seen[rank->index][0]++;
    atomic_fetch_add(&work->ran, 1);
    return 0;
}

static void many_units(struct ranks *ranks, void *arg) {
    struct work *work = arg;
    struct error e;
    int n = ranks_count(ranks);
    for (int i = 1; i <= 2000; i++) {
        CHECK(ranks_run(ranks, add_up, work, &e) == 0);
        CHECK(atomic_load(&work->ran) == n * i);
        for (int r = 0; r < n; r++) CHECK(work->seen[r][0] == i);
        if (i % 500 == 0) usleep(2000); /* the followers fall asleep */
    }
}

static void every_rank_runs_every_unit(void **state) {
    (void)state;
    for (int n = 1; n <= 8; n = n < 3 ? n + 1 : n + 5) {
        struct work work = {.from = -1};
        run_driver(n, many_units, &work);
    }
}

static int make_state(struct rank *rank, void *arg, struct error *e) {
    (void)arg;
    dev_addr x;
    if (rank->ctx->ops->mem_alloc(rank->ctx, MEM_WEIGHTS, 4 * 64, &x, e)) return -1;
    rank->state = kernels_cpu_pointer(rank->ctx, x);
    return 0;
}

/* The rank `from` fails, the others wait for it in a collective. */
static int reduce_unless_failing(struct rank *rank, void *arg, struct error *e) {
    struct work *work = arg;
    dev_addr x;
    if (rank->index == work->from)
        return error_set(e, ERR_BAD_FILE, "rank %d cannot read its shard", rank->index);
    if (rank->ctx->ops->mem_alloc(rank->ctx, MEM_BUFFERS, 4 * 64, &x, e)) return -1;
    float *at = kernels_cpu_pointer(rank->ctx, x);
    for (int i = 0; i < 64; i++) at[i] = (float)rank->index;
    comm_all_reduce(rank->comm, x, 1, 64, DTYPE_F32);
    if (!kctx_failed(rank->ctx))
        for (int i = 0; i < 64; i++) CHECK(at[i] == (float)(rank->n * (rank->n - 1) / 2));
    rank->ctx->ops->mem_free(rank->ctx, x);
    return 0;
}

/* The same, but the failure is left behind in the context. */
static int leave_an_error(struct rank *rank, void *arg, struct error *e) {
    struct work *work = arg;
    (void)e;
    if (rank->index == work->from) {
        struct error why;
        error_set(&why, ERR_DEVICE, "rank %d lost its device", rank->index);
        kctx_fail(rank->ctx, &why);
        return 0;
    }
    comm_barrier(rank->comm);
    return 0;
}

static int say_nothing(struct rank *rank, void *arg, struct error *e) {
    struct work *work = arg;
    (void)e;
    return rank->index == work->from ? -1 : 0;
}

static void fail_in_turn(struct ranks *ranks, void *arg) {
    struct work *work = arg;
    struct error e;
    char text[64];
    CHECK(ranks_run(ranks, make_state, NULL, &e) == 0);
    for (int round = 0; round < 20; round++)
        for (int r = 0; r < ranks_count(ranks); r++) {
            work->from = r;
            CHECK(ranks_run(ranks, reduce_unless_failing, work, &e) == -(int)ERR_BAD_FILE);
            snprintf(text, sizeof text, "rank %d cannot read its shard", r);
            CHECK(e.kind == ERR_BAD_FILE && strcmp(e.message, text) == 0);
            CHECK(ranks_run(ranks, leave_an_error, work, &e) == -(int)ERR_DEVICE);
            snprintf(text, sizeof text, "rank %d lost its device", r);
            CHECK(strcmp(e.message, text) == 0);
            CHECK(ranks_run(ranks, say_nothing, work, NULL) == -(int)ERR_INTERNAL);
            work->from = -1;
            CHECK(ranks_run(ranks, reduce_unless_failing, work, &e) == 0);
        }
    for (int r = 0; r < ranks_count(ranks); r++) CHECK(ranks_at(ranks, r)->state != NULL);
}

static void a_rank_that_fails_brings_all_back_and_the_next_unit_is_clean(void **state) {
    (void)state;
    for (int n = 1; n <= 8; n = n < 3 ? n + 1 : n + 5) {
        struct work work = {.from = -1};
        run_driver(n, fail_in_turn, &work);
    }
}

static void wait_for_main(struct ranks *ranks, void *arg) {
    (void)ranks;
    wait_while_equal(arg, 0, 0);
}

/* How many threads named tpd-rank-N the kernel shows as sleeping. */
static int sleeping_ranks(void) {
    int sleeping = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *d; tasks && (d = readdir(tasks));) {
        char path[300], name[32], status;
        snprintf(path, sizeof path, "/proc/self/task/%s/stat", d->d_name);
        FILE *f = fopen(path, "r");
        if (f && fscanf(f, "%*d (%31[^)]) %c", name, &status) == 2)
            sleeping += strncmp(name, "tpd-rank-", 9) == 0 && status == 'S';
        if (f) fclose(f);
    }
    if (tasks) closedir(tasks);
    return sleeping;
}

static void idle_ranks_sleep_and_tell_of_themselves(void **state) {
    (void)state;
    struct ranks_options options = {.device = RANK_CPU, .n = 2};
    struct ranks *ranks;
    struct error e;
    struct wait_word go = {0};
    struct mem_use use;
    assert_int_equal(core_set_parse(&options.cores, "0", &e), 0);
    assert_int_equal(ranks_start(&ranks, &options, wait_for_main, &go, &e), 0);
    while (sleeping_ranks() < 2) usleep(1000); /* one that spins for ever hangs the test */
    ranks_memory(ranks, 1, &use);
    assert_true(use.total > 0);
    assert_string_equal(ranks_device_name(ranks, 1), "cpu:0");
    wait_store(&go, 1);
    ranks_join(ranks);
}

static void wrong_numbers_of_ranks_do_not_start(void **state) {
    (void)state;
    struct ranks_options options = {.device = RANK_CPU, .n = 0};
    struct ranks *ranks;
    struct error e;
    assert_int_equal(ranks_start(&ranks, &options, many_units, NULL, &e), -(int)ERR_CONFIG);
    assert_null(ranks);
}

static int count_nothing(struct rank *rank, void *arg, struct error *e) {
    (void)arg, (void)e;
    CHECK(strcmp(rank->ctx->ops->name, "plan") == 0);
    comm_all_reduce(rank->comm, 0, 4, 64, DTYPE_F32);
    comm_barrier(rank->comm);
    return 0;
}

static void one_plan_unit(struct ranks *ranks, void *arg) {
    struct error e;
    (void)arg;
    CHECK(ranks_run(ranks, count_nothing, NULL, &e) == 0);
}

static void plan_ranks_run_units_too(void **state) {
    (void)state;
    struct ranks_options options = {.device = RANK_PLAN, .n = 3};
    struct ranks *ranks;
    struct error e;
    assert_int_equal(ranks_start(&ranks, &options, one_plan_unit, NULL, &e), 0);
    assert_string_equal(ranks_device_name(ranks, 2), "plan:2");
    ranks_join(ranks);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rank_runs_every_unit),
        cmocka_unit_test(a_rank_that_fails_brings_all_back_and_the_next_unit_is_clean),
        cmocka_unit_test(idle_ranks_sleep_and_tell_of_themselves),
        cmocka_unit_test(wrong_numbers_of_ranks_do_not_start),
        cmocka_unit_test(plan_ranks_run_units_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
