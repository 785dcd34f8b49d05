#include "train/job.h"

#include "base/words.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Rows of a micro-batch are counted in int32_t with room to multiply. */
enum { MAX_BATCH_ROWS = 1 << 28, MAX_PATH_BYTES = 4000, MAX_WORD = 200 };
/* What is held out when a job must judge itself and does not say on what. */
static const double eval_fraction_default = 0.05;
static const double smallest = 1e-12;

/* --- the plain members: one table for reading, checking and writing --------------------------- */

enum field_type { FIELD_BOOL, FIELD_INT32, FIELD_INT64, FIELD_NUMBER };

struct field {
    const char *key;
    enum field_type type;
    size_t offset; /* in struct job_spec */
    double min, max;
};

#define FIELD(key, type, member, min, max)                                                         \
    { key, type, offsetof(struct job_spec, member), min, max }

static const struct field plain_fields[] = {
    FIELD("eval_fraction", FIELD_NUMBER, eval_fraction, 0, 0.9),
    FIELD("skip_bad", FIELD_BOOL, skip_bad, 0, 0),
    FIELD("epochs", FIELD_NUMBER, epochs, smallest, 1e6),
    FIELD("max_steps", FIELD_INT64, max_steps, 0, 1e12),
    FIELD("batch_size", FIELD_INT32, batch_size, 1, 1 << 20),
    FIELD("grad_accum", FIELD_INT32, grad_accum, 1, 1 << 20),
    FIELD("seq_len", FIELD_INT32, seq_len, 2, 1 << 24),
    FIELD("packing", FIELD_BOOL, packing, 0, 0),
    FIELD("sequence_parallel", FIELD_BOOL, sequence_parallel, 0, 0),
    FIELD("lr", FIELD_NUMBER, lr, smallest, 10),
    FIELD("warmup_ratio", FIELD_NUMBER, warmup_ratio, 0, 1),
    FIELD("weight_decay", FIELD_NUMBER, weight_decay, 0, 10),
    FIELD("eps", FIELD_NUMBER, eps, 1e-30, 1),
    FIELD("clip", FIELD_NUMBER, clip, 0, 1e9),
    FIELD("save_every", FIELD_INT64, save_every, 0, 1e12),
    FIELD("eval_every", FIELD_INT64, eval_every, 0, 1e12),
    FIELD("keep", FIELD_INT32, keep, 1, 1000),
    FIELD("patience", FIELD_INT32, patience, 0, 1000000),
    FIELD("since_last", FIELD_BOOL, since_last, 0, 0),
    FIELD("deadline_s", FIELD_NUMBER, deadline_s, 0, 1e9),
};
static const struct field lora_fields[] = {
    FIELD("r", FIELD_INT32, lora.r, 1, 4096),
    FIELD("alpha", FIELD_NUMBER, lora.alpha, smallest, 1e6),
    FIELD("dropout", FIELD_NUMBER, lora.dropout, 0, 0.99),
    FIELD("rslora", FIELD_BOOL, lora.rslora, 0, 0),
};
enum {
    N_PLAIN = sizeof plain_fields / sizeof *plain_fields,
    N_LORA = sizeof lora_fields / sizeof *lora_fields
};

static const char *const special_keys[] = {
    "name",    "data",     "eval_data", "method",   "lora",
    "loss_on", "schedule", "betas",     "seed",     "grad_checkpointing",
    "compute", "out",      "resume",  "activate",  "priority", "once",
    "result",
};
static const char *const lora_special_keys[] = {"targets"};
static const char *const activate_keys[] = {"when", "as"};

static int get_field(const json_t *json, const struct field *f, void *at, struct error *e) {
    int64_t integer;
    int err = 0;
    switch (f->type) {
    case FIELD_BOOL: return json_get_bool(json, f->key, at, e);
    case FIELD_NUMBER: return json_get_number(json, f->key, f->min, f->max, at, e);
    case FIELD_INT64: return json_get_int(json, f->key, (int64_t)f->min, (int64_t)f->max, at, e);
    case FIELD_INT32:
        integer = *(int32_t *)at;
        err = json_get_int(json, f->key, (int64_t)f->min, (int64_t)f->max, &integer, e);
        *(int32_t *)at = (int32_t)integer;
        break;
    }
    return err;
}

static int get_fields(struct job_spec *out, const json_t *json, const struct field *fields,
                      size_t n, struct error *e) {
    int err = 0;
    for (size_t i = 0; i < n && !err; i++)
        err = get_field(json, &fields[i], (char *)out + fields[i].offset, e);
    return err;
}

