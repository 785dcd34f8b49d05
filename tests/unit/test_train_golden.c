/* Training steps give the losses, gradients and parameters that PyTorch and PEFT computed, for every
 * architecture, full and LoRA, at every tp, with checkpointing and sequence parallel or not, in fp32 and bf16.
 * See tests/golden/README.md. TPD_TEST_ONLY, TPD_TEST_TP and TPD_TEST_WAY (bit 0 checkpointing, 1 sequence
 * parallel, 2 bf16) choose some: on simulated GPUs (TPD_TEST_GPUS) all of them take long. */
#include "tests/unit/model_runner.h"

#include "base/file.h"
#include "base/json.h"
#include "model/train.h"

#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct training {
    char dir[512];
    json_t *facts;
    struct train_options options;
    struct trainee *on_rank[PLAN_MAX_RANKS];
    struct runner *runner;
    /* the batch of both sequences */
    int32_t n, ids[64], pos[64], labels[64], first[64], len[64], trained;
    char label[700];
};

static double number(const struct training *g, const char *key) {
    return json_number_value(json_object_get(g->facts, key));
}

static double at(const struct training *g, const char *key, size_t i) {
    return json_number_value(json_array_get(json_object_get(g->facts, key), i));
}

static void read_batch(struct training *g) {
    size_t i, t;
    json_t *sequence, *id;
    g->n = g->trained = 0;
    json_array_foreach(json_object_get(g->facts, "sequences"), i, sequence) {
        const json_t *ids = json_object_get(sequence, "ids");
        int32_t first = g->n;
        json_array_foreach(ids, t, id) {
            int32_t row = g->n++;
            g->ids[row] = (int32_t)json_integer_value(id);
            g->labels[row] = (int32_t)json_integer_value(
                json_array_get(json_object_get(sequence, "labels"), t));
            g->pos[row] = (int32_t)t;
            g->first[row] = first;
            g->len[row] = (int32_t)json_array_size(ids);
            g->trained += g->labels[row] >= 0;
        }
    }
}

/* --- units --------------------------------------------------------------------------------------- */

struct unit {
    struct training *g;
    enum { BEGIN, FORWARD, LOSS, BACKWARD, END, NORM, UPDATE, GET, SET, NEW, FREE } what;
    int index;
    double result; /* of rank 0 */
    struct adamw_params adamw;
    float scale;
    enum train_part part;
    float *whole;
};

static int train_unit(struct rank *rank, void *arg, struct error *e) {
    struct unit *u = arg;
    struct training *g = u->g;
    struct trainee *t = g->on_rank[rank->index];
    double result = 0;
    int err = 0;
    switch (u->what) {
    case NEW:
        err = trainee_new(&g->on_rank[rank->index], g->runner->model, rank->state, &g->options, e);
        break;
    case FREE: trainee_free(t); break;
    case BEGIN: {
        struct train_batch b = {.n_rows = g->n, .ids = g->ids, .pos = g->pos, .labels = g->labels,
                                .first = g->first, .len = g->len,
                                .weight = 1 / (float)g->trained};
        trainee_begin(t, &b);
        break;
    }
    case FORWARD: trainee_forward(t, u->index); break;
    case LOSS:
        for (int32_t i = 0; i < trainee_loss_chunks(t); i++) trainee_loss_chunk(t, i);
        err = trainee_loss(t, &result, e);
        break;
    case BACKWARD: trainee_backward(t, u->index); break;
    case END: err = trainee_end(t, e); break;
    case NORM: err = trainee_norm(t, &result, e); break;
    case UPDATE: err = trainee_update(t, u->index, &u->adamw, u->scale, e); break;
    case GET: err = trainee_get(t, u->index, u->part, u->whole, e); break;
    case SET: err = trainee_set(t, u->index, u->part, u->whole, e); break;
    }
    if (rank->index == 0) u->result = result;
    return err;
}

static double run(struct training *g, struct unit u) {
    struct error e = {0};
    u.g = g;
    if (ranks_run(g->runner->ranks, train_unit, &u, &e)) fail_msg("%s: %s", g->label, e.message);
    return u.result;
}

/* --- comparing ----------------------------------------------------------------------------------- */

