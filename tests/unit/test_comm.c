/* Collectives between CPU ranks. */
#include "ipc/comm.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

/* --- a world of threads ---------------------------------------------------------------------- */

struct end {
    int rank, n;
    struct comm_world *world;
    struct kctx *ctx;
    struct comm *comm;
    pthread_barrier_t *gate; /* all ranks of the test meet here, without the communicator */
    void *arg;
    uint64_t random;
};

typedef void end_fn(struct end *end);

struct end_thread {
    struct end end;
    end_fn *fn;
    pthread_t thread;
};

/* cmocka's assertions belong to the main thread; a rank that is wrong ends the test at once. */
#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

static void *end_main(void *arg) {
    struct end_thread *t = arg;
    struct end *end = &t->end;
    struct core_set allowed;
    struct cpu_options options = {.cores.n = 1};
    struct error e;
    core_set_allowed(&allowed);
    options.cores.cpus[0] = allowed.cpus[end->rank % allowed.n];
    CHECK(kernels_cpu_open(&end->ctx, end->rank, &options, &e) == 0);
    CHECK(comm_open(&end->comm, end->world, end->rank, end->ctx, &e) == 0);
    CHECK(comm_size(end->comm) == end->n && comm_rank(end->comm) == end->rank);
    t->fn(end);
    comm_close(end->comm);
    end->ctx->ops->close(end->ctx);
    return NULL;
}

/* Runs fn on n ranks; meanwhile (may be NULL) runs on the main thread. */
static void with_world(int n, size_t staging, int deadline_ms, end_fn *fn, void *arg,
                       void (*meanwhile)(struct comm_world *world, void *arg)) {
    struct comm_world *world;
    struct error e;
    struct core_set allowed;
    struct end_thread threads[COMM_MAX_RANKS];
    pthread_barrier_t gate;
    core_set_allowed(&allowed);
    wait_spin_set(n > allowed.n ? 0 : WAIT_SPIN_DEFAULT);
    assert_int_equal(comm_world_new(&world, n, staging, deadline_ms, &e), 0);
    pthread_barrier_init(&gate, NULL, (unsigned)n);
    for (int r = 0; r < n; r++) {
        threads[r] = (struct end_thread){.end = {.rank = r,
                                                 .n = n,
                                                 .world = world,
                                                 .gate = &gate,
                                                 .arg = arg,
                                                 .random = 0x9E3779B97F4A7C15u * (uint64_t)(r + 1)},
                                         .fn = fn};
        assert_int_equal(thread_start(&threads[r].thread, end_main, &threads[r], &e), 0);
    }
    if (meanwhile) meanwhile(world, arg);
    for (int r = 0; r < n; r++) pthread_join(threads[r].thread, NULL);
    pthread_barrier_destroy(&gate);
    comm_world_free(world);
}

static dev_addr buffer(struct end *end, size_t bytes) {
    dev_addr addr;
    struct error e;
    CHECK(end->ctx->ops->mem_alloc(end->ctx, MEM_BUFFERS, bytes, &addr, &e) == 0);
    return addr;
}

static void *at(struct end *end, dev_addr addr) {
    return kernels_cpu_pointer(end->ctx, addr);
}

static uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* --- sums ------------------------------------------------------------------------------------ */

static const char *const algorithm_names[] = {"auto", "one-shot", "two-shot", "ring"};

static size_t size_of(enum dtype type) {
    return type == DTYPE_F32 ? 4 : 2;
}

/* Values of very different size, so that another order of addition gives other bits. */
static float value_at(int rank, size_t index) {
    uint64_t state = (index + 1) * 0x9E3779B97F4A7C15u ^ (uint64_t)(rank + 1) * 0xD1B54A32D192ED03u;
    next_random(&state);
    uint64_t bits = next_random(&state);
    float scale = (float)(1u << (bits & 15)) / 128.0f;
    return ((float)(bits >> 40) / 8388608.0f - 1.0f) * scale;
}

