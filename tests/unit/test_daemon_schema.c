/* Parameters are checked against the method table, and docs/schema/ says the same as the table. */
#include "base/json.h"
#include "daemon/methods.h"
#include "train/job.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *note(const struct error *e, const char *key) {
    for (int i = 0; i < e->n_notes; i++)
        if (strcmp(e->notes[i].key, key) == 0) return e->notes[i].text;
    return "";
}

static int check(const char *method, const char *params, struct error *e) {
    json_t *value = json_read(params, strlen(params), e);
    assert_non_null(value);
    int rc = schema_check(method_find(method)->params, value, e);
    json_decref(value);
    return rc;
}

static void refused(const char *method, const char *params, const char *field,
                    const char *expected) {
    struct error e;
    if (check(method, params, &e) == 0) fail_msg("%s %s was taken", method, params);
    assert_int_equal(e.kind, ERR_PARAMS);
    assert_string_equal(note(&e, "field"), field);
    if (!strstr(note(&e, "expected"), expected))
        fail_msg("%s: expected \"%s\"", params, note(&e, "expected"));
    assert_true(*note(&e, "got") != '\0');
}

static void taken(const char *method, const char *params) {
    struct error e;
    if (check(method, params, &e) != 0) fail_msg("%s %s: %s", method, params, e.message);
}

static void wrong_parameters_say_field_expected_and_got(void **state) {
    (void)state;
    refused("generate", "{}", "prompt", "a value");
    refused("generate", "{\"prompt\": null}", "prompt", "a value");
    refused("generate", "{\"prompt\": 3}", "prompt", "a string or an array of token ids");
    refused("generate", "{\"prompt\": [1, 1.5]}", "prompt[1]", "a token id");
    refused("generate", "{\"prompt\": [1, 2, \"a\"]}", "prompt[2]", "a token id");
    refused("generate", "{\"prompt\": \"\", \"promt\": 1}", "promt", "prompt");
    refused("generate", "{\"prompt\": \"\", \"best_of\": 2}", "best_of", "no such parameter");
    refused("generate", "{\"prompt\": \"\", \"top_p\": 1.01}", "top_p", "from 0 to 1");
    refused("generate", "{\"prompt\": \"\", \"top_p\": \"x\"}", "top_p", "a number");
    refused("generate", "{\"prompt\": \"\", \"max_tokens\": -2}", "max_tokens", "an integer");
    refused("generate", "{\"prompt\": \"\", \"max_tokens\": 1.5}", "max_tokens", "an integer");
    refused("generate", "{\"prompt\": \"\", \"logprobs\": 21}", "logprobs", "from 0 to 20");
    refused("generate", "{\"prompt\": \"\", \"logprobs\": true}", "logprobs", "an integer");
    refused("generate", "{\"prompt\": \"\", \"stream\": 1}", "stream", "true or false");
    refused("generate", "{\"prompt\": \"\", \"stop\": [\"a\", 1]}", "stop[1]", "a string");
    refused("generate", "{\"prompt\": \"\", \"stop\": {}}", "stop", "array of strings");
    refused("generate", "{\"prompt\": \"\", \"logit_bias\": []}", "logit_bias", "an object");
    refused("generate", "{\"prompt\": \"\", \"speculative\": \"beam\"}", "speculative",
            "off|draft|ngram|auto");
    refused("ping", "{\"x\": 1}", "x", "no such parameter");
    refused("cancel", "{\"id\": 1.5}", "id", "a string or an integer");
    refused("tokenize", "{\"text\": [1]}", "text", "a string");
    refused("detokenize", "{\"tokens\": \"1\"}", "tokens", "an array of token ids");
}

static void right_parameters_are_taken(void **state) {
    (void)state;
    taken("generate", "{\"prompt\": \"\", \"top_k\": -1, \"top_p\": 0, \"temperature\": 0}");
    taken("generate", "{\"prompt\": [], \"max_tokens\": null, \"stop\": []}");
    taken("generate", "{\"prompt\": [1, 2], \"max_tokens\": 3.0, \"stop\": \"x\"}");
    taken("generate", "{\"prompt\": \"\", \"seed\": 9223372036854775807, \"top_k\": 1000000}");
    taken("generate", "{\"prompt\": \"\", \"seed\": -9223372036854775808}");
    taken("cancel", "{\"id\": \"a\"}");
    taken("score", "{\"completion\": \"a\"}");
}

