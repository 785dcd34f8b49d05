/* From the tree of a grammar to its program. */
#include "serve/grammar_program.h"
#include "serve/grammar_source.h"

#include <stdlib.h>
#include <string.h>

enum {
    MAX_CODE = 200000,
    MAX_SWEEPS = 256,  /* over all rules, until nothing changes */
    INLINE_SIZE = 64,  /* a rule without loops and calls of at most so many instructions is copied */
    INLINE_ROUNDS = 8,
    INLINE_DEPTH = 8,
    COPY_SIZE = 64,    /* likewise a counted repetition, all rounds together; else it counts */
    NOT_INLINE = -1
};

struct compiler {
    const struct grammar_source *s;
    struct grammar *g;
    size_t room;
    bool too_large, no_memory;
    uint8_t *nullable, *productive; /* [n_rules] */
    int32_t *inline_size;           /* [n_rules]: NOT_INLINE, or instructions */
    int32_t *start;                 /* [n_rules]: where its code begins, -1: not made yet */
    int32_t *waiting;               /* [n_rules]: rules whose code is still to be made */
    size_t n_waiting;
    int32_t give_back;              /* OP_RETURN */
    bool counting;                  /* inside a repetition that counts */
    /* Bodies of repetitions that count within others: code of their own. */
    struct nested {
        int32_t expr, start;
    } *nested;
    size_t n_nested, room_nested, done_nested;
};

/* --- what can be said of expressions ------------------------------------------------------------ */

static const struct expr *child_of(const struct grammar_source *s, const struct expr *x, int32_t i) {
    return &s->exprs[s->children[x->first + i]];
}

static bool is_nullable(const struct compiler *c, const struct expr *x) {
    bool all = true, any = false;
    switch (x->kind) {
    case EXPR_EMPTY: return true;
    case EXPR_CHARS:
    case EXPR_LITERAL: return false;
    case EXPR_RULE: return c->nullable[x->first];
    case EXPR_REPEAT: return x->min == 0 || is_nullable(c, &c->s->exprs[x->first]);
    case EXPR_SEQ:
    case EXPR_ALT:
        for (int32_t i = 0; i < x->n; i++) {
            bool one = is_nullable(c, child_of(c->s, x, i));
            all = all && one;
            any = any || one;
        }
        return x->kind == EXPR_SEQ ? all : any;
    }
    return false;
}

/* Whether some text can be made of it. Where a rule has an alternative that never ends, all of it is
 * refused: that is a mistake of whoever wrote it. */
static bool is_productive(const struct compiler *c, const struct expr *x) {
    bool all = true, any = false;
    switch (x->kind) {
    case EXPR_RULE: return c->productive[x->first];
    case EXPR_REPEAT: return x->min == 0 || is_productive(c, &c->s->exprs[x->first]);
    case EXPR_SEQ:
    case EXPR_ALT:
        for (int32_t i = 0; i < x->n; i++) {
            bool one = is_productive(c, child_of(c->s, x, i));
            all = all && one;
            any = any || one;
        }
        return x->kind == EXPR_SEQ ? all : any;
    default: return true;
    }
}

/* Instructions for it when it is copied, or NOT_INLINE. */
static int32_t inline_size_of(const struct compiler *c, const struct expr *x) {
    int64_t size = 0, one;
    switch (x->kind) {
    case EXPR_EMPTY: return 0;
    case EXPR_LITERAL: return x->n;
    case EXPR_CHARS: return 4 * x->n;
    case EXPR_RULE: /* one more, so that no chain of rules is long */
        size = c->inline_size[x->first] + 1;
        if (size == NOT_INLINE + 1) return NOT_INLINE;
        break;
    case EXPR_REPEAT:
        one = inline_size_of(c, &c->s->exprs[x->first]);
        if (one == NOT_INLINE || x->max > INLINE_ROUNDS) return NOT_INLINE;
        size = (one + 1) * x->max;
        break;
    case EXPR_SEQ:
    case EXPR_ALT:
        for (int32_t i = 0; i < x->n && size <= INLINE_SIZE; i++) {
            one = inline_size_of(c, child_of(c->s, x, i));
            if (one == NOT_INLINE) return NOT_INLINE;
            size += one + (x->kind == EXPR_ALT);
        }
        break;
    }
    return size <= INLINE_SIZE ? (int32_t)size : NOT_INLINE;
}

