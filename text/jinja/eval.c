/* text/jinja/render_eval.c: walks the tree: statements and expressions. */
#include "text/jinja/render.h"

#include <stdio.h>

/* --- names ---------------------------------------------------------------------------------- */

struct scope *scope_push(struct render *r, struct scope *outer) {
    struct scope *s = render_take(r, sizeof *s);
    if (!s) return outer;
    *s = (struct scope){.outer = outer};
    return r->scope = s;
}

void scope_set(struct render *r, const struct string *name, struct value v) {
    struct scope *s = r->scope;
    if (r->failed) return;
    for (size_t i = 0; i < s->n; i++)
        if (s->bindings[i].name == name) {
            s->bindings[i].value = v;
            return;
        }
    if (s->n == s->capacity) {
        size_t want = s->capacity ? s->capacity * 2 : 4;
        struct binding *bindings = render_take(r, want * sizeof *bindings);
        if (!bindings) return;
        if (s->n) memcpy(bindings, s->bindings, s->n * sizeof *bindings);
        s->bindings = bindings;
        s->capacity = want;
    }
    s->bindings[s->n++] = (struct binding){name, v};
}

static struct value eval_name(struct render *r, const struct string *name) {
    for (const struct scope *s = r->scope; s; s = s->outer)
        for (size_t i = 0; i < s->n; i++)
            if (s->bindings[i].name == name) return s->bindings[i].value;
    struct string *key = (struct string *)name; /* whole: nothing changes it */
    struct value *v = dict_get(r, r->variables, value_string(key));
    if (v) return *v;
    const struct function *f = builtin_find(global_functions, name->data, name->size);
    if (f) return (struct value){.kind = KIND_FUNCTION, .function = f};
    return undefined_name(r, key);
}

static void assign_each(struct render *r, const struct node *target, struct value v) {
    struct series *items = value_list(r, v);
    size_t wanted = 0, i = 0;
    for (const struct node *t = target->a; t; t = t->next) wanted++;
    if (r->failed) return;
    if (items->n < wanted)
        render_fail(r, "ValueError", "not enough values to unpack (expected %zu, got %zu)", wanted,
                    items->n);
    else if (items->n > wanted)
        render_fail(r, "ValueError", "too many values to unpack (expected %zu)", wanted);
    else
        for (const struct node *t = target->a; t; t = t->next) render_assign(r, t, items->items[i++]);
}

void render_assign(struct render *r, const struct node *target, struct value v) {
    if (target->kind == NODE_TUPLE) assign_each(r, target, v);
    else if (target->kind == NODE_NAMESPACE) {
        struct value ns = eval_name(r, target->name);
        if (r->failed) return;
        if (ns.kind != KIND_NAMESPACE)
            render_fail(r, "TemplateRuntimeError",
                        "cannot assign attribute on non-namespace object");
        else namespace_set(r, ns.dict, target->value, v);
    } else scope_set(r, target->name, v);
}

/* --- expressions ---------------------------------------------------------------------------- */

static struct value eval_items(struct render *r, const struct node *list, enum series_kind kind) {
    struct series *s = series_new(r, kind);
    for (; list && !r->failed; list = list->next) series_add(r, s, render_eval(r, list));
    return value_series(s);
}

static struct value eval_dict(struct render *r, const struct node *pair) {
    struct dict *d = dict_new(r);
    for (; pair && !r->failed; pair = pair->next) {
        struct value key = render_eval(r, pair->a), v = render_eval(r, pair->b);
        dict_set(r, d, key, v);
    }
    return value_dict(d);
}

static struct value eval_part(struct render *r, const struct node *node) {
    return node ? render_eval(r, node) : value_none();
}

static struct value eval_item(struct render *r, const struct node *node) {
    struct value object = render_eval(r, node->a);
    if (node->b->kind != NODE_SLICE) {
        struct value key = render_eval(r, node->b);
        return r->failed ? key : value_item(r, object, key);
    }
    struct value start = eval_part(r, node->b->a), stop = eval_part(r, node->b->b),
                 step = eval_part(r, node->b->c);
    return r->failed ? start : value_slice(r, object, start, stop, step);
}

