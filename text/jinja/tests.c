/* text/jinja/tests.c: what may stand behind `is`. */
#include "text/jinja/render.h"

#include <utf8proc.h>

#include "text/unicode.h"

#define TEST(name) static struct value name(struct render *r, struct value v, const struct args *args)

static bool no_arguments(struct render *r, const struct args *args) {
    return args_bind(r, "test", args, NULL, 0, 0, NULL);
}

static bool one_argument(struct render *r, const struct args *args, struct value *out) {
    static const char *const names[] = {"other"};
    *out = value_nothing();
    return args_bind(r, "test", args, names, 1, 1, out);
}

static struct value answer(struct render *r, const struct args *args, bool yes) {
    return no_arguments(r, args) ? value_bool(yes) : value_nothing();
}

TEST(is_defined) {
    return answer(r, args, v.kind != KIND_UNDEFINED);
}
TEST(is_undefined) {
    return answer(r, args, v.kind == KIND_UNDEFINED);
}
TEST(is_none) {
    return answer(r, args, v.kind == KIND_NONE);
}
TEST(is_boolean) {
    return answer(r, args, v.kind == KIND_BOOL);
}
TEST(is_true) {
    return answer(r, args, v.kind == KIND_BOOL && v.boolean);
}
TEST(is_false) {
    return answer(r, args, v.kind == KIND_BOOL && !v.boolean);
}
TEST(is_integer_test) {
    return answer(r, args, v.kind == KIND_INT);
}
TEST(is_float) {
    return answer(r, args, v.kind == KIND_FLOAT);
}
TEST(is_number_test) {
    return answer(r, args, is_number(v));
}
TEST(is_string) {
    return answer(r, args, v.kind == KIND_STRING);
}
TEST(is_mapping) {
    return answer(r, args, v.kind == KIND_DICT);
}
TEST(is_sequence_test) {
    bool views = v.kind == KIND_SERIES && v.series->kind >= SEQ_KEYS;
    return answer(r, args, value_has_length(v) && !views && v.kind != KIND_LOOP);
}
TEST(is_iterable) {
    return answer(r, args, value_can_walk(v) || v.kind == KIND_LOOP);
}
TEST(is_callable) {
    bool callable = v.kind == KIND_MACRO || v.kind == KIND_FUNCTION || v.kind == KIND_METHOD ||
                    v.kind == KIND_JOINER || v.kind == KIND_UNDEFINED || v.kind == KIND_LOOP;
    return answer(r, args, callable);
}
TEST(is_escaped) {
    (void)v;
    return answer(r, args, false);
}
TEST(is_filter) {
    struct view name = {"", 0};
    if (v.kind == KIND_STRING) name = string_view(r, v.string);
    return answer(r, args, builtin_filter(name.data, name.size) != NULL);
}
TEST(is_test) {
    struct view name = {"", 0};
    if (v.kind == KIND_STRING) name = string_view(r, v.string);
    return answer(r, args, builtin_find(test_functions, name.data, name.size) != NULL);
}

/* islower(), isupper(): some letter has a case, and none has the other. */
static struct value has_case(struct render *r, struct value v, const struct args *args,
                             bool upper) {
    struct view text = string_view(r, value_str(r, v));
    bool some = false, other = false;
    for (size_t at = 0; at < text.size && render_step(r, 1);) {
        uint32_t c;
        at += utf8_next(text.data + at, &c);
        bool is_upper = utf8proc_isupper((utf8proc_int32_t)c),
             is_lower = utf8proc_islower((utf8proc_int32_t)c);
        some = some || (upper ? is_upper : is_lower);
        other = other || (upper ? is_lower : is_upper);
    }
    return answer(r, args, some && !other);
}
TEST(is_lower) {
    return has_case(r, v, args, false);
}
TEST(is_upper) {
    return has_case(r, v, args, true);
}

/* v % by == 0, and the like, through the operators: they know the types. */
static struct value remainder_is(struct render *r, struct value v, struct value by, int64_t rest) {
    struct value left = operator_apply(r, OP_MODULO, v, by);
    return r->failed ? left : value_bool(value_equal(r, left, value_int(rest)));
}
TEST(is_odd) {
    return no_arguments(r, args) ? remainder_is(r, v, value_int(2), 1) : value_nothing();
}
TEST(is_even) {
    return no_arguments(r, args) ? remainder_is(r, v, value_int(2), 0) : value_nothing();
}
TEST(is_divisible) {
    struct value by;
    return one_argument(r, args, &by) ? remainder_is(r, v, by, 0) : value_nothing();
}

TEST(is_same) {
    struct value other;
    if (!one_argument(r, args, &other)) return other;
    bool same = v.kind == other.kind && value_equal(r, v, other);
    if (v.kind == KIND_SERIES) same = same && v.series == other.series;
    if (v.kind == KIND_DICT) same = same && v.dict == other.dict;
    return value_bool(same);
}

static struct value compared(struct render *r, struct value v, const struct args *args,
                             enum operator op) {
    struct value other;
    if (!one_argument(r, args, &other)) return other;
    return value_bool(operator_compare(r, op, v, other));
}
TEST(is_equal) {
    return compared(r, v, args, OP_EQUAL);
}
TEST(is_not_equal) {
    return compared(r, v, args, OP_NOT_EQUAL);
}
TEST(is_less) {
    return compared(r, v, args, OP_LESS);
}
TEST(is_less_equal) {
    return compared(r, v, args, OP_LESS_EQUAL);
}
TEST(is_greater) {
    return compared(r, v, args, OP_GREATER);
}
TEST(is_greater_equal) {
    return compared(r, v, args, OP_GREATER_EQUAL);
}
TEST(is_in) {
    return compared(r, v, args, OP_IN);
}

const struct function test_functions[] = {
    {"defined", is_defined},
    {"undefined", is_undefined},
    {"none", is_none},
    {"boolean", is_boolean},
    {"true", is_true},
    {"false", is_false},
    {"integer", is_integer_test},
    {"float", is_float},
    {"number", is_number_test},
    {"string", is_string},
    {"mapping", is_mapping},
    {"sequence", is_sequence_test},
    {"iterable", is_iterable},
    {"callable", is_callable},
    {"escaped", is_escaped},
    {"filter", is_filter},
    {"test", is_test},
    {"lower", is_lower},
    {"upper", is_upper},
    {"odd", is_odd},
    {"even", is_even},
    {"divisibleby", is_divisible},
    {"sameas", is_same},
    {"eq", is_equal},
    {"equalto", is_equal},
    {"==", is_equal},
    {"ne", is_not_equal},
    {"!=", is_not_equal},
    {"lt", is_less},
    {"lessthan", is_less},
    {"<", is_less},
    {"le", is_less_equal},
    {"<=", is_less_equal},
    {"gt", is_greater},
    {"greaterthan", is_greater},
    {">", is_greater},
    {"ge", is_greater_equal},
    {">=", is_greater_equal},
    {"in", is_in},
    {NULL, NULL},
};

struct value test_call(struct render *r, const char *name, size_t size, struct value v,
                       const struct args *args) {
    const struct function *test = builtin_find(test_functions, name, size);
    if (test) return test->call(r, v, args);
    return render_fail(r, "TemplateRuntimeError", "No test named '%.*s'.", size < 60 ? (int)size : 60,
                       name);
}
