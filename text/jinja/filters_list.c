/* text/jinja/filters_list.c: filters over what can be walked. Those that Python makes lazily come out
 * as generators: walked once, without a length, always true. */
#include "text/jinja/strings.h"
#include "text/unicode.h"

#define FILTER(name) \
    static struct value name(struct render *r, struct value v, const struct args *args)

static bool no_arguments(struct render *r, const char *name, const struct args *args) {
    return args_bind(r, name, args, NULL, 0, 0, NULL);
}

/* The items of v, as a list of their own kind. */
static struct series *items_of(struct render *r, struct value v, enum series_kind kind) {
    struct series *s = value_list(r, v);
    s->kind = kind;
    return s;
}

FILTER(filter_length) {
    if (!no_arguments(r, "length", args)) return v;
    return value_int((int64_t)value_length(r, v));
}

FILTER(filter_list) {
    if (!no_arguments(r, "list", args)) return v;
    return value_series(items_of(r, v, SEQ_LIST));
}

FILTER(filter_first) {
    struct value item;
    if (!no_arguments(r, "first", args)) return v;
    struct walk walk = walk_start(r, v);
    if (walk_next(r, &walk, &item)) return item;
    return undefined_new(r, "No first item, sequence was empty.");
}

FILTER(filter_last) {
    if (!no_arguments(r, "last", args)) return v;
    if (is_series(v, SEQ_GENERATOR))
        return render_fail(r, "TypeError", "'generator' object is not reversible");
    struct series *items = items_of(r, v, SEQ_LIST);
    if (items->n) return items->items[items->n - 1];
    return undefined_new(r, "No last item, sequence was empty.");
}

FILTER(filter_reverse) {
    if (!no_arguments(r, "reverse", args)) return v;
    if (v.kind == KIND_STRING)
        return value_slice(r, v, value_none(), value_none(), value_int(-1));
    struct series *items = items_of(r, v, SEQ_LIST), *out = series_new(r, SEQ_GENERATOR);
    for (size_t i = items->n; i > 0 && !r->failed; i--) series_add(r, out, items->items[i - 1]);
    return value_series(out);
}

FILTER(filter_items) {
    if (!no_arguments(r, "items", args)) return v;
    if (v.kind == KIND_UNDEFINED) return value_series(series_new(r, SEQ_GENERATOR));
    if (v.kind != KIND_DICT)
        return render_fail(r, "TypeError", "Can only get item pairs from a mapping.");
    struct value pairs = dict_view(r, v.dict, SEQ_ITEMS);
    pairs.series->kind = SEQ_GENERATOR;
    return pairs;
}

/* --- by an attribute ------------------------------------------------------------------------ */

/* "a.0.b": the member of a member. */
static struct value get_path(struct render *r, struct value v, struct view path) {
    for (size_t at = 0; at <= path.size && !r->failed;) {
        const char *dot = memchr(path.data + at, '.', path.size - at);
        size_t end = dot ? (size_t)(dot - path.data) : path.size;
        int64_t number = 0;
        bool digits = end > at && end - at < 10;
        for (size_t i = at; i < end; i++) {
            digits = digits && path.data[i] >= '0' && path.data[i] <= '9';
            if (digits) number = number * 10 + (path.data[i] - '0');
        }
        v = value_item(r, v, digits ? value_int(number)
                                  : value_string(string_borrow(r, path.data + at, end - at)));
        at = end + 1;
    }
    return v;
}

static struct value get_by(struct render *r, struct value v, struct value attribute) {
    if (attribute.kind == KIND_NONE || attribute.kind == KIND_UNDEFINED) return v;
    if (attribute.kind != KIND_STRING) return value_item(r, v, attribute);
    return get_path(r, v, string_view(r, attribute.string));
}

/* Several attributes with commas between: a list of what each gives. */
static struct value get_by_each(struct render *r, struct value v, struct value attribute) {
    if (attribute.kind != KIND_STRING) return get_by(r, v, attribute);
    struct view path = string_view(r, attribute.string);
    if (!memchr(path.data, ',', path.size)) return get_path(r, v, path);
    struct series *all = series_new(r, SEQ_LIST);
    for (size_t at = 0; at <= path.size && !r->failed;) {
        const char *comma = memchr(path.data + at, ',', path.size - at);
        size_t end = comma ? (size_t)(comma - path.data) : path.size;
        series_add(r, all, get_path(r, v, (struct view){path.data + at, end - at}));
        at = end + 1;
    }
    return value_series(all);
}

/* What sorting and grouping operator_compare: strings without their case, unless it matters. */
static struct value fold(struct render *r, struct value v, bool cased) {
    return !cased && v.kind == KIND_STRING ? value_string(text_case(r, v.string, CASE_LOWER)) : v;
}

