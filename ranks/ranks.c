#include "ranks/ranks.h"

#include "base/log.h"
#include "base/machine.h"
#include "kernels/cuda/table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct member {
    struct ranks *ranks;
    struct rank rank;
    pthread_t thread;
    bool started;
    char device_name[128];
    struct error error; /* of opening, then of the last unit that failed; guarded by running */

    pthread_mutex_t lock; /* guards memory and loss */
    struct mem_use memory;
    struct error loss; /* of a device that is lost */
};

struct ranks {
    struct ranks_options options;
    struct comm_world *world;
    driver_fn *driver;
    void *driver_arg;

    /* What rank 0 hands out, published by unit. fn == NULL ends the followers. */
    unit_fn *fn;
    void *arg;
    _Alignas(64) struct wait_word unit;     /* the number of the unit that is handed out */
    _Alignas(64) _Atomic int running;       /* ranks that have not finished it (or not opened) */
    _Alignas(64) struct wait_word finished; /* the number of the last unit that all finished */
    _Atomic int first_failed;               /* index + 1; 0 = none */

    struct wait_word opened; /* 1: all tried to open, the outcome is in first_failed */
    struct wait_word go;     /* GO_RUN or GO_END, set by ranks_start */
    struct member members[];
};

enum { GO_RUN = 1, GO_END = 2 };

/* --- one rank -------------------------------------------------------------------------------- */

static void take_snapshot(struct member *me) {
    struct mem_use use = {0};
    me->rank.ctx->ops->mem_use(me->rank.ctx, &use);
    pthread_mutex_lock(&me->lock);
    me->memory = use;
    pthread_mutex_unlock(&me->lock);
}

static void record_failure(struct member *me) {
    int none = 0;
    atomic_compare_exchange_strong(&me->ranks->first_failed, &none, me->rank.index + 1);
}

/* The name of cuda:N with the card's own, where that can be asked for. */
static void name_gpu(struct member *me, int device) {
    struct error e;
    struct cuda_device card;
    const struct cuda_table *table = cuda_table_load(&e);
    snprintf(me->device_name, sizeof me->device_name, "cuda:%d", device);
    if (table && table->describe(device, &card, &e) == 0)
        snprintf(me->device_name, sizeof me->device_name, "cuda:%d (%s)", device, card.name);
}

static int open_device(struct member *me, struct error *e) {
    const struct ranks_options *options = &me->ranks->options;
    struct rank *rank = &me->rank;
    int rc;
    if (options->device == RANK_PLAN) {
        snprintf(me->device_name, sizeof me->device_name, "plan:%d", rank->index);
        rc = kernels_plan_open(&rank->ctx, rank->index, options->memory_limit, NULL, e);
    } else if (options->device == RANK_CUDA) {
        struct cuda_options cuda = {.device = options->gpus[rank->index % options->n_gpus],
                                    .memory_limit = options->memory_limit,
                                    .same_bits = options->same_bits};
        name_gpu(me, cuda.device);
        rc = kernels_cuda_open(&rank->ctx, rank->index, &cuda, e);
    } else {
        struct cpu_options cpu = {.memory_limit = options->memory_limit,
                                  .debug_alias = options->debug_alias};
        core_set_part(&options->cores, options->n, rank->index, &cpu.cores);
        strcpy(me->device_name, "cpu:");
        core_set_format(&cpu.cores, me->device_name + 4, sizeof me->device_name - 4);
        rc = kernels_cpu_open(&rank->ctx, rank->index, &cpu, e);
    }
    if (rc) return rc;
    return comm_open(&rank->comm, me->ranks->world, rank->index, rank->ctx, e);
}

static void close_device(struct member *me) {
    if (me->rank.comm) comm_close(me->rank.comm);
    if (me->rank.ctx) me->rank.ctx->ops->close(me->rank.ctx);
}

/* A device that is lost makes every unit fail, for the reason that it was lost for. */
static void note_loss(struct member *me) {
    bool news = me->loss.kind == ERR_NONE;
    if (news) {
        pthread_mutex_lock(&me->lock);
        me->loss = me->error;
        error_prefix(&me->loss, "the device of rank %d is lost and tpd must be started again: ",
                     me->rank.index);
        me->loss.kind = ERR_DEVICE;
        pthread_mutex_unlock(&me->lock);
        log_error("%s", me->loss.message);
    }
    me->error = me->loss;
}

