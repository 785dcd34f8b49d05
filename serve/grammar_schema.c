/* A JSON schema as a grammar of JSON. What a keyword means that is not understood here cannot be kept,
 * so it is refused with its place; what is understood may be kept more narrowly than asked
 * (docs/structured.md), never more widely. */
#include "serve/grammar_schema.h"

#include "base/json.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- pointers and errors ----------------------------------------------------------------------- */

static void pointer_add(struct schema_reader *r, char c) {
    if (r->pointer_size + 1 < sizeof r->pointer) r->pointer[r->pointer_size++] = c;
    r->pointer[r->pointer_size] = '\0';
}

size_t pointer_push(struct schema_reader *r, const char *step) {
    size_t before = r->pointer_size;
    pointer_add(r, '/');
    for (; *step; step++) {
        if (*step == '~' || *step == '/') pointer_add(r, '~');
        pointer_add(r, (char)(*step == '~' ? '0' : *step == '/' ? '1' : *step));
    }
    return before;
}

size_t pointer_push_index(struct schema_reader *r, size_t index) {
    char step[24];
    snprintf(step, sizeof step, "%zu", index);
    return pointer_push(r, step);
}

void pointer_pop(struct schema_reader *r, size_t before) {
    r->pointer_size = before;
    r->pointer[before] = '\0';
}

int schema_error(struct schema_reader *r, const char *format, ...) {
    char why[320];
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    error_set(r->e, ERR_PARAMS, "%.180s: %s", r->pointer, why);
    error_note(r->e, "pointer", r->pointer);
    return -(int)ERR_PARAMS;
}

int schema_count(struct schema_reader *r, const json_t *schema, const char *keyword,
                 uint32_t standard, uint32_t *out) {
    const json_t *value = json_object_get(schema, keyword);
    double number = json_number_value(value);
    *out = standard;
    if (!value) return 0;
    size_t before = pointer_push(r, keyword);
    bool whole = json_is_number(value) && number >= 0 && number <= GRAMMAR_MAX_COUNT &&
                 number == (double)(uint32_t)number;
    int err = whole ? 0 : schema_error(r, "must be a whole number from 0 to %d", GRAMMAR_MAX_COUNT);
    pointer_pop(r, before);
    if (!err) *out = (uint32_t)number;
    return err;
}

/* --- keywords ---------------------------------------------------------------------------------- */

/* The kinds of values that have a meaning for a keyword; for a schema without type they say which. */
enum kind {
    KIND_OBJECT = 1,
    KIND_ARRAY = 2,
    KIND_STRING = 4,
    KIND_NUMBER = 8,
    KIND_ANY = 16, /* keywords that choose or combine */
    KIND_NOTE = 32 /* says nothing about values */
};

static const struct {
    const char *name;
    int kind;
} keywords[] = {
    {"type", KIND_ANY},
    {"enum", KIND_ANY},
    {"const", KIND_ANY},
    {"anyOf", KIND_ANY},
    {"oneOf", KIND_ANY},
    {"allOf", KIND_ANY},
    {"$ref", KIND_ANY},
    {"properties", KIND_OBJECT},
    {"required", KIND_OBJECT},
    {"additionalProperties", KIND_OBJECT},
    {"minProperties", KIND_OBJECT},
    {"maxProperties", KIND_OBJECT},
    {"items", KIND_ARRAY},
    {"prefixItems", KIND_ARRAY},
    {"minItems", KIND_ARRAY},
    {"maxItems", KIND_ARRAY},
    {"uniqueItems", KIND_ARRAY},
    {"pattern", KIND_STRING},
    {"format", KIND_STRING},
    {"minLength", KIND_STRING},
    {"maxLength", KIND_STRING},
    {"minimum", KIND_NUMBER},
    {"maximum", KIND_NUMBER},
    {"exclusiveMinimum", KIND_NUMBER},
    {"exclusiveMaximum", KIND_NUMBER},
    {"multipleOf", KIND_NUMBER},
    {"title", KIND_NOTE},
    {"description", KIND_NOTE},
    {"default", KIND_NOTE},
    {"examples", KIND_NOTE},
    {"$comment", KIND_NOTE},
    {"readOnly", KIND_NOTE},
    {"writeOnly", KIND_NOTE},
    {"deprecated", KIND_NOTE},
    {"$schema", KIND_NOTE},
    {"$id", KIND_NOTE},
    {"$defs", KIND_NOTE},
    {"definitions", KIND_NOTE},
};

