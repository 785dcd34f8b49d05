/* A request's answer is its own, bit for bit: alone, in any company, from a warm cache or a cold one,
 * however its prompt was cut, and after it had to begin anew. Real models on real ranks; the answers
 * are held against those of an engine that has nothing else to do. */
#include "tests/unit/engine_jobs.h"

#include "formats/safetensors_write.h"
#include "model/adapter.h"
#include "ranks/ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { N = 18, MAX_PROMPT = 120, ADAPTERS = 2, TOP = 3 };

static char dir[] = "/tmp/tpd-company-XXXXXX";

struct ask {
    token_id prompt[MAX_PROMPT];
    size_t n_prompt;
    int64_t max_tokens;
    uint64_t seed; /* 0: greedy */
    int32_t adapter;
    bool score;
    bool formed; /* held to a grammar */
    enum speculative speculative;
};

struct subject {
    struct model *model, *draft;
    struct tokenizer *tokenizer;
    struct adapter *adapters[ADAPTERS];
    struct engine_options options;
    struct engine *engine;
    struct ask asks[N];
    struct job *alone[N];
};

static int32_t random_of(unsigned *seed, int32_t from, int32_t below) {
    return from + rand_r(seed) % (below - from);
}

/* --- adapters ------------------------------------------------------------------------------------ */

static void write_config(const char *path) {
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    fputs("{\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 8}", out);
    fclose(out);
}

static struct adapter *make_adapter(const struct model *model, int number) {
    const struct model_config *c = model_config(model);
    struct safetensors_entry entries[4];
    struct safetensors_writer w;
    char at[200], path[256], names[4][128];
    int32_t heads = c->n_heads * c->head_dim;
    snprintf(at, sizeof at, "%s/adapter%d", dir, number);
    mkdir(at, 0700);
    for (int i = 0; i < 4; i++) {
        snprintf(names[i], sizeof names[i], "base_model.model.model.layers.0.%s.lora_%c.weight",
                 i < 2 ? "self_attn.q_proj" : "mlp.down_proj", i % 2 ? 'B' : 'A');
        int32_t rows = i < 2 ? heads : c->hidden, cols = i < 2 ? c->hidden : c->ffn;
        entries[i] = (struct safetensors_entry){names[i], DTYPE_F32, 2,
                                                {i % 2 ? rows : 4, i % 2 ? 4 : cols}};
    }
    struct error e = {0};
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", at);
    assert_int_equal(safetensors_writer_open(&w, path, entries, 4, &e), 0);
    unsigned seed = 11u + (unsigned)number;
    for (int i = 0; i < 4; i++) {
        float values[4096];
        size_t n = (size_t)(entries[i].dims[0] * entries[i].dims[1]);
        assert_true(n <= 4096);
        for (size_t k = 0; k < n; k++) values[k] = (float)random_of(&seed, -100, 100) / 150;
        safetensors_writer_add(&w, values, n);
    }
    assert_int_equal(safetensors_writer_commit(&w, &e), 0);
    snprintf(path, sizeof path, "%s/adapter_config.json", at);
    write_config(path);
    struct adapter *a;
    if (adapter_open(&a, model, at, &e)) fail_msg("%s", e.message);
    return a;
}

static int set_unit(struct rank *rank, void *arg, struct error *e) {
    struct adapter *const *adapters = arg;
    int err = 0;
    for (int i = 0; i < ADAPTERS && !err; i++)
        err = shard_adapter_set(rank->state, 3 + i, adapters[i], e);
    return err;
}

static int set_adapters(void *arg, struct ranks *ranks, struct error *e) {
    return ranks_run(ranks, set_unit, arg, e);
}

static void on_set(void *arg, const struct error *error) {
    (void)arg;
    if (error) abort();
}

/* --- draft models ------------------------------------------------------------------------------- */

