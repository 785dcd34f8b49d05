/* text/jinja/parse.c: statements, and the tools of both parsers. */
#include "text/jinja/parse.h"

#include "text/jinja/jinja.h"
#include "text/unicode.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MAX_SOURCE = 1 << 20, MAX_TREE = 128 << 20 };

/* --- tools ---------------------------------------------------------------------------------- */

const struct token *token_now(const struct parser *p) {
    return &p->tokens.at[p->at < p->tokens.n ? p->at : p->tokens.n - 1];
}

const char *token_describe(const struct token *t, char *buf, size_t size) {
    switch (t->kind) {
    case TOKEN_TEXT: return "template data / text";
    case TOKEN_BLOCK_BEGIN: return "begin of statement block";
    case TOKEN_BLOCK_END: return "end of statement block";
    case TOKEN_VARIABLE_BEGIN: return "begin of print statement";
    case TOKEN_VARIABLE_END: return "end of print statement";
    case TOKEN_STRING: return "string";
    case TOKEN_INTEGER: return "integer";
    case TOKEN_FLOAT: return "float";
    case TOKEN_END: return "end of template";
    case TOKEN_NAME:
    case TOKEN_OPERATOR: break;
    }
    snprintf(buf, size, "%.*s", t->size < size ? (int)t->size : (int)size - 1, t->text);
    return buf;
}

struct node *parse_fail(struct parser *p, const struct token *where, const char *format, ...) {
    char message[384];
    if (!p->err) {
        va_list args;
        va_start(args, format);
        vsnprintf(message, sizeof message, format, args);
        va_end(args);
        p->err = jinja_syntax_error(p->e, where->line, where->column, "%s", message);
    }
    p->at = p->tokens.n - 1;
    return &p->broken;
}

struct node *parse_expected(struct parser *p, const char *what) {
    const struct token *t = token_now(p);
    char got[64];
    if (t->kind == TOKEN_END)
        return parse_fail(p, t, "unexpected end of template, expected '%s'.", what);
    return parse_fail(p, t, "expected token '%s', got '%s'", what,
                      token_describe(t, got, sizeof got));
}

static void out_of_memory(struct parser *p) {
    if (!p->err) p->err = error_set(p->e, ERR_MEMORY, "no memory for a template");
    p->at = p->tokens.n - 1;
}

struct node *parse_node(struct parser *p, enum node_kind kind, const struct token *where) {
    struct node *node = p->err ? NULL : arena_take(&p->template->arena, sizeof *node);
    if (!node) {
        out_of_memory(p);
        p->broken = (struct node){.kind = kind};
        return &p->broken;
    }
    *node = (struct node){.kind = kind, .line = where->line, .column = where->column};
    return node;
}

void parse_append(struct node ***end, struct node *node) {
    **end = node;
    *end = &node->next;
}

static struct string *string_const(struct parser *p, const char *text, size_t size) {
    static struct string empty = {.data = ""};
    struct string *s = arena_take(&p->template->arena, sizeof *s + size);
    if (!s) {
        out_of_memory(p);
        return &empty;
    }
    char *data = (char *)(s + 1);
    memcpy(data, text, size);
    *s = (struct string){.size = size, .data = data};
    for (size_t i = 0; i < size; i++) s->chars += ((unsigned char)data[i] & 0xC0) != 0x80;
    return s;
}

struct value parse_constant(struct parser *p, const char *text, size_t size) {
    return value_string(string_const(p, text, size));
}

static uint32_t hash_name(const char *text, size_t size) {
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < size; i++) h = (h ^ (unsigned char)text[i]) * 16777619u;
    return h;
}

static bool grow_names(struct parser *p) {
    struct name_table *t = &p->template->names, bigger = {.capacity = t->capacity * 2};
    if (!bigger.capacity) bigger.capacity = 64;
    bigger.names = arena_take(&p->template->arena, bigger.capacity * sizeof *bigger.names);
    if (!bigger.names) return false;
    memset(bigger.names, 0, bigger.capacity * sizeof *bigger.names);
    for (size_t i = 0; i < t->capacity; i++) {
        const struct string *s = t->names[i];
        if (!s) continue;
        size_t at = hash_name(s->data, s->size) & (bigger.capacity - 1);
        while (bigger.names[at]) at = (at + 1) & (bigger.capacity - 1);
        bigger.names[at] = s;
    }
    bigger.n = t->n;
    *t = bigger;
    return true;
}

const struct string *parse_intern(struct parser *p, const char *text, size_t size) {
    static const struct string empty = {.data = ""};
    struct name_table *t = &p->template->names;
    if (t->n * 2 >= t->capacity && !grow_names(p)) {
        out_of_memory(p);
        return &empty;
    }
    size_t at = hash_name(text, size) & (t->capacity - 1);
    for (; t->names[at]; at = (at + 1) & (t->capacity - 1))
        if (t->names[at]->size == size && !memcmp(t->names[at]->data, text, size))
            return t->names[at];
    t->n++;
    return t->names[at] = string_const(p, text, size);
}

