/* text/jinja/value.c: sequences, dicts, comparing, walking. */
#include "text/jinja/render.h"

#include <math.h>

enum { INDEX_FROM = 9 }; /* dicts below are searched from the front */

/* --- sequences ------------------------------------------------------------------------------ */

struct series *series_new(struct render *r, enum series_kind kind) {
    struct series *s = render_take(r, sizeof *s);
    if (!s) return &r->no_series;
    *s = (struct series){.kind = kind};
    return s;
}

void series_add(struct render *r, struct series *s, struct value v) {
    if (r->failed || !render_step(r, 1)) return;
    if (s->n == s->capacity) {
        size_t want = s->capacity ? s->capacity * 2 : 4;
        struct value *items = render_take(r, want * sizeof *items);
        if (!items) return;
        if (s->n) memcpy(items, s->items, s->n * sizeof *items);
        s->items = items;
        s->capacity = want;
    }
    s->items[s->n++] = v;
}

struct value series_pair(struct render *r, struct value a, struct value b) {
    struct series *s = series_new(r, SEQ_TUPLE);
    series_add(r, s, a);
    series_add(r, s, b);
    return value_series(s);
}

/* --- dicts ---------------------------------------------------------------------------------- */

static uint32_t hash_bytes32(const void *data, size_t size) {
    const unsigned char *at = data;
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < size; i++) h = (h ^ at[i]) * 16777619u;
    return h;
}

/* Equal values have equal hashes: 1, 1.0 and true are one key. */
static uint32_t hash_value(struct render *r, struct value v) {
    double d;
    struct view text;
    uint32_t h = 1;
    switch (v.kind) {
    case KIND_BOOL:
    case KIND_INT:
    case KIND_FLOAT:
        d = number_of(v);
        if (d == 0) d = 0; /* -0.0 */
        return hash_bytes32(&d, sizeof d);
    case KIND_STRING: text = string_view(r, v.string); return hash_bytes32(text.data, text.size);
    case KIND_SERIES:
        if (v.series->kind != SEQ_TUPLE) break;
        for (size_t i = 0; i < v.series->n && !r->failed; i++)
            h = h * 31 + hash_value(r, v.series->items[i]);
        return h;
    case KIND_UNDEFINED:
    case KIND_NONE: return v.kind;
    case KIND_DICT:
    case KIND_NAMESPACE:
    case KIND_LOOP:
    case KIND_MACRO:
    case KIND_FUNCTION:
    case KIND_METHOD:
    case KIND_CYCLER:
    case KIND_JOINER: break;
    }
    render_fail(r, "TypeError", "unhashable type: '%s'", value_type(v));
    return 0;
}

struct dict *dict_new(struct render *r) {
    struct dict *d = render_take(r, sizeof *d);
    if (!d) return &r->no_dict;
    *d = (struct dict){0};
    return d;
}

static bool is_key(struct render *r, const struct dict_entry *entry, uint32_t hash,
                   struct value key) {
    return entry->hash == hash && value_equal(r, entry->key, key);
}

static struct dict_entry *dict_entry_find(struct render *r, const struct dict *d, uint32_t hash,
                                          struct value key) {
    if (!d->index) {
        for (size_t i = 0; i < d->n; i++)
            if (is_key(r, &d->entries[i], hash, key)) return &d->entries[i];
        return NULL;
    }
    size_t at = hash & (d->index_size - 1);
    for (; d->index[at]; at = (at + 1) & (d->index_size - 1)) {
        if (!render_step(r, 1)) return NULL; /* keys that all fall together */
        if (is_key(r, &d->entries[d->index[at] - 1], hash, key)) return &d->entries[d->index[at] - 1];
    }
    return NULL;
}

static void index_put(struct dict *d, size_t i) {
    size_t at = d->entries[i].hash & (d->index_size - 1);
    while (d->index[at]) at = (at + 1) & (d->index_size - 1);
    d->index[at] = (uint32_t)i + 1;
}

