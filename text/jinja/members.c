/* text/jinja/members.c: obj.name, obj[key] and obj[a:b], as Python and the sandbox have them: a
 * method wins over a key for the dot, a key wins over a method for brackets, and methods that would
 * change something are not given out. */
#include "text/jinja/render.h"

static bool is_one_of(const struct string *name, const char *const *names) {
    for (; *names; names++)
        if (string_is(name, *names)) return true;
    return false;
}

static bool is_unsafe(struct value object, const struct string *name) {
    static const char *const of_dicts[] = {"clear", "pop", "popitem", "setdefault", "update", NULL};
    static const char *const of_lists[] = {"append", "clear", "pop",    "reverse", "insert",
                                           "sort",   "extend", "remove", NULL};
    if (name->size > 4 && !memcmp(name->data, "__", 2) &&
        !memcmp(name->data + name->size - 2, "__", 2))
        return true;
    return object.kind == KIND_DICT ? is_one_of(name, of_dicts)
                                    : is_series(object, SEQ_LIST) && is_one_of(name, of_lists);
}

static const struct function *method_table(struct value object) {
    static const struct function none[] = {{NULL, NULL}};
    if (object.kind == KIND_STRING) return string_methods;
    if (object.kind == KIND_DICT) return dict_methods;
    if (object.kind == KIND_LOOP) return loop_methods;
    if (object.kind == KIND_CYCLER) return cycler_methods;
    bool list = object.kind == KIND_SERIES && object.series->kind <= SEQ_RANGE;
    return list ? list_methods : none;
}

/* Python's getattr. */
static bool find_attribute(struct render *r, struct value object, const struct string *name,
                           struct value *out) {
    bool found = false;
    if (object.kind == KIND_NAMESPACE) {
        struct value *v = dict_get(r, object.dict, value_string((struct string *)name));
        if (v) *out = *v;
        return v != NULL;
    }
    if (object.kind == KIND_LOOP) {
        *out = loop_attribute(r, object.loop, name, &found);
        if (found) return true;
    }
    if (object.kind == KIND_MACRO && string_is(name, "name")) {
        *out = value_string((struct string *)object.macro->node->name);
        return true;
    }
    const struct function *f = builtin_find(method_table(object), name->data, name->size);
    struct method *method = f ? render_take(r, sizeof *method) : NULL;
    if (!method) return false;
    *method = (struct method){object, f};
    *out = (struct value){.kind = KIND_METHOD, .method = method};
    return true;
}

static int64_t wrap_index(int64_t i, size_t n) {
    return i < 0 ? i + (int64_t)n : i;
}

/* Python's obj[key], where it has something. */
static bool find_item(struct render *r, struct value object, struct value key, struct value *out) {
    if (object.kind == KIND_DICT) {
        if (key.kind == KIND_DICT || is_series(key, SEQ_LIST)) return false; /* unhashable */
        struct value *v = dict_get(r, object.dict, key);
        if (v) *out = *v;
        return v != NULL;
    }
    if (!is_integer(key)) return false;
    if (object.kind == KIND_STRING) {
        int64_t i = wrap_index(integer_of(key), object.string->chars);
        if (i < 0 || (size_t)i >= object.string->chars) return false;
        *out = value_string(string_slice(r, object.string, (size_t)i, (size_t)i + 1));
        return true;
    }
    if (object.kind != KIND_SERIES || object.series->kind > SEQ_RANGE) return false;
    int64_t i = wrap_index(integer_of(key), object.series->n);
    if (i < 0 || (size_t)i >= object.series->n) return false;
    *out = object.series->items[i];
    return true;
}

struct value value_attribute(struct render *r, struct value object, struct value name) {
    struct value found = value_nothing();
    if (object.kind == KIND_UNDEFINED) return render_undefined(r, object);
    if (is_unsafe(object, name.string)) return undefined_member(r, object, name, true);
    if (find_attribute(r, object, name.string, &found) || find_item(r, object, name, &found))
        return found;
    return undefined_member(r, object, name, false);
}

struct value value_item(struct render *r, struct value object, struct value key) {
    struct value found = value_nothing();
    if (object.kind == KIND_UNDEFINED) return render_undefined(r, object);
    if (key.kind == KIND_STRING) string_view(r, key.string);
    if (find_item(r, object, key, &found)) return found;
    if (key.kind == KIND_STRING) {
        if (is_unsafe(object, key.string)) return undefined_member(r, object, key, true);
        if (find_attribute(r, object, key.string, &found)) return found;
    }
    return undefined_member(r, object, key, false);
}

/* --- slices --------------------------------------------------------------------------------- */

static int64_t slice_part(struct render *r, struct value v, int64_t absent) {
    if (v.kind == KIND_NONE) return absent;
    if (is_integer(v)) return integer_of(v);
    if (v.kind == KIND_UNDEFINED) render_undefined(r, v);
    else
        render_fail(r, "TypeError",
                    "slice indices must be integers or None or have an __index__ method");
    return absent;
}

