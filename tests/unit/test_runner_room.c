/* Room for the KV cache, where a fraction of a rank's memory is the model's: what is left beside all that the
 * ranks hold, once they hold it. */
#include "model/planning.h"
#include "serve/runner.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { LIMIT = 64 << 20 };

static const struct shard_options sizes = {.max_rows = 32,
                                           .max_out = 4,
                                           .max_seqs = 2,
                                           .kv_blocks = 1,
                                           .block_size = 32,
                                           .max_blocks = 2,
                                           .kv_type = DTYPE_F32};

struct asked {
    struct runner *runner;
    size_t room;
    int err;
    struct error error;
};

static void ask(void *arg) {
    struct asked *a = arg;
    a->err = a->runner->ops->cache_room(a->runner, &sizes, 1, &a->room, &a->error);
}

static size_t room_of(const struct model *model, const struct model *draft) {
    struct asked a = {0};
    struct engine_options options = {.model = model, .draft = draft, .tp = 1, .memory_limit = LIMIT};
    core_set_allowed(&options.cores);
    options.cores.n = 1;
    if (runner_new(&a.runner, &options, &a.error)) fail_msg("%s", a.error.message);
    int err = a.runner->ops->start(a.runner, ask, &a, &a.error);
    a.runner->ops->join(a.runner);
    if (err || a.err) fail_msg("%s", a.error.message);
    return a.room;
}

/* A rank computes one model after the other, so their scratch memory is the same. */
static void a_draft_model_works_in_the_models_scratch_memory(void **state) {
    (void)state;
    struct error e;
    struct model *model;
    struct shard_plan split;
    struct device_figures device;
    struct mem_use use;
    if (model_open(&model, "tests/data/models/llama-bf16", &e)) fail_msg("%s", e.message);
    assert_int_equal(model_plan(model, 1, &split, &e), 0);
    kernels_cpu_figures(&device, 1);
    struct shard_options draft = engine_draft_options(model, &sizes);
    assert_int_equal(plan_shard(&use, model, &split, &draft, 0, &device, &e), 0);
    assert_true(use.bytes[MEM_SCRATCH] > 0);
    size_t beside = mem_used(&use) - use.bytes[MEM_KV] - use.bytes[MEM_SCRATCH];
    assert_int_equal(room_of(model, NULL) - room_of(model, model), beside);
    model_free(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_draft_model_works_in_the_models_scratch_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
