/* ipc/cpu_all_reduce.c: three ways to the same bits; see docs/collectives.md. */
#include "ipc/cpu.h"
#include "ipc/sum.h"

#include <string.h>

enum {
    SLICE_GRAIN = 16,      /* columns: a cache line of f32 is written by one rank */
    PIECE = 1024,          /* elements summed before they are handed on */
    RING_TILE = 16 * 1024, /* bytes of partial sums in a tile */
    RING_LANE = 4          /* tiles that a rank may be ahead of its right neighbour */
};

static struct call call_of(enum comm_algorithm algorithm, int32_t rows, int32_t cols,
                           enum dtype type) {
    return (struct call){.op = OP_ALL_REDUCE,
                         .type = (uint8_t)type,
                         .rows = rows,
                         .cols = cols,
                         .algorithm = (uint8_t)algorithm};
}

/* Every rank stages its piece, and when all have arrived sums all slots. A piece that is staged
 * while peers still read the one before goes to the other slot; nobody stages a third before all
 * have arrived with the second, and so have read the first. */
static void one_shot(struct comm *comm, uint8_t *x, int32_t rows, int32_t cols, enum dtype type) {
    struct call call = call_of(COMM_ONE_SHOT, rows, cols, type);
    size_t slot = comm->world->staging_bytes,
           bytes = (size_t)rows * (size_t)cols * comm_size_of(type);
    for (size_t done = 0; done < bytes; done += slot) {
        size_t part = bytes - done < slot ? bytes - done : slot;
        size_t parity = (comm->me->pieces++ & 1) * slot;
        memcpy(comm->me->staging + parity, x + done, part);
        if (!comm_arrive(comm, &call, NULL)) return;
        const void *src[COMM_MAX_RANKS];
        for (int p = 0; p < comm->n; p++) src[p] = comm->world->ranks[p].staging + parity;
        sum_all(x + done, src, comm->n, part / comm_size_of(type), type);
    }
}

/* Every rank sums its own columns of all inputs, where they lie, and writes the sums back into all.
 * No other rank reads or writes these columns, so nothing is overwritten before it is read. */
static void two_shot(struct comm *comm, uint8_t *x, int32_t rows, int32_t cols, enum dtype type) {
    struct call call = call_of(COMM_TWO_SHOT, rows, cols, type);
    if (!comm_arrive(comm, &call, x) || !comm_touch(comm)) return;
    size_t size = comm_size_of(type);
    int64_t from, to;
    team_slice(cols, SLICE_GRAIN, comm->rank, comm->n, &from, &to);
    for (int32_t row = 0; row < rows; row++)
        for (int64_t col = from; col < to; col += PIECE) {
            size_t count = (size_t)(to - col < PIECE ? to - col : PIECE);
            size_t offset = ((size_t)row * (size_t)cols + (size_t)col) * size;
            const void *src[COMM_MAX_RANKS];
            float sum[PIECE];
            for (int p = 0; p < comm->n; p++)
                src[p] = (const uint8_t *)comm_peer_data(comm, p) + offset;
            sum_all(sum, src, comm->n, count, type);
            for (int p = 0; p < comm->n; p++)
                memcpy((uint8_t *)comm_peer_data(comm, p) + offset, sum, count * size);
        }
    comm_leave(comm, true);
}

/* --- ring ------------------------------------------------------------------------------------ */

/* A message cut into tiles: some rows of some columns, at most max elements each. */
struct tiling {
    int64_t rows, cols;           /* of the message */
    int64_t tile_rows, tile_cols; /* of a whole tile */
    int64_t across, count;        /* tiles in a row of tiles, and in all */
};

struct tile {
    size_t offset; /* of its first element in the message */
    size_t rows, cols;
};

static struct tiling tile_message(int32_t rows, int32_t cols, int64_t max) {
    struct tiling t = {.rows = rows, .cols = cols};
    t.tile_cols = cols < max ? cols : max;
    t.tile_rows = max / t.tile_cols;
    t.across = (cols + t.tile_cols - 1) / t.tile_cols;
    t.count = (rows + t.tile_rows - 1) / t.tile_rows * t.across;
    return t;
}

static struct tile tile_at(const struct tiling *t, int64_t index) {
    int64_t row = index / t->across * t->tile_rows, col = index % t->across * t->tile_cols;
    int64_t rows = t->rows - row < t->tile_rows ? t->rows - row : t->tile_rows;
    int64_t cols = t->cols - col < t->tile_cols ? t->cols - col : t->tile_cols;
    return (struct tile){(size_t)(row * t->cols + col), (size_t)rows, (size_t)cols};
}

struct ring {
    struct comm *comm;
    struct tiling tiling;
    enum dtype type;
    uint64_t base; /* tiles of earlier rings */
    int prev, next;
};

/* Partial sums of tile index on this rank, as dense f32. */
static float *lane_of(const struct ring *ring, int rank, int64_t index) {
    const struct comm_world *world = ring->comm->world;
    size_t tile_bytes = 2 * world->staging_bytes / RING_LANE;
    size_t at = (ring->base + (uint64_t)index) % RING_LANE * tile_bytes;
    return (float *)(void *)(world->ranks[rank].staging + at);
}

