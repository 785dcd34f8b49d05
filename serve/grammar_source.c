#include "serve/grammar_source.h"

#include <stdlib.h>
#include <string.h>

enum { LAST_CHAR = 0x10FFFF, FIRST_SURROGATE = 0xD800, LAST_SURROGATE = 0xDFFF };

/* Room for one more element in an array; false (and full) when there is none. */
static bool make_room(struct grammar_source *s, void *array, size_t n, size_t more, size_t *room,
                      size_t element, size_t most) {
    if (s->full) return false;
    if (n + more > most) {
        s->full = true;
        return false;
    }
    if (n + more <= *room) return true;
    size_t wanted = *room * 2 > n + more ? *room * 2 : n + more + 16;
    void *old, *grown;
    memcpy(&old, array, sizeof old);
    grown = realloc(old, wanted * element);
    if (!grown) {
        s->full = s->no_memory = true;
        return false;
    }
    memcpy(array, &grown, sizeof grown);
    *room = wanted;
    return true;
}

static int32_t add_expr(struct grammar_source *s, struct expr expr) {
    if (!make_room(s, &s->exprs, s->n_exprs, 1, &s->room_exprs, sizeof *s->exprs,
                   SOURCE_MAX_EXPRS))
        return SOURCE_EMPTY;
    s->exprs[s->n_exprs] = expr;
    return (int32_t)s->n_exprs++;
}

void source_init(struct grammar_source *s) {
    memset(s, 0, sizeof *s);
    add_expr(s, (struct expr){.kind = EXPR_EMPTY});
}

void source_free(struct grammar_source *s) {
    for (size_t i = 0; i < s->n_rules; i++) free(s->rules[i].name);
    free(s->exprs);
    free(s->ranges);
    free(s->children);
    free(s->bytes);
    free(s->rules);
    memset(s, 0, sizeof *s);
}

/* --- lists ----------------------------------------------------------------------------------- */

void list_add(struct grammar_source *s, struct expr_list *list, int32_t expr) {
    if (make_room(s, &list->at, list->n, 1, &list->room, sizeof *list->at, SOURCE_MAX_EXPRS))
        list->at[list->n++] = expr;
}

void ranges_add(struct grammar_source *s, struct range_list *list, uint32_t lo, uint32_t hi) {
    if (make_room(s, &list->at, list->n, 1, &list->room, sizeof *list->at, SOURCE_MAX_EXPRS))
        list->at[list->n++] = (struct char_range){lo, hi};
}

static int by_start(const void *a, const void *b) {
    const struct char_range *x = a, *y = b;
    return x->lo < y->lo ? -1 : x->lo > y->lo;
}

/* Half of a surrogate pair is no character. */
static void without_surrogates(struct grammar_source *s, struct range_list *list) {
    size_t n = list->n;
    for (size_t i = 0; i < n; i++) {
        struct char_range r = list->at[i];
        if (r.hi < FIRST_SURROGATE || r.lo > LAST_SURROGATE) continue;
        list->at[i] = (struct char_range){1, 0};
        if (r.lo < FIRST_SURROGATE) ranges_add(s, list, r.lo, FIRST_SURROGATE - 1);
        if (r.hi > LAST_SURROGATE) ranges_add(s, list, LAST_SURROGATE + 1, r.hi);
    }
}

static void join(struct range_list *list) {
    size_t kept = 0;
    if (list->n) qsort(list->at, list->n, sizeof *list->at, by_start);
    for (size_t i = 0; i < list->n; i++) {
        struct char_range r = list->at[i];
        if (r.lo > r.hi) continue;
        if (kept && r.lo <= list->at[kept - 1].hi + 1) {
            if (r.hi > list->at[kept - 1].hi) list->at[kept - 1].hi = r.hi;
        } else list->at[kept++] = r;
    }
    list->n = kept;
}

void ranges_settle(struct grammar_source *s, struct range_list *list, bool negate) {
    join(list);
    if (negate) {
        size_t n = list->n;
        uint32_t from = 0;
        for (size_t i = 0; i < n; i++) {
            struct char_range r = list->at[i];
            if (r.lo > from) ranges_add(s, list, from, r.lo - 1);
            from = r.hi + 1;
            list->at[i] = (struct char_range){1, 0};
        }
        if (from <= LAST_CHAR) ranges_add(s, list, from, LAST_CHAR);
    }
    without_surrogates(s, list);
    join(list);
}

/* --- expressions ----------------------------------------------------------------------------- */

static int32_t take_list(struct grammar_source *s, enum expr_kind kind, struct expr_list *list) {
    int32_t expr = SOURCE_EMPTY;
    if (list->n == 1) expr = list->at[0];
    else if (list->n > 1 && make_room(s, &s->children, s->n_children, list->n, &s->room_children,
                                      sizeof *s->children, 4 * SOURCE_MAX_EXPRS)) {
        memcpy(s->children + s->n_children, list->at, list->n * sizeof *list->at);
        expr = add_expr(
            s, (struct expr){.kind = kind, .first = (int32_t)s->n_children, .n = (int32_t)list->n});
        s->n_children += list->n;
    }
    free(list->at);
    *list = (struct expr_list){0};
    return expr;
}

