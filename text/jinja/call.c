/* text/jinja/call.c: arguments, and what is called: macros, methods, functions. */
#include "text/jinja/render.h"

#include <stdio.h>

const struct function *builtin_find(const struct function *table, const char *name, size_t size) {
    for (; table->name; table++)
        if (strlen(table->name) == size && !memcmp(table->name, name, size)) return table;
    return NULL;
}

/* --- arguments ------------------------------------------------------------------------------ */

struct arguments {
    struct argument *at;
    size_t n, capacity;
};

static void add_argument(struct render *r, struct arguments *a, const char *name, struct value v) {
    if (!render_step(r, 1)) return;
    if (a->n == a->capacity) {
        size_t want = a->capacity ? a->capacity * 2 : 4;
        struct argument *at = render_take(r, want * sizeof *at);
        if (!at) return;
        if (a->n) memcpy(at, a->at, a->n * sizeof *at);
        a->at = at;
        a->capacity = want;
    }
    a->at[a->n++] = (struct argument){name, v};
}

/* A string's bytes with a NUL behind. */
static const char *c_string(struct render *r, struct string *s) {
    struct view text = string_view(r, s);
    char *copy = render_take(r, text.size + 1);
    if (!copy) return "";
    memcpy(copy, text.data, text.size);
    copy[text.size] = 0;
    return copy;
}

static void add_star(struct render *r, struct arguments *a, struct value v) {
    struct walk walk = walk_start(r, v);
    struct value item;
    while (walk_next(r, &walk, &item)) add_argument(r, a, NULL, item);
}

static void add_double_star(struct render *r, struct arguments *a, struct value v) {
    if (r->failed) return;
    if (v.kind != KIND_DICT) {
        render_fail(r, "TypeError", "argument after ** must be a mapping, not %s", value_type(v));
        return;
    }
    for (size_t i = 0; i < v.dict->n && !r->failed; i++) {
        if (v.dict->entries[i].key.kind != KIND_STRING)
            render_fail(r, "TypeError", "keywords must be strings");
        else
            add_argument(r, a, c_string(r, v.dict->entries[i].key.string),
                         v.dict->entries[i].value);
    }
}

struct args render_args(struct render *r, const struct node *list) {
    struct arguments a = {0};
    size_t n_positional = 0;
    for (const struct node *n = list; n && !r->failed; n = n->next) {
        if (n->op == OP_STAR) add_star(r, &a, render_eval(r, n->a));
        else if (!n->name && n->op == OP_NONE) add_argument(r, &a, NULL, render_eval(r, n->a));
    }
    n_positional = a.n; /* f(a=1, *b): those by position come first whatever stands first */
    for (const struct node *n = list; n && !r->failed; n = n->next) {
        if (n->name) add_argument(r, &a, c_string(r, (struct string *)n->name), render_eval(r, n->a));
        else if (n->op == OP_DOUBLE_STAR) add_double_star(r, &a, render_eval(r, n->a));
    }
    return (struct args){a.at, a.n, n_positional};
}

static bool bind_keyword(struct render *r, const char *function, const struct argument *argument,
                         const char *const *names, size_t n, bool *given, struct value *out) {
    size_t i = 0;
    while (i < n && strcmp(names[i], argument->name) != 0) i++;
    if (i == n)
        render_fail(r, "TypeError", "%s() got an unexpected keyword argument '%.60s'", function,
                    argument->name);
    else if (given[i])
        render_fail(r, "TypeError", "%s() got multiple values for argument '%s'", function,
                    names[i]);
    else {
        given[i] = true;
        out[i] = argument->value;
    }
    return !r->failed;
}

bool args_bind(struct render *r, const char *function, const struct args *args,
               const char *const *names, size_t n, size_t required, struct value *out) {
    bool given[8] = {false};
    if (args->n_positional > n) {
        render_fail(r, "TypeError", "%s() takes at most %zu argument%s (%zu given)", function, n,
                    n == 1 ? "" : "s", args->n_positional);
        return false;
    }
    for (size_t i = 0; i < args->n; i++) {
        if (i < args->n_positional) {
            out[i] = args->at[i].value;
            given[i] = true;
        } else if (!bind_keyword(r, function, &args->at[i], names, n, given, out)) return false;
    }
    for (size_t i = 0; i < required; i++)
        if (!given[i]) {
            render_fail(r, "TypeError", "%s() missing a required argument: '%s'", function,
                        names[i]);
            return false;
        }
    return !r->failed;
}

/* --- macros --------------------------------------------------------------------------------- */

