/* bench/load: requests that come as strangers send them, and how long each waits.
 *
 * Open loop: when a request arrives does not depend on how the server does, so a server that falls
 * behind is seen to (times count from the planned arrival, not from when there was room to send).
 * Arrivals are Poisson, lengths drawn from mixes, everything from one seed: two servers that get the
 * same plan get the same requests.
 *
 * plan.c draws the requests, client.c sends one and reads its stream, report.c sums up, main.c reads
 * the command line and keeps the clock. One thread, one libuv loop. */
#ifndef TPD_BENCH_LOAD_H
#define TPD_BENCH_LOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

enum { MIX_MAX = 16 };

/* Lengths and how often each comes: "64:4,256:4,512:2". */
struct mix {
    int n;
    struct {
        int tokens;
        double weight;
    } part[MIX_MAX];
};
/* False when text is not a mix. */
bool mix_read(struct mix *mix, const char *text);

struct plan_spec {
    double rate, seconds; /* requests a second, and for how long they come */
    uint64_t seed;
    struct mix prompt, output;
    int vocab; /* prompts are random ids below it */
};

struct planned {
    double at_s; /* since the start */
    int n_prompt, n_output;
    uint64_t seed; /* of its ids */
};

/* The requests in the order of their arrival; the caller frees them. */
struct planned *plan_draw(const struct plan_spec *spec, size_t *n);
/* The i-th id of a request's prompt. */
int plan_id(const struct planned *planned, int i, int vocab);

/* A growing list of times in milliseconds. */
struct times {
    double *ms;
    size_t n, room;
};
void times_add(struct times *times, double ms);
void times_free(struct times *times);

struct target {
    bool http;          /* POST /v1/completions; else JSON-RPC generate */
    const char *socket; /* a Unix socket, or NULL: then the address */
    struct sockaddr_in address;
    const char *model; /* what HTTP requests name, or NULL */
    int vocab;
    double temperature, top_p; /* 0 and 1: greedy */
};

/* What all requests of a run add to. */
struct results {
    double start_ms; /* when the run began, on clock_ms */
    struct times first, between, whole;
    size_t arrived, done, failed, unfinished;
    int64_t prompt_tokens, output_tokens, pieces;
    double last_end_ms;
    char first_failure[256]; /* of the first that failed */
};

double clock_ms(void);

/* client.c: sends the request now, at its planned time. It adds itself to *results when it ends.
 * target, planned and results outlive it. */
void client_start(uv_loop_t *loop, const struct target *target, const struct planned *planned,
                  struct results *results);
/* How many have begun and not ended. */
size_t clients_live(void);
/* Ends those that are left; each counts as unfinished. */
void clients_abandon(void);

/* report.c */
void report_json(const struct results *results, const struct plan_spec *spec, double cpu_share);
void report_text(const struct results *results, const struct plan_spec *spec, double cpu_share);

#endif
