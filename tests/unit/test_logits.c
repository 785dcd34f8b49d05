/* Promises of serve/logits.h: every instruction set gives the same bits, and the right ones. */
#include "serve/logits.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 1000, MAX_SETS = 3 };

/* Those that this machine can run. */
static int sets(const struct logit_loops *out[MAX_SETS]) {
    int n = 0;
    out[n++] = &logit_loops_portable;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) out[n++] = &logit_loops_avx2;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        out[n++] = &logit_loops_avx512;
#endif
    return n;
}

static void fill(float *x, int n, unsigned seed) {
    srand(seed);
    for (int i = 0; i < n; i++) x[i] = (float)(rand() % 20001 - 10000) / 300;
}

/* Lengths with and without whole vectors and rests. */
static const int lengths[] = {1, 2, 15, 16, 17, 31, 64, 333, MOST};
enum { N_LENGTHS = sizeof lengths / sizeof *lengths };

static void a_row_is_looked_at_the_same_way_by_all_sets(void **state) {
    (void)state;
    const struct logit_loops *set[MAX_SETS];
    int n_sets = sets(set);
    float x[MOST], first[MOST], other[MOST];
    for (int l = 0; l < N_LENGTHS; l++) {
        int n = lengths[l];
        fill(x, n, (unsigned)l);
        float max = x[0];
        double sum = 0, size = 0;
        for (int i = 0; i < n; i++) {
            max = fmaxf(max, x[i]);
            sum += x[i];
            size += fabsf(x[i]);
        }
        set[0]->weigh(x, n, max, 0.7f, first);
        double first_sum = set[0]->sum(x, n);
        assert_true(fabs(first_sum - sum) <= 1e-12 * size);
        for (int s = 0; s < n_sets; s++) {
            assert_true(set[s]->max(x, n) == max);
            assert_true(set[s]->sum(x, n) == first_sum);
            set[s]->weigh(x, n, max, 0.7f, other);
            assert_memory_equal(first, other, (size_t)n * sizeof *first);
        }
        for (int i = 0; i < n; i++) {
            double right = exp((double)((x[i] - max) * 0.7f));
            assert_true(fabs(first[i] - right) <= 2e-7 * right);
            if (x[i] == max) assert_true(first[i] == 1);
        }
    }
}

static void weights_are_exactly_1_at_the_best_and_0_far_below(void **state) {
    (void)state;
    const struct logit_loops *set[MAX_SETS];
    int n_sets = sets(set);
    for (int s = 0; s < n_sets; s++) {
        float x[18] = {5, -1e30f, 5, -83, -81.5f, 4.999999f}, w[18];
        set[s]->weigh(x, 18, 5, 1, w);
        assert_true(w[0] == 1 && w[1] == 0 && w[2] == 1 && w[3] == 0 && w[4] > 0);
        set[s]->weigh(x, 18, 5, 1e38f, w); /* a temperature of nearly nothing */
        assert_true(w[0] == 1 && w[2] == 1 && w[5] == 0 && w[17] == 0);
        set[s]->weigh(x, 18, 5, 0, w); /* and one without end */
        for (int i = 0; i < 18; i++) assert_true(w[i] == 1);
    }
}

static void what_is_no_number_is_seen_wherever_it_stands(void **state) {
    (void)state;
    const struct logit_loops *set[MAX_SETS];
    int n_sets = sets(set);
    float x[MOST];
    for (int s = 0; s < n_sets; s++)
        for (int l = 0; l < N_LENGTHS; l++) {
            int n = lengths[l];
            fill(x, n, (unsigned)l);
            x[n / 2] = -FLT_MAX;
            assert_true(set[s]->all_finite(x, n));
            for (int i = 0; i < n; i += n / 7 + 1) {
                float kept = x[i];
                x[i] = i % 3 == 0 ? NAN : i % 3 == 1 ? INFINITY : -INFINITY;
                assert_false(set[s]->all_finite(x, n));
                x[i] = kept;
            }
        }
}

/* When a token arrives, as plainly as can be. */
static double arrival(uint64_t bits, int32_t id, float weight) {
    uint64_t x = bits + ((uint64_t)id + 1) * 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    x = x ^ x >> 31;
    double u = (double)((x >> 11) + 1) * 0x1p-53;
    return weight > 0 ? -log(u) / weight : INFINITY;
}

static int32_t first_of(uint64_t bits, const int32_t *ids, const float *weights, int32_t n) {
    int32_t first = 0;
    double best = INFINITY;
    for (int32_t i = 0; i < n; i++) {
        double time = arrival(bits, ids[i], weights[i]);
        if (time >= best) continue;
        best = time;
        first = i;
    }
    return first;
}

static int ascending(const void *a, const void *b) {
    return *(const int32_t *)a - *(const int32_t *)b;
}

/* Flat rows and sharp ones, alone and as part of a vocabulary, some of them masked. */
static void a_race_is_won_by_the_first_to_arrive_in_all_sets(void **state) {
    (void)state;
    static const float colds[] = {0, 1e-3f, 0.02f, 0.3f, 1, 5, 1e4f, 1e38f};
    const struct logit_loops *set[MAX_SETS];
    int n_sets = sets(set);
    float x[MOST], weights[MOST];
    int32_t all[MOST], some[MOST];
    for (unsigned round = 0; round < 3000; round++) {
        int n = lengths[round % N_LENGTHS];
        uint64_t bits = 0x9E6D7A3B1C5F2E4Du * (round + 1);
        float cold = colds[round / N_LENGTHS % 8];
        fill(x, n, round);
        float max = set[0]->max(x, n);
        for (int i = 0; i < n; i++) {
            if (round % 5 == 0 && i % 3 && x[i] < max) x[i] = -INFINITY;
            all[i] = i;
            some[i] = rand() % 200000;
        }
        qsort(some, (size_t)n, sizeof *some, ascending);
        set[0]->weigh(x, n, max, cold, weights);
        for (int i = 0; i < n; i++)
            if (x[i] == -INFINITY) assert_true(weights[i] == 0);
        for (int s = 0; s < n_sets; s++) {
            assert_int_equal(set[s]->race(bits, NULL, x, n, max, cold), first_of(bits, all, weights, n));
            assert_int_equal(set[s]->race(bits, some, x, n, max, cold), first_of(bits, some, weights, n));
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_row_is_looked_at_the_same_way_by_all_sets),
        cmocka_unit_test(weights_are_exactly_1_at_the_best_and_0_far_below),
        cmocka_unit_test(what_is_no_number_is_seen_wherever_it_stands),
        cmocka_unit_test(a_race_is_won_by_the_first_to_arrive_in_all_sets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
