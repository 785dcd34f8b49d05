/* Sequence parallel: the rows of the residual stream dealt over ranks change neither losses nor what is
 * learnt, however unevenly they are dealt; they take less memory, to the byte; and forward moves no more
 * bytes between ranks than before. That it is PyTorch's training is test_train_golden's. */
#include "tests/unit/model_runner.h"

#include "model/train.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MODEL "tests/data/models/llama-gqa-tied"

enum { MAX_ROWS = 64, MAX_TENSORS = 64, STEPS = 3 };

struct learning {
    struct train_options options;
    int32_t rows;
    struct runner *runner;
    struct trainee *on_rank[PLAN_MAX_RANKS];
    /* what came of it */
    double losses[STEPS], eval_loss;
    float *final[MAX_TENSORS];
    size_t floats[MAX_TENSORS];
    int n_tensors;
    uint64_t forward_bytes, backward_bytes; /* of all ranks, in the first step */
    size_t activations;                     /* of rank 0 */
};

struct unit {
    struct learning *l;
    enum { NEW, FREE, STEP, EVALUATE, GET } what;
    int index;
    uint64_t forward[PLAN_MAX_RANKS], backward[PLAN_MAX_RANKS];
    double loss;
    size_t activations;
};

static int forward(struct trainee *t, const struct train_batch *b, int layers, double *loss,
                   struct error *e) {
    trainee_begin(t, b);
    for (int i = 0; i < layers; i++) trainee_forward(t, i);
    for (int32_t i = 0; i < trainee_loss_chunks(t); i++) trainee_loss_chunk(t, i);
    return trainee_loss(t, loss, e);
}

static int backward(struct trainee *t, int layers, struct error *e) {
    for (int i = layers; i-- > 0;) trainee_backward(t, i);
    int err = trainee_end(t, e);
    double norm;
    struct adamw_params adamw = {1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.1f, 0.05f};
    if (!err) err = trainee_norm(t, &norm, e);
    for (int i = 0; i < trainee_slices(t) && !err; i++)
        err = trainee_update(t, i, &adamw, norm > 1 ? (float)(1 / norm) : 1, e);
    return err;
}

/* Two sequences in a row; every fifth row is not trained. */
static int step(struct learning *l, struct trainee *t, struct rank *rank, bool evaluate,
                struct unit *u, struct error *e) {
    int32_t ids[MAX_ROWS], pos[MAX_ROWS], labels[MAX_ROWS], first[MAX_ROWS], len[MAX_ROWS];
    int32_t T = l->rows, cut = T > 2 ? T * 2 / 3 : T, layers = model_config(l->runner->model)->n_layers;
    for (int32_t i = 0; i < T; i++) {
        first[i] = i < cut ? 0 : cut;
        pos[i] = i - first[i];
        len[i] = i < cut ? cut : T - cut;
        ids[i] = 3 + i * 7 % 40;
        labels[i] = i % 5 == 4 ? -1 : 3 + (i + 1) * 7 % 40;
    }
    struct train_batch b = {T, ids, pos, labels, first, len, 1 / (float)T, 1, evaluate};
    uint64_t at = comm_received(rank->comm);
    double loss;
    int err = forward(t, &b, layers, &loss, e);
    u->forward[rank->index] = comm_received(rank->comm) - at;
    at = comm_received(rank->comm);
    if (!err && !evaluate) err = backward(t, layers, e);
    u->backward[rank->index] = comm_received(rank->comm) - at;
    if (rank->index == 0) u->loss = loss;
    return err;
}

static int learning_unit(struct rank *rank, void *arg, struct error *e) {
    struct unit *u = arg;
    struct learning *l = u->l;
    struct trainee *t = l->on_rank[rank->index];
    struct mem_use use;
    int err = 0;
    switch (u->what) {
    case NEW:
        rank->ctx->ops->mem_use(rank->ctx, &use);
        size_t before = use.bytes[MEM_ACTIVATIONS];
        err = trainee_new(&l->on_rank[rank->index], l->runner->model, rank->state, &l->options, e);
        rank->ctx->ops->mem_use(rank->ctx, &use);
        if (rank->index == 0) u->activations = use.bytes[MEM_ACTIVATIONS] - before;
        break;
    case FREE: trainee_free(t); break;
    case STEP: return step(l, t, rank, false, u, e);
    case EVALUATE: return step(l, t, rank, true, u, e);
    case GET: return trainee_get(t, u->index, PART_VALUE, l->final[u->index], e);
    }
    return err;
}

static struct unit run(struct learning *l, int what, int index) {
    struct unit u = {.l = l, .what = what, .index = index};
    struct error e = {0};
    if (ranks_run(l->runner->ranks, learning_unit, &u, &e))
        fail_msg("%d rows, tp %d: %s", l->rows, l->runner->plan.n, e.message);
    return u;
}

static void learn_body(struct runner *r, void *arg) {
    struct learning *l = arg;
    l->runner = r;
    l->activations = run(l, NEW, 0).activations;
    for (int i = 0; i < STEPS && l->rows > 0; i++) {
        struct unit u = run(l, STEP, 0);
        l->losses[i] = u.loss;
        for (int k = 0; k < r->plan.n && i == 0; k++) {
            l->forward_bytes += u.forward[k];
            l->backward_bytes += u.backward[k];
        }
    }
    if (l->rows > 0) l->eval_loss = run(l, EVALUATE, 0).loss;
    l->n_tensors = trainee_tensor_count(l->on_rank[0]);
    assert_true(l->n_tensors <= MAX_TENSORS);
    for (int i = 0; i < l->n_tensors && l->rows > 0; i++) {
        struct train_tensor tensor;
        trainee_tensor(l->on_rank[0], i, &tensor);
        l->floats[i] = (size_t)tensor.rows * (size_t)tensor.cols;
        l->final[i] = calloc(l->floats[i], sizeof(float));
        run(l, GET, i);
    }
    run(l, FREE, 0);
}

