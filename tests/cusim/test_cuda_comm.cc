/* Collectives between simulated CUDA devices: the same bits as between CPU ranks, whatever the order of
 * things; and failures that end. COMM_ROUNDS=1000 makes the long run of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

extern "C" {
#include <cmocka.h>
}

#include "ipc/comm.h"
#include "sim.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

/* cmocka's assertions belong to the main thread; a rank that is wrong ends the test at once. */
#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: not so: %s (%s)\n", __FILE__, __LINE__, #condition,            \
                    cusim::last_fault().c_str());                                                  \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

enum kind { ON_CPU, ON_CUDA };
enum { SLOT = 1024, DEADLINE_MS = 20000, BUFFER = 12 << 10 };

static uint64_t next_random(uint64_t *state) {
    *state += 0x9E3779B97F4A7C15u;
    uint64_t z = *state;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    return z ^ z >> 27;
}

static uint32_t below(uint64_t *state, uint32_t n) {
    return (uint32_t)(next_random(state) >> 32) % n;
}

/* --- a world of threads --------------------------------------------------------------------------- */

struct end {
    int rank, n;
    struct comm_world *world;
    struct kctx *ctx;
    struct comm *comm;
    dev_addr x, out;
};
using body = std::function<void(end &)>;

static dev_addr buffer(end &me, size_t bytes) {
    dev_addr addr;
    struct error e;
    CHECK(me.ctx->ops->mem_alloc(me.ctx, MEM_BUFFERS, bytes, &addr, &e) == 0);
    return addr;
}

static void rank_main(kind on, int n_devices, end me, const body &fn) {
    struct error e;
    int rc;
    if (on == ON_CPU) {
        struct cpu_options options = {};
        struct core_set allowed;
        core_set_allowed(&allowed);
        options.cores.n = 1;
        options.cores.cpus[0] = allowed.cpus[me.rank % allowed.n];
        rc = kernels_cpu_open(&me.ctx, me.rank, &options, &e);
    } else {
        struct cuda_options options = {};
        options.device = me.rank % n_devices;
        rc = kernels_cuda_open(&me.ctx, me.rank, &options, &e);
    }
    CHECK(rc == 0);
    CHECK(comm_open(&me.comm, me.world, me.rank, me.ctx, &e) == 0);
    me.x = buffer(me, BUFFER);
    me.out = buffer(me, BUFFER);
    fn(me);
    me.ctx->ops->wait(me.ctx, NULL);
    comm_close(me.comm);
    me.ctx->ops->close(me.ctx);
}

/* meanwhile, on the main thread. Devices are shared when there are fewer than ranks. */
static void with_world(kind on, int n, int deadline_ms, const body &fn, int n_devices = 8,
                       const std::function<void(comm_world *)> &meanwhile = {}) {
    struct comm_world *world;
    struct error e;
    std::vector<std::thread> threads;
    wait_spin_set(0);
    assert_int_equal(comm_world_new(&world, n, SLOT, deadline_ms, &e), 0);
    for (int r = 0; r < n; r++) {
        end me = {};
        me.rank = r;
        me.n = n;
        me.world = world;
        threads.emplace_back(rank_main, on, n_devices, me, std::cref(fn));
    }
    if (meanwhile) meanwhile(world);
    for (auto &t : threads) t.join();
    comm_world_free(world);
}

/* --- scripts: calls in a row, with what they gave ------------------------------------------------- */

enum what { ALL_REDUCE, SCATTER, GATHER, SCATTER_ROWS, GATHER_ROWS, BROADCAST, BARRIER, WHATS };

struct step {
    what op;
    enum comm_algorithm algorithm;
    enum dtype type;
    int32_t rows, cols, offsets[9];
    int root;
    size_t shift; /* bytes between the buffer's beginning and x: not always aligned */
    uint64_t seed;
};

static size_t size_of(const step &s) { return s.type == DTYPE_F32 ? 4 : 2; }

/* Cuts total into n parts, some of them empty. */
static void cut(int32_t *offsets, int n, int32_t total, uint64_t *random) {
    offsets[0] = 0;
    for (int p = 1; p < n; p++)
        offsets[p] = offsets[p - 1] + (int32_t)below(random, (uint32_t)(total - offsets[p - 1]) + 1);
    if (below(random, 2)) /* even ones, in whole packs */
        for (int p = 1; p < n; p++) offsets[p] = total * p / n / 8 * 8;
    offsets[n] = total;
}