/* The same weights with another norm: a model that often says the same, and not always. */
static struct model *open_draft(const char *name) {
    char from[512], to[200], line[256], path[256];
    struct error e = {0};
    assert_non_null(getcwd(from, sizeof from - 128));
    snprintf(from + strlen(from), 120, "/tests/data/models/%s/config.json", name);
    snprintf(to, sizeof to, "%s/draft-%s", dir, name);
    mkdir(to, 0700);
    snprintf(path, sizeof path, "%s/config.json", to);
    FILE *in = fopen(from, "r"), *out = fopen(path, "w");
    assert_true(in && out);
    while (fgets(line, sizeof line, in))
        fputs(strstr(line, "\"rms_norm_eps\"") ? "\"rms_norm_eps\": 0.1,\n" : line, out);
    fclose(in);
    fclose(out);
    strcpy(strrchr(from, '/'), "/model.safetensors");
    snprintf(path, sizeof path, "%s/model.safetensors", to);
    unlink(path);
    assert_int_equal(symlink(from, path), 0);
    struct model *model;
    if (model_open(&model, to, &e)) fail_msg("%s", e.message);
    return model;
}

/* --- engines ------------------------------------------------------------------------------------- */

static void start(struct subject *s) {
    struct error e = {0};
    if (engine_start(&s->engine, &s->options, &e)) fail_msg("%s", e.message);
    assert_int_equal(engine_change(s->engine, set_adapters, on_set, s->adapters, &e), 0);
}

static void stop(struct subject *s) {
    engine_stop(s->engine, true);
    engine_join(s->engine);
}

static struct job *submit(struct subject *s, const struct ask *a) {
    struct job *job = job_new(a->prompt, a->n_prompt, a->max_tokens);
    struct gen_request *r = job->request;
    r->adapter = a->adapter;
    r->group = a->n_prompt % 5;
    r->sampling.logprobs = TOP;
    r->sampling.ignore_eos = true;
    r->sampling.temperature = a->seed ? 1.5 : 0;
    r->sampling.seed = a->seed;
    r->sampling.speculative = a->speculative;
    r->score = a->score;
    if (a->formed) {
        static const char grammar[] = "root ::= ([a-z ]{1,9} [,;] | [0-9]{2,90} \"!\"){200,}";
        struct error e;
        if (grammar_from_gbnf(&r->sampling.grammar, grammar, sizeof grammar - 1, &e))
            fail_msg("%s", e.message);
    }
    r->score_from = a->n_prompt / 2;
    job_submit(job, s->engine);
    return job;
}

static void assert_reports(const struct token_report *got, const struct token_report *want,
                           size_t n) {
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(got[i].id, want[i].id);
        assert_memory_equal(&got[i].logprob, &want[i].logprob, sizeof(float));
        assert_int_equal(got[i].n_top, want[i].n_top);
        for (int k = 0; k < got[i].n_top; k++) {
            assert_int_equal(got[i].top[k].id, want[i].top[k].id);
            assert_memory_equal(&got[i].top[k].logprob, &want[i].top[k].logprob, sizeof(float));
        }
    }
}

static void assert_same(struct job *job, struct job *alone) {
    const struct gen_event *got = job_wait(job), *want = alone->end;
    if (got->finish == FINISH_ERROR) fail_msg("%s", got->error.message);
    assert_int_equal(got->finish, want->finish);
    assert_int_equal(got->n_tokens, want->n_tokens);
    assert_int_equal(got->n_prompt_tokens, want->n_prompt_tokens);
    assert_reports(got->tokens, want->tokens, want->n_tokens);
    assert_reports(got->prompt_tokens, want->prompt_tokens, want->n_prompt_tokens);
    assert_string_equal(got->text, want->text);
    job_free(job);
}

