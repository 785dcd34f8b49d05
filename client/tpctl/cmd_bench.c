/* tpctl bench: how fast the model reads prompts and makes tokens, alone and for many at once. */
#include "bench_daemon.h"
#include "tpctl.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

const struct option_def bench_options[] = {
    {"prompt", 'p', OPTION_TEXT, "LIST", NULL, "tokens of prompts that are read (512); 0 = none"},
    {"gen", 'n', OPTION_TEXT, "LIST", NULL, "tokens that are made (128); 0 = none"},
    {"batch", 'b', OPTION_TEXT, "LIST", NULL, "requests at once (1)"},
    {"repeat", 'r', OPTION_INTEGER, "N", NULL, "measure each N times (5)"},
    {"model", 'm', OPTION_TEXT, "PATH", NULL,
     "start a tpd of its own on PATH; words are flags for it: -- --tp 2"},
    {0},
};

enum { LIST_MAX = 16, BATCH_MAX = 256, REPEAT_MAX = 1000, START_TOKENS = 4 };

struct list {
    int n, value[LIST_MAX];
};

/* One line of the table: prompts of `prompt` tokens, then `gen` tokens, `batch` of them at once. */
struct test {
    int prompt, gen, batch;
};

struct bench {
    struct tool *tool;
    struct list prompts, gens, batches;
    int repeat, vocab;
    json_t *results; /* of what was measured */
};

/* One of the requests that are sent at once. */
struct rider {
    const struct bench *bench;
    const struct test *test;
    pthread_barrier_t *start;
    pthread_t thread;
    double begin_ms, end_ms, decode_ms;
    struct tpd_error error;
};

static double now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static int largest(const struct list *list) {
    int most = 0;
    for (int i = 0; i < list->n; i++)
        if (list->value[i] > most) most = list->value[i];
    return most;
}

/* "1,8,16"; 0 may be alone, and then the list is empty. */
static bool read_list(const struct args *args, const char *name, const char *absent, int max,
                      struct list *list) {
    const char *text = args_text(args, name), *at = text ? text : absent;
    list->n = 0;
    for (;;) {
        char *end;
        long value = strtol(at, &end, 10);
        bool none = value == 0 && list->n == 0 && *end == '\0' && strcmp(name, "batch") != 0;
        if (end == at || value < (none ? 0 : 1) || value > max || list->n == LIST_MAX) break;
        if (none) return true;
        list->value[list->n++] = (int)value;
        if (*end == '\0') return true;
        if (*end != ',') break;
        at = end + 1;
    }
    complain("--%s wants up to %d numbers from 1 to %d, such as 1,8,16, not '%s'", name, LIST_MAX, max,
             text);
    return false;
}

/* --- one measurement --------------------------------------------------------------------------- */

/* Nobody has asked it before, so nothing of it is in the daemon's cache. */
static json_t *random_prompt(int n, int vocab) {
    json_t *ids = json_array();
    for (int i = 0; i < n; i++) {
        uint32_t random = 0;
        if (getrandom(&random, sizeof random, 0) < 0) random = (uint32_t)rand();
        json_array_append_new(ids, json_integer(random % (uint32_t)vocab));
    }
    return ids;
}

static json_t *request_of(const struct test *test, int vocab) {
    int prompt = test->prompt ? test->prompt : START_TOKENS;
    return json_pack("{s:o, s:i, s:i, s:b}", "prompt", random_prompt(prompt, vocab), "max_tokens",
                     test->gen ? test->gen : 1, "temperature", 0, "ignore_eos", 1);
}

static void *ride(void *argument) {
    struct rider *rider = argument;
    const struct tool *tool = rider->bench->tool;
    struct tpd_options options = {.socket = tpd_socket(tool->client), .timeout_ms = tool->deadline_ms};
    struct tpd_client *client = NULL;
    json_t *result = NULL, *params = request_of(rider->test, rider->bench->vocab);
    int rc = tpd_connect(&client, &options, &rider->error);
    pthread_barrier_wait(rider->start);
    rider->begin_ms = now_ms();
    if (rc == 0) rc = tpd_call(client, "generate", params, &result, &rider->error);
    rider->end_ms = now_ms();
    rider->decode_ms =
        json_number_value(json_object_get(json_object_get(result, "timings"), "decode_ms"));
    json_decref(result);
    json_decref(params);
    tpd_close(client);
    return NULL;
}

/* Tokens a second of all riders together: prompts from the start to the last answer of one token;
 * tokens made from where the first rider has its first to where the last has its last. */
static double speed_of(const struct test *test, const struct rider *riders) {
    double begin = riders[0].begin_ms, end = riders[0].end_ms, first = end - riders[0].decode_ms;
    for (int i = 1; i < test->batch; i++) {
        begin = fmin(begin, riders[i].begin_ms);
        end = fmax(end, riders[i].end_ms);
        first = fmin(first, riders[i].end_ms - riders[i].decode_ms);
    }
    double tokens = test->batch * (test->gen ? test->gen - 1 : test->prompt);
    double took_ms = end - (test->gen ? first : begin);
    return tokens / fmax(took_ms, 1e-3) * 1e3;
}

