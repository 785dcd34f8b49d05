/* text/jinja/value.h: what expressions are worth, with the behaviour of Python's types.
 *
 * Values are small and copied freely; what they point to lies in the arena of the rendering (or, for
 * literals, of the template) and is never changed once an expression has it, but for namespaces and
 * the position of an iterator. So a template can not make a cycle. */
#ifndef TPD_TEXT_JINJA_VALUE_H
#define TPD_TEXT_JINJA_VALUE_H

#include "base/json.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct render;
struct buf;
struct args;

/* UTF-8 text; indices in the language count characters. A sum of long strings is not copied until
 * somebody reads its bytes: `data` is NULL then, and the text is left's and right's. */
struct string {
    size_t size, chars;
    const char *data;
    struct string *left;
    const struct string *right; /* whole: it has data */
};

enum kind {
    KIND_UNDEFINED,
    KIND_NONE,
    KIND_BOOL,
    KIND_INT,
    KIND_FLOAT,
    KIND_STRING,
    KIND_SERIES,
    KIND_DICT,
    KIND_NAMESPACE,
    KIND_LOOP,
    KIND_MACRO,
    KIND_FUNCTION,
    KIND_METHOD,
    KIND_CYCLER,
    KIND_JOINER
};

struct value {
    enum kind kind;
    union {
        bool boolean;
        int64_t integer;
        double real;
        struct string *string;
        struct series *series;
        struct dict *dict; /* of a namespace, too */
        const struct undefined *undefined;
        struct loop *loop;
        const struct macro *macro;
        const struct function *function;
        const struct method *method;
        struct cycler *cycler;
        struct joiner *joiner;
    };
};

/* Everything that Python can walk and that is not a string or a dict. */
enum series_kind { SEQ_LIST, SEQ_TUPLE, SEQ_RANGE, SEQ_KEYS, SEQ_VALUES, SEQ_ITEMS, SEQ_GENERATOR };
struct series {
    enum series_kind kind;
    size_t n, capacity;
    struct value *items;
    size_t at;                  /* of a generator: how many were taken */
    int64_t start, stop, step; /* of a range */
};

struct dict_entry {
    struct value key, value;
    uint32_t hash;
};
struct dict {
    size_t n, capacity;
    struct dict_entry *entries; /* in the order of insertion */
    uint32_t *index;            /* open addressing, 1 + the entry's number; NULL while n is small */
    size_t index_size;
};

/* Why a value is not there: for the message that comes when it is used. */
struct undefined {
    const char *hint; /* NULL: made from the others */
    bool has_object, unsafe;
    struct value object, name;
};

struct joiner {
    bool called;
    struct string *text;
};
struct cycler {
    size_t at;
    struct series *items;
};

/* A callable of ours. self: the object of a method, the piped value of a filter, what a test is
 * asked about; undefined for a plain function. */
typedef struct value builtin_fn(struct render *r, struct value self, const struct args *args);
struct function {
    const char *name;
    builtin_fn *call;
};
struct method {
    struct value self;
    const struct function *function;
};

static inline struct value value_none(void) {
    return (struct value){.kind = KIND_NONE};
}
static inline struct value value_bool(bool b) {
    return (struct value){.kind = KIND_BOOL, .boolean = b};
}
static inline struct value value_int(int64_t i) {
    return (struct value){.kind = KIND_INT, .integer = i};
}
static inline struct value value_real(double d) {
    return (struct value){.kind = KIND_FLOAT, .real = d};
}
static inline struct value value_string(struct string *s) {
    return (struct value){.kind = KIND_STRING, .string = s};
}
static inline struct value value_series(struct series *s) {
    return (struct value){.kind = KIND_SERIES, .series = s};
}
static inline struct value value_dict(struct dict *d) {
    return (struct value){.kind = KIND_DICT, .dict = d};
}
static inline bool is_series(struct value v, enum series_kind kind) {
    return v.kind == KIND_SERIES && v.series->kind == kind;
}
/* A bool is an int, as in Python. */
static inline bool is_integer(struct value v) {
    return v.kind == KIND_INT || v.kind == KIND_BOOL;
}
static inline bool is_number(struct value v) {
    return is_integer(v) || v.kind == KIND_FLOAT;
}
static inline int64_t integer_of(struct value v) {
    return v.kind == KIND_BOOL ? v.boolean : v.integer;
}
static inline double number_of(struct value v) {
    return v.kind == KIND_FLOAT ? v.real : (double)integer_of(v);
}

/* The functions below remember a failure (no memory, a limit, an exception) in the rendering and
 * give something harmless back; nothing they return is NULL. */

/* Copies. */
struct string *string_new(struct render *r, const char *data, size_t size);
/* data lives as long as the rendering and is valid UTF-8. */
struct string *string_borrow(struct render *r, const char *data, size_t size);
/* Takes what is in the buffer and frees it. */
struct string *string_take(struct render *r, struct buf *buf);
struct string *string_join(struct render *r, struct string *a, struct string *b);
/* The bytes, made whole when they were not; not NUL-terminated. After a failure s is empty: ask for
 * its size afterwards, not before. */
struct view {
    const char *data;
    size_t size;
};
struct view string_view(struct render *r, struct string *s);
/* Where character i begins; i ≤ chars. */
size_t string_offset(struct render *r, struct string *s, size_t i);
/* Characters from … to-1. */
struct string *string_slice(struct render *r, struct string *s, size_t from, size_t to);
bool string_is(const struct string *s, const char *text); /* s: whole */
void string_add(struct render *r, struct buf *to, const struct string *s);

struct series *series_new(struct render *r, enum series_kind kind);
void series_add(struct render *r, struct series *s, struct value v);
struct value series_pair(struct render *r, struct value a, struct value b); /* a tuple */

struct dict *dict_new(struct render *r);
/* An exception when the key is a list or a dict. */
void dict_set(struct render *r, struct dict *d, struct value key, struct value v);
/* NULL: not there. */
struct value *dict_get(struct render *r, const struct dict *d, struct value key);
struct value *dict_find(const struct dict *d, const char *key, size_t size);

struct value value_from_json(struct render *r, const json_t *json);

/* What messages call the type: "str", "list", "NoneType". */
const char *value_type(struct value v);
bool value_truth(struct render *r, struct value v);
bool value_equal(struct render *r, struct value a, struct value b);
/* <0, 0, >0; an exception "'op' not supported between…" for what has no order. */
int value_order(struct render *r, struct value a, struct value b, const char *op);
/* len(); an exception for what has none. */
size_t value_length(struct render *r, struct value v);
bool value_has_length(struct value v);
bool value_contains(struct render *r, struct value container, struct value item);

/* Walks what Python's iter() walks: characters of strings, keys of dicts. */
struct walk {
    struct value of;
    size_t at;
};
/* An exception when it can not be walked. */
struct walk walk_start(struct render *r, struct value v);
bool walk_next(struct render *r, struct walk *w, struct value *item);
bool value_can_walk(struct value v);
struct series *value_list(struct render *r, struct value v);

/* text: str() and repr(); append to a buffer. */
void value_add_str(struct render *r, struct buf *to, struct value v);
void value_add_repr(struct render *r, struct buf *to, struct value v);
void real_add(struct buf *to, double d);
struct string *value_str(struct render *r, struct value v);

struct json_style {
    bool ascii, sort_keys;
    const char *indent; /* one level, NUL-terminated; NULL: all on one line */
    const char *item_separator, *key_separator;
};
/* As Python's json.dumps. */
void value_add_json(struct render *r, struct buf *to, struct value v, const struct json_style *style);

#endif
