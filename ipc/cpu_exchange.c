/* ipc/cpu_exchange.c: collectives between CPU ranks, which read each other's buffers where they
 * lie. All go alike: arrive (with the buffer), touch the peers' buffers, leave. */
#include "ipc/cpu.h"
#include "ipc/sum.h"

#include <string.h>

static void reduce_scatter(struct comm *comm, dev_addr out, dev_addr x, int32_t rows,
                           const int32_t *offsets, enum dtype type) {
    int n = comm->n;
    struct call call = comm_call_by_offsets(OP_REDUCE_SCATTER, type, rows, offsets, n);
    if (!comm_arrive(comm, &call, kernels_cpu_pointer(comm->ctx, x)) || !comm_touch(comm)) return;
    size_t size = comm_size_of(type), width = (size_t)offsets[n] * size;
    size_t from = (size_t)offsets[comm->rank] * size;
    size_t cols = (size_t)(offsets[comm->rank + 1] - offsets[comm->rank]);
    uint8_t *to = kernels_cpu_pointer(comm->ctx, out);
    for (size_t row = 0; row < (size_t)rows && cols > 0; row++) {
        const void *src[COMM_MAX_RANKS];
        for (int p = 0; p < n; p++)
            src[p] = (const uint8_t *)comm_peer_data(comm, p) + row * width + from;
        sum_all(to + row * cols * size, src, n, cols, type);
    }
    comm_leave(comm, true);
}

static void all_gather(struct comm *comm, dev_addr out, dev_addr x, int32_t rows,
                       const int32_t *offsets, enum dtype type) {
    int n = comm->n;
    struct call call = comm_call_by_offsets(OP_ALL_GATHER, type, rows, offsets, n);
    if (!comm_arrive(comm, &call, kernels_cpu_pointer(comm->ctx, x)) || !comm_touch(comm)) return;
    size_t size = comm_size_of(type), width = (size_t)offsets[n] * size;
    uint8_t *to = kernels_cpu_pointer(comm->ctx, out);
    for (int p = 0; p < n; p++) {
        size_t from = (size_t)offsets[p] * size, part = (size_t)offsets[p + 1] * size - from;
        const uint8_t *src = comm_peer_data(comm, p);
        for (size_t row = 0; row < (size_t)rows && part > 0; row++)
            memcpy(to + row * width + from, src + row * part, part);
    }
    comm_leave(comm, true);
}

/* Elements from … to-1 of x[rank] become the sum of those of all x. */
static void sum_in_place(const struct comm *comm, uint8_t *const *x, size_t from, size_t to, enum dtype type) {
    enum { PIECE = 1024 }; /* elements; sum_all may not write over what it reads */
    size_t size = comm_size_of(type);
    for (size_t at = from; at < to; at += PIECE) {
        size_t count = to - at < PIECE ? to - at : PIECE;
        const void *src[COMM_MAX_RANKS];
        float sum[PIECE];
        for (int p = 0; p < comm->n; p++) src[p] = x[p] + at * size;
        sum_all(sum, src, comm->n, count, type);
        memcpy(x[comm->rank] + at * size, sum, count * size);
    }
}

/* A rank reads its own rows of all peers and writes only those of its own buffer, which no peer reads. */
static void reduce_scatter_rows(struct comm *comm, dev_addr x, int32_t cols, const int32_t *offsets,
                                enum dtype type) {
    struct call call = comm_call_by_offsets(OP_REDUCE_SCATTER_ROWS, type, cols, offsets, comm->n);
    uint8_t *all[COMM_MAX_RANKS];
    if (!comm_arrive(comm, &call, kernels_cpu_pointer(comm->ctx, x)) || !comm_touch(comm)) return;
    for (int p = 0; p < comm->n; p++) all[p] = comm_peer_data(comm, p);
    size_t width = (size_t)cols, from = (size_t)offsets[comm->rank], to = (size_t)offsets[comm->rank + 1];
    sum_in_place(comm, all, from * width, to * width, type);
    comm_leave(comm, true);
}

/* What a rank posts for an all-reduce with norm. */
struct norm_buffers {
    uint8_t *y, *out;
};

/* Rows are shared out: a rank sums its own, goes on to their norm and hands that to all. Of y it reads its own rows
 * at its peers and writes them at home; of out it writes them everywhere. Nobody else touches these. */
static bool all_reduce_norm(struct comm *comm, const struct comm_norm *norm, int32_t rows, int32_t cols) {
    size_t row = (size_t)cols * sizeof(float);
    if (comm->forced != COMM_AUTO || rows < comm->n || (size_t)rows * row <= comm->world->one_shot_max) return false;
    struct call call = {.op = OP_ALL_REDUCE_NORM, .type = DTYPE_F32, .rows = rows, .cols = cols};
    struct norm_buffers mine = {kernels_cpu_pointer(comm->ctx, norm->y), kernels_cpu_pointer(comm->ctx, norm->out)};
    if (!comm_arrive(comm, &call, &mine) || !comm_touch(comm)) return true;
    uint8_t *y[COMM_MAX_RANKS];
    for (int p = 0; p < comm->n; p++) y[p] = ((struct norm_buffers *)comm_peer_data(comm, p))->y;
    int64_t from, to;
    team_slice(rows, 1, comm->rank, comm->n, &from, &to);
    size_t first = (size_t)from * row, own = (size_t)(to - from) * row;
    sum_in_place(comm, y, first / sizeof(float), (first + own) / sizeof(float), DTYPE_F32);
    comm->ctx->ops->add_rmsnorm(comm->ctx, norm->out + first, norm->x + first, norm->y + first, norm->scale, norm->g,
                                (int32_t)(to - from), cols, norm->eps);
    for (int p = 0; p < comm->n; p++)
        if (p != comm->rank)
            memcpy(((struct norm_buffers *)comm_peer_data(comm, p))->out + first, mine.out + first, own);
    comm_leave(comm, true);
    return true;
}

/* A rank writes only the rows of its own buffer that belong to peers, and peers read only its own. */
static void all_gather_rows(struct comm *comm, dev_addr x, int32_t cols, const int32_t *offsets,
                            enum dtype type) {
    struct call call = comm_call_by_offsets(OP_ALL_GATHER_ROWS, type, cols, offsets, comm->n);
    uint8_t *mine = kernels_cpu_pointer(comm->ctx, x);
    if (!comm_arrive(comm, &call, mine) || !comm_touch(comm)) return;
    size_t row = (size_t)cols * comm_size_of(type);
    for (int p = 0; p < comm->n; p++) {
        size_t from = (size_t)offsets[p] * row, to = (size_t)offsets[p + 1] * row;
        if (p != comm->rank && to > from)
            memcpy(mine + from, (const uint8_t *)comm_peer_data(comm, p) + from, to - from);
    }
    comm_leave(comm, true);
}

static void broadcast(struct comm *comm, dev_addr x, size_t bytes, int root) {
    if (bytes == 0) return;
    struct call call = comm_call_broadcast(bytes, root);
    uint8_t *data = kernels_cpu_pointer(comm->ctx, x);
    if (!comm_arrive(comm, &call, data) || !comm_touch(comm)) return;
    if (comm->rank != root) memcpy(data, comm_peer_data(comm, root), bytes);
    comm_leave(comm, true);
}

static void barrier(struct comm *comm) {
    struct call call = {.op = OP_BARRIER};
    comm_arrive(comm, &call, NULL);
}

const struct comm_ops comm_cpu_ops = {comm_cpu_all_reduce, reduce_scatter,  all_gather,
                                      reduce_scatter_rows, all_gather_rows, broadcast,
                                      barrier,             all_reduce_norm};
