#include "ipc/world.h"

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

static void plan_broadcast(struct comm *comm, dev_addr x, size_t bytes, int root) {
    (void)comm, (void)x, (void)bytes, (void)root;
}

static void plan_barrier(struct comm *comm) {
    (void)comm;
}

static const struct comm_ops plan_ops = {plan_all_reduce, plan_exchange, plan_exchange,
                                         plan_broadcast, plan_barrier};

int comm_open(struct comm **out, struct comm_world *world, int rank, struct kctx *c,
              struct error *e) {
    *out = NULL;
    const struct comm_ops *ops = strcmp(c->ops->name, "cpu") == 0    ? &comm_cpu_ops
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
    *out = comm;
    return 0;
}

void comm_close(struct comm *comm) {
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

void comm_all_reduce(struct comm *comm, dev_addr x, int32_t rows, int32_t cols, enum dtype type) {
    if (comm->n > 1) comm->ops->all_reduce(comm, x, rows, cols, type);
}

void comm_reduce_scatter(struct comm *comm, dev_addr out, dev_addr x, int32_t rows,
                         const int32_t *offsets, enum dtype type) {
    comm->ops->reduce_scatter(comm, out, x, rows, offsets, type);
}

void comm_all_gather(struct comm *comm, dev_addr out, dev_addr x, int32_t rows,
                     const int32_t *offsets, enum dtype type) {
    comm->ops->all_gather(comm, out, x, rows, offsets, type);
}

void comm_broadcast(struct comm *comm, dev_addr x, size_t bytes, int root) {
    if (comm->n > 1) comm->ops->broadcast(comm, x, bytes, root);
}

void comm_barrier(struct comm *comm) {
    if (comm->n > 1) comm->ops->barrier(comm);
}
