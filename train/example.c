#include "train/example.h"

#include "base/json.h"
#include "text/unicode.h"
#include "train/mark.h"

#include <string.h>

struct form_keys {
    const char *name, *needs[2];
};
/* In the order they are looked for: files often carry a rendered "text" beside their fields. */
static const struct form_keys forms[FORM_DOCUMENT] = {
    [FORM_TEXT] = {"text", {"text", NULL}},
    [FORM_COMPLETION] = {"completion", {"prompt", "completion"}},
    [FORM_MESSAGES] = {"messages", {"messages", NULL}},
    [FORM_INSTRUCTION] = {"instruction", {"instruction", "output"}},
    [FORM_IDS] = {"input_ids", {"input_ids", NULL}},
};
static const enum example_form look_order[] = {FORM_MESSAGES, FORM_IDS, FORM_COMPLETION,
                                               FORM_INSTRUCTION, FORM_TEXT};

const char *example_form_name(enum example_form form) {
    return form < FORM_DOCUMENT ? forms[form].name : "document";
}

static int no_memory(struct error *e) {
    return error_set(e, ERR_MEMORY, "no memory for a record");
}

/* --- records as JSON -------------------------------------------------------------------------- */

static json_t *read_object(const struct record *record, struct error *e) {
    json_t *json = json_read(record->text, record->size, e);
    if (!json) {
        if (strstr(e->message, "premature end") || strstr(e->message, "near end of file"))
            error_set(e, ERR_PARSE,
                      "the record ends too early: one whole JSON object a line is "
                      "expected (or an array of objects as the whole file)");
        return NULL;
    }
    if (json_is_object(json)) return json;
    char got[96];
    error_set(e, ERR_PARAMS, "%s, not an object", json_describe(json, got, sizeof got));
    json_decref(json);
    return NULL;
}

static bool has_keys(const json_t *json, enum example_form form) {
    for (int i = 0; i < 2 && forms[form].needs[i]; i++)
        if (!json_object_get(json, forms[form].needs[i])) return false;
    return true;
}

static int unknown_form(const json_t *json, struct error *e) {
    char keys[160] = "";
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)json, key, value) {
        size_t n = strlen(keys);
        snprintf(keys + n, sizeof keys - n, "%s%.40s", n ? ", " : "", key);
    }
    return error_set(e, ERR_PARAMS,
                     "a record with %s%s is of no form that tpd knows: text; prompt, completion; "
                     "messages; instruction, input, output; or input_ids, labels",
                     *keys ? "the keys " : "no keys", keys);
}

int example_find_form(const struct record *record, enum example_form *form, struct error *e) {
    json_t *json = read_object(record, e);
    if (!json) return -(int)e->kind;
    int err = -1;
    for (size_t i = 0; i < sizeof look_order / sizeof *look_order && err; i++)
        if (has_keys(json, look_order[i])) {
            *form = look_order[i];
            err = 0;
        }
    if (err) err = unknown_form(json, e);
    json_decref(json);
    return err;
}

/* Appends the string member; one that is absent or null counts as empty where it is optional. */
static int add_member(const json_t *json, const char *key, bool optional, struct buf *to,
                      struct error *e) {
    const json_t *value = json_object_get(json, key);
    if (optional && (!value || json_is_null(value))) return 0;
    char got[96];
    if (!json_is_string(value))
        return error_set(e, ERR_PARAMS, "\"%s\" must be a string, not %s", key,
                         json_describe(value, got, sizeof got));
    buf_add(to, json_string_value(value), json_string_length(value));
    return 0;
}

/* The last part of a text: what is learnt, so it must not be empty. */
static int add_learnt(const json_t *json, const char *key, struct rendered *r, struct error *e) {
    size_t from = r->text.size;
    int err = add_member(json, key, false, &r->text, e);
    if (err) return err;
    if (r->text.size == from && !r->text.failed)
        return error_set(e, ERR_PARAMS, "\"%s\" is empty: there is nothing to learn", key);
    spans_add(&r->learnt, from, r->text.size);
    return r->text.failed || r->learnt.failed ? no_memory(e) : 0;
}

static int render_instruction(const json_t *json, struct rendered *r, struct error *e) {
    static const char instruction[] = "### Instruction:\n", input[] = "\n\n### Input:\n",
                      response[] = "\n\n### Response:\n";
    buf_add(&r->text, instruction, strlen(instruction));
    int err = add_member(json, "instruction", false, &r->text, e);
    if (!err && json_string_length(json_object_get(json, "input")) > 0)
        buf_add(&r->text, input, strlen(input));
    if (!err) err = add_member(json, "input", true, &r->text, e);
    buf_add(&r->text, response, strlen(response));
    return err ? err : add_learnt(json, "output", r, e);
}

/* --- to marked tokens ------------------------------------------------------------------------- */

static int add_id(struct token_ids *out, token_id id, struct error *e) {
    if (out->n == out->capacity) {
        size_t want = out->capacity ? out->capacity * 2 : 64;
        token_id *ids = realloc(out->ids, want * sizeof *ids);
        if (!ids) return no_memory(e);
        out->ids = ids;
        out->capacity = want;
    }
    out->ids[out->n++] = id;
    return 0;
}