static step random_step(int n, uint64_t *random) {
    step s = {};
    s.op = (what)below(random, WHATS + 3);
    if (s.op >= WHATS) s.op = ALL_REDUCE;
    s.algorithm = (enum comm_algorithm)below(random, COMM_RING + 1);
    s.type = below(random, 2) ? DTYPE_F32 : DTYPE_BF16;
    s.rows = 1 + (int32_t)below(random, 5);
    s.cols = 1 + (int32_t)below(random, below(random, 2) ? 40 : 500);
    if (below(random, 2)) s.cols = (s.cols + 7) / 8 * 8;
    /* The simulator looks for races by words of four bytes: two ranks must not share one. */
    if (s.type == DTYPE_BF16 && (s.op == SCATTER_ROWS || s.op == GATHER_ROWS)) s.cols += s.cols % 2;
    s.root = (int)below(random, (uint32_t)n);
    s.shift = below(random, 3) ? 0 : 4 * below(random, 8);
    s.seed = next_random(random);
    cut(s.offsets, n, s.op == SCATTER_ROWS || s.op == GATHER_ROWS ? s.rows : s.cols, random);
    return s;
}

/* Values of very different size, so that another order of addition gives other bits. */
static std::vector<uint8_t> input(const step &s, int rank, size_t bytes) {
    std::vector<uint8_t> data(bytes);
    uint64_t random = s.seed + (uint64_t)rank;
    for (size_t i = 0; i + size_of(s) <= bytes; i += size_of(s)) {
        uint64_t bits = next_random(&random);
        float v = ((float)(bits >> 40) / 8388608.0f - 1.0f) * (float)(1u << (bits & 15)) / 128.0f;
        uint32_t u;
        memcpy(&u, &v, 4);
        if (s.type != DTYPE_F32) u >>= 16;
        memcpy(&data[i], &u, size_of(s));
    }
    return data;
}

/* Bytes of x, and which bytes of which buffer are the result. */
struct places {
    size_t in, from, bytes;
    bool in_out;
};

static places places_of(const step &s, int rank, int n) {
    size_t size = size_of(s), all = (size_t)s.rows * s.cols * size;
    size_t width = (size_t)(s.offsets[rank + 1] - s.offsets[rank]), row = (size_t)s.cols * size;
    switch (s.op) {
    case SCATTER: return {all, 0, s.rows * width * size, true};
    case GATHER: return {s.rows * width * size, 0, all, true};
    case SCATTER_ROWS: return {all, (size_t)s.offsets[rank] * row, width * row, false};
    case BARRIER: return {0, 0, 0, false};
    default: (void)n; return {all, 0, all, false};
    }
}

static void call(end &me, const step &s, dev_addr x) {
    comm_force(me.comm, s.algorithm);
    switch (s.op) {
    case ALL_REDUCE: return comm_all_reduce(me.comm, x, s.rows, s.cols, s.type);
    case SCATTER: return comm_reduce_scatter(me.comm, me.out, x, s.rows, s.offsets, s.type);
    case GATHER: return comm_all_gather(me.comm, me.out, x, s.rows, s.offsets, s.type);
    case SCATTER_ROWS: return comm_reduce_scatter_rows(me.comm, x, s.cols, s.offsets, s.type);
    case GATHER_ROWS: return comm_all_gather_rows(me.comm, x, s.cols, s.offsets, s.type);
    case BROADCAST:
        return comm_broadcast(me.comm, x, (size_t)s.rows * s.cols * size_of(s), s.root);
    default: return comm_barrier(me.comm);
    }
}

using results = std::vector<std::vector<uint8_t>>; /* of the steps */