static bool settle(struct compiler *c, uint8_t *known,
                   bool (*holds)(const struct compiler *, const struct expr *)) {
    size_t n = c->s->n_rules;
    bool changed = true;
    for (int sweep = 0; sweep < MAX_SWEEPS && changed; sweep++) {
        changed = false;
        for (size_t k = 0; k < n; k++) {
            size_t i = sweep % 2 ? n - 1 - k : k;
            if (known[i] || !holds(c, &c->s->exprs[c->s->rules[i].body])) continue;
            known[i] = changed = true;
        }
    }
    return !changed;
}

static void settle_inline(struct compiler *c) {
    for (size_t i = 0; i < c->s->n_rules; i++) c->inline_size[i] = NOT_INLINE;
    for (int sweep = 0; sweep < INLINE_DEPTH; sweep++)
        for (size_t i = 0; i < c->s->n_rules; i++)
            c->inline_size[i] = inline_size_of(c, &c->s->exprs[c->s->rules[i].body]);
}

/* --- rules that come back to themselves before any text ------------------------------------------ */

struct left_edges {
    int32_t *rules;
    size_t n, room;
    bool no_memory;
};

static void add_edge(struct left_edges *edges, int32_t rule) {
    if (edges->n == edges->room) {
        size_t wanted = edges->room ? edges->room * 2 : 64;
        int32_t *grown = realloc(edges->rules, wanted * sizeof *grown);
        if (!grown) {
            edges->no_memory = true;
            return;
        }
        edges->rules = grown;
        edges->room = wanted;
    }
    edges->rules[edges->n++] = rule;
}

/* The rules with which a text of x may begin. */
static void left_of(const struct compiler *c, const struct expr *x, struct left_edges *edges) {
    switch (x->kind) {
    case EXPR_RULE: add_edge(edges, x->first); return;
    case EXPR_REPEAT: left_of(c, &c->s->exprs[x->first], edges); return;
    case EXPR_SEQ:
        for (int32_t i = 0; i < x->n; i++) {
            left_of(c, child_of(c->s, x, i), edges);
            if (!is_nullable(c, child_of(c->s, x, i))) return;
        }
        return;
    case EXPR_ALT:
        for (int32_t i = 0; i < x->n; i++) left_of(c, child_of(c->s, x, i), edges);
        return;
    default: return;
    }
}

static int refuse_rule(struct error *e, const struct source_rule *rule, const char *what) {
    if (rule->line == 0) {
        error_set(e, ERR_PARAMS, "%.200s %s", rule->name, what);
        error_note(e, "pointer", rule->name);
        return -(int)ERR_PARAMS;
    }
    error_set(e, ERR_PARAMS, "line %d, column %d: rule %.100s %s", rule->line, rule->column,
              rule->name, what);
    error_note_number(e, "line", rule->line);
    error_note_number(e, "column", rule->column);
    return -(int)ERR_PARAMS;
}

