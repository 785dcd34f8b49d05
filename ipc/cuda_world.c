/* ipc/cuda_world.c: ranks on CUDA devices. A call arrives on the host first, as on the CPU: it compares
 * what the ranks call, tells them each other's buffers, and sees to it that no kernel waits for one that
 * nobody is about to launch. Then a kernel does the work (kernels/cuda/comm.h), in the order of the
 * stream; what fails there is found by the next call, or by the context's wait. */
#include "ipc/cuda.h"

#include "base/log.h"
#include "kernels/cuda/comm.h"
#include "kernels/cuda/table.h"

#include <string.h>

static const struct cuda_comm_table *table_of(const struct comm *comm) {
    return comm->world->cuda;
}

/* --- failures on the devices ------------------------------------------------------------------------- */

static bool give_up(struct comm *comm, const struct error *why) {
    comm_world_abort(comm->world, why);
    kctx_fail(comm->ctx, &comm->world->why);
    return false;
}

static void describe_failure(const struct comm_world *world, struct error *e) {
    struct cuda_comm_failure f = world->cuda->failure(world->cuda_world);
    if (f.reason == CUDA_COMM_MISMATCH)
        error_set(e, ERR_DEVICE, "the ranks disagree: the kernels of rank %d and of rank %d are in "
                  "different collectives", f.rank, f.peer);
    else
        error_set(e, ERR_DEVICE, "the kernels of rank %d waited %d ms for those of rank %d", f.rank,
                  world->deadline_ms, f.peer);
    error_note_number(e, "rank", f.peer);
}

/* Whether the kernels are well; if not, aborts the world. */
static bool look(struct comm *comm) {
    struct comm_world *world = comm->world;
    enum cuda_comm_reason reason = world->cuda->failure(world->cuda_world).reason;
    if (reason == CUDA_COMM_FINE) return true;
    struct error e = world->why;
    if (!comm_world_aborted(world)) describe_failure(world, &e);
    return give_up(comm, &e);
}

/* In the context's wait, when its stream is idle. After an abort no peer's kernel may be left that could
 * touch this rank's buffers, which the caller may free next. */
static void after_wait(void *arg) {
    struct comm *comm = arg;
    if (kctx_failed(comm->ctx)) comm_world_abort(comm->world, &comm->ctx->error);
    else if (comm_world_aborted(comm->world)) kctx_fail(comm->ctx, &comm->world->why);
    if (!look(comm)) table_of(comm)->withdraw(comm->world->cuda_world);
}

/* --- opening ------------------------------------------------------------------------------------------- */

static int share_world(struct comm_world *world, struct error *e) {
    int rc = 0;
    pthread_mutex_lock(&world->lock);
    if (!world->cuda_world) {
        const struct cuda_table *table = cuda_table_load(e);
        rc = table ? table->comm->world_new(&world->cuda_world, world->n, world->staging_bytes,
                                            world->deadline_ms, e)
                   : -(int)ERR_DEVICE;
        if (!rc) world->cuda = table->comm;
    }
    pthread_mutex_unlock(&world->lock);
    return rc;
}

int comm_cuda_open(struct comm *comm, struct error *e) {
    struct comm_world *world = comm->world;
    int rc = share_world(world, e);
    if (rc) return rc;
    rc = world->cuda->open(&comm->cuda, world->cuda_world, comm->rank, comm->ctx, e);
    if (!rc) world->cuda->on_wait(comm->cuda, after_wait, comm);
    return rc;
}

void comm_cuda_close(struct comm *comm) {
    if (comm->cuda) table_of(comm)->close(comm->cuda);
}

void comm_cuda_world_free(struct comm_world *world) {
    if (world->cuda_world) world->cuda->world_free(world->cuda_world);
}

void comm_cuda_world_abort(struct comm_world *world) {
    if (world->cuda) world->cuda->abort(world->cuda_world);
}

int comm_cuda_world_reset(struct comm_world *world, struct error *e) {
    return world->cuda ? world->cuda->reset(world->cuda_world, e) : 0;
}

/* --- connecting, with the first call --------------------------------------------------------------------- */

bool comm_cuda_meet_on_host(struct comm *comm, int step) {
    struct call call = {.op = OP_CONNECT, .rows = step};
    return comm_arrive(comm, &call, NULL);
}

/* All ranks take the same way, so it is said once. */
static void say_the_way(const struct comm *comm, bool direct, const char *why) {
    if (comm->rank != 0 || comm->n == 1) return;
    if (direct) log_info("collectives go over peer memory between %d CUDA ranks", comm->n);
    else log_warn("collectives go through pinned host memory, which is slower: %s", why);
}

