#include "ipc/cuda.h"

#include <stdlib.h>
#include <string.h>

/* A plan context has no memory and no peers that run. */
static void plan_all_reduce(struct comm *comm, dev_addr x, int32_t rows, int32_t cols,
                            enum dtype type) {
    (void)comm, (void)x, (void)rows, (void)cols, (void)type;
}

static void plan_exchange(struct comm *comm, dev_addr out, dev_addr x, int32_t rows,
                          const int32_t *offsets, enum dtype type) {
    (void)comm, (void)out, (void)x, (void)rows, (void)offsets, (void)type;
}

static void plan_exchange_rows(struct comm *comm, dev_addr x, int32_t cols, const int32_t *offsets,
                               enum dtype type) {
    (void)comm, (void)x, (void)cols, (void)offsets, (void)type;
}

static void plan_broadcast(struct comm *comm, dev_addr x, size_t bytes, int root) {
    (void)comm, (void)x, (void)bytes, (void)root;
}

static void plan_barrier(struct comm *comm) {
    (void)comm;
}

static const struct comm_ops plan_ops = {plan_all_reduce,    plan_exchange,
                                         plan_exchange,      plan_exchange_rows,
                                         plan_exchange_rows, plan_broadcast,
                                         plan_barrier,       NULL};

int comm_open(struct comm **out, struct comm_world *world, int rank, struct kctx *c,
              struct error *e) {
    *out = NULL;
    const struct comm_ops *ops = strcmp(c->ops->name, "cpu") == 0    ? &comm_cpu_ops
                                 : strcmp(c->ops->name, "cuda") == 0 ? &comm_cuda_ops
                                 : strcmp(c->ops->name, "plan") == 0 ? &plan_ops
                                                                     : NULL;
    if (!ops)
        return error_set(e, ERR_INTERNAL, "there are no collectives for %s devices", c->ops->name);
    struct comm *comm = calloc(1, sizeof *comm);
    if (!comm) return error_set(e, ERR_MEMORY, "no memory for the communicator of rank %d", rank);
    *comm = (struct comm){.world = world,
                          .me = &world->ranks[rank],
                          .ctx = c,
                          .ops = ops,
                          .rank = rank,
                          .n = world->n};
    int rc = ops == &comm_cuda_ops ? comm_cuda_open(comm, e) : 0;
    if (rc) free(comm);
    else *out = comm;
    return rc;
}

void comm_close(struct comm *comm) {
    if (!comm) return;
    comm_cuda_close(comm);
    free(comm);
}

int comm_size(const struct comm *comm) {
    return comm->n;
}

int comm_rank(const struct comm *comm) {
    return comm->rank;
}

void comm_force(struct comm *comm, enum comm_algorithm algorithm) {
    comm->forced = algorithm;
}

uint64_t comm_received(const struct comm *comm) {
    return comm->received;
}

/* --- the collectives, with the books of what they move ------------------------------------------ */

static size_t bytes_of(int64_t rows, int64_t cols, enum dtype type) {
    return (size_t)(rows * cols) * (type == DTYPE_F32 ? 4 : 2);
}

static int32_t own(const struct comm *comm, const int32_t *offsets) {
    return offsets[comm->rank + 1] - offsets[comm->rank];
}

static void count_scatter(struct comm *comm, size_t own_bytes) {
    comm->received += (uint64_t)(comm->n - 1) * own_bytes;
}

static void count_all_reduce(struct comm *comm, int32_t rows, int32_t cols, enum dtype type) {
    comm->received += 2 * (uint64_t)(comm->n - 1) * bytes_of(rows, cols, type) / (uint64_t)comm->n;
}

void comm_all_reduce(struct comm *comm, dev_addr x, int32_t rows, int32_t cols, enum dtype type) {
    if (comm->n == 1) return;
    count_all_reduce(comm, rows, cols, type);
    comm->ops->all_reduce(comm, x, rows, cols, type);
}

void comm_all_reduce_norm(struct comm *comm, const struct comm_norm *norm, int32_t rows, int32_t cols) {
    const struct comm_norm *a = norm;
    if (comm->n > 1 && comm->ops->all_reduce_norm && comm->ops->all_reduce_norm(comm, a, rows, cols)) {
        count_all_reduce(comm, rows, cols, DTYPE_F32);
        return;
    }
    comm_all_reduce(comm, a->y, rows, cols, DTYPE_F32);
    comm->ctx->ops->add_rmsnorm(comm->ctx, a->out, a->x, a->y, a->scale, a->g, rows, cols, a->eps);
}

void comm_reduce_scatter(struct comm *comm, dev_addr out, dev_addr x, int32_t rows,
                         const int32_t *offsets, enum dtype type) {
    count_scatter(comm, bytes_of(rows, own(comm, offsets), type));
    comm->ops->reduce_scatter(comm, out, x, rows, offsets, type);
}

void comm_all_gather(struct comm *comm, dev_addr out, dev_addr x, int32_t rows,
                     const int32_t *offsets, enum dtype type) {
    comm->received += bytes_of(rows, offsets[comm->n] - own(comm, offsets), type);
    comm->ops->all_gather(comm, out, x, rows, offsets, type);
}

void comm_reduce_scatter_rows(struct comm *comm, dev_addr x, int32_t cols, const int32_t *offsets,
                              enum dtype type) {
    if (comm->n == 1) return;
    count_scatter(comm, bytes_of(own(comm, offsets), cols, type));
    comm->ops->reduce_scatter_rows(comm, x, cols, offsets, type);
}

void comm_all_gather_rows(struct comm *comm, dev_addr x, int32_t cols, const int32_t *offsets,
                          enum dtype type) {
    if (comm->n == 1) return;
    comm->received += bytes_of(offsets[comm->n] - own(comm, offsets), cols, type);
    comm->ops->all_gather_rows(comm, x, cols, offsets, type);
}

void comm_broadcast(struct comm *comm, dev_addr x, size_t bytes, int root) {
    if (comm->n == 1) return;
    if (comm->rank != root) comm->received += bytes;
    comm->ops->broadcast(comm, x, bytes, root);
}

void comm_barrier(struct comm *comm) {
    if (comm->n > 1) comm->ops->barrier(comm);
}

enum replay comm_replay(struct comm *comm, uint64_t key) {
    const struct kernels *ops = comm->ctx->ops;
    if (!ops->replay_state) return REPLAY_PLAIN;
    enum replay mine = ops->replay_state(comm->ctx, key);
    return comm->n > 1 ? comm_cuda_replay(comm, mine) : mine;
}