static bool spelled(const struct token *t, enum token_kind kind, const char *text) {
    return t->kind == kind && t->size == strlen(text) && !memcmp(t->text, text, t->size);
}

bool token_is_operator(const struct token *t, const char *spelling) {
    return spelled(t, TOKEN_OPERATOR, spelling);
}

bool token_is_name(const struct token *t, const char *name) {
    return spelled(t, TOKEN_NAME, name);
}

bool parse_take_operator(struct parser *p, const char *spelling) {
    if (p->err || !token_is_operator(token_now(p), spelling)) return false;
    p->at++;
    return true;
}

bool parse_take_name(struct parser *p, const char *name) {
    if (p->err || !token_is_name(token_now(p), name)) return false;
    p->at++;
    return true;
}

void parse_expect_operator(struct parser *p, const char *spelling) {
    if (!parse_take_operator(p, spelling)) parse_expected(p, spelling);
}

const struct string *parse_expect_name(struct parser *p) {
    static const struct string empty = {.data = ""};
    const struct token *t = token_now(p);
    if (p->err || t->kind != TOKEN_NAME) {
        parse_expected(p, "name");
        return &empty;
    }
    p->at++;
    return parse_intern(p, t->text, t->size);
}

bool parse_enter(struct parser *p) {
    if (p->depth >= MAX_NESTING)
        parse_fail(p, token_now(p), "nested too deeply: at most %d levels", MAX_NESTING);
    p->depth++;
    return !p->err;
}

void parse_leave(struct parser *p) {
    p->depth--;
}

/* --- statements ----------------------------------------------------------------------------- */

static void expect_block_end(struct parser *p) {
    if (!p->err && token_now(p)->kind == TOKEN_BLOCK_END) p->at++;
    else parse_expected(p, "end of statement block");
}

/* Up to a tag of one of these names (NULL-terminated); stands at that name afterwards. ends NULL: up
 * to the end of the template. */
static struct node *parse_block(struct parser *p, const char *const *ends);

static bool is_one_of(const struct token *t, const char *const *names) {
    for (; names && *names; names++)
        if (token_is_name(t, *names)) return true;
    return false;
}

/* The end of a tag, then a block up to {% end %}, whose name is taken. */
static struct node *parse_body(struct parser *p, const char *end) {
    const char *const ends[] = {end, NULL};
    parse_take_operator(p, ":");
    expect_block_end(p);
    struct node *body = parse_block(p, ends);
    parse_take_name(p, end);
    return body;
}

static struct node *parse_if(struct parser *p) {
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    struct node *first = NULL, **place = &first;
    bool more = true;
    p->conditional++;
    while (more && !p->err) {
        struct node *node = parse_node(p, NODE_IF, token_now(p));
        p->at++; /* if, or elif */
        node->is_elif = first != NULL;
        node->a = parse_tuple(p, false, NULL);
        parse_take_operator(p, ":");
        expect_block_end(p);
        node->body = parse_block(p, ends);
        *place = node;
        place = &node->rest;
        more = token_is_name(token_now(p), "elif");
    }
    if (parse_take_name(p, "else")) *place = parse_body(p, "endif");
    else parse_take_name(p, "endif");
    p->conditional--;
    return first ? first : &p->broken;
}

static struct node *parse_for(struct parser *p) {
    static const char *const ends[] = {"endfor", "else", NULL};
    struct node *node = parse_node(p, NODE_FOR, token_now(p));
    p->at++;
    node->a = parse_target(p, "in", false);
    if (!parse_take_name(p, "in")) parse_expected(p, "in");
    node->b = parse_tuple(p, false, "recursive");
    if (parse_take_name(p, "if")) node->c = parse_expression(p);
    if (token_is_name(token_now(p), "recursive"))
        return parse_fail(p, token_now(p), "recursive loops are not in tpd's chat templates");
    parse_take_operator(p, ":");
    expect_block_end(p);
    node->body = parse_block(p, ends);
    if (parse_take_name(p, "else")) node->rest = parse_body(p, "endfor");
    else parse_take_name(p, "endfor");
    return node;
}

static struct node *body_operand(struct parser *p) {
    return parse_node(p, NODE_BODY, token_now(p));
}

static struct node *parse_set(struct parser *p) {
    struct node *node = parse_node(p, NODE_SET, token_now(p));
    p->at++;
    node->a = parse_target(p, NULL, true);
    if (parse_take_operator(p, "=")) {
        node->b = parse_tuple(p, true, NULL);
        return node;
    }
    node->kind = NODE_SET_BLOCK;
    node->b = parse_filters(p, body_operand(p), false);
    node->body = parse_body(p, "endset");
    return node;
}