static bool dict_grow(struct render *r, struct dict *d) {
    if (d->n == d->capacity) {
        size_t want = d->capacity ? d->capacity * 2 : 4;
        struct dict_entry *entries = render_take(r, want * sizeof *entries);
        if (!entries) return false;
        if (d->n) memcpy(entries, d->entries, d->n * sizeof *entries);
        d->entries = entries;
        d->capacity = want;
    }
    if (d->n + 1 < INDEX_FROM || (d->n + 1) * 2 <= d->index_size) return true;
    size_t size = d->index_size ? d->index_size * 2 : 4 * (size_t)INDEX_FROM - 4;
    uint32_t *index = render_take(r, size * sizeof *index);
    if (!index) return false;
    memset(index, 0, size * sizeof *index);
    d->index = index;
    d->index_size = size;
    for (size_t i = 0; i < d->n; i++) index_put(d, i);
    return true;
}

void dict_set(struct render *r, struct dict *d, struct value key, struct value v) {
    uint32_t hash = hash_value(r, key);
    if (r->failed || !render_step(r, 1)) return;
    struct dict_entry *entry = dict_entry_find(r, d, hash, key);
    if (entry) {
        entry->value = v;
        return;
    }
    if (r->failed || !dict_grow(r, d)) return;
    d->entries[d->n++] = (struct dict_entry){key, v, hash};
    if (d->index) index_put(d, d->n - 1);
}

struct value *dict_get(struct render *r, const struct dict *d, struct value key) {
    uint32_t hash = hash_value(r, key);
    struct dict_entry *entry = r->failed ? NULL : dict_entry_find(r, d, hash, key);
    return entry ? &entry->value : NULL;
}

/* --- from JSON ------------------------------------------------------------------------------ */

struct value value_from_json(struct render *r, const json_t *json) {
    size_t i;
    json_t *item;
    const char *key;
    struct series *list;
    struct dict *dict;
    switch (json ? json_typeof(json) : JSON_NULL) {
    case JSON_TRUE: return value_bool(true);
    case JSON_FALSE: return value_bool(false);
    case JSON_INTEGER: return value_int(json_integer_value(json));
    case JSON_REAL: return value_real(json_real_value(json));
    case JSON_STRING:
        return value_string(string_borrow(r, json_string_value(json), json_string_length(json)));
    case JSON_ARRAY:
        list = series_new(r, SEQ_LIST);
        json_array_foreach((json_t *)json, i, item) series_add(r, list, value_from_json(r, item));
        return value_series(list);
    case JSON_OBJECT:
        dict = dict_new(r);
        json_object_foreach((json_t *)json, key, item)
            dict_set(r, dict, value_string(string_borrow(r, key, strlen(key))),
                     value_from_json(r, item));
        return value_dict(dict);
    case JSON_NULL: break;
    }
    return value_none();
}

/* --- what a value is ------------------------------------------------------------------------ */

const char *value_type(struct value v) {
    static const char *const sequences[] = {
        [SEQ_LIST] = "list",          [SEQ_TUPLE] = "tuple",       [SEQ_RANGE] = "range",
        [SEQ_KEYS] = "dict_keys",     [SEQ_VALUES] = "dict_values", [SEQ_ITEMS] = "dict_items",
        [SEQ_GENERATOR] = "generator"};
    switch (v.kind) {
    case KIND_UNDEFINED: return "Undefined";
    case KIND_NONE: return "NoneType";
    case KIND_BOOL: return "bool";
    case KIND_INT: return "int";
    case KIND_FLOAT: return "float";
    case KIND_STRING: return "str";
    case KIND_SERIES: return sequences[v.series->kind];
    case KIND_DICT: return "dict";
    case KIND_NAMESPACE: return "Namespace";
    case KIND_LOOP: return "LoopContext";
    case KIND_MACRO: return "Macro";
    case KIND_FUNCTION: return "function";
    case KIND_METHOD: return "builtin_function_or_method";
    case KIND_CYCLER: return "Cycler";
    case KIND_JOINER: return "Joiner";
    }
    return "object";
}

