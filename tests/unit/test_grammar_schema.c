/* Promises of serve/grammar.h about JSON schemas: what the grammar of a schema has and has not, and
 * what is refused with its place. */
#include "base/json.h"
#include "serve/grammar.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static int compile(struct grammar **g, const char *schema, struct error *e) {
    json_t *json = json_read(schema, strlen(schema), e);
    if (!json) fail_msg("%s: %s", schema, e->message);
    int err = grammar_from_schema(g, json, e);
    json_decref(json);
    return err;
}

static void check_texts(const char *schema, const char *const *texts) {
    struct grammar *g;
    struct error e = {0};
    bool wanted = true;
    if (compile(&g, schema, &e) != 0) fail_msg("%s: %s", schema, e.message);
    for (; *texts; texts++) {
        if (strcmp(*texts, "||") == 0) wanted = false;
        else if (grammar_accepts(g, *texts, strlen(*texts)) != wanted)
            fail_msg("%s: %s is %s", schema, *texts, wanted ? "not taken" : "taken");
    }
    grammar_release(g);
}

/* Documents before "||" are taken, those behind are not. */
#define CHECK(schema, ...) check_texts(schema, (const char *const[]){__VA_ARGS__, NULL})

static void refuse(const char *schema, const char *pointer, const char *why) {
    struct grammar *g;
    struct error e = {0};
    if (compile(&g, schema, &e) == 0) fail_msg("taken: %s", schema);
    if (e.kind != ERR_PARAMS || strncmp(e.message, pointer, strlen(pointer)) != 0 || !strstr(e.message, why))
        fail_msg("%s: %s (wanted %s: %s)", schema, e.message, pointer, why);
}

static void types(void **state) {
    (void)state;
    CHECK("{\"type\":\"null\"}", "null", "||", "nul", "0", "");
    CHECK("{\"type\":\"boolean\"}", "true", "false", "||", "True", "1");
    CHECK("{\"type\":\"integer\"}", "0", "-12", "1234567890123456", "||", "01", "1.0", "+1", "1e3", "--1");
    CHECK("{\"type\":\"number\"}", "0", "-1.5", "2e10", "1E-7", "||", ".5", "1.", "01", "1e999", "NaN");
    CHECK("{\"type\":\"string\"}", "\"\"", "\"a\\n\\u00e9é\\\"\"", "\"\\ud83d\\ude00\"", "||", "\"", "\"\n\"",
          "\"\\x\"", "\"\\ud83d\"", "\"\\ude00\"", "a");
    CHECK("{\"type\":[\"string\",\"null\"]}", "\"a\"", "null", "||", "1");
    CHECK("{\"type\":[\"integer\",\"number\"]}", "1.5", "1", "||", "\"1\"");
    CHECK("true", "{}", "[1, {\"a\": [null, true]}]", "\"x\"", "-0.5", "||", "{a:1}", "[1,]", "");
    CHECK("{}", "{\"a\":1}", "3", "||", "");
}