static struct node *parse_with(struct parser *p) {
    struct node *node = parse_node(p, NODE_WITH, token_now(p)), **last = &node->a;
    p->at++;
    while (!p->err && token_now(p)->kind != TOKEN_BLOCK_END) {
        if (node->a) parse_expect_operator(p, ",");
        struct node *set = parse_node(p, NODE_SET, token_now(p));
        set->a = parse_target(p, NULL, false);
        parse_expect_operator(p, "=");
        set->b = parse_expression(p);
        parse_append(&last, set);
    }
    node->body = parse_body(p, "endwith");
    return node;
}

static struct node *parse_signature(struct parser *p) {
    struct node *first = NULL, **last = &first;
    bool defaults = false;
    parse_expect_operator(p, "(");
    while (!p->err && !token_is_operator(token_now(p), ")")) {
        if (first) parse_expect_operator(p, ",");
        const struct token *t = token_now(p);
        struct node *parameter = parse_node(p, NODE_PARAMETER, t);
        parameter->name = parse_expect_name(p);
        if (parse_take_operator(p, "=")) {
            parameter->a = parse_expression(p);
            defaults = true;
        } else if (defaults)
            return parse_fail(p, t, "non-default argument follows default argument");
        parse_append(&last, parameter);
    }
    parse_expect_operator(p, ")");
    return first;
}

/* A body that is called: what it names of varargs, kwargs and caller is noted in the node. */
static void parse_called_body(struct parser *p, struct node *node, const char *end) {
    struct node *outer = p->macro;
    p->macro = node;
    node->body = parse_body(p, end);
    p->macro = outer;
    if (!outer) return;
    outer->takes_varargs |= node->takes_varargs;
    outer->takes_kwargs |= node->takes_kwargs;
    outer->takes_caller |= node->takes_caller;
}

static struct node *parse_macro(struct parser *p) {
    struct node *node = parse_node(p, NODE_MACRO, token_now(p));
    p->at++;
    node->name = parse_expect_name(p);
    node->a = parse_signature(p);
    parse_called_body(p, node, "endmacro");
    return node;
}

static struct node *parse_call_block(struct parser *p) {
    const struct token *where = token_now(p);
    struct node *node = parse_node(p, NODE_CALL_BLOCK, where);
    p->at++;
    if (token_is_operator(token_now(p), "(")) node->a = parse_signature(p);
    node->b = parse_expression(p);
    if (!p->err && node->b->kind != NODE_CALL) return parse_fail(p, where, "expected call");
    parse_called_body(p, node, "endcall");
    return node;
}

static struct node *parse_filter_block(struct parser *p) {
    struct node *node = parse_node(p, NODE_FILTER_BLOCK, token_now(p));
    p->at++;
    node->b = parse_filters(p, body_operand(p), true);
    node->body = parse_body(p, "endfilter");
    return node;
}

static struct node *parse_generation(struct parser *p) {
    struct node *node = parse_node(p, NODE_GENERATION, token_now(p));
    p->template->has_generation = true;
    p->at++;
    node->body = parse_body(p, "endgeneration");
    return node;
}

static struct node *parse_print(struct parser *p) {
    struct node *first = NULL, **last = &first;
    p->at++;
    while (!p->err && token_now(p)->kind != TOKEN_BLOCK_END) {
        if (first) parse_expect_operator(p, ",");
        struct node *node = parse_node(p, NODE_PRINT, token_now(p));
        node->a = parse_expression(p);
        parse_append(&last, node);
    }
    return first;
}

static struct node *parse_break(struct parser *p) {
    struct node *node = parse_node(p, NODE_BREAK, token_now(p));
    p->at++;
    return node;
}

static struct node *parse_continue(struct parser *p) {
    struct node *node = parse_node(p, NODE_CONTINUE, token_now(p));
    p->at++;
    return node;
}

static struct node *parse_statement(struct parser *p) {
    static const struct {
        const char *name;
        struct node *(*parse)(struct parser *p);
    } statements[] = {{"if", parse_if},
                      {"for", parse_for},
                      {"set", parse_set},
                      {"with", parse_with},
                      {"macro", parse_macro},
                      {"call", parse_call_block},
                      {"filter", parse_filter_block},
                      {"generation", parse_generation},
                      {"print", parse_print},
                      {"break", parse_break},
                      {"continue", parse_continue}};
    static const char *const absent[] = {"extends", "include", "import",     "from",
                                         "block",   "do",      "autoescape", NULL};
    const struct token *t = token_now(p);
    if (t->kind != TOKEN_NAME) return parse_fail(p, t, "tag name expected");
    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++)
        if (token_is_name(t, statements[i].name)) return statements[i].parse(p);
    if (is_one_of(t, absent))
        return parse_fail(p, t, "the tag '%.*s' is not in tpd's chat templates", (int)t->size,
                          t->text);
    return parse_fail(p, t, "Encountered unknown tag '%.*s'.", t->size < 60 ? (int)t->size : 60,
                      t->text);
}

