/* Collectives between CUDA devices, simulated ones or (make gpu-test) real ones, which ranks share where there
 * are few: the same bits as between CPU ranks, whatever the order of things; and failures that end.
 * COMM_ROUNDS=1000 makes the long run of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

extern "C" {
#include <cmocka.h>
}

extern "C" {
#include "base/log.h"
}
#include "ipc/comm.h"
#include "kernels/cuda/comm.h"
#include "kernels/cuda/cuda.h"
#include "planted_comm.h"
#include "sim.h"

#include <algorithm>
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

/* Where rank r is, of ranks that share n_devices, or as many as there are. */
static int device_of(int rank, int n_devices = 8) {
    int there = 1;
    cudaGetDeviceCount(&there);
    return rank % std::max(1, std::min(n_devices, there));
}

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
        options.device = device_of(me.rank, n_devices);
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

static bool says(const std::string &text, const char *words) {
    return text.find(words) != std::string::npos;
}

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

/* A line is written once, and the next world reads it. */
static void the_choice_is_measured_and_kept(void **) {
    char path[] = "/tmp/tpd_tuning_XXXXXX", line[512] = "";
    close(mkstemp(path));
    for (int turn = 0; turn < 2; turn++) {
        struct error e;
        std::atomic<bool> set{false};
        with_world(
            ON_CUDA, 2, DEADLINE_MS,
            [&](end &me) {
                while (!set) usleep(100);
                comm_barrier(me.comm);
            },
            8,
            [&](comm_world *world) {
                CHECK(comm_world_tuning(world, path, &e) == 0);
                set = true;
            });
    }
    FILE *f = fopen(path, "r");
    assert_non_null(fgets(line, sizeof line, f));
    assert_true(says(line, " ranks=2 way="));
#ifdef TPD_CUSIM
    assert_true(says(line, "way=peer devices=cuda:0 (simulated device),cuda:1"));
#endif
    assert_null(fgets(line, sizeof line, f));
    fclose(f);
    unlink(path);
}

static void ranks_may_share_a_device(void **) { same_bits(4, random_script(4, 20, seed() + 50), 2); }

#ifdef TPD_CUSIM
/* --- without peer access -------------------------------------------------------------------------- */

static void without_peer_access_it_goes_through_host_memory(void **) {
    cusim::peers_refused(true);
    for (int n = 1; n <= 8; n += n < 4 ? 1 : 4) same_bits(n, random_script(n, 30, seed() + 70));
    cusim::peers_refused(false);
}

static void peer_access_that_loses_data_is_not_used(void **) {
    cusim::peers_lose_writes(2, 0, true);
    same_bits(3, random_script(3, 20, seed() + 71));
    cusim::peers_lose_writes(2, 0, false);
}
#endif

/* --- failures --------------------------------------------------------------------------------------- */

/* What the wait of a rank says. */
static std::string ending(end &me) {
    struct error e = {};
    int rc = me.ctx->ops->wait(me.ctx, &e);
    if (rc == 0) return "";
    CHECK(rc == -(int)ERR_DEVICE);
    return e.message;
}


/* Ones from everybody give n everywhere. */
static void sums_are_right(end &me) {
    for (int a = COMM_ONE_SHOT; a <= COMM_RING; a++) {
        std::vector<float> x(700, 1);
        me.ctx->ops->upload(me.ctx, me.x, x.data(), x.size() * 4);
        comm_force(me.comm, (enum comm_algorithm)a);
        comm_all_reduce(me.comm, me.x, 7, 100, DTYPE_F32);
        me.ctx->ops->download(me.ctx, x.data(), me.x, x.size() * 4);
        CHECK(ending(me) == "");
        for (float v : x) CHECK(v == (float)me.n);
    }
}

/* Ranks meet outside the communicator. */
struct gate {
    pthread_barrier_t barrier;
    explicit gate(int n) { pthread_barrier_init(&barrier, NULL, (unsigned)n); }
    ~gate() { pthread_barrier_destroy(&barrier); }
    void pass() { pthread_barrier_wait(&barrier); }
};

