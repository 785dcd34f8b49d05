#include "ipc/cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_DEADLINE_MS = 30000, DEFAULT_STAGING = 256 * 1024, LINE = 64 };

/* Where bench_comm saw two-shot overtake one-shot: ranks that spin meet within 0.1 us, those that
 * share cores and sleep need some 20 us. */
enum { ONE_SHOT_SPINNING = 1024, ONE_SHOT_SLEEPING = 64 * 1024 };

_Static_assert(offsetof(struct rank_state, reduced) == LINE, "an arrival is one cache line");

int comm_world_new(struct comm_world **out, int n, size_t staging_bytes, int deadline_ms,
                   struct error *e) {
    *out = NULL;
    if (n < 1 || n > COMM_MAX_RANKS)
        return error_set(e, ERR_CONFIG, "%d ranks: there can be 1 to %d", n, COMM_MAX_RANKS);
    if (staging_bytes == 0) staging_bytes = DEFAULT_STAGING;
    size_t slot = (staging_bytes + LINE - 1) / LINE * LINE;
    size_t size = sizeof(struct comm_world) + (size_t)n * sizeof(struct rank_state);
    struct comm_world *world = aligned_alloc(LINE, (size + LINE - 1) / LINE * LINE);
    uint8_t *staging = slot >= staging_bytes && slot <= SIZE_MAX / 2 / (size_t)n
                           ? aligned_alloc(LINE, slot * 2 * (size_t)n)
                           : NULL;
    if (!world || !staging) {
        free(world);
        free(staging);
        return error_set(e, ERR_MEMORY, "no memory for the buffers of %d ranks, %zu bytes each", n,
                         2 * slot);
    }
    memset(world, 0, size);
    world->n = n;
    world->staging_bytes = slot;
    world->one_shot_max = wait_spin_get() > 0 ? ONE_SHOT_SPINNING : ONE_SHOT_SLEEPING;
    enum { ONE_SHOT_FEW = 256 << 10, ONE_SHOT_MANY = 128 << 10 }; /* n - 1 messages come in */
    world->cuda_one_shot_max = n <= 4 ? ONE_SHOT_FEW : ONE_SHOT_MANY;
    world->cuda_two_shot_max = SIZE_MAX;
    world->deadline_ms = deadline_ms > 0 ? deadline_ms : DEFAULT_DEADLINE_MS;
    world->staging = staging;
    pthread_mutex_init(&world->lock, NULL);
    for (int r = 0; r < n; r++) world->ranks[r].staging = staging + (size_t)r * 2 * slot;
    *out = world;
    return 0;
}

void comm_world_free(struct comm_world *world) {
    if (!world) return;
    comm_cuda_world_free(world);
    free(world->tuning_path);
    pthread_mutex_destroy(&world->lock);
    free(world->staging);
    free(world);
}

int comm_world_tuning(struct comm_world *world, const char *path, struct error *e) {
    free(world->tuning_path);
    world->tuning_path = strdup(path);
    return world->tuning_path ? 0 : error_set(e, ERR_MEMORY, "no memory for a path");
}

void comm_world_abort(struct comm_world *world, const struct error *why) {
    pthread_mutex_lock(&world->lock);
    if (!atomic_load(&world->aborted)) {
        world->why = *why;
        atomic_store(&world->aborted, 1);
    }
    pthread_mutex_unlock(&world->lock);
    comm_cuda_world_abort(world);
    for (int r = 0; r < world->n; r++) wait_notify(&world->ranks[r].bell);
}

bool comm_world_aborted(const struct comm_world *world) {
    return atomic_load(&world->aborted);
}