static struct node *parse_text(struct parser *p) {
    const struct token *t = token_now(p);
    struct node *node = parse_node(p, NODE_TEXT, t);
    node->value = parse_constant(p, t->text, t->size);
    p->at++;
    return node;
}

static struct node *parse_variable(struct parser *p) {
    struct node *node = parse_node(p, NODE_PRINT, token_now(p));
    p->at++;
    node->a = parse_tuple(p, true, NULL);
    if (!p->err && token_now(p)->kind == TOKEN_VARIABLE_END) p->at++;
    else parse_expected(p, "end of print statement");
    return node;
}

static struct node *parse_block(struct parser *p, const char *const *ends) {
    struct node *first = NULL, **last = &first;
    if (!parse_enter(p)) return NULL;
    const struct token *t = NULL;
    while (!p->err && (t = token_now(p))->kind != TOKEN_END) {
        struct node *node;
        if (t->kind == TOKEN_TEXT) node = parse_text(p);
        else if (t->kind == TOKEN_VARIABLE_BEGIN) node = parse_variable(p);
        else {
            p->at++;
            if (is_one_of(token_now(p), ends)) break;
            node = parse_statement(p);
            expect_block_end(p);
        }
        if (node) parse_append(&last, node);
        while (!p->err && *last) last = &(*last)->next; /* {% print a, b %} gave several */
    }
    if (!p->err && ends && t->kind == TOKEN_END)
        parse_fail(p, t, "Unexpected end of template. Jinja was looking for the following tags: '%s'.",
                   *ends);
    parse_leave(p);
    return first;
}

/* --- the whole ------------------------------------------------------------------------------ */

/* A copy with \n for every line end, and without the one at the end of the text. */
static char *normalised(struct arena *arena, const char *source, size_t *size) {
    char *copy = arena_take(arena, *size + 1);
    size_t n = 0;
    for (size_t i = 0; copy && i < *size; i++) {
        if (source[i] == '\r') {
            copy[n++] = '\n';
            if (i + 1 < *size && source[i + 1] == '\n') i++;
        } else copy[n++] = source[i];
    }
    if (n && copy[n - 1] == '\n') n--;
    *size = n;
    return copy;
}

static int compile(struct jinja *t, const char *source, size_t size, struct error *e) {
    size_t bad = utf8_check(source, size);
    if (bad < size) return error_set(e, ERR_BAD_FILE, "not UTF-8 at byte %zu", bad);
    if (size > MAX_SOURCE)
        return error_set(e, ERR_BAD_FILE, "the template has %zu bytes; at most %d are taken", size,
                         MAX_SOURCE);
    struct parser p = {.template = t, .e = e};
    char *text = normalised(&t->arena, source, &size);
    if (!text) return error_set(e, ERR_MEMORY, "no memory for a template");
    p.err = jinja_lex(&t->arena, text, size, &p.tokens, e);
    if (p.err) return p.err;
    t->loop = parse_intern(&p, "loop", 4);
    t->caller = parse_intern(&p, "caller", 6);
    t->varargs = parse_intern(&p, "varargs", 7);
    t->kwargs = parse_intern(&p, "kwargs", 6);
    t->body = parse_block(&p, NULL);
    return p.err;
}

int jinja_compile(struct jinja **out, const char *source, size_t size, struct error *e) {
    struct jinja *t = calloc(1, sizeof *t);
    if (!t) return error_set(e, ERR_MEMORY, "no memory for a template");
    t->arena.limit = MAX_TREE;
    int err = compile(t, source, size, e);
    if (err) {
        jinja_free(t);
        return err;
    }
    *out = t;
    return 0;
}

void jinja_free(struct jinja *t) {
    if (!t) return;
    arena_free(&t->arena);
    free(t);
}

bool jinja_has_generation(const struct jinja *t) {
    return t->has_generation;
}

bool jinja_uses(const struct jinja *t, const char *variable) {
    const struct name_table *names = &t->names;
    if (!names->capacity) return false;
    size_t size = strlen(variable), at = hash_name(variable, size) & (names->capacity - 1);
    for (; names->names[at]; at = (at + 1) & (names->capacity - 1))
        if (names->names[at]->size == size && !memcmp(names->names[at]->data, variable, size))
            return true;
    return false;
}
