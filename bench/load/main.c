/* load: sends a plan of requests to a server and says how it did. See load.h. */
#include "load.h"

#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

struct run {
    struct plan_spec spec;
    struct target target;
    struct results results;
    struct planned *plan;
    size_t n_plan, next;
    double patience_s; /* after the last arrival */
    bool json;
    uv_loop_t loop;
    uv_timer_t timer;
};

static const char usage[] =
    "usage: load --socket PATH [--http] | --tcp HOST:PORT  [options]\n"
    "Sends requests as they come by chance, the same for the same seed, and reports throughput and\n"
    "waiting times. A socket is spoken to in JSON-RPC, with --http in HTTP; TCP is HTTP.\n"
    "  --rate R       requests a second, on average (1)\n"
    "  --seconds S    for so long new requests come (30)\n"
    "  --seed N       (1)\n"
    "  --prompt MIX   tokens of prompts and how often each: 64:4,256:4,512:2\n"
    "  --output MIX   tokens of answers: 32:5,128:4,256:1\n"
    "  --vocab N      prompts are random ids below N (32000)\n"
    "  --temperature T, --top-p P   how answers are drawn (0: the likeliest token)\n"
    "  --model NAME   what HTTP requests name\n"
    "  --patience S   wait so long after the last arrival (120)\n"
    "  --json         one line of JSON\n";

static void wrong(const char *what, const char *value) {
    fprintf(stderr, "load: %s: \"%s\"\n%s", what, value, usage);
    exit(64);
}

static double number(const char *name, const char *text, double min, double max) {
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !(value >= min && value <= max)) {
        char what[120];
        snprintf(what, sizeof what, "--%s wants a number from %g to %g", name, min, max);
        wrong(what, text);
    }
    return value;
}

static void read_address(struct target *target, char *text) {
    char *colon = strrchr(text, ':');
    if (!colon) wrong("--tcp wants HOST:PORT", text);
    *colon = '\0';
    int port = (int)number("tcp's port", colon + 1, 1, 65535);
    if (uv_ip4_addr(strcmp(text, "localhost") ? text : "127.0.0.1", port, &target->address) != 0)
        wrong("--tcp wants an IPv4 address before the port", text);
    target->http = true;
}

static void read_options(struct run *run, int argc, char **argv) {
    enum {
        SOCKET, HTTP, TCP, RATE, SECONDS, SEED, PROMPT, OUTPUT, VOCAB, TEMPERATURE, TOP_P, MODEL,
        PATIENCE, AS_JSON
    };
    static const struct option options[] = {
        {"socket", 1, NULL, SOCKET},   {"http", 0, NULL, HTTP},     {"tcp", 1, NULL, TCP},
        {"rate", 1, NULL, RATE},       {"seconds", 1, NULL, SECONDS}, {"seed", 1, NULL, SEED},
        {"prompt", 1, NULL, PROMPT},   {"output", 1, NULL, OUTPUT}, {"vocab", 1, NULL, VOCAB},
        {"temperature", 1, NULL, TEMPERATURE}, {"top-p", 1, NULL, TOP_P},
        {"model", 1, NULL, MODEL},     {"patience", 1, NULL, PATIENCE},
        {"json", 0, NULL, AS_JSON},    {0}};
    int got;
    bool tcp = false;
    while ((got = getopt_long(argc, argv, "", options, NULL)) != -1) {
        switch (got) {
        case SOCKET: run->target.socket = optarg; break;
        case HTTP: run->target.http = true; break;
        case TCP:
            tcp = true;
            read_address(&run->target, optarg);
            break;
        case RATE: run->spec.rate = number("rate", optarg, 0.001, 1e5); break;
        case SECONDS: run->spec.seconds = number("seconds", optarg, 0.1, 86400); break;
        case SEED: run->spec.seed = (uint64_t)number("seed", optarg, 0, 1e15); break;
        case PROMPT:
            if (!mix_read(&run->spec.prompt, optarg)) wrong("--prompt is no mix", optarg);
            break;
        case OUTPUT:
            if (!mix_read(&run->spec.output, optarg)) wrong("--output is no mix", optarg);
            break;
        case VOCAB: run->spec.vocab = (int)number("vocab", optarg, 1, 1 << 24); break;
        case TEMPERATURE: run->target.temperature = number("temperature", optarg, 0, 10); break;
        case TOP_P: run->target.top_p = number("top-p", optarg, 0.001, 1); break;
        case MODEL: run->target.model = optarg; break;
        case PATIENCE: run->patience_s = number("patience", optarg, 0, 86400); break;
        case AS_JSON: run->json = true; break;
        default: fputs(usage, stderr); exit(64);
        }
    }
    if (optind < argc) wrong("no words are taken", argv[optind]);
    if (tcp == (run->target.socket != NULL)) wrong("one of --socket and --tcp is wanted", "");
    run->target.vocab = run->spec.vocab;
}

/* Sends what is due and sleeps until the next; at the end waits for the answers. */
static void on_time(uv_timer_t *timer) {
    struct run *run = timer->data;
    double now_s = (clock_ms() - run->results.start_ms) / 1000;
    while (run->next < run->n_plan && run->plan[run->next].at_s <= now_s)
        client_start(&run->loop, &run->target, &run->plan[run->next++], &run->results);
    if (run->next < run->n_plan) {
        double wait_ms = (run->plan[run->next].at_s - now_s) * 1000;
        uv_timer_start(timer, on_time, (uint64_t)ceil(wait_ms), 0);
    } else if (clients_live() > 0 && now_s < run->spec.seconds + run->patience_s) {
        uv_timer_start(timer, on_time, 20, 0);
    } else {
        clients_abandon();
        uv_close((uv_handle_t *)timer, NULL);
    }
}

static double cpu_s(void) {
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    return (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
           (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1e6;
}

int main(int argc, char **argv) {
    static struct run run = {.spec = {.rate = 1, .seconds = 30, .seed = 1, .vocab = 32000},
                             .target = {.top_p = 1},
                             .patience_s = 120};
    mix_read(&run.spec.prompt, "64:4,256:4,512:2");
    mix_read(&run.spec.output, "32:5,128:4,256:1");
    read_options(&run, argc, argv);
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    run.plan = plan_draw(&run.spec, &run.n_plan);
    if (!run.plan) {
        fputs("load: no memory for the plan\n", stderr);
        return 70;
    }
    uv_loop_init(&run.loop);
    uv_timer_init(&run.loop, &run.timer);
    run.timer.data = &run;
    run.results.start_ms = run.results.last_end_ms = clock_ms();
    double cpu_before = cpu_s();
    uv_timer_start(&run.timer, on_time, 0, 0);
    uv_run(&run.loop, UV_RUN_DEFAULT);
    double wall_s = (clock_ms() - run.results.start_ms) / 1000;
    double share = (cpu_s() - cpu_before) / wall_s;
    (run.json ? report_json : report_text)(&run.results, &run.spec, share);
    bool whole = run.results.failed == 0 && run.results.unfinished == 0;
    free(run.plan);
    times_free(&run.results.first);
    times_free(&run.results.between);
    times_free(&run.results.whole);
    uv_loop_close(&run.loop);
    return whole ? 0 : 1;
}
