/* Pieces of stretches: aligned, apart from each other, whole again when given back. */
#include "base/carve.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const uint64_t base = 1 << 20;

static uint64_t take(struct carve *c, size_t bytes, int tag) {
    uint64_t at;
    assert_true(carve_take(c, bytes, tag, &at));
    assert_int_equal(at % CARVE_ALIGN, 0);
    return at;
}

static void neighbours_merge_whatever_the_order(void **state) {
    (void)state;
    static const int orders[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++) {
        struct carve c = {0};
        uint64_t at[3];
        assert_true(carve_add(&c, base, 4096, 0));
        for (int j = 0; j < 3; j++) at[j] = take(&c, 1024, 0);
        assert_true(at[0] == base && at[1] == base + 1024 && at[2] == base + 2048);
        for (int j = 0; j < 3; j++) {
            const struct carve_stretch *empty = carve_give(&c, at[orders[i][j]], 1024);
            assert_true(!empty == (j < 2));
        }
        assert_true(c.stretches[0].n_runs == 1 && carve_longest(&c, 0) == 4096);
        carve_drop(&c, &c.stretches[0]);
        assert_int_equal(carve_held(&c), 0);
        carve_close(&c);
    }
}

static void what_fits_best_is_taken_and_what_does_not_fit_refused(void **state) {
    (void)state;
    struct carve c = {0};
    uint64_t at;
    assert_false(carve_take(&c, 256, 0, &at));
    assert_true(carve_add(&c, base, 16 * 256, 0));
    uint64_t a = take(&c, 4 * 256, 0), b = take(&c, 256, 0), d = take(&c, 2 * 256, 0);
    (void)take(&c, 256, 0);
    assert_null(carve_give(&c, a, 4 * 256));
    assert_null(carve_give(&c, d, 2 * 256));
    assert_int_equal(take(&c, 2 * 256, 0), d); /* not the run of four, nor that of eight */
    assert_int_equal(take(&c, 3 * 256, 0), a);
    assert_int_equal(carve_free_bytes(&c), 9 * 256);
    assert_false(carve_take(&c, 9 * 256, 0, &at)); /* there, but not in one run */
    assert_int_equal(take(&c, 8 * 256, 0), base + 8 * 256);
    assert_null(carve_give(&c, b, 256));
    carve_close(&c);
}

static void tags_and_stretches_stay_apart(void **state) {
    (void)state;
    struct carve c = {0};
    uint64_t at;
    assert_true(carve_add(&c, base, 1024, 1) && carve_add(&c, base + 1024, 1024, 1));
    assert_true(carve_add(&c, 4 * base, 2048, 2));
    assert_false(carve_take(&c, 2048, 1, &at)); /* side by side, but two */
    assert_int_equal(take(&c, 1024, 1), base);
    assert_int_equal(take(&c, 1024, 1), base + 1024);
    assert_false(carve_take(&c, 256, 1, &at));
    assert_int_equal(take(&c, 2048, 2), 4 * base);
    assert_int_equal(carve_find(&c, base + 1500)->at, base + 1024);
    assert_null(carve_find(&c, base + 2048));
    const struct carve_stretch *empty = carve_give(&c, base, 1024);
    assert_true(empty && empty->at == base);
    carve_drop(&c, empty);
    assert_int_equal(carve_held(&c), 1024 + 2048);
    assert_int_equal(carve_find(&c, base + 1024)->tag, 1);
    carve_close(&c);
}

/* Against books of our own that know each granule's owner. */
static void random_pieces_never_overlap_and_nothing_is_lost(void **state) {
    (void)state;
    enum { GRANULES = 300, SLOTS = 64, ROUNDS = 20000 };
    static int owner[GRANULES];
    uint64_t at[SLOTS] = {0}, seed = 7;
    size_t bytes[SLOTS] = {0}, taken = 0;
    struct carve c = {0};
    assert_true(carve_add(&c, base, GRANULES * CARVE_ALIGN, 0));
    for (int round = 0; round < ROUNDS; round++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        int slot = (int)(seed >> 33) % SLOTS;
        if (bytes[slot]) {
            for (size_t g = (at[slot] - base) / CARVE_ALIGN, n = bytes[slot] / CARVE_ALIGN; n > 0; n--, g++) {
                assert_int_equal(owner[g], slot + 1);
                owner[g] = 0;
            }
            taken -= bytes[slot];
            const struct carve_stretch *empty = carve_give(&c, at[slot], bytes[slot]);
            assert_true(!empty == (taken > 0));
            bytes[slot] = 0;
        } else {
            size_t wanted = (size_t)(1 + (seed >> 40) % 24) * CARVE_ALIGN, longest = carve_longest(&c, 0);
            assert_true(carve_take(&c, wanted, 0, &at[slot]) == (wanted <= longest));
            if (wanted > longest) continue;
            bytes[slot] = wanted;
            taken += wanted;
            for (size_t g = (at[slot] - base) / CARVE_ALIGN, n = wanted / CARVE_ALIGN; n > 0; n--, g++) {
                assert_int_equal(owner[g], 0);
                owner[g] = slot + 1;
            }
        }
        assert_int_equal(carve_free_bytes(&c), GRANULES * CARVE_ALIGN - taken);
    }
    for (int slot = 0; slot < SLOTS; slot++)
        if (bytes[slot]) carve_give(&c, at[slot], bytes[slot]);
    assert_int_equal(carve_longest(&c, 0), GRANULES * CARVE_ALIGN);
    carve_close(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(neighbours_merge_whatever_the_order),
        cmocka_unit_test(what_fits_best_is_taken_and_what_does_not_fit_refused),
        cmocka_unit_test(tags_and_stretches_stay_apart),
        cmocka_unit_test(random_pieces_never_overlap_and_nothing_is_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