static struct value eval_call(struct render *r, const struct node *node) {
    struct value callee = render_eval(r, node->a);
    struct args args = render_args(r, node->b);
    return r->failed ? callee : value_call(r, callee, &args);
}

static struct value eval_filter(struct render *r, const struct node *node) {
    struct value operand = render_eval(r, node->a);
    struct args args = render_args(r, node->b);
    if (r->failed) return operand;
    if (!node->builtin)
        return render_fail(r, "TemplateRuntimeError", "No filter named '%.*s' found.",
                           (int)node->name->size, node->name->data);
    return node->builtin->call(r, operand, &args);
}

static struct value eval_test(struct render *r, const struct node *node) {
    struct value operand = render_eval(r, node->a);
    struct args args = render_args(r, node->b);
    if (r->failed) return operand;
    if (!node->builtin)
        return render_fail(r, "TemplateRuntimeError", "No test named '%.*s' found.",
                           (int)node->name->size, node->name->data);
    return node->builtin->call(r, operand, &args);
}

static struct value eval_unary(struct render *r, const struct node *node) {
    struct value v = render_eval(r, node->a);
    if (r->failed) return v;
    if (v.kind == KIND_UNDEFINED) return render_undefined(r, v);
    if (v.kind == KIND_FLOAT) return value_real(node->op == OP_ADD ? v.real : -v.real);
    if (!is_integer(v))
        return render_fail(r, "TypeError", "bad operand type for unary %s: '%s'",
                           node->op == OP_ADD ? "+" : "-", value_type(v));
    return node->op == OP_ADD ? value_int(integer_of(v))
                              : operator_apply(r, OP_SUBTRACT, value_int(0), v);
}

static struct value eval_comparison(struct render *r, const struct node *node) {
    struct value left = render_eval(r, node->a);
    bool holds = true;
    for (const struct node *o = node->b; o && holds && !r->failed; o = o->next) {
        struct value right = render_eval(r, o->a);
        if (!r->failed) holds = operator_compare(r, o->op, left, right);
        left = right;
    }
    return value_bool(holds);
}

static struct value eval_concat(struct render *r, const struct node *part) {
    struct string *text = value_str(r, render_eval(r, part));
    for (part = part->next; part && !r->failed; part = part->next)
        text = string_join(r, text, value_str(r, render_eval(r, part)));
    return value_string(text);
}

static struct value eval_condition(struct render *r, const struct node *node) {
    bool holds = value_truth(r, render_eval(r, node->a));
    if (holds) return render_eval(r, node->b);
    if (node->c) return render_eval(r, node->c);
    char *hint = render_take(r, 128);
    if (!hint) return value_nothing();
    snprintf(hint, 128,
             "the inline if-expression on line %u evaluated to false and no else section was defined.",
             node->line);
    return undefined_new(r, hint);
}

static struct value eval_binary(struct render *r, const struct node *node) {
    struct value a = render_eval(r, node->a), b = render_eval(r, node->b);
    return r->failed ? a : operator_apply(r, node->op, a, b);
}

static struct value eval_node(struct render *r, const struct node *node) {
    struct value v;
    switch (node->kind) {
    case NODE_CONST: return node->value;
    case NODE_NAME: return eval_name(r, node->name);
    case NODE_BODY: return r->body;
    case NODE_TUPLE: return eval_items(r, node->a, SEQ_TUPLE);
    case NODE_LIST: return eval_items(r, node->a, SEQ_LIST);
    case NODE_DICT: return eval_dict(r, node->a);
    case NODE_ATTRIBUTE:
        v = render_eval(r, node->a);
        return r->failed ? v : value_attribute(r, v, node->value);
    case NODE_ITEM: return eval_item(r, node);
    case NODE_CALL: return eval_call(r, node);
    case NODE_FILTER: return eval_filter(r, node);
    case NODE_TEST: return eval_test(r, node);
    case NODE_NOT: return value_bool(!value_truth(r, render_eval(r, node->a)));
    case NODE_UNARY: return eval_unary(r, node);
    case NODE_AND:
        v = render_eval(r, node->a);
        return value_truth(r, v) ? render_eval(r, node->b) : v;
    case NODE_OR:
        v = render_eval(r, node->a);
        return value_truth(r, v) ? v : render_eval(r, node->b);
    case NODE_CONDITION: return eval_condition(r, node);
    case NODE_COMPARE: return eval_comparison(r, node);
    case NODE_BINARY: return eval_binary(r, node);
    case NODE_CONCAT: return eval_concat(r, node->a);
    case NODE_TEXT:
    case NODE_PRINT:
    case NODE_IF:
    case NODE_FOR:
    case NODE_SET:
    case NODE_SET_BLOCK:
    case NODE_WITH:
    case NODE_MACRO:
    case NODE_CALL_BLOCK:
    case NODE_FILTER_BLOCK:
    case NODE_GENERATION:
    case NODE_BREAK:
    case NODE_CONTINUE:
    case NODE_PARAMETER:
    case NODE_NAMESPACE:
    case NODE_PAIR:
    case NODE_SLICE:
    case NODE_ARGUMENT:
    case NODE_OPERAND: break; /* never evaluated by themselves */
    }
    return render_fail(r, "TemplateRuntimeError", "a node that is no expression");
}