/* All ranks do fn, which fails; then the world is reset and works. */
static void fails_and_recovers(int n, int deadline_ms, const body &fn,
                               const std::function<void(comm_world *)> &meanwhile = {}) {
    gate all(n);
    with_world(ON_CUDA, n, deadline_ms,
               [&](end &me) {
                   sums_are_right(me);
                   all.pass();
                   fn(me);
                   all.pass();
                   if (me.rank == 0) comm_world_reset(me.world);
                   all.pass();
                   sums_are_right(me);
               },
               8, meanwhile);
}

static void clear_x(end &me) {
    std::vector<float> x(BUFFER / 4, 1);
    me.ctx->ops->upload(me.ctx, me.x, x.data(), BUFFER);
}

static void a_dead_rank_fails_the_step_and_not_the_process(void **) {
    fails_and_recovers(4, 300, [](end &me) {
        clear_x(me);
        if (me.rank != 3) comm_all_reduce(me.comm, me.x, 1, 1000, DTYPE_F32);
        std::string said = ending(me);
        CHECK(me.rank == 3 || says(said, "waited 300 ms for rank 3"));
    });
}

static void sleep_in_stream(void *ms) { usleep((useconds_t)((intptr_t)ms * 1000)); }

/* The kernels of rank 1 come too late: its stream is busy. Calls that are enqueued behind the one that fails
 * end, too. */
static void a_device_that_hangs_fails_the_step(void **) {
    for (int a = COMM_ONE_SHOT; a <= COMM_RING; a++)
        fails_and_recovers(3, 200, [=](end &me) {
            clear_x(me);
            comm_force(me.comm, (enum comm_algorithm)a);
            if (me.rank == 1)
                cudaLaunchHostFunc(cuda_of(me.ctx)->stream, sleep_in_stream, (void *)1000);
            for (int i = 0; i < 3; i++) comm_all_reduce(me.comm, me.x, 1, 1000, DTYPE_F32);
            CHECK(says(ending(me), "waited 200 ms for those of rank 1"));
        });
}

static void an_abort_in_the_middle_frees_all_kernels(void **) {
    for (int a = COMM_ONE_SHOT; a <= COMM_RING; a++) {
        std::atomic<int> inside{0};
        fails_and_recovers(
            4, DEADLINE_MS,
            [&](end &me) {
                clear_x(me);
                comm_force(me.comm, (enum comm_algorithm)a);
                if (me.rank == 1)
                    cudaLaunchHostFunc(cuda_of(me.ctx)->stream, sleep_in_stream, (void *)300);
                comm_all_reduce(me.comm, me.x, 1, 1000, DTYPE_F32);
                inside++;
                CHECK(says(ending(me), "somebody called it off"));
            },
            [&](comm_world *world) {
                struct error why;
                error_set(&why, ERR_DEVICE, "somebody called it off");
                while (inside < 4) usleep(100);
                comm_world_abort(world, &why);
            });
    }
}

/* Peers' kernels may be in the middle of writing to them. */
static void buffers_may_be_freed_after_an_abort(void **) {
    for (int i = 0; i < 12; i++) {
        std::atomic<int> inside{0};
        fails_and_recovers(
            3, DEADLINE_MS,
            [&](end &me) {
                dev_addr mine = buffer(me, BUFFER);
                comm_force(me.comm, i % 2 ? COMM_TWO_SHOT : COMM_RING);
                inside++;
                while (!comm_world_aborted(me.world)) {
                    comm_all_reduce(me.comm, mine, 1, BUFFER / 4, DTYPE_F32);
                    if (kctx_failed(me.ctx)) break;
                }
                CHECK(says(ending(me), "enough"));
                me.ctx->ops->mem_free(me.ctx, mine);
            },
            [&](comm_world *world) {
                struct error why;
                error_set(&why, ERR_DEVICE, "enough");
                while (inside < 3) usleep(100);
                usleep((useconds_t)(700 * (i + 1)));
                comm_world_abort(world, &why);
            });
    }
}

