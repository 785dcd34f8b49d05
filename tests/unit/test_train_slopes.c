/* The gradient that backward gives a parameter is the slope of the loss that forward gives: by central
 * differences through the whole model, dropout included, which no golden can pin down. */
#include "tests/unit/model_runner.h"

#include "model/train.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 24, CUT = 15, PROBES = 2, MAX_TENSORS = 64 };

struct learning {
    struct train_options options;
    struct runner *runner;
    struct trainee *on_rank[PLAN_MAX_RANKS];
};

struct unit {
    struct learning *l;
    enum { NEW, FREE, LOSS, BACKWARD, SUM, GET, SET } what;
    int index;
    enum train_part part;
    float *whole;
    double loss; /* of rank 0 */
};

static int forward(struct trainee *t, int layers, double *loss, struct error *e) {
    int32_t ids[ROWS], pos[ROWS], labels[ROWS], first[ROWS], len[ROWS];
    for (int32_t i = 0; i < ROWS; i++) {
        first[i] = i < CUT ? 0 : CUT;
        pos[i] = i - first[i];
        len[i] = i < CUT ? CUT : ROWS - CUT;
        ids[i] = 3 + i * 11 % 60;
        labels[i] = i % 7 == 6 ? -1 : 3 + (i + 1) * 11 % 60;
    }
    struct train_batch b = {ROWS, ids, pos, labels, first, len, 1, 5, false};
    trainee_begin(t, &b);
    for (int i = 0; i < layers; i++) trainee_forward(t, i);
    for (int32_t i = 0; i < trainee_loss_chunks(t); i++) trainee_loss_chunk(t, i);
    return trainee_loss(t, loss, e);
}

static int learning_unit(struct rank *rank, void *arg, struct error *e) {
    struct unit *u = arg;
    struct learning *l = u->l;
    struct trainee *t = l->on_rank[rank->index];
    int layers = model_config(l->runner->model)->n_layers, err = 0;
    double value = 0;
    switch (u->what) {
    case NEW:
        return trainee_new(&l->on_rank[rank->index], l->runner->model, rank->state, &l->options, e);
    case FREE: trainee_free(t); break;
    case LOSS: err = forward(t, layers, &value, e); break;
    case BACKWARD:
        for (int i = layers; i-- > 0;) trainee_backward(t, i);
        err = trainee_end(t, e);
        break;
    case SUM: err = trainee_norm(t, &value, e); break;
    case GET: err = trainee_get(t, u->index, u->part, u->whole, e); break;
    case SET: err = trainee_set(t, u->index, u->part, u->whole, e); break;
    }
    if (rank->index == 0) u->loss = value;
    return err;
}

static double run(struct learning *l, struct unit u) {
    struct error e = {0};
    u.l = l;
    if (ranks_run(l->runner->ranks, learning_unit, &u, &e)) fail_msg("%s", e.message);
    return u.loss;
}

/* The loss with element i of a parameter moved by h. */
static double loss_with(struct learning *l, int index, float *values, size_t i, float h) {
    float old = values[i];
    values[i] = old + h;
    run(l, (struct unit){.what = SET, .index = index, .part = PART_VALUE, .whole = values});
    double loss = run(l, (struct unit){.what = LOSS});
    values[i] = old;
    run(l, (struct unit){.what = SET, .index = index, .part = PART_VALUE, .whole = values});
    return loss;
}

static float *values_of(struct learning *l, int index, enum train_part part,
                        struct train_tensor *tensor) {
    trainee_tensor(l->on_rank[0], index, tensor);
    float *out = malloc((size_t)tensor->rows * (size_t)tensor->cols * sizeof *out);
    run(l, (struct unit){.what = GET, .index = index, .part = part, .whole = out});
    return out;
}

/* A step that is small beside the tensor's own values. */
static float nudge_of(const float *values, size_t n) {
    double squares = 0;
    for (size_t i = 0; i < n; i++) squares += (double)values[i] * (double)values[i];
    return (float)fmax(sqrt(squares / (double)n) / 64, 1e-4);
}