/* Every trained tensor against the file of that name. Allowed: a part of the tensor's largest value. */
static void compare(struct training *g, const char *file, enum train_part part, double allowed) {
    char path[640];
    snprintf(path, sizeof path, "%s/%s", g->dir, file);
    struct error e = {0};
    struct store *store;
    if (store_open(&store, path, &e)) fail_msg("%s", e.message);
    int n = trainee_tensor_count(g->on_rank[0]);
    assert_int_equal(n, store_count(store));
    for (int i = 0; i < n; i++) {
        struct train_tensor tensor;
        trainee_tensor(g->on_rank[0], i, &tensor);
        const struct store_tensor *want = store_find(store, tensor.name);
        if (!want) fail_msg("%s: %s is not in %s", g->label, tensor.name, file);
        size_t floats = (size_t)tensor.rows * (size_t)tensor.cols;
        assert_int_equal(want->bytes, floats * sizeof(float));
        float *got = malloc(floats * sizeof *got), *expected = malloc(floats * sizeof *expected);
        for (size_t k = 0; k < floats; k++) got[k] = NAN; /* what nobody writes is seen */
        memcpy(expected, want->data, want->bytes);
        run(g, (struct unit){.what = GET, .index = i, .part = part, .whole = got});
        double largest = 1e-6, worst = 0;
        for (size_t k = 0; k < floats; k++) {
            largest = fmax(largest, fabs((double)expected[k]));
            double d = fabs((double)got[k] - expected[k]);
            if (!(d <= worst)) worst = d;
        }
        if (!(worst <= allowed * largest))
            fail_msg("%s: %s of %s is off by %g (largest value %g)", g->label, file, tensor.name,
                     worst, largest);
        free(got);
        free(expected);
    }
    store_close(store);
}

static void set_initial(struct training *g) {
    char path[640];
    snprintf(path, sizeof path, "%s/init.safetensors", g->dir);
    struct error e = {0};
    struct store *store;
    if (store_open(&store, path, &e)) fail_msg("%s", e.message);
    for (int i = 0; i < trainee_tensor_count(g->on_rank[0]); i++) {
        struct train_tensor tensor;
        trainee_tensor(g->on_rank[0], i, &tensor);
        const struct store_tensor *from = store_find(store, tensor.name);
        if (!from) fail_msg("%s: %s is not in init.safetensors", g->label, tensor.name);
        float *values = malloc(from->bytes);
        memcpy(values, from->data, from->bytes);
        run(g, (struct unit){.what = SET, .index = i, .part = PART_VALUE, .whole = values});
        free(values);
    }
    store_close(store);
}

/* How far off PyTorch's fp32 a run may be. In bf16 every operand of a product, and what backward needs of
 * a layer, is off by up to a 256th; gradients that nearly cancel (a bias of k) by more of what is left. */
struct allowance {
    double loss, grad, norm, value;
};
static const struct allowance in_f32 = {2e-4, 1e-4, 1e-3, 3e-3}, in_bf16 = {3e-2, 0.15, 5e-2, 0.1};

static void train_three_steps(struct runner *r, void *arg) {
    struct training *g = arg;
    int layers = model_config(r->model)->n_layers;
    const struct allowance *allowed = g->options.bf16 ? &in_bf16 : &in_f32;
    g->runner = r;
    run(g, (struct unit){.what = NEW});
    if (g->options.method == TRAIN_LORA) set_initial(g);
    for (int step = 0; step < 3; step++) {
        run(g, (struct unit){.what = BEGIN});
        for (int i = 0; i < layers; i++) run(g, (struct unit){.what = FORWARD, .index = i});
        double loss = run(g, (struct unit){.what = LOSS}) / g->trained;
        for (int i = layers; i-- > 0;) run(g, (struct unit){.what = BACKWARD, .index = i});
        run(g, (struct unit){.what = END});
        double norm = run(g, (struct unit){.what = NORM});
        if (!(fabs(loss - at(g, "losses", (size_t)step)) <= allowed->loss))
            fail_msg("%s: loss of step %d is %f, not %f", g->label, step, loss,
                     at(g, "losses", (size_t)step));
        if (step == 0) compare(g, "grads.safetensors", PART_GRAD, allowed->grad);
        if (!(fabs(norm / at(g, "norms", (size_t)step) - 1) <= allowed->norm))
            fail_msg("%s: norm of step %d is %f, not %f", g->label, step, norm,
                     at(g, "norms", (size_t)step));
        double clip = number(g, "clip") / (norm + 1e-6);
        struct unit u = {.what = UPDATE, .scale = (float)(clip < 1 ? clip : 1)};
        u.adamw = (struct adamw_params){.lr = (float)number(g, "lr"),
                                        .beta1 = (float)number(g, "beta1"),
                                        .beta2 = (float)number(g, "beta2"),
                                        .eps = (float)number(g, "eps"),
                                        .weight_decay = (float)number(g, "weight_decay"),
                                        .c1 = (float)(1 - pow(number(g, "beta1"), step + 1)),
                                        .c2 = (float)(1 - pow(number(g, "beta2"), step + 1))};
        for (u.index = 0; u.index < trainee_slices(g->on_rank[0]); u.index++) run(g, u);
    }
    /* AdamW's first steps move by lr whatever the gradient's size, so tiny gradients show rounding */
    compare(g, "final.safetensors", PART_VALUE, allowed->value);
    run(g, (struct unit){.what = FREE});
}