static int keyword_kind(const char *name) {
    for (size_t i = 0; i < sizeof keywords / sizeof *keywords; i++)
        if (strcmp(keywords[i].name, name) == 0) return keywords[i].kind;
    return 0;
}

/* *kinds: those of all its keywords. */
static int check_keywords(struct schema_reader *r, const json_t *schema, int *kinds) {
    const char *name;
    json_t *value;
    *kinds = 0;
    json_object_foreach((json_t *)schema, name, value) {
        int kind = keyword_kind(name);
        *kinds |= kind;
        if (kind) continue;
        pointer_push(r, name);
        return schema_error(r, "this keyword is not supported");
    }
    return 0;
}

/* --- types ------------------------------------------------------------------------------------- */

static const char *const types[] = {"object", "array",   "string", "number",
                                    "integer", "boolean", "null",   NULL};

static int compile_type(struct schema_reader *r, const char *type, const json_t *schema,
                        int32_t *out) {
    struct grammar_source *s = &r->s;
    if (strcmp(type, "object") == 0) return schema_object(r, schema, out);
    if (strcmp(type, "array") == 0) return schema_array(r, schema, out);
    if (strcmp(type, "string") == 0) return schema_string(r, schema, out);
    if (strcmp(type, "number") == 0) return schema_number(r, schema, false, out);
    if (strcmp(type, "integer") == 0) return schema_number(r, schema, true, out);
    if (strcmp(type, "null") == 0) *out = source_text(s, "null");
    else *out = source_either(s, source_text(s, "true"), source_text(s, "false"));
    return 0;
}

/* Whether the list of a type keyword (or its word; NULL: any) has it. */
static bool has_type(const json_t *list, const char *type) {
    size_t i;
    const json_t *one;
    const char *word = json_word(list);
    if (!list || (word && strcmp(word, type) == 0)) return true;
    json_array_foreach((json_t *)list, i, one) {
        if (json_word(one) && strcmp(json_word(one), type) == 0) return true;
    }
    return false;
}

static int check_types(struct schema_reader *r, const json_t *list) {
    size_t n = json_is_array(list) ? json_array_size(list) : 1;
    size_t before = pointer_push(r, "type");
    int err = n == 0 ? schema_error(r, "no type is left") : 0;
    for (size_t i = 0; i < n && list && !err; i++) {
        const char *word = json_word(json_is_array(list) ? json_array_get(list, i) : list);
        bool known = false;
        for (const char *const *type = types; *type && word; type++)
            known = known || strcmp(*type, word) == 0;
        if (!known)
            err = schema_error(r, "must be object, array, string, number, integer, boolean or null, "
                                  "or a list of them");
    }
    pointer_pop(r, before);
    return err;
}

/* Without type: what its keywords are about, if that is one kind; else any value, when there are none. */
static int compile_types(struct schema_reader *r, const json_t *schema, int kinds, int32_t *out) {
    const json_t *list = json_object_get(schema, "type");
    struct expr_list forms = {0};
    int about = kinds & (KIND_OBJECT | KIND_ARRAY | KIND_STRING | KIND_NUMBER);
    if (!list) {
        const char *type = about == KIND_OBJECT   ? "object"
                           : about == KIND_ARRAY  ? "array"
                           : about == KIND_STRING ? "string"
                           : about == KIND_NUMBER ? "number"
                                                  : NULL;
        if (type) return compile_type(r, type, schema, out);
        if (about) return schema_error(r, "type is missing, and its keywords are about several");
        *out = json_any_value(r);
        return 0;
    }
    int err = check_types(r, list);
    for (const char *const *type = types; *type && !err; type++) {
        int32_t one;
        if (!has_type(list, *type)) continue;
        if (strcmp(*type, "integer") == 0 && has_type(list, "number")) continue;
        err = compile_type(r, *type, schema, &one);
        if (!err) list_add(&r->s, &forms, one);
    }
    *out = source_alt(&r->s, &forms);
    return err;
}

/* --- values ------------------------------------------------------------------------------------ */

