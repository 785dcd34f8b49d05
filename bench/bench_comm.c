/* bench/bench_comm.c: how long an all-reduce takes, by size and way, and an empty unit.
 *
 * Prints a table a number of ranks: floats in the message, then microseconds for each way (the
 * median of some batches of calls, all ranks on cores of their own where there are enough). */

#include "ranks/ranks.h"

#include <stdio.h>
#include <stdlib.h>

enum { BATCHES = 9, WAYS = 4 };

struct measure {
    int32_t floats;
    enum comm_algorithm way;
    int calls; /* in a batch */
    double us[BATCHES];
};

static int measure_unit(struct rank *rank, void *arg, struct error *e) {
    struct measure *m = arg;
    dev_addr x;
    int rc = rank->ctx->ops->mem_alloc(rank->ctx, MEM_BUFFERS, (size_t)m->floats * 4, &x, e);
    if (rc) return rc;
    comm_force(rank->comm, m->way);
    for (int b = 0; b < BATCHES; b++) {
        comm_barrier(rank->comm);
        int64_t start = clock_ns();
        for (int i = 0; i < m->calls; i++) comm_all_reduce(rank->comm, x, 1, m->floats, DTYPE_F32);
        if (rank->index == 0) m->us[b] = (double)(clock_ns() - start) / 1000.0 / m->calls;
    }
    rank->ctx->ops->mem_free(rank->ctx, x);
    return 0;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int empty_unit(struct rank *rank, void *arg, struct error *e) {
    (void)rank, (void)arg, (void)e;
    return 0;
}

static double empty_unit_us(struct ranks *ranks) {
    enum { UNITS = 5000 };
    int64_t start = clock_ns();
    for (int i = 0; i < UNITS; i++) ranks_run(ranks, empty_unit, NULL, NULL);
    return (double)(clock_ns() - start) / 1000.0 / UNITS;
}

static void measure_all(struct ranks *ranks, void *arg) {
    static const int32_t sizes[] = {64,    256,   576,   1024,   2048,   4096,   8192,
                                    16384, 32768, 65536, 131072, 262144, 1000000};
    static const enum comm_algorithm ways[WAYS] = {COMM_ONE_SHOT, COMM_TWO_SHOT, COMM_RING,
                                                   COMM_AUTO};
    int *failed = arg;
    printf("all-reduce of f32 between %d ranks, microseconds\n", ranks_count(ranks));
    printf("%10s %10s %10s %10s %10s\n", "floats", "one-shot", "two-shot", "ring", "auto");
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        printf("%10d", sizes[s]);
        for (int w = 0; w < WAYS; w++) {
            struct measure m = {.floats = sizes[s], .way = ways[w]};
            struct error e;
            m.calls = sizes[s] > 20000 ? 2000000 / sizes[s] : 200;
            if (ranks_run(ranks, measure_unit, &m, &e)) {
                fprintf(stderr, "bench_comm: %s\n", e.message);
                *failed = 1;
                return;
            }
            qsort(m.us, BATCHES, sizeof *m.us, by_value);
            printf(" %10.2f", m.us[BATCHES / 2]);
        }
        printf("\n");
    }
    printf("an empty unit takes %.2f us\n\n", empty_unit_us(ranks));
}

int main(void) {
    int failed = 0;
    for (int n = 2; n <= 4 && !failed; n += 2) {
        struct ranks_options options = {.device = RANK_CPU, .n = n};
        struct ranks *ranks;
        struct error e;
        if (ranks_start(&ranks, &options, measure_all, &failed, &e)) {
            fprintf(stderr, "bench_comm: %s\n", e.message);
            return error_class(e.kind)->exit_code;
        }
        ranks_join(ranks);
    }
    return failed;
}