bool value_has_length(struct value v) {
    return v.kind == KIND_STRING || v.kind == KIND_DICT || v.kind == KIND_UNDEFINED ||
           v.kind == KIND_LOOP || (v.kind == KIND_SERIES && v.series->kind != SEQ_GENERATOR);
}

size_t value_length(struct render *r, struct value v) {
    if (v.kind == KIND_STRING) return v.string->chars;
    if (v.kind == KIND_DICT) return v.dict->n;
    if (v.kind == KIND_UNDEFINED) return 0;
    if (v.kind == KIND_LOOP) {
        bool found;
        struct value n = loop_attribute(r, v.loop, string_borrow(r, "length", 6), &found);
        return n.kind == KIND_INT ? (size_t)n.integer : 0;
    }
    if (value_has_length(v)) return v.series->n;
    render_fail(r, "TypeError", "object of type '%s' has no len()", value_type(v));
    return 0;
}

bool value_truth(struct render *r, struct value v) {
    if (v.kind == KIND_UNDEFINED || v.kind == KIND_NONE) return false;
    if (is_number(v)) return number_of(v) != 0;
    return !value_has_length(v) || value_length(r, v) > 0;
}

/* --- comparing ------------------------------------------------------------------------------ */

static int order_numbers(struct value a, struct value b) {
    if (is_integer(a) && is_integer(b)) {
        int64_t x = integer_of(a), y = integer_of(b);
        return (x > y) - (x < y);
    }
    double x = number_of(a), y = number_of(b);
    return (x > y) - (x < y);
}

static int order_strings(struct render *r, struct string *a, struct string *b) {
    struct view x = string_view(r, a), y = string_view(r, b);
    size_t n = x.size < y.size ? x.size : y.size;
    int c = n && render_step(r, n / 64) ? memcmp(x.data, y.data, n) : 0;
    return c ? c : (x.size > y.size) - (x.size < y.size);
}

static bool equal_sequences(struct render *r, const struct series *a, const struct series *b) {
    if (a == b) return true;
    if (a->kind != b->kind || a->kind == SEQ_GENERATOR || a->n != b->n) return false;
    for (size_t i = 0; i < a->n && !r->failed; i++)
        if (!value_equal(r, a->items[i], b->items[i])) return false;
    return true;
}

static bool equal_dicts(struct render *r, const struct dict *a, const struct dict *b) {
    if (a == b) return true;
    if (a->n != b->n) return false;
    for (size_t i = 0; i < a->n && !r->failed; i++) {
        struct dict_entry *other = dict_entry_find(r, b, a->entries[i].hash, a->entries[i].key);
        if (!other || !value_equal(r, a->entries[i].value, other->value)) return false;
    }
    return true;
}

/* Values nest as deeply as JSON_MAX_DEPTH and what a template's own loops put around; so the depth
 * is counted here as it is for nodes. */
bool value_equal(struct render *r, struct value a, struct value b) {
    if (is_number(a) && is_number(b))
        return number_of(a) == number_of(b) && order_numbers(a, b) == 0;
    if (a.kind != b.kind || !render_step(r, 1)) return false;
    bool equal = false;
    switch (a.kind) {
    case KIND_UNDEFINED:
    case KIND_NONE: return true;
    case KIND_STRING: return a.string->size == b.string->size && !order_strings(r, a.string, b.string);
    case KIND_SERIES:
    case KIND_DICT:
        if (!render_enter(r)) return false;
        equal = a.kind == KIND_DICT ? equal_dicts(r, a.dict, b.dict)
                                    : equal_sequences(r, a.series, b.series);
        render_leave(r);
        return equal;
    case KIND_NAMESPACE: return a.dict == b.dict;
    case KIND_LOOP: return a.loop == b.loop;
    case KIND_MACRO: return a.macro == b.macro;
    case KIND_FUNCTION: return a.function == b.function;
    case KIND_CYCLER: return a.cycler == b.cycler;
    case KIND_JOINER: return a.joiner == b.joiner;
    case KIND_METHOD:
        return a.method->function == b.method->function &&
               value_equal(r, a.method->self, b.method->self);
    case KIND_BOOL:
    case KIND_INT:
    case KIND_FLOAT: break; /* numbers, above */
    }
    return false;
}