static struct value sort_key(struct render *r, struct value v, struct value attribute, bool cased) {
    struct value key = get_by_each(r, v, attribute);
    if (!is_series(key, SEQ_LIST) || cased) return fold(r, key, cased);
    struct series *folded = series_new(r, SEQ_LIST);
    for (size_t i = 0; i < key.series->n && !r->failed; i++)
        series_add(r, folded, fold(r, key.series->items[i], false));
    return value_series(folded);
}

/* --- sorting -------------------------------------------------------------------------------- */

struct sortable {
    struct value key, item;
};

/* Stable; `back` keeps equal ones in their order, too, as Python does. */
static void merge_sort(struct render *r, struct sortable *at, struct sortable *spare, size_t n,
                       bool back) {
    if (n < 2 || !render_step(r, n)) return;
    size_t half = n / 2, a = 0, b = half;
    merge_sort(r, at, spare, half, back);
    merge_sort(r, at + half, spare, n - half, back);
    for (size_t i = 0; i < n && !r->failed; i++) {
        bool second = a == half;
        if (a < half && b < n)
            second = back ? value_order(r, at[a].key, at[b].key, "<") < 0
                          : value_order(r, at[b].key, at[a].key, "<") < 0;
        spare[i] = second ? at[b++] : at[a++];
    }
    if (!r->failed) memcpy(at, spare, n * sizeof *at);
}

/* The items sorted by their keys; NULL after a failure. */
static struct sortable *sorted(struct render *r, struct series *items, struct value attribute,
                               bool cased, bool back) {
    struct sortable *at = render_take(r, (items->n + 1) * sizeof *at),
                    *spare = render_take(r, (items->n + 1) * sizeof *spare);
    if (!at || !spare) return NULL;
    for (size_t i = 0; i < items->n && !r->failed; i++)
        at[i] = (struct sortable){sort_key(r, items->items[i], attribute, cased), items->items[i]};
    merge_sort(r, at, spare, items->n, back);
    return r->failed ? NULL : at;
}

FILTER(filter_sort) {
    static const char *const names[] = {"reverse", "case_sensitive", "attribute"};
    struct value a[3] = {value_bool(false), value_bool(false), value_none()};
    if (!args_bind(r, "sort", args, names, 3, 0, a)) return v;
    struct series *items = items_of(r, v, SEQ_LIST), *out = series_new(r, SEQ_LIST);
    struct sortable *at = sorted(r, items, a[2], value_truth(r, a[1]), value_truth(r, a[0]));
    for (size_t i = 0; at && i < items->n; i++) series_add(r, out, at[i].item);
    return value_series(out);
}

FILTER(filter_dictsort) {
    static const char *const names[] = {"case_sensitive", "by", "reverse"};
    struct value a[3] = {value_bool(false), value_string(string_borrow(r, "key", 3)),
                         value_bool(false)};
    if (!args_bind(r, "dictsort", args, names, 3, 0, a)) return v;
    if (v.kind == KIND_UNDEFINED) return render_undefined(r, v);
    if (v.kind != KIND_DICT)
        return render_fail(r, "TypeError", "dictsort wants a dict, not %s", value_type(v));
    bool by_value = a[1].kind == KIND_STRING && value_equal(r, a[1], value_string(string_borrow(r, "value", 5)));
    struct series *pairs = dict_view(r, v.dict, SEQ_ITEMS).series;
    struct series *out = series_new(r, SEQ_LIST);
    struct sortable *at = sorted(r, pairs, value_int(by_value), value_truth(r, a[0]),
                                 value_truth(r, a[2]));
    for (size_t i = 0; at && i < pairs->n; i++) series_add(r, out, at[i].item);
    return value_series(out);
}

/* Tuples (grouper, list), in the order of the groupers. */
FILTER(filter_groupby) {
    static const char *const names[] = {"attribute", "default", "case_sensitive"};
    struct value a[3] = {value_nothing(), value_none(), value_bool(false)};
    if (!args_bind(r, "groupby", args, names, 3, 1, a)) return v;
    struct series *items = items_of(r, v, SEQ_LIST), *out = series_new(r, SEQ_LIST),
                    *group = NULL;
    bool cased = value_truth(r, a[2]);
    struct sortable *at = sorted(r, items, a[0], cased, false);
    for (size_t i = 0; at && i < items->n && !r->failed; i++) {
        if (i == 0 || !value_equal(r, at[i].key, at[i - 1].key)) {
            group = series_new(r, SEQ_LIST);
            struct value grouper = get_by(r, at[i].item, a[0]);
            if (grouper.kind == KIND_UNDEFINED) grouper = a[1];
            series_add(r, out, series_pair(r, grouper, value_series(group)));
        }
        series_add(r, group, at[i].item);
    }
    return value_series(out);
}

