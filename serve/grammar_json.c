/* The grammar of JSON, as models are to write it. */
#include "serve/grammar_schema.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_INDENT = 20, MAX_TABS = 8, MAX_DIGITS = 15 };

void json_grammar_init(struct schema_reader *r) {
    r->any_value = r->any_object = r->any_array = r->any_string = r->space = r->json_char = -1;
}

/* A rule that is made once. */
static bool is_made(struct schema_reader *r, int32_t *rule, const char *name) {
    if (*rule >= 0) return true;
    *rule = source_rule_new(&r->s, name, strlen(name));
    return *rule < 0;
}

static int32_t define(struct schema_reader *r, int32_t rule, int32_t body) {
    if (rule >= 0) r->s.rules[rule].body = body;
    return source_rule_use(&r->s, rule);
}

/* Nothing, one space, or a new line with indentation: what people and programs write, and not so
 * much that a model could go on with it for ever. */
int32_t json_space(struct schema_reader *r) {
    struct grammar_source *s = &r->s;
    struct expr_list forms = {0};
    if (is_made(r, &r->space, "space")) return source_rule_use(s, r->space);
    int32_t spaces = source_repeat(s, source_text(s, " "), 0, MAX_INDENT);
    int32_t tabs = source_repeat(s, source_text(s, "\t"), 1, MAX_TABS);
    list_add(s, &forms, SOURCE_EMPTY);
    list_add(s, &forms, source_text(s, " "));
    list_add(s, &forms, source_pair(s, source_text(s, "\n"), source_either(s, spaces, tabs)));
    return define(r, r->space, source_alt(s, &forms));
}

static int32_t hex_digit(struct grammar_source *s, uint32_t lo, uint32_t hi) {
    struct range_list list = {0};
    for (uint32_t d = lo; d <= hi; d++) {
        uint32_t digit = d < 10 ? '0' + d : 'a' + d - 10;
        ranges_add(s, &list, digit, digit);
        if (d >= 10) ranges_add(s, &list, digit - 'a' + 'A', digit - 'a' + 'A');
    }
    ranges_settle(s, &list, false);
    return source_chars(s, &list);
}

static int32_t in_order(struct grammar_source *s, const int32_t *parts, size_t n) {
    struct expr_list list = {0};
    for (size_t i = 0; i < n; i++) list_add(s, &list, parts[i]);
    return source_seq(s, &list);
}

/* Behind "\u": four digits that are a character, or two times four that are one together. */
static int32_t hex_escape(struct grammar_source *s) {
    int32_t any = hex_digit(s, 0, 15), two = source_repeat(s, any, 2, 2);
    int32_t three = source_repeat(s, any, 3, 3), d = hex_digit(s, 13, 13);
    struct expr_list forms = {0};
    /* not 0000, which programs in C cannot keep in a text */
    list_add(s, &forms, source_pair(s, source_text(s, "000"), hex_digit(s, 1, 15)));
    list_add(s, &forms, in_order(s, (int32_t[]){source_text(s, "00"), hex_digit(s, 1, 15), any}, 3));
    list_add(s, &forms, in_order(s, (int32_t[]){source_text(s, "0"), hex_digit(s, 1, 15), two}, 3));
    list_add(s, &forms, source_pair(s, hex_digit(s, 1, 12), three));
    list_add(s, &forms, source_pair(s, hex_digit(s, 14, 15), three));
    list_add(s, &forms, in_order(s, (int32_t[]){d, hex_digit(s, 0, 7), two}, 3));
    list_add(s, &forms,
             in_order(s,
                      (int32_t[]){d, hex_digit(s, 8, 11), two, source_text(s, "\\u"), d,
                                  hex_digit(s, 12, 15), two},
                      7));
    return source_alt(s, &forms);
}

int32_t json_char(struct schema_reader *r) {
    struct grammar_source *s = &r->s;
    struct range_list plain = {0}, simple = {0};
    struct expr_list forms = {0};
    if (is_made(r, &r->json_char, "character")) return r->json_char < 0 ? SOURCE_EMPTY : s->rules[r->json_char].body;
    ranges_add(s, &plain, 0, 0x1F);
    ranges_add(s, &plain, '"', '"');
    ranges_add(s, &plain, '\\', '\\');
    ranges_settle(s, &plain, true);
    for (const char *c = "\"\\/bfnrt"; *c; c++) ranges_add(s, &simple, (uint32_t)*c, (uint32_t)*c);
    ranges_settle(s, &simple, false);
    list_add(s, &forms, source_chars(s, &plain));
    list_add(s, &forms, source_pair(s, source_text(s, "\\"), source_chars(s, &simple)));
    list_add(s, &forms, source_pair(s, source_text(s, "\\u"), hex_escape(s)));
    int32_t body = source_alt(s, &forms);
    define(r, r->json_char, body);
    return body; /* always copied into the rule that has it: a token is many characters */
}

int32_t json_quoted(struct schema_reader *r, int32_t inside) {
    int32_t quote = source_text(&r->s, "\"");
    return in_order(&r->s, (int32_t[]){quote, inside, quote}, 3);
}

int32_t json_any_string(struct schema_reader *r) {
    if (is_made(r, &r->any_string, "string")) return source_rule_use(&r->s, r->any_string);
    int32_t inside = source_repeat(&r->s, json_char(r), 0, SOURCE_NO_END);
    return define(r, r->any_string, json_quoted(r, inside));
}