static void check_case(const char *name) {
    struct training g = {0};
    struct error e = {0};
    snprintf(g.dir, sizeof g.dir, "tests/data/training/%s", name);
    char path[640];
    snprintf(path, sizeof path, "%s/train.json", g.dir);
    g.facts = json_read_file(path, 1 << 20, &e);
    if (!g.facts) fail_msg("%s", e.message);
    read_batch(&g);
    snprintf(path, sizeof path, "tests/data/%s",
             json_string_value(json_object_get(g.facts, "model")));
    bool lora = !strcmp(json_string_value(json_object_get(g.facts, "method")), "lora");
    double r = number(&g, "r");
    bool rslora = json_is_true(json_object_get(g.facts, "rslora"));
    g.options = (struct train_options){.method = lora ? TRAIN_LORA : TRAIN_FULL,
                                       .rank = (int32_t)r,
                                       .scale = lora ? (float)(number(&g, "alpha") /
                                                               (rslora ? sqrt(r) : r))
                                                     : 0,
                                       .targets = TRAIN_ALL_TARGETS,
                                       .max_rows = 64,
                                       .loss_rows = 10};
    struct model *m;
    if (model_open(&m, path, &e)) fail_msg("%s", e.message);
    int heads = model_config(m)->n_heads;
    model_free(m);
    const int tps[] = {1, 2, 3, 4, heads};
    for (size_t i = 0; i < sizeof tps / sizeof *tps; i++) {
        if (tps[i] > heads || (i == 4 && heads <= 4) || !runner_wants_number("TPD_TEST_TP", tps[i])) continue;
        for (int way = 0; way < 8; way++) {
            if (!runner_wants_number("TPD_TEST_WAY", way)) continue;
            g.options.checkpoint_layers = way & 1 ? INT32_MAX : 0;
            g.options.sequence_parallel = way & 2;
            g.options.bf16 = way & 4;
            snprintf(g.label, sizeof g.label, "%s, tp %d%s%s%s", name, tps[i],
                     way & 1 ? ", checkpointing" : "", way & 2 ? ", sequence parallel" : "",
                     way & 4 ? ", bf16" : "");
            /* cuBLAS takes quantised weights in bf16 alone, and no other products in bf16 are there. */
            struct runner_options o = {.tp = tps[i],
                                       .device = RANK_CPU,
                                       .library_products = way & 4 || !strstr(path, "/gguf/")};
            runner_run(path, &o, train_three_steps, &g);
        }
    }
    print_message("%s\n", name);
    json_decref(g.facts);
}

static void training_matches_pytorch(void **state) {
    (void)state;
    DIR *d = opendir("tests/data/training");
    assert_non_null(d);
    int n = 0;
    for (struct dirent *entry; (entry = readdir(d));)
        if (entry->d_name[0] != '.' && runner_wants("TPD_TEST_ONLY", entry->d_name)) {
            check_case(entry->d_name);
            n++;
        }
    closedir(d);
    assert_true(n > 0 || getenv("TPD_TEST_ONLY"));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(training_matches_pytorch)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