/* Epochs never go back: all ranks go on from the number of the one that came furthest. */
void comm_world_reset(struct comm_world *world) {
    struct error e;
    if (comm_cuda_world_reset(world, &e)) { /* it stays aborted, for this reason */
        world->why = e;
        return;
    }
    uint64_t posted = 0, calls = 0, pieces = 0, tiles = 0;
    for (int r = 0; r < world->n; r++) {
        struct rank_state *rank = &world->ranks[r];
        if (atomic_load(&rank->posted) > posted) posted = atomic_load(&rank->posted);
        if (rank->calls > calls) calls = rank->calls;
        if (rank->pieces > pieces) pieces = rank->pieces;
        uint64_t reduced = atomic_load(&rank->reduced), gathered = atomic_load(&rank->gathered);
        if (reduced > tiles) tiles = reduced;
        if (gathered > tiles) tiles = gathered;
    }
    for (int r = 0; r < world->n; r++) {
        struct rank_state *rank = &world->ranks[r];
        atomic_store(&rank->posted, posted);
        atomic_store(&rank->reduced, tiles);
        atomic_store(&rank->gathered, tiles);
        rank->calls = calls;
        rank->pieces = pieces;
        rank->tiles = tiles;
    }
    atomic_store(&world->aborted, 0);
}

/* --- calls ----------------------------------------------------------------------------------- */

/* FNV-1a over the offsets. */
static uint32_t hash_offsets(const int32_t *offsets, int n) {
    uint32_t hash = 2166136261u;
    for (int i = 0; i <= n; i++) hash = (hash ^ (uint32_t)offsets[i]) * 16777619u;
    return hash;
}

struct call comm_call_by_offsets(uint8_t op, enum dtype type, int32_t rows, const int32_t *offsets,
                                 int n) {
    return (struct call){.op = op,
                         .type = (uint8_t)type,
                         .rows = rows,
                         .cols = offsets[n],
                         .layout = hash_offsets(offsets, n)};
}

struct call comm_call_broadcast(size_t bytes, int root) {
    return (struct call){.op = OP_BROADCAST,
                         .rows = (int32_t)(bytes >> 32),
                         .cols = (int32_t)(uint32_t)bytes,
                         .root = (uint8_t)root};
}

/* --- failing --------------------------------------------------------------------------------- */

static void call_text(const struct call *call, char *buf, size_t size) {
    static const char *const ops[] = {"all_reduce", "reduce_scatter", "all_gather",
                                      "reduce_scatter_rows", "all_gather_rows", "all_reduce_norm"};
    static const char *const algorithms[] = {"", ", one-shot", ", two-shot", ", ring"};
    if (call->op == OP_BARRIER) snprintf(buf, size, "barrier");
    else if (call->op == OP_REPLAY) snprintf(buf, size, "a step that may come again");
    else if (call->op == OP_CONNECT)
        snprintf(buf, size, "connecting the devices (step %d)", call->rows);
    else if (call->op == OP_BROADCAST)
        snprintf(buf, size, "broadcast of %llu bytes from rank %d",
                 (unsigned long long)(uint32_t)call->rows << 32 | (uint32_t)call->cols, call->root);
    else
        snprintf(buf, size, "%s of %s [%d, %d]%s", ops[call->op],
                 dtype_info((enum dtype)call->type)->name, call->rows, call->cols,
                 algorithms[call->algorithm]);
}

/* Marks the context with the reason of the abort that happened. */
static bool fail(struct comm *comm) {
    kctx_fail(comm->ctx, &comm->world->why);
    return false;
}

static bool fail_with(struct comm *comm, const struct error *why) {
    comm_world_abort(comm->world, why);
    return fail(comm);
}

static bool fail_mismatch(struct comm *comm, int peer, const struct call *mine,
                          const struct call *theirs) {
    struct error e;
    char a[128], b[128];
    call_text(mine, a, sizeof a);
    call_text(theirs, b, sizeof b);
    error_set(&e, ERR_DEVICE, "the ranks disagree: rank %d calls %s, rank %d calls %s%s",
              comm->rank, a, peer, b, strcmp(a, b) == 0 ? " with other offsets" : "");
    return fail_with(comm, &e);
}