/* The innermost node that was being evaluated is where a failure happened. */
static void note_place(struct render *r, const struct node *node) {
    if (!r->failed || r->line) return;
    r->line = node->line;
    r->column = node->column;
}

struct value render_eval(struct render *r, const struct node *node) {
    struct value v = value_nothing();
    if (r->failed) return v;
    if (render_step(r, 1) && render_enter(r)) {
        v = eval_node(r, node);
        render_leave(r);
    }
    note_place(r, node);
    return v;
}

/* --- statements ----------------------------------------------------------------------------- */

static void print(struct render *r, struct value v) {
    if (r->failed) return;
    if (v.kind == KIND_STRING) string_add(r, r->out, v.string);
    else value_add_str(r, r->out, v);
    render_check(r, r->out);
}

struct value render_captured(struct render *r, const struct node *statements, struct scope *outer) {
    struct buf text = {0}, *out = r->out;
    struct scope *scope = r->scope;
    r->out = &text;
    scope_push(r, outer);
    render_block(r, statements);
    r->scope = scope;
    r->out = out;
    r->flow = FLOW_ON; /* a break goes no further than the block */
    return value_string(string_take(r, &text));
}

static struct value filter_body(struct render *r, const struct node *filters, struct value body) {
    struct value outer = r->body;
    r->body = body;
    struct value v = render_eval(r, filters);
    r->body = outer;
    return v;
}

bool loop_next(struct render *r, struct loop *loop, struct value *item) {
    if (loop->has_next) {
        loop->has_next = false;
        *item = loop->next;
        return true;
    }
    while (walk_next(r, &loop->walk, item)) {
        if (!loop->node->c || loop->walked) return true;
        struct scope *scope = r->scope;
        scope_push(r, loop->scope);
        render_assign(r, loop->node->a, *item);
        bool taken = value_truth(r, render_eval(r, loop->node->c));
        r->scope = scope;
        if (r->failed) return false;
        if (taken) return true;
    }
    return false;
}

static void run_for(struct render *r, const struct node *node) {
    struct scope *scope = r->scope;
    struct value over = render_eval(r, node->b), item;
    struct loop *loop = r->failed ? NULL : render_take(r, sizeof *loop);
    if (!loop) return;
    *loop = (struct loop){.walk = walk_start(r, over), .node = node, .scope = scope, .index = -1};
    loop->changed = loop->before = loop->current = value_nothing();
    while (!r->failed && loop_next(r, loop, &item)) {
        loop->index++;
        loop->before = loop->current;
        loop->current = item;
        scope_push(r, scope);
        scope_set(r, r->template->loop, (struct value){.kind = KIND_LOOP, .loop = loop});
        render_assign(r, node->a, item);
        render_block(r, node->body);
        r->scope = scope;
        enum flow flow = r->flow;
        r->flow = FLOW_ON;
        if (flow == FLOW_BREAK) break;
    }
    if (loop->index < 0 && !r->failed && node->rest) {
        scope_push(r, scope);
        render_block(r, node->rest);
        r->scope = scope;
    }
}

static void run_if(struct render *r, const struct node *node) {
    while (node && node->kind == NODE_IF) { /* an elif is the only node of its branch */
        if (value_truth(r, render_eval(r, node->a))) {
            render_block(r, node->body);
            return;
        }
        if (r->failed) return;
        bool elif = node->rest && node->rest->is_elif;
        if (!elif) {
            render_block(r, node->rest);
            return;
        }
        node = node->rest;
    }
}

