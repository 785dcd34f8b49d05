/* Objects and arrays of a schema. */
#include "serve/grammar_schema.h"

#include <stdlib.h>
#include <string.h>

/* --- keys that are none of the listed ---------------------------------------------------------- */

/* Characters of a JSON string that stand for themselves. */
static int32_t plain_but(struct grammar_source *s, const uint32_t *others, size_t n) {
    struct range_list list = {0};
    ranges_add(s, &list, 0, 0x1F);
    ranges_add(s, &list, '"', '"');
    ranges_add(s, &list, '\\', '\\');
    for (size_t i = 0; i < n; i++) ranges_add(s, &list, others[i], others[i]);
    ranges_settle(s, &list, true);
    return source_chars(s, &list);
}

struct key {
    const char *text;
    size_t size;
};

static int by_text(const void *a, const void *b) {
    return strcmp(((const struct key *)a)->text, ((const struct key *)b)->text);
}

/* Texts without escapes, and the closing quote, that are none of keys [n], of which all begin with
 * the same `at` bytes that were written already. Sorted; depth bounds how long keys can be told apart. */
static int32_t none_of(struct grammar_source *s, const struct key *keys, size_t n, size_t at) {
    struct expr_list forms = {0};
    uint32_t *firsts = malloc((n + 1) * sizeof *firsts);
    size_t n_firsts = 0;
    bool is_key = n > 0 && keys[0].size == at;
    int32_t rest = source_repeat(s, plain_but(s, NULL, 0), 0, SOURCE_NO_END);
    int32_t end = source_pair(s, rest, source_text(s, "\""));
    if (!firsts) s->full = s->no_memory = true;
    for (size_t i = is_key, j; i < n && firsts && !s->full; i = j) {
        size_t next = at;
        int32_t c = utf8_read(keys[i].text, keys[i].size, &next);
        for (j = i + 1; j < n && memcmp(keys[j].text + at, keys[i].text + at, next - at) == 0; j++)
            ;
        if (c < 0x20 || c == '"' || c == '\\') continue; /* cannot be written without escapes */
        firsts[n_firsts++] = (uint32_t)c;
        int32_t first = source_literal(s, keys[i].text + at, next - at);
        list_add(s, &forms, source_pair(s, first, none_of(s, keys + i, j - i, next)));
    }
    if (firsts) list_add(s, &forms, source_pair(s, plain_but(s, firsts, n_firsts), end));
    if (!is_key) list_add(s, &forms, source_text(s, "\""));
    free(firsts);
    return source_alt(s, &forms);
}

enum { MAX_KEY = 256 };

static int other_keys(struct schema_reader *r, const json_t *properties, int32_t *out) {
    size_t n = 0;
    const char *name;
    json_t *value;
    struct key *keys = malloc((json_object_size(properties) + 1) * sizeof *keys);
    if (!keys) return error_set(r->e, ERR_MEMORY, "no memory for the schema");
    int err = 0;
    json_object_foreach((json_t *)properties, name, value) {
        keys[n++] = (struct key){name, strlen(name)};
        if (strlen(name) > MAX_KEY)
            err = schema_error(r, "names of properties over %d bytes are not supported beside "
                                  "additionalProperties",
                               MAX_KEY);
    }
    qsort(keys, n, sizeof *keys, by_text);
    if (!err) *out = source_pair(&r->s, source_text(&r->s, "\""), none_of(&r->s, keys, n, 0));
    free(keys);
    return err;
}

/* --- objects ----------------------------------------------------------------------------------- */

struct member {
    int32_t expr; /* "key": value */
    bool required;
};

struct object {
    struct member *members;
    size_t n;
    int32_t extra; /* another member; -1: there are none */
    uint32_t extra_min, extra_max;
};

/* needed: an object that has the names that are required. */
static int read_member(struct schema_reader *r, const char *name, const json_t *schema,
                       const json_t *needed, struct object *o) {
    int32_t value;
    struct member *m = &o->members[o->n];
    m->required = json_object_get(needed, name) != NULL;
    if (json_is_false(schema) && !m->required) return 0;
    size_t before = pointer_push(r, name);
    int err = schema_compile(r, schema, &value);
    pointer_pop(r, before);
    if (err) return err;
    m->expr = source_pair(&r->s, json_key(r, name, strlen(name)), value);
    o->n++;
    return 0;
}

static int read_members(struct schema_reader *r, const json_t *properties, const json_t *needed,
                        struct object *o) {
    const char *name;
    json_t *schema;
    int err = 0;
    size_t before = pointer_push(r, "properties");
    if (properties && !json_is_object(properties)) err = schema_error(r, "must be an object");
    json_object_foreach((json_t *)properties, name, schema) {
        if (!err) err = read_member(r, name, schema, needed, o);
    }
    pointer_pop(r, before);
    return err;
}