/* Prompts that begin alike in groups; greedy ones, seeds, adapters, grammars and scores among them. */
static void make_asks(struct subject *s, int32_t ctx, int32_t vocab) {
    unsigned seed = 77;
    for (int i = 0; i < N; i++) {
        struct ask *a = &s->asks[i];
        int32_t room = ctx - 24 < MAX_PROMPT ? ctx - 24 : MAX_PROMPT;
        unsigned family = (unsigned)(i % 3);
        a->n_prompt = (size_t)random_of(&seed, 1, room);
        if (i % 3 == 0) a->n_prompt = (size_t)room - (size_t)(i % 4);
        for (size_t k = 0; k < a->n_prompt; k++) a->prompt[k] = random_of(&family, 10, vocab);
        if (a->n_prompt > 70) a->prompt[70] = random_of(&seed, 10, vocab);
        a->max_tokens = random_of(&seed, 1, ctx > 64 ? 100 : 24);
        a->seed = i % 2 ? (uint64_t)i : 0;
        a->adapter = i % 4 < 2 ? -1 : 3 + i % 4 - 2;
        a->score = i % 7 == 6;
        a->formed = i % 5 == 3;
        a->speculative = s->draft ? (enum speculative)(i % 5) : SPECULATIVE_OFF;
    }
}

static void open_subject(struct subject *s, const char *name, int32_t ctx, int tp, int draft_tp, int kv_type) {
    char path[128];
    struct error e = {0};
    snprintf(path, sizeof path, "tests/data/models/%s", name);
    memset(s, 0, sizeof *s);
    if (model_open(&s->model, path, &e)) fail_msg("%s", e.message);
    if (draft_tp) s->draft = open_draft(name);
    if (tokenizer_open(&s->tokenizer, "tests/data/models/tiny-chat", &e)) fail_msg("%s", e.message);
    for (int i = 0; i < ADAPTERS; i++) s->adapters[i] = make_adapter(s->model, i);
    s->options = (struct engine_options){.model = s->model,
                                         .tokenizer = s->tokenizer,
                                         .draft = s->draft,
                                         .draft_tp = draft_tp,
                                         .tp = tp,
                                         .ctx = ctx,
                                         .kv_type = kv_type};
    core_set_allowed(&s->options.cores);
    s->options.cores.n = tp;
    make_asks(s, ctx, model_config(s->model)->vocab);
    start(s);
    for (int i = 0; i < N; i++) {
        /* After a change nothing of before is found. */
        assert_int_equal(engine_change(s->engine, set_adapters, on_set, s->adapters, &e), 0);
        s->alone[i] = submit(s, &s->asks[i]);
        const struct gen_event *end = job_wait(s->alone[i]);
        if (end->finish == FINISH_ERROR) fail_msg("%s", end->error.message);
        assert_int_equal(end->n_cached, 0);
    }
    stop(s);
}

static void close_subject(struct subject *s) {
    for (int i = 0; i < N; i++) job_free(s->alone[i]);
    for (int i = 0; i < ADAPTERS; i++) adapter_close(s->adapters[i]);
    tokenizer_free(s->tokenizer);
    model_free(s->draft);
    model_free(s->model);
}

/* All at once, some of them twice, some held for a while, some of the second ones cancelled. */
static void mix(struct subject *s, unsigned seed) {
    enum { MORE = 8 };
    struct job *jobs[N], *more[MORE];
    int order[N];
    for (int i = 0; i < N; i++) {
        int at = random_of(&seed, 0, i + 1);
        order[i] = order[at];
        order[at] = i;
    }
    for (int i = 0; i < N; i++) {
        jobs[order[i]] = submit(s, &s->asks[order[i]]);
        if (i < MORE) more[i] = submit(s, &s->asks[(order[i] + 1) % N]);
        if (rand_r(&seed) % 4 == 0) engine_hold(s->engine, jobs[order[i]]->request, true);
        if (rand_r(&seed) % 4 == 0) usleep((useconds_t)random_of(&seed, 0, 1500));
    }
    for (int i = 0; i < MORE; i += 2) engine_cancel(s->engine, more[i]->request);
    for (int i = 0; i < N; i++) engine_hold(s->engine, jobs[i]->request, false);
    for (int i = 0; i < N; i++) assert_same(jobs[i], s->alone[i]);
    for (int i = 0; i < MORE; i++) {
        if (i % 2) assert_same(more[i], s->alone[(order[i] + 1) % N]);
        else job_wait(more[i]), job_free(more[i]);
    }
}

