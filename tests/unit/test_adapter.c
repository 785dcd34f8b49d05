/* Adapters as PEFT writes them: served they give the logits that PEFT computes, at every tp; broken ones
 * are refused by name. */
#include "tests/unit/model_runner.h"

#include "base/file.h"
#include "base/json.h"
#include "model/adapter.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

struct served {
    char dir[512];
    json_t *facts;
    struct adapter *adapter;
    struct store *expected;
};

static int set_unit(struct rank *rank, void *arg, struct error *e) {
    return shard_adapter_set(rank->state, 3, arg, e);
}

static double difference(const struct runner *r, const struct served *s, const float *got, size_t n) {
    const struct store_tensor *want = store_find(s->expected, "logits");
    size_t floats = n * (size_t)model_config(r->model)->vocab;
    assert_non_null(want);
    assert_int_equal(want->bytes, floats * sizeof(float));
    float *expected = malloc(want->bytes);
    memcpy(expected, want->data, want->bytes);
    double worst = 0;
    for (size_t i = 0; i < floats; i++) {
        double d = fabs((double)got[i] - expected[i]);
        if (!(d <= worst)) worst = d;
    }
    free(expected);
    return worst;
}

static void serve(struct runner *r, void *arg) {
    struct served *s = arg;
    int32_t ids[64], n = 0;
    size_t i;
    json_t *id;
    json_array_foreach(json_object_get(s->facts, "prompt"), i, id)
        ids[n++] = (int32_t)json_integer_value(id);
    float *logits = malloc((size_t)n * (size_t)model_config(r->model)->vocab * sizeof *logits);
    struct error e = {0};
    if (ranks_run(r->ranks, set_unit, s->adapter, &e)) fail_msg("%s", e.message);
    r->adapter = 3;
    assert_int_equal(runner_feed(r, ids, 0, n, n, logits), 0);
    double with = difference(r, s, logits, (size_t)n);
    if (!(with <= 3e-4)) fail_msg("%s at tp %d: logits are off by %g", s->dir, r->plan.n, with);
    r->adapter = -1; /* the base alone says something else */
    assert_int_equal(runner_feed(r, ids, 0, n, n, logits), 0);
    assert_true(difference(r, s, logits, (size_t)n) > 0.05);
    if (ranks_run(r->ranks, set_unit, NULL, &e)) fail_msg("%s", e.message);
    free(logits);
}

static void check(const char *name) {
    struct served s;
    struct error e = {0};
    char path[700], base[700];
    snprintf(s.dir, sizeof s.dir, "tests/data/training/%s", name);
    snprintf(path, sizeof path, "%s/train.json", s.dir);
    s.facts = json_read_file(path, 1 << 20, &e);
    if (!s.facts) fail_msg("%s", e.message);
    snprintf(path, sizeof path, "%s/logits.safetensors", s.dir);
    if (store_open(&s.expected, path, &e)) fail_msg("%s", e.message);
    snprintf(base, sizeof base, "tests/data/%s",
             json_string_value(json_object_get(s.facts, "model")));
    struct model *model;
    if (model_open(&model, base, &e)) fail_msg("%s", e.message);
    snprintf(path, sizeof path, "%s/adapter", s.dir);
    if (adapter_open(&s.adapter, model, path, &e)) fail_msg("%s", e.message);
    for (int tp = 1; tp <= 4; tp++) {
        struct runner_options o = {.tp = tp, .device = RANK_CPU};
        runner_run(base, &o, serve, &s);
    }
    adapter_close(s.adapter);
    model_free(model);
    store_close(s.expected);
    json_decref(s.facts);
}

static void adapters_give_the_logits_of_peft(void **state) {
    (void)state;
    check("lora-llama-gqa-tied");
    check("lora-llama-biases");
    check("lora-llama-uneven");
    check("lora-granite");
    check("lora-llama-q4_0");
}

static void an_adapter_of_another_model_is_refused_by_name(void **state) {
    (void)state;
    struct model *model;
    struct adapter *a;
    struct error e = {0};
    assert_int_equal(model_open(&model, "tests/data/models/llama-uneven", &e), 0);
    assert_int_equal(adapter_open(&a, model, "tests/data/training/lora-granite/adapter", &e),
                     -ERR_BAD_FILE);
    assert_non_null(strstr(e.message, "lora_A"));
    assert_int_equal(adapter_open(&a, model, "tests/data/training", &e), -ERR_NOT_FOUND);
    model_free(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adapters_give_the_logits_of_peft),
        cmocka_unit_test(an_adapter_of_another_model_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
