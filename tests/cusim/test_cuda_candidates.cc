/* Candidates for tokens: what the device finds in a row, alone or in parts, is what the row has. */
#include "both.h"

#include <algorithm>

/* What a token of the row is worth by the wish. */
static double worth(const std::vector<float> &row, int32_t id, const struct candidates_wish &wish) {
    double l = row[(size_t)id];
    return wish.cold > 0 ? race_key(wish.bits, id, l * wish.cold) : l;
}

/* The best of a row and its sums by the plainest way. */
static struct candidates expected(const std::vector<float> &row, const struct candidates_wish &wish) {
    struct candidates c = {};
    std::vector<int32_t> order(row.size());
    std::vector<double> key(row.size());
    for (size_t i = 0; i < row.size(); i++) {
        order[i] = (int32_t)i;
        key[i] = worth(row, (int32_t)i, wish);
    }
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return key[(size_t)a] > key[(size_t)b]; });
    c.of = (int32_t)row.size();
    c.n = std::min(c.of, (int32_t)CANDIDATES);
    for (int32_t i = 0; i < c.n; i++) {
        c.id[i] = order[(size_t)i];
        c.logit[i] = row[(size_t)order[(size_t)i]];
    }
    c.max = *std::max_element(row.begin(), row.end());
    for (int s = 0; s < 2; s++)
        for (float l : row) c.sum[s] += std::exp(((double)l - c.max) * wish.factor[s]);
    return c;
}

/* A list of a race is in its order but for fp32's rounding: in each place stands one that is worth what belongs there. */
static void check_race(const struct candidates &got, const struct candidates &want, const std::vector<float> &row,
                       const struct candidates_wish &wish) {
    std::vector<bool> seen(row.size());
    for (int32_t i = 0; i < want.n; i++) {
        assert_in_range(got.id[i], 0, row.size() - 1);
        double is = worth(row, got.id[i], wish), right = worth(row, want.id[i], wish);
        double rounding = 1e-6 * (std::fabs(right) + std::fabs((double)want.max * wish.cold) + 20);
        if (!(std::fabs(is - right) <= rounding))
            fail_msg("in place %d of %d stands %d with %.9g, not %.9g", i, want.n, got.id[i], is, right);
        assert_true(got.logit[i] == row[(size_t)got.id[i]]);
        assert_false(seen[(size_t)got.id[i]]);
        seen[(size_t)got.id[i]] = true;
    }
}

static void check(const struct candidates &got, const std::vector<float> &row, const struct candidates_wish &wish) {
    struct candidates want = expected(row, wish);
    assert_int_equal(got.strange, 0);
    assert_int_equal(got.of, want.of);
    assert_int_equal(got.n, want.n);
    assert_true(got.max == want.max);
    for (int s = 0; s < 2; s++)
        if (wish.factor[s] > 0 && !(std::fabs(got.sum[s] - want.sum[s]) <= 1e-12 * want.sum[s]))
            fail_msg("sum %d is %.17g, not %.17g", s, got.sum[s], want.sum[s]);
    if (wish.cold > 0) return check_race(got, want, row, wish);
    for (int32_t i = 0; i < want.n; i++)
        if (got.id[i] != want.id[i] || got.logit[i] != want.logit[i])
            fail_msg("candidate %d of %d is %d (%.9g), not %d (%.9g)", i, want.n, got.id[i],
                     (double)got.logit[i], want.id[i], (double)want.logit[i]);
}

/* All rows' candidates as n ranks find them, each in its part of the vocabulary, some of which are empty. */
static std::vector<struct candidates> find(const std::vector<std::vector<float>> &rows, int n,
                                           const std::vector<struct candidates_wish> &wishes) {
    int32_t T = (int32_t)rows.size(), V = (int32_t)rows[0].size();
    std::vector<int32_t> cut = {0};
    for (int r = 1; r < n; r++) cut.push_back(random_int(0, V));
    std::sort(cut.begin(), cut.end());
    cut.push_back(V);
    std::vector<std::vector<struct candidates>> parts((size_t)n);
    struct both dwishes = put(wishes.data(), wishes.size() * sizeof wishes[0]);
    for (int r = 0; r < n; r++) {
        int32_t from = cut[(size_t)r], width = cut[(size_t)r + 1] - from;
        std::vector<float> mine;
        for (auto &row : rows) mine.insert(mine.end(), row.begin() + from, row.begin() + from + width);
        struct both logits = put(mine), out = put(nullptr, (size_t)T * CANDIDATES_BYTES);
        struct both work = put(nullptr, (size_t)T * candidates_work(width) * CANDIDATES_BYTES);
        gpu->ops->candidates(gpu, out.at[1], work.at[1], logits.at[1], dwishes.at[1], T, width, from);
        parts[(size_t)r] = get<struct candidates>(gpu, out);
        drop({logits, out, work});
    }
    drop({dwishes});
    std::vector<struct candidates> joined((size_t)T);
    for (int32_t t = 0; t < T; t++) {
        std::vector<struct candidates> of_row;
        for (auto &part : parts) of_row.push_back(part[(size_t)t]);
        candidates_join(&joined[(size_t)t], of_row.data(), n, &wishes[(size_t)t]);
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
    std::vector<struct candidates_wish> wishes;
    for (int t = 0; t < T; t++) {
        rows.push_back(random_row(V));
        wishes.push_back({{choices[random_int(0, 3)], (float)random_int(0, 1)}, 0, {0, 0}});
        if (random_int(0, 1)) continue;
        wishes[(size_t)t].cold = choices[random_int(1, 3)];
        for (uint32_t &word : wishes[(size_t)t].bits) word = random_u32();
    }
    std::vector<struct candidates> got = find(rows, n, wishes);
    for (int t = 0; t < T; t++) check(got[(size_t)t], rows[(size_t)t], wishes[(size_t)t]);
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
    std::vector<struct candidates_wish> wishes = {{{1, 1}, 0, {0, 0}}};
    check(find({row}, 1, wishes)[0], row, wishes[0]);
    check(find({row}, 3, wishes)[0], row, wishes[0]);
}

static void a_logit_that_is_not_finite_is_told_of_its_row_alone(void **) {
    for (float bad : {NAN, INFINITY, -INFINITY, -NAN}) {
        std::vector<std::vector<float>> rows = {random_row(600), random_row(600), random_row(600)};
        std::vector<struct candidates_wish> wishes = {{{1, 1}, 0, {0, 0}}, {{0, 0}, 1, {5, 6}}, {{1, 0}, 1, {5, 6}}};
        rows[1][(size_t)random_int(0, 599)] = bad;
        std::vector<struct candidates> got = find(rows, 3, wishes);
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
