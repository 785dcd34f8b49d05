/* text/jinja/parse_expr.c: expressions, by descent; each function takes one level of precedence. */
#include "text/jinja/parse.h"

#include "text/jinja/render.h"

#include <string.h>

static struct node *parse_condition(struct parser *p);
static struct node *parse_unary(struct parser *p, bool filters);
static struct node *parse_postfix(struct parser *p, struct node *node);

struct node *parse_expression(struct parser *p) {
    return parse_condition(p);
}

static struct node *binary(struct parser *p, enum node_kind kind, enum operator op,
                           const struct token *where, struct node *a, struct node *b) {
    struct node *node = parse_node(p, kind, where);
    node->op = op;
    node->a = a;
    node->b = b;
    return node;
}

/* --- what stands in brackets ---------------------------------------------------------------- */

static bool ends_tuple(const struct token *t, const char *end) {
    return t->kind == TOKEN_VARIABLE_END || t->kind == TOKEN_BLOCK_END || t->kind == TOKEN_END ||
           token_is_operator(t, ")") || (end && token_is_name(t, end));
}

static struct node *parse_or(struct parser *p);

static struct node *parse_items(struct parser *p, bool conditions, const char *end, bool brackets) {
    const struct token *where = token_now(p);
    struct node *first = NULL, **last = &first;
    bool tuple = false;
    for (;;) {
        if (first) parse_expect_operator(p, ",");
        if (ends_tuple(token_now(p), end)) break;
        parse_append(&last, conditions ? parse_expression(p) : parse_or(p));
        if (!token_is_operator(token_now(p), ",")) break;
        tuple = true;
    }
    if (!tuple && first) return first;
    char got[64];
    if (!tuple && !brackets)
        return parse_fail(p, token_now(p), "Expected an expression, got '%s'",
                          token_describe(token_now(p), got, sizeof got));
    struct node *node = parse_node(p, NODE_TUPLE, where);
    node->a = first;
    return node;
}

struct node *parse_tuple(struct parser *p, bool conditions, const char *end) {
    return parse_items(p, conditions, end, false);
}

static struct node *parse_list(struct parser *p, const struct token *where) {
    struct node *node = parse_node(p, NODE_LIST, where), **last = &node->a;
    p->at++;
    while (!p->err && !token_is_operator(token_now(p), "]")) {
        parse_append(&last, parse_expression(p));
        if (!parse_take_operator(p, ",")) break;
    }
    parse_expect_operator(p, "]");
    return node;
}

static struct node *parse_dict(struct parser *p, const struct token *where) {
    struct node *node = parse_node(p, NODE_DICT, where), **last = &node->a;
    p->at++;
    while (!p->err && !token_is_operator(token_now(p), "}")) {
        struct node *pair = parse_node(p, NODE_PAIR, token_now(p));
        pair->a = parse_expression(p);
        parse_expect_operator(p, ":");
        pair->b = parse_expression(p);
        parse_append(&last, pair);
        if (!parse_take_operator(p, ",")) break;
    }
    parse_expect_operator(p, "}");
    return node;
}

static struct node *parse_string(struct parser *p, const struct token *where) {
    struct node *node = parse_node(p, NODE_CONST, where);
    struct buf text = {0};
    const struct token *next = where;
    for (; token_now(p)->kind == TOKEN_STRING; p->at++) { /* 'a' 'b' is 'ab' */
        next = token_now(p);
        buf_add(&text, next->text, next->size);
    }
    node->value = next == where ? parse_constant(p, where->text, where->size)
                                : parse_constant(p, text.data ? text.data : "", text.size);
    buf_free(&text);
    return node;
}