/* The exit code of the first that failed; says why, unless it was Ctrl-C. */
static int outcome(struct rider *riders, int n) {
    bool interrupted = interrupt_seen();
    int rc = interrupted ? TPD_EXIT_INTERRUPTED : EXIT_OK;
    for (int i = 0; i < n; i++) {
        if (riders[i].error.code && rc == EXIT_OK) {
            complain("%s", riders[i].error.message);
            rc = riders[i].error.exit_code;
        }
        tpd_error_clear(&riders[i].error);
    }
    return rc;
}

/* Sends the test's requests at once. Returns an exit code. */
static int measure(const struct bench *bench, const struct test *test, double *speed) {
    struct rider *riders = calloc((size_t)test->batch, sizeof *riders);
    pthread_barrier_t start;
    if (!riders || pthread_barrier_init(&start, NULL, (unsigned)test->batch) != 0) {
        complain("out of memory");
        free(riders);
        return TPD_EXIT_BUSY;
    }
    for (int i = 0; i < test->batch; i++) {
        riders[i].bench = bench;
        riders[i].test = test;
        riders[i].start = &start;
        int failed = i + 1 < test->batch ? pthread_create(&riders[i].thread, NULL, ride, &riders[i]) : 0;
        if (failed) { /* those before wait at the barrier for ever: there is no way back */
            complain("cannot start %d threads: %s", test->batch, strerror(failed));
            exit(TPD_EXIT_BUSY);
        }
    }
    ride(&riders[test->batch - 1]);
    for (int i = 0; i + 1 < test->batch; i++) pthread_join(riders[i].thread, NULL);
    pthread_barrier_destroy(&start);
    *speed = speed_of(test, riders);
    int rc = outcome(riders, test->batch);
    free(riders);
    return rc;
}

/* --- the table --------------------------------------------------------------------------------- */

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static json_t *summary(const struct test *test, double *speeds, int n) {
    char name[32];
    double sum = 0, squares = 0;
    json_t *samples = json_array();
    for (int i = 0; i < n; i++) {
        sum += speeds[i];
        json_array_append_new(samples, json_real(speeds[i]));
    }
    for (int i = 0; i < n; i++) squares += (speeds[i] - sum / n) * (speeds[i] - sum / n);
    qsort(speeds, (size_t)n, sizeof *speeds, by_size);
    snprintf(name, sizeof name, test->gen ? "tg%d" : "pp%d", test->gen ? test->gen : test->prompt);
    return json_pack("{s:s, s:i, s:i, s:i, s:o, s:f, s:f, s:f}", "test", name, "prompt_tokens",
                     test->prompt, "gen_tokens", test->gen, "batch", test->batch,
                     "samples_tokens_per_s", samples, "mean", sum / n, "stddev",
                     n > 1 ? sqrt(squares / (n - 1)) : 0.0, "median",
                     (speeds[(n - 1) / 2] + speeds[n / 2]) / 2);
}

static void put_head(const struct tool *tool) {
    if (tool->format == OUT_HUMAN)
        printf("| model | size | tp | test | batch | tokens/s |\n|---|---|---|---|---|---|\n");
}

static void put_row(const struct tool *tool, const json_t *info, const json_t *row) {
    char size[32];
    const char *path = json_string_value(json_object_get(info, "path")), *name;
    name = path && strrchr(path, '/') ? strrchr(path, '/') + 1 : path ? path : "?";
    const char *test = json_string_value(json_object_get(row, "test"));
    double bytes = json_number_value(json_object_get(info, "bytes"));
    double mean = json_number_value(json_object_get(row, "mean"));
    double stddev = json_number_value(json_object_get(row, "stddev"));
    int tp = (int)json_integer_value(json_object_get(info, "tp"));
    int batch = (int)json_integer_value(json_object_get(row, "batch"));
    if (tool->format == OUT_JSON) return;
    if (tool->format == OUT_PLAIN) {
        put_field(name, strlen(name));
        printf("\t%.0f\t%d\t%s\t%d\t%.2f\t%.2f\n", bytes, tp, test, batch, mean, stddev);
    } else {
        fputs("| ", stdout);
        put_text(tool, name, strlen(name));
        printf(" | %s | %d | %s | %d | %.2f ± %.2f |\n", bytes_text(bytes, size), tp, test, batch, mean,
               stddev);
    }
    flush_output();
}

static int run_test(struct bench *bench, const json_t *info, const struct test *test) {
    double speeds[REPEAT_MAX];
    for (int i = 0; i < bench->repeat; i++) {
        int rc = measure(bench, test, &speeds[i]);
        if (rc != EXIT_OK) return rc;
    }
    json_t *row = summary(test, speeds, bench->repeat);
    put_row(bench->tool, info, row);
    json_array_append_new(bench->results, row);
    return EXIT_OK;
}