static void run_with(struct render *r, const struct node *node) {
    struct scope *scope = r->scope, *inner = scope_push(r, scope);
    for (const struct node *set = node->a; set && !r->failed; set = set->next) {
        r->scope = scope; /* values see what is outside */
        struct value v = render_eval(r, set->b);
        r->scope = inner;
        render_assign(r, set->a, v);
    }
    render_block(r, node->body);
    r->scope = scope;
}

static struct value macro_value(struct render *r, const struct node *node) {
    struct macro *m = render_take(r, sizeof *m);
    if (!m) return value_nothing();
    *m = (struct macro){node, r->scope};
    return (struct value){.kind = KIND_MACRO, .macro = m};
}

/* The call, with the block's body as the argument `caller`. */
static void run_call_block(struct render *r, const struct node *node) {
    const struct node *call = node->b;
    struct value callee = render_eval(r, call->a);
    struct args args = render_args(r, call->b);
    struct argument *with = r->failed ? NULL : render_take(r, (args.n + 1) * sizeof *with);
    if (!with) return;
    if (args.n) memcpy(with, args.at, args.n * sizeof *with);
    with[args.n] = (struct argument){"caller", macro_value(r, node)};
    args.at = with;
    args.n++;
    print(r, value_call(r, callee, &args));
}

/* What it writes is a span of the output, unless a macro or a block set collects it. */
static void run_generation(struct render *r, const struct node *node) {
    size_t from = r->out->size;
    struct scope *scope = r->scope;
    scope_push(r, scope);
    render_block(r, node->body);
    r->scope = scope;
    if (r->out == &r->output->text) spans_add(&r->output->generated, from, r->out->size);
}

static void run_statement(struct render *r, const struct node *node) {
    struct value v;
    switch (node->kind) {
    case NODE_TEXT:
        print(r, node->value);
        break;
    case NODE_PRINT:
        print(r, render_eval(r, node->a));
        break;
    case NODE_IF: run_if(r, node); break;
    case NODE_FOR: run_for(r, node); break;
    case NODE_SET:
        v = render_eval(r, node->b);
        render_assign(r, node->a, v);
        break;
    case NODE_SET_BLOCK:
        v = render_captured(r, node->body, r->scope);
        if (node->b->kind != NODE_BODY) v = filter_body(r, node->b, v);
        render_assign(r, node->a, v);
        break;
    case NODE_WITH: run_with(r, node); break;
    case NODE_MACRO: scope_set(r, node->name, macro_value(r, node)); break;
    case NODE_CALL_BLOCK: run_call_block(r, node); break;
    case NODE_FILTER_BLOCK:
        print(r, filter_body(r, node->b, render_captured(r, node->body, r->scope)));
        break;
    case NODE_GENERATION: run_generation(r, node); break;
    case NODE_BREAK: r->flow = FLOW_BREAK; break;
    case NODE_CONTINUE: r->flow = FLOW_CONTINUE; break;
    case NODE_PARAMETER:
    case NODE_CONST:
    case NODE_NAME:
    case NODE_NAMESPACE:
    case NODE_BODY:
    case NODE_TUPLE:
    case NODE_LIST:
    case NODE_DICT:
    case NODE_PAIR:
    case NODE_ATTRIBUTE:
    case NODE_ITEM:
    case NODE_SLICE:
    case NODE_CALL:
    case NODE_ARGUMENT:
    case NODE_FILTER:
    case NODE_TEST:
    case NODE_NOT:
    case NODE_UNARY:
    case NODE_AND:
    case NODE_OR:
    case NODE_CONDITION:
    case NODE_COMPARE:
    case NODE_OPERAND:
    case NODE_BINARY:
    case NODE_CONCAT: break; /* expressions */
    }
}

void render_block(struct render *r, const struct node *node) {
    if (!render_enter(r)) node = NULL;
    for (; node && !r->failed && r->flow == FLOW_ON; node = node->next) {
        if (render_step(r, 1)) run_statement(r, node);
        note_place(r, node);
    }
    render_leave(r);
}
