#include "daemon/offline_plan.h"

#include "base/json.h"
#include "base/words.h"
#include "daemon/methods.h"
#include "daemon/offline.h"
#include "daemon/plan_report.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- flags -------------------------------------------------------------------------------------- */

enum flag_kind {
    FLAG_OWN,    /* of this command, no value: --json, --plain, --check, --help */
    FLAG_INT,
    FLAG_BYTES,  /* 80GiB, 80GB, 80G (as GiB) */
    FLAG_RATE,   /* 3.35T, 400G: powers of 1000 */
    FLAG_TEXT,
    FLAG_SWITCH, /* --grad-checkpointing, --grad-checkpointing=auto */
    FLAG_SET     /* key=value of the job */
};

struct flag {
    const char *name; /* with _ for -, as the parameter that it sets */
    enum flag_kind kind;
    const char *value, *help;
};

static const struct flag flags[] = {
    {"tp", FLAG_INT, "N", "ranks (default 1)"},
    {"ctx", FLAG_INT, "N", "positions of a sequence (default: as many as the model was made for)"},
    {"batch", FLAG_INT, "B", "sequences at once: slots that serve, bins of a training step (default 1)"},
    {"kv_type", FLAG_TEXT, "T", "auto, f32, f16, bf16 or q8"},
    {"dtype", FLAG_TEXT, "T", "what the weights would be: bf16, q8_0, q4_k … (default: as they are)"},
    {"quant", FLAG_TEXT, "Q", "served with --quant q8 or q4"},
    {"draft", FLAG_TEXT, "PATH", "a draft model beside it: a path as of the model"},
    {"draft_tp", FLAG_INT, "N", "ranks of the draft model (default 1)"},
    {"train", FLAG_TEXT, "METHOD", "also train, beside serving: lora or full"},
    {"grad_checkpointing", FLAG_SWITCH, NULL, "compute layers again in backward; =auto: as few as fit"},
    {"set", FLAG_SET, "KEY=VALUE", "any key of a job: lora.r=8, seq_len=2048, batch_size=4"},
    {"device", FLAG_TEXT, "D", "what ranks are on: cpu (default) or cuda, each on a GPU"},
    {"memory", FLAG_BYTES, "BYTES", "of each device, such as 80GiB (default: this machine's, divided)"},
    {"bandwidth", FLAG_RATE, "B/S", "bytes a second that a device moves, such as 3.35T"},
    {"flops", FLAG_RATE, "N/S", "operations a second that it does, such as 990T"},
    {"check", FLAG_OWN, NULL, "exit 1 when it does not fit"},
    {"json", FLAG_OWN, NULL, "print the plan as JSON, on one line"},
    {"plain", FLAG_OWN, NULL, "print tab-separated values"},
    {"help", FLAG_OWN, NULL, "print this help"},
};
enum { N_FLAGS = sizeof flags / sizeof *flags };

struct request {
    json_t *params;
    bool own[N_FLAGS]; /* FLAG_OWN, by place in flags */
};

static bool asks(const struct request *r, const char *name) {
    for (int i = 0; i < N_FLAGS; i++)
        if (strcmp(flags[i].name, name) == 0) return r->own[i];
    return false;
}

static void dashed(const char *name, char *out, size_t size) {
    snprintf(out, size, "%s", name);
    for (char *c = out; *c; c++)
        if (*c == '_') *c = '-';
}

static void print_help(void) {
    printf("usage: tpd plan PATH [flags]\n\n"
           "Tells what each rank holds and does when PATH (a model directory, a .gguf file or a\n"
           "config.json) is served, and trained, at a split. Weights are not read.\n\nflags:\n");
    for (int i = 0; i < N_FLAGS; i++) {
        char name[32], left[64];
        dashed(flags[i].name, name, sizeof name);
        snprintf(left, sizeof left, "--%s%s%s", name, flags[i].value ? " " : "",
                 flags[i].value ? flags[i].value : "");
        printf("  %-24s %s\n", left, flags[i].help);
    }
}

