/* text/jinja/parse.h: what parse.c (statements) and parse_expr.c (expressions) share.
 *
 * The first failure is remembered; the position then stands at the end, so that every loop over
 * tokens ends by itself, and every function gives back a node that nobody will evaluate. */
#ifndef TPD_TEXT_JINJA_PARSE_H
#define TPD_TEXT_JINJA_PARSE_H

#include "text/jinja/ast.h"

enum { MAX_NESTING = 200 }; /* of brackets, operators that stand in front, and blocks */

struct parser {
    struct jinja *template;
    struct tokens tokens;
    size_t at;
    int depth;
    int conditional;     /* inside an if: an unknown filter is an error only when it is reached */
    struct node *macro;  /* the innermost one whose body is being read */
    struct error *e;
    int err;
    struct node broken; /* given back after a failure */
};

const struct token *token_now(const struct parser *p);
struct node *parse_fail(struct parser *p, const struct token *where, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* "expected token 'x', got 'y'" */
struct node *parse_expected(struct parser *p, const char *what);
const char *token_describe(const struct token *t, char *buf, size_t size);

struct node *parse_node(struct parser *p, enum node_kind kind, const struct token *where);
void parse_append(struct node ***end, struct node *node);
const struct string *parse_intern(struct parser *p, const char *text, size_t size);
struct value parse_constant(struct parser *p, const char *text, size_t size);

bool token_is_operator(const struct token *t, const char *spelling);
bool token_is_name(const struct token *t, const char *name);
bool parse_take_operator(struct parser *p, const char *spelling);
bool parse_take_name(struct parser *p, const char *name);
void parse_expect_operator(struct parser *p, const char *spelling);
/* A name that is wanted; "" after a failure. */
const struct string *parse_expect_name(struct parser *p);
/* False, and a failure, when it is nested too deeply. Each true one is left again. */
bool parse_enter(struct parser *p);
void parse_leave(struct parser *p);

struct node *parse_expression(struct parser *p);
/* An expression, or several with commas between as a tuple. end: a name that ends it, or NULL. */
struct node *parse_tuple(struct parser *p, bool conditions, const char *end);
/* What a for or set assigns to: names, a tuple of them, or with `namespaces` ns.attribute. */
struct node *parse_target(struct parser *p, const char *end, bool namespaces);
/* Filters over `operand`; start: the first stands there without a bar. */
struct node *parse_filters(struct parser *p, struct node *operand, bool start);

#endif
