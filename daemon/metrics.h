/* daemon/metrics.h: numbers for Prometheus. Counters of the engine are read when asked for; what
 * the engine does not keep (times of whole requests) is gathered here. Loop's thread.
 *
 * Names and units are vLLM's where the meaning is the same, with the prefix `tpd:`; every metric
 * has a HELP line. */
#ifndef TPD_DAEMON_METRICS_H
#define TPD_DAEMON_METRICS_H

#include "serve/engine.h"

enum { HISTOGRAM_BUCKETS = 14 };

struct histogram {
    uint64_t counts[HISTOGRAM_BUCKETS + 1]; /* the last: over all bounds */
    double sum;
};

struct metrics {
    struct histogram queue, prefill, decode, first_token, whole; /* seconds of a generation */
    struct histogram between; /* seconds between two tokens, the mean of each generation */
    uint64_t finished[FINISH_COUNT];
    uint64_t rpc_requests, rpc_errors, http_requests[6] /* by status / 100 */, connections_refused, slow_clients;
};

/* A generation has ended. */
void metrics_count(struct metrics *m, const struct gen_event *end);

struct metrics_gauges {
    int64_t connections, live_requests, parked;
    double uptime_s;
    const char *version, *model;
};

/* The exposition text, the caller's to free; NULL when there is no memory. stats is NULL while
 * there is no engine. */
char *metrics_text(const struct metrics *m, const struct engine_stats *stats,
                   const struct metrics_gauges *gauges);

#endif