static struct node *parse_name(struct parser *p, const struct token *t) {
    static const struct {
        const char *name;
        struct value value;
    } constants[] = {
        {"true", {.kind = KIND_BOOL, .boolean = true}}, {"false", {.kind = KIND_BOOL}},
        {"True", {.kind = KIND_BOOL, .boolean = true}}, {"False", {.kind = KIND_BOOL}},
        {"none", {.kind = KIND_NONE}},                  {"None", {.kind = KIND_NONE}},
    };
    p->at++;
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (token_is_name(t, constants[i].name)) {
            struct node *node = parse_node(p, NODE_CONST, t);
            node->value = constants[i].value;
            return node;
        }
    struct node *node = parse_node(p, NODE_NAME, t);
    node->name = parse_intern(p, t->text, t->size);
    if (p->macro) {
        if (token_is_name(t, "varargs")) p->macro->takes_varargs = true;
        if (token_is_name(t, "kwargs")) p->macro->takes_kwargs = true;
        if (token_is_name(t, "caller")) p->macro->takes_caller = true;
    }
    return node;
}

static struct node *parse_number(struct parser *p, const struct token *t) {
    struct node *node = parse_node(p, NODE_CONST, t);
    node->value = t->kind == TOKEN_INTEGER ? value_int(t->integer) : value_real(t->real);
    p->at++;
    return node;
}

static struct node *parse_primary(struct parser *p) {
    const struct token *t = token_now(p);
    char got[64];
    struct node *node;
    if (!parse_enter(p)) return &p->broken;
    if (t->kind == TOKEN_NAME) node = parse_name(p, t);
    else if (t->kind == TOKEN_STRING) node = parse_string(p, t);
    else if (t->kind == TOKEN_INTEGER || t->kind == TOKEN_FLOAT) node = parse_number(p, t);
    else if (token_is_operator(t, "[")) node = parse_list(p, t);
    else if (token_is_operator(t, "{")) node = parse_dict(p, t);
    else if (parse_take_operator(p, "(")) {
        node = parse_items(p, true, NULL, true);
        parse_expect_operator(p, ")");
    } else node = parse_fail(p, t, "unexpected '%s'", token_describe(t, got, sizeof got));
    parse_leave(p);
    return node;
}

/* --- what follows an operand ---------------------------------------------------------------- */

static struct node *parse_arguments(struct parser *p) {
    struct node *first = NULL, **last = &first;
    const struct token *open = token_now(p);
    bool keywords = false, star = false, stars = false;
    parse_expect_operator(p, "(");
    while (!p->err && !token_is_operator(token_now(p), ")")) {
        const struct token *t = token_now(p);
        struct node *argument = parse_node(p, NODE_ARGUMENT, t);
        bool wrong = stars;
        if (parse_take_operator(p, "*")) {
            wrong = star || stars;
            star = true;
            argument->op = OP_STAR;
        } else if (parse_take_operator(p, "**")) {
            stars = true;
            argument->op = OP_DOUBLE_STAR;
        } else if (t->kind == TOKEN_NAME && token_is_operator(t + 1, "=")) {
            keywords = true;
            argument->name = parse_intern(p, t->text, t->size);
            p->at += 2;
        } else wrong = keywords || star || stars;
        if (wrong) return parse_fail(p, open, "invalid syntax for function call expression");
        argument->a = parse_expression(p);
        parse_append(&last, argument);
        if (!parse_take_operator(p, ",")) break;
    }
    parse_expect_operator(p, ")");
    return first;
}

static struct node *parse_slice(struct parser *p) {
    const struct token *where = token_now(p);
    struct node *parts[3] = {NULL, NULL, NULL};
    int n = 0;
    if (!token_is_operator(where, ":")) parts[0] = parse_expression(p);
    if (!token_is_operator(token_now(p), ":")) return parts[0] ? parts[0] : &p->broken;
    while (n < 2 && parse_take_operator(p, ":")) {
        const struct token *t = token_now(p);
        n++;
        if (!token_is_operator(t, ":") && !token_is_operator(t, "]") && !token_is_operator(t, ","))
            parts[n] = parse_expression(p);
    }
    struct node *node = parse_node(p, NODE_SLICE, where);
    node->a = parts[0];
    node->b = parts[1];
    node->c = parts[2];
    return node;
}