/* A bound counted from the end when it is negative, and kept within low … high. */
static int64_t slice_bound(struct render *r, struct value v, int64_t absent, size_t n, int64_t low,
                           int64_t high) {
    if (v.kind == KIND_NONE) return absent;
    int64_t i = slice_part(r, v, absent);
    if (i < 0) i = i < -(int64_t)n ? low : i + (int64_t)n;
    return i < low ? low : i > high ? high : i;
}

static struct value slice_sequence(struct render *r, const struct series *s, int64_t at,
                                   int64_t end, int64_t step) {
    struct series *out = series_new(r, s->kind);
    int64_t from = at;
    for (; !r->failed && (step > 0 ? at < end : at > end); at += step) {
        series_add(r, out, s->items[at]);
        if (step > 0 ? step > end - at : step < end - at) break;
    }
    if (s->kind == SEQ_RANGE) {
        out->start = s->start + from * s->step;
        out->stop = s->start + end * s->step;
        out->step = s->step * step;
    }
    return value_series(out);
}

static struct value slice_string(struct render *r, struct string *s, int64_t at, int64_t end,
                                 int64_t step) {
    if (step == 1) return value_string(string_slice(r, s, (size_t)at, (size_t)(end < at ? at : end)));
    struct series *characters = value_list(r, value_string(s));
    struct buf text = {0};
    for (; !r->failed && (step > 0 ? at < end : at > end); at += step) {
        string_add(r, &text, characters->items[at].string);
        if (step > 0 ? step > end - at : step < end - at) break;
    }
    return value_string(string_take(r, &text));
}

struct value value_slice(struct render *r, struct value object, struct value start, struct value stop,
                       struct value step) {
    if (object.kind == KIND_UNDEFINED) return render_undefined(r, object);
    bool sliced = object.kind == KIND_STRING ||
                  (object.kind == KIND_SERIES && object.series->kind <= SEQ_RANGE);
    if (!sliced)
        return object.kind == KIND_DICT
                   ? render_fail(r, "TypeError", "unhashable type: 'slice'")
                   : render_fail(r, "TypeError", "'%s' object is not subscriptable",
                                 value_type(object));
    size_t n = value_length(r, object);
    int64_t by = slice_part(r, step, 1);
    if (by == 0) return render_fail(r, "ValueError", "slice step cannot be zero");
    int64_t low = by < 0 ? -1 : 0, high = by < 0 ? (int64_t)n - 1 : (int64_t)n;
    int64_t at = slice_bound(r, start, by < 0 ? high : low, n, low, high);
    int64_t end = slice_bound(r, stop, by < 0 ? low : high, n, low, high);
    if (r->failed) return value_nothing();
    return object.kind == KIND_STRING ? slice_string(r, object.string, at, end, by)
                                      : slice_sequence(r, object.series, at, end, by);
}

/* --- loop and namespace --------------------------------------------------------------------- */

static bool peek(struct render *r, struct loop *loop) {
    struct value item;
    if (loop->has_next) return true;
    if (!loop_next(r, loop, &item)) return false;
    loop->next = item;
    return loop->has_next = true;
}

/* How many times the loop runs in all. What an `if` leaves of it, or a generator, is taken ahead. */
static int64_t loop_length(struct render *r, struct loop *loop) {
    struct value of = loop->walk.of;
    if (!loop->node->c && value_has_length(of) && of.kind != KIND_LOOP)
        return (int64_t)value_length(r, of);
    struct series *rest = series_new(r, SEQ_LIST);
    struct value item;
    while (loop_next(r, loop, &item)) series_add(r, rest, item);
    loop->walk = walk_start(r, value_series(rest));
    loop->walked = true;
    return loop->length = loop->index + 1 + (int64_t)rest->n;
}

struct value loop_attribute(struct render *r, struct loop *loop, const struct string *name,
                            bool *found) {
    *found = true;
    if (string_is(name, "index")) return value_int(loop->index + 1);
    if (string_is(name, "index0")) return value_int(loop->index);
    if (string_is(name, "first")) return value_bool(loop->index == 0);
    if (string_is(name, "last")) return value_bool(!peek(r, loop));
    if (string_is(name, "depth")) return value_int(1);
    if (string_is(name, "depth0")) return value_int(0);
    if (string_is(name, "previtem"))
        return loop->index == 0 ? undefined_new(r, "there is no previous item") : loop->before;
    if (string_is(name, "nextitem"))
        return peek(r, loop) ? loop->next : undefined_new(r, "there is no next item");
    bool back = string_is(name, "revindex"), back0 = string_is(name, "revindex0");
    *found = back || back0 || string_is(name, "length");
    if (!*found) return value_nothing();
    int64_t length = loop->walked ? loop->length : loop_length(r, loop);
    return value_int(back ? length - loop->index : back0 ? length - loop->index - 1 : length);
}

void namespace_set(struct render *r, struct dict *ns, struct value name, struct value v) {
    if (name.kind == KIND_STRING && string_view(r, name.string).size && *name.string->data == '_')
        render_fail(r, "SecurityError",
                    "Chat templates cannot store underscore-prefixed attributes on a namespace, "
                    "but got '%.*s'. Please rename the attribute.",
                    name.string->size < 60 ? (int)name.string->size : 60, name.string->data);
    else dict_set(r, ns, name, v);
}
