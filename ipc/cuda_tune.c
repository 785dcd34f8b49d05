/* ipc/cuda_tune.c: up to what size which all-reduce is the fastest, measured between the devices that are
 * there and kept in a file: a line for each way that worlds were made. */
#include "ipc/cuda.h"

#include "base/log.h"
#include "kernels/cuda/comm.h"
#include "kernels/cuda/table.h"

#include <stdio.h>
#include <string.h>

enum { SMALLEST = 4096, REPEATS = 8 };

/* What the figures hold for, as the beginning of a line. */
static void key_of(const struct comm *comm, char *key, size_t size) {
    char names[768];
    comm->world->cuda->names(comm->world->cuda_world, names, sizeof names);
    snprintf(key, size, "library=%d ranks=%d way=%s devices=%s:", CUDA_TABLE_VERSION, comm->n,
             comm->direct ? "peer" : "host", names);
}

/* False when the file has no line for this world. What is not understood is measured again. */
static bool load(struct comm_world *world, const char *key) {
    char line[1024];
    bool found = false;
    FILE *f = fopen(world->tuning_path, "r");
    while (f && !found && fgets(line, sizeof line, f)) {
        size_t one, two, n = strlen(key);
        if (strncmp(line, key, n) != 0 || sscanf(line + n, " %zu %zu", &one, &two) != 2) continue;
        world->cuda_one_shot_max = one;
        world->cuda_two_shot_max = two;
        found = true;
    }
    if (f) fclose(f);
    return found;
}

/* A file that cannot be written is no reason not to run: it is measured again next time. */
static void save(const struct comm_world *world, const char *key) {
    FILE *f = fopen(world->tuning_path, "a");
    if (!f || fprintf(f, "%s %zu %zu\n", key, world->cuda_one_shot_max, world->cuda_two_shot_max) < 0)
        log_warn("%s cannot be written: the collectives will be measured again at the next start",
                 world->tuning_path);
    if (f) fclose(f);
}

/* Nanoseconds of some all-reduces of bytes at x; negative when the context failed. */
static int64_t measure(struct comm *comm, dev_addr x, size_t bytes, enum comm_algorithm algorithm) {
    struct error e;
    int64_t start = 0;
    comm->forced = algorithm;
    for (int i = 0; i <= REPEATS; i++) {
        comm->ops->all_reduce(comm, x, 1, (int32_t)(bytes / 4), DTYPE_F32);
        if (i > 0) continue;
        if (comm->ctx->ops->wait(comm->ctx, &e)) return -1; /* the first one only warms up */
        start = clock_ns();
    }
    return comm->ctx->ops->wait(comm->ctx, &e) ? -1 : clock_ns() - start;
}

/* Rank 0's clock decides: each all-reduce ends on all ranks at about the same time. */
static bool measure_all(struct comm *comm, dev_addr x, size_t *one_shot_max, size_t *two_shot_max) {
    bool one_wins = true, two_wins = true;
    *one_shot_max = *two_shot_max = 0;
    for (size_t bytes = SMALLEST; bytes <= comm->world->cuda->tune_bytes; bytes *= 2) {
        int64_t one = measure(comm, x, bytes, COMM_ONE_SHOT);
        int64_t two = one < 0 ? -1 : measure(comm, x, bytes, COMM_TWO_SHOT);
        int64_t ring = two < 0 ? -1 : measure(comm, x, bytes, COMM_RING);
        if (ring < 0) return false;
        one_wins = one_wins && one <= two && one <= ring;
        two_wins = two_wins && (one_wins || two <= ring);
        if (one_wins) *one_shot_max = bytes;
        if (two_wins) *two_shot_max = bytes;
    }
    if (two_wins) *two_shot_max = SIZE_MAX;
    return true;
}

bool comm_cuda_tune(struct comm *comm) {
    struct comm_world *world = comm->world;
    const struct kernels *k = comm->ctx->ops;
    enum comm_algorithm forced = comm->forced;
    char key[1024];
    dev_addr x;
    size_t one, two;
    struct error e;
    key_of(comm, key, sizeof key);
    if (comm->rank == 0) world->cuda_tuned = load(world, key);
    if (!comm_cuda_meet_on_host(comm, 100)) return false;
    if (world->cuda_tuned) return true;
    if (k->mem_alloc(comm->ctx, MEM_BUFFERS, world->cuda->tune_bytes, &x, &e)) {
        comm_world_abort(world, &e);
        kctx_fail(comm->ctx, &e);
        return false;
    }
    bool fine = measure_all(comm, x, &one, &two);
    k->mem_free(comm->ctx, x);
    comm->forced = forced;
    if (!fine) {
        kctx_fail(comm->ctx, &world->why);
        return false;
    }
    if (comm->rank == 0) {
        world->cuda_one_shot_max = one;
        world->cuda_two_shot_max = two;
        world->cuda_tuned = true;
        save(world, key);
    }
    return comm_cuda_meet_on_host(comm, 101);
}