/* Depth first, with a stack of its own. from [n_rules + 1]: where each rule's edges begin. */
static int find_circle(const struct compiler *c, const int32_t *edges, const size_t *from,
                       struct error *e) {
    size_t n = c->s->n_rules, depth = 0;
    enum { NEW, OPEN, DONE };
    uint8_t *color = calloc(n + 1, 1);
    size_t *at = calloc(n + 1, sizeof *at), *stack = calloc(n + 1, sizeof *stack);
    int err = color && at && stack ? 0 : error_set(e, ERR_MEMORY, "no memory for the grammar");
    for (size_t root = 0; root < n && !err; root++) {
        if (color[root] != NEW) continue;
        stack[depth++] = root;
        color[root] = OPEN;
        at[root] = from[root];
        while (depth && !err) {
            size_t rule = stack[depth - 1];
            if (at[rule] == from[rule + 1]) {
                color[rule] = DONE;
                depth--;
                continue;
            }
            size_t next = (size_t)edges[at[rule]++];
            if (color[next] == OPEN)
                err = refuse_rule(e, &c->s->rules[next],
                                  c->s->rules[next].line
                                      ? "begins with itself (left recursion): write it as a "
                                        "repetition, or let it begin with something else"
                                      : "refers to itself with nothing around it");
            if (color[next] != NEW) continue;
            color[next] = OPEN;
            at[next] = from[next];
            stack[depth++] = next;
        }
    }
    free(color);
    free(at);
    free(stack);
    return err;
}

static int check_left(const struct compiler *c, struct error *e) {
    struct left_edges edges = {0};
    size_t n = c->s->n_rules, *from = calloc(n + 1, sizeof *from);
    for (size_t i = 0; i < n && from; i++) {
        from[i] = edges.n;
        left_of(c, &c->s->exprs[c->s->rules[i].body], &edges);
        from[i + 1] = edges.n;
    }
    int err = from && !edges.no_memory ? find_circle(c, edges.rules, from, e)
                                       : error_set(e, ERR_MEMORY, "no memory for the grammar");
    free(edges.rules);
    free(from);
    return err;
}

/* --- code, made from its end to its beginning: each part is told where to go on ------------------- */

static int32_t put(struct compiler *c, enum op op, uint8_t lo, uint8_t hi, int32_t x, int32_t y) {
    struct grammar *g = c->g;
    if (c->too_large || c->no_memory) return 0;
    if ((size_t)g->n_code == c->room) {
        size_t wanted = c->room ? c->room * 2 : 256;
        struct inst *grown = realloc(g->code, wanted * sizeof *grown);
        if (!grown) c->no_memory = true;
        if (!grown) return 0;
        g->code = grown;
        c->room = wanted;
    }
    if (g->n_code == MAX_CODE) {
        c->too_large = true;
        return 0;
    }
    g->code[g->n_code] = (struct inst){(uint8_t)op, lo, hi, x, y};
    return g->n_code++;
}

static bool is_stuck(const struct compiler *c) {
    return c->too_large || c->no_memory;
}

/* The bytes of code points [lo, hi], whose encodings have the same length and differ in a way that a
 * range a byte can say. */
static int32_t emit_bytes(struct compiler *c, uint32_t lo, uint32_t hi, int32_t next) {
    int more = lo < 0x80 ? 0 : lo < 0x800 ? 1 : lo < 0x10000 ? 2 : 3;
    static const uint8_t mark[] = {0, 0xC0, 0xE0, 0xF0};
    for (int k = 0; k < more; k++, lo >>= 6, hi >>= 6)
        next = put(c, OP_BYTE, 0x80 | (lo & 0x3F), 0x80 | (hi & 0x3F), next, 0);
    return put(c, OP_BYTE, (uint8_t)(mark[more] | lo), (uint8_t)(mark[more] | hi), next, 0);
}

/* One more alternative; first: none yet. */
static int32_t or_else(struct compiler *c, int32_t alternatives, int32_t one) {
    return alternatives < 0 ? one : put(c, OP_SPLIT, 0, 0, one, alternatives);
}

static int32_t emit_range(struct compiler *c, uint32_t lo, uint32_t hi, int32_t next,
                          int32_t others) {
    static const uint32_t last[] = {0x7F, 0x7FF, 0xFFFF};
    if (is_stuck(c)) return 0;
    for (int k = 0; k < 3; k++)
        if (lo <= last[k] && hi > last[k]) {
            others = emit_range(c, lo, last[k], next, others);
            return emit_range(c, last[k] + 1, hi, next, others);
        }
    for (int k = 1; k < 4 && lo >= 0x80; k++) {
        uint32_t low = (1u << (6 * k)) - 1;
        if ((lo & ~low) == (hi & ~low)) break;
        if (lo & low) {
            others = emit_range(c, lo, lo | low, next, others);
            return emit_range(c, (lo | low) + 1, hi, next, others);
        }
        if ((hi & low) != low) {
            others = emit_range(c, lo, (hi & ~low) - 1, next, others);
            return emit_range(c, hi & ~low, hi, next, others);
        }
    }
    return or_else(c, others, emit_bytes(c, lo, hi, next));
}

