/* A plan is what happens: each kind of memory that a rank of the CPU holds, serving and training, is what
 * the plan said, to the byte; and planning itself takes no memory to speak of. */
#include "tests/unit/model_runner.h"

#include "base/json.h"
#include "model/planning.h"
#include "train/sizes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

enum { ROWS = 40 };

/* --- plan and device side by side ---------------------------------------------------------------- */

struct side_by_side {
    char label[128];
    const struct train_options *train; /* NULL: serving alone */
    struct runner *runner;
    struct trainee *on_rank[PLAN_MAX_RANKS];
    struct mem_use had[PLAN_MAX_RANKS]; /* by the device, after a step */
};

static int whole_step(struct trainee *t, int32_t layers, struct error *e) {
    int32_t zeros[ROWS] = {0}, places[ROWS], lengths[ROWS];
    for (int32_t i = 0; i < ROWS; i++) {
        places[i] = i;
        lengths[i] = ROWS;
    }
    struct train_batch batch = {.n_rows = ROWS, .ids = zeros, .pos = places, .labels = zeros,
                                .first = zeros, .len = lengths, .weight = 1};
    struct adamw_params adamw = {.lr = 1e-3f, .eps = 1e-8f, .c1 = 1, .c2 = 1};
    double loss, norm;
    trainee_begin(t, &batch);
    for (int32_t i = 0; i < layers; i++) trainee_forward(t, i);
    for (int32_t i = 0; i < trainee_loss_chunks(t); i++) trainee_loss_chunk(t, i);
    int err = trainee_loss(t, &loss, e);
    for (int32_t i = layers - 1; i >= 0 && !err; i--) trainee_backward(t, i);
    if (!err) err = trainee_end(t, e);
    if (!err) err = trainee_norm(t, &norm, e);
    int slices = err ? 0 : trainee_slices(t);
    for (int i = 0; i < slices && !err; i++) err = trainee_update(t, i, &adamw, 1, e);
    return err;
}

static int live(struct rank *rank, void *arg, struct error *e) {
    struct side_by_side *s = arg;
    const struct model *model = s->runner->model;
    struct trainee **mine = &s->on_rank[rank->index];
    int err = 0;
    if (s->train) err = trainee_new(mine, model, rank->state, s->train, e);
    if (s->train && !err) err = whole_step(*mine, model_config(model)->n_layers, e);
    rank->ctx->ops->mem_use(rank->ctx, &s->had[rank->index]);
    if (s->train) trainee_free(*mine);
    return err;
}

static void compare(const struct side_by_side *s, int rank, const struct mem_use *planned) {
    for (int k = 0; k < MEM_KIND_COUNT; k++)
        if (planned->bytes[k] != s->had[rank].bytes[k])
            fail_msg("%s, rank %d: %zu bytes of %s were planned, %zu are there", s->label, rank,
                     planned->bytes[k], mem_kind_name((enum mem_kind)k), s->had[rank].bytes[k]);
}

static void live_and_compare(struct runner *r, void *arg) {
    struct side_by_side *s = arg;
    struct error e;
    s->runner = r;
    float *logits = test_malloc(ROWS * (size_t)model_config(r->model)->vocab * sizeof *logits);
    int32_t zeros[ROWS] = {0};
    if (runner_feed(r, zeros, 0, ROWS, ROWS, logits) != 0) fail_msg("%s", r->error.message);
    test_free(logits);
    if (ranks_run(r->ranks, live, s, &e) != 0) fail_msg("%s: %s", s->label, e.message);
    struct plan_question q = {.model = r->model, .split = &r->plan, .serving = r->options,
                              .ctx = r->options.max_blocks * r->options.block_size, .sequences = 1,
                              .train = s->train, .micro_batches = 1};
    for (int rank = 0; rank < r->plan.n; rank++) {
        struct rank_cost cost;
        struct device_figures device;
        const struct kctx *ctx = ranks_at(r->ranks, rank)->ctx;
        ctx->ops->figures(ctx, &device);
        q.device = &device;
        if (plan_rank(&cost, &q, rank, &e) != 0) fail_msg("%s: %s", s->label, e.message);
        compare(s, rank, &cost.peak);
        assert_true(cost.prefill.flops > cost.decode.flops && cost.decode.flops > 0);
        assert_true(!s->train == !cost.train.flops);
    }
}