static void objects(void **state) {
    (void)state;
    const char *two = "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":"
                      "\"boolean\"}},\"required\":[\"b\"],\"additionalProperties\":false}";
    CHECK(two, "{\"a\":1,\"b\":true}", "{\"b\": false}", "{\n  \"a\": 1,\n  \"b\": true\n}", "||", "{\"a\":1}", "{}",
          "{\"b\":true,\"a\":1}", "{\"b\":true,\"c\":1}", "{\"b\":true,}", "{\"b\" : true}", " {\"b\":true}");
    CHECK("{\"properties\":{\"a\":{\"type\":\"null\"},\"b\":{\"type\":\"null\"},\"c\":{\"type\":\"null\"}}}", "{}",
          "{\"a\":null}", "{\"b\":null}", "{\"c\":null}", "{\"a\":null,\"c\":null}", "{\"b\":null,\"c\":null}",
          "{\"a\":null,\"b\":null,\"c\":null}", "||", "{,}", "{\"a\":null,}", "{\"c\":null,\"a\":null}",
          "{\"d\":null}");
    CHECK("{\"type\":\"object\",\"additionalProperties\":{\"type\":\"integer\"}}", "{}", "{\"x\":1,\"y\": 2}", "||",
          "{\"x\":true}");
    CHECK("{\"type\":\"object\",\"properties\":{\"ab\":{\"type\":\"null\"},\"ac\":{\"type\":\"null\"}},"
          "\"required\":[\"ab\"],\"additionalProperties\":{\"type\":\"integer\"}}",
          "{\"ab\":null}", "{\"ab\":null,\"x\":1}", "{\"ab\":null,\"a\":1,\"abc\":2,\"\":3}",
          "{\"ab\":null,\"ac\":null,\"ad\":4}", "||", "{\"ab\":null,\"ab\":1}", "{\"ab\":null,\"ac\":1}",
          "{\"ab\":null,\"\\u0061c\":1}");
    CHECK("{\"type\":\"object\",\"minProperties\":1,\"maxProperties\":2}", "{\"a\":1}", "{\"a\":1,\"b\":2}", "||", "{}",
          "{\"a\":1,\"b\":2,\"c\":3}");
    CHECK("{\"type\":\"object\",\"properties\":{\"q\\\"é\":{\"const\":1}},\"required\":[\"q\\\"é\"]}",
          "{\"q\\\"é\":1}", "||", "{\"q\":1}");
}

static void arrays(void **state) {
    (void)state;
    CHECK("{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":1,\"maxItems\":3}", "[1]", "[1,2, 3]",
          "[\n  1,\n  2\n]", "||", "[]", "[1,2,3,4]", "[\"a\"]");
    CHECK("{\"type\":\"array\"}", "[]", "[1,\"a\",[]]", "||", "[1,]", "[,1]");
    CHECK("{\"type\":\"array\",\"maxItems\":0}", "[]", "||", "[1]");
    CHECK("{\"prefixItems\":[{\"const\":1},{\"type\":\"string\"}],\"items\":false}", "[1,\"a\"]", "||", "[1]",
          "[1,\"a\",2]");
    CHECK("{\"prefixItems\":[{\"const\":1}],\"items\":{\"const\":2},\"minItems\":2,\"maxItems\":3}", "[1,2]",
          "[1,2,2]", "||", "[1]", "[1,2,2,2]");
    CHECK("{\"type\":\"array\",\"items\":{\"const\":7},\"minItems\":200,\"maxItems\":300}", "||", "[7]", "[]");
}

