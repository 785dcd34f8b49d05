/* ipc/comm.h: collectives between the ranks of one machine.
 *
 * A world is made once for n ranks; each rank takes its `struct comm` and calls the collectives on
 * its own thread, all ranks the same calls in the same order. Buffers are in the rank's device
 * memory (dev_addr of its context). A call may only enqueue; on the CPU it runs at once, and when
 * it returns no peer reads or writes the caller's buffers any more. On a plan context it does
 * nothing.
 *
 * Sums: fp32, in the fixed order of rank 0, 1, … n-1 for every element, rounded once; so every rank
 * ends with the same bits, whichever algorithm ran, and a row's sum does not depend on the number
 * of rows beside it. (The payload of a NaN is not promised.)
 *
 * Failure: a call that waits longer than the world's deadline, whose peers came with another call
 * (operation, shape, type or algorithm), or that meets an abort, marks the context (kctx_fail) and
 * aborts the world, so that every other rank comes back too. What the buffers hold is then
 * undefined. All ranks report the reason of the first abort: ERR_DEVICE for a deadline or a
 * mismatch. A call on a context that has failed already aborts the world with that error. After an
 * abort, every call fails at once until comm_world_reset, which is for when no rank is inside a
 * call.
 *
 * How it works and why it is right: docs/collectives.md. */
#ifndef TPD_IPC_COMM_H
#define TPD_IPC_COMM_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { COMM_MAX_RANKS = 64 };

enum comm_algorithm {
    COMM_AUTO,
    COMM_ONE_SHOT, /* every rank reads all peers */
    COMM_TWO_SHOT, /* every rank sums its columns from all peers and hands them to all */
    COMM_RING /* tiles flow from neighbour to neighbour: summed along 0 … n-1, then passed on */
};

struct comm_world;
struct comm;

/* staging_bytes: what one rank may post at once (a one-shot message; default for 0: 256 KiB);
 * larger ones go in pieces. deadline_ms: how long a call waits for its peers (default for 0: 30
 * 000). Call it after wait_spin_set: COMM_AUTO chooses by whether waiting ranks spin. */
int comm_world_new(struct comm_world **out, int n, size_t staging_bytes, int deadline_ms,
                   struct error *e);
void comm_world_free(struct comm_world *world);
/* Before the first call: the file where CUDA ranks keep up to what size which all-reduce is the fastest
 * (COMM_AUTO). Where it does not know these devices the first call measures, which takes a moment, and adds a
 * line to it. Without a file they take sizes that are usual. */
int comm_world_tuning(struct comm_world *world, const char *path, struct error *e);
/* Any thread: frees all ranks that wait. The first why is kept as the reason they report. */
void comm_world_abort(struct comm_world *world, const struct error *why);
bool comm_world_aborted(const struct comm_world *world);
void comm_world_reset(struct comm_world *world);

/* Rank's end of the world, bound to its context. For a world of 1 every call is free. */
int comm_open(struct comm **out, struct comm_world *world, int rank, struct kctx *c,
              struct error *e);
void comm_close(struct comm *comm);
int comm_size(const struct comm *comm);
int comm_rank(const struct comm *comm);
/* For tests and the bench, on all ranks alike; COMM_AUTO is the default (by size). */
void comm_force(struct comm *comm, enum comm_algorithm algorithm);

/* x[rows, cols] = sum over ranks, in place. type: f32 or bf16 (summed in fp32). */
void comm_all_reduce(struct comm *comm, dev_addr x, int32_t rows, int32_t cols, enum dtype type);
/* x += scale * (sum over ranks of y), then out = x * g / sqrt(mean(x^2) + eps), for each row: an all-reduce
 * of y and add_rmsnorm of kernels.h, to the bit, and on CUDA one kernel where rows are few. x, y, out
 * [rows, cols] f32, g [cols]. What y holds afterwards is not said. CPU ranks share many rows out, and then only one
 * of them has the sum in a row of x: what goes on from this x must be calls with as many rows. */
struct comm_norm {
    dev_addr y, x, out, g;
    float scale, eps;
};
void comm_all_reduce_norm(struct comm *comm, const struct comm_norm *norm, int32_t rows, int32_t cols);
/* Rank r ends with out[rows, cols_r]: columns offsets[r] … offsets[r+1]-1 of the sum of all x
 * [rows, offsets[n]]. offsets: host memory, n + 1 entries. out may not overlap x. */
void comm_reduce_scatter(struct comm *comm, dev_addr out, dev_addr x, int32_t rows,
                         const int32_t *offsets, enum dtype type);
/* out[rows, offsets[n]] on every rank, from x[rows, cols_r] of each. out may not overlap x. */
void comm_all_gather(struct comm *comm, dev_addr out, dev_addr x, int32_t rows,
                     const int32_t *offsets, enum dtype type);
/* The same along rows, in place, for x [offsets[n], cols]: rank r's own rows are offsets[r] …
 * offsets[r+1]-1 (it may have none).
 * reduce_scatter: own rows become the sum over ranks; what other rows hold then is not said.
 * all_gather: the other rows come from their owners. One after the other they are an all-reduce, to the
 * bit. */
void comm_reduce_scatter_rows(struct comm *comm, dev_addr x, int32_t cols, const int32_t *offsets,
                              enum dtype type);
void comm_all_gather_rows(struct comm *comm, dev_addr x, int32_t cols, const int32_t *offsets,
                          enum dtype type);
/* bytes at x, from root to all. */
void comm_broadcast(struct comm *comm, dev_addr x, size_t bytes, int root);
void comm_barrier(struct comm *comm);
/* Before a step that may come again (kernels.h): what all ranks can do of it, which all then do, each with a
 * key of its own. Collectives inside a recorded step go on counting when it runs again, and all ranks have come
 * to this call before any runs it; comm_received does not count them. */
enum replay comm_replay(struct comm *comm, uint64_t key);

/* Bytes that this rank had to get from its peers so far, reckoned alike for every algorithm and also on a
 * plan context: a scatter brings n - 1 parts for each own element, a gather what is not own, and an
 * all-reduce is one of each with even shares. */
uint64_t comm_received(const struct comm *comm);

#ifdef __cplusplus
}
#endif

#endif