static int read_required(struct schema_reader *r, const json_t *properties, const json_t *required,
                         json_t *needed) {
    size_t i, before = pointer_push(r, "required");
    const json_t *name;
    int err = required && !json_is_array(required) ? schema_error(r, "must be an array") : 0;
    json_array_foreach((json_t *)required, i, name) {
        if (!err && !json_is_string(name)) err = schema_error(r, "must be an array of names");
        if (!err && json_object_set_new(needed, json_string_value(name), json_true()) != 0)
            err = error_set(r->e, ERR_MEMORY, "no memory for the schema");
        if (err || json_object_get(properties, json_string_value(name))) continue;
        err = schema_error(r, "\"%.80s\" is not among the properties", json_string_value(name));
    }
    pointer_pop(r, before);
    return err;
}

static int read_extra(struct schema_reader *r, const json_t *schema, const json_t *properties,
                      struct object *o) {
    const json_t *extra = json_object_get(schema, "additionalProperties");
    const json_t *any = json_true();
    int32_t value, keys = SOURCE_EMPTY;
    o->extra = -1;
    if (!extra && json_object_size(properties) == 0) extra = any;
    if (!extra || json_is_false(extra)) return 0;
    size_t before = pointer_push(r, "additionalProperties");
    int err = schema_compile(r, extra, &value);
    if (!err && json_object_size(properties) == 0) keys = json_any_string(r);
    else if (!err) err = other_keys(r, properties, &keys);
    pointer_pop(r, before);
    if (err) return err;
    int32_t colon = source_pair(&r->s, source_text(&r->s, ":"), json_space(r));
    o->extra = source_pair(&r->s, keys, source_pair(&r->s, colon, value));
    return 0;
}

/* How many others there may be, so that the object has from minProperties to maxProperties members. */
static int read_counts(struct schema_reader *r, const json_t *schema, struct object *o) {
    uint32_t min, max, required = 0;
    int err = schema_count(r, schema, "minProperties", 0, &min);
    if (!err) err = schema_count(r, schema, "maxProperties", SOURCE_NO_END, &max);
    if (err) return err;
    for (size_t i = 0; i < o->n; i++) required += o->members[i].required;
    o->extra_min = min > required ? min - required : 0;
    o->extra_max = max;
    if (max < required) return schema_error(r, "maxProperties is less than what is required");
    if (max != SOURCE_NO_END && max < o->n)
        return schema_error(r, "maxProperties that leave out listed properties are not supported");
    if (max != SOURCE_NO_END) o->extra_max = max - (uint32_t)o->n;
    if (o->extra_min > 1 || (o->extra_min == 1 && (o->extra < 0 || o->n > 0)))
        return schema_error(r, "minProperties is supported up to what is required, and as 1 where no "
                               "properties are listed");
    return 0;
}

/* , extra, … as often as is allowed, when `first` of them are there. */
static int32_t more_extra(struct schema_reader *r, const struct object *o, uint32_t first) {
    if (o->extra < 0 || o->extra_max <= first) return SOURCE_EMPTY;
    uint32_t most = o->extra_max == SOURCE_NO_END ? SOURCE_NO_END : o->extra_max - first;
    return source_repeat(&r->s, source_pair(&r->s, json_comma(r), o->extra), 0, most);
}

/* Members [from, n) and the others, each behind a comma. */
static int32_t members_after(struct schema_reader *r, const struct object *o, size_t from) {
    struct grammar_source *s = &r->s;
    struct expr_list list = {0};
    for (size_t i = from; i < o->n; i++) {
        int32_t one = source_pair(s, json_comma(r), o->members[i].expr);
        list_add(s, &list, o->members[i].required ? one : source_optional(s, one));
    }
    list_add(s, &list, more_extra(r, o, 0));
    return source_seq(s, &list);
}

/* With a required member: those before it are each followed by a comma. */
static int32_t members_around(struct schema_reader *r, const struct object *o, size_t required) {
    struct grammar_source *s = &r->s;
    struct expr_list list = {0};
    for (size_t i = 0; i < required; i++)
        list_add(s, &list, source_optional(s, source_pair(s, o->members[i].expr, json_comma(r))));
    list_add(s, &list, o->members[required].expr);
    list_add(s, &list, members_after(r, o, required + 1));
    return source_seq(s, &list);
}

/* Without one: any may be the first, or none is there. What follows the i-th is a rule, which the
 * (i-1)-th uses too. */