FILTER(filter_unique) {
    static const char *const names[] = {"case_sensitive", "attribute"};
    struct value a[2] = {value_bool(false), value_none()}, item;
    if (!args_bind(r, "unique", args, names, 2, 0, a)) return v;
    struct series *out = series_new(r, SEQ_GENERATOR);
    struct dict *seen = dict_new(r);
    bool cased = value_truth(r, a[0]);
    struct walk walk = walk_start(r, v);
    while (walk_next(r, &walk, &item)) {
        struct value key = fold(r, get_by(r, item, a[1]), cased);
        if (dict_get(r, seen, key) || r->failed) continue;
        dict_set(r, seen, key, value_none());
        series_add(r, out, item);
    }
    return value_series(out);
}

static struct value extreme(struct render *r, struct value v, const struct args *args, bool most) {
    static const char *const names[] = {"case_sensitive", "attribute"};
    struct value a[2] = {value_bool(false), value_none()}, item, best = value_nothing(), best_key;
    if (!args_bind(r, most ? "max" : "min", args, names, 2, 0, a)) return v;
    bool cased = value_truth(r, a[0]), any = false;
    struct walk walk = walk_start(r, v);
    while (walk_next(r, &walk, &item)) {
        struct value key = fold(r, get_by(r, item, a[1]), cased);
        int order = any ? value_order(r, key, best_key, most ? ">" : "<") : 0;
        if (any && (most ? order <= 0 : order >= 0)) continue;
        best = item;
        best_key = key;
        any = true;
    }
    return any ? best : undefined_new(r, "No aggregated item, sequence was empty.");
}
FILTER(filter_min) {
    return extreme(r, v, args, false);
}
FILTER(filter_max) {
    return extreme(r, v, args, true);
}

FILTER(filter_sum) {
    static const char *const names[] = {"attribute", "start"};
    struct value a[2] = {value_none(), value_int(0)}, item;
    if (!args_bind(r, "sum", args, names, 2, 0, a)) return v;
    struct value total = a[1];
    struct walk walk = walk_start(r, v);
    while (walk_next(r, &walk, &item)) total = operator_apply(r, OP_ADD, total, get_by(r, item, a[0]));
    return total;
}

FILTER(filter_join) {
    static const char *const names[] = {"d", "attribute"};
    struct value a[2] = {value_string(string_borrow(r, "", 0)), value_none()}, item;
    if (!args_bind(r, "join", args, names, 2, 0, a)) return v;
    struct series *items = series_new(r, SEQ_LIST);
    struct walk walk = walk_start(r, v);
    while (walk_next(r, &walk, &item)) series_add(r, items, get_by(r, item, a[1]));
    return value_string(text_join(r, value_str(r, a[0]), value_series(items)));
}

/* --- choosing ------------------------------------------------------------------------------- */

/* The name of a test or filter among the arguments, and those behind it. */
static bool named(struct render *r, const struct args *args, size_t at, struct view *name,
                  struct args *rest) {
    if (args->at[at].value.kind != KIND_STRING) {
        render_fail(r, "TypeError", "a name is wanted, not %s", value_type(args->at[at].value));
        return false;
    }
    *name = string_view(r, args->at[at].value.string);
    *rest = (struct args){args->at + at + 1, args->n - at - 1, args->n_positional - at - 1};
    return true;
}

/* first: how many arguments stand in front of the test's name (selectattr's attribute). */
static struct value choose(struct render *r, struct value v, const struct args *args, size_t first,
                           bool wanted) {
    struct series *out = series_new(r, SEQ_GENERATOR);
    struct view test = {NULL, 0};
    struct args rest = {0};
    struct value item;
    if (args->n_positional < first)
        return render_fail(r, "FilterArgumentError", "Missing parameter for attribute name");
    if (args->n_positional > first && !named(r, args, first, &test, &rest)) return value_nothing();
    struct walk walk = walk_start(r, v);
    while (walk_next(r, &walk, &item)) {
        struct value asked = first ? get_by(r, item, args->at[0].value) : item;
        if (test.data) asked = test_call(r, test.data, test.size, asked, &rest);
        if (value_truth(r, asked) == wanted) series_add(r, out, item);
    }
    return value_series(out);
}
FILTER(filter_select) {
    return choose(r, v, args, 0, true);
}
FILTER(filter_reject) {
    return choose(r, v, args, 0, false);
}
FILTER(filter_selectattr) {
    return choose(r, v, args, 1, true);
}
FILTER(filter_rejectattr) {
    return choose(r, v, args, 1, false);
}

