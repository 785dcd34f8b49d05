/* ipc/world.h: what the ranks of a world share, and the primitives on it. Private to ipc/.
 *
 * A rank publishes by counters that only it writes and that only grow (epochs); peers wait until a
 * counter has reached a number. Those who wait long sleep on the bell of the rank they wait for. */
#ifndef TPD_IPC_WORLD_H
#define TPD_IPC_WORLD_H

#include "ipc/comm.h"

enum comm_op {
    OP_ALL_REDUCE,
    OP_REDUCE_SCATTER,
    OP_ALL_GATHER,
    OP_REDUCE_SCATTER_ROWS,
    OP_ALL_GATHER_ROWS,
    OP_ALL_REDUCE_NORM,
    OP_BROADCAST,
    OP_BARRIER,
    OP_REPLAY,
    OP_CONNECT /* a step of making the connection between devices */
};

/* What a rank is about to do: equal on all ranks, or the call fails. */
struct call {
    int32_t rows, cols;
    uint8_t op, type, algorithm, root;
    uint32_t layout; /* a hash of the offsets */
};

/* A rank's arrival at a call: the call, and the buffer that peers may then touch. */
struct arrival {
    struct call call;
    void *data;
};

struct rank_state {
    /* One line: peers that wait for `posted` get the arrival with it. The call number's parity
     * chooses the slot. */
    _Alignas(64) _Atomic uint64_t posted; /* arrivals and departures so far */
    struct arrival arrivals[2];

    _Alignas(
        64) _Atomic uint64_t reduced; /* tiles of all rings so far: partial sum is in the lane */
    _Atomic uint64_t gathered;        /* tiles of all rings so far: result is in data */

    _Alignas(64) _Atomic uint32_t touching; /* 1 while the rank may touch buffers of its peers */

    _Alignas(64) struct wait_word bell; /* for those who wait for this rank */

    /* Own counts, read by no other rank. */
    _Alignas(64) uint64_t calls; /* calls begun */
    uint64_t pieces;             /* pieces staged */
    uint64_t tiles;              /* ring tiles finished */
    uint8_t *staging;            /* two slots of staging_bytes */
};

struct comm_world {
    int n;
    size_t staging_bytes; /* a multiple of 64 */
    size_t one_shot_max;  /* bytes; larger messages are worth a second synchronisation */
    int deadline_ms;
    uint8_t *staging;
    _Atomic uint32_t aborted;
    pthread_mutex_t lock; /* guards why until aborted is set; then why is constant */
    struct error why;
    const struct cuda_comm_table *cuda; /* NULL until a rank on a CUDA device opens its end */
    struct cuda_comm_world *cuda_world;
    /* Largest messages in bytes, by default or from the tuning file (NULL: none). */
    size_t cuda_one_shot_max, cuda_two_shot_max;
    char *tuning_path;
    bool cuda_tuned;
    struct rank_state ranks[];
};

/* The ways to do the collectives: one table a kind of device. */
struct comm_ops {
    void (*all_reduce)(struct comm *comm, dev_addr x, int32_t rows, int32_t cols, enum dtype type);
    void (*reduce_scatter)(struct comm *comm, dev_addr out, dev_addr x, int32_t rows,
                           const int32_t *offsets, enum dtype type);
    void (*all_gather)(struct comm *comm, dev_addr out, dev_addr x, int32_t rows,
                       const int32_t *offsets, enum dtype type);
    void (*reduce_scatter_rows)(struct comm *comm, dev_addr x, int32_t cols, const int32_t *offsets,
                                enum dtype type);
    void (*all_gather_rows)(struct comm *comm, dev_addr x, int32_t cols, const int32_t *offsets,
                            enum dtype type);
    void (*broadcast)(struct comm *comm, dev_addr x, size_t bytes, int root);
    void (*barrier)(struct comm *comm);
    /* Optional: false when it does not take this size, on all ranks alike. */
    bool (*all_reduce_norm)(struct comm *comm, const struct comm_norm *norm, int32_t rows, int32_t cols);
};

struct comm {
    struct comm_world *world;
    struct rank_state *me;
    struct kctx *ctx;
    const struct comm_ops *ops;
    int rank, n;
    enum comm_algorithm forced;
    int64_t deadline_ns; /* of the call that runs; 0 until it first sleeps */
    uint64_t received;   /* comm_received */
    struct cuda_comm *cuda;
    bool connected, direct; /* its devices are; over peer memory */
};

extern const struct comm_ops comm_cpu_ops;

/* What a call is known by. In comm_call_by_offsets rank r has offsets[r] … offsets[r + 1] - 1 of the
 * columns (or of the rows, and then `rows` is their width). */
struct call comm_call_by_offsets(uint8_t op, enum dtype type, int32_t rows, const int32_t *offsets,
                                 int n);
struct call comm_call_broadcast(size_t bytes, int root);

/* Each of these returns false when the world is aborted (by itself, where it finds the reason): the
 * context is then marked and the caller returns. */

/* Waits until *counter, which belongs to rank peer, has reached target. */
bool comm_wait(struct comm *comm, int peer, const _Atomic uint64_t *counter, uint64_t target);
/* Posts call and buffer, waits for the same call from all. Then peers' buffers hold their inputs.
 */
bool comm_arrive(struct comm *comm, const struct call *call, void *data);
/* Between comm_touch and comm_leave peers' buffers may be touched. comm_leave returns when no peer
 * touches this rank's buffers any more, also when it returns false. */
bool comm_touch(struct comm *comm);
bool comm_leave(struct comm *comm, bool ok);
/* Sets one of the rank's own counters and wakes who waits for it. */
void comm_publish(struct comm *comm, _Atomic uint64_t *counter, uint64_t value);

/* The buffer that a peer posted for the call that runs. */
static inline void *comm_peer_data(const struct comm *comm, int peer) {
    return comm->world->ranks[peer].arrivals[comm->me->calls & 1].data;
}

#endif