/* Runs the unit on this rank. A failure is recorded before the abort, so that the rank that failed
 * comes before those that it brings back. */
static void run_unit(struct member *me) {
    struct ranks *ranks = me->ranks;
    struct kctx *ctx = me->rank.ctx;
    struct error e = {.kind = ERR_NONE}, left = {.kind = ERR_NONE};
    int rc = ranks->fn(&me->rank, ranks->arg, &e);
    if (rc && e.kind == ERR_NONE)
        error_set(&e, ERR_INTERNAL, "rank %d failed without a reason", me->rank.index);
    if (rc || kctx_failed(ctx)) {
        record_failure(me);
        ctx->ops->wait(ctx, &left);
        me->error = rc ? e : left;
        if (ctx->lost) note_loss(me);
        comm_world_abort(ranks->world, &me->error);
    }
    take_snapshot(me);
}

/* Counts this rank as done; the last one tells rank 0. */
static bool is_last(struct ranks *ranks) {
    return atomic_fetch_sub(&ranks->running, 1) == 1;
}

static void follow(struct member *me) {
    struct ranks *ranks = me->ranks;
    for (uint32_t unit = 0;;) {
        wait_while_equal(&ranks->unit, unit, 0);
        unit = wait_load(&ranks->unit);
        if (!ranks->fn) return;
        run_unit(me);
        if (is_last(ranks)) wait_store(&ranks->finished, unit);
    }
}

static void lead(struct member *me) {
    struct ranks *ranks = me->ranks;
    ranks->driver(ranks, ranks->driver_arg);
    ranks->fn = NULL;
    wait_add(&ranks->unit, 1);
}

static void *rank_main(void *arg) {
    struct member *me = arg;
    struct ranks *ranks = me->ranks;
    thread_name("tpd-rank-%d", me->rank.index);
    if (open_device(me, &me->error)) record_failure(me);
    else take_snapshot(me);
    if (is_last(ranks)) wait_store(&ranks->opened, 1);
    wait_while_equal(&ranks->go, 0, 0);
    if (wait_load(&ranks->go) == GO_RUN) {
        if (me->rank.index == 0) lead(me);
        else follow(me);
    }
    close_device(me);
    return NULL;
}

/* --- all ranks ------------------------------------------------------------------------------- */

static int ranks_new(struct ranks **out, const struct ranks_options *options, struct error *e) {
    int n = options->n;
    struct comm_world *world;
    int rc = comm_world_new(&world, n, options->staging_bytes, options->deadline_ms, e);
    if (rc) return rc;
    if (options->tuning_path && comm_world_tuning(world, options->tuning_path, e)) {
        comm_world_free(world);
        return -(int)ERR_MEMORY;
    }
    size_t size = sizeof(struct ranks) + (size_t)n * sizeof(struct member);
    struct ranks *ranks = aligned_alloc(64, (size + 63) / 64 * 64);
    if (!ranks) {
        comm_world_free(world);
        return error_set(e, ERR_MEMORY, "no memory for %d ranks", n);
    }
    memset(ranks, 0, size);
    ranks->options = *options;
    ranks->world = world;
    atomic_init(&ranks->running, n);
    for (int i = 0; i < n; i++) {
        struct member *m = &ranks->members[i];
        m->ranks = ranks;
        m->rank = (struct rank){.index = i, .n = n};
        pthread_mutex_init(&m->lock, NULL);
    }
    *out = ranks;
    return 0;
}

void ranks_join(struct ranks *ranks) {
    for (int i = 0; i < ranks->options.n; i++) {
        struct member *m = &ranks->members[i];
        if (m->started) pthread_join(m->thread, NULL);
        pthread_mutex_destroy(&m->lock);
    }
    comm_world_free(ranks->world);
    free(ranks);
}

/* Spinning pays only while everybody has a core of his own. */
static void set_spins(const struct ranks_options *options) {
    struct core_set allowed;
    core_set_allowed(&allowed);
    int cores = options->cores.n > 0 ? options->cores.n : allowed.n;
    bool fits = options->n <= cores && cores <= allowed.n;
    wait_spin_set(fits ? WAIT_SPIN_DEFAULT : 0);
}