static bool is_of_type(const json_t *value, const json_t *list) {
    const char *type = json_is_object(value)    ? "object"
                       : json_is_array(value)   ? "array"
                       : json_is_string(value)  ? "string"
                       : json_is_boolean(value) ? "boolean"
                       : json_is_null(value)    ? "null"
                                                : "number";
    if (has_type(list, type)) return true;
    double number = json_number_value(value);
    return json_is_number(value) && has_type(list, "integer") &&
           (json_is_integer(value) || number == (double)(int64_t)number);
}

static int compile_values(struct schema_reader *r, const json_t *schema, int kinds, int32_t *out) {
    const json_t *list = json_object_get(schema, "enum"), *one = json_object_get(schema, "const");
    const json_t *type = json_object_get(schema, "type"), *value;
    struct expr_list forms = {0};
    size_t i;
    int err = check_types(r, type);
    if (!err && list && !json_is_array(list)) err = schema_error(r, "enum must be an array");
    if (!err && (kinds & (KIND_OBJECT | KIND_ARRAY | KIND_STRING | KIND_NUMBER)))
        err = schema_error(r, "%s beside keywords other than type is not supported",
                           list ? "enum" : "const");
    if (err) return err;
    if (one && !list && is_of_type(one, type)) list_add(&r->s, &forms, json_constant(r, one));
    json_array_foreach((json_t *)list, i, value) {
        if (is_of_type(value, type) && (!one || json_equal(value, one)))
            list_add(&r->s, &forms, json_constant(r, value));
    }
    if (forms.n == 0 && !r->s.full) return schema_error(r, "no value is allowed here");
    *out = source_alt(&r->s, &forms);
    return 0;
}

/* --- combinations ------------------------------------------------------------------------------ */

static int compile_branches(struct schema_reader *r, const json_t *schema, const char *keyword,
                            int32_t *out) {
    const json_t *branches = json_object_get(schema, keyword), *branch, *both;
    struct expr_list forms = {0};
    json_t *rest = json_copy((json_t *)schema);
    size_t i, before = pointer_push(r, keyword);
    int32_t one, kinds = 0;
    int err = rest ? 0 : error_set(r->e, ERR_MEMORY, "no memory for the schema");
    json_object_del(rest, keyword);
    const char *name;
    json_t *value;
    json_object_foreach(rest, name, value) kinds |= keyword_kind(name);
    if (!err && json_array_size(branches) == 0) err = schema_error(r, "must be an array of schemas");
    json_array_foreach((json_t *)branches, i, branch) {
        if (err) break;
        size_t at = pointer_push_index(r, i);
        both = branch;
        if (kinds & ~KIND_NOTE) err = schema_merge(r, rest, branch, &both);
        if (!err && !json_is_false(both)) {
            err = schema_compile(r, both, &one);
            if (!err) list_add(&r->s, &forms, one);
        }
        pointer_pop(r, at);
    }
    if (!err && forms.n == 0 && !r->s.full) err = schema_error(r, "no value is allowed here");
    if (!err) pointer_pop(r, before);
    *out = source_alt(&r->s, &forms);
    json_decref(rest);
    return err;
}

/* A rule that will be made of a schema. One for each target of $ref. */
static int32_t add_task(struct schema_reader *r, const json_t *schema, const char *pointer) {
    if (r->n_tasks == r->room_tasks) {
        size_t wanted = r->room_tasks ? r->room_tasks * 2 : 16;
        struct schema_task *grown = realloc(r->tasks, wanted * sizeof *grown);
        if (!grown) r->s.full = r->s.no_memory = true;
        if (!grown) return -1;
        r->tasks = grown;
        r->room_tasks = wanted;
    }
    int32_t rule = source_rule_new(&r->s, pointer, strlen(pointer));
    char *copy = rule >= 0 ? strdup(pointer) : NULL;
    if (!copy) r->s.full = true;
    if (!copy) return -1;
    r->tasks[r->n_tasks++] = (struct schema_task){schema, copy, rule};
    return rule;
}

static int compile_ref(struct schema_reader *r, const json_t *schema, int32_t *out) {
    const char *ref = json_word(json_object_get(schema, "$ref"));
    const json_t *target = NULL;
    size_t before = pointer_push(r, "$ref");
    int err = ref ? schema_target(r, ref, &target) : schema_error(r, "must be a text");
    if (err) return err;
    pointer_pop(r, before);
    for (size_t i = 0; i < r->n_tasks; i++)
        if (r->tasks[i].schema == target) {
            *out = source_rule_use(&r->s, r->tasks[i].rule);
            return 0;
        }
    *out = source_rule_use(&r->s, add_task(r, target, ref));
    return 0;
}