static void check(const char *name, int32_t ctx, int tp, int draft_tp, int kv_type, size_t block_bytes,
                  size_t n_engines) {
    struct subject s;
    uint64_t preemptions = 0, hits = 0, guessed = 0, accepted = 0;
    open_subject(&s, name, ctx, tp, draft_tp, kv_type);
    const struct {
        int32_t slots, step_rows;
        size_t blocks; /* 0: plenty */
    } engines[] = {{5, 7, 0}, {16, 40, 10}, {32, 512, 0}, {1, 512, 0}};
    for (size_t k = 0; k < n_engines; k++) {
        s.options.slots = engines[k].slots;
        s.options.step_rows = engines[k].step_rows;
        s.options.kv_memory = engines[k].blocks * block_bytes;
        s.options.debug_alias = true; /* checks the books */
        start(&s);
        for (unsigned round = 0; round < 2; round++) mix(&s, 100 * (unsigned)k + round);
        struct engine_stats stats;
        engine_stats(s.engine, &stats);
        assert_int_equal(stats.kv_used, 0);
        if (engines[k].blocks) assert_int_equal(stats.kv_blocks, engines[k].blocks);
        preemptions += stats.preemptions;
        hits += stats.prefix_hits;
        guessed += stats.guessed_tokens;
        accepted += stats.accepted_tokens;
        stop(&s);
    }
    if (ctx > 64 && preemptions == 0) fail_msg("no request had to begin anew");
    if (hits == 0) fail_msg("nothing was found in the cache");
    if (draft_tp && (accepted == 0 || accepted == guessed)) fail_msg("guesses were all right, or all wrong");
    close_subject(&s);
}

/* Bytes of a block of 32 positions: keys and values of both layers. */
static void answers_are_their_own_in_fp32(void **state) {
    (void)state;
    check("tiny-chat", 256, 1, 0, DTYPE_F32, 2 * 2 * 32 * 16 * 4, 4);
}

static void answers_are_their_own_on_two_ranks_with_f16_keys(void **state) {
    (void)state;
    check("tiny-chat", 256, 2, 0, DTYPE_F16, 2 * 2 * 32 * 8 * 2, 2);
}

static void answers_are_their_own_with_a_sliding_window(void **state) {
    (void)state;
    check("mistral-window", 256, 1, 0, DTYPE_F16, 2 * 2 * 32 * 16 * 2, 2);
}

static void answers_are_their_own_where_keys_depend_on_the_prompts_length(void **state) {
    (void)state;
    check("llama-rope-dynamic", 64, 1, 0, DTYPE_F32, 2 * 2 * 32 * 16 * 4, 2);
}

/* A block is one of the model and one of the draft model. */
static void answers_are_their_own_where_a_draft_model_guesses(void **state) {
    (void)state;
    check("tiny-chat", 256, 1, 1, DTYPE_F32, 4 * 2 * 32 * 16 * 4, 4);
}

static void answers_are_their_own_where_a_draft_model_guesses_on_one_of_two_ranks(void **state) {
    (void)state;
    check("mistral-window", 256, 2, 1, DTYPE_F16, 2 * 2 * 32 * (8 + 16) * 2, 2);
}

static void answers_are_their_own_where_the_draft_models_keys_depend_on_the_prompts_length(void **state) {
    (void)state;
    check("llama-rope-dynamic", 64, 2, 2, DTYPE_F32, 4 * 2 * 32 * 8 * 4, 2);
}

static int make_dir(void **state) {
    (void)state;
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state) {
    char command[64];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_their_own_in_fp32),
        cmocka_unit_test(answers_are_their_own_on_two_ranks_with_f16_keys),
        cmocka_unit_test(answers_are_their_own_with_a_sliding_window),
        cmocka_unit_test(answers_are_their_own_where_keys_depend_on_the_prompts_length),
        cmocka_unit_test(answers_are_their_own_where_a_draft_model_guesses),
        cmocka_unit_test(answers_are_their_own_where_a_draft_model_guesses_on_one_of_two_ranks),
        cmocka_unit_test(answers_are_their_own_where_the_draft_models_keys_depend_on_the_prompts_length),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
