#include "daemon/speed.h"

#include "kernels/kernels.h"

#include <stdlib.h>

/* A matrix too large for a cache, read for one row; a smaller one, multiplied with many. */
enum { COLS = 4096, LARGE_ROWS = 16384, SMALL_ROWS = 1024, MANY = 256, TIMES = 5 };

struct measurement {
    struct speed speed;
    struct error *e;
    int err;
};

static int make_weight(struct kctx *c, int32_t rows, struct weight *w, struct error *e) {
    float row[COLS];
    for (int i = 0; i < COLS; i++) row[i] = 1.0f / COLS;
    int err = c->ops->weight_new(c, DTYPE_F32, rows, COLS, w, e);
    if (!err) c->ops->weight_put(c, w, 0, rows, row, 0); /* every page is its own */
    return err;
}

/* Seconds of the fastest product of T rows. */
static int time_linear(struct kctx *c, const struct weight *w, dev_addr x, dev_addr y, int32_t T,
                       double *seconds, struct error *e) {
    struct linear_job job = {w, 0, y};
    int err = 0;
    *seconds = 1e9;
    for (int i = 0; i < TIMES && !err; i++) {
        int64_t start = clock_ns();
        c->ops->linear(c, &job, 1, x, T);
        err = c->ops->wait(c, e);
        double took = (double)(clock_ns() - start) / 1e9;
        if (took < *seconds) *seconds = took;
    }
    return err;
}

static int measure(struct kctx *c, struct speed *out, struct error *e) {
    struct weight large, small;
    dev_addr x, y;
    double reading, multiplying;
    int err = make_weight(c, LARGE_ROWS, &large, e);
    if (!err) err = make_weight(c, SMALL_ROWS, &small, e);
    if (!err) err = c->ops->mem_alloc(c, MEM_ACTIVATIONS, (size_t)MANY * COLS * 4, &x, e);
    if (!err) err = c->ops->mem_alloc(c, MEM_ACTIVATIONS, (size_t)MANY * LARGE_ROWS * 4, &y, e);
    if (!err) err = time_linear(c, &large, x, y, 1, &reading, e);
    if (!err) err = time_linear(c, &small, x, y, MANY, &multiplying, e);
    if (err) return err;
    out->bandwidth = (double)large.bytes / reading;
    out->flops = 2.0 * MANY * SMALL_ROWS * COLS / multiplying;
    return 0;
}

/* A context pins the thread that opens it, so it has one of its own. */
static void *run(void *arg) {
    struct measurement *m = arg;
    struct cpu_options options = {0};
    struct kctx *c;
    core_set_allowed(&options.cores);
    m->err = kernels_cpu_open(&c, 0, &options, m->e);
    if (m->err) return NULL;
    m->err = measure(c, &m->speed, m->e);
    c->ops->close(c);
    return NULL;
}

int speed_measure(struct speed *out, struct error *e) {
    struct measurement m = {.e = e};
    pthread_t thread;
    int err = thread_start(&thread, run, &m, e);
    if (err) return err;
    pthread_join(thread, NULL);
    *out = m.speed;
    return m.err;
}