struct sums {
    int n;
    int32_t rows, cols;
    enum dtype type;
    enum comm_algorithm algorithm;
    uint8_t *in[8];
    uint8_t *sum; /* by rank order */
};

static void put(uint8_t *data, size_t i, float value, enum dtype type) {
    if (type == DTYPE_F32) ((float *)(void *)data)[i] = value;
    else ((uint16_t *)(void *)data)[i] = f32_to_bf16(value);
}

static float get(const uint8_t *data, size_t i, enum dtype type) {
    return type == DTYPE_F32 ? ((const float *)(const void *)data)[i]
                             : bf16_to_f32(((const uint16_t *)(const void *)data)[i]);
}

static void sums_new(struct sums *s, int n, int32_t rows, int32_t cols, enum dtype type) {
    size_t count = (size_t)rows * (size_t)cols;
    *s = (struct sums){.n = n, .rows = rows, .cols = cols, .type = type};
    s->sum = malloc(count * size_of(type));
    for (int r = 0; r < n; r++) s->in[r] = malloc(count * size_of(type));
    for (size_t i = 0; i < count; i++) {
        float sum = 0;
        for (int r = 0; r < n; r++) {
            put(s->in[r], i, value_at(r, i), type);
            float value = get(s->in[r], i, type);
            sum = r == 0 ? value : sum + value;
        }
        put(s->sum, i, sum, type);
    }
}

static void sums_free(struct sums *s) {
    for (int r = 0; r < s->n; r++) free(s->in[r]);
    free(s->sum);
}

static void all_ways(struct end *end) {
    struct sums *s = end->arg;
    size_t bytes = (size_t)s->rows * (size_t)s->cols * size_of(s->type);
    dev_addr x = buffer(end, bytes);
    for (int a = COMM_AUTO; a <= COMM_RING; a++) {
        comm_force(end->comm, (enum comm_algorithm)a);
        for (int again = 0; again < 2; again++) {
            memcpy(at(end, x), s->in[end->rank], bytes);
            comm_all_reduce(end->comm, x, s->rows, s->cols, s->type);
            if (memcmp(at(end, x), s->sum, bytes) != 0) {
                fprintf(stderr, "%s: n=%d [%d, %d] %s\n", algorithm_names[a], s->n, s->rows,
                        s->cols, dtype_info(s->type)->name);
                abort();
            }
        }
    }
    CHECK(!kctx_failed(end->ctx));
}

static void sums_are_right(int n, int32_t rows, int32_t cols, size_t staging) {
    const enum dtype types[] = {DTYPE_F32, DTYPE_BF16};
    for (int t = 0; t < 2; t++) {
        struct sums s;
        sums_new(&s, n, rows, cols, types[t]);
        with_world(n, staging, 0, all_ways, &s, NULL);
        sums_free(&s);
    }
}