static const struct train_options ways[] = {
    {.method = TRAIN_LORA, .rank = 4, .scale = 1, .targets = TRAIN_ALL_TARGETS, .max_rows = ROWS,
     .loss_rows = 16},
    {.method = TRAIN_LORA, .rank = 3, .scale = 1, .dropout = 0.1f, .targets = 5, .max_rows = ROWS,
     .loss_rows = 16, .checkpoint_layers = 1},
    {.method = TRAIN_FULL, .max_rows = ROWS, .loss_rows = 16},
    {.method = TRAIN_FULL, .max_rows = ROWS, .loss_rows = 16, .checkpoint_layers = INT32_MAX,
     .bf16 = true},
};
enum { N_WAYS = sizeof ways / sizeof *ways };

/* On simulated GPUs, which are slow, a few. */
static bool wanted(const char *model, int tp) {
    const char *name = strchr(model, '/') + 1;
    char first[64];
    snprintf(first, sizeof first, "%.*s", (int)strcspn(name, "/"), name);
    return runner_wants("TPD_TEST_ONLY", first) && runner_wants_number("TPD_TEST_TP", tp);
}

static void every_kind_of_memory_is_as_planned(void **state) {
    (void)state;
    static const char *const models[] = {"models/llama-mha-3-layers", "models/llama-uneven",
                                         "models/granite", "models/qwen3-biases-window",
                                         "models/llama-bf16", "gguf/llama-q4_k/model.gguf"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        for (int tp = 1; tp <= 3; tp++)
            for (int way = -1; way < N_WAYS && wanted(models[i], tp); way++) {
                char path[128];
                if (!runner_wants_number("TPD_TEST_WAY", way)) continue;
                struct side_by_side s = {.train = way < 0 ? NULL : &ways[way]};
                struct runner_options o = {.tp = tp, .library_products = true, .kv_type = tp == 2 ? DTYPE_F16 : DTYPE_F32};
                snprintf(path, sizeof path, "tests/data/%s", models[i]);
                snprintf(s.label, sizeof s.label, "%s, tp %d, way %d", models[i], tp, way);
                runner_run(path, &o, live_and_compare, &s);
            }
}

/* --- a configuration alone ----------------------------------------------------------------------- */

static json_t *read_config(const char *path) {
    struct error e;
    json_t *config = json_read_file(path, 1 << 20, &e);
    if (!config) fail_msg("%s", e.message);
    return config;
}

static struct model *outline(const char *path, int type, bool *assumed) {
    struct error e;
    struct model *m;
    json_t *config = read_config(path);
    if (model_outline(&m, config, path, type, assumed, &e) != 0) fail_msg("%s", e.message);
    json_decref(config);
    return m;
}

static void a_configuration_plans_as_its_weights_do(void **state) {
    (void)state;
    static const char *const dirs[] = {"granite", "qwen3-biases-window", "llama-bf16", "llama-untied"};
    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++) {
        char dir[128], path[160];
        bool assumed;
        struct error e;
        struct model *real, *bare;
        snprintf(dir, sizeof dir, "tests/data/models/%s", dirs[i]);
        snprintf(path, sizeof path, "%s/config.json", dir);
        if (model_open(&real, dir, &e) != 0) fail_msg("%s", e.message);
        bare = outline(path, (int)model_dtype(real), &assumed);
        assert_int_equal(model_weight_bytes(bare), model_weight_bytes(real));
        struct shard_plan split;
        assert_int_equal(model_plan(real, 2, &split, &e), 0);
        for (int way = 0; way < N_WAYS; way++) {
            struct trainee_cost a, b;
            assert_int_equal(plan_trainee(&a, real, &split, &ways[way], NULL, &e), 0);
            assert_int_equal(plan_trainee(&b, bare, &split, &ways[way], NULL, &e), 0);
            assert_int_equal(a.bytes, b.bytes);
            assert_int_equal(a.largest_floats, b.largest_floats);
        }
        model_free(real);
        model_free(bare);
    }
}

static size_t peak_kib(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (size_t)usage.ru_maxrss;
}

static const char large[] = "bench/configs/granite-8b-code-base-128k.json";