static json_t *read_schema(const char *method) {
    char path[128];
    struct error e;
    snprintf(path, sizeof path, "docs/schema/%s.json", method);
    json_t *schema = json_read_file(path, 1 << 20, &e);
    if (!schema) fail_msg("%s", e.message);
    return schema;
}

static const char *type_word(enum param_type type) {
    switch (type) {
    case PARAM_BOOL: return "boolean";
    case PARAM_INT: return "integer";
    case PARAM_NUMBER: return "number";
    case PARAM_STRING:
    case PARAM_CHOICE: return "string";
    case PARAM_IDS: return "array";
    case PARAM_OBJECT: return "object";
    case PARAM_PROMPT:
    case PARAM_STRINGS:
    case PARAM_SWITCH:
    case PARAM_ID:
    case PARAM_ANY: break; /* anyOf */
    }
    return NULL;
}

/* "off|auto" and ["off", "auto"] */
static void same_choices(const char *choices, const json_t *list) {
    char text[128] = "";
    for (size_t i = 0; i < json_array_size(list); i++) {
        strcat(text, i ? "|" : "");
        strcat(text, json_string_value(json_array_get(list, i)));
    }
    assert_string_equal(text, choices);
}

static bool in_array(const json_t *array, const char *word) {
    for (size_t i = 0; i < json_array_size(array); i++)
        if (strcmp(json_string_value(json_array_get(array, i)), word) == 0) return true;
    return false;
}

static void same_parameter(const char *method, const struct param *p, const json_t *params) {
    const json_t *schema = json_object_get(json_object_get(params, "properties"), p->name);
    if (!schema) fail_msg("docs/schema/%s.json has no parameter %s", method, p->name);
    assert_true(json_is_string(json_object_get(schema, "description")) ||
                json_is_string(json_object_get(schema, "type")));
    const char *word = type_word(p->type);
    if (word) assert_string_equal(json_string_value(json_object_get(schema, "type")), word);
    else assert_true(json_is_array(json_object_get(schema, "anyOf")));
    if (p->type == PARAM_INT || p->type == PARAM_NUMBER) {
        assert_true(json_number_value(json_object_get(schema, "minimum")) == p->min);
        assert_true(json_number_value(json_object_get(schema, "maximum")) == p->max);
    }
    if (p->type == PARAM_CHOICE) same_choices(p->choices, json_object_get(schema, "enum"));
    assert_int_equal(in_array(json_object_get(params, "required"), p->name), p->required);
}

static void the_schemas_say_what_the_table_says(void **state) {
    (void)state;
    for (size_t m = 0; m < n_methods; m++) {
        json_t *schema = read_schema(methods[m].name);
        const json_t *params = json_object_get(schema, "params");
        size_t n = 0;
        if (!methods[m].params) n = json_object_size(json_object_get(params, "properties"));
        for (const struct param *p = methods[m].params; p && p->name; p++, n++)
            same_parameter(methods[m].name, p, params);
        assert_int_equal(json_object_size(json_object_get(params, "properties")), n);
        assert_true(json_is_false(json_object_get(params, "additionalProperties")));
        assert_string_equal(json_string_value(json_object_get(schema, "method")), methods[m].name);
        assert_true(json_is_object(json_object_get(schema, "result")));
        json_decref(schema);
    }
}

/* What a job may have stands in train/job.c: the schema names just that, and the same defaults. */
static void the_schema_of_submit_is_that_of_a_job(void **state) {
    (void)state;
    struct error e;
    struct job_spec spec;
    json_t *schema = read_schema("finetune.submit"), *least = json_pack("{s:s}", "data", "x");
    const json_t *properties = json_object_get(json_object_get(schema, "params"), "properties");
    assert_int_equal(job_spec_parse(&spec, least, &e), 0);
    json_t *full = job_spec_json(&spec), *value;
    const char *key;
    json_object_foreach(full, key, value) {
        const json_t *said = json_object_get(json_object_get(properties, key), "default");
        if (!json_object_get(properties, key)) fail_msg("no %s", key);
        if (json_is_number(said)) {
            if (json_number_value(said) != json_number_value(value)) fail_msg("default of %s", key);
        } else if (said && !json_equal(said, value)) fail_msg("default of %s", key);
    }
    assert_int_equal(json_object_size(properties), json_object_size(full));
    job_spec_free(&spec);
    json_decref(full);
    json_decref(least);
    json_decref(schema);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_parameters_say_field_expected_and_got),
        cmocka_unit_test(right_parameters_are_taken),
        cmocka_unit_test(the_schemas_say_what_the_table_says),
        cmocka_unit_test(the_schema_of_submit_is_that_of_a_job),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