static void ranks_that_call_different_things_are_told(void **) {
    fails_and_recovers(3, DEADLINE_MS, [](end &me) {
        clear_x(me);
        if (me.rank == 2) comm_broadcast(me.comm, me.x, 400, 0);
        else comm_all_gather_rows(me.comm, me.x, 10, (const int32_t[]){0, 1, 2, 3}, DTYPE_F32);
        std::string said = ending(me);
        CHECK(says(said, "the ranks disagree") && says(said, "broadcast of 400 bytes"));
        CHECK(says(said, "all_gather_rows"));
    });
}

/* --- the table itself, from one thread --------------------------------------------------------------- */

struct devices {
    int n;
    struct cuda_comm_world *world;
    std::vector<struct kctx *> ctx;
    std::vector<struct cuda_comm *> comm;
    std::vector<dev_addr> x;
    bool direct;
    char why[256];

    explicit devices(int count) : n(count), ctx(count), comm(count), x(count) {
        const struct cuda_comm_table *t = &cuda_comm_table;
        struct error e;
        CHECK(t->world_new(&world, n, SLOT, DEADLINE_MS, &e) == 0);
        for (int r = 0; r < n; r++) {
            struct cuda_options options = {};
            options.device = device_of(r);
            CHECK(kernels_cuda_open(&ctx[r], r, &options, &e) == 0);
            CHECK(t->open(&comm[r], world, r, ctx[r], &e) == 0);
            CHECK(ctx[r]->ops->mem_alloc(ctx[r], MEM_BUFFERS, BUFFER, &x[r], &e) == 0);
        }
        for (auto step : {t->enable, t->write_pattern, t->read_pattern})
            for (struct cuda_comm *c : comm) CHECK(step(c, &e) == 0);
        for (struct cuda_comm *c : comm) CHECK(t->connect(c, &direct, why, sizeof why, &e) == 0);
    }
    void wait() {
        for (struct kctx *c : ctx) c->ops->wait(c, NULL);
    }
    ~devices() {
        for (int r = 0; r < n; r++) {
            cuda_comm_table.close(comm[r]);
            ctx[r]->ops->close(ctx[r]);
        }
        cuda_comm_table.world_free(world);
    }
};

#ifdef TPD_CUSIM
static void every_pair_is_tested_before_it_is_trusted(void **) {
    { devices d(4); assert_true(d.direct); }
    cusim::peers_lose_writes(1, 3, true);
    {
        devices d(4);
        assert_false(d.direct);
        assert_true(says(d.why, "cuda:1 (simulated device) claims peer access to cuda:3"));
    }
    cusim::peers_lose_writes(1, 3, false);
    cusim::peers_refused(true);
    {
        devices d(2);
        assert_false(d.direct);
        assert_true(says(d.why, "has no peer access to cuda:1"));
    }
    cusim::peers_refused(false);
}
#endif

/* As in a graph that was captured by one rank and not by another: the hosts did not compare. */
static void kernels_of_different_calls_do_not_wait_for_each_other(void **) {
    devices d(3);
    for (int r = 0; r < d.n; r++) cuda_comm_table.barrier(d.comm[r], 11);
    d.wait();
    assert_int_equal(cuda_comm_table.failure(d.world).reason, CUDA_COMM_FINE);
    for (int r = 0; r < d.n; r++) cuda_comm_table.barrier(d.comm[r], r == 1 ? 12 : 11);
    d.wait();
    assert_int_equal(cuda_comm_table.failure(d.world).reason, CUDA_COMM_MISMATCH);
}