/* What the mathematics says of a model of 8.05e9 parameters. */
static void a_large_model_is_planned_in_little_memory(void **state) {
    (void)state;
    bool assumed;
    struct error e;
    struct model *m = outline(large, -1, &assumed);
    struct shard_plan split;
    struct rank_cost cost;
    enum { T = 4096, CTX = 8192, BATCH = 4 };
    const struct train_options full = {.method = TRAIN_FULL, .max_rows = T, .loss_rows = 64};
    struct plan_question q = {.model = m, .split = &split, .ctx = CTX, .sequences = BATCH,
                              .serving = {.max_rows = 512, .max_out = 8, .max_seqs = 1,
                                          .kv_blocks = BATCH * CTX / 32, .block_size = 32,
                                          .max_blocks = CTX / 32, .kv_type = DTYPE_F16},
                              .train = &full, .micro_batches = 1};
    size_t before = peak_kib();
    assert_true(before > 0 && !assumed);
    assert_int_equal(model_plan(m, 4, &split, &e), 0);
    if (plan_rank(&cost, &q, 1, &e) != 0) fail_msg("%s", e.message);
#ifndef __SANITIZE_ADDRESS__
    assert_true(peak_kib() - before < 32 * 1024);
#endif
    double params = (double)model_weight_bytes(m) / 2 / 4, layers = 36, heads = 8, e_dim = 128;
    double kv = 2 * layers * 2 * 128 * 2.0; /* bytes of a position: two KV heads a rank */
    assert_int_equal(cost.peak.bytes[MEM_KV], (size_t)kv * BATCH * CTX);
    /* each sequence's token is a step of its own here, so it reads the weights again */
    double weights = (double)cost.peak.bytes[MEM_WEIGHTS];
    assert_true((double)cost.decode.bytes > BATCH * (weights + kv * CTX));
    assert_true((double)cost.decode.bytes < 1.05 * BATCH * (weights + kv * CTX));
    /* 6 operations a parameter and row, and attention's 14 a pair, head and dimension */
    double pairs = T * (T + 1.0) / 2;
    double flops = 6 * params * T + 14 * pairs * heads * e_dim * layers;
    assert_true((double)cost.train.flops > flops && (double)cost.train.flops < 1.03 * flops);
    assert_true((double)cost.peak.bytes[MEM_OPTIMIZER] > 8 * params);
    assert_true((double)cost.peak.bytes[MEM_OPTIMIZER] < 8.01 * params);
    model_free(m);
}

static void a_type_that_is_not_said_is_assumed_and_one_may_be_chosen(void **state) {
    (void)state;
    bool assumed;
    struct error e;
    struct model *m;
    json_t *config = read_config(large);
    json_object_del(config, "torch_dtype");
    assert_int_equal(model_outline(&m, config, large, -1, &assumed, &e), 0);
    assert_true(assumed && model_dtype(m) == DTYPE_BF16);
    size_t bytes = model_weight_bytes(m);
    model_free(m);
    assert_int_equal(model_outline(&m, config, large, DTYPE_Q4_0, &assumed, &e), 0);
    assert_true(!assumed && model_weight_bytes(m) * 32 == bytes * 9);
    model_free(m);
    json_object_set_new(config, "torch_dtype", json_string("float8"));
    assert_int_equal(model_outline(&m, config, large, -1, &assumed, &e), -ERR_BAD_FILE);
    assert_non_null(strstr(e.message, "torch_dtype"));
    json_object_set_new(config, "intermediate_size", json_integer(100));
    assert_int_equal(model_outline(&m, config, large, DTYPE_Q4_0, &assumed, &e), -ERR_BAD_FILE);
    assert_non_null(strstr(e.message, "whole blocks"));
    json_decref(config);
}

/* --- "auto" --------------------------------------------------------------------------------------- */

static void auto_checkpoints_as_few_layers_as_fit(void **state) {
    (void)state;
    bool assumed;
    struct error e;
    struct model *m = outline(large, -1, &assumed);
    struct shard_plan split;
    struct train_options o = {.method = TRAIN_LORA, .rank = 16, .targets = TRAIN_ALL_TARGETS,
                              .max_rows = 2048, .loss_rows = 64};
    assert_int_equal(model_plan(m, 4, &split, &e), 0);
    for (int32_t layers = 0; layers < 36; layers += 7) {
        struct trainee_cost cost;
        int32_t chosen;
        o.checkpoint_layers = layers;
        assert_int_equal(plan_trainee(&cost, m, &split, &o, NULL, &e), 0);
        size_t needed = job_bytes(&cost, 4);
        assert_int_equal(job_checkpoint_layers(&chosen, &cost, m, &split, &o, needed, NULL, &e), 0);
        assert_int_equal(chosen, layers);
        assert_int_equal(job_bytes(&cost, 4), needed);
        assert_int_equal(job_checkpoint_layers(&chosen, &cost, m, &split, &o, needed - 1, NULL, &e), 0);
        assert_int_equal(chosen, layers + 1 < 36 ? layers + 1 : 35);
    }
    model_free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_large_model_is_planned_in_little_memory),
        cmocka_unit_test(every_kind_of_memory_is_as_planned),
        cmocka_unit_test(a_configuration_plans_as_its_weights_do),
        cmocka_unit_test(a_type_that_is_not_said_is_assumed_and_one_may_be_chosen),
        cmocka_unit_test(auto_checkpoints_as_few_layers_as_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
