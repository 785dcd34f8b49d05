/* The command line, read by tables of options. */
#include "tpctl.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_OPTIONS = 64 };

/* What is being read: an option's definition and where its value stands. */
struct reader {
    struct args *args;
    const struct option_def *own; /* NULL before the command is known */
    int argc;
    char **argv;
    int i;
};

bool args_init(struct args *args, int argc) {
    args->options = json_object();
    args->params = json_object();
    args->words = calloc((size_t)argc + 1, sizeof *args->words);
    args->n_words = 0;
    if (args->options && args->params && args->words) return true;
    complain("out of memory");
    return false;
}

void args_free(struct args *args) {
    json_decref(args->options);
    json_decref(args->params);
    free(args->words);
}

static const struct option_def *find(const struct option_def *table, const char *name, size_t size,
                                     char letter) {
    for (const struct option_def *o = table; o && o->name; o++)
        if (letter ? o->letter == letter : strlen(o->name) == size && !memcmp(o->name, name, size))
            return o;
    return NULL;
}

static const struct option_def *find_option(const struct reader *r, const char *name, size_t size,
                                            char letter) {
    const struct option_def *o = find(r->own, name, size, letter);
    return o ? o : find(global_options, name, size, letter);
}

static bool unknown_option(const struct reader *r, const char *text, size_t size) {
    const char *names[2 * MAX_OPTIONS + 1];
    int n = 0;
    for (const struct option_def *o = r->own; o && o->name; o++) names[n++] = o->name;
    for (const struct option_def *o = global_options; o->name; o++) names[n++] = o->name;
    names[n] = NULL;
    char word[64] = "";
    if (!strncmp(text, "--", 2)) {
        size = size < sizeof word + 2 ? size - 2 : sizeof word - 1;
        memcpy(word, text + 2, size);
        word[size] = '\0';
    }
    const char *near = *word ? suggest(word, names) : NULL;
    if (near) complain("unknown option '%s'; did you mean '--%s'?", text, near);
    else if (!r->own)
        complain("unknown option '%s' before the command; options of a command follow it", text);
    else complain("unknown option '%s'; a text that starts with '-' goes after '--'", text);
    return false;
}

static bool integer_read(const char *text, int64_t *value) {
    char *end;
    errno = 0;
    *value = strtoll(text, &end, 10);
    return !errno && end != text && !*end && !isspace((unsigned char)*text);
}

static bool number_read(const char *text, double *value) {
    char *end;
    *value = strtod(text, &end);
    return end != text && !*end && isfinite(*value) && !isspace((unsigned char)*text);
}

bool duration_read(const char *text, int64_t *ms) {
    static const struct {
        const char *unit;
        double ms;
    } units[] = {{"ms", 1}, {"s", 1e3}, {"m", 60e3}, {"h", 3600e3}, {"d", 86400e3}, {"", 1e3}};
    double sum = 0;
    if (!*text) return false;
    while (*text) {
        char *end;
        if (!isdigit((unsigned char)*text) && *text != '.') return false;
        double number = strtod(text, &end);
        if (end == text) return false;
        size_t size = strspn(end, "abcdefghijklmnopqrstuvwxyz");
        size_t u = 0;
        while (u < sizeof units / sizeof *units &&
               (strlen(units[u].unit) != size || strncmp(units[u].unit, end, size)))
            u++;
        if (u == sizeof units / sizeof *units) return false;
        sum += number * units[u].ms;
        text = end + size;
    }
    if (!(sum >= 1 && sum < 1e15)) return false;
    *ms = (int64_t)sum;
    return true;
}

/* The option's value as JSON, or NULL after a complaint. */
static json_t *value_read(const struct option_def *o, const char *text) {
    int64_t integer;
    double number;
    json_t *value = NULL;
    switch (o->kind) {
    case OPTION_FLAG: return json_true();
    case OPTION_INTEGER:
        if (integer_read(text, &integer)) return json_integer(integer);
        complain("--%s wants a whole number, not '%s'", o->name, text);
        return NULL;
    case OPTION_NUMBER:
        if (number_read(text, &number)) return json_real(number);
        complain("--%s wants a number, not '%s'", o->name, text);
        return NULL;
    case OPTION_DURATION:
        if (duration_read(text, &integer)) return json_integer(integer);
        complain("--%s wants a duration such as 30s, 5m or 1h30m, not '%s'", o->name, text);
        return NULL;
    case OPTION_TEXT:
    case OPTION_TEXTS: break;
    }
    text_to_json(o->name, text, strlen(text), &value);
    return value;
}

static bool store(const struct reader *r, const struct option_def *o, const char *text) {
    json_t *value = value_read(o, text);
    if (!value) return false;
    json_t *into = o->param ? r->args->params : r->args->options;
    const char *key = o->param ? o->param : o->name;
    if (o->kind != OPTION_TEXTS) return json_object_set_new(into, key, value) == 0;
    json_t *list = json_object_get(into, key);
    if (!list) json_object_set_new(into, key, list = json_array());
    return json_array_append_new(list, value) == 0;
}

/* Reads argv[i], an option, and its value; leaves i behind them. */
static bool read_option(struct reader *r) {
    const char *text = r->argv[r->i++], *value = NULL;
    bool is_long = text[1] == '-';
    size_t size = is_long ? strcspn(text, "=") : 2;
    const struct option_def *o =
        is_long ? find_option(r, text + 2, size - 2, 0) : find_option(r, NULL, 0, text[1]);
    if (!o) return unknown_option(r, text, size);
    if (text[size]) value = text + size + (text[size] == '=');
    if (o->kind == OPTION_FLAG && value) {
        complain("--%s takes no value, so '%s' makes no sense", o->name, text);
        return false;
    }
    if (o->kind != OPTION_FLAG && !value) {
        if (r->i >= r->argc) {
            complain("--%s wants a value: %s", o->name, o->value);
            return false;
        }
        value = r->argv[r->i++];
    }
    return store(r, o, value);
}

static bool is_option(const char *text) {
    return text[0] == '-' && text[1] != '\0';
}

bool args_read_leading(struct args *args, int argc, char **argv, int *i) {
    struct reader r = {.args = args, .argc = argc, .argv = argv, .i = *i};
    while (r.i < argc && is_option(argv[r.i]))
        if (!read_option(&r)) return false;
    *i = r.i;
    return true;
}

bool args_read_rest(struct args *args, const struct option_def *own, int argc, char **argv, int i) {
    static const struct option_def none[] = {{0}};
    struct reader r = {args, own ? own : none, argc, argv, i};
    bool only_words = false;
    while (r.i < argc) {
        if (!only_words && !strcmp(argv[r.i], "--")) {
            only_words = true;
            r.i++;
        } else if (!only_words && is_option(argv[r.i])) {
            if (!read_option(&r)) return false;
        } else {
            args->words[args->n_words++] = argv[r.i++];
        }
    }
    return true;
}

bool args_flag(const struct args *args, const char *name) {
    return json_is_true(json_object_get(args->options, name));
}

const char *args_text(const struct args *args, const char *name) {
    return json_string_value(json_object_get(args->options, name));
}

int64_t args_integer(const struct args *args, const char *name, int64_t absent) {
    const json_t *value = json_object_get(args->options, name);
    return value ? json_integer_value(value) : absent;
}
