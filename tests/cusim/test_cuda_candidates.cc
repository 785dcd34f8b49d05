/* Candidates for tokens: what the device finds in a row, alone or in parts, is what the row has. */
#include "both.h"

#include <algorithm>

/* The best of a row and its sums by the plainest way. */
static struct candidates expected(const std::vector<float> &row, const float *factor) {
    struct candidates c = {};
    std::vector<int32_t> order(row.size());
    for (size_t i = 0; i < row.size(); i++) order[i] = (int32_t)i;
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return row[(size_t)a] > row[(size_t)b]; });
    c.of = (int32_t)row.size();
    c.n = std::min(c.of, (int32_t)CANDIDATES);
    for (int32_t i = 0; i < c.n; i++) {
        c.id[i] = order[(size_t)i];
        c.logit[i] = row[(size_t)order[(size_t)i]];
    }
    c.max = c.n ? c.logit[0] : -INFINITY;
    for (int s = 0; s < 2; s++)
        for (float l : row) c.sum[s] += std::exp(((double)l - c.max) * factor[s]);
    return c;
}

static void check(const struct candidates &got, const struct candidates &want, const float *factor) {
    assert_int_equal(got.strange, 0);
    assert_int_equal(got.of, want.of);
    assert_int_equal(got.n, want.n);
    assert_true(got.max == want.max);
    for (int32_t i = 0; i < want.n; i++)
        if (got.id[i] != want.id[i] || got.logit[i] != want.logit[i])
            fail_msg("candidate %d of %d is %d (%.9g), not %d (%.9g)", i, want.n, got.id[i],
                     (double)got.logit[i], want.id[i], (double)want.logit[i]);
    for (int s = 0; s < 2; s++)
        if (factor[s] > 0 && !(std::fabs(got.sum[s] - want.sum[s]) <= 1e-12 * want.sum[s]))
            fail_msg("sum %d is %.17g, not %.17g", s, got.sum[s], want.sum[s]);
}

/* All rows' candidates as n ranks find them, each in its part of the vocabulary, some of which are empty. */
static std::vector<struct candidates> find(const std::vector<std::vector<float>> &rows, int n,
                                           const std::vector<float> &factors) {
    int32_t T = (int32_t)rows.size(), V = (int32_t)rows[0].size();
    std::vector<int32_t> cut = {0};
    for (int r = 1; r < n; r++) cut.push_back(random_int(0, V));
    std::sort(cut.begin(), cut.end());
    cut.push_back(V);
    std::vector<std::vector<struct candidates>> parts((size_t)n);
    struct both dfactors = put(factors);
    for (int r = 0; r < n; r++) {
        int32_t from = cut[(size_t)r], width = cut[(size_t)r + 1] - from;
        std::vector<float> mine;
        for (auto &row : rows) mine.insert(mine.end(), row.begin() + from, row.begin() + from + width);
        struct both logits = put(mine), out = put(nullptr, (size_t)T * CANDIDATES_BYTES);
        struct both work = put(nullptr, (size_t)T * candidates_work(width) * CANDIDATES_BYTES);
        gpu->ops->candidates(gpu, out.at[1], work.at[1], logits.at[1], dfactors.at[1], T, width, from);
        parts[(size_t)r] = get<struct candidates>(gpu, out);
        drop({logits, out, work});
    }
    drop({dfactors});
    std::vector<struct candidates> joined((size_t)T);
    for (int32_t t = 0; t < T; t++) {
        std::vector<struct candidates> of_row;
        for (auto &part : parts) of_row.push_back(part[(size_t)t]);
        candidates_join(&joined[(size_t)t], of_row.data(), n, &factors[2 * (size_t)t]);
    }
    return joined;
}

static std::vector<float> random_row(int32_t V) {
    std::vector<float> row = random_floats((size_t)V);
    float scale = std::pow(10.0f, (float)random_int(-2, 2));
    for (float &l : row) l *= scale;
    if (random_int(0, 2) == 0) /* ties, many */
        for (float &l : row) l = std::floor(l * 4 / scale);
    return row;
}

static void compare(int32_t V, int T, int n) {
    static const float choices[] = {0, 1, 0.5f, 30};
    std::vector<std::vector<float>> rows;
    std::vector<float> factors;
    for (int t = 0; t < T; t++) {
        rows.push_back(random_row(V));
        factors.push_back(choices[random_int(0, 3)]);
        factors.push_back((float)random_int(0, 1));
    }
    std::vector<struct candidates> got = find(rows, n, factors);
    for (int t = 0; t < T; t++)
        check(got[(size_t)t], expected(rows[(size_t)t], &factors[2 * (size_t)t]), &factors[2 * (size_t)t]);
}

static void the_best_of_a_row_are_found_in_one_part_or_eight(void **) {
    for (int n = 1; n <= 8; n++) compare(random_int(1, 900), random_int(1, 3), n);
    const int32_t few = CANDIDATES, slice = CANDIDATES_SLICE;
    for (int32_t V : {1, 2, few - 1, few, few + 1, slice, slice + 1})
        compare(V, 1, 1);
    compare(3 * CANDIDATES_SLICE - 7, 2, 2);
}

static void a_vocabulary_of_more_slices_than_a_block_takes_lists(void **) {
    compare(33 * CANDIDATES_SLICE + 5, 1, 1);
}

static void of_equals_the_lowest_ids_are_taken(void **) {
    std::vector<float> row((size_t)CANDIDATES_SLICE + 300, 0.0f);
    for (size_t i = 0; i < row.size(); i += 3) row[i] = -0.0f;
    std::vector<float> factors = {1, 1};
    check(find({row}, 1, factors)[0], expected(row, factors.data()), factors.data());
    check(find({row}, 3, factors)[0], expected(row, factors.data()), factors.data());
}

static void a_logit_that_is_not_finite_is_told_of_its_row_alone(void **) {
    for (float bad : {NAN, INFINITY, -INFINITY, -NAN}) {
        std::vector<std::vector<float>> rows = {random_row(600), random_row(600), random_row(600)};
        std::vector<float> factors = {1, 1, 0, 0, 1, 0};
        rows[1][(size_t)random_int(0, 599)] = bad;
        std::vector<struct candidates> got = find(rows, 3, factors);
        assert_int_equal(got[0].strange, 0);
        assert_true(got[1].strange != 0);
        assert_int_equal(got[2].strange, 0);
    }
}

int main() {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_best_of_a_row_are_found_in_one_part_or_eight),
        cmocka_unit_test(a_vocabulary_of_more_slices_than_a_block_takes_lists),
        cmocka_unit_test(of_equals_the_lowest_ids_are_taken),
        cmocka_unit_test(a_logit_that_is_not_finite_is_told_of_its_row_alone),
    };
    return cmocka_run_group_tests(tests, open_both, close_both);
}
