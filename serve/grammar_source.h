/* serve/grammar_source.h: a grammar as a tree, which readers (GBNF, JSON schema, patterns) build and
 * the compiler takes. Private to serve/grammar*.
 *
 * Expressions are numbers; one may be a part of several others. When memory or a limit runs out the
 * source becomes full: everything made from then on is SOURCE_EMPTY, and grammar_compile says so.
 * Readers need not check. */
#ifndef TPD_SERVE_GRAMMAR_SOURCE_H
#define TPD_SERVE_GRAMMAR_SOURCE_H

#include "serve/grammar.h"

enum {
    SOURCE_EMPTY = 0, /* the expression that is the empty text */
    SOURCE_MAX_EXPRS = 100000,
    SOURCE_MAX_RULES = 4000,
    SOURCE_MAX_BYTES = 1 << 20
};
#define SOURCE_NO_END UINT32_MAX

enum expr_kind { EXPR_EMPTY, EXPR_CHARS, EXPR_LITERAL, EXPR_SEQ, EXPR_ALT, EXPR_REPEAT, EXPR_RULE };

struct expr {
    enum expr_kind kind;
    int32_t first, n;  /* CHARS: ranges; LITERAL: bytes; SEQ, ALT: children; else first alone */
    uint32_t min, max; /* REPEAT */
};

struct char_range { /* code points, both ends included */
    uint32_t lo, hi;
};

struct source_rule {
    char *name;       /* owned; what messages call it */
    int32_t body;     /* -1: not defined */
    int line, column; /* where it is first met, from 1; 0: not from a text */
};

struct grammar_source {
    struct expr *exprs;
    struct char_range *ranges;
    int32_t *children;
    char *bytes;
    struct source_rule *rules;
    size_t n_exprs, n_ranges, n_children, n_bytes, n_rules;
    size_t room_exprs, room_ranges, room_children, room_bytes, room_rules;
    bool full, no_memory;
};

/* A list of expressions or ranges being put together. */
struct expr_list {
    int32_t *at;
    size_t n, room;
};
struct range_list {
    struct char_range *at;
    size_t n, room;
};

void source_init(struct grammar_source *s);
void source_free(struct grammar_source *s);

void list_add(struct grammar_source *s, struct expr_list *list, int32_t expr);
void ranges_add(struct grammar_source *s, struct range_list *list, uint32_t lo, uint32_t hi);
/* Sorts and joins; negate: all other characters. */
void ranges_settle(struct grammar_source *s, struct range_list *list, bool negate);

/* These take their list over (it is empty afterwards). A list of one is that one; no alternative at
 * all is not allowed. Ranges must be settled and not empty. */
int32_t source_seq(struct grammar_source *s, struct expr_list *list);
int32_t source_alt(struct grammar_source *s, struct expr_list *list);
int32_t source_chars(struct grammar_source *s, struct range_list *list);

int32_t source_range(struct grammar_source *s, uint32_t lo, uint32_t hi);
int32_t source_literal(struct grammar_source *s, const char *bytes, size_t size);
int32_t source_text(struct grammar_source *s, const char *text); /* NUL-terminated */
int32_t source_pair(struct grammar_source *s, int32_t a, int32_t b);
int32_t source_either(struct grammar_source *s, int32_t a, int32_t b);
/* max may be SOURCE_NO_END. */
int32_t source_repeat(struct grammar_source *s, int32_t child, uint32_t min, uint32_t max);
int32_t source_optional(struct grammar_source *s, int32_t child);

/* A new rule without a body; its number, for source_rule_use. */
int32_t source_rule_new(struct grammar_source *s, const char *name, size_t size);
int32_t source_rule_use(struct grammar_source *s, int32_t rule);

/* grammar_pattern.c: a regular expression as the inside of a JSON string. Searched for, as JSON Schema
 * has it: what ^ and $ do not hold may have any text around it. ERR_PARAMS names the byte. */
int pattern_read(struct grammar_source *s, const char *pattern, int32_t any_char, int32_t *out,
                 struct error *e);
/* Characters inside a JSON string, from a settled list, which is taken over: as themselves, or escaped where they must be. */
int32_t source_json_chars(struct grammar_source *s, struct range_list *list);
/* Reads the character at *at; -1 where there is none whole. */
int32_t utf8_read(const char *text, size_t size, size_t *at);

/* grammar_compile.c. The source stays the caller's. */
int grammar_compile(struct grammar **out, const struct grammar_source *s, int32_t root,
                    struct error *e);

#endif
