/* text/jinja/functions.c: functions that every template has, and those of loop, dict and list. */
#include "text/jinja/render.h"

#define BUILTIN(name) \
    static struct value name(struct render *r, struct value self, const struct args *args)

BUILTIN(do_raise) {
    static const char *const names[] = {"message"};
    struct value message = value_nothing();
    (void)self;
    if (!args_bind(r, "raise_exception", args, names, 1, 1, &message)) return message;
    struct view text = string_view(r, value_str(r, message));
    return render_fail(r, "TemplateError", "%.*s", text.size < 400 ? (int)text.size : 400,
                       text.data);
}

BUILTIN(do_strftime_now) {
    static const char *const names[] = {"format"};
    struct value format = value_nothing();
    (void)self;
    if (!args_bind(r, "strftime_now", args, names, 1, 1, &format)) return format;
    if (format.kind != KIND_STRING)
        return render_fail(r, "TypeError", "strftime() argument 1 must be str, not %s",
                           value_type(format));
    struct view text = string_view(r, format.string);
    return value_string(text_time(r, text.data, text.size));
}

BUILTIN(do_range) {
    struct value parts[3] = {value_nothing(), value_nothing(), value_int(1)};
    static const char *const names[] = {"start", "stop", "step"};
    (void)self;
    if (!args_bind(r, "range", args, names, 3, 1, parts)) return value_nothing();
    if (args->n == 1) {
        parts[1] = parts[0];
        parts[0] = value_int(0);
    }
    for (int i = 0; i < 3; i++) {
        if (parts[i].kind == KIND_UNDEFINED) return render_undefined(r, parts[i]);
        if (!is_integer(parts[i]))
            return render_fail(r, "TypeError", "'%s' object cannot be interpreted as an integer",
                               value_type(parts[i]));
    }
    int64_t start = integer_of(parts[0]), stop = integer_of(parts[1]), step = integer_of(parts[2]);
    if (step == 0) return render_fail(r, "ValueError", "range() arg 3 must not be zero");
    struct series *out = series_new(r, SEQ_RANGE);
    out->start = start;
    out->stop = stop;
    out->step = step;
    for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
        if (out->n == MAX_RANGE)
            return render_fail(r, "OverflowError",
                               "Range too big. The sandbox blocks ranges larger than MAX_RANGE "
                               "(%d).",
                               MAX_RANGE);
        series_add(r, out, value_int(i));
        if (r->failed || __builtin_add_overflow(i, step, &i)) break;
    }
    return value_series(out);
}

/* A dict of what is given: a dict or pairs, then keywords. */
static struct dict *make_dict(struct render *r, const char *name, const struct args *args) {
    struct dict *d = dict_new(r);
    if (args->n_positional > 1)
        render_fail(r, "TypeError", "%s expected at most 1 argument, got %zu", name,
                    args->n_positional);
    else if (args->n_positional == 1 && args->at[0].value.kind == KIND_DICT) {
        const struct dict *from = args->at[0].value.dict;
        for (size_t i = 0; i < from->n && !r->failed; i++)
            dict_set(r, d, from->entries[i].key, from->entries[i].value);
    } else if (args->n_positional == 1) {
        struct walk walk = walk_start(r, args->at[0].value);
        struct value pair;
        while (walk_next(r, &walk, &pair)) {
            struct series *two = value_list(r, pair);
            if (!r->failed && two->n != 2)
                render_fail(r, "ValueError",
                            "dictionary update sequence element has length %zu; 2 is required",
                            two->n);
            if (!r->failed) dict_set(r, d, two->items[0], two->items[1]);
        }
    }
    for (size_t i = args->n_positional; i < args->n && !r->failed; i++) {
        const char *key = args->at[i].name;
        dict_set(r, d, value_string(string_borrow(r, key, strlen(key))), args->at[i].value);
    }
    return d;
}

BUILTIN(do_dict) {
    (void)self;
    return value_dict(make_dict(r, "dict", args));
}

BUILTIN(do_namespace) {
    (void)self;
    struct dict *given = make_dict(r, "namespace", args), *ns = dict_new(r);
    for (size_t i = 0; i < given->n && !r->failed; i++)
        namespace_set(r, ns, given->entries[i].key, given->entries[i].value);
    return (struct value){.kind = KIND_NAMESPACE, .dict = ns};
}

BUILTIN(do_joiner) {
    static const char *const names[] = {"sep"};
    struct value separator = value_string(string_borrow(r, ", ", 2));
    struct joiner *joiner = render_take(r, sizeof *joiner);
    (void)self;
    if (!args_bind(r, "joiner", args, names, 1, 0, &separator) || !joiner) return value_nothing();
    *joiner = (struct joiner){false, value_str(r, separator)};
    return (struct value){.kind = KIND_JOINER, .joiner = joiner};
}

static struct series *positional(struct render *r, const struct args *args) {
    struct series *items = series_new(r, SEQ_TUPLE);
    for (size_t i = 0; i < args->n_positional && !r->failed; i++)
        series_add(r, items, args->at[i].value);
    return items;
}