static bool fail_late(struct comm *comm, int peer) {
    struct error e;
    char text[128];
    call_text(&comm->me->arrivals[comm->me->calls & 1].call, text, sizeof text);
    error_set(&e, ERR_DEVICE, "rank %d waited %d ms for rank %d in %s", comm->rank,
              comm->world->deadline_ms, peer, text);
    error_note_number(&e, "rank", peer);
    return fail_with(comm, &e);
}

/* --- waiting --------------------------------------------------------------------------------- */

void comm_publish(struct comm *comm, _Atomic uint64_t *counter, uint64_t value) {
    /* Sequentially consistent: it must not pass the look at the bell's sleepers. */
    atomic_store(counter, value);
    wait_notify(&comm->me->bell);
}

bool comm_wait(struct comm *comm, int peer, const _Atomic uint64_t *counter, uint64_t target) {
    struct comm_world *world = comm->world;
    for (int spins = wait_spin_get(); spins >= 0; spins--) {
        if (atomic_load_explicit(counter, memory_order_acquire) >= target) return true;
        if (comm_world_aborted(world)) return fail(comm);
        wait_pause();
    }
    if (comm->deadline_ns == 0)
        comm->deadline_ns = clock_ns() + (int64_t)world->deadline_ms * 1000000;
    struct wait_word *bell = &world->ranks[peer].bell;
    for (;;) {
        uint32_t ticket = wait_begin(bell);
        bool there = atomic_load(counter) >= target, aborted = comm_world_aborted(world);
        bool in_time = there || aborted || wait_sleep(bell, ticket, comm->deadline_ns);
        wait_end(bell);
        if (there) return true;
        if (aborted) return fail(comm);
        if (!in_time && atomic_load(counter) < target) return fail_late(comm, peer);
    }
}

/* --- phases ---------------------------------------------------------------------------------- */

/* Counts one more post of this rank, for all to see. */
static uint64_t post(struct comm *comm) {
    uint64_t epoch = atomic_load_explicit(&comm->me->posted, memory_order_relaxed) + 1;
    comm_publish(comm, &comm->me->posted, epoch);
    return epoch;
}

/* After an abort: lets the peers that had passed comm_touch before it finish. */
static bool withdraw(struct comm *comm) {
    for (int p = 0; p < comm->n; p++)
        while (atomic_load(&comm->world->ranks[p].touching)) sched_yield();
    return false;
}

bool comm_arrive(struct comm *comm, const struct call *call, void *data) {
    if (kctx_failed(comm->ctx)) return fail_with(comm, &comm->ctx->error);
    if (comm_world_aborted(comm->world)) return fail(comm);
    comm->deadline_ns = 0;
    unsigned slot = ++comm->me->calls & 1;
    comm->me->arrivals[slot] = (struct arrival){*call, data};
    uint64_t epoch = post(comm);
    for (int p = 0; p < comm->n; p++) {
        const struct rank_state *peer = &comm->world->ranks[p];
        if (!comm_wait(comm, p, &peer->posted, epoch)) return withdraw(comm);
        const struct call *theirs = &peer->arrivals[slot].call;
        if (memcmp(theirs, call, sizeof *call) != 0) return fail_mismatch(comm, p, call, theirs);
    }
    return true;
}

bool comm_touch(struct comm *comm) {
    /* A peer that withdraws looks at touching after it has seen the abort; this rank looks for an
     * abort after it has set touching: one of the two sees the other. */
    atomic_store(&comm->me->touching, 1);
    if (!comm_world_aborted(comm->world)) return true;
    atomic_store(&comm->me->touching, 0);
    fail(comm);
    return withdraw(comm);
}

bool comm_leave(struct comm *comm, bool ok) {
    atomic_store(&comm->me->touching, 0);
    if (!ok) return withdraw(comm);
    uint64_t epoch = post(comm);
    for (int p = 0; p < comm->n; p++)
        if (!comm_wait(comm, p, &comm->world->ranks[p].posted, epoch)) return withdraw(comm);
    return true;
}