/* Adds this rank's tile to the sum of the ranks before it: into the lane for the next one, or on
 * the last rank as the result. Rank 0 has nothing to add to; rank 1 reads its data where it lies.
 */
static bool ring_reduce(const struct ring *ring, int64_t index) {
    struct comm *comm = ring->comm;
    struct rank_state *prev = &comm->world->ranks[ring->prev];
    struct rank_state *next = &comm->world->ranks[ring->next];
    uint64_t number = ring->base + (uint64_t)index + 1;
    bool last = comm->rank == comm->n - 1, second = comm->rank == 1;
    if (comm->rank == 0) return true;
    if (!second && !comm_wait(comm, ring->prev, &prev->reduced, number)) return false;
    if (!last && index >= RING_LANE &&
        !comm_wait(comm, ring->next, &next->reduced, number - RING_LANE))
        return false;
    struct tile tile = tile_at(&ring->tiling, index);
    size_t size = comm_size_of(ring->type), cols = (size_t)ring->tiling.cols;
    for (size_t row = 0; row < tile.rows; row++) {
        size_t offset = (tile.offset + row * cols) * size;
        uint8_t *mine = (uint8_t *)comm_peer_data(comm, comm->rank) + offset;
        const void *partial = second ? (uint8_t *)comm_peer_data(comm, 0) + offset
                                     : (void *)(lane_of(ring, ring->prev, index) + row * tile.cols);
        enum dtype partial_type = second ? ring->type : DTYPE_F32;
        if (last) sum_onto(mine, ring->type, partial, partial_type, tile.cols);
        else
            sum_pair(lane_of(ring, comm->rank, index) + row * tile.cols, partial, partial_type,
                     mine, ring->type, tile.cols);
    }
    comm_publish(comm, &comm->me->reduced, number);
    if (last) comm_publish(comm, &comm->me->gathered, number);
    return true;
}

/* Takes the result of a tile from the rank before; the last rank made it. */
static bool ring_gather(const struct ring *ring, int64_t index) {
    struct comm *comm = ring->comm;
    uint64_t number = ring->base + (uint64_t)index + 1;
    if (comm->rank == comm->n - 1) return true;
    if (!comm_wait(comm, ring->prev, &comm->world->ranks[ring->prev].gathered, number))
        return false;
    struct tile tile = tile_at(&ring->tiling, index);
    size_t size = comm_size_of(ring->type), cols = (size_t)ring->tiling.cols;
    const uint8_t *from = comm_peer_data(comm, ring->prev);
    uint8_t *to = comm_peer_data(comm, comm->rank);
    for (size_t row = 0; row < tile.rows; row++) {
        size_t offset = (tile.offset + row * cols) * size;
        memcpy(to + offset, from + offset, tile.cols * size);
    }
    comm_publish(comm, &comm->me->gathered, number);
    return true;
}

/* A rank gathers n tiles behind its own reducing, so that the chain is full when results come. */
static bool ring_run(const struct ring *ring) {
    int64_t lag = ring->comm->n;
    for (int64_t i = 0; i < ring->tiling.count + lag; i++) {
        if (i < ring->tiling.count && !ring_reduce(ring, i)) return false;
        if (i >= lag && !ring_gather(ring, i - lag)) return false;
    }
    return true;
}

static void ring_all_reduce(struct comm *comm, uint8_t *x, int32_t rows, int32_t cols,
                            enum dtype type) {
    struct call call = call_of(COMM_RING, rows, cols, type);
    if (!comm_arrive(comm, &call, x) || !comm_touch(comm)) return;
    size_t lane = 2 * comm->world->staging_bytes / RING_LANE;
    int64_t max = (int64_t)((lane < RING_TILE ? lane : RING_TILE) / sizeof(float));
    struct ring ring = {.comm = comm,
                        .tiling = tile_message(rows, cols, max),
                        .type = type,
                        .base = comm->me->tiles,
                        .prev = (comm->rank + comm->n - 1) % comm->n,
                        .next = (comm->rank + 1) % comm->n};
    comm->me->tiles += (uint64_t)ring.tiling.count;
    comm_leave(comm, ring_run(&ring));
}

void comm_cpu_all_reduce(struct comm *comm, dev_addr x, int32_t rows, int32_t cols,
                         enum dtype type) {
    size_t bytes = (size_t)rows * (size_t)cols * comm_size_of(type);
    if (bytes == 0) return;
    enum comm_algorithm algorithm = comm->forced;
    if (algorithm == COMM_AUTO)
        algorithm = bytes <= comm->world->one_shot_max ? COMM_ONE_SHOT : COMM_TWO_SHOT;
    uint8_t *data = kernels_cpu_pointer(comm->ctx, x);
    if (algorithm == COMM_ONE_SHOT) one_shot(comm, data, rows, cols, type);
    else if (algorithm == COMM_TWO_SHOT) two_shot(comm, data, rows, cols, type);
    else ring_all_reduce(comm, data, rows, cols, type);
}