static json_t *field_json(const struct job_spec *spec, const struct field *f) {
    const void *at = (const char *)spec + f->offset;
    switch (f->type) {
    case FIELD_BOOL: return json_boolean(*(const bool *)at);
    case FIELD_INT32: return json_integer(*(const int32_t *)at);
    case FIELD_INT64: return json_integer(*(const int64_t *)at);
    case FIELD_NUMBER: return json_real(*(const double *)at);
    }
    return NULL;
}

/* --- errors ----------------------------------------------------------------------------------- */

static int wrong(struct error *e, const char *field, const char *expected, const json_t *got) {
    char text[128];
    json_describe(got, text, sizeof text);
    error_set(e, ERR_PARAMS, "%s must be %s, not %s", field, expected, text);
    error_note(e, "field", field);
    error_note(e, "expected", expected);
    error_note(e, "got", text);
    return -(int)ERR_PARAMS;
}

/* An error about a member of the object OUTER: its field becomes "OUTER.field". */
static int inside(struct error *e, const char *outer) {
    if (!e) return -(int)ERR_PARAMS;
    for (int i = 0; i < e->n_notes; i++)
        if (!strcmp(e->notes[i].key, "field")) {
            char name[232];
            snprintf(name, sizeof name, "%s.%.200s", outer, e->notes[i].text);
            error_note(e, "field", name);
            break;
        }
    return error_prefix(e, "%s.", outer);
}

/* Refuses keys that are neither fields nor words, and says which known one is near. */
static int check_keys(const json_t *json, const struct field *fields, size_t n_fields,
                      const char *const *words, size_t n_words, struct error *e) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)json, key, value) {
        struct suggestion near;
        char hint[96];
        bool known = false;
        suggest_start(&near, key);
        for (size_t i = 0; i < n_fields + n_words && !known; i++) {
            const char *word = i < n_fields ? fields[i].key : words[i - n_fields];
            known = !strcmp(key, word);
            suggest_offer(&near, word);
        }
        if (known) continue;
        error_set(e, ERR_PARAMS, "%.100s is not something that a fine-tune job has%s", key,
                  suggest_text(&near, hint, sizeof hint));
        error_note(e, "field", key);
        error_note(e, "expected", near.best ? near.best : "a key of a fine-tune job");
        error_note(e, "got", key);
        return -(int)ERR_PARAMS;
    }
    return 0;
}

/* --- members with a form of their own --------------------------------------------------------- */

/* A string of 1 … max bytes without NUL; absent and null leave *out. */
static int get_text(const json_t *json, const char *key, size_t max, char **out, struct error *e) {
    const json_t *value = json_object_get(json, key);
    if (!value || json_is_null(value)) return 0;
    size_t size = json_string_length(value);
    const char *text = json_string_value(value);
    if (!text || size == 0 || size > max || strlen(text) != size) {
        char expected[64];
        snprintf(expected, sizeof expected, "a string of 1 to %zu bytes", max);
        return wrong(e, key, expected, value);
    }
    free(*out);
    *out = strdup(text);
    return *out ? 0 : error_set(e, ERR_MEMORY, "no memory for a job");
}

/* *out = index of the word that is there; absent and null leave it. */
static int get_word(const json_t *json, const char *key, const char *const *words, int n,
                    const char *expected, int *out, struct error *e) {
    const json_t *value = json_object_get(json, key);
    if (!value || json_is_null(value)) return 0;
    for (int i = 0; i < n; i++)
        if (json_is_string(value) && !strcmp(json_string_value(value), words[i])) {
            *out = i;
            return 0;
        }
    return wrong(e, key, expected, value);
}

static const char *const method_words[] = {"lora", "full"};
static const char *const schedule_words[] = {"cosine", "linear", "constant"};
static const char *const loss_words[] = {"all", "completion"};
static const char *const when_words[] = {"always", "eval_improves"};
static const char *const priority_words[] = {"background"};
static const char *const compute_words[] = {"auto", "bf16", "f32"};
static const char *const result_words[] = {"last", "best"};

static int get_words(struct job_spec *out, const json_t *json, struct error *e) {
    int schedule = (int)out->schedule, loss_on = (int)out->loss_on, priority = 0, compute = 0;
    int err = get_word(json, "schedule", schedule_words, 3,
                       "\"cosine\", \"linear\" or \"constant\"", &schedule, e);
    if (!err)
        err = get_word(json, "loss_on", loss_words, 2, "\"completion\" or \"all\"", &loss_on, e);
    if (!err) err = get_word(json, "priority", priority_words, 1, "\"background\"", &priority, e);
    if (!err)
        err = get_word(json, "compute", compute_words, 3, "\"auto\", \"bf16\" or \"f32\"", &compute, e);
    out->compute = (enum job_compute)compute;
    out->schedule = (enum job_schedule)schedule;
    out->loss_on = (enum job_loss_on)loss_on;
    return err;
}