static void strings(void **state) {
    (void)state;
    CHECK("{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}", "\"ab\"", "\"é€😀\"", "\"a\\n\"",
          "\"\\ud83d\\ude00x\"", "||", "\"a\"", "\"abcd\"", "\"\"");
    CHECK("{\"type\":\"string\",\"maxLength\":500}", "\"\"", "\"abc\"", "||", "\"");
    CHECK("{\"type\":\"string\",\"pattern\":\"^[a-z]{2}\\\\d+$\"}", "\"ab1\"", "\"zz99\"", "||", "\"a1\"", "\"ab\"",
          "\"xab1\"");
    CHECK("{\"pattern\":\"b\"}", "\"b\"", "\"abc\"", "||", "\"ac\"");
    CHECK("{\"pattern\":\"^(yes|no)$|^maybe$\"}", "\"yes\"", "\"no\"", "\"maybe\"", "||", "\"yesno\"", "\"\"");
    CHECK("{\"pattern\":\"^[\\\"\\\\\\\\]\\\\s?$\"}", "\"\\\"\"", "\"\\\\ \"", "\"\\\\\\n\"", "||", "\"\"\"", "\"\\\"");
    CHECK("{\"pattern\":\"^(?:[^a-z])*?$\"}", "\"\"", "\"A1\\t\"", "||", "\"a\"");
    CHECK("{\"type\":\"string\",\"format\":\"date\"}", "\"2024-02-29\"", "\"1999-12-31\"", "||", "\"2023-02-29\"",
          "\"2024-13-01\"", "\"2024-04-31\"", "\"24-01-01\"");
    CHECK("{\"format\":\"date-time\"}", "\"2024-01-31T23:59:59Z\"", "\"2024-01-31T00:00:00.5+01:00\"", "||",
          "\"2024-01-31 00:00:00\"", "\"2024-01-31T24:00:00Z\"");
    CHECK("{\"format\":\"time\"}", "\"12:00:00Z\"", "||", "\"12:00\"");
    CHECK("{\"format\":\"uuid\"}", "\"123e4567-e89b-12d3-a456-426614174000\"", "||",
          "\"123e4567e89b12d3a456426614174000\"");
    CHECK("{\"format\":\"email\"}", "\"a.b+c@x-y.org\"", "||", "\"a@b\"", "\"@x.org\"", "\"a b@x.org\"");
    CHECK("{\"format\":\"ipv6\"}", "\"2001:db8::1\"", "\"::1\"", "\"::\"", "\"1:2:3:4:5:6:7:8\"", "\"fe80::\"", "||",
          "\"1:2\"", "\"1::2::3\"", "\"1:2:3:4:5:6:7:8:9\"");
    CHECK("{\"format\":\"duration\"}", "\"P3D\"", "\"P1DT12H\"", "\"PT5M10S\"", "\"P2W\"", "||", "\"P\"", "\"PT\"", "\"3D\"");
    CHECK("{\"format\":\"hostname\"}", "\"a.example.org\"", "||", "\"-a\"", "\"a..b\"");
    CHECK("{\"format\":\"uri\"}", "\"https://a.org/x?y=1#z\"", "||", "\"a.org\"", "\"https://\"");
    CHECK("{\"format\":\"ipv4\"}", "\"192.168.0.255\"", "||", "\"256.0.0.1\"", "\"1.2.3\"");
}

static void numbers(void **state) {
    (void)state;
    CHECK("{\"type\":\"integer\",\"minimum\":-3,\"maximum\":120}", "-3", "-1", "0", "9", "10", "99", "120", "||", "-4",
          "121", "-0", "007", "1000");
    CHECK("{\"type\":\"integer\",\"exclusiveMinimum\":0}", "1", "10", "987654", "||", "0", "-1");
    CHECK("{\"type\":\"integer\",\"maximum\":-8}", "-8", "-9", "-10", "-80", "||", "-7", "0", "8");
    CHECK("{\"type\":\"integer\",\"minimum\":9223372036854775800}", "9223372036854775807", "||",
          "9223372036854775799");
    CHECK("{\"type\":\"integer\",\"minimum\":1.5,\"maximum\":2.5}", "2", "||", "1", "3");
    CHECK("{\"type\":\"number\",\"minimum\":0,\"maximum\":1}", "0", "1", "0.25", "1.0", "0.0", "||", "1.1", "-0.1", "2",
          "1e5");
    CHECK("{\"type\":\"number\",\"exclusiveMinimum\":0}", "0.1", "0.001", "5", "5.5", "||", "0", "0.0", "-1");
    CHECK("{\"type\":\"number\",\"minimum\":-2,\"exclusiveMaximum\":2}", "-2", "-2.0", "-1.9", "-0.5", "0", "1.99", "||",
          "-2.1", "2", "2.0");
    CHECK("{\"type\":\"number\",\"multipleOf\":1}", "4", "||", "4.5");
}

/* Every integer range is held to arithmetic. */
static void integer_ranges_are_exact(void **state) {
    (void)state;
    static const int bounds[] = {-1000, -101, -99, -10, -1, 0, 1, 7, 19, 20, 99, 100, 409, 999};
    enum { N = sizeof bounds / sizeof *bounds };
    for (int a = 0; a < N; a++)
        for (int b = a; b < N; b++) {
            char schema[96], text[16];
            struct grammar *g;
            struct error e;
            snprintf(schema, sizeof schema, "{\"type\":\"integer\",\"minimum\":%d,\"maximum\":%d}", bounds[a], bounds[b]);
            assert_int_equal(compile(&g, schema, &e), 0);
            for (int x = -1100; x <= 1100; x++) {
                int n = snprintf(text, sizeof text, "%d", x);
                if (grammar_accepts(g, text, (size_t)n) != (x >= bounds[a] && x <= bounds[b]))
                    fail_msg("%s: %d", schema, x);
            }
            grammar_release(g);
        }
}