static struct cuda_comm_call whole_call(const devices &d) {
    struct cuda_comm_call call = {};
    call.signature = 5;
    call.type = DTYPE_F32;
    call.element = 4;
    call.shape.rows = 1;
    for (int p = 0; p <= d.n; p++) call.shape.offsets[p] = 240 / d.n * p;
    for (int p = 0; p < d.n; p++) call.at[p] = d.x[p];
    return call;
}

#ifdef TPD_CUSIM
using reduce = void (*)(struct cuda_comm *, const struct cuda_comm_call *);

/* Whether a fault is found when the first call is right and later ones are as given. */
static bool is_found(reduce right, reduce given) {
    devices d(3);
    struct cuda_comm_call call = whole_call(d);
    for (int i = 0; i < 6; i++)
        for (int r = 0; r < d.n; r++) (i < 1 ? right : given)(d.comm[r], &call);
    d.wait();
    std::string fault = cusim::last_fault();
    cusim::clear_fault();
    assert_true(fault.empty() || says(fault, "races"));
    return !fault.empty();
}

/* Devices that happen to go in step need no flags: so it is tried a few times. */
static void missing_wait(reduce right, reduce planted) {
    enum { TRIES = 30 };
    assert_false(is_found(right, right));
    int i = 0;
    while (i < TRIES && !is_found(right, planted)) i++;
    assert_true(i < TRIES);
}

static void a_missing_wait_is_found(void **) {
    const struct cuda_comm_table *t = &cuda_comm_table;
    missing_wait(t->one_shot, planted_one_shot);
    missing_wait(t->two_shot, planted_two_shot);
    missing_wait(t->ring, planted_ring);
}
#endif

/* Its peer has signalled, given up and freed its buffer. */
static void a_kernel_that_comes_after_an_abort_touches_nothing(void **) {
    devices d(2);
    struct cuda_comm_call call = whole_call(d);
    cuda_comm_table.two_shot(d.comm[0], &call);
    cuda_comm_table.abort(d.world);
    d.ctx[0]->ops->wait(d.ctx[0], NULL);
    d.ctx[0]->ops->mem_free(d.ctx[0], d.x[0]);
    cuda_comm_table.two_shot(d.comm[1], &call);
    d.wait();
    assert_string_equal(cusim::last_fault().c_str(), "");
}

/* All rows of three calls, one behind the other, as every rank has them in the end: fused or not. */
static std::vector<std::vector<float>> norms(int n, int cols, bool fused, int n_devices) {
    enum { CALLS = 3, MOST = 4 };
    std::vector<std::vector<float>> got(n);
    with_world(ON_CUDA, n, DEADLINE_MS, [&](end &me) {
        const struct kernels *k = me.ctx->ops;
        dev_addr x = buffer(me, MOST * cols * 4), g = buffer(me, cols * 4);
        uint64_t same = 7;
        std::vector<float> gain(cols), start(MOST * cols), y(MOST * cols);
        for (float &v : gain) v = (float)below(&same, 1000) / 500.0f;
        for (float &v : start) v = (float)below(&same, 1000) / 100.0f - 5.0f;
        k->upload(me.ctx, g, gain.data(), gain.size() * 4);
        k->upload(me.ctx, x, start.data(), start.size() * 4);
        got[me.rank].resize(2 * CALLS * MOST * cols);
        for (int i = 0; i < CALLS; i++) {
            int rows = i == 1 ? MOST : 1;
            uint64_t random = seed() + (uint64_t)(31 * me.rank + i);
            for (float &v : y) v = (float)below(&random, 100000) / (float)(1 + below(&random, 5000));
            k->upload(me.ctx, me.x, y.data(), y.size() * 4);
            struct comm_norm norm = {me.x, x, me.out, g, 0.75f, 1e-5f};
            if (fused) comm_all_reduce_norm(me.comm, &norm, rows, cols);
            else {
                comm_all_reduce(me.comm, me.x, rows, cols, DTYPE_F32);
                k->add_rmsnorm(me.ctx, me.out, x, me.x, norm.scale, g, rows, cols, norm.eps);
            }
            float *to = &got[me.rank][2 * i * MOST * cols];
            k->download(me.ctx, to, me.out, (size_t)rows * cols * 4);
            k->download(me.ctx, to + MOST * cols, x, (size_t)MOST * cols * 4);
        }
        struct error e;
        CHECK(k->wait(me.ctx, &e) == 0);
    }, n_devices);
    return got;
}

