/* A fine-tune job's JSON: defaults, ranges, names of what is wrong, and the way back. */
#include "tiny_files.h"

#include "train/job.h"

static int parse(struct job_spec *spec, const char *text, struct error *e) {
    json_t *json = json_read(text, strlen(text), e);
    if (!json) fail_msg("%s: %s", text, e->message);
    int err = job_spec_parse(spec, json, e);
    json_decref(json);
    return err;
}

static void take(struct job_spec *spec, const char *text) {
    struct error e = {0};
    if (parse(spec, text, &e)) fail_msg("%s: %s", text, e.message);
}

static const char *note(const struct error *e, const char *key) {
    for (int i = 0; i < e->n_notes; i++)
        if (!strcmp(e->notes[i].key, key)) return e->notes[i].text;
    return "";
}

static void defaults_fill_what_is_not_said(void **state) {
    (void)state;
    struct job_spec s;
    take(&s, "{\"data\":\"d.jsonl\"}");
    assert_string_equal(s.name, "job");
    assert_string_equal(s.data, "d.jsonl");
    assert_null(s.eval_data);
    assert_null(s.out);
    assert_null(s.activate_as);
    assert_int_equal(s.method, TRAIN_LORA);
    assert_int_equal(s.lora.r, 16);
    assert_true(s.lora.alpha == 32 && s.lora.dropout == 0 && !s.lora.rslora);
    assert_int_equal(s.lora.targets, TRAIN_ALL_TARGETS);
    assert_true(s.epochs == 1 && s.max_steps == 0 && s.batch_size == 8 && s.grad_accum == 1);
    assert_true(s.seq_len == 1024 && s.packing && s.loss_on == LOSS_ON_COMPLETION);
    assert_true(s.lr == 2e-4 && s.schedule == SCHEDULE_COSINE && s.warmup_ratio == 0.03);
    assert_true(s.beta1 == 0.9 && s.beta2 == 0.95 && s.eps == 1e-8 && s.clip == 1);
    assert_true(s.weight_decay == 0 && s.seed == 0 && s.eval_fraction == 0);
    assert_int_equal(s.grad_checkpointing, CHECKPOINTING_OFF);
    assert_true(s.save_every == 100 && s.eval_every == 100 && s.keep == 2 && s.resume);
    job_spec_free(&s);
    take(&s, "{\"data\":\"d\",\"method\":\"full\",\"lora\":{\"r\":8,\"targets\":[\"v_proj\"]}}");
    assert_true(s.lr == 2e-5 && s.lora.alpha == 16 && s.lora.targets == 4);
    job_spec_free(&s);
    /* what must be judged is judged on something */
    take(&s, "{\"data\":\"d\",\"activate\":{}}");
    assert_true(s.eval_fraction == 0.05 && s.activate_if_better);
    assert_string_equal(s.activate_as, "default");
    job_spec_free(&s);
    take(&s, "{\"data\":\"d\",\"patience\":3,\"eval_data\":\"e\"}");
    assert_true(s.eval_fraction == 0);
    job_spec_free(&s);
}

static const char everything[] =
    "{\"name\":\"nightly-support\",\"data\":\"tickets.jsonl\",\"eval_data\":null,"
    "\"eval_fraction\":0.05,\"method\":\"lora\",\"lora\":{\"r\":4,\"alpha\":7.5,\"dropout\":0.1,"
    "\"rslora\":true,\"targets\":[\"down_proj\",\"q_proj\"]},\"epochs\":2.5,\"max_steps\":7,"
    "\"batch_size\":3,\"grad_accum\":2,\"seq_len\":77,\"packing\":false,\"loss_on\":\"all\","
    "\"lr\":0.001,\"schedule\":\"linear\",\"warmup_ratio\":0.5,\"weight_decay\":0.1,"
    "\"betas\":[0.8,0.9],\"eps\":1e-6,\"clip\":0,\"seed\":9223372036854775807,"
    "\"grad_checkpointing\":\"auto\",\"save_every\":0,\"eval_every\":5,\"keep\":9,\"compute\":\"bf16\",\"patience\":4,"
    "\"out\":\"adapters/x\",\"resume\":false,\"activate\":{\"when\":\"always\",\"as\":\"y\"},"
    "\"priority\":\"background\",\"once\":\"k\",\"skip_bad\":true}";

static void the_canonical_form_comes_back_the_same(void **state) {
    (void)state;
    static const char *const texts[] = {everything, "{\"data\":\"d\"}",
                                        "{\"data\":\"d\",\"method\":\"full\",\"patience\":1,"
                                        "\"grad_checkpointing\":true}"};
    for (size_t i = 0; i < 3; i++) {
        struct job_spec s, again;
        struct error e = {0};
        take(&s, texts[i]);
        json_t *json = job_spec_json(&s);
        if (job_spec_parse(&again, json, &e)) fail_msg("%s", e.message);
        json_t *twice = job_spec_json(&again);
        assert_true(json_equal(json, twice));
        const char *key; /* everything that was said is still said */
        json_t *value, *said = json_read(texts[i], strlen(texts[i]), &e);
        if (i == 0) json_object_foreach(said, key, value) {
                json_t *got = json_object_get(json, key);
                if (!got) fail_msg("%s is lost", key);
                if (!json_is_real(got) && strcmp(key, "lora") != 0 && !json_equal(got, value))
                    fail_msg("%s is another", key);
            }
        json_decref(said);
        json_decref(json);
        json_decref(twice);
        job_spec_free(&s);
        job_spec_free(&again);
    }
}

