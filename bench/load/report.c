#include "load.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

void times_add(struct times *times, double ms) {
    if (times->n == times->room) {
        size_t room = times->room ? 2 * times->room : 1024;
        double *more = realloc(times->ms, room * sizeof *more);
        if (!more) abort();
        times->ms = more;
        times->room = room;
    }
    times->ms[times->n++] = ms;
}

void times_free(struct times *times) {
    free(times->ms);
    *times = (struct times){0};
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The time that a share of all does not exceed. NAN when there is none. Sorts. */
static double percentile(const struct times *times, double share) {
    if (times->n == 0) return NAN;
    qsort(times->ms, times->n, sizeof *times->ms, by_size);
    size_t rank = (size_t)ceil(share * (double)times->n);
    return times->ms[rank > 0 ? rank - 1 : 0];
}

static double span_s(const struct results *r) {
    return (r->last_end_ms - r->start_ms) / 1000;
}

static json_t *times_json(const struct times *times) {
    if (times->n == 0) return json_null();
    return json_pack("{s:f, s:f, s:f, s:f}", "p50", percentile(times, 0.5), "p95",
                     percentile(times, 0.95), "p99", percentile(times, 0.99), "max",
                     percentile(times, 1));
}

void report_json(const struct results *r, const struct plan_spec *spec, double cpu_share) {
    double s = span_s(r);
    json_t *out = json_pack(
        "{s:f, s:f, s:I, s:i, s:i, s:i, s:i, s:f, s:f, s:f, s:f, s:o, s:o, s:o, s:f, s:f, s:s}",
        "rate", spec->rate, "seconds", spec->seconds, "seed", (json_int_t)spec->seed, "requests",
        (int)r->arrived, "done", (int)r->done, "failed", (int)r->failed, "unfinished",
        (int)r->unfinished, "span_s", s, "requests_per_s", s > 0 ? (double)r->done / s : 0.0,
        "prompt_tokens_per_s", s > 0 ? (double)r->prompt_tokens / s : 0.0, "output_tokens_per_s",
        s > 0 ? (double)r->output_tokens / s : 0.0, "first_token_ms", times_json(&r->first),
        "between_ms", times_json(&r->between), "whole_ms", times_json(&r->whole),
        "tokens_per_piece", r->pieces ? (double)r->output_tokens / (double)r->pieces : 0.0,
        "generator_cpu_share", cpu_share, "first_failure", r->first_failure);
    json_dumpf(out, stdout, JSON_COMPACT | JSON_REAL_PRECISION(7));
    putchar('\n');
    json_decref(out);
}

static void put_times(const char *what, const struct times *times) {
    printf("%-16s p50 %9.1f   p95 %9.1f   p99 %9.1f   max %9.1f ms\n", what,
           percentile(times, 0.5), percentile(times, 0.95), percentile(times, 0.99),
           percentile(times, 1));
}

void report_text(const struct results *r, const struct plan_spec *spec, double cpu_share) {
    double s = span_s(r);
    printf("%zu requests at %.2f a second: %zu done, %zu failed, %zu unfinished, in %.1f s\n",
           r->arrived, spec->rate, r->done, r->failed, r->unfinished, s);
    if (*r->first_failure) printf("first failure: %s\n", r->first_failure);
    printf("%.2f requests/s, %.0f prompt tokens/s, %.0f output tokens/s\n", (double)r->done / s,
           (double)r->prompt_tokens / s, (double)r->output_tokens / s);
    put_times("first token", &r->first);
    put_times("between tokens", &r->between);
    put_times("whole answer", &r->whole);
    printf("this generator took %.1f %% of a core\n", cpu_share * 100);
}