static int32_t emit(struct compiler *c, int32_t expr, int32_t next);

/* Code that stands for itself, to be made later; where it begins is filled in then. */
static int32_t emit_nested(struct compiler *c, int32_t expr, int32_t next) {
    if (c->n_nested == c->room_nested) {
        size_t wanted = c->room_nested ? c->room_nested * 2 : 16;
        struct nested *grown = realloc(c->nested, wanted * sizeof *grown);
        if (!grown) c->no_memory = true;
        if (!grown) return 0;
        c->nested = grown;
        c->room_nested = wanted;
    }
    c->nested[c->n_nested] = (struct nested){expr, -1};
    return put(c, OP_CALL, 1, 0, (int32_t)c->n_nested++, next);
}

static int32_t emit_counted(struct compiler *c, int32_t expr, int32_t next) {
    struct expr x = c->s->exprs[expr];
    if (c->counting) return emit_nested(c, expr, next);
    if (is_nullable(c, &c->s->exprs[x.first])) {
        /* Rounds that may be empty cannot be counted, and any number up to max is allowed. */
        c->too_large = true;
        return 0;
    }
    c->counting = true;
    int32_t count = put(c, OP_COUNT, 0, 0, (int32_t)x.min, (int32_t)x.max);
    int32_t test = put(c, OP_TEST, 0, 0, 0, next);
    int32_t down = put(c, OP_DOWN, 0, 0, test, 0);
    int32_t body = emit(c, x.first, down);
    if (!is_stuck(c)) c->g->code[test].x = body;
    c->counting = false;
    return count;
}

static int32_t emit_star(struct compiler *c, int32_t child, int32_t next) {
    int32_t loop = put(c, OP_SPLIT, 0, 0, 0, next), body = emit(c, child, loop);
    if (!is_stuck(c)) c->g->code[loop].x = body;
    return loop;
}

static int32_t emit_repeat(struct compiler *c, int32_t expr, int32_t next) {
    struct expr x = c->s->exprs[expr];
    const struct expr *child = &c->s->exprs[x.first];
    bool endless = x.max == SOURCE_NO_END;
    uint32_t rounds = endless ? x.min : x.max, optional = endless ? 0 : x.max - x.min;
    if (rounds > 1) {
        int32_t size = inline_size_of(c, child);
        if (size == NOT_INLINE) size = child->kind == EXPR_RULE ? 1 : INLINE_SIZE;
        if (((uint64_t)size + 1) * rounds > COPY_SIZE) return emit_counted(c, expr, next);
    }
    int32_t at = endless ? emit_star(c, x.first, next) : next;
    for (uint32_t i = 0; i < optional && !is_stuck(c); i++)
        at = put(c, OP_SPLIT, 0, 0, emit(c, x.first, at), next);
    for (uint32_t i = 0; i < x.min && !is_stuck(c); i++) at = emit(c, x.first, at);
    return at;
}

static int32_t emit_rule(struct compiler *c, int32_t rule, int32_t next) {
    if (c->inline_size[rule] != NOT_INLINE) return emit(c, c->s->rules[rule].body, next);
    if (c->start[rule] == -1) {
        c->start[rule] = -2;
        c->waiting[c->n_waiting++] = rule;
    }
    return put(c, OP_CALL, 0, 0, rule, next);
}

/* --- alternatives that are literals: as a tree, so that a long list is few places at a time --------- */

struct word {
    const uint8_t *bytes;
    int32_t size;
};