static bool name_is_good(const char *name) {
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_";
    size_t n = strlen(name);
    return n <= 64 && strspn(name, letters) > 0 &&
           n == strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-");
}

/* A name that is safe as one of a file, too. Absent and null leave *out, which may be NULL. */
static int get_name(const json_t *json, const char *key, char **out, struct error *e) {
    int err = get_text(json, key, MAX_WORD, out, e);
    if (!err && *out && !name_is_good(*out))
        err = wrong(e, key, "1 to 64 of A-Z a-z 0-9 . _ - that begin with neither . nor -",
                    json_object_get(json, key));
    return err;
}

static int get_betas(struct job_spec *out, const json_t *json, struct error *e) {
    const json_t *value = json_object_get(json, "betas");
    if (!value || json_is_null(value)) return 0;
    double b[2] = {-1, -1};
    if (json_is_array(value) && json_array_size(value) == 2)
        for (size_t i = 0; i < 2; i++)
            if (json_is_number(json_array_get(value, i)))
                b[i] = json_number_value(json_array_get(value, i));
    if (!(b[0] >= 0 && b[0] < 1 && b[1] >= 0 && b[1] < 1))
        return wrong(e, "betas", "two numbers from 0 to below 1", value);
    out->beta1 = b[0];
    out->beta2 = b[1];
    return 0;
}

static int target_index(const char *name) {
    for (int i = 0; name && i < TRAIN_TARGETS; i++)
        if (!strcmp(name, train_target_name(i))) return i;
    return -1;
}

static int get_targets(struct job_spec *out, const json_t *lora, struct error *e) {
    static const char expected[] = "names of linear layers (q_proj, k_proj, v_proj, o_proj, "
                                   "gate_proj, up_proj, down_proj)";
    const json_t *value = json_object_get(lora, "targets"), *item;
    size_t i;
    if (!value || json_is_null(value)) return 0;
    if (!json_is_array(value) || json_array_size(value) == 0)
        return wrong(e, "targets", expected, value);
    out->lora.targets = 0;
    json_array_foreach((json_t *)value, i, item) {
        int target = target_index(json_string_value(item));
        if (target < 0) return wrong(e, "targets", expected, item);
        out->lora.targets |= 1u << target;
    }
    return 0;
}

static int get_lora(struct job_spec *out, const json_t *json, struct error *e) {
    const json_t *lora = json_object_get(json, "lora");
    if (!lora || json_is_null(lora)) return 0;
    if (!json_is_object(lora)) return wrong(e, "lora", "an object", lora);
    out->lora.alpha = NAN;
    int err = check_keys(lora, lora_fields, N_LORA, lora_special_keys, 1, e);
    if (!err) err = get_fields(out, lora, lora_fields, N_LORA, e);
    if (!err) err = get_targets(out, lora, e);
    if (isnan(out->lora.alpha)) out->lora.alpha = 2.0 * out->lora.r;
    return err == -(int)ERR_PARAMS ? inside(e, "lora") : err;
}

static int get_activate(struct job_spec *out, const json_t *json, struct error *e) {
    const json_t *value = json_object_get(json, "activate");
    if (!value || json_is_null(value)) return 0;
    if (!json_is_object(value)) return wrong(e, "activate", "an object or null", value);
    int when = 1;
    int err = check_keys(value, NULL, 0, activate_keys, 2, e);
    if (!err)
        err = get_word(value, "when", when_words, 2, "\"eval_improves\" or \"always\"", &when, e);
    if (!err) err = get_name(value, "as", &out->activate_as, e);
    if (err) return err == -(int)ERR_PARAMS ? inside(e, "activate") : err;
    out->activate_if_better = when == 1;
    if (!out->activate_as) out->activate_as = strdup("default");
    return out->activate_as ? 0 : error_set(e, ERR_MEMORY, "no memory for a job");
}