static bool connect_devices(struct comm *comm) {
    const struct cuda_comm_table *t = table_of(comm);
    int (*const steps[])(struct cuda_comm *, struct error *) = {t->enable, t->write_pattern,
                                                               t->read_pattern};
    enum { STEPS = sizeof steps / sizeof *steps };
    struct error e;
    char why[256];
    if (!comm_cuda_meet_on_host(comm, 0)) return false;
    for (int i = 0; i < STEPS; i++) {
        if (steps[i](comm->cuda, &e)) return give_up(comm, &e);
        if (!comm_cuda_meet_on_host(comm, 1 + i)) return false;
    }
    if (t->connect(comm->cuda, &comm->direct, why, sizeof why, &e)) return give_up(comm, &e);
    if (!comm_cuda_meet_on_host(comm, 1 + STEPS)) return false;
    say_the_way(comm, comm->direct, why);
    comm->connected = true;
    return comm->n == 1 || !comm->world->tuning_path || comm_cuda_tune(comm);
}

/* --- calls ------------------------------------------------------------------------------------------------ */

/* FNV-1a over a call. */
static uint32_t signature_of(const struct call *call) {
    uint32_t hash = 2166136261u;
    const uint8_t *bytes = (const uint8_t *)call;
    for (size_t i = 0; i < sizeof *call; i++) hash = (hash ^ bytes[i]) * 16777619u;
    return hash;
}

/* False when the world is aborted. Else out knows the call and everybody's buffer. */
static bool begin(struct comm *comm, const struct call *call, dev_addr x, struct cuda_comm_call *out) {
    if (!look(comm)) return false;
    if (!comm->connected && !connect_devices(comm)) return false;
    if (!comm_arrive(comm, call, (void *)(uintptr_t)x)) return false;
    *out = (struct cuda_comm_call){.signature = signature_of(call), .type = (enum dtype)call->type};
    out->element = call->type == DTYPE_F32 ? 4 : 2;
    for (int p = 0; p < comm->n; p++) out->at[p] = (dev_addr)(uintptr_t)comm_peer_data(comm, p);
    return true;
}

static void set_offsets(struct cuda_comm_call *call, int64_t rows, const int32_t *offsets, int n,
                        int64_t width) {
    call->shape.rows = rows;
    for (int p = 0; p <= n; p++) call->shape.offsets[p] = offsets[p] * width;
}

static enum comm_algorithm choose(const struct comm *comm, size_t bytes) {
    if (comm->forced != COMM_AUTO) return comm->forced;
    if (bytes <= comm->world->cuda_one_shot_max) return COMM_ONE_SHOT;
    return bytes <= comm->world->cuda_two_shot_max ? COMM_TWO_SHOT : COMM_RING;
}

/* Shares of [0, total), in multiples of grain. */
static void even_shares(int64_t *offsets, int64_t total, int64_t grain, int n) {
    int64_t from, to = 0;
    for (int p = 0; p < n; p++) {
        team_slice(total, grain, p, n, &from, &to);
        offsets[p] = from;
    }
    offsets[n] = total;
}

/* Through host memory a large message goes as a scatter and a gather: n - 1 times its bytes come in by
 * one-shot, twice its bytes so. */
static void staged_in_two(struct comm *comm, struct cuda_comm_call *call) {
    size_t size = (size_t)call->element;
    dev_addr x = call->at[comm->rank];
    dev_addr own = x + (dev_addr)call->shape.offsets[comm->rank] * size;
    call->out = own;
    table_of(comm)->reduce_scatter(comm->cuda, call);
    call->at[comm->rank] = own;
    call->out = x;
    table_of(comm)->all_gather(comm->cuda, call);
}

static void all_reduce(struct comm *comm, dev_addr x, int32_t rows, int32_t cols, enum dtype type) {
    /* Elements: whole lines are written by one rank. Sums are in rank order everywhere, so it does not
     * matter for them where the message is cut. */
    enum { GRAIN = 64 };
    size_t bytes = (size_t)rows * (size_t)cols * (type == DTYPE_F32 ? 4 : 2);
    if (bytes == 0) return;
    enum comm_algorithm algorithm = choose(comm, bytes);
    struct call call = {.op = OP_ALL_REDUCE, .type = (uint8_t)type, .rows = rows, .cols = cols,
                        .algorithm = (uint8_t)algorithm};
    struct cuda_comm_call c;
    if (!begin(comm, &call, x, &c)) return;
    c.shape.rows = 1;
    even_shares(c.shape.offsets, (int64_t)rows * cols, GRAIN, comm->n);
    if (algorithm == COMM_ONE_SHOT) table_of(comm)->one_shot(comm->cuda, &c);
    else if (!comm->direct) staged_in_two(comm, &c);
    else if (algorithm == COMM_TWO_SHOT) table_of(comm)->two_shot(comm->cuda, &c);
    else table_of(comm)->ring(comm->cuda, &c);
}

