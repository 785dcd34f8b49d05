/* Tensors through the block quantisers, on all threads, a few MiB at a time. */
#include "base/thread.h"
#include "model/quant_blocks.h"
#include "model/quant_private.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK_VALUES = 4 << 20, GRAIN_VALUES = 64 << 10, MAX_THREADS = 64 };

/* Rows of one tensor that are being made; threads take a few at a time. */
struct chunk {
    const struct store_tensor *from;
    enum dtype type;
    int64_t first, n; /* rows */
    int64_t cols, grain;
    uint8_t *out;
    _Atomic int64_t next;
    atomic_bool no_number, no_memory;
};

static void *work(void *arg) {
    struct chunk *c = arg;
    size_t in_bytes = dtype_row_bytes((enum dtype)c->from->type, c->cols);
    size_t out_bytes = dtype_row_bytes(c->type, c->cols);
    float *values = malloc((size_t)c->cols * sizeof *values);
    if (!values) {
        atomic_store(&c->no_memory, true);
        return NULL;
    }
    for (int64_t at; (at = atomic_fetch_add(&c->next, c->grain)) < c->n;)
        for (int64_t i = at; i < at + c->grain && i < c->n; i++) {
            const uint8_t *row = c->from->data + (size_t)(c->first + i) * in_bytes;
            dtype_row_to_f32((enum dtype)c->from->type, row, values, c->cols);
            if (!quant_row(c->type, values, c->cols, c->out + (size_t)i * out_bytes))
                atomic_store(&c->no_number, true);
        }
    free(values);
    return NULL;
}

/* A thread that cannot be started is done without: the caller works too. */
static void run_chunk(struct chunk *c, int threads) {
    pthread_t others[MAX_THREADS];
    int n = 0;
    int64_t useful = (c->n + c->grain - 1) / c->grain;
    if (threads > useful) threads = (int)useful;
    if (threads > MAX_THREADS) threads = MAX_THREADS;
    while (n < threads - 1 && thread_start(&others[n], work, c, NULL) == 0) n++;
    work(c);
    for (int i = 0; i < n; i++) pthread_join(others[i], NULL);
}

/* The chunk's result is with the sink; its source may leave memory. */
static int hand_over(struct quant_run *run, const struct store_tensor *from, const void *data,
                     size_t bytes, size_t source_at, size_t source_bytes, struct error *e) {
    const struct quant_options *o = run->options;
    if (!run->sink(run->user, data, bytes))
        return error_set(e, ERR_IO, "%s: no room for the quantised weights", run->model->path);
    store_drop(run->model->store, from, source_at, source_bytes);
    run->done += source_bytes;
    if (o->progress && run->total) o->progress(o->user, (double)run->done / (double)run->total);
    if (!o->stopped || !o->stopped(o->user)) return 0;
    return error_set(e, ERR_CANCELLED, "quantising was given up");
}

static int copy(struct quant_run *run, const struct store_tensor *from, struct error *e) {
    enum { COPY_BYTES = 8 << 20 };
    int err = 0;
    for (size_t at = 0; at < from->bytes && !err; at += COPY_BYTES) {
        size_t n = from->bytes - at < COPY_BYTES ? from->bytes - at : COPY_BYTES;
        err = hand_over(run, from, from->data + at, n, at, n, e);
    }
    return err;
}

int quant_piece_make(struct quant_run *run, const struct quant_piece *piece, struct error *e) {
    const struct store_tensor *from = piece->from;
    if ((int)piece->type == from->type) return copy(run, from, e);
    int64_t rows = from->dims[0], cols = from->dims[1];
    int64_t most = CHUNK_VALUES / cols > 0 ? CHUNK_VALUES / cols : 1;
    if (most > rows) most = rows;
    size_t in_bytes = dtype_row_bytes((enum dtype)from->type, cols);
    size_t out_bytes = dtype_row_bytes(piece->type, cols);
    uint8_t *out = malloc((size_t)most * out_bytes);
    if (!out) return error_set(e, ERR_MEMORY, "no memory to quantise tensor %s", from->name);
    int err = 0;
    for (int64_t at = 0; at < rows && !err; at += most) {
        struct chunk c = {.from = from, .type = piece->type, .first = at, .cols = cols, .out = out};
        c.n = rows - at < most ? rows - at : most;
        c.grain = GRAIN_VALUES / cols > 0 ? GRAIN_VALUES / cols : 1;
        run_chunk(&c, run->options->threads);
        if (c.no_memory) err = error_set(e, ERR_MEMORY, "no memory to quantise tensor %s", from->name);
        else if (c.no_number)
            err = error_bad_file(e, from->file, "tensor", from->name,
                                 "tensor %s has values that are infinite or no numbers, which cannot be "
                                 "quantised: serve it without quant",
                                 from->name);
        else
            err = hand_over(run, from, out, (size_t)c.n * out_bytes, (size_t)at * in_bytes,
                            (size_t)c.n * in_bytes, e);
    }
    free(out);
    return err;
}
