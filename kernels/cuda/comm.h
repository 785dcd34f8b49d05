/* kernels/cuda/comm.h: what the ranks of a world of CUDA devices do together, for ipc/ to build on.
 *
 * A rank's end (`struct cuda_comm`) has a region that its peers write into: flags, slots and the ring's
 * lanes. It lies in the rank's own device memory where every device can reach every other ("direct"), else
 * in pinned host memory ("staged"): then what ranks give each other goes through the slots, in pieces.
 *
 * Operations enqueue kernels on the context's stream. All ranks enqueue the same ones in the same order,
 * and none before all have arrived at the call on the host: so a kernel that waits for its peers waits for
 * kernels that are about to be launched, never for a host that allocates or frees.
 *
 * A kernel that waits too long, or meets a peer in another call, writes the reason into the world's abort
 * word; every wait of every kernel then ends, and kernels that start later touch nothing. */
#ifndef TPD_KERNELS_CUDA_COMM_H
#define TPD_KERNELS_CUDA_COMM_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CUDA_COMM_RANKS = 16 };

struct cuda_comm_world;
struct cuda_comm;

/* Why the kernels gave up. */
enum cuda_comm_reason { CUDA_COMM_FINE, CUDA_COMM_LATE, CUDA_COMM_MISMATCH, CUDA_COMM_TOLD };
struct cuda_comm_failure {
    enum cuda_comm_reason reason;
    int rank, peer; /* who found it, and in whom */
};

/* Rows of columns, dealt to ranks: rank r has columns offsets[r] … offsets[r + 1] - 1. */
struct cuda_comm_shape {
    int64_t rows;
    int64_t offsets[CUDA_COMM_RANKS + 1];
};

/* One collective. at[p]: the buffer that rank p posted (looked at when direct; at[rank] always). */
struct cuda_comm_call {
    uint32_t signature; /* of the call: equal on all ranks, or the kernels give up */
    enum dtype type;    /* f32 or bf16; of what is summed */
    int32_t element;    /* 4, 2 or 1: bytes of an element of what is only moved */
    dev_addr at[CUDA_COMM_RANKS];
    dev_addr out;
    struct cuda_comm_shape shape;
};

/* What follows an all-reduce of y: x += scale * sum of y, out = rmsnorm(x) with g and eps. */
struct cuda_comm_norm {
    dev_addr y, x, out, g;
    float scale, eps;
};

struct cuda_comm_table {
    /* --- the world: any thread --- */
    int (*world_new)(struct cuda_comm_world **out, int n, size_t slot_bytes, int deadline_ms,
                     struct error *e);
    void (*world_free)(struct cuda_comm_world *world);
    /* Ends all waits of kernels. */
    void (*abort)(struct cuda_comm_world *world);
    struct cuda_comm_failure (*failure)(const struct cuda_comm_world *world);
    /* Waits until nothing that was enqueued may still touch a peer's memory. Only after an abort. */
    void (*withdraw)(struct cuda_comm_world *world);
    /* Puts all ranks at the number of the one that came furthest. When no rank is inside a call. */
    int (*reset)(struct cuda_comm_world *world, struct error *e);

    /* The devices' names in the order of ranks; when all ends are open. */
    void (*names)(struct cuda_comm_world *world, char *out, size_t size);
    size_t tune_bytes; /* the largest message that is worth measuring */

    /* --- a rank's end: the rank's thread --- */
    int (*open)(struct cuda_comm **out, struct cuda_comm_world *world, int rank, struct kctx *c,
                struct error *e);
    void (*close)(struct cuda_comm *comm);
    /* fn(arg) runs in the context's wait, when its stream is idle and before its error is taken. */
    void (*on_wait)(struct cuda_comm *comm, void (*fn)(void *arg), void *arg);

    /* --- making the connection: each step on all ranks, with a barrier of the host between them --- */
    /* Asks for access to all peers' memory. */
    int (*enable)(struct cuda_comm *comm, struct error *e);
    /* Writes a pattern into every peer's region and its own. */
    int (*write_pattern)(struct cuda_comm *comm, struct error *e);
    /* Looks whether the peers' patterns came here, and whether their own are seen from here. */
    int (*read_pattern)(struct cuda_comm *comm, struct error *e);
    /* Takes the way that all pairs allow; why (when not NULL) gets what stands against the direct one. */
    int (*connect)(struct cuda_comm *comm, bool *direct, char *why, size_t why_size, struct error *e);

    /* --- collectives; elements, addresses and sums as in ipc/comm.h --- */
    /* All-reduce of at[rank] [offsets[n]] in place, through the slots: any size, in pieces. */
    void (*one_shot)(struct cuda_comm *comm, const struct cuda_comm_call *call);
    /* The same, each rank summing its part by offsets; only when direct. */
    void (*two_shot)(struct cuda_comm *comm, const struct cuda_comm_call *call);
    /* The same, from neighbour to neighbour; only when direct. */
    void (*ring)(struct cuda_comm *comm, const struct cuda_comm_call *call);
    /* out [rows, own columns] = sum over ranks of these columns of at [rows, all columns]. */
    void (*reduce_scatter)(struct cuda_comm *comm, const struct cuda_comm_call *call);
    /* Own columns of out [rows, all columns] are at[rank] [rows, own columns]; those of peers likewise. */
    void (*all_gather)(struct cuda_comm *comm, const struct cuda_comm_call *call);
    void (*barrier)(struct cuda_comm *comm, uint32_t signature);
    /* Rows of at[rank] [shape.rows, offsets[n]] f32, which fit into a slot, summed over the ranks; y of norm
     * is at[rank]. */
    void (*reduce_norm)(struct cuda_comm *comm, const struct cuda_comm_call *call,
                        const struct cuda_comm_norm *norm);
};

extern const struct cuda_comm_table cuda_comm_table;

#ifdef __cplusplus
}
#endif

#endif
