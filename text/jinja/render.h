/* text/jinja/render.h: a rendering in progress. For the files of text/jinja/ alone.
 *
 * A failure is remembered once, with the place of the innermost node that was being evaluated;
 * from then on every function gives back something harmless at once. */
#ifndef TPD_TEXT_JINJA_RENDER_H
#define TPD_TEXT_JINJA_RENDER_H

#include "text/buffer.h"
#include "text/jinja/arena.h"
#include "text/jinja/ast.h"
#include "text/jinja/jinja.h"
#include "text/jinja/value.h"

enum {
    MAX_STEPS = 20000000,     /* nodes, and pieces of 64 bytes that strings are worked in */
    MAX_MEMORY = 256 << 20,   /* what a rendering may hold at once */
    MAX_OUTPUT = 64 << 20,
    MAX_DEPTH = 400,          /* of evaluation: nested expressions, blocks and macro calls */
    MAX_RANGE = 100000        /* as the sandbox of jinja2 has it */
};

/* What a block's names are worth. The rendering's own variables are behind the outermost. */
struct binding {
    const struct string *name; /* interned: compared by address */
    struct value value;
};
struct scope {
    struct scope *outer;
    size_t n, capacity;
    struct binding *bindings;
};

/* Around a macro's or call block's body, with the names it sees. */
struct macro {
    const struct node *node; /* NODE_MACRO or NODE_CALL_BLOCK */
    struct scope *scope;
};

/* The variable `loop`. */
struct loop {
    struct walk walk;
    const struct node *node; /* NODE_FOR */
    struct scope *scope;     /* in which the loop stands: its `if` is evaluated there */
    int64_t index;           /* from 0 */
    bool walked;             /* all was taken ahead and passed the `if`: length is known */
    int64_t length;
    bool has_next;           /* next was taken already */
    struct value current, before, next;
    struct value changed;    /* what changed() was last called with: a tuple, or undefined */
};

struct argument {
    const char *name; /* NULL: by position */
    struct value value;
};
struct args { /* those by position come first */
    const struct argument *at;
    size_t n, n_positional;
};

enum flow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE };

struct render {
    struct arena arena;
    const struct jinja *template;
    const struct dict *variables;
    struct tm now;
    struct buf *out; /* where text goes now: the output, or what a macro or block set collects */
    struct jinja_output *output;
    struct scope *scope;
    struct value body; /* what a filter over a block works on */
    enum flow flow;
    size_t steps;
    int depth;

    bool failed;
    struct error *error;
    uint32_t line, column; /* 0: not known yet */
    /* What is given back after a failure. */
    struct string no_string;
    struct series no_series;
    struct dict no_dict;
};

/* Remembers "TYPE: message" unless something failed before. Gives back undefined. */
struct value render_fail(struct render *r, const char *type, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The failure that using an undefined value is. */
struct value render_undefined(struct render *r, struct value v);
void *render_take(struct render *r, size_t size); /* NULL after a failure */
/* Counts the depth of what is evaluated; false, with a failure, when it is too deep. Each call is
 * followed by one of render_leave. */
bool render_enter(struct render *r);
void render_leave(struct render *r);
/* Counts work; false when there was a failure or it is enough. */
bool render_step(struct render *r, size_t steps);
/* Tells of a buffer that grew too large or had no memory. */
bool render_check(struct render *r, const struct buf *b);

extern const struct undefined no_undefined;
/* An undefined value of no name: what failures give back. */
static inline struct value value_nothing(void) {
    return (struct value){.kind = KIND_UNDEFINED, .undefined = &no_undefined};
}
struct value undefined_new(struct render *r, const char *hint);
struct value undefined_name(struct render *r, struct string *name);
struct value undefined_member(struct render *r, struct value object, struct value name, bool unsafe);

/* eval.c */
struct value render_eval(struct render *r, const struct node *node);
void render_block(struct render *r, const struct node *statements);
/* A block's text, collected; with a scope of its own in front of `outer`. */
struct value render_captured(struct render *r, const struct node *statements, struct scope *outer);
void scope_set(struct render *r, const struct string *name, struct value v);
struct scope *scope_push(struct render *r, struct scope *outer);
void render_assign(struct render *r, const struct node *target, struct value v);
bool loop_next(struct render *r, struct loop *loop, struct value *item);

/* members.c: obj.name and obj[key], as the sandbox looks them up. */
struct value value_attribute(struct render *r, struct value object, struct value name);
struct value value_item(struct render *r, struct value object, struct value key);
struct value value_slice(struct render *r, struct value object, struct value start,
                       struct value stop, struct value step);
struct value loop_attribute(struct render *r, struct loop *loop, const struct string *name,
                            bool *found);
/* An exception for names that begin with an underline. */
void namespace_set(struct render *r, struct dict *ns, struct value name, struct value v);

/* functions.c: keys(), values() or items(), as `kind` says. */
struct value dict_view(struct render *r, const struct dict *d, enum series_kind kind);

/* call.c */
struct value value_call(struct render *r, struct value callee, const struct args *args);
/* A call's arguments, evaluated; in front of them nothing. */
struct args render_args(struct render *r, const struct node *list);
/* Gives each of the n parameters its argument: by position, then by name. Those not given stay as
 * out has them; the first `required` must come. False after an exception. */
bool args_bind(struct render *r, const char *function, const struct args *args,
               const char *const *names, size_t n, size_t required, struct value *out);

/* operators.c */
struct value operator_apply(struct render *r, enum operator op, struct value a, struct value b);
bool operator_compare(struct render *r, enum operator op, struct value a, struct value b);
struct value text_percent(struct render *r, struct string *format, struct value arguments);

/* The tables, ended by a NULL name: functions.c, methods.c, filters.c, filters_list.c, tests.c. */
extern const struct function global_functions[];
extern const struct function string_methods[], dict_methods[], list_methods[], loop_methods[],
    cycler_methods[];
extern const struct function text_filters[], list_filters[], test_functions[];
const struct function *builtin_find(const struct function *table, const char *name, size_t size);
const struct function *builtin_filter(const char *name, size_t size);
struct value test_call(struct render *r, const char *name, size_t size, struct value v,
                       const struct args *args);

/* strftime.c */
struct string *text_time(struct render *r, const char *format, size_t size);

#endif