static void values_and_combinations(void **state) {
    (void)state;
    CHECK("{\"enum\":[\"a\",1,null,{\"x\":[1,\"é\"]},[]]}", "\"a\"", "1", "null", "{\"x\": [1, \"é\"]}",
          "{\"x\":[1,\"é\"]}", "[]", "||", "\"b\"", "2", "{}");
    CHECK("{\"type\":\"string\",\"enum\":[\"a\",1]}", "\"a\"", "||", "1");
    CHECK("{\"const\":\"x\\\"y\"}", "\"x\\\"y\"", "||", "\"x\"");
    CHECK("{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"null\"}]}", "1", "null", "||", "\"a\"");
    CHECK("{\"oneOf\":[{\"const\":1},{\"const\":2}],\"description\":\"d\"}", "1", "2", "||", "3");
    CHECK("{\"type\":\"object\",\"properties\":{\"a\":{\"const\":1}},\"required\":[\"a\"],\"anyOf\":[{\"properties\":{\"b\":{"
          "\"const\":2}},\"required\":[\"b\"]},{\"properties\":{\"c\":{\"const\":3}},\"required\":[\"c\"]}]}",
          "{\"a\":1,\"b\":2}", "{\"a\":1,\"c\":3}", "||", "{\"a\":1}", "{\"a\":1,\"b\":2,\"c\":3}");
    CHECK("{\"allOf\":[{\"properties\":{\"a\":{\"type\":\"integer\",\"minimum\":3}},\"required\":[\"a\"]},{\"properties\":{"
          "\"a\":{\"maximum\":4},\"b\":{\"const\":0}},\"required\":[\"b\"]}]}",
          "{\"a\":3,\"b\":0}", "||", "{\"a\":5,\"b\":0}", "{\"a\":3}");
    CHECK("{\"allOf\":[{\"type\":[\"string\",\"integer\"]},{\"type\":\"number\"}]}", "1", "||", "1.5", "\"a\"");
}

static void references(void **state) {
    (void)state;
    CHECK("{\"$defs\":{\"node\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},\"next\":{\"anyOf\":[{"
          "\"$ref\":\"#/$defs/node\"},{\"type\":\"null\"}]}},\"required\":[\"v\",\"next\"]}},\"$ref\":\"#/$defs/node\"}",
          "{\"v\":1,\"next\":null}", "{\"v\":1,\"next\":{\"v\":2,\"next\":null}}", "||", "{\"v\":1}",
          "{\"v\":1,\"next\":2}");
    CHECK("{\"type\":\"object\",\"properties\":{\"kids\":{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}},\"required\":["
          "\"kids\"]}",
          "{\"kids\":[]}", "{\"kids\":[{\"kids\":[]},{\"kids\":[]}]}", "||", "{\"kids\":[1]}");
    CHECK("{\"definitions\":{\"a/b c\":{\"const\":1}},\"items\":{\"$ref\":\"#/definitions/a~1b%20c\"},\"minItems\":1}", "[1,1]",
          "||", "[2]");
    CHECK("{\"$defs\":{\"base\":{\"properties\":{\"id\":{\"const\":1}},\"required\":[\"id\"]}},\"$ref\":\"#/$defs/base\","
          "\"properties\":{\"x\":{\"const\":2}},\"required\":[\"x\"]}",
          "{\"id\":1,\"x\":2}", "||", "{\"x\":2,\"id\":1}", "{\"id\":1}");
    CHECK("{\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"n\":{\"allOf\":[{\"$ref\":\"#/$defs/n\"}],\"title\":\"t\"}}}"
          "},\"$ref\":\"#/$defs/n\"}",
          "{}", "{\"n\":{\"n\":{}}}", "||", "{\"n\":1}");
}