/* A few steps are under way at once; between them a rank dawdles now and then. */
static void play(end &me, const std::vector<step> &script, bool delays, results *got) {
    const struct kernels *k = me.ctx->ops;
    uint64_t random = script[0].seed + 77u * (uint64_t)me.rank;
    got->resize(script.size());
    for (size_t i = 0; i < script.size(); i++) {
        const step &s = script[i];
        places p = places_of(s, me.rank, me.n);
        std::vector<uint8_t> data = input(s, me.rank, p.in);
        if (p.in) k->upload(me.ctx, me.x + s.shift, data.data(), p.in);
        if (delays && below(&random, 6) == 0) usleep(below(&random, 2000));
        call(me, s, me.x + s.shift);
        (*got)[i].resize(p.bytes);
        if (p.bytes)
            k->download(me.ctx, (*got)[i].data(), (p.in_out ? me.out : me.x + s.shift) + p.from, p.bytes);
        if (i % 4 == 3) {
            struct error e;
            if (k->wait(me.ctx, &e)) fprintf(stderr, "rank %d: %s\n", me.rank, e.message);
        }
    }
    struct error e;
    int rc = k->wait(me.ctx, &e);
    if (rc) fprintf(stderr, "rank %d: %s\n", me.rank, e.message);
    CHECK(rc == 0);
}

static std::vector<results> play_on(kind on, int n, const std::vector<step> &script, int n_devices = 8) {
    std::vector<results> got(n);
    with_world(on, n, DEADLINE_MS,
               [&](end &me) { play(me, script, on == ON_CUDA, &got[me.rank]); }, n_devices);
    return got;
}

static void same_bits(int n, const std::vector<step> &script, int n_devices = 8) {
    std::vector<results> want = play_on(ON_CPU, n, script), got = play_on(ON_CUDA, n, script, n_devices);
    for (size_t i = 0; i < script.size(); i++)
        for (int r = 0; r < n; r++) {
            const step &s = script[i];
            if (got[r][i] != want[r][i])
                fail_msg("%d ranks, step %zu, rank %d: operation %d, algorithm %d, type %d, [%d, %d], "
                         "shift %zu: other bits than on the CPU",
                         n, i, r, s.op, s.algorithm, s.type, s.rows, s.cols, s.shift);
            if (s.op == ALL_REDUCE) assert_true(got[r][i] == got[0][i]);
        }
}

static std::vector<step> random_script(int n, int steps, uint64_t seed) {
    std::vector<step> script;
    for (int i = 0; i < steps; i++) script.push_back(random_step(n, &seed));
    return script;
}

/* --- promises ------------------------------------------------------------------------------------- */

static int rounds() {
    const char *text = getenv("COMM_ROUNDS");
    return text ? atoi(text) : 40;
}

static uint64_t seed() {
    const char *text = getenv("CUSIM_SEED");
    return text ? strtoull(text, NULL, 10) * 1000 : 1000;
}

static void all_kinds_give_the_cpus_bits(void **) {
    for (int n = 1; n <= 8; n++) same_bits(n, random_script(n, rounds(), seed() + (uint64_t)n));
}

static void every_algorithm_sums_every_size(void **) {
    static const int32_t shapes[][2] = {{1, 1}, {1, 64}, {3, 7}, {2, 333}, {5, 520}};
    for (int n = 2; n <= 8; n += n < 4 ? 1 : 2) {
        std::vector<step> script;
        uint64_t random = seed() + 7;
        for (auto &shape : shapes)
            for (int a = COMM_AUTO; a <= COMM_RING; a++)
                for (enum dtype type : {DTYPE_F32, DTYPE_BF16}) {
                    step s = random_step(n, &random);
                    s.op = ALL_REDUCE;
                    s.algorithm = (enum comm_algorithm)a;
                    s.type = type;
                    s.rows = shape[0];
                    s.cols = shape[1];
                    s.shift = 0;
                    script.push_back(s);
                }
        same_bits(n, script);
    }
}

static void ranks_may_share_a_device(void **) { same_bits(4, random_script(4, 20, seed() + 50), 2); }

static int clean(void **) {
    cusim::clear_fault();
    return 0;
}

static void nothing_is_left(void **) { assert_int_equal(cusim::live_allocations(), 0); }

#define T(f) cmocka_unit_test_setup(f, clean)
int main() {
    const struct CMUnitTest tests[] = {
        T(every_algorithm_sums_every_size),
        T(all_kinds_give_the_cpus_bits),
        T(ranks_may_share_a_device),
        T(nothing_is_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