static struct argument *find_keyword(struct argument *at, size_t n, const struct string *name) {
    for (size_t i = 0; i < n; i++)
        if (at[i].name && string_is(name, at[i].name)) return &at[i];
    return NULL;
}

static struct value missing_parameter(struct render *r, const struct string *name) {
    char *hint = render_take(r, name->size + 32);
    if (!hint) return value_nothing();
    snprintf(hint, name->size + 32, "parameter '%.*s' was not provided", (int)name->size,
             name->data);
    return undefined_new(r, hint);
}

/* Gives the parameters their values in the scope of the call; marks the keywords that were used. */
static void bind_parameters(struct render *r, const struct node *parameters,
                            const struct args *args, struct argument *keywords, size_t n_keywords) {
    size_t i = 0;
    for (const struct node *p = parameters; p && !r->failed; p = p->next, i++) {
        struct argument *keyword;
        if (i < args->n_positional) scope_set(r, p->name, args->at[i].value);
        else if ((keyword = find_keyword(keywords, n_keywords, p->name))) {
            scope_set(r, p->name, keyword->value);
            keyword->name = NULL;
        } else scope_set(r, p->name, p->a ? render_eval(r, p->a) : missing_parameter(r, p->name));
    }
}

static void bind_rest(struct render *r, const struct node *node, const struct args *args,
                      struct argument *keywords, size_t n_keywords, size_t n_parameters) {
    const char *name = node->name ? node->name->data : "caller";
    int size = node->name ? (int)node->name->size : 6;
    if (node->takes_caller) {
        struct argument *caller = find_keyword(keywords, n_keywords, r->template->caller);
        scope_set(r, r->template->caller,
                  caller ? caller->value : undefined_new(r, "No caller defined"));
        if (caller) caller->name = NULL;
    }
    struct dict *kwargs = dict_new(r);
    for (size_t i = 0; i < n_keywords && !r->failed; i++) {
        if (!keywords[i].name) continue;
        if (!node->takes_kwargs)
            render_fail(r, "TypeError", "macro '%.*s' takes no keyword argument '%.60s'", size, name,
                        keywords[i].name);
        const char *key = keywords[i].name;
        dict_set(r, kwargs, value_string(string_borrow(r, key, strlen(key))), keywords[i].value);
    }
    if (node->takes_kwargs) scope_set(r, r->template->kwargs, value_dict(kwargs));
    if (node->takes_varargs) {
        struct series *varargs = series_new(r, SEQ_TUPLE);
        for (size_t i = n_parameters; i < args->n_positional; i++)
            series_add(r, varargs, args->at[i].value);
        scope_set(r, r->template->varargs, value_series(varargs));
    } else if (args->n_positional > n_parameters)
        render_fail(r, "TypeError", "macro '%.*s' takes not more than %zu argument(s)", size, name,
                    n_parameters);
}

static struct value call_macro(struct render *r, const struct macro *macro,
                               const struct args *args) {
    const struct node *node = macro->node;
    size_t n_keywords = args->n - args->n_positional, n_parameters = 0;
    struct argument *keywords = render_take(r, (n_keywords + 1) * sizeof *keywords);
    if (!keywords) return value_nothing();
    if (n_keywords) memcpy(keywords, args->at + args->n_positional, n_keywords * sizeof *keywords);
    for (const struct node *p = node->a; p; p = p->next) n_parameters++;
    struct scope *scope = r->scope;
    struct value text = value_nothing();
    if (render_enter(r)) {
        struct scope *own = scope_push(r, macro->scope);
        bind_parameters(r, node->a, args, keywords, n_keywords);
        bind_rest(r, node, args, keywords, n_keywords, n_parameters);
        if (!r->failed) text = render_captured(r, node->body, own);
        r->scope = scope;
    }
    render_leave(r);
    return text;
}

struct value value_call(struct render *r, struct value callee, const struct args *args) {
    if (callee.kind == KIND_UNDEFINED) return render_undefined(r, callee);
    if (callee.kind == KIND_MACRO) return call_macro(r, callee.macro, args);
    if (callee.kind == KIND_FUNCTION) return callee.function->call(r, value_nothing(), args);
    if (callee.kind == KIND_METHOD)
        return callee.method->function->call(r, callee.method->self, args);
    if (callee.kind == KIND_JOINER) { /* nothing the first time, then what stands between */
        bool again = callee.joiner->called;
        callee.joiner->called = true;
        return again ? value_string(callee.joiner->text) : value_string(string_borrow(r, "", 0));
    }
    return render_fail(r, "TypeError", "'%s' object is not callable", value_type(callee));
}