int32_t json_any_integer(struct schema_reader *r) {
    struct grammar_source *s = &r->s;
    int32_t digits = source_repeat(s, source_range(s, '0', '9'), 0, MAX_DIGITS);
    int32_t whole = source_either(s, source_text(s, "0"),
                                  source_pair(s, source_range(s, '1', '9'), digits));
    return source_pair(s, source_optional(s, source_text(s, "-")), whole);
}

/* At most two digits of exponent: every reader has such numbers. */
int32_t json_any_number(struct schema_reader *r) {
    struct grammar_source *s = &r->s;
    int32_t digit = source_range(s, '0', '9');
    int32_t fraction = source_pair(s, source_text(s, "."), source_repeat(s, digit, 1, MAX_DIGITS));
    int32_t e = source_either(s, source_text(s, "e"), source_text(s, "E"));
    int32_t sign = source_either(s, source_text(s, "+"), source_text(s, "-"));
    int32_t exponent =
        in_order(s, (int32_t[]){e, source_optional(s, sign), source_repeat(s, digit, 1, 2)}, 3);
    return in_order(s,
                    (int32_t[]){json_any_integer(r), source_optional(s, fraction),
                                source_optional(s, exponent)},
                    3);
}

int32_t json_comma(struct schema_reader *r) {
    return source_pair(&r->s, source_text(&r->s, ","), json_space(r));
}

int32_t json_enclosed(struct schema_reader *r, const char *open, int32_t inside, const char *close) {
    struct grammar_source *s = &r->s;
    int32_t left = source_text(s, open), space = json_space(r), right = source_text(s, close);
    return in_order(s, (int32_t[]){left, space, inside, space, right}, 5);
}

static int32_t one_or_none(struct schema_reader *r, const char *open, int32_t element,
                           const char *close) {
    struct grammar_source *s = &r->s;
    int32_t more = source_repeat(s, source_pair(s, json_comma(r), element), 0, SOURCE_NO_END);
    int32_t some = json_enclosed(r, open, source_pair(s, element, more), close);
    int32_t none = json_enclosed(r, open, SOURCE_EMPTY, close);
    return source_either(s, none, some);
}

int32_t json_any_array(struct schema_reader *r) {
    if (is_made(r, &r->any_array, "array")) return source_rule_use(&r->s, r->any_array);
    return define(r, r->any_array, one_or_none(r, "[", json_any_value(r), "]"));
}

int32_t json_any_object(struct schema_reader *r) {
    struct grammar_source *s = &r->s;
    if (is_made(r, &r->any_object, "object")) return source_rule_use(s, r->any_object);
    int32_t colon = source_pair(s, source_text(s, ":"), json_space(r));
    int32_t member = in_order(s, (int32_t[]){json_any_string(r), colon, json_any_value(r)}, 3);
    return define(r, r->any_object, one_or_none(r, "{", member, "}"));
}

int32_t json_any_value(struct schema_reader *r) {
    struct grammar_source *s = &r->s;
    struct expr_list kinds = {0};
    if (is_made(r, &r->any_value, "value")) return source_rule_use(s, r->any_value);
    list_add(s, &kinds, json_any_object(r));
    list_add(s, &kinds, json_any_array(r));
    list_add(s, &kinds, json_any_string(r));
    list_add(s, &kinds, json_any_number(r));
    for (const char *const *word = (const char *const[]){"true", "false", "null", NULL}; *word; word++)
        list_add(s, &kinds, source_text(s, *word));
    return define(r, r->any_value, source_alt(s, &kinds));
}

/* --- values as they are ------------------------------------------------------------------------ */

static int32_t dumped(struct schema_reader *r, const json_t *value) {
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    if (!text) r->s.full = r->s.no_memory = true;
    int32_t expr = text ? source_text(&r->s, text) : SOURCE_EMPTY;
    free(text);
    return expr;
}

static int32_t string_of(struct schema_reader *r, const char *text, size_t size) {
    json_t *string = json_stringn(text, size);
    int32_t expr = dumped(r, string);
    json_decref(string);
    return expr;
}

int32_t json_key(struct schema_reader *r, const char *key, size_t size) {
    struct grammar_source *s = &r->s;
    int32_t name = string_of(r, key, size), space = json_space(r);
    return in_order(s, (int32_t[]){name, source_text(s, ":"), space}, 3);
}

/* Nesting is bounded by whoever read the JSON. */
int32_t json_constant(struct schema_reader *r, const json_t *value) {
    struct grammar_source *s = &r->s;
    struct expr_list parts = {0};
    size_t i, n = json_is_array(value) ? json_array_size(value) : json_object_size(value);
    const char *key, *open = json_is_array(value) ? "[" : "{";
    json_t *part;
    if (!json_is_array(value) && !json_is_object(value)) return dumped(r, value);
    json_array_foreach((json_t *)value, i, part) {
        if (i) list_add(s, &parts, json_comma(r));
        list_add(s, &parts, json_constant(r, part));
    }
    json_object_foreach((json_t *)value, key, part) {
        if (parts.n) list_add(s, &parts, json_comma(r));
        list_add(s, &parts, json_key(r, key, strlen(key)));
        list_add(s, &parts, json_constant(r, part));
    }
    int32_t inside = source_seq(s, &parts);
    return n ? json_enclosed(r, open, inside, *open == '[' ? "]" : "}")
             : source_text(s, *open == '[' ? "[]" : "{}");
}