/* The elements with the largest gradients: their slopes stand out of the rounding most. */
static void check_tensor(struct learning *l, int index, float *grad) {
    struct train_tensor tensor;
    float *values = values_of(l, index, PART_VALUE, &tensor);
    size_t n = (size_t)tensor.rows * (size_t)tensor.cols;
    float nudge = nudge_of(values, n);
    for (int probe = 0; probe < PROBES; probe++) {
        size_t at = 0;
        for (size_t i = 1; i < n; i++)
            if (fabsf(grad[i]) > fabsf(grad[at])) at = i;
        /* Two widths take the curvature out (Richardson). */
        double wide = (loss_with(l, index, values, at, nudge) -
                       loss_with(l, index, values, at, -nudge)) / (2 * (double)nudge);
        double narrow = (loss_with(l, index, values, at, nudge / 2) -
                         loss_with(l, index, values, at, -nudge / 2)) / (double)nudge;
        double slope = narrow + (narrow - wide) / 3;
        if (!(fabs(slope - (double)grad[at]) <= 2e-2 * fabs((double)grad[at]) + 5e-3))
            fail_msg("%s[%zu]: the gradient is %g, the slope %g", tensor.name, at,
                     (double)grad[at], slope);
        grad[at] = 0;
    }
    free(values);
}

/* B begins at zero, where A has no gradient. */
static void move_b(struct learning *l) {
    for (int i = 0; i < trainee_tensor_count(l->on_rank[0]); i++) {
        struct train_tensor tensor;
        trainee_tensor(l->on_rank[0], i, &tensor);
        if (!strstr(tensor.name, "lora_B")) continue;
        size_t n = (size_t)tensor.rows * (size_t)tensor.cols;
        float *values = malloc(n * sizeof *values);
        for (size_t k = 0; k < n; k++) values[k] = 0.2f * sinf((float)k * 2.3f + (float)i);
        run(l, (struct unit){.what = SET, .index = i, .part = PART_VALUE, .whole = values});
        free(values);
    }
}

static void body(struct runner *r, void *arg) {
    struct learning *l = arg;
    l->runner = r;
    run(l, (struct unit){.what = NEW});
    move_b(l);
    run(l, (struct unit){.what = LOSS});
    run(l, (struct unit){.what = BACKWARD});
    run(l, (struct unit){.what = SUM});
    /* All first: each loss adds to the gradient of the head. */
    int n = trainee_tensor_count(l->on_rank[0]);
    struct train_tensor tensor;
    float *grads[MAX_TENSORS];
    assert_true(n <= MAX_TENSORS);
    for (int i = 0; i < n; i++) grads[i] = values_of(l, i, PART_GRAD, &tensor);
    for (int i = 0; i < n; i++) {
        check_tensor(l, i, grads[i]);
        free(grads[i]);
    }
    run(l, (struct unit){.what = FREE});
}

static void check(const char *model, int tp, struct train_options options) {
    options.rank = 3;
    options.scale = 1.5f;
    options.targets = TRAIN_ALL_TARGETS;
    options.max_rows = ROWS;
    options.loss_rows = 10;
    options.seed = 9;
    struct learning l = {.options = options};
    struct runner_options o = {.tp = tp, .device = RANK_CPU};
    runner_run(model, &o, body, &l);
}

static void gradients_of_adapters_with_dropout_are_slopes(void **state) {
    (void)state;
    struct train_options o = {.method = TRAIN_LORA, .dropout = 0.3f};
    check("tests/data/models/llama-gqa-tied", 1, o);
    check("tests/data/models/llama-uneven", 3, o);
    o.sequence_parallel = true;
    check("tests/data/models/granite", 2, o);
}

static void gradients_of_whole_models_are_slopes(void **state) {
    (void)state;
    struct train_options o = {.method = TRAIN_FULL};
    check("tests/data/models/qwen3", 1, o);
    check("tests/data/models/llama-rope-yarn", 2, o);
    o.sequence_parallel = true;
    check("tests/data/models/llama-biases", 2, o);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_of_adapters_with_dropout_are_slopes),
        cmocka_unit_test(gradients_of_whole_models_are_slopes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