BUILTIN(do_cycler) {
    struct cycler *cycler = render_take(r, sizeof *cycler);
    (void)self;
    if (!cycler) return value_nothing();
    if (args->n_positional == 0)
        return render_fail(r, "RuntimeError", "at least one item has to be provided");
    *cycler = (struct cycler){0, positional(r, args)};
    return (struct value){.kind = KIND_CYCLER, .cycler = cycler};
}

const struct function global_functions[] = {
    {"raise_exception", do_raise},
    {"strftime_now", do_strftime_now},
    {"range", do_range},
    {"dict", do_dict},
    {"namespace", do_namespace},
    {"joiner", do_joiner},
    {"cycler", do_cycler},
    {NULL, NULL},
};

/* --- cycler, loop --------------------------------------------------------------------------- */

BUILTIN(cycler_next) {
    if (!args_bind(r, "next", args, NULL, 0, 0, NULL)) return value_nothing();
    struct cycler *c = self.cycler;
    struct value v = c->items->items[c->at];
    c->at = (c->at + 1) % c->items->n;
    return v;
}

BUILTIN(cycler_reset) {
    if (!args_bind(r, "reset", args, NULL, 0, 0, NULL)) return value_nothing();
    self.cycler->at = 0;
    return value_none();
}

const struct function cycler_methods[] = {
    {"next", cycler_next}, {"reset", cycler_reset}, {NULL, NULL}};

BUILTIN(loop_cycle) {
    if (args->n_positional == 0) return render_fail(r, "TypeError", "no items for cycling given");
    return args->at[(size_t)self.loop->index % args->n_positional].value;
}

BUILTIN(loop_changed) {
    struct value now = value_series(positional(r, args));
    bool changed = !value_equal(r, now, self.loop->changed);
    self.loop->changed = now;
    return value_bool(changed);
}

const struct function loop_methods[] = {
    {"cycle", loop_cycle}, {"changed", loop_changed}, {NULL, NULL}};

/* --- dict, list ----------------------------------------------------------------------------- */

struct value dict_view(struct render *r, const struct dict *d, enum series_kind kind) {
    struct series *out = series_new(r, kind);
    for (size_t i = 0; i < d->n && !r->failed; i++) {
        const struct dict_entry *e = &d->entries[i];
        series_add(r, out, kind == SEQ_KEYS     ? e->key
                             : kind == SEQ_VALUES ? e->value
                                                  : series_pair(r, e->key, e->value));
    }
    return value_series(out);
}

BUILTIN(dict_keys) {
    if (!args_bind(r, "keys", args, NULL, 0, 0, NULL)) return value_nothing();
    return dict_view(r, self.dict, SEQ_KEYS);
}

BUILTIN(dict_values) {
    if (!args_bind(r, "values", args, NULL, 0, 0, NULL)) return value_nothing();
    return dict_view(r, self.dict, SEQ_VALUES);
}

BUILTIN(dict_items) {
    if (!args_bind(r, "items", args, NULL, 0, 0, NULL)) return value_nothing();
    return dict_view(r, self.dict, SEQ_ITEMS);
}

BUILTIN(dict_get_method) {
    static const char *const names[] = {"key", "default"};
    struct value a[2] = {value_none(), value_none()};
    if (!args_bind(r, "get", args, names, 2, 1, a)) return value_nothing();
    struct value *v = dict_get(r, self.dict, a[0]);
    return v ? *v : a[1];
}

BUILTIN(dict_copy) {
    if (!args_bind(r, "copy", args, NULL, 0, 0, NULL)) return value_nothing();
    return self; /* nothing can change either */
}

const struct function dict_methods[] = {
    {"get", dict_get_method}, {"keys", dict_keys}, {"values", dict_values},
    {"items", dict_items},    {"copy", dict_copy}, {NULL, NULL},
};

BUILTIN(list_index) {
    static const char *const names[] = {"value"};
    struct value wanted = value_nothing();
    if (!args_bind(r, "index", args, names, 1, 1, &wanted)) return value_nothing();
    for (size_t i = 0; i < self.series->n && render_step(r, 1); i++)
        if (value_equal(r, self.series->items[i], wanted)) return value_int((int64_t)i);
    return render_fail(r, "ValueError", "the value is not in list");
}

BUILTIN(list_count) {
    static const char *const names[] = {"value"};
    struct value wanted = value_nothing();
    int64_t n = 0;
    if (!args_bind(r, "count", args, names, 1, 1, &wanted)) return value_nothing();
    for (size_t i = 0; i < self.series->n && render_step(r, 1); i++)
        n += value_equal(r, self.series->items[i], wanted);
    return value_int(n);
}

BUILTIN(list_copy) {
    if (!args_bind(r, "copy", args, NULL, 0, 0, NULL)) return value_nothing();
    return value_series(value_list(r, self));
}

const struct function list_methods[] = {
    {"index", list_index}, {"count", list_count}, {"copy", list_copy}, {NULL, NULL}};