/* "80GiB": the number times what its unit stands for; bytes: a lone K, M, G, T is of 1024. */
static bool scaled(const char *text, bool bytes, double *out) {
    static const char units[] = "KMGT";
    char *end;
    *out = strtod(text, &end);
    if (end == text || !(*out > 0) || isspace((unsigned char)*text)) return false;
    const char *unit = *end ? strchr(units, toupper((unsigned char)*end)) : NULL;
    if (!unit) return *end == '\0' || (bytes && strcmp(end, "B") == 0);
    const char *rest = end + 1;
    bool binary = strcmp(rest, "iB") == 0 || (bytes && *rest == '\0');
    if (!binary && *rest != '\0' && strcmp(rest, "B") != 0) return false;
    for (const char *u = units; u <= unit; u++) *out *= binary ? 1024 : 1000;
    return true;
}

/* "lora.r=8" into params.job; the value is JSON where it can be, else a text. */
static int set_job(json_t *params, const char *setting, struct error *e) {
    const char *equals = strchr(setting, '='), *key = setting;
    char name[64];
    if (!equals || equals == setting || equals - setting >= (int)sizeof name)
        return error_set(e, ERR_USAGE, "--set wants KEY=VALUE, such as lora.r=8, not \"%s\"", setting);
    json_t *value = json_loads(equals + 1, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL);
    if (!value) value = json_string(equals + 1);
    json_t *holder = json_object_get(params, "job");
    if (!holder) json_object_set_new(params, "job", holder = json_object());
    for (const char *dot; (dot = memchr(key, '.', (size_t)(equals - key))); key = dot + 1) {
        snprintf(name, sizeof name, "%.*s", (int)(dot - key), key);
        json_t *inner = json_object_get(holder, name);
        if (!json_is_object(inner)) json_object_set_new(holder, name, inner = json_object());
        holder = inner;
    }
    snprintf(name, sizeof name, "%.*s", (int)(equals - key), key);
    if (value && json_object_set_new(holder, name, value) == 0) return 0;
    return error_set(e, ERR_USAGE, "--set: \"%s\" is not UTF-8", setting);
}

static int wrong_value(const char *flag, const char *wanted, const char *got, struct error *e) {
    return error_set(e, ERR_USAGE, "%s wants %s, not \"%s\"", flag, wanted, got);
}

static int take_value(struct request *r, const struct flag *f, const char *arg, const char *value,
                      struct error *e) {
    char *end;
    double number;
    json_t *json = NULL;
    errno = 0;
    switch (f->kind) {
    case FLAG_OWN: r->own[f - flags] = true; return 0;
    case FLAG_SET: return set_job(r->params, value, e);
    case FLAG_INT:
        json = json_integer(strtoll(value, &end, 10));
        if (end != value && *end == '\0' && errno == 0) break;
        json_decref(json);
        return wrong_value(arg, "a whole number", value, e);
    case FLAG_BYTES:
        if (!scaled(value, true, &number) || number > 9e15)
            return wrong_value(arg, "bytes, such as 80GiB", value, e);
        json = json_integer((json_int_t)number);
        break;
    case FLAG_RATE:
        if (!scaled(value, false, &number))
            return wrong_value(arg, "a number, such as 3.35T", value, e);
        json = json_real(number);
        break;
    case FLAG_SWITCH:
        if (!value || strcmp(value, "true") == 0) json = json_true();
        else if (strcmp(value, "false") == 0) json = json_false();
        else json = json_string(value);
        break;
    case FLAG_TEXT: json = json_string(value); break;
    }
    return json && json_object_set_new(r->params, f->name, json) == 0
               ? 0
               : error_set(e, ERR_USAGE, "%s: the value is not UTF-8", arg);
}

static const struct flag *find_flag(const char *arg, struct error *e) {
    struct suggestion near;
    char hint[96], name[32];
    size_t n = strcspn(arg + 2, "=");
    suggest_start(&near, arg + 2);
    for (int i = 0; i < N_FLAGS; i++) {
        dashed(flags[i].name, name, sizeof name);
        if (strlen(name) == n && memcmp(name, arg + 2, n) == 0) return &flags[i];
        suggest_offer(&near, flags[i].name);
    }
    error_set(e, ERR_USAGE, "unknown flag \"%s\"%s: see tpd plan --help", arg,
              suggest_text(&near, hint, sizeof hint));
    return NULL;
}