static void what_is_not_supported_is_refused_with_its_place(void **state) {
    (void)state;
    refuse("{\"not\":{}}", "#/not", "not supported");
    refuse("{\"properties\":{\"a\":{\"type\":\"array\",\"contains\":{}}}}", "#/properties/a/contains", "not supported");
    refuse("{\"properties\":{\"a/b\":{\"type\":\"text\"}}}", "#/properties/a~1b/type", "must be");
    refuse("{\"type\":\"string\",\"format\":\"idn-email\"}", "#/format", "not supported");
    refuse("{\"pattern\":\"(?=a)\"}", "#/pattern", "looking ahead");
    refuse("{\"pattern\":\"(a\"}", "#/pattern", "closing )");
    refuse("{\"pattern\":\"a^b\"}", "#/pattern", "^ and $");
    refuse("{\"type\":\"array\",\"uniqueItems\":true}", "#", "uniqueItems");
    refuse("{\"type\":\"number\",\"multipleOf\":0.5}", "#", "multipleOf");
    refuse("{\"type\":\"number\",\"minimum\":0.5}", "#/minimum", "whole");
    refuse("{\"type\":\"integer\",\"minimum\":5,\"maximum\":4}", "#", "no number");
    refuse("{\"type\":\"string\",\"minLength\":5,\"maxLength\":4}", "#", "maxLength");
    refuse("{\"type\":\"string\",\"maxLength\":-1}", "#/maxLength", "whole number");
    refuse("{\"$ref\":\"#/$defs/x\"}", "#/$ref", "not in the schema");
    refuse("{\"$ref\":\"http://example.org/x\"}", "#/$ref", "within the schema");
    refuse("{\"$ref\":\"#\"}", "#", "has no end");
    refuse("{\"anyOf\":[{\"$ref\":\"#\"},{\"const\":1}]}", "#", "refers to itself");
    refuse("{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}", "#", "has no end");
    refuse("{\"type\":\"object\",\"required\":[\"a\"]}", "#/required", "not among the properties");
    refuse("{\"enum\":[]}", "#", "no value");
    refuse("{\"type\":\"string\",\"enum\":[1]}", "#", "no value");
    refuse("{\"anyOf\":[]}", "#/anyOf", "array of schemas");
    refuse("{\"items\":3}", "#/items", "must be a schema");
    refuse("[1]", "#", "must be a schema");
    refuse("{\"minimum\":1,\"maxLength\":3}", "#", "type is missing");
    refuse("{\"$defs\":{\"a\":{\"allOf\":[{\"$ref\":\"#/$defs/a\"},{\"type\":\"null\"}]}},\"$ref\":\"#/$defs/a\"}", "#/$defs/a",
           "without end");
}

static void any_object_is_json_and_an_object(void **state) {
    (void)state;
    struct grammar *g;
    struct error e;
    assert_int_equal(grammar_any_object(&g, &e), 0);
    assert_true(grammar_accepts(g, "{}", 2));
    assert_true(grammar_accepts(g, "{\"a\": [1, {\"b\": null}]}", 23));
    assert_false(grammar_begins(g, "[", 1));
    assert_false(grammar_begins(g, " {", 2));
    assert_false(grammar_begins(g, "{}\n", 3));
    grammar_release(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(types),
        cmocka_unit_test(objects),
        cmocka_unit_test(arrays),
        cmocka_unit_test(strings),
        cmocka_unit_test(numbers),
        cmocka_unit_test(integer_ranges_are_exact),
        cmocka_unit_test(values_and_combinations),
        cmocka_unit_test(references),
        cmocka_unit_test(what_is_not_supported_is_refused_with_its_place),
        cmocka_unit_test(any_object_is_json_and_an_object),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