static void reduce_scatter(struct comm *comm, dev_addr out, dev_addr x, int32_t rows,
                           const int32_t *offsets, enum dtype type) {
    struct call call = comm_call_by_offsets(OP_REDUCE_SCATTER, type, rows, offsets, comm->n);
    struct cuda_comm_call c;
    if (!begin(comm, &call, x, &c)) return;
    c.out = out;
    set_offsets(&c, rows, offsets, comm->n, 1);
    table_of(comm)->reduce_scatter(comm->cuda, &c);
}

static void all_gather(struct comm *comm, dev_addr out, dev_addr x, int32_t rows,
                       const int32_t *offsets, enum dtype type) {
    struct call call = comm_call_by_offsets(OP_ALL_GATHER, type, rows, offsets, comm->n);
    struct cuda_comm_call c;
    if (!begin(comm, &call, x, &c)) return;
    c.out = out;
    set_offsets(&c, rows, offsets, comm->n, 1);
    table_of(comm)->all_gather(comm->cuda, &c);
}

/* Rows that lie one behind the other are one long row. */
static void reduce_scatter_rows(struct comm *comm, dev_addr x, int32_t cols, const int32_t *offsets,
                                enum dtype type) {
    struct call call = comm_call_by_offsets(OP_REDUCE_SCATTER_ROWS, type, cols, offsets, comm->n);
    struct cuda_comm_call c;
    if (!begin(comm, &call, x, &c)) return;
    set_offsets(&c, 1, offsets, comm->n, cols);
    c.out = x + (dev_addr)c.shape.offsets[comm->rank] * (dev_addr)c.element;
    table_of(comm)->reduce_scatter(comm->cuda, &c);
}

static void all_gather_rows(struct comm *comm, dev_addr x, int32_t cols, const int32_t *offsets,
                            enum dtype type) {
    struct call call = comm_call_by_offsets(OP_ALL_GATHER_ROWS, type, cols, offsets, comm->n);
    struct cuda_comm_call c;
    if (!begin(comm, &call, x, &c)) return;
    set_offsets(&c, 1, offsets, comm->n, cols);
    for (int p = 0; p < comm->n; p++)
        c.at[p] += (dev_addr)c.shape.offsets[p] * (dev_addr)c.element;
    c.out = x;
    table_of(comm)->all_gather(comm->cuda, &c);
}

/* A gather in which one rank has all. */
static void broadcast(struct comm *comm, dev_addr x, size_t bytes, int root) {
    if (bytes == 0) return;
    struct call call = comm_call_broadcast(bytes, root);
    struct cuda_comm_call c;
    if (!begin(comm, &call, x, &c)) return;
    dev_addr unit = bytes; /* one that all ranks cut into */
    for (int p = 0; p < comm->n; p++) unit |= c.at[p];
    c.element = unit % 4 == 0 ? 4 : 1;
    c.shape.rows = 1;
    for (int p = root + 1; p <= comm->n; p++)
        c.shape.offsets[p] = (int64_t)bytes / c.element;
    c.out = x;
    table_of(comm)->all_gather(comm->cuda, &c);
}

static void barrier(struct comm *comm) {
    struct call call = {.op = OP_BARRIER};
    struct cuda_comm_call c;
    if (begin(comm, &call, 0, &c)) table_of(comm)->barrier(comm->cuda, c.signature);
}

/* What a one-shot would take in one piece. */
static bool all_reduce_norm(struct comm *comm, const struct comm_norm *norm, int32_t rows, int32_t cols) {
    size_t bytes = (size_t)rows * (size_t)cols * sizeof(float);
    if (bytes == 0 || bytes > comm->world->staging_bytes || choose(comm, bytes) != COMM_ONE_SHOT)
        return false;
    struct call call = {.op = OP_ALL_REDUCE_NORM, .type = DTYPE_F32, .rows = rows, .cols = cols};
    struct cuda_comm_call c;
    if (!begin(comm, &call, norm->y, &c)) return true;
    c.shape.rows = rows;
    c.shape.offsets[comm->n] = cols;
    struct cuda_comm_norm n = {norm->y, norm->x, norm->out, norm->g, norm->scale, norm->eps};
    table_of(comm)->reduce_norm(comm->cuda, &c, &n);
    return true;
}

enum replay comm_cuda_replay(struct comm *comm, enum replay mine) {
    struct call call = {.op = OP_REPLAY};
    struct cuda_comm_call c;
    if (!begin(comm, &call, (dev_addr)mine, &c)) return REPLAY_PLAIN;
    for (int p = 0; p < comm->n; p++)
        if ((enum replay)c.at[p] < mine) mine = (enum replay)c.at[p];
    return mine;
}

const struct comm_ops comm_cuda_ops = {all_reduce,      reduce_scatter, all_gather, reduce_scatter_rows,
                                       all_gather_rows, broadcast,      barrier,    all_reduce_norm};