static int read_args(struct request *r, int argc, char **argv, struct error *e) {
    for (int i = 0; i < argc; i++) {
        const char *arg = argv[i];
        int err = 0;
        if (strncmp(arg, "--", 2) != 0) {
            if (json_object_get(r->params, "path"))
                return error_set(e, ERR_USAGE, "one PATH is planned for, not \"%s\" too", arg);
            if (json_object_set_new(r->params, "path", json_string(arg)))
                return error_set(e, ERR_USAGE, "PATH is not UTF-8");
            continue;
        }
        const struct flag *f = find_flag(arg, e);
        if (!f) return -(int)ERR_USAGE;
        const char *equals = strchr(arg, '='), *value = equals ? equals + 1 : NULL;
        bool wants = f->kind != FLAG_OWN && f->kind != FLAG_SWITCH;
        if (wants && !value && ++i == argc) err = error_set(e, ERR_USAGE, "%s needs a value", arg);
        else if (wants && !value) value = argv[i];
        if (f->kind == FLAG_OWN && value) err = error_set(e, ERR_USAGE, "%s takes no value", arg);
        if (!err) err = take_value(r, f, arg, value, e);
        if (err) return err;
    }
    if (json_object_get(r->params, "path") || asks(r, "help")) return 0;
    return error_set(e, ERR_USAGE, "no PATH: tpd plan PATH (see tpd plan --help)");
}

/* --- telling ------------------------------------------------------------------------------------- */

static const char *bytes_text(double bytes, char buf[32]) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    int u = 0;
    for (; bytes >= 1024 && u < 5; u++) bytes /= 1024;
    snprintf(buf, 32, u ? "%.2f %s" : "%.0f %s", bytes, units[u]);
    return buf;
}

static const char *count_text(double n, char buf[32]) {
    static const char *const units[] = {"", " k", " M", " G", " T", " P", " E"};
    int u = 0;
    for (; n >= 1000 && u < 6; u++) n /= 1000;
    snprintf(buf, 32, u ? "%.1f%s" : "%.0f%s", n, units[u]);
    return buf;
}

static double number(const json_t *object, const char *key) {
    return json_number_value(json_object_get(object, key));
}

static const char *word(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "?";
}

static void print_title(const json_t *report) {
    char a[32];
    const json_t *train = json_object_get(report, "train"), *draft = json_object_get(report, "draft");
    printf("%s: %s, %s%s, %s of weights\n", word(report, "path"), word(report, "architecture"),
           word(report, "dtype"),
           json_is_true(json_object_get(report, "dtype_assumed")) ? " (assumed)" : "",
           bytes_text(number(report, "bytes"), a));
    printf("tp %.0f, context %.0f, batch %.0f, KV cache %s\n", number(report, "tp"),
           number(report, "ctx"), number(report, "batch"), word(report, "kv_type"));
    if (json_is_object(draft))
        printf("draft model: %s, %s, %s of weights on %.0f of the ranks, counted in all below\n",
               word(draft, "path"), word(draft, "dtype"), bytes_text(number(draft, "bytes"), a),
               number(draft, "tp"));
    if (!json_is_object(train)) return;
    printf("training: %s", word(train, "method"));
    if (number(train, "r") > 0) printf(" of rank %.0f", number(train, "r"));
    printf(", %.0f micro-batches of %.0f rows, %.0f of %.0f layers computed again\n",
           number(train, "micro_batches"), number(train, "micro_batch_rows"),
           number(train, "checkpointed_layers"), number(train, "layers"));
}

static bool is_used(const json_t *ranks, const char *key) {
    size_t i;
    json_t *rank;
    json_array_foreach((json_t *)ranks, i, rank) {
        if (number(rank, key) > 0) return true;
    }
    return false;
}

/* A row a rank; kinds that nobody uses have no column. */
static void print_ranks(json_t *ranks) {
    enum { WIDTH = 13 };
    char text[32];
    size_t i;
    json_t *rank, *value;
    const char *key;
    printf("\nrank");
    json_object_foreach(json_array_get(ranks, 0), key, value) {
        if (strcmp(key, "rank") && is_used(ranks, key)) printf("%*s", WIDTH, key);
    }
    printf("\n");
    json_array_foreach(ranks, i, rank) {
        printf("%4zu", i);
        json_object_foreach(rank, key, value) {
            if (strcmp(key, "rank") && is_used(ranks, key))
                printf("%*s", WIDTH, bytes_text(json_number_value(value), text));
        }
        printf("\n");
    }
}