static void all_reduce_sums_in_rank_order_whatever_the_way(void **state) {
    (void)state;
    static const int32_t shapes[][2] = {{1, 1},  {1, 7},   {3, 5},    {1, 576}, {5, 577},
                                        {7, 33}, {64, 16}, {2, 4099}, {300, 1}, {31, 1000}};
    for (int n = 1; n <= 8; n++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            sums_are_right(n, shapes[i][0], shapes[i][1], i % 2 ? 1000 : 0);
}

static void all_reduce_sums_large_messages(void **state) {
    (void)state;
    sums_are_right(2, 1000, 1000, 0);
    sums_are_right(3, 1, 1000000, 0);
    sums_are_right(8, 50000, 3, 0);
}

/* --- a row by itself ------------------------------------------------------------------------- */

enum { BATCH = 5, WIDTH = 96 };

static void row_alone_and_in_batch(struct end *end) {
    dev_addr batch = buffer(end, BATCH * WIDTH * 4), row = buffer(end, WIDTH * 4);
    for (int a = COMM_AUTO; a <= COMM_RING; a++) {
        comm_force(end->comm, (enum comm_algorithm)a);
        float *x = at(end, batch);
        for (size_t i = 0; i < BATCH * WIDTH; i++) x[i] = value_at(end->rank, i);
        comm_all_reduce(end->comm, batch, BATCH, WIDTH, DTYPE_F32);
        for (size_t r = 0; r < BATCH; r++) {
            float *one = at(end, row);
            for (size_t i = 0; i < WIDTH; i++) one[i] = value_at(end->rank, r * WIDTH + i);
            comm_all_reduce(end->comm, row, 1, WIDTH, DTYPE_F32);
            CHECK(memcmp(one, x + r * WIDTH, WIDTH * 4) == 0);
        }
    }
}

static void a_row_sums_alike_alone_and_in_a_batch(void **state) {
    (void)state;
    for (int n = 2; n <= 8; n += 3) with_world(n, 0, 0, row_alone_and_in_batch, NULL, NULL);
}

/* --- the other collectives ------------------------------------------------------------------- */

struct split {
    int32_t offsets[9];
    enum dtype type;
};

static void scatter_gather_broadcast(struct end *end) {
    const struct split *split = end->arg;
    const int32_t *offsets = split->offsets;
    enum dtype type = split->type;
    size_t size = size_of(type), cols = (size_t)offsets[end->n], rows = 3;
    size_t from = (size_t)offsets[end->rank], part = (size_t)offsets[end->rank + 1] - from;
    dev_addr x = buffer(end, rows * cols * size), mine = buffer(end, rows * part * size + 1);
    dev_addr whole = buffer(end, rows * cols * size);
    uint8_t *in = at(end, x);
    for (size_t i = 0; i < rows * cols; i++) put(in, i, value_at(end->rank, i), type);

    comm_reduce_scatter(end->comm, mine, x, (int32_t)rows, offsets, type);
    for (size_t i = 0; i < rows * cols; i++) put(in, i, value_at(end->rank, i), type);
    comm_all_reduce(end->comm, x, (int32_t)rows, (int32_t)cols, type);
    for (size_t row = 0; row < rows; row++)
        CHECK(memcmp((uint8_t *)at(end, mine) + row * part * size, in + (row * cols + from) * size,
                     part * size) == 0);

    comm_all_gather(end->comm, whole, mine, (int32_t)rows, offsets, type);
    CHECK(memcmp(at(end, whole), in, rows * cols * size) == 0);

    for (int root = 0; root < end->n; root++) {
        uint8_t *word = at(end, whole);
        memset(word, end->rank == root ? 100 + root : 0, rows * cols * size);
        comm_broadcast(end->comm, whole, rows * cols * size, root);
        for (size_t i = 0; i < rows * cols * size; i++) CHECK(word[i] == 100 + root);
    }
    comm_barrier(end->comm);
    CHECK(!kctx_failed(end->ctx));
}

static void parts_are_scattered_and_gathered_by_their_offsets(void **state) {
    (void)state;
    for (int n = 1; n <= 8; n++)
        for (int kind = 0; kind < 4; kind++) {
            struct split split = {.type = kind % 2 ? DTYPE_BF16 : DTYPE_F32};
            for (int r = 0; r < n; r++) {
                int width = kind < 2 ? 64 : r * 37 % 50; /* even; uneven, and rank 0 has none */
                if (n == 1) width = 9;
                split.offsets[r + 1] = split.offsets[r] + width;
            }
            with_world(n, 0, 0, scatter_gather_broadcast, &split, NULL);
        }
}

/* Rows are scattered and gathered in place; together that is an all-reduce. */
static void rows_in_place(struct end *end) {
    const struct split *split = end->arg;
    const int32_t *offsets = split->offsets;
    enum dtype type = split->type;
    int32_t rows = offsets[end->n], cols = 129;
    size_t size = size_of(type), row = (size_t)cols * size, count = (size_t)(rows * cols);
    size_t own = (size_t)(offsets[end->rank + 1] - offsets[end->rank]) * row;
    size_t from = (size_t)offsets[end->rank] * row;
    dev_addr x = buffer(end, count * size), want = buffer(end, count * size);
    uint8_t *got = at(end, x), *sum = at(end, want);
    for (size_t i = 0; i < count; i++) {
        put(got, i, value_at(end->rank, i), type);
        put(sum, i, value_at(end->rank, i), type);
    }
    comm_all_reduce(end->comm, want, rows, cols, type);

    uint64_t before = comm_received(end->comm);
    comm_reduce_scatter_rows(end->comm, x, cols, offsets, type);
    CHECK(memcmp(got + from, sum + from, own) == 0);
    CHECK(comm_received(end->comm) - before == (uint64_t)(end->n - 1) * own);
    memset(got, 0x55, from); /* only own rows count */
    memset(got + from + own, 0x55, count * size - from - own);
    before = comm_received(end->comm);
    comm_all_gather_rows(end->comm, x, cols, offsets, type);
    CHECK(memcmp(got, sum, count * size) == 0);
    CHECK(comm_received(end->comm) - before == count * size - own);
    CHECK(!kctx_failed(end->ctx));
}

static void rows_scattered_and_gathered_are_an_all_reduce(void **state) {
    (void)state;
    for (int n = 1; n <= 8; n++)
        for (int kind = 0; kind < 4; kind++) {
            struct split split = {.type = kind % 2 ? DTYPE_BF16 : DTYPE_F32};
            for (int r = 0; r < n; r++) {
                int rows = kind < 2 ? 8 : r * 37 % 11; /* even; uneven, and rank 0 has none */
                split.offsets[r + 1] = split.offsets[r] + (n == 1 ? 3 : rows);
            }
            with_world(n, 0, 0, rows_in_place, &split, NULL);
        }
}

/* --- with the norm that follows --------------------------------------------------------------- */

enum { NORM_COLS = 577, NORM_CALLS = 3 };

static void fill(struct end *end, dev_addr to, int rank, size_t n) {
    float *x = at(end, to);
    for (size_t i = 0; i < n; i++) x[i] = value_at(rank, i);
}

/* Several calls, as the halves of layers: all ranks have the bits of an all-reduce and a norm. */
static void sums_and_norms(struct end *end) {
    int32_t rows = *(const int32_t *)end->arg, cols = NORM_COLS;
    size_t n = (size_t)rows * NORM_COLS;
    dev_addr x = buffer(end, n * 4), y = buffer(end, n * 4), out = buffer(end, n * 4), g = buffer(end, NORM_COLS * 4);
    dev_addr plain_x = buffer(end, n * 4), plain_y = buffer(end, n * 4), plain_out = buffer(end, n * 4);
    struct comm_norm norm = {y, x, out, g, 0.75f, 1e-5f};
    fill(end, g, 50, NORM_COLS);
    fill(end, x, 60, n);
    fill(end, plain_x, 60, n);
    for (int i = 0; i < NORM_CALLS; i++) {
        fill(end, y, end->rank + 8 * i, n);
        fill(end, plain_y, end->rank + 8 * i, n);
        uint64_t before = comm_received(end->comm);
        comm_all_reduce_norm(end->comm, &norm, rows, cols);
        uint64_t moved = comm_received(end->comm) - before;
        comm_all_reduce(end->comm, plain_y, rows, cols, DTYPE_F32);
        CHECK(comm_received(end->comm) - before == 2 * moved);
        end->ctx->ops->add_rmsnorm(end->ctx, plain_out, plain_x, plain_y, norm.scale, g, rows, cols, norm.eps);
        CHECK(memcmp(at(end, out), at(end, plain_out), n * 4) == 0);
    }
    CHECK(!kctx_failed(end->ctx));
}

static void a_sum_with_its_norm_has_the_bits_of_both(void **state) {
    (void)state;
    static const int32_t rows[] = {1, 2, 3, 7, 8, 64, 131};
    for (int n = 1; n <= 8; n++)
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
            with_world(n, 0, 0, sums_and_norms, (void *)(uintptr_t)&rows[i], NULL);
}

static _Atomic int at_the_barrier;

static void count_at_barrier(struct end *end) {
    for (int i = 1; i <= 50; i++) {
        atomic_fetch_add(&at_the_barrier, 1);
        comm_barrier(end->comm);
        CHECK(atomic_load(&at_the_barrier) >= i * end->n);
        comm_barrier(end->comm);
    }
}

static void nobody_passes_a_barrier_alone(void **state) {
    (void)state;
    for (int n = 1; n <= COMM_MAX_RANKS; n = n < 8 ? n + 1 : n * 8) {
        atomic_store(&at_the_barrier, 0);
        with_world(n, 0, 0, count_at_barrier, NULL, NULL);
    }
}

/* --- many rounds ----------------------------------------------------------------------------- */

enum { ROUNDS = 2000, MOST = 700 };

static void dawdle(struct end *end) {
    uint64_t r = next_random(&end->random);
    if (r % 64 == 0) usleep((unsigned)(r >> 32) % 100);
    else if (r % 8 == 0) sched_yield();
    else
        for (uint64_t i = 0; i < (r >> 32) % 100; i++) wait_pause();
}

/* Every rank fills its buffer from the round and its number, so any rank can tell the sum. */
static float round_value(int rank, int round, int32_t i) {
    return (float)((rank + 1) * 1000 + (round * 31 + i * 7) % 997);
}

static void one_round(struct end *end, int round, dev_addr x, dev_addr out) {
    uint64_t shared = (uint64_t)(round + 1) * 0x9E3779B97F4A7C15u;
    next_random(&shared);
    int32_t cols = 1 + (int32_t)(next_random(&shared) % MOST), offsets[9];
    float *in = at(end, x), *to = at(end, out);
    int kind = (int)(next_random(&shared) % 6);
    for (int32_t i = 0; i < cols; i++) in[i] = round_value(end->rank, round, i);
    dawdle(end);
    if (kind <= COMM_RING) {
        comm_force(end->comm, (enum comm_algorithm)kind);
        comm_all_reduce(end->comm, x, 1, cols, DTYPE_F32);
        for (int32_t i = 0; i < cols; i++) {
            float sum = 0;
            for (int r = 0; r < end->n; r++) sum += round_value(r, round, i);
            CHECK(in[i] == sum);
        }
    } else if (kind == 4) {
        for (int r = 0; r <= end->n; r++) offsets[r] = r * cols;
        comm_all_gather(end->comm, out, x, 1, offsets, DTYPE_F32);
        for (int r = 0; r < end->n; r++)
            for (int32_t i = 0; i < cols; i++) CHECK(to[r * cols + i] == round_value(r, round, i));
    } else {
        int root = round % end->n;
        comm_broadcast(end->comm, x, (size_t)cols * 4, root);
        for (int32_t i = 0; i < cols; i++) CHECK(in[i] == round_value(root, round, i));
    }
}

static void many_rounds(struct end *end) {
    dev_addr x = buffer(end, MOST * 4), out = buffer(end, MOST * 4 * 8);
    for (int round = 0; round < ROUNDS; round++) one_round(end, round, x, out);
    CHECK(!kctx_failed(end->ctx));
}

static void thousands_of_rounds_with_delays_stay_right(void **state) {
    (void)state;
    for (int n = 2; n <= 8; n += 3) with_world(n, 1024, 0, many_rounds, NULL, NULL);
}

/* --- failures -------------------------------------------------------------------------------- */

/* Takes the failure of this rank, mends the world, and shows that it works again. */
static void expect_failure(struct end *end, struct error *e) {
    CHECK(end->ctx->ops->wait(end->ctx, e) != 0);
    CHECK(comm_world_aborted(end->world));
    pthread_barrier_wait(end->gate);
    if (end->rank == 0) comm_world_reset(end->world);
    pthread_barrier_wait(end->gate);
    comm_force(end->comm, COMM_AUTO);
    dev_addr x = buffer(end, 4 * 64);
    for (int a = COMM_AUTO; a <= COMM_RING; a++) {
        comm_force(end->comm, (enum comm_algorithm)a);
        for (int i = 0; i < 64; i++) ((float *)at(end, x))[i] = 1;
        comm_all_reduce(end->comm, x, 1, 64, DTYPE_F32);
        for (int i = 0; i < 64; i++) CHECK(((float *)at(end, x))[i] == (float)end->n);
    }
    CHECK(!kctx_failed(end->ctx));
    comm_force(end->comm, COMM_AUTO);
    end->ctx->ops->mem_free(end->ctx, x);
}

static void disagree(struct end *end) {
    int last = end->rank == end->n - 1;
    dev_addr x = buffer(end, 4096), y = buffer(end, 4096 * 8);
    int32_t even[9], other[9];
    struct error e;
    for (int r = 0; r <= end->n; r++) even[r] = other[r] = r * 4;
    other[1] = 3;
    for (int kind = 0; kind < 8; kind++) {
        comm_force(end->comm, COMM_AUTO);
        switch (kind) {
        case 0: comm_all_reduce(end->comm, x, 1, last ? 32 : 33, DTYPE_F32); break;
        case 1: comm_all_reduce(end->comm, x, last ? 32 : 1, last ? 1 : 32, DTYPE_F32); break;
        case 2: comm_all_reduce(end->comm, x, 1, 32, last ? DTYPE_F32 : DTYPE_BF16); break;
        case 3:
            if (last) comm_barrier(end->comm);
            else comm_all_reduce(end->comm, x, 1, 32, DTYPE_F32);
            break;
        case 4: comm_broadcast(end->comm, x, 32, last); break;
        case 5: comm_broadcast(end->comm, x, last ? 32 : 64, 0); break;
        case 6: comm_all_gather(end->comm, y, x, 1, last ? even : other, DTYPE_F32); break;
        case 7:
            comm_force(end->comm, last ? COMM_RING : COMM_TWO_SHOT);
            comm_all_reduce(end->comm, x, 1, 32, DTYPE_F32);
            break;
        }
        expect_failure(end, &e);
        CHECK(e.kind == ERR_DEVICE);
        CHECK(strstr(e.message, "disagree"));
        if (kind == 0) CHECK(strstr(e.message, "[1, 32]") && strstr(e.message, "[1, 33]"));
        if (kind == 3) CHECK(strstr(e.message, "barrier") && strstr(e.message, "all_reduce"));
        if (kind == 6) CHECK(strstr(e.message, "other offsets"));
    }
}

static void ranks_in_different_calls_all_learn_of_both(void **state) {
    (void)state;
    for (int n = 2; n <= 8; n += 2) with_world(n, 0, 0, disagree, NULL, NULL);
}

struct aborts {
    _Atomic int round; /* the world is whole for the round of this number */
    _Atomic bool stop;
};

enum { ABORTS = 40, ABORT_CELLS = 40000 };

static void reduce_until_aborted(struct end *end) {
    struct aborts *a = end->arg;
    dev_addr x = buffer(end, ABORT_CELLS * 4);
    struct error e;
    for (int round = 1; round <= ABORTS; round++) {
        if (end->rank == 0) atomic_store(&a->round, round);
        comm_force(end->comm, (enum comm_algorithm)(round % 4));
        while (!kctx_failed(end->ctx))
            comm_all_reduce(end->comm, x, 4, round % 8 < 4 ? ABORT_CELLS / 4 : 40, DTYPE_F32);
        memset(at(end, x), 0, ABORT_CELLS * 4); /* no peer may touch it any more */
        expect_failure(end, &e);
        CHECK(e.kind == ERR_CANCELLED);
        CHECK(strcmp(e.message, "enough") == 0);
    }
}

static void abort_again_and_again(struct comm_world *world, void *arg) {
    struct aborts *a = arg;
    struct error why;
    error_set(&why, ERR_CANCELLED, "enough");
    for (int round = 1; round <= ABORTS; round++) {
        while (atomic_load(&a->round) < round) sched_yield();
        usleep((unsigned)(round * 37 % 500));
        comm_world_abort(world, &why);
    }
}

static void an_abort_in_the_middle_frees_all_ranks(void **state) {
    (void)state;
    for (int n = 2; n <= 8; n += 3) {
        struct aborts a = {0};
        with_world(n, 4096, 0, reduce_until_aborted, &a, abort_again_and_again);
    }
}

static void last_rank_stays_away(struct end *end) {
    dev_addr x = buffer(end, 4096);
    struct error e, why;
    for (int a = COMM_AUTO; a <= COMM_RING; a++) {
        comm_force(end->comm, (enum comm_algorithm)a);
        if (end->rank < end->n - 1) comm_all_reduce(end->comm, x, 1, 32, DTYPE_F32);
        pthread_barrier_wait(end->gate);
        CHECK(comm_world_aborted(end->world));
        /* The last rank comes too late and learns why. */
        if (end->rank == end->n - 1) comm_all_reduce(end->comm, x, 1, 32, DTYPE_F32);
        why = end->ctx->error;
        CHECK(why.kind == ERR_DEVICE);
        CHECK(strstr(why.message, "waited 250 ms for rank"));
        expect_failure(end, &e);
    }
}

static void a_missing_rank_is_an_error_at_the_deadline(void **state) {
    (void)state;
    /* Long enough for a loaded machine to do in time what is to work again afterwards. */
    for (int n = 2; n <= 8; n += 3) with_world(n, 0, 250, last_rank_stays_away, NULL, NULL);
}

static void one_has_failed_before(struct end *end) {
    dev_addr x = buffer(end, 4096);
    struct error e;
    if (end->rank == end->n / 2) {
        error_set(&e, ERR_MEMORY, "no memory for a row");
        kctx_fail(end->ctx, &e);
    }
    comm_all_reduce(end->comm, x, 1, 32, DTYPE_F32);
    expect_failure(end, &e);
    CHECK(e.kind == ERR_MEMORY);
    CHECK(strcmp(e.message, "no memory for a row") == 0);
}

static void a_failed_context_brings_its_peers_back(void **state) {
    (void)state;
    for (int n = 2; n <= 8; n += 3) with_world(n, 0, 0, one_has_failed_before, NULL, NULL);
}

static void worlds_of_no_or_too_many_ranks_are_refused(void **state) {
    (void)state;
    struct comm_world *world;
    struct error e;
    assert_int_equal(comm_world_new(&world, 0, 0, 0, &e), -(int)ERR_CONFIG);
    assert_int_equal(comm_world_new(&world, COMM_MAX_RANKS + 1, 0, 0, &e), -(int)ERR_CONFIG);
    assert_int_equal(comm_world_new(&world, 2, SIZE_MAX - 8, 0, &e), -(int)ERR_MEMORY);
    assert_null(world);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_reduce_sums_in_rank_order_whatever_the_way),
        cmocka_unit_test(all_reduce_sums_large_messages),
        cmocka_unit_test(a_row_sums_alike_alone_and_in_a_batch),
        cmocka_unit_test(parts_are_scattered_and_gathered_by_their_offsets),
        cmocka_unit_test(rows_scattered_and_gathered_are_an_all_reduce),
        cmocka_unit_test(a_sum_with_its_norm_has_the_bits_of_both),
        cmocka_unit_test(nobody_passes_a_barrier_alone),
        cmocka_unit_test(thousands_of_rounds_with_delays_stay_right),
        cmocka_unit_test(ranks_in_different_calls_all_learn_of_both),
        cmocka_unit_test(an_abort_in_the_middle_frees_all_ranks),
        cmocka_unit_test(a_missing_rank_is_an_error_at_the_deadline),
        cmocka_unit_test(a_failed_context_brings_its_peers_back),
        cmocka_unit_test(worlds_of_no_or_too_many_ranks_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