/* special: with what the tokenizer puts around a text, and eos behind it. */
static int encode_rendered(const struct dataset_options *o, const struct rendered *r, bool special,
                           struct token_ids *out, struct error *e) {
    size_t from = out->n;
    int err = mark_encode(o->tokenizer, r, special, !o->on_completion, out, e);
    if (err) return err;
    token_id last = out->n > from ? token_of(out->ids[out->n - 1]) : -1;
    return special && o->eos >= 0 && last != o->eos ? add_id(out, o->eos | TOKEN_TRAINED, e) : 0;
}

static int encode_ids(const json_t *json, struct token_ids *out, struct error *e) {
    const json_t *ids = json_object_get(json, "input_ids"),
                 *labels = json_object_get(json, "labels");
    if (json_is_null(labels)) labels = NULL;
    size_t n = json_array_size(ids);
    if (n == 0) return error_set(e, ERR_PARAMS, "\"input_ids\" must be an array of token ids");
    if (labels && json_array_size(labels) != n)
        return error_set(e, ERR_PARAMS, "\"labels\" must be an array as long as input_ids: %zu", n);
    int err = 0;
    for (size_t i = 0; i < n && !err; i++) {
        const json_t *id = json_array_get(ids, i);
        const json_t *label = labels ? json_array_get(labels, i) : id;
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) >= TOKEN_TRAINED)
            return error_set(e, ERR_PARAMS, "input_ids[%zu] is no token id", i);
        bool learnt = json_equal(label, id);
        if (!learnt && !(json_is_integer(label) && json_integer_value(label) == -100))
            return error_set(e, ERR_PARAMS,
                             "labels[%zu] must be input_ids[%zu] (learnt) or -100 (not learnt)", i,
                             i);
        err = add_id(out, (token_id)json_integer_value(id) | (learnt ? TOKEN_TRAINED : 0), e);
    }
    return err;
}

/* A piece of a text file: its context gives the tokenizer a run-up. */
static int encode_piece(const struct dataset_options *o, const struct record *record,
                        struct token_ids *out, struct error *e) {
    struct token_ids context = {0};
    size_t valid = utf8_check(record->text, record->size), from = out->n;
    if (valid < record->size)
        return error_set(e, ERR_PARAMS, "a byte (0x%02x) that is not UTF-8",
                         (unsigned char)record->text[valid]);
    bool first = record->context == 0;
    int err = tokenizer_encode(o->tokenizer, record->text, record->size, first, out, e);
    if (!err && first && out->n > from && out->ids[out->n - 1] == o->eos) out->n--; /* not yet */
    if (!err && !first)
        err = tokenizer_encode(o->tokenizer, record->text, record->context, false, &context, e);
    size_t known = err ? 0 : mark_common(out, &context, from);
    token_ids_free(&context);
    if (err) return err;
    memmove(out->ids + from, out->ids + from + known, (out->n - from - known) * sizeof *out->ids);
    out->n -= known;
    for (size_t i = from; i < out->n; i++) out->ids[i] |= TOKEN_TRAINED;
    return 0;
}

static int check_vocab(const struct dataset_options *o, const struct token_ids *ids, size_t from,
                       struct error *e) {
    for (size_t i = from; i < ids->n; i++)
        if (token_of(ids->ids[i]) >= o->vocab)
            return error_set(e, ERR_PARAMS,
                             "token %d is not in the model's vocabulary of %d tokens",
                             token_of(ids->ids[i]), o->vocab);
    return 0;
}

static int encode_object(const struct dataset_options *o, enum example_form form,
                         const json_t *json, struct token_ids *out, struct error *e) {
    struct rendered r = {0};
    int err = 0;
    switch (form) {
    case FORM_TEXT: err = add_learnt(json, "text", &r, e); break;
    case FORM_COMPLETION:
        err = add_member(json, "prompt", false, &r.text, e);
        if (!err) err = add_learnt(json, "completion", &r, e);
        break;
    case FORM_MESSAGES:
        err = chat_render_record(o->chat, json, &r, e);
        break;
    case FORM_INSTRUCTION: err = render_instruction(json, &r, e); break;
    case FORM_IDS: return encode_ids(json, out, e);
    case FORM_DOCUMENT:
    case FORM_COUNT: break;
    }
    if (!err) err = encode_rendered(o, &r, form != FORM_MESSAGES, out, e);
    rendered_free(&r);
    return err;
}

int example_encode(const struct dataset_options *options, enum example_form form,
                   const struct record *record, struct token_ids *out, struct error *e) {
    size_t from = out->n;
    int err = 0;
    if (form == FORM_DOCUMENT) err = encode_piece(options, record, out, e);
    else {
        json_t *json = read_object(record, e);
        if (!json) return -(int)e->kind;
        if (has_keys(json, form)) err = encode_object(options, form, json, out, e);
        else
            err = error_set(e, ERR_PARAMS, "%s%s%s is missing: all records must be like the first",
                            forms[form].needs[0], forms[form].needs[1] ? " or " : "",
                            forms[form].needs[1] ? forms[form].needs[1] : "");
        json_decref(json);
    }
    return err ? err : check_vocab(options, out, from, e);
}

static void drop_tail(struct token_ids *example) {
    while (example->n > 0 && !(example->ids[example->n - 1] & TOKEN_TRAINED)) example->n--;
}

void example_trim(struct token_ids *example, int32_t seq_len, bool *cut) {
    if (example->n > 0) example->ids[0] &= ~TOKEN_TRAINED; /* no row says it */
    drop_tail(example);
    *cut = example->n > (size_t)seq_len + 1;
    if (*cut) example->n = (size_t)seq_len + 1;
    drop_tail(example);
}