static int get_switches(struct job_spec *out, const json_t *json, struct error *e) {
    const json_t *value = json_object_get(json, "resume");
    if (json_is_boolean(value)) out->resume = json_is_true(value);
    else if (value && !json_is_null(value) &&
             !(json_is_string(value) && !strcmp(json_string_value(value), "auto")))
        return wrong(e, "resume", "\"auto\", true or false", value);
    value = json_object_get(json, "grad_checkpointing");
    if (json_is_boolean(value))
        out->grad_checkpointing = json_is_true(value) ? CHECKPOINTING_ON : CHECKPOINTING_OFF;
    else if (json_is_string(value) && !strcmp(json_string_value(value), "auto"))
        out->grad_checkpointing = CHECKPOINTING_AUTO;
    else if (value && !json_is_null(value))
        return wrong(e, "grad_checkpointing", "true, false or \"auto\"", value);
    int64_t seed = 0;
    int err = json_get_int(json, "seed", 0, INT64_MAX, &seed, e);
    out->seed = (uint64_t)seed;
    return err;
}

/* --- what members mean for each other --------------------------------------------------------- */

static bool has(const json_t *json, const char *key) {
    const json_t *value = json_object_get(json, key);
    return value && !json_is_null(value);
}

static bool has_eval_split(const struct job_spec *spec) {
    return spec->eval_data || spec->eval_fraction > 0;
}

/* Without a word the best weights are the result where there is an eval split to tell by. */
static int get_result(struct job_spec *out, const json_t *json, struct error *e) {
    int best = has_eval_split(out);
    int err = get_word(json, "result", result_words, 2, "\"best\" or \"last\"", &best, e);
    out->result_best = best;
    if (err || !best || has_eval_split(out)) return err;
    return wrong(e, "result", "\"last\" where there is no eval split (eval_data, eval_fraction)",
                 json_object_get(json, "result"));
}

/* Only an adapter can take another's place while requests go on. */
static int check_activate(const struct job_spec *out, const json_t *json, struct error *e) {
    if (!out->activate_as) return 0;
    if (out->method == TRAIN_FULL)
        return wrong(e, "activate",
                     "absent where method is full: the result is a whole model, which tpd serves "
                     "when it is started with it",
                     json_object_get(json, "activate"));
    bool by_default = !strcmp(out->activate_as, "default");
    const char *name = by_default ? out->name : out->activate_as;
    if (strcmp(name, "base") && (!by_default || strcmp(name, "default"))) return 0;
    return wrong(e, by_default ? "name" : "activate.as",
                 "the name of an adapter, neither \"base\" nor \"default\", where the job's result is "
                 "activated",
                 by_default ? json_object_get(json, "name")
                            : json_object_get(json_object_get(json, "activate"), "as"));
}

static int judge_on_default(struct job_spec *out, const json_t *json, struct error *e) {
    bool must_judge = (out->activate_as && out->activate_if_better) || out->patience > 0;
    if (!must_judge || has_eval_split(out)) return 0;
    if (has(json, "eval_fraction"))
        return wrong(e, "eval_fraction",
                     "over 0 (or eval_data given) where the job is judged (activate.when "
                     "eval_improves, patience)",
                     json_object_get(json, "eval_fraction"));
    out->eval_fraction = eval_fraction_default;
    return 0;
}

static int check_together(struct job_spec *out, const json_t *json, struct error *e) {
    if ((int64_t)out->batch_size * out->seq_len > MAX_BATCH_ROWS)
        return wrong(e, "batch_size", "so small that batch_size times seq_len is at most 268435456",
                     json_object_get(json, "batch_size"));
    if (out->eval_data && out->eval_fraction > 0)
        return wrong(e, "eval_fraction", "0 or absent where eval_data is given",
                     json_object_get(json, "eval_fraction"));
    int err = judge_on_default(out, json, e);
    if (!err) err = get_result(out, json, e);
    return err ? err : check_activate(out, json, e);
}

static struct job_spec defaults(void) {
    return (struct job_spec){
        .method = TRAIN_LORA,
        .lora = {.r = 16, .alpha = 32, .targets = TRAIN_ALL_TARGETS},
        .epochs = 1,
        .batch_size = 8,
        .grad_accum = 1,
        .seq_len = 1024,
        .packing = true,
        .loss_on = LOSS_ON_COMPLETION,
        .schedule = SCHEDULE_COSINE,
        .warmup_ratio = 0.03,
        .beta1 = 0.9,
        .beta2 = 0.95,
        .eps = 1e-8,
        .clip = 1,
        .save_every = 100,
        .eval_every = 100,
        .keep = 2,
        .resume = true,
    };
}