static struct learning learn(int tp, enum rank_device device, int32_t rows,
                             struct train_options options) {
    options.rank = 4;
    options.scale = 2;
    options.targets = TRAIN_ALL_TARGETS;
    options.max_rows = MAX_ROWS;
    options.loss_rows = 10;
    options.seed = 5;
    struct learning l = {.options = options, .rows = rows};
    struct runner_options o = {.tp = tp, .device = device};
    runner_run(MODEL, &o, learn_body, &l);
    return l;
}

static void learning_free(struct learning *l) {
    for (int i = 0; i < l->n_tensors; i++) free(l->final[i]);
}

static void expect_same_bits(const struct learning *a, const struct learning *b) {
    assert_memory_equal(a->losses, b->losses, sizeof a->losses);
    assert_true(a->eval_loss == b->eval_loss);
    assert_int_equal(a->n_tensors, b->n_tensors);
    for (int i = 0; i < a->n_tensors; i++)
        assert_memory_equal(a->final[i], b->final[i], a->floats[i] * sizeof(float));
}

/* Each sum is over the same numbers in the same order, wherever the rows are. */
static void an_adapter_learns_the_same_bits(void **state) {
    (void)state;
    for (int tp = 2; tp <= 4; tp++)
        for (int32_t rows = 1; rows <= 40; rows += 13) { /* tp 4 and 1 row: three ranks have none */
            struct train_options o = {.method = TRAIN_LORA, .dropout = 0.2f};
            struct learning without = learn(tp, RANK_CPU, rows, o);
            o.sequence_parallel = true;
            struct learning with = learn(tp, RANK_CPU, rows, o);
            expect_same_bits(&without, &with);
            assert_true(with.losses[0] > 0);
            learning_free(&without);
            learning_free(&with);
        }
}

static void checkpointing_changes_no_bit(void **state) {
    (void)state;
    struct train_options o = {.method = TRAIN_FULL, .sequence_parallel = true};
    struct learning without = learn(3, RANK_CPU, 32, o);
    o.checkpoint_layers = INT32_MAX;
    struct learning with = learn(3, RANK_CPU, 32, o);
    expect_same_bits(&without, &with);
    learning_free(&without);
    learning_free(&with);
}

/* What is kept in bf16 is rounded on both ways. */
static void checkpointing_changes_no_bit_in_bf16(void **state) {
    (void)state;
    for (int method = TRAIN_LORA; method <= TRAIN_FULL; method++) {
        struct train_options o = {.method = (enum train_method)method, .bf16 = true};
        struct learning without = learn(2, RANK_CPU, 32, o);
        o.checkpoint_layers = 1;
        struct learning with = learn(2, RANK_CPU, 32, o);
        expect_same_bits(&without, &with);
        learning_free(&without);
        learning_free(&with);
    }
}

/* x_in and x_mid of each layer (checkpointing: one x_mid), x_out and dx. */
static void the_stream_takes_a_share_of_its_memory_on_each_rank(void **state) {
    (void)state;
    struct model *m;
    struct error e = {0};
    if (model_open(&m, MODEL, &e)) fail_msg("%s", e.message);
    size_t layers = (size_t)model_config(m)->n_layers, d = (size_t)model_config(m)->hidden;
    model_free(m);
    for (int tp = 1; tp <= 4; tp *= 2)
        for (int checkpointing = 0; checkpointing < 2; checkpointing++) {
            struct train_options o = {.method = TRAIN_FULL, .checkpoint_layers = checkpointing ? INT32_MAX : 0};
            size_t without = learn(tp, RANK_PLAN, 0, o).activations;
            o.sequence_parallel = true;
            size_t with = learn(tp, RANK_PLAN, 0, o).activations;
            size_t streams = layers + (checkpointing ? 1 : layers) + 2;
            size_t saved = MAX_ROWS * (size_t)(tp - 1) / (size_t)tp;
            assert_int_equal(without - with, streams * saved * d * sizeof(float));
        }
}

/* Two halves of an all-reduce in place of each. At the ends, the embedding is only scattered, the head's
 * input gathered and its gradient scattered: three halves for four, since an adapter's job needs no
 * gradient of the embedding. Backward gathers once more what enters the linear layers, which is not kept
 * whole. */
static void forward_moves_no_more_bytes(void **state) {
    (void)state;
    for (int device = RANK_CPU; device <= RANK_PLAN; device++) {
        struct train_options o = {.method = TRAIN_LORA};
        struct learning without = learn(2, (enum rank_device)device, 30, o);
        o.sequence_parallel = true;
        struct learning with = learn(2, (enum rank_device)device, 30, o);
        struct model *m;
        struct error e = {0};
        if (model_open(&m, MODEL, &e)) fail_msg("%s", e.message);
        const struct model_config *c = model_config(m);
        uint64_t gather = 30 * (uint64_t)c->hidden * sizeof(float); /* over both ranks */
        assert_int_equal(with.forward_bytes + gather, without.forward_bytes);
        assert_int_equal(with.backward_bytes - without.backward_bytes,
                         2 * (uint64_t)c->n_layers * gather);
        model_free(m);
        learning_free(&without);
        learning_free(&with);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_adapter_learns_the_same_bits),
        cmocka_unit_test(checkpointing_changes_no_bit),
        cmocka_unit_test(checkpointing_changes_no_bit_in_bf16),
        cmocka_unit_test(the_stream_takes_a_share_of_its_memory_on_each_rank),
        cmocka_unit_test(forward_moves_no_more_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