static int compile_merged(struct schema_reader *r, const json_t *schema, int32_t *out) {
    const json_t *merged;
    json_t *nothing = json_object();
    int err = schema_merge(r, schema, nothing, &merged);
    json_decref(nothing);
    return err ? err : schema_compile(r, merged, out);
}

/* Keywords that say something about values. */
static int count_meaning(const json_t *schema) {
    int n = 0;
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)schema, name, value) n += keyword_kind(name) != KIND_NOTE;
    return n;
}

static int compile_object_schema(struct schema_reader *r, const json_t *schema, int32_t *out) {
    int kinds;
    int err = check_keywords(r, schema, &kinds);
    if (err) return err;
    const json_t *ref = json_object_get(schema, "$ref"), *all = json_object_get(schema, "allOf");
    bool alone = count_meaning(schema) == 1;
    if (ref && alone) return compile_ref(r, schema, out);
    if (all && alone && json_array_size(all) == 1)
        return schema_compile(r, json_array_get(all, 0), out);
    if (ref || all) return compile_merged(r, schema, out);
    if (json_object_get(schema, "anyOf")) return compile_branches(r, schema, "anyOf", out);
    if (json_object_get(schema, "oneOf")) return compile_branches(r, schema, "oneOf", out);
    if (json_object_get(schema, "enum") || json_object_get(schema, "const"))
        return compile_values(r, schema, kinds, out);
    return compile_types(r, schema, kinds, out);
}

int schema_compile(struct schema_reader *r, const json_t *schema, int32_t *out) {
    *out = SOURCE_EMPTY;
    if (json_is_true(schema)) {
        *out = json_any_value(r);
        return 0;
    }
    if (json_is_false(schema)) return schema_error(r, "no value is allowed here");
    if (!json_is_object(schema)) return schema_error(r, "must be a schema: an object, true or false");
    if (r->s.full) return 0; /* grammar_compile tells */
    if (++r->compiling > 2 * JSON_MAX_DEPTH)
        return schema_error(r, "schemas are nested more than %d deep", 2 * JSON_MAX_DEPTH);
    int err = compile_object_schema(r, schema, out);
    r->compiling--;
    return err;
}

/* --- all of it ------------------------------------------------------------------------------- */

static int compile_tasks(struct schema_reader *r) {
    int err = 0;
    for (; r->done < r->n_tasks && !err; r->done++) {
        struct schema_task task = r->tasks[r->done];
        int32_t body;
        r->pointer_size = 0;
        for (const char *c = task.pointer; *c; c++) pointer_add(r, *c);
        err = schema_compile(r, task.schema, &body);
        if (!err && !r->s.full) r->s.rules[task.rule].body = body;
    }
    return err;
}

static void reader_free(struct schema_reader *r) {
    for (size_t i = 0; i < r->n_tasks; i++) free(r->tasks[i].pointer);
    free(r->tasks);
    json_decref(r->made);
    source_free(&r->s);
    free(r);
}

static struct schema_reader *reader_new(struct error *e) {
    struct schema_reader *r = calloc(1, sizeof *r);
    if (r) r->made = json_array();
    if (r && !r->made) {
        free(r);
        r = NULL;
    }
    if (!r) {
        error_set(e, ERR_MEMORY, "no memory for the grammar");
        return NULL;
    }
    r->e = e;
    source_init(&r->s);
    json_grammar_init(r);
    return r;
}

int grammar_from_schema(struct grammar **out, const json_t *schema, struct error *e) {
    struct error ignored;
    struct schema_reader *r = reader_new(e ? e : &ignored);
    if (!r) return -(int)ERR_MEMORY;
    r->root = schema;
    int32_t root = add_task(r, schema, "#");
    int err = compile_tasks(r);
    if (!err) err = grammar_compile(out, &r->s, root, e);
    reader_free(r);
    return err;
}

int grammar_any_object(struct grammar **out, struct error *e) {
    struct error ignored;
    struct schema_reader *r = reader_new(e ? e : &ignored);
    if (!r) return -(int)ERR_MEMORY;
    int32_t root = source_rule_new(&r->s, "object at the start", 19), body = json_any_object(r);
    if (root >= 0 && !r->s.full) r->s.rules[root].body = body;
    int err = grammar_compile(out, &r->s, root, e);
    reader_free(r);
    return err;
}
