/* A step of a model on ranks with devices: of rows that candidates do for, nothing else crosses the bus; each row is
 * what it is whatever was wished for those beside it; and a row that was left on the devices can still be had. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#define _Atomic /* of model.h, which is C */
extern "C" {
#include <cmocka.h>

#include "model/model.h"
#include "ranks/ranks.h"
}
#undef _Atomic

#include "kernels/cuda/port.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

enum { SEQS = 4, BLOCK = 16 };

static size_t bytes_to_host() {
#ifdef TPD_CUSIM
    return cusim::bytes_to_host();
#else
    return 0;
#endif
}

enum { TURNS = 4 };

struct outcome {
    std::vector<float> logits;
    std::vector<struct candidates> few;
    size_t bytes;
};

struct stage {
    struct model *model;
    struct shard_plan plan;
    struct ranks *ranks;
    int n;
    /* what the driver saw; it is judged on the test's own thread */
    struct outcome all, few[TURNS], late[TURNS];
};

static int load_unit(struct rank *rank, void *arg, struct error *e) {
    auto *s = static_cast<struct stage *>(arg);
    struct shard_options o = {};
    o.max_rows = o.max_out = o.max_seqs = o.kv_blocks = SEQS;
    o.block_size = BLOCK;
    o.max_blocks = 1;
    o.kv_type = DTYPE_F32;
    o.candidates = true;
    return shard_load(reinterpret_cast<struct shard **>(&rank->state), s->model, &s->plan, rank->ctx, rank->comm,
                      &o, e);
}

static int free_unit(struct rank *rank, void *, struct error *) {
    shard_free(static_cast<struct shard *>(rank->state));
    rank->state = nullptr;
    return 0;
}

static int forward_unit(struct rank *rank, void *arg, struct error *e) {
    return model_forward(static_cast<struct shard *>(rank->state), static_cast<struct step *>(arg), e);
}

struct row_order {
    int32_t row;
    float *logits;
};

static int row_unit(struct rank *rank, void *arg, struct error *e) {
    auto *order = static_cast<struct row_order *>(arg);
    return model_whole_row(static_cast<struct shard *>(rank->state), order->row, order->logits, e);
}

/* On any thread. */
static void must(int err, const struct error &e) {
    if (!err) return;
    fprintf(stderr, "%s\n", e.message);
    abort();
}

/* The last sequence's token is drawn from the whole vocabulary. */
static struct candidates_wish wish_of(int seq) {
    return {{0.7f, 1.0f}, seq == SEQS - 1 ? 1.5f : 0.0f, {77, 88}};
}

/* The same step each time, one row of each sequence: its keys and values are written over with what they were. */
static struct outcome run(struct stage *s, const bool (&whole)[SEQS]) {
    static const int32_t ids[SEQS] = {3, 99, 3, 200}, pos[SEQS] = {0, 0, 0, 0}, len[SEQS] = {1, 1, 1, 1};
    static const int32_t rows[SEQS] = {0, 1, 2, 3};
    size_t vocab = (size_t)model_config(s->model)->vocab;
    struct outcome out = {std::vector<float>(SEQS * vocab), std::vector<struct candidates>(SEQS), bytes_to_host()};
    struct logits_wish wishes[SEQS];
    struct step step = {};
    struct error e;
    for (int i = 0; i < SEQS; i++) wishes[i] = {whole[i], wish_of(i)};
    step.n_rows = step.n_seqs = step.n_out = SEQS;
    step.ids = ids;
    step.pos = pos;
    step.len = len;
    step.seq = step.blocks = step.out_rows = rows;
    step.logits = out.logits.data();
    step.wishes = wishes;
    step.candidates = out.few.data();
    must(ranks_run(s->ranks, forward_unit, &step, &e), e);
    out.bytes = bytes_to_host() - out.bytes;
    return out;
}

/* Plain, recorded, and as it was recorded, without and with a row that is wanted whole. */
static bool is_mixed(int turn) { return turn % 2 == 1; }

static void drive(struct ranks *ranks, void *arg) {
    auto *s = static_cast<struct stage *>(arg);
    struct error e;
    s->ranks = ranks;
    must(ranks_run(ranks, load_unit, s, &e), e);
    s->all = run(s, {true, true, true, true});
    for (int turn = 0; turn < TURNS; turn++) {
        s->few[turn] = run(s, {false, is_mixed(turn), false, false});
        struct outcome &late = s->late[turn];
        late.logits.resize((size_t)model_config(s->model)->vocab);
        late.bytes = bytes_to_host();
        struct row_order order = {2, late.logits.data()};
        must(ranks_run(ranks, row_unit, &order, &e), e);
        late.bytes = bytes_to_host() - late.bytes;
    }
    must(ranks_run(ranks, free_unit, nullptr, &e), e);
}

static void check_row(const struct candidates &c, const float *row, int32_t vocab, const struct candidates_wish &wish) {
    auto worth = [&](int32_t id) {
        return wish.cold > 0 ? race_key(wish.bits, id, (double)row[id] * wish.cold) : (double)row[id];
    };
    assert_int_equal(c.n, CANDIDATES);
    assert_int_equal(c.of, vocab);
    int32_t best = 0;
    for (int32_t v = 1; v < vocab; v++) best = worth(v) > worth(best) ? v : best;
    assert_int_equal(c.id[0], best);
    for (int k = 0; k < c.n; k++) assert_true(c.logit[k] == row[c.id[k]]);
}

static void check(const struct stage &s, int turn) {
    const struct outcome &got = s.few[turn], &late = s.late[turn];
    size_t vocab = (size_t)model_config(s.model)->vocab, row_bytes = vocab * sizeof(float);
    size_t lists = (size_t)SEQS * (size_t)s.n * CANDIDATES_BYTES;
    if (bytes_to_host() > 0) {
        assert_int_equal(got.bytes, lists + (is_mixed(turn) ? row_bytes : 0));
        assert_int_equal(late.bytes, row_bytes);
    }
    for (int i = 0; i < SEQS; i++) {
        const float *want = &s.all.logits[(size_t)i * vocab];
        if (i == 1 && is_mixed(turn)) {
            assert_int_equal(got.few[1].n, 0);
            assert_memory_equal(&got.logits[vocab], want, row_bytes);
        } else check_row(got.few[(size_t)i], want, (int32_t)vocab, wish_of(i));
    }
    /* Rows of the same token are the same, beside whatever. */
    assert_memory_equal(&got.few[0], &got.few[2], sizeof got.few[0]);
    assert_memory_equal(late.logits.data(), &s.all.logits[2 * vocab], row_bytes);
}

static void of_rows_that_candidates_do_for_nothing_else_crosses_the_bus(void **) {
    for (int n : {1, 2}) {
        struct stage s = {};
        struct ranks_options o = {};
        struct error e;
        s.n = n;
        must(model_open(&s.model, "tests/data/models/tiny-chat", &e), e);
        must(model_plan(s.model, n, &s.plan, &e), e);
        o.device = RANK_CUDA;
        o.n = n;
        o.n_gpus = 1; /* which a real machine has, too */
        o.same_bits = true;
        core_set_allowed(&o.cores);
        must(ranks_start(&s.ranks, &o, drive, &s, &e), e);
        ranks_join(s.ranks);
        for (int turn = 0; turn < TURNS; turn++) check(s, turn);
        model_free(s.model);
    }
}

int main() {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(of_rows_that_candidates_do_for_nothing_else_crosses_the_bus),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
