/* text/jinja/ast.h: a template as a tree, and the way from text to it (jinja_lex.c, parse*.c).
 * For the files of text/jinja/ alone. */
#ifndef TPD_TEXT_JINJA_AST_H
#define TPD_TEXT_JINJA_AST_H

#include "text/jinja/arena.h"
#include "text/jinja/value.h"

enum node_kind {
    /* statements */
    NODE_TEXT,         /* value */
    NODE_PRINT,        /* a: expression */
    NODE_IF,           /* a: test, body, rest: else (an elif is a NODE_IF there) */
    NODE_FOR,          /* a: target, b: what is walked, c: condition or NULL, body, rest: else */
    NODE_SET,          /* a: target, b: expression */
    NODE_SET_BLOCK,    /* a: target, b: filters over NODE_BODY, body */
    NODE_WITH,         /* a: list of NODE_SET, body */
    NODE_MACRO,        /* name, a: list of NODE_PARAMETER, body */
    NODE_CALL_BLOCK,   /* a: list of NODE_PARAMETER, b: NODE_CALL, body */
    NODE_FILTER_BLOCK, /* b: filters over NODE_BODY, body */
    NODE_GENERATION,   /* body */
    NODE_BREAK,
    NODE_CONTINUE,
    NODE_PARAMETER, /* name, a: default or NULL */
    /* expressions */
    NODE_CONST,     /* value */
    NODE_NAME,      /* name */
    NODE_NAMESPACE, /* a target: name, value: the attribute's name */
    NODE_BODY,      /* what the filters of a block begin with */
    NODE_TUPLE,     /* a: list */
    NODE_LIST,      /* a: list */
    NODE_DICT,      /* a: list of NODE_PAIR */
    NODE_PAIR,      /* a: key, b: value */
    NODE_ATTRIBUTE, /* a: object, value: name */
    NODE_ITEM,      /* a: object, b: key or NODE_SLICE */
    NODE_SLICE,     /* a, b, c: start, stop, step, each may be NULL */
    NODE_CALL,      /* a: callee, b: list of NODE_ARGUMENT */
    NODE_ARGUMENT,  /* a: expression, name: keyword or NULL, op: OP_STAR, OP_DOUBLE_STAR or none */
    NODE_FILTER,    /* a: operand, name, b: list of NODE_ARGUMENT, builtin */
    NODE_TEST,      /* the same */
    NODE_NOT,       /* a */
    NODE_UNARY,     /* op, a */
    NODE_AND,       /* a, b */
    NODE_OR,        /* a, b */
    NODE_CONDITION, /* a: test, b: then, c: else or NULL */
    NODE_COMPARE,   /* a: first, b: list of NODE_OPERAND */
    NODE_OPERAND,   /* op, a */
    NODE_BINARY,    /* op, a, b */
    NODE_CONCAT     /* a: list */
};

enum operator {
    OP_NONE,
    OP_ADD,
    OP_SUBTRACT,
    OP_MULTIPLY,
    OP_DIVIDE,
    OP_FLOOR_DIVIDE,
    OP_MODULO,
    OP_POWER,
    OP_EQUAL,
    OP_NOT_EQUAL,
    OP_LESS,
    OP_LESS_EQUAL,
    OP_GREATER,
    OP_GREATER_EQUAL,
    OP_IN,
    OP_NOT_IN,
    OP_STAR,
    OP_DOUBLE_STAR
};

struct node {
    enum node_kind kind;
    enum operator op;
    uint32_t line, column;
    struct node *next; /* the next of a list */
    const struct string *name;
    struct value value;
    const struct function *builtin; /* of a filter or test; NULL: there is none of that name */
    struct node *a, *b, *c, *body, *rest;
    bool is_elif;
    bool takes_varargs, takes_kwargs, takes_caller; /* of a macro: its body names them */
};

struct jinja {
    struct arena arena;
    struct node *body;
    bool has_generation;
    const struct string *loop, *caller, *varargs, *kwargs; /* names, interned */
    struct name_table {
        const struct string **names;
        size_t n, capacity;
    } names; /* every name that expressions use, once */
};

/* --- jinja_lex.c --- */

enum token_kind {
    TOKEN_TEXT,
    TOKEN_BLOCK_BEGIN,
    TOKEN_BLOCK_END,
    TOKEN_VARIABLE_BEGIN,
    TOKEN_VARIABLE_END,
    TOKEN_NAME,
    TOKEN_STRING,
    TOKEN_INTEGER,
    TOKEN_FLOAT,
    TOKEN_OPERATOR,
    TOKEN_END
};

struct token {
    enum token_kind kind;
    uint32_t line, column;
    const char *text; /* of a text or name; a string's value; an operator's spelling */
    size_t size;
    int64_t integer;
    double real;
};

struct tokens {
    struct token *at; /* ends with TOKEN_END; in the arena */
    size_t n, capacity;
};

/* source: with \n alone as line end. */
int jinja_lex(struct arena *arena, const char *source, size_t size, struct tokens *out, struct error *e);
/* "TemplateSyntaxError: message" with notes line and column. */
int jinja_syntax_error(struct error *e, uint32_t line, uint32_t column, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#endif