int32_t source_seq(struct grammar_source *s, struct expr_list *list) {
    return take_list(s, EXPR_SEQ, list);
}

int32_t source_alt(struct grammar_source *s, struct expr_list *list) {
    return take_list(s, EXPR_ALT, list);
}

int32_t source_chars(struct grammar_source *s, struct range_list *list) {
    int32_t expr = SOURCE_EMPTY;
    if (list->n && make_room(s, &s->ranges, s->n_ranges, list->n, &s->room_ranges,
                             sizeof *s->ranges, 4 * SOURCE_MAX_EXPRS)) {
        memcpy(s->ranges + s->n_ranges, list->at, list->n * sizeof *list->at);
        expr = add_expr(s, (struct expr){.kind = EXPR_CHARS,
                                         .first = (int32_t)s->n_ranges,
                                         .n = (int32_t)list->n});
        s->n_ranges += list->n;
    }
    free(list->at);
    *list = (struct range_list){0};
    return expr;
}

int32_t source_range(struct grammar_source *s, uint32_t lo, uint32_t hi) {
    struct range_list list = {0};
    ranges_add(s, &list, lo, hi);
    ranges_settle(s, &list, false);
    return source_chars(s, &list);
}

int32_t source_literal(struct grammar_source *s, const char *bytes, size_t size) {
    if (size == 0 || !make_room(s, &s->bytes, s->n_bytes, size, &s->room_bytes, 1, SOURCE_MAX_BYTES))
        return SOURCE_EMPTY;
    memcpy(s->bytes + s->n_bytes, bytes, size);
    s->n_bytes += size;
    return add_expr(s, (struct expr){.kind = EXPR_LITERAL,
                                     .first = (int32_t)(s->n_bytes - size),
                                     .n = (int32_t)size});
}

int32_t source_text(struct grammar_source *s, const char *text) {
    return source_literal(s, text, strlen(text));
}

int32_t source_pair(struct grammar_source *s, int32_t a, int32_t b) {
    struct expr_list list = {0};
    list_add(s, &list, a);
    list_add(s, &list, b);
    return source_seq(s, &list);
}

int32_t source_either(struct grammar_source *s, int32_t a, int32_t b) {
    struct expr_list list = {0};
    list_add(s, &list, a);
    list_add(s, &list, b);
    return source_alt(s, &list);
}

int32_t source_repeat(struct grammar_source *s, int32_t child, uint32_t min, uint32_t max) {
    if (max == 0) return SOURCE_EMPTY;
    if (min == 1 && max == 1) return child;
    return add_expr(s,
                    (struct expr){.kind = EXPR_REPEAT, .first = child, .min = min, .max = max});
}

int32_t source_optional(struct grammar_source *s, int32_t child) {
    return source_repeat(s, child, 0, 1);
}

int32_t source_rule_new(struct grammar_source *s, const char *name, size_t size) {
    if (!make_room(s, &s->rules, s->n_rules, 1, &s->room_rules, sizeof *s->rules, SOURCE_MAX_RULES))
        return -1;
    char *copy = strndup(name, size);
    if (!copy) {
        s->full = s->no_memory = true;
        return -1;
    }
    s->rules[s->n_rules] = (struct source_rule){.name = copy, .body = -1};
    return (int32_t)s->n_rules++;
}

int32_t source_rule_use(struct grammar_source *s, int32_t rule) {
    if (rule < 0) return SOURCE_EMPTY;
    return add_expr(s, (struct expr){.kind = EXPR_RULE, .first = rule});
}

/* --- characters ------------------------------------------------------------------------------ */

int32_t utf8_read(const char *text, size_t size, size_t *at) {
    size_t i = *at;
    if (i >= size) return -1;
    unsigned char first = (unsigned char)text[i];
    int more = first < 0x80 ? 0 : first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : first >= 0xC2 ? 1 : -1;
    if (more < 0 || first > 0xF4 || i + (size_t)more >= size) return -1;
    int32_t c = more == 0 ? first : first & (0x3F >> more);
    for (int k = 1; k <= more; k++) {
        unsigned char next = (unsigned char)text[i + (size_t)k];
        if ((next & 0xC0) != 0x80) return -1;
        c = c << 6 | (next & 0x3F);
    }
    static const int32_t least[] = {0, 0x80, 0x800, 0x10000};
    if (c < least[more] || c > LAST_CHAR || (c >= FIRST_SURROGATE && c <= LAST_SURROGATE)) return -1;
    *at = i + (size_t)more + 1;
    return c;
}
