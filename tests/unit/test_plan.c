/* The shard plan: every part of the model has a holder, and the bytes come out even. */
#include "model/plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static struct model_config config_of(int32_t heads, int32_t kv, int32_t head_dim, int32_t ffn,
                                     int32_t vocab) {
    return (struct model_config){.n_heads = heads,
                                 .n_kv_heads = kv,
                                 .head_dim = head_dim,
                                 .hidden = heads * head_dim,
                                 .ffn = ffn,
                                 .vocab = vocab,
                                 .n_layers = 1};
}

static void check_whole(const struct model_config *c, const struct shard_plan *p, int32_t grain) {
    int32_t group = c->n_heads / c->n_kv_heads;
    assert_int_equal(p->head[0], 0);
    assert_int_equal(p->head[p->n], c->n_heads);
    assert_int_equal(p->ffn[0], 0);
    assert_int_equal(p->ffn[p->n], c->ffn);
    assert_int_equal(p->vocab[0], 0);
    assert_int_equal(p->vocab[p->n], c->vocab);
    for (int r = 0; r < p->n; r++) {
        assert_true(p->head[r + 1] > p->head[r]);
        assert_true(p->ffn[r + 1] >= p->ffn[r] + (r == 0));
        assert_true(p->vocab[r + 1] >= p->vocab[r]);
        if (r + 1 < p->n) assert_int_equal(p->ffn[r + 1] % grain, 0);
        /* exactly the KV heads that the query heads need */
        assert_int_equal(p->kv_first[r], p->head[r] / group);
        assert_int_equal(p->kv_first[r] + p->kv_count[r] - 1, (p->head[r + 1] - 1) / group);
    }
}

static void every_tp_up_to_the_query_heads_holds_the_whole_model(void **state) {
    (void)state;
    const int32_t shapes[][5] = {/* heads, kv, head_dim, ffn, vocab */
                                 {9, 3, 64, 1536, 49152}, {8, 4, 8, 172, 512}, {32, 4, 64, 5632, 32000},
                                 {40, 10, 128, 8192, 49155}, {4, 1, 8, 52, 97}, {1, 1, 64, 64, 3},
                                 {64, 8, 128, 28672, 128256}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const int32_t *s = shapes[i];
        struct model_config c = config_of(s[0], s[1], s[2], s[3], s[4]);
        for (int32_t grain = 1; grain <= 256; grain *= 4) {
            if (s[3] % grain) continue;
            for (int n = 1; n <= s[0]; n++) {
                struct shard_plan p;
                assert_int_equal(shard_plan_make(&p, &c, n, grain, NULL), 0);
                check_whole(&c, &p, grain);
            }
        }
    }
}

static void tp_over_the_query_heads_is_refused_and_says_the_largest(void **state) {
    (void)state;
    struct model_config c = config_of(9, 3, 64, 1536, 49152);
    struct shard_plan p;
    struct error e;
    assert_int_equal(shard_plan_make(&p, &c, 10, 32, &e), -ERR_CONFIG);
    assert_string_equal(e.message, "tp 10 is not possible for this model: it has 9 query heads, so "
                                   "tp must be from 1 to 9");
    assert_int_equal(shard_plan_make(&p, &c, 0, 32, &e), -ERR_CONFIG);
}

/* A rank that has more to do than its neighbours keeps them waiting: query and KV heads count alike. */
static void no_other_deal_of_heads_is_faster(void **state) {
    (void)state;
    const struct {
        int32_t heads, kv, n, from[8];
    } want[] = {
        {9, 3, 2, {0, 5, 9}}, /* SmolLM2: the KV head in the middle is with both */
        {9, 3, 3, {0, 3, 6, 9}},
        {9, 3, 4, {0, 3, 6, 8, 9}},
        {32, 4, 2, {0, 16, 32}},
        {32, 4, 3, {0, 11, 22, 32}},
        {32, 4, 6, {0, 6, 11, 16, 22, 27, 32}},
        {8, 1, 3, {0, 3, 6, 8}},
        {4, 4, 3, {0, 2, 3, 4}},
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        struct model_config c = config_of(want[i].heads, want[i].kv, 64, 1536, 49152);
        struct shard_plan p;
        assert_int_equal(shard_plan_make(&p, &c, want[i].n, 32, NULL), 0);
        for (int r = 0; r <= want[i].n; r++) assert_int_equal(p.head[r], want[i].from[r]);
    }
}

static void ffn_columns_and_vocabulary_come_out_even(void **state) {
    (void)state;
    struct model_config c = config_of(9, 3, 64, 1536, 49152);
    for (int n = 1; n <= 9; n++) {
        struct shard_plan p;
        assert_int_equal(shard_plan_make(&p, &c, n, 32, NULL), 0);
        for (int r = 0; r < n; r++) {
            int32_t ffn = p.ffn[r + 1] - p.ffn[r], vocab = p.vocab[r + 1] - p.vocab[r];
            assert_in_range(ffn, 1536 / 32 / n * 32, (1536 / 32 + n - 1) / n * 32);
            assert_in_range(vocab, 49152 / n - 16, 49152 / n + 16);
        }
    }
}

static void neighbours_know_what_they_share(void **state) {
    (void)state;
    struct model_config c = config_of(9, 3, 64, 1536, 49152);
    struct shard_plan p;
    assert_int_equal(shard_plan_make(&p, &c, 2, 32, NULL), 0);
    assert_true(shard_plan_shares_kv(&p) && shard_plan_shares_first_kv(&p, 1));
    assert_false(shard_plan_shares_first_kv(&p, 0));
    assert_int_equal(shard_plan_make(&p, &c, 3, 32, NULL), 0);
    assert_false(shard_plan_shares_kv(&p));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_tp_up_to_the_query_heads_holds_the_whole_model),
        cmocka_unit_test(tp_over_the_query_heads_is_refused_and_says_the_largest),
        cmocka_unit_test(no_other_deal_of_heads_is_faster),
        cmocka_unit_test(ffn_columns_and_vocabulary_come_out_even),
        cmocka_unit_test(neighbours_know_what_they_share),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