static int order_sequences(struct render *r, const struct series *a, const struct series *b,
                           const char *op) {
    size_t n = a->n < b->n ? a->n : b->n;
    for (size_t i = 0; i < n && !r->failed; i++)
        if (!value_equal(r, a->items[i], b->items[i]))
            return value_order(r, a->items[i], b->items[i], op);
    return (a->n > b->n) - (a->n < b->n);
}

int value_order(struct render *r, struct value a, struct value b, const char *op) {
    if (is_number(a) && is_number(b)) return order_numbers(a, b);
    if (a.kind == KIND_STRING && b.kind == KIND_STRING) return order_strings(r, a.string, b.string);
    if (a.kind == KIND_SERIES && b.kind == KIND_SERIES && a.series->kind == b.series->kind &&
        a.series->kind <= SEQ_TUPLE && render_enter(r)) {
        int order = order_sequences(r, a.series, b.series, op);
        render_leave(r);
        return order;
    }
    if (a.kind == KIND_UNDEFINED) render_undefined(r, a);
    else if (b.kind == KIND_UNDEFINED) render_undefined(r, b);
    else
        render_fail(r, "TypeError", "'%s' not supported between instances of '%s' and '%s'", op,
                    value_type(a), value_type(b));
    return 0;
}

bool value_contains(struct render *r, struct value container, struct value item) {
    if (container.kind == KIND_STRING) {
        if (item.kind != KIND_STRING) {
            render_fail(r, "TypeError", "'in <string>' requires string as left operand, not %s",
                        value_type(item));
            return false;
        }
        struct view text = string_view(r, container.string), part = string_view(r, item.string);
        return part.size == 0 || (render_step(r, text.size / 16) &&
                                  memmem(text.data, text.size, part.data, part.size));
    }
    if (container.kind == KIND_DICT) return dict_get(r, container.dict, item) != NULL;
    if (!value_can_walk(container)) {
        render_fail(r, "TypeError", "argument of type '%s' is not iterable", value_type(container));
        return false;
    }
    struct walk walk = walk_start(r, container);
    struct value each;
    while (walk_next(r, &walk, &each))
        if (value_equal(r, each, item)) return true;
    return false;
}

/* --- walking -------------------------------------------------------------------------------- */

bool value_can_walk(struct value v) {
    return v.kind == KIND_STRING || v.kind == KIND_DICT || v.kind == KIND_UNDEFINED ||
           v.kind == KIND_SERIES;
}

struct walk walk_start(struct render *r, struct value v) {
    if (!value_can_walk(v))
        render_fail(r, "TypeError", "'%s' object is not iterable", value_type(v));
    else if (v.kind == KIND_STRING) string_view(r, v.string);
    return (struct walk){.of = v};
}

bool walk_next(struct render *r, struct walk *w, struct value *item) {
    struct value of = w->of;
    if (r->failed || !render_step(r, 1)) return false;
    if (of.kind == KIND_SERIES) {
        struct series *s = of.series;
        size_t *at = s->kind == SEQ_GENERATOR ? &s->at : &w->at;
        if (*at >= s->n) return false;
        *item = s->items[(*at)++];
        return true;
    }
    if (of.kind == KIND_DICT) {
        if (w->at >= of.dict->n) return false;
        *item = of.dict->entries[w->at++].key;
        return true;
    }
    if (of.kind != KIND_STRING || w->at >= of.string->size) return false;
    size_t from = w->at++;
    const char *data = of.string->data;
    while (w->at < of.string->size && ((unsigned char)data[w->at] & 0xC0) == 0x80) w->at++;
    *item = value_string(string_borrow(r, data + from, w->at - from));
    return true;
}

struct series *value_list(struct render *r, struct value v) {
    struct series *list = series_new(r, SEQ_LIST);
    struct walk walk = walk_start(r, v);
    struct value item;
    while (walk_next(r, &walk, &item)) series_add(r, list, item);
    return list;
}