static struct value map_attribute(struct render *r, struct value v, const struct args *args) {
    static const char *const names[] = {"attribute", "default"};
    struct value a[2] = {value_nothing(), value_nothing()}, item;
    struct series *out = series_new(r, SEQ_GENERATOR);
    if (!args_bind(r, "map", args, names, 2, 1, a)) return v;
    struct walk walk = walk_start(r, v);
    while (walk_next(r, &walk, &item)) {
        struct value got = get_by(r, item, a[0]);
        series_add(r, out, got.kind == KIND_UNDEFINED && args->n == 2 ? a[1] : got);
    }
    return value_series(out);
}

FILTER(filter_map) {
    struct view name = {NULL, 0};
    struct args rest = {0};
    struct value item;
    if (args->n_positional == 0 && args->n > 0) return map_attribute(r, v, args);
    if (args->n == 0)
        return render_fail(r, "FilterArgumentError", "map requires a filter argument");
    if (!named(r, args, 0, &name, &rest)) return value_nothing();
    const struct function *filter = builtin_filter(name.data, name.size);
    struct series *out = series_new(r, SEQ_GENERATOR);
    struct walk walk = walk_start(r, v);
    while (walk_next(r, &walk, &item)) {
        if (!filter)
            return render_fail(r, "TemplateRuntimeError", "No filter named '%.*s'.",
                               name.size < 60 ? (int)name.size : 60, name.data);
        series_add(r, out, filter->call(r, item, &rest));
    }
    return value_series(out);
}

/* --- in pieces ------------------------------------------------------------------------------ */

static bool piece_count(struct render *r, const char *filter, struct value n) {
    if (is_integer(n) && integer_of(n) > 0 && integer_of(n) <= MAX_RANGE) return true;
    render_fail(r, "ValueError", "%s wants a number of at least 1", filter);
    return false;
}

/* Lists of n; the last is filled up where there is something to fill with. */
FILTER(filter_batch) {
    static const char *const names[] = {"linecount", "fill_with"};
    struct value a[2] = {value_nothing(), value_none()}, item;
    if (!args_bind(r, "batch", args, names, 2, 1, a) || !piece_count(r, "batch", a[0])) return v;
    size_t n = (size_t)integer_of(a[0]);
    struct series *out = series_new(r, SEQ_GENERATOR), *batch = NULL;
    struct walk walk = walk_start(r, v);
    while (walk_next(r, &walk, &item)) {
        if (!batch || batch->n == n) {
            batch = series_new(r, SEQ_LIST);
            series_add(r, out, value_series(batch));
        }
        series_add(r, batch, item);
    }
    while (batch && a[1].kind != KIND_NONE && batch->n < n && !r->failed)
        series_add(r, batch, a[1]);
    return value_series(out);
}

/* n lists, the first ones longer by one where it does not come out even. */
FILTER(filter_slice) {
    static const char *const names[] = {"slices", "fill_with"};
    struct value a[2] = {value_nothing(), value_none()};
    if (!args_bind(r, "slice", args, names, 2, 1, a) || !piece_count(r, "slice", a[0])) return v;
    struct series *items = items_of(r, v, SEQ_LIST), *out = series_new(r, SEQ_GENERATOR);
    size_t n = (size_t)integer_of(a[0]), each = items->n / n, longer = items->n % n, at = 0;
    for (size_t i = 0; i < n && !r->failed; i++) {
        struct series *part = series_new(r, SEQ_LIST);
        size_t size = each + (i < longer);
        for (size_t k = 0; k < size && !r->failed; k++) series_add(r, part, items->items[at++]);
        if (a[1].kind != KIND_NONE && i >= longer) series_add(r, part, a[1]);
        series_add(r, out, value_series(part));
    }
    return value_series(out);
}

const struct function list_filters[] = {
    {"length", filter_length},
    {"count", filter_length},
    {"list", filter_list},
    {"first", filter_first},
    {"last", filter_last},
    {"reverse", filter_reverse},
    {"items", filter_items},
    {"sort", filter_sort},
    {"dictsort", filter_dictsort},
    {"groupby", filter_groupby},
    {"unique", filter_unique},
    {"min", filter_min},
    {"max", filter_max},
    {"sum", filter_sum},
    {"join", filter_join},
    {"select", filter_select},
    {"reject", filter_reject},
    {"selectattr", filter_selectattr},
    {"rejectattr", filter_rejectattr},
    {"map", filter_map},
    {"batch", filter_batch},
    {"slice", filter_slice},
    {NULL, NULL},
};