static struct node *parse_subscript(struct parser *p, struct node *object) {
    const struct token *where = token_now(p);
    if (parse_take_operator(p, ".")) {
        const struct token *t = token_now(p);
        struct node *node = parse_node(p, t->kind == TOKEN_INTEGER ? NODE_ITEM : NODE_ATTRIBUTE, t);
        node->a = object;
        if (t->kind == TOKEN_INTEGER) node->b = parse_number(p, t);
        else if (t->kind == TOKEN_NAME) {
            node->value = parse_constant(p, t->text, t->size);
            p->at++;
        } else return parse_fail(p, t, "expected name or number");
        return node;
    }
    parse_expect_operator(p, "[");
    struct node *node = parse_node(p, NODE_ITEM, where), *keys = NULL, **last = &keys;
    do parse_append(&last, parse_slice(p));
    while (parse_take_operator(p, ",") && !token_is_operator(token_now(p), "]"));
    parse_expect_operator(p, "]");
    node->a = object;
    node->b = keys;
    if (keys && keys->next) { /* a[1, 2]: the key is a tuple */
        node->b = parse_node(p, NODE_TUPLE, where);
        node->b->a = keys;
    }
    return node;
}

static struct node *parse_call(struct parser *p, struct node *callee) {
    struct node *node = parse_node(p, NODE_CALL, token_now(p));
    node->a = callee;
    node->b = parse_arguments(p);
    return node;
}

static struct node *parse_postfix(struct parser *p, struct node *node) {
    while (!p->err) {
        const struct token *t = token_now(p);
        if (token_is_operator(t, ".") || token_is_operator(t, "[")) node = parse_subscript(p, node);
        else if (token_is_operator(t, "(")) node = parse_call(p, node);
        else break;
    }
    return node;
}

/* name, or name.name: as it stands. */
static const struct string *dotted_name(struct parser *p) {
    const struct string *name = parse_expect_name(p);
    while (parse_take_operator(p, ".")) {
        const struct string *more = parse_expect_name(p);
        struct buf both = {0};
        buf_add(&both, name->data, name->size);
        buf_add_char(&both, '.');
        buf_add(&both, more->data, more->size);
        name = parse_intern(p, both.data ? both.data : "", both.size);
        buf_free(&both);
    }
    return name;
}

struct node *parse_filters(struct parser *p, struct node *operand, bool start) {
    while (!p->err && (start || parse_take_operator(p, "|"))) {
        const struct token *t = token_now(p);
        struct node *node = parse_node(p, NODE_FILTER, t);
        start = false;
        node->a = operand;
        node->name = dotted_name(p);
        node->builtin = builtin_filter(node->name->data, node->name->size);
        if (!p->err && !node->builtin && !p->conditional)
            return parse_fail(p, t, "No filter named '%.*s'.", (int)node->name->size,
                              node->name->data);
        if (token_is_operator(token_now(p), "(")) node->b = parse_arguments(p);
        operand = node;
    }
    return operand;
}

static bool starts_argument(const struct token *t) {
    if (t->kind == TOKEN_NAME) return !token_is_name(t, "else") && !token_is_name(t, "or") && !token_is_name(t, "and");
    return t->kind == TOKEN_STRING || t->kind == TOKEN_INTEGER || t->kind == TOKEN_FLOAT ||
           token_is_operator(t, "[") || token_is_operator(t, "{");
}

