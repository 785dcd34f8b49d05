/* Schemas merged into one that asks for all that each of them asks for: allOf, anyOf beside other
 * keywords, $ref beside other keywords. */
#include "serve/grammar_schema.h"

#include "base/json.h"

#include <stdlib.h>
#include <string.h>

/* Schemas within each other; and in all the members and values that are looked at. */
enum { MAX_DEPTH = 32, MAX_WORK = 1 << 20 };

static int out_of_memory(struct schema_reader *r) {
    return error_set(r->e, ERR_MEMORY, "no memory for the schema");
}

/* --- $ref ------------------------------------------------------------------------------------ */

static int hex_value(char c) {
    static const char digits[] = "0123456789abcdef";
    const char *found = c ? strchr(digits, c >= 'A' && c <= 'F' ? c + 32 : c) : NULL;
    return found ? (int)(found - digits) : -1;
}

/* One step of a pointer, ~ and % undone, into out [size]. */
static bool undo_step(const char *step, size_t n, char *out, size_t size) {
    size_t used = 0;
    for (size_t i = 0; i < n; i++) {
        char c = step[i];
        if (used + 1 >= size) return false;
        if (c == '%' && i + 2 < n && hex_value(step[i + 1]) >= 0 && hex_value(step[i + 2]) >= 0) {
            c = (char)(hex_value(step[i + 1]) << 4 | hex_value(step[i + 2]));
            i += 2;
        } else if (c == '~') {
            if (i + 1 == n || (step[i + 1] != '0' && step[i + 1] != '1')) return false;
            c = step[++i] == '0' ? '~' : '/';
        }
        if (c == '\0') return false;
        out[used++] = c;
    }
    out[used] = '\0';
    return true;
}

static const json_t *step_into(const json_t *at, const char *step) {
    if (json_is_object(at)) return json_object_get(at, step);
    size_t n = strspn(step, "0123456789");
    if (!json_is_array(at) || n == 0 || n > 6 || step[n]) return NULL;
    return json_array_get(at, (size_t)atoi(step));
}

int schema_target(struct schema_reader *r, const char *ref, const json_t **out) {
    const json_t *at = r->root;
    if (*ref != '#' || (ref[1] && ref[1] != '/'))
        return schema_error(r, "only references within the schema are supported (\"#/$defs/name\")");
    for (const char *step = ref + 1; *step && at;) {
        char name[512];
        size_t n = strcspn(++step, "/");
        at = undo_step(step, n, name, sizeof name) ? step_into(at, name) : NULL;
        step += n;
    }
    if (!at || !(json_is_object(at) || json_is_boolean(at)))
        return schema_error(r, "\"%.200s\" is not in the schema", ref);
    *out = at;
    return 0;
}

/* --- keywords -------------------------------------------------------------------------------- */

static bool is_among(const char *keyword, const char *const *list) {
    for (; *list; list++)
        if (strcmp(*list, keyword) == 0) return true;
    return false;
}

static int too_much(struct schema_reader *r) {
    return schema_error(r, "too many schemas are merged here (allOf, anyOf, $ref), or they are "
                           "merged without end");
}

/* Counts n more things that are looked at; false when that is too much for one request. */
static bool may_work(struct schema_reader *r, size_t n) {
    r->merge_work += n < MAX_WORK ? n + 1 : MAX_WORK;
    return r->merge_work < MAX_WORK;
}

/* Values that are in both; a type that is a word is a list of one. "number" takes integers too. */
static json_t *intersect(const json_t *a, const json_t *b, bool types) {
    json_t *both = json_array();
    for (size_t i = 0; i < (json_is_array(a) ? json_array_size(a) : 1) && both; i++) {
        json_t *x = json_is_array(a) ? json_array_get(a, i) : (json_t *)a;
        for (size_t k = 0; k < (json_is_array(b) ? json_array_size(b) : 1); k++) {
            json_t *y = json_is_array(b) ? json_array_get(b, k) : (json_t *)b;
            const char *v = json_string_value(x), *w = json_string_value(y);
            bool narrow = types && v && w && strcmp(v, "number") == 0 && strcmp(w, "integer") == 0;
            bool wide = types && v && w && strcmp(w, "number") == 0 && strcmp(v, "integer") == 0;
            if (json_equal(x, y) || narrow || wide) json_array_append(both, narrow ? y : x);
        }
    }
    return both;
}

/* The names of both, each once. */
static json_t *union_of(const json_t *a, const json_t *b) {
    json_t *all = json_array(), *seen = json_object();
    const json_t *lists[] = {a, b}, *name;
    size_t i;
    for (int k = 0; k < 2; k++)
        json_array_foreach((json_t *)lists[k], i, name) {
            const char *text = json_string_value(name);
            if (text && json_object_get(seen, text)) continue;
            if (text) json_object_set_new(seen, text, json_true());
            json_array_append(all, (json_t *)name);
        }
    json_decref(seen);
    return all;
}

static int merge_into(struct schema_reader *r, json_t *to, const json_t *from);