static int32_t members_free(struct schema_reader *r, const struct object *o) {
    struct grammar_source *s = &r->s;
    struct expr_list first = {0};
    int32_t rest = more_extra(r, o, 0);
    if (o->extra_min == 0) list_add(s, &first, SOURCE_EMPTY);
    if (o->extra >= 0 && o->extra_max > 0)
        list_add(s, &first, source_pair(s, o->extra, more_extra(r, o, 1)));
    for (size_t i = o->n; i-- > 0 && !s->full;) {
        int32_t rule = source_rule_new(s, r->pointer, r->pointer_size);
        if (rule < 0) break;
        s->rules[rule].body = rest;
        int32_t use = source_rule_use(s, rule), one = o->members[i].expr;
        list_add(s, &first, source_pair(s, one, use));
        rest = source_pair(s, source_optional(s, source_pair(s, json_comma(r), one)), use);
    }
    return source_alt(s, &first);
}

static int put_object(struct schema_reader *r, const struct object *o, int32_t *out) {
    size_t required = 0;
    while (required < o->n && !o->members[required].required) required++;
    int32_t inside = required < o->n ? members_around(r, o, required) : members_free(r, o);
    *out = json_enclosed(r, "{", inside, "}");
    return 0;
}

int schema_object(struct schema_reader *r, const json_t *schema, int32_t *out) {
    const json_t *properties = json_object_get(schema, "properties");
    const json_t *required = json_object_get(schema, "required");
    struct object o = {.members = calloc(json_object_size(properties) + 1, sizeof *o.members)};
    json_t *needed = json_object();
    int err = o.members && needed ? 0 : error_set(r->e, ERR_MEMORY, "no memory for the schema");
    if (!err) err = read_required(r, properties, required, needed);
    if (!err) err = read_members(r, properties, needed, &o);
    if (!err) err = read_extra(r, schema, properties, &o);
    if (!err) err = read_counts(r, schema, &o);
    if (!err) err = put_object(r, &o, out);
    free(o.members);
    json_decref(needed);
    return err;
}

/* --- arrays ------------------------------------------------------------------------------------ */

static int read_prefix(struct schema_reader *r, const json_t *prefix, uint32_t max,
                       struct expr_list *list) {
    size_t i, before = pointer_push(r, "prefixItems");
    const json_t *schema;
    int32_t item;
    int err = prefix && !json_is_array(prefix) ? schema_error(r, "must be an array") : 0;
    json_array_foreach((json_t *)prefix, i, schema) {
        if (err || i >= max) break;
        size_t at = pointer_push_index(r, i);
        err = schema_compile(r, schema, &item);
        pointer_pop(r, at);
        if (err) break;
        if (i) list_add(&r->s, list, json_comma(r));
        list_add(&r->s, list, item);
    }
    pointer_pop(r, before);
    return err;
}

/* min … max items behind `before` others. */
static int32_t items_of(struct schema_reader *r, int32_t item, bool before, uint32_t min,
                        uint32_t max) {
    struct grammar_source *s = &r->s;
    int32_t one = source_pair(s, json_comma(r), item);
    if (before) return source_repeat(s, one, min, max);
    if (max == 0) return SOURCE_EMPTY;
    uint32_t more = max == SOURCE_NO_END ? max : max - 1;
    int32_t some = source_pair(s, item, source_repeat(s, one, min ? min - 1 : 0, more));
    return min ? some : source_optional(s, some);
}

int schema_array(struct schema_reader *r, const json_t *schema, int32_t *out) {
    const json_t *prefix = json_object_get(schema, "prefixItems");
    const json_t *items = json_object_get(schema, "items");
    struct expr_list list = {0};
    uint32_t min, max, n = (uint32_t)json_array_size(prefix);
    int32_t item = SOURCE_EMPTY;
    int err = schema_count(r, schema, "minItems", 0, &min);
    if (!err) err = schema_count(r, schema, "maxItems", SOURCE_NO_END, &max);
    if (!err && max < min) err = schema_error(r, "maxItems is less than minItems");
    if (!err && json_is_true(json_object_get(schema, "uniqueItems")))
        err = schema_error(r, "uniqueItems is not supported");
    if (err) return err;
    err = read_prefix(r, prefix, max, &list);
    /* Items behind a prefix only where they are spoken of. */
    bool none = json_is_false(items) || (prefix && !items && min <= n) || max <= n;
    if (!err && !none) {
        size_t before = pointer_push(r, "items");
        err = schema_compile(r, items ? items : json_true(), &item);
        pointer_pop(r, before);
        uint32_t most = max == SOURCE_NO_END ? max : max - n;
        if (!err) list_add(&r->s, &list, items_of(r, item, n > 0, min > n ? min - n : 0, most));
    }
    int32_t inside = source_seq(&r->s, &list);
    if (!err && none && min > n) err = schema_error(r, "minItems is more than there are items");
    if (!err) *out = json_enclosed(r, "[", inside, "]");
    return err;
}