static struct node *parse_test(struct parser *p, struct node *operand) {
    const struct token *where = token_now(p);
    struct node *node = parse_node(p, NODE_TEST, where);
    p->at++;
    bool negated = parse_take_name(p, "not");
    node->a = operand;
    node->name = dotted_name(p);
    node->builtin = builtin_find(test_functions, node->name->data, node->name->size);
    if (!p->err && !node->builtin && !p->conditional)
        return parse_fail(p, where, "No test named '%.*s'.", (int)node->name->size,
                          node->name->data);
    if (token_is_operator(token_now(p), "(")) node->b = parse_arguments(p);
    else if (token_is_name(token_now(p), "is"))
        return parse_fail(p, token_now(p), "You cannot chain multiple tests with is");
    else if (starts_argument(token_now(p))) {
        node->b = parse_node(p, NODE_ARGUMENT, token_now(p));
        node->b->a = parse_postfix(p, parse_primary(p));
    }
    return negated ? binary(p, NODE_NOT, OP_NONE, where, node, NULL) : node;
}

static struct node *parse_filters_and_tests(struct parser *p, struct node *node) {
    while (!p->err) {
        const struct token *t = token_now(p);
        if (token_is_operator(t, "|")) node = parse_filters(p, node, false);
        else if (token_is_name(t, "is")) node = parse_test(p, node);
        else if (token_is_operator(t, "(")) node = parse_call(p, node);
        else break;
    }
    return node;
}

/* --- operators, the tightest first ---------------------------------------------------------- */

static struct node *parse_unary(struct parser *p, bool filters) {
    const struct token *t = token_now(p);
    struct node *node;
    if (!parse_enter(p)) return &p->broken;
    if (parse_take_operator(p, "-"))
        node = binary(p, NODE_UNARY, OP_SUBTRACT, t, parse_unary(p, false), NULL);
    else if (parse_take_operator(p, "+"))
        node = binary(p, NODE_UNARY, OP_ADD, t, parse_unary(p, false), NULL);
    else node = parse_primary(p);
    node = parse_postfix(p, node);
    parse_leave(p);
    return filters ? parse_filters_and_tests(p, node) : node;
}

struct level {
    const char *spelling;
    enum operator op;
};

static enum operator take_level(struct parser *p, const struct level *level) {
    for (; level->spelling; level++)
        if (parse_take_operator(p, level->spelling)) return level->op;
    return OP_NONE;
}

static struct node *parse_level(struct parser *p, const struct level *level,
                                struct node *(*tighter)(struct parser *p)) {
    struct node *left = tighter(p);
    while (!p->err) {
        const struct token *where = token_now(p);
        enum operator op = take_level(p, level);
        if (op == OP_NONE) break;
        left = binary(p, NODE_BINARY, op, where, left, tighter(p));
    }
    return left;
}

static struct node *parse_operand(struct parser *p) {
    return parse_unary(p, true);
}

static struct node *parse_power(struct parser *p) {
    static const struct level level[] = {{"**", OP_POWER}, {NULL, OP_NONE}};
    return parse_level(p, level, parse_operand);
}

static struct node *parse_product(struct parser *p) {
    static const struct level level[] = {{"*", OP_MULTIPLY},
                                         {"/", OP_DIVIDE},
                                         {"//", OP_FLOOR_DIVIDE},
                                         {"%", OP_MODULO},
                                         {NULL, OP_NONE}};
    return parse_level(p, level, parse_power);
}

static struct node *parse_concat(struct parser *p) {
    const struct token *where = token_now(p);
    struct node *first = parse_product(p);
    if (!token_is_operator(token_now(p), "~")) return first;
    struct node *node = parse_node(p, NODE_CONCAT, where), **last = &node->a;
    parse_append(&last, first);
    while (parse_take_operator(p, "~")) parse_append(&last, parse_product(p));
    return node;
}

static struct node *parse_sum(struct parser *p) {
    static const struct level level[] = {{"+", OP_ADD}, {"-", OP_SUBTRACT}, {NULL, OP_NONE}};
    return parse_level(p, level, parse_concat);
}

static enum operator take_comparison(struct parser *p) {
    static const struct level level[] = {
        {"==", OP_EQUAL},         {"!=", OP_NOT_EQUAL}, {"<", OP_LESS}, {"<=", OP_LESS_EQUAL},
        {">", OP_GREATER},        {">=", OP_GREATER_EQUAL}, {NULL, OP_NONE}};
    if (parse_take_name(p, "in")) return OP_IN;
    if (token_is_name(token_now(p), "not") && token_is_name(token_now(p) + 1, "in")) {
        p->at += 2;
        return OP_NOT_IN;
    }
    return take_level(p, level);
}