static int get_all(struct job_spec *out, const json_t *json, struct error *e) {
    int method = 0;
    int err = check_keys(json, plain_fields, N_PLAIN, special_keys,
                         sizeof special_keys / sizeof *special_keys, e);
    if (!err) err = get_name(json, "name", &out->name, e);
    if (!err) err = get_text(json, "data", MAX_PATH_BYTES, &out->data, e);
    if (!err && !out->data) err = wrong(e, "data", "the path of a data file", NULL);
    if (!err) err = get_text(json, "eval_data", MAX_PATH_BYTES, &out->eval_data, e);
    if (!err) err = get_text(json, "out", MAX_PATH_BYTES, &out->out, e);
    if (!err) err = get_text(json, "once", MAX_WORD, &out->once, e);
    if (!err) err = get_word(json, "method", method_words, 2, "\"lora\" or \"full\"", &method, e);
    out->method = method == 0 ? TRAIN_LORA : TRAIN_FULL;
    out->lr = method == 0 ? 2e-4 : 2e-5; /* whole models forget at an adapter's pace */
    if (!err) err = get_fields(out, json, plain_fields, N_PLAIN, e);
    if (!err) err = get_words(out, json, e);
    if (!err) err = get_lora(out, json, e);
    if (!err) err = get_betas(out, json, e);
    if (!err) err = get_switches(out, json, e);
    if (!err) err = get_activate(out, json, e);
    return err ? err : check_together(out, json, e);
}

int job_spec_parse(struct job_spec *out, const json_t *json, struct error *e) {
    *out = defaults();
    if (!json_is_object(json)) return wrong(e, "job", "an object", json);
    out->name = strdup("job");
    int err = out->name ? get_all(out, json, e) : error_set(e, ERR_MEMORY, "no memory for a job");
    if (err) job_spec_free(out);
    return err;
}

void job_spec_free(struct job_spec *spec) {
    free(spec->name);
    free(spec->data);
    free(spec->eval_data);
    free(spec->out);
    free(spec->activate_as);
    free(spec->once);
    *spec = (struct job_spec){0};
}

/* --- and back --------------------------------------------------------------------------------- */

static json_t *text_json(const char *text) {
    return text ? json_string(text) : json_null();
}

static void put_fields(json_t *to, const struct job_spec *spec, const struct field *fields,
                       size_t n) {
    for (size_t i = 0; i < n; i++)
        json_object_set_new(to, fields[i].key, field_json(spec, &fields[i]));
}

static json_t *lora_json(const struct job_spec *spec) {
    json_t *lora = json_object(), *targets = json_array();
    put_fields(lora, spec, lora_fields, N_LORA);
    for (int i = 0; i < TRAIN_TARGETS; i++)
        if (spec->lora.targets >> i & 1)
            json_array_append_new(targets, json_string(train_target_name(i)));
    json_object_set_new(lora, "targets", targets);
    return lora;
}

static json_t *checkpointing_json(enum job_checkpointing c) {
    switch (c) {
    case CHECKPOINTING_OFF: return json_false();
    case CHECKPOINTING_ON: return json_true();
    case CHECKPOINTING_AUTO: return json_string("auto");
    }
    return NULL;
}

json_t *job_spec_json(const struct job_spec *spec) {
    json_t *out = json_object();
    json_object_set_new(out, "name", text_json(spec->name));
    json_object_set_new(out, "data", text_json(spec->data));
    json_object_set_new(out, "eval_data", text_json(spec->eval_data));
    json_object_set_new(out, "method", json_string(method_words[spec->method == TRAIN_FULL]));
    json_object_set_new(out, "lora", lora_json(spec));
    put_fields(out, spec, plain_fields, N_PLAIN);
    json_object_set_new(out, "loss_on", json_string(loss_words[spec->loss_on]));
    json_object_set_new(out, "schedule", json_string(schedule_words[spec->schedule]));
    json_object_set_new(out, "betas", json_pack("[ff]", spec->beta1, spec->beta2));
    json_object_set_new(out, "seed", json_integer((json_int_t)spec->seed));
    json_object_set_new(out, "grad_checkpointing", checkpointing_json(spec->grad_checkpointing));
    json_object_set_new(out, "compute", json_string(compute_words[spec->compute]));
    json_object_set_new(out, "result", json_string(result_words[spec->result_best]));
    json_object_set_new(out, "out", text_json(spec->out));
    json_object_set_new(out, "resume", spec->resume ? json_string("auto") : json_false());
    json_object_set_new(out, "activate",
                        spec->activate_as
                            ? json_pack("{ssss}", "when", when_words[spec->activate_if_better],
                                        "as", spec->activate_as)
                            : json_null());
    json_object_set_new(out, "priority", json_string("background"));
    json_object_set_new(out, "once", text_json(spec->once));
    return out;
}