static int by_bytes(const void *a, const void *b) {
    const struct word *x = a, *y = b;
    size_t least = (size_t)(x->size < y->size ? x->size : y->size);
    int order = memcmp(x->bytes, y->bytes, least);
    return order ? order : x->size < y->size ? -1 : x->size > y->size;
}

/* What words [n], which are sorted and alike in their first `at` bytes, go on with. */
static int32_t emit_words(struct compiler *c, const struct word *words, int32_t n, int32_t at,
                          int32_t next) {
    int32_t same = at, forms = -1, first = 0;
    const struct word *last = &words[n - 1];
    while (same < words->size && words->bytes[same] == last->bytes[same]) same++;
    while (first < n && words[first].size == same) first++;
    if (first) forms = next;
    for (int32_t i = first, j; i < n && !is_stuck(c); i = j) {
        for (j = i + 1; j < n && words[j].bytes[same] == words[i].bytes[same]; j++)
            ;
        int32_t rest = emit_words(c, words + i, j - i, same + 1, next);
        uint8_t byte = words[i].bytes[same];
        forms = or_else(c, forms, put(c, OP_BYTE, byte, byte, rest, 0));
    }
    while (same-- > at) forms = put(c, OP_BYTE, words->bytes[same], words->bytes[same], forms, 0);
    return forms;
}

static bool are_words(const struct grammar_source *s, const struct expr *x) {
    for (int32_t i = 0; i < x->n; i++)
        if (child_of(s, x, i)->kind != EXPR_LITERAL) return false;
    return true;
}

static int32_t emit_literals(struct compiler *c, const struct expr *x, int32_t next) {
    struct word *words = malloc((size_t)x->n * sizeof *words);
    if (!words) c->no_memory = true;
    if (!words) return 0;
    for (int32_t i = 0; i < x->n; i++) {
        const struct expr *child = child_of(c->s, x, i);
        words[i] = (struct word){(const uint8_t *)c->s->bytes + child->first, child->n};
    }
    qsort(words, (size_t)x->n, sizeof *words, by_bytes);
    int32_t at = emit_words(c, words, x->n, 0, next);
    free(words);
    return at;
}

static int32_t emit(struct compiler *c, int32_t expr, int32_t next) {
    const struct grammar_source *s = c->s;
    struct expr x = s->exprs[expr];
    int32_t at = x.kind == EXPR_CHARS || x.kind == EXPR_ALT ? -1 : next;
    if (is_stuck(c)) return 0;
    switch (x.kind) {
    case EXPR_EMPTY: break;
    case EXPR_LITERAL:
        for (int32_t i = x.n; i-- > 0;) {
            uint8_t byte = (uint8_t)s->bytes[x.first + i];
            at = put(c, OP_BYTE, byte, byte, at, 0);
        }
        break;
    case EXPR_CHARS:
        for (int32_t i = 0; i < x.n; i++)
            at = emit_range(c, s->ranges[x.first + i].lo, s->ranges[x.first + i].hi, next, at);
        break;
    case EXPR_SEQ:
        for (int32_t i = x.n; i-- > 0;) at = emit(c, s->children[x.first + i], at);
        break;
    case EXPR_ALT:
        if (are_words(s, &x)) return emit_literals(c, &x, next);
        for (int32_t i = 0; i < x.n; i++) at = or_else(c, at, emit(c, s->children[x.first + i], next));
        break;
    case EXPR_REPEAT: return emit_repeat(c, expr, next);
    case EXPR_RULE: return emit_rule(c, x.first, next);
    }
    return at;
}