static void print_verdict(const json_t *report) {
    char a[32], b[32], c[32];
    double needed = number(report, "needed_bytes"), memory = number(report, "memory");
    printf("host memory beside: %s, for all ranks\n", bytes_text(number(report, "host_bytes"), a));
    bytes_text(needed, a);
    bytes_text(memory, b);
    if (needed <= memory)
        printf("fits: %s a rank of %s, %s left\n", a, b, bytes_text(memory - needed, c));
    else
        printf("does not fit: %s a rank, %s there, %s too much\n", a, b,
               bytes_text(needed - memory, c));
}

static void print_steps(const json_t *report) {
    char a[32], b[32], c[32];
    size_t i;
    json_t *step;
    printf("\n%-8s%7s%13s%12s%13s%9s%13s%11s\n", "step", "rows", "moves", "computes", "from ranks",
           "bound", "at best", "tokens/s");
    json_array_foreach(json_object_get(report, "steps"), i, step) {
        printf("%-8s%7.0f%13s%12s%13s", word(step, "step"), number(step, "rows"),
               bytes_text(number(step, "bytes"), a), count_text(number(step, "flops"), b),
               bytes_text(number(step, "received_bytes"), c));
        if (json_is_number(json_object_get(step, "expected_ms")))
            printf("%9s%10.3f ms%11.1f", word(step, "bound"), number(step, "expected_ms"),
                   number(step, "tokens_per_s"));
        printf("\n");
    }
    if (json_is_number(json_object_get(report, "bandwidth")))
        printf("a rank moves %sB and does %sFLOP a second\n", count_text(number(report, "bandwidth"), a),
               count_text(number(report, "flops_per_s"), b));
}

/* "ranks.0.weights TAB 123", a row for each value. */
static void print_plain(const char *path, json_t *value) {
    char inner[192];
    const char *key;
    json_t *member;
    size_t i;
    if (json_is_object(value)) {
        json_object_foreach(value, key, member) {
            snprintf(inner, sizeof inner, "%s%s%s", path, *path ? "." : "", key);
            print_plain(inner, member);
        }
    } else if (json_is_array(value)) {
        json_array_foreach(value, i, member) {
            snprintf(inner, sizeof inner, "%s.%zu", path, i);
            print_plain(inner, member);
        }
    } else if (json_is_string(value)) printf("%s\t%s\n", path, json_string_value(value));
    else if (json_is_number(value)) printf("%s\t%.15g\n", path, json_number_value(value));
    else printf("%s\t%s\n", path, json_is_null(value) ? "" : json_is_true(value) ? "true" : "false");
}

static void print(const struct request *r, json_t *report) {
    if (asks(r, "json")) {
        json_dumpf(report, stdout, JSON_COMPACT);
        putchar('\n');
    } else if (asks(r, "plain")) {
        print_plain("", report);
    } else {
        print_title(report);
        print_ranks(json_object_get(report, "ranks"));
        print_verdict(report);
        print_steps(report);
    }
}

/* --------------------------------------------------------------------------------------------------- */

static int measured(void *arg, struct speed *out, struct error *e) {
    (void)arg;
    return speed_measure(out, e);
}

static int run(struct request *r, int argc, char **argv, json_t **report, struct error *e) {
    struct core_set cores;
    core_set_allowed(&cores);
    const struct plan_context context = {.tp = 1, .draft_tp = 1, .cores = cores.n, .speed = measured};
    int err = r->params ? read_args(r, argc, argv, e) : error_set(e, ERR_MEMORY, "out of memory");
    if (err || asks(r, "help")) return err;
    err = schema_check(plan_params, r->params, e);
    if (err) e->kind = ERR_USAGE;
    return err ? err : plan_report(report, r->params, &context, e);
}

int offline_plan(int argc, char **argv) {
    struct request r = {.params = json_object()};
    struct error e = {0};
    json_t *report = NULL;
    int exit_code = 0;
    if (run(&r, argc, argv, &report, &e) != 0) {
        exit_code = offline_fail(&e);
        if (e.kind == ERR_PARAMS) exit_code = EXIT_USAGE;
    } else if (!report) {
        print_help();
    } else {
        print(&r, report);
        if (asks(&r, "check") && json_is_false(json_object_get(report, "fits"))) exit_code = 1;
    }
    json_decref(report);
    json_decref(r.params);
    return offline_end(exit_code);
}