static void what_is_wrong_is_named(void **state) {
    (void)state;
    static const struct {
        const char *members, *field, *fault;
    } cases[] = {
        {"\"epoch\":1", "epoch", "not something that a fine-tune job has"},
        {"\"seq_length\":1", "seq_length", "did you mean seq_len?"},
        {"\"lora\":{\"rank\":1}", "lora.rank", "lora.rank is not"},
        {"\"lora\":{\"aplha\":1}", "lora.aplha", "did you mean alpha?"},
        {"\"activate\":{\"if\":1}", "activate.if", "not something"},
        {"\"name\":\"..\"", "name", "A-Z"},
        {"\"name\":\"a/b\"", "name", "A-Z"},
        {"\"name\":\"-x\"", "name", "A-Z"},
        {"\"name\":\"\"", "name", "a string of 1"},
        {"\"name\":\"a\\u0000b\"", "name", "a string of 1"},
        {"\"data\":7", "data", "a string"},
        {"\"data\":\"\"", "data", "a string of 1"},
        {"\"method\":\"qlora\"", "method", "\"lora\" or \"full\""},
        {"\"lora\":[]", "lora", "an object"},
        {"\"lora\":{\"r\":0}", "lora.r", "lora.r must be an integer from 1"},
        {"\"lora\":{\"r\":2.5}", "lora.r", "integer"},
        {"\"lora\":{\"dropout\":1}", "lora.dropout", "from 0 to 0.99"},
        {"\"lora\":{\"alpha\":0}", "lora.alpha", "alpha"},
        {"\"lora\":{\"targets\":[]}", "lora.targets", "names of linear layers"},
        {"\"lora\":{\"targets\":[\"lm_head\"]}", "lora.targets", "lm_head"},
        {"\"lora\":{\"targets\":\"all\"}", "lora.targets", "names of linear layers"},
        {"\"epochs\":0", "epochs", "a number"},
        {"\"max_steps\":-1", "max_steps", "integer"},
        {"\"batch_size\":0", "batch_size", "from 1"},
        {"\"batch_size\":4294967297", "batch_size", "from 1"},
        {"\"batch_size\":1048576,\"seq_len\":1024", "batch_size", "268435456"},
        {"\"seq_len\":1", "seq_len", "from 2"},
        {"\"packing\":1", "packing", "true or false"},
        {"\"loss_on\":\"prompt\"", "loss_on", "\"completion\" or \"all\""},
        {"\"lr\":\"1e-4\"", "lr", "a number"},
        {"\"lr\":-1", "lr", "a number"},
        {"\"schedule\":\"step\"", "schedule", "cosine"},
        {"\"warmup_ratio\":1.5", "warmup_ratio", "from 0 to 1"},
        {"\"betas\":[0.9]", "betas", "two numbers"},
        {"\"betas\":[0.9,1]", "betas", "two numbers"},
        {"\"seed\":-1", "seed", "integer"},
        {"\"grad_checkpointing\":\"yes\"", "grad_checkpointing", "auto"},
        {"\"compute\":\"fp16\"", "compute", "\"auto\", \"bf16\" or \"f32\""},
        {"\"keep\":0", "keep", "from 1"},
        {"\"resume\":\"never\"", "resume", "auto"},
        {"\"activate\":true", "activate", "an object or null"},
        {"\"activate\":{\"when\":\"later\"}", "activate.when", "eval_improves"},
        {"\"activate\":{\"as\":\"../x\"}", "activate.as", "activate.as must be 1 to 64"},
        {"\"priority\":\"high\"", "priority", "background"},
        {"\"eval_fraction\":1", "eval_fraction", "from 0 to 0.9"},
        {"\"eval_fraction\":0,\"activate\":{}", "eval_fraction", "judged"},
        {"\"eval_fraction\":0.1,\"eval_data\":\"e\"", "eval_fraction", "eval_data"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[256];
        struct job_spec s;
        struct error e = {0};
        bool data = !strstr(cases[i].members, "\"data\"");
        snprintf(text, sizeof text, "{%s%s}", data ? "\"data\":\"d\"," : "", cases[i].members);
        if (parse(&s, text, &e) == 0) fail_msg("%s was taken", text);
        assert_int_equal(e.kind, ERR_PARAMS);
        assert_string_equal(note(&e, "field"), cases[i].field);
        assert_true(*note(&e, "expected") && *note(&e, "got"));
        assert_names(e.message, cases[i].fault);
    }
    struct job_spec s;
    struct error e = {0};
    assert_int_not_equal(parse(&s, "{}", &e), 0);
    assert_string_equal(note(&e, "field"), "data");
    assert_int_not_equal(parse(&s, "[]", &e), 0);
}

static void null_is_as_good_as_absent(void **state) {
    (void)state;
    struct job_spec s;
    take(&s, "{\"data\":\"d\",\"name\":null,\"lora\":null,\"epochs\":null,\"betas\":null,"
             "\"resume\":null,\"activate\":null,\"grad_checkpointing\":null,\"seed\":null,"
             "\"schedule\":null,\"out\":null}");
    assert_true(s.epochs == 1 && s.resume && s.lora.r == 16);
    job_spec_free(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_fill_what_is_not_said),
        cmocka_unit_test(the_canonical_form_comes_back_the_same),
        cmocka_unit_test(what_is_wrong_is_named),
        cmocka_unit_test(null_is_as_good_as_absent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