static void a_fused_norm_gives_the_bits_of_its_parts(void **) {
    for (int n = 1; n <= 8; n++) {
        int cols = n % 2 ? 60 : 37, devices = n == 6 ? 2 : 8; /* 4 rows of them fit into a slot */
        std::vector<std::vector<float>> fused = norms(n, cols, true, devices), parts = norms(n, cols, false, devices);
        for (int r = 0; r < n; r++) {
            assert_memory_equal(fused[r].data(), parts[r].data(), parts[r].size() * 4);
            assert_memory_equal(fused[r].data(), fused[0].data(), fused[0].size() * 4);
        }
    }
}

/* The numbers of meetings live on the devices, so a graph can be launched again and again. */
static void captured_calls_go_on_counting(void **) {
    devices d(2);
    struct cuda_comm_call call = whole_call(d);
    std::vector<cudaGraphExec_t> ready(d.n);
    std::vector<float> x(240, 1);
    for (int r = 0; r < d.n; r++) {
        cudaGraph_t graph;
        cudaStream_t s = cuda_of(d.ctx[r])->stream;
        d.ctx[r]->ops->upload(d.ctx[r], d.x[r], x.data(), 960);
        cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal);
        cuda_comm_table.one_shot(d.comm[r], &call);
        cuda_comm_table.two_shot(d.comm[r], &call);
        cuda_comm_table.ring(d.comm[r], &call);
        cudaStreamEndCapture(s, &graph);
        cudaGraphInstantiate(&ready[r], graph, 0);
        cudaGraphDestroy(graph);
    }
    for (int i = 0; i < 5; i++)
        for (int r = 0; r < d.n; r++) cudaGraphLaunch(ready[r], cuda_of(d.ctx[r])->stream);
    for (int r = 0; r < d.n; r++) d.ctx[r]->ops->download(d.ctx[r], x.data(), d.x[r], 960);
    d.wait();
    for (float v : x) assert_true(v == 32768.0f); /* doubled fifteen times */
    for (auto g : ready) cudaGraphExecDestroy(g);
}

static int clean(void **) {
    cusim::clear_fault();
    return 0;
}

#ifdef TPD_CUSIM
static void nothing_is_left(void **) { assert_int_equal(cusim::live_allocations(), 0); }
#endif

#define T(f) cmocka_unit_test_setup(f, clean)
int main() {
    setenv("CUSIM_QUIET", "1", 0);
    log_setup(LOG_ERROR, false);
    const struct CMUnitTest tests[] = {
        T(every_algorithm_sums_every_size),
        T(all_kinds_give_the_cpus_bits),
        T(ranks_may_share_a_device),
        T(the_choice_is_measured_and_kept),
        T(a_dead_rank_fails_the_step_and_not_the_process),
        T(a_device_that_hangs_fails_the_step),
        T(an_abort_in_the_middle_frees_all_kernels),
        T(buffers_may_be_freed_after_an_abort),
        T(ranks_that_call_different_things_are_told),
        T(kernels_of_different_calls_do_not_wait_for_each_other),
        T(a_kernel_that_comes_after_an_abort_touches_nothing),
        T(captured_calls_go_on_counting),
        T(a_fused_norm_gives_the_bits_of_its_parts),
#ifdef TPD_CUSIM
        T(without_peer_access_it_goes_through_host_memory),
        T(peer_access_that_loses_data_is_not_used),
        T(every_pair_is_tested_before_it_is_trusted),
        T(a_missing_wait_is_found),
        T(nothing_is_left),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