int ranks_start(struct ranks **out, const struct ranks_options *options, driver_fn *driver,
                void *arg, struct error *e) {
    struct ranks *ranks = NULL;
    *out = NULL;
    if (options->device == RANK_CPU) set_spins(options);
    int rc = ranks_new(&ranks, options, e);
    if (rc) return rc;
    if (ranks->options.cores.n == 0) core_set_allowed(&ranks->options.cores);
    ranks->driver = driver;
    ranks->driver_arg = arg;
    for (int i = 0; i < options->n && rc == 0; i++) {
        struct member *m = &ranks->members[i];
        rc = thread_start(&m->thread, rank_main, m, e);
        m->started = rc == 0;
    }
    if (rc == 0) {
        wait_while_equal(&ranks->opened, 0, 0);
        int failed = atomic_exchange(&ranks->first_failed, 0);
        if (failed) {
            rc = -(int)ranks->members[failed - 1].error.kind;
            if (e) *e = ranks->members[failed - 1].error;
        }
    }
    if (rc == 0) *out = ranks;
    wait_store(&ranks->go, rc == 0 ? GO_RUN : GO_END);
    if (rc) ranks_join(ranks);
    return rc;
}

int ranks_run(struct ranks *ranks, unit_fn *fn, void *arg, struct error *e) {
    ranks->fn = fn;
    ranks->arg = arg;
    if (ranks->options.n == 1) run_unit(&ranks->members[0]);
    else {
        atomic_store_explicit(&ranks->running, ranks->options.n, memory_order_relaxed);
        uint32_t unit = wait_add(&ranks->unit, 1) + 1;
        run_unit(&ranks->members[0]);
        /* finished stays behind by more than one where rank 0 itself was the last. */
        if (!is_last(ranks))
            for (uint32_t seen; (seen = wait_load(&ranks->finished)) != unit;)
                wait_while_equal(&ranks->finished, seen, 0);
    }
    int failed = atomic_exchange(&ranks->first_failed, 0);
    /* With a lost device all fail; its rank knows why. */
    for (int i = 0; i < ranks->options.n && failed; i++)
        if (ranks->members[i].loss.kind != ERR_NONE) failed = i + 1;
    if (comm_world_aborted(ranks->world)) comm_world_reset(ranks->world);
    if (!failed) return 0;
    const struct error *why = &ranks->members[failed - 1].error;
    if (e) *e = *why;
    return -(int)why->kind;
}

int ranks_count(const struct ranks *ranks) {
    return ranks->options.n;
}

struct rank *ranks_at(struct ranks *ranks, int index) {
    return &ranks->members[index].rank;
}

void ranks_memory(struct ranks *ranks, int index, struct mem_use *use) {
    struct member *m = &ranks->members[index];
    pthread_mutex_lock(&m->lock);
    *use = m->memory;
    pthread_mutex_unlock(&m->lock);
}

static int gpu_of(const struct ranks *ranks, int index) {
    return ranks->options.gpus[index % ranks->options.n_gpus];
}

static int ranks_on_its_gpu(const struct ranks *ranks, int index) {
    int n = 0;
    for (int i = 0; i < ranks->options.n; i++) n += gpu_of(ranks, i) == gpu_of(ranks, index);
    return n;
}

size_t ranks_memory_left(struct ranks *ranks, int index) {
    struct mem_use use;
    ranks_memory(ranks, index, &use);
    if (ranks->options.memory_limit) return use.free;
    /* Without a limit each CPU rank reports all of the machine as its own. */
    if (ranks->options.device == RANK_CUDA) return use.free / (size_t)ranks_on_its_gpu(ranks, index);
    size_t left = use.free, available = machine_memory_available();
    if (available && available < left) left = available;
    return left / (size_t)ranks->options.n;
}

void ranks_device_loss(struct ranks *ranks, int index, char *out, size_t size) {
    struct member *m = &ranks->members[index];
    pthread_mutex_lock(&m->lock);
    snprintf(out, size, "%s", m->loss.kind == ERR_NONE ? "" : m->loss.message);
    pthread_mutex_unlock(&m->lock);
}

const char *ranks_device_name(const struct ranks *ranks, int index) {
    return ranks->members[index].device_name;
}