static void emit_all(struct compiler *c, int32_t root) {
    c->give_back = put(c, OP_RETURN, 0, 0, 0, 0);
    c->start[root] = -2;
    c->waiting[c->n_waiting++] = root;
    while ((c->n_waiting || c->done_nested < c->n_nested) && !is_stuck(c)) {
        if (c->n_waiting) {
            int32_t rule = c->waiting[--c->n_waiting];
            c->start[rule] = emit(c, c->s->rules[rule].body, c->give_back);
        } else {
            size_t i = c->done_nested++;
            int32_t start = emit(c, c->nested[i].expr, c->give_back);
            c->nested[i].start = start;
        }
    }
    for (int32_t i = 0; i < c->g->n_code && !is_stuck(c); i++) {
        struct inst *call = &c->g->code[i];
        if (call->op == OP_CALL) call->x = call->lo ? c->nested[call->x].start : c->start[call->x];
    }
    c->g->start = c->start[root];
}

/* --- all of it ------------------------------------------------------------------------------- */

/* Bytes between which no instruction tells apart. */
static void find_classes(struct grammar *g) {
    bool edge[257] = {false};
    for (int32_t i = 0; i < g->n_code; i++) {
        if (g->code[i].op != OP_BYTE) continue;
        edge[g->code[i].lo] = true;
        edge[g->code[i].hi + 1] = true;
    }
    int class = 0;
    for (int b = 0; b < 256; b++) {
        if (b && edge[b]) class++;
        g->class_of[b] = (uint8_t)class;
    }
    g->n_classes = class + 1;
}

static int check_rules(struct compiler *c, struct error *e) {
    const struct grammar_source *s = c->s;
    for (size_t i = 0; i < s->n_rules; i++)
        if (s->rules[i].body < 0) return refuse_rule(e, &s->rules[i], "is used but not defined");
    if (!settle(c, c->nullable, is_nullable) || !settle(c, c->productive, is_productive))
        return error_set(e, ERR_PARAMS,
                         "the grammar's rules lead through more than %d others: make it simpler",
                         MAX_SWEEPS);
    for (size_t i = 0; i < s->n_rules; i++)
        if (!c->productive[i])
            return refuse_rule(e, &s->rules[i],
                               "has no end: every text of it contains another one of it");
    return check_left(c, e);
}

static int check_source(const struct grammar_source *s, struct error *e) {
    if (s->no_memory) return error_set(e, ERR_MEMORY, "no memory for the grammar");
    if (s->full)
        return error_set(e, ERR_PARAMS, "the grammar is too large: at most %d parts and %d rules",
                         SOURCE_MAX_EXPRS, SOURCE_MAX_RULES);
    return 0;
}

static int compile(struct compiler *c, int32_t root, struct error *e) {
    int err = check_rules(c, e);
    if (err) return err;
    settle_inline(c);
    emit_all(c, root);
    if (c->no_memory) return error_set(e, ERR_MEMORY, "no memory for the grammar");
    if (c->too_large)
        return error_set(e, ERR_PARAMS,
                         "the grammar is too large when compiled (over %d instructions), or repeats "
                         "many times what may be empty: use smaller counts",
                         MAX_CODE);
    find_classes(c->g);
    return 0;
}

int grammar_compile(struct grammar **out, const struct grammar_source *s, int32_t root,
                    struct error *e) {
    int err = check_source(s, e);
    if (err) return err;
    size_t n = s->n_rules + 1;
    struct compiler c = {.s = s,
                         .g = calloc(1, sizeof *c.g),
                         .nullable = calloc(n, 1),
                         .productive = calloc(n, 1),
                         .inline_size = calloc(n, sizeof *c.inline_size),
                         .start = malloc(n * sizeof *c.start),
                         .waiting = malloc(n * sizeof *c.waiting)};
    if (c.g && c.nullable && c.productive && c.inline_size && c.start && c.waiting) {
        memset(c.start, 0xFF, n * sizeof *c.start);
        c.g->users = 1;
        c.g->first = -1;
        err = compile(&c, root, e);
    } else err = error_set(e, ERR_MEMORY, "no memory for the grammar");
    free(c.nullable);
    free(c.productive);
    free(c.inline_size);
    free(c.start);
    free(c.waiting);
    free(c.nested);
    if (err) grammar_release(c.g);
    else *out = c.g;
    return err;
}