static struct node *parse_comparison(struct parser *p) {
    const struct token *where = token_now(p);
    struct node *first = parse_sum(p), *node = NULL, **last = NULL;
    while (!p->err) {
        const struct token *t = token_now(p);
        enum operator op = take_comparison(p);
        if (op == OP_NONE) break;
        if (!node) {
            node = binary(p, NODE_COMPARE, OP_NONE, where, first, NULL);
            last = &node->b;
        }
        parse_append(&last, binary(p, NODE_OPERAND, op, t, parse_sum(p), NULL));
    }
    return node ? node : first;
}

static struct node *parse_not(struct parser *p) {
    const struct token *where = token_now(p);
    if (!parse_take_name(p, "not")) return parse_comparison(p);
    if (!parse_enter(p)) return &p->broken;
    struct node *node = binary(p, NODE_NOT, OP_NONE, where, parse_not(p), NULL);
    parse_leave(p);
    return node;
}

static struct node *parse_and(struct parser *p) {
    struct node *left = parse_not(p);
    const struct token *where;
    while (where = token_now(p), parse_take_name(p, "and"))
        left = binary(p, NODE_AND, OP_NONE, where, left, parse_not(p));
    return left;
}

static struct node *parse_or(struct parser *p) {
    struct node *left = parse_and(p);
    const struct token *where;
    while (where = token_now(p), parse_take_name(p, "or"))
        left = binary(p, NODE_OR, OP_NONE, where, left, parse_and(p));
    return left;
}

static struct node *parse_condition(struct parser *p) {
    const struct token *where;
    if (!parse_enter(p)) return &p->broken;
    struct node *then = parse_or(p);
    while (where = token_now(p), parse_take_name(p, "if")) {
        struct node *node = parse_node(p, NODE_CONDITION, where);
        p->conditional++;
        node->b = then;
        node->a = parse_or(p);
        if (parse_take_name(p, "else")) node->c = parse_condition(p);
        p->conditional--;
        then = node;
    }
    parse_leave(p);
    return then;
}

/* --- what is assigned to -------------------------------------------------------------------- */

static struct node *parse_one_target(struct parser *p, bool namespaces) {
    const struct token *t = token_now(p);
    if (t->kind != TOKEN_NAME && !token_is_operator(t, "(")) {
        char got[64];
        return parse_fail(p, t, "can't assign to '%s'", token_describe(t, got, sizeof got));
    }
    if (parse_take_operator(p, "(")) {
        struct node *inner = parse_enter(p) ? parse_target(p, NULL, namespaces) : &p->broken;
        parse_leave(p);
        parse_expect_operator(p, ")");
        return inner;
    }
    struct node *node = parse_name(p, t);
    if (node->kind == NODE_CONST) return parse_fail(p, t, "can't assign to 'const'");
    if (!namespaces || !parse_take_operator(p, ".")) return node;
    const struct string *attribute = parse_expect_name(p);
    node->kind = NODE_NAMESPACE;
    node->value = parse_constant(p, attribute->data, attribute->size);
    return node;
}

struct node *parse_target(struct parser *p, const char *end, bool namespaces) {
    const struct token *where = token_now(p);
    struct node *first = parse_one_target(p, namespaces);
    if (!token_is_operator(token_now(p), ",")) return first;
    struct node *node = parse_node(p, NODE_TUPLE, where), **last = &node->a;
    parse_append(&last, first);
    while (parse_take_operator(p, ",")) {
        const struct token *t = token_now(p);
        if (ends_tuple(t, end) || token_is_operator(t, "=")) break;
        parse_append(&last, parse_one_target(p, namespaces));
    }
    return node;
}
