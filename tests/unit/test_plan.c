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
        assert_true(p->ffn[r + 1] >= p->ffn[r]);
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

static void uneven_heads_are_evened_out_by_ffn_columns(void **state) {
    (void)state;
    struct model_config c = config_of(9, 3, 64, 1536, 49152); /* SmolLM2-135M */
    struct shard_plan p;
    assert_int_equal(shard_plan_make(&p, &c, 2, 32, NULL), 0);
    assert_int_equal(p.head[1], 6);
    int64_t bytes[2];
    for (int r = 0; r < 2; r++)
        bytes[r] = 2 * (p.head[r + 1] - p.head[r] + p.kv_count[r]) * 64 +
                   3 * (p.ffn[r + 1] - p.ffn[r]);
    assert_true(llabs(bytes[0] - bytes[1]) <= 3 * 32);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_tp_up_to_the_query_heads_holds_the_whole_model),
        cmocka_unit_test(tp_over_the_query_heads_is_refused_and_says_the_largest),
        cmocka_unit_test(uneven_heads_are_evened_out_by_ffn_columns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