/* Both objects list properties; what one of them does not allow is out. */
static int merge_properties(struct schema_reader *r, json_t *to, const json_t *from) {
    const json_t *ours = json_object_get(to, "properties"), *theirs = json_object_get(from, "properties");
    bool closed_to = json_is_false(json_object_get(to, "additionalProperties"));
    bool closed_from = json_is_false(json_object_get(from, "additionalProperties"));
    json_t *all = json_object();
    const char *name;
    json_t *value;
    int err = all ? 0 : out_of_memory(r);
    if (!err && !may_work(r, json_object_size(ours) + json_object_size(theirs))) err = too_much(r);
    json_object_foreach((json_t *)ours, name, value) {
        const json_t *other = json_object_get(theirs, name);
        const json_t *both = value;
        if (!err && other) err = schema_merge(r, value, other, &both);
        if (!err && (other || !closed_from)) json_object_set(all, name, (json_t *)both);
    }
    json_object_foreach((json_t *)theirs, name, value) {
        if (!err && !json_object_get(ours, name) && !closed_to) json_object_set(all, name, value);
    }
    if (!err && (ours || theirs)) json_object_set(to, "properties", all);
    json_decref(all);
    return err;
}

static json_t *stricter(const char *keyword, json_t *a, json_t *b) {
    bool least = strncmp(keyword, "min", 3) == 0 || strcmp(keyword, "exclusiveMinimum") == 0;
    return (json_number_value(a) < json_number_value(b)) == least ? b : a;
}

static size_t size_of(const json_t *value) {
    return json_array_size(value) + json_object_size(value);
}

/* A keyword that both have. */
static int merge_keyword(struct schema_reader *r, json_t *to, const char *keyword, json_t *ours,
                         json_t *theirs) {
    static const char *const counts[] = {
        "minimum",  "maximum",  "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength",
        "minItems", "maxItems", "minProperties",    "maxProperties",    NULL};
    static const char *const schemas[] = {"items", "additionalProperties", NULL};
    static const char *const notes[] = {"title",    "description", "default",    "examples", "$comment",
                                        "readOnly", "writeOnly",   "deprecated", "$schema",  "$id",
                                        "$defs",    "definitions", NULL};
    const json_t *both;
    size_t n = size_of(ours), m = size_of(theirs);
    if (!may_work(r, strcmp(keyword, "enum") == 0 ? n * m : n + m)) return too_much(r);
    if (json_equal(ours, theirs) || is_among(keyword, notes)) return 0;
    if (strcmp(keyword, "type") == 0 || strcmp(keyword, "enum") == 0)
        return json_object_set_new(to, keyword, intersect(ours, theirs, *keyword == 't'))
                   ? out_of_memory(r)
                   : 0;
    if (strcmp(keyword, "required") == 0)
        return json_object_set_new(to, keyword, union_of(ours, theirs)) ? out_of_memory(r) : 0;
    if (is_among(keyword, counts)) {
        json_object_set(to, keyword, stricter(keyword, ours, theirs));
        return 0;
    }
    if (!is_among(keyword, schemas))
        return schema_error(r, "%.40s stands in several schemas that are merged here: this is not "
                               "supported",
                            keyword);
    int err = schema_merge(r, ours, theirs, &both);
    if (!err) json_object_set(to, keyword, (json_t *)both);
    return err;
}

static int merge_keywords(struct schema_reader *r, json_t *to, const json_t *from) {
    const char *keyword;
    json_t *theirs;
    int err = merge_properties(r, to, from);
    json_object_foreach((json_t *)from, keyword, theirs) {
        json_t *ours = json_object_get(to, keyword);
        if (err || strcmp(keyword, "properties") == 0) continue;
        if (!ours) json_object_set(to, keyword, theirs);
        else err = merge_keyword(r, to, keyword, ours, theirs);
    }
    return err;
}

/* from's $ref and allOf are followed, all into `to`: what they list comes before what is from's own. */
static int merge_into(struct schema_reader *r, json_t *to, const json_t *from) {
    const json_t *target, *part, *ref = json_object_get(from, "$ref"), *all = json_object_get(from, "allOf");
    size_t i;
    if (json_is_true(from)) return 0;
    if (!json_is_object(from)) return schema_error(r, "false cannot be merged with other schemas");
    if (++r->depth > MAX_DEPTH) return too_much(r);
    json_t *own = json_copy((json_t *)from);
    if (!own) return out_of_memory(r);
    json_object_del(own, "$ref");
    json_object_del(own, "allOf");
    int err = 0;
    if (ref) {
        const char *text = json_word(ref);
        err = text ? schema_target(r, text, &target) : schema_error(r, "$ref must be a text");
        if (!err) err = merge_into(r, to, target);
    }
    if (!err && all && !json_is_array(all)) err = schema_error(r, "allOf must be an array");
    json_array_foreach((json_t *)all, i, part) {
        if (!err) err = merge_into(r, to, part);
    }
    if (!err) err = merge_keywords(r, to, own);
    json_decref(own);
    r->depth--;
    return err;
}

int schema_merge(struct schema_reader *r, const json_t *a, const json_t *b, const json_t **out) {
    json_t *both = json_object();
    if (json_is_true(a) || json_is_true(b)) {
        json_decref(both);
        *out = json_is_true(a) ? b : a;
        return 0;
    }
    if (json_is_false(a) || json_is_false(b)) {
        json_decref(both);
        *out = json_false();
        return 0;
    }
    if (!both || json_array_append_new(r->made, both) != 0) return out_of_memory(r);
    int err = merge_into(r, both, a);
    if (!err) err = merge_into(r, both, b);
    *out = both;
    return err;
}