static int run_tests(struct bench *bench, const json_t *info) {
    int rc = EXIT_OK;
    for (int b = 0; b < bench->batches.n; b++)
        for (int i = 0; i < bench->prompts.n + bench->gens.n && rc == EXIT_OK; i++) {
            bool reads = i < bench->prompts.n;
            const struct test test = {.prompt = reads ? bench->prompts.value[i] : 0,
                                      .gen = reads ? 0 : bench->gens.value[i - bench->prompts.n],
                                      .batch = bench->batches.value[b]};
            rc = run_test(bench, info, &test);
        }
    return rc;
}

/* A daemon that cannot run them at once would be measured at something else. */
static int check_room(const struct bench *bench) {
    json_t *status;
    int rc = tool_ask(bench->tool, "status", NULL, &status);
    if (rc != EXIT_OK) return rc;
    int slots = (int)json_integer_value(json_object_get(json_object_get(status, "slots"), "total"));
    int most = largest(&bench->batches);
    if (most > slots) {
        complain("the daemon runs %d requests at once: a batch of %d wants a tpd with --slots %d", slots,
                 most, most);
        rc = TPD_EXIT_USAGE;
    }
    json_decref(status);
    return rc;
}

static int run_bench(struct bench *bench) {
    const struct test warm_up = {.prompt = 32, .gen = 8, .batch = 1};
    json_t *info;
    double ignored;
    int rc = tool_ask(bench->tool, "model.info", NULL, &info);
    if (rc != EXIT_OK) return rc;
    json_int_t vocab =
        json_integer_value(json_object_get(json_object_get(info, "shape"), "vocab"));
    bench->vocab = vocab > 0 && vocab < INT32_MAX ? (int)vocab : 1;
    rc = check_room(bench);
    if (rc == EXIT_OK) rc = measure(bench, &warm_up, &ignored);
    if (rc == EXIT_OK) put_head(bench->tool);
    if (rc == EXIT_OK) rc = run_tests(bench, info);
    if (rc == EXIT_OK && bench->tool->format == OUT_JSON) {
        json_t *all = json_pack("{s:O, s:O, s:O, s:O, s:O}", "model", json_object_get(info, "path"),
                                "bytes", json_object_get(info, "bytes"), "tp",
                                json_object_get(info, "tp"), "ctx", json_object_get(info, "ctx"),
                                "results", bench->results);
        put_json(all);
        json_decref(all);
    }
    json_decref(info);
    return rc;
}

/* On a daemon of our own, with room for what is asked and no more. */
static int run_with_model(struct bench *bench, const char *model, const struct args *args) {
    char slots[16], ctx[16];
    int longest = largest(&bench->prompts), most = START_TOKENS + largest(&bench->gens);
    snprintf(slots, sizeof slots, "%d", largest(&bench->batches));
    snprintf(ctx, sizeof ctx, "%d", (longest > most ? longest : most) + 64);
    const char **flags = calloc((size_t)args->n_words + 7, sizeof *flags);
    if (!flags) return TPD_EXIT_BUSY;
    const char *own[] = {"--model", model, "--slots", slots, "--ctx", ctx};
    memcpy(flags, own, sizeof own);
    for (int i = 0; i < args->n_words; i++) flags[6 + i] = args->words[i];
    struct bench_daemon daemon;
    interrupt_keep(); /* Ctrl-C ends the measuring, and then the daemon and its folder go */
    int rc = bench_daemon_start(&daemon, flags);
    free(flags);
    if (rc != EXIT_OK) return rc;
    bench->tool->socket = daemon.socket;
    rc = run_bench(bench);
    tpd_close(bench->tool->client);
    bench->tool->client = NULL;
    bench->tool->socket = NULL;
    bench_daemon_stop(&daemon);
    return rc;
}

int cmd_bench(struct tool *tool, const struct args *args) {
    struct bench bench = {.tool = tool, .repeat = (int)args_integer(args, "repeat", 5)};
    const char *model = args_text(args, "model");
    int64_t repeat = args_integer(args, "repeat", 5);
    if (!read_list(args, "prompt", "512", 1 << 20, &bench.prompts) ||
        !read_list(args, "gen", "128", 1 << 20, &bench.gens) ||
        !read_list(args, "batch", "1", BATCH_MAX, &bench.batches))
        return TPD_EXIT_USAGE;
    if (repeat < 1 || repeat > REPEAT_MAX) {
        complain("--repeat wants a number from 1 to %d", REPEAT_MAX);
        return TPD_EXIT_USAGE;
    }
    for (int i = 0; i < bench.gens.n; i++)
        if (bench.gens.value[i] < 2) {
            complain("--gen wants at least 2 tokens: their speed is what is between them");
            return TPD_EXIT_USAGE;
        }
    if (bench.prompts.n + bench.gens.n == 0) {
        complain("nothing is to be measured: --prompt and --gen are both 0");
        return TPD_EXIT_USAGE;
    }
    if (!model && args->n_words > 0) {
        complain("flags of tpd, such as '%s', make sense with --model alone", args->words[0]);
        return TPD_EXIT_USAGE;
    }
    bench.results = json_array();
    int rc = model ? run_with_model(&bench, model, args) : run_bench(&bench);
    json_decref(bench.results);
    return rc;
}
