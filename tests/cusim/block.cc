/* The threads of a kernel: fibers, resumed in random order, that meet at barriers and shuffles. */
#include "fiber.h"
#include "state.h"

#include <cstdarg>
#include <cstdio>
#include <ctime>
#include <map>
#include <sched.h>

namespace cusim {

enum class wait { NONE, THREADS, WARP, SPIN };

struct element_use { /* of one element of shared memory: the last accesses */
    int writer = -1, reader = -1; /* lane numbers; reader -2: several of one warp, -3: of several */
    int reader_warp = -1;
    unsigned write_epoch = 0, write_warp_epoch = 0, read_epoch = 0, read_warp_epoch = 0;
};

struct shared_block {
    size_t element, n;
    std::unique_ptr<char[]> data;
    std::unique_ptr<bool[]> written;
    std::unique_ptr<element_use[]> use;
    shared_block(size_t e, size_t count)
        : element(e), n(count), data(new char[e * count]), written(new bool[count]()),
          use(new element_use[count]) {
        std::memset(data.get(), 0xFF, e * count);
    }
};

struct warp_meeting {
    unsigned arrived = 0, expected = 0, left = 0;
    uint64_t values[WARP];
    unsigned generation = 0, epoch = 0;
};

struct block {
    index3 at;
    unsigned n_lanes = 0, live = 0, at_barrier = 0, epoch = 1;
    std::vector<warp_meeting> warps;
    std::map<const void *, std::unique_ptr<shared_block>> shared;
    std::unique_ptr<shared_block> dynamic;
};

struct lane {
    block *of;
    index3 at;
    unsigned number;
    void *stack_pointer;
    char *stack;
    wait waits = wait::NONE;
    bool ended = false;
};

struct kernel_run {
    const char *name;
    const launch_shape *shape;
    const std::function<void()> *body;
    std::vector<lane *> ready;
    uint64_t random;
    void *scheduler;
    std::string error;
    unsigned spinning = 0;
};

static thread_local lane *running;
static thread_local kernel_run *run;

lane *self() { return running; }

[[noreturn]] void stop(const char *format, ...) {
    char text[512], whole[800];
    va_list args;
    va_start(args, format);
    std::vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (running)
        std::snprintf(whole, sizeof whole, "kernel %s, block (%u,%u,%u), thread (%u,%u,%u): %s",
                      run->name, running->of->at.x, running->of->at.y, running->of->at.z,
                      running->at.x, running->at.y, running->at.z, text);
    else std::snprintf(whole, sizeof whole, "%s", text);
    throw fault{whole};
}

static lane *here(const char *what) {
    if (!running) throw fault{std::string(what) + " outside a kernel"};
    return running;
}

const index3 &thread_index() { return here("threadIdx")->at; }
const index3 &block_index() { return here("blockIdx")->of->at; }
const index3 &block_size() { here("blockDim"); return run->shape->block; }
const index3 &grid_size() { here("gridDim"); return run->shape->grid; }

uint64_t nanoseconds() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

/* --- switching ----------------------------------------------------------------------------------- */

static void suspend(wait why) {
    lane *me = running;
    me->waits = why;
    cusim_switch(&me->stack_pointer, run->scheduler);
}

static void make_ready(lane *l) {
    l->waits = wait::NONE;
    run->ready.push_back(l);
}

static void lane_main() {
    lane *me = running;
    try {
        (*run->body)();
    } catch (const fault &f) {
        if (run->error.empty()) run->error = f.message;
    }
    me->ended = true;
    cusim_switch(&me->stack_pointer, run->scheduler);
    __builtin_unreachable();
}

static thread_local std::vector<lane *> all_lanes;

/* --- barriers ------------------------------------------------------------------------------------ */

static void release_block(block *b) {
    b->at_barrier = 0;
    b->epoch++;
    for (lane *l : all_lanes)
        if (l->of == b && l->waits == wait::THREADS) make_ready(l);
}

void sync_threads() {
    block *b = here("__syncthreads")->of;
    if (b->live != b->n_lanes)
        stop("__syncthreads after %u of %u threads have returned", b->n_lanes - b->live, b->n_lanes);
    b->at_barrier++;
    if (b->at_barrier == b->n_lanes) {
        lane *me = running;
        release_block(b);
        make_ready(me);
        suspend(wait::NONE);
    } else suspend(wait::THREADS);
}

/* All lanes of mask meet; each leaves value for the others. */
static warp_meeting &meet(unsigned mask, uint64_t value) {
    lane *me = here("a warp's operation");
    unsigned warp = me->number / WARP, bit = me->number % WARP;
    unsigned lanes = me->of->n_lanes - warp * WARP;
    unsigned there = lanes >= WARP ? 0xFFFFFFFFu : (1u << lanes) - 1;
    warp_meeting &w = me->of->warps[warp];
    if (mask == 0xFFFFFFFFu) mask &= there;
    if (!(mask >> bit & 1)) stop("mask 0x%x does not name the calling lane %u", mask, bit);
    if (mask & ~there) stop("mask 0x%x names lanes that the block has not", mask);
    while (w.left) { /* the last meeting's lanes have not all gone yet */
        run->ready.push_back(me);
        suspend(wait::NONE);
    }
    if (w.arrived == 0) w.expected = mask;
    if (w.expected != mask) stop("masks differ in one warp: 0x%x and 0x%x", w.expected, mask);
    w.values[bit] = value;
    w.arrived |= 1u << bit;
    if (w.arrived == mask) {
        w.left = mask;
        w.epoch++;
        for (lane *l : all_lanes)
            if (l->of == me->of && l->number / WARP == warp && l->waits == wait::WARP) make_ready(l);
        run->ready.push_back(me);
        suspend(wait::NONE);
    } else suspend(wait::WARP);
    return w;
}

static void leave(warp_meeting &w) {
    w.left &= ~(1u << running->number % WARP);
    if (w.left == 0) w.arrived = 0;
}

void sync_warp(unsigned mask) { leave(meet(mask, 0)); }

uint64_t shuffle(unsigned mask, uint64_t value, int from) {
    warp_meeting &w = meet(mask, value);
    uint64_t result = value; /* from outside the warp: one's own, as CUDA has it */
    if (from >= 0 && from < WARP) {
        if (!(w.arrived >> from & 1)) stop("a shuffle reads lane %d, which does not take part", from);
        result = w.values[from];
    }
    leave(w);
    return result;
}

unsigned ballot(unsigned mask, bool predicate) {
    warp_meeting &w = meet(mask, predicate);
    unsigned result = 0;
    for (unsigned i = 0; i < WARP; i++)
        if ((w.arrived >> i & 1) && w.values[i]) result |= 1u << i;
    leave(w);
    return result;
}

void spin_pause() {
    here("spin_pause");
    if (!run->shape->resident)
        stop("a thread spins in a kernel that was not launched as resident: its peer may never start");
    if (has_failed()) stop("gives up waiting: another kernel failed");
    run->ready.push_back(running);
    if (++run->spinning > 64) {
        run->spinning = 0;
        sched_yield();
    }
    suspend(wait::NONE);
}

/* --- shared memory ------------------------------------------------------------------------------- */

shared_block *shared_static(const void *key, size_t element, size_t n) {
    auto &at = here("__shared__")->of->shared[key];
    if (!at) at.reset(new shared_block(element, n));
    return at.get();
}

shared_block *shared_dynamic(size_t element) {
    block *b = here("dynamic shared memory")->of;
    if (!b->dynamic) b->dynamic.reset(new shared_block(element, run->shape->shared_bytes / element));
    if (b->dynamic->element != element)
        stop("dynamic shared memory is used as elements of %zu and of %zu bytes", b->dynamic->element,
             element);
    return b->dynamic.get();
}

/* An access before a barrier that the running thread has passed too. */
static bool is_past(const block *b, unsigned epoch, unsigned warp_epoch, int warp) {
    if (epoch < b->epoch) return true;
    unsigned mine = running->number / WARP;
    return warp == (int)mine && warp_epoch < b->warps[mine].epoch;
}

void *check_shared(shared_block *s, int64_t index, bool write) {
    lane *me = here("shared memory");
    block *b = me->of;
    if (index < 0 || (size_t)index >= s->n)
        stop("shared memory of %zu elements: element %lld is out of bounds", s->n, (long long)index);
    element_use &u = s->use[index];
    int mine = (int)me->number, warp = mine / WARP;
    bool other_write = u.writer >= 0 && u.writer != mine &&
                       !is_past(b, u.write_epoch, u.write_warp_epoch, u.writer / WARP);
    bool other_read = u.reader != -1 && u.reader != mine &&
                      !is_past(b, u.read_epoch, u.read_warp_epoch,
                               u.reader == -3 ? -1 : u.reader_warp);
    if (!write && !s->written[index])
        stop("shared memory: element %lld is read and was never written", (long long)index);
    if (other_write || (write && other_read))
        stop("shared memory: element %lld is %s by this thread and %s by another with no barrier "
             "between",
             (long long)index, write ? "written" : "read", other_write ? "written" : "read");
    unsigned warp_epoch = b->warps[warp].epoch;
    if (write) {
        s->written[index] = true;
        u.writer = mine;
        u.write_epoch = b->epoch;
        u.write_warp_epoch = warp_epoch;
    } else {
        bool fresh = u.reader == -1 || u.read_epoch < b->epoch;
        if (fresh) u.reader = mine;
        else if (u.reader != mine) u.reader = u.reader != -3 && u.reader_warp == warp ? -2 : -3;
        u.reader_warp = warp;
        u.read_epoch = b->epoch;
        u.read_warp_epoch = warp_epoch;
    }
    return s->data.get() + (size_t)index * s->element;
}

/* --- a kernel ------------------------------------------------------------------------------------ */

static block *make_block(const launch_shape &shape, index3 at) {
    auto *b = new block;
    b->at = at;
    b->n_lanes = b->live = shape.block.x * shape.block.y * shape.block.z;
    b->warps.resize((b->n_lanes + WARP - 1) / WARP);
    for (unsigned i = 0; i < b->n_lanes; i++) {
        auto *l = new lane{};
        l->of = b;
        l->number = i;
        l->at = {i % shape.block.x, i / shape.block.x % shape.block.y,
                 i / shape.block.x / shape.block.y};
        l->stack = stack_take();
        l->stack_pointer = stack_prepare(l->stack, lane_main);
        all_lanes.push_back(l);
        run->ready.push_back(l);
    }
    return b;
}

static std::string describe_stuck() {
    for (lane *l : all_lanes)
        if (!l->ended) {
            const char *what = l->waits == wait::THREADS ? "__syncthreads" : "a warp's operation";
            char text[300];
            std::snprintf(text, sizeof text,
                          "kernel %s, block (%u,%u,%u): thread (%u,%u,%u) waits at %s that not all "
                          "threads reach",
                          run->name, l->of->at.x, l->of->at.y, l->of->at.z, l->at.x, l->at.y, l->at.z,
                          what);
            return text;
        }
    return "";
}

/* Runs what is ready until all have ended, one has failed or none can go on. */
static void schedule() {
    size_t left = all_lanes.size();
    while (left > 0 && run->error.empty()) {
        if (run->ready.empty()) {
            run->error = describe_stuck();
            break;
        }
        size_t i = next_random(run->random) % run->ready.size();
        lane *l = run->ready[i];
        run->ready[i] = run->ready.back();
        run->ready.pop_back();
        running = l;
        cusim_switch(&run->scheduler, l->stack_pointer);
        running = nullptr;
        if (l->ended) {
            left--;
            l->of->live--;
            if (l->of->at_barrier > 0 && run->error.empty())
                run->error = std::string("kernel ") + run->name +
                             ": a thread returns while others of its block wait at __syncthreads";
        }
    }
}

static void run_blocks(const launch_shape &shape, const std::vector<index3> &blocks) {
    std::vector<std::unique_ptr<block>> made;
    for (index3 at : blocks) made.emplace_back(make_block(shape, at));
    schedule();
    for (lane *l : all_lanes) {
        stack_give(l->stack);
        delete l;
    }
    all_lanes.clear();
    run->ready.clear();
}

void run_kernel(const char *name, const launch_shape &shape, const std::function<void()> &kernel) {
    kernel_run r{};
    static std::atomic<uint64_t> number;
    r.name = name;
    r.shape = &shape;
    r.body = &kernel;
    r.random = seed_of(number++);
    run = &r;
    std::vector<index3> blocks;
    for (unsigned z = 0; z < shape.grid.z; z++)
        for (unsigned y = 0; y < shape.grid.y; y++)
            for (unsigned x = 0; x < shape.grid.x; x++) blocks.push_back({x, y, z});
    for (size_t i = blocks.size(); i > 1; i--)
        std::swap(blocks[i - 1], blocks[next_random(r.random) % i]);
    if (shape.resident) run_blocks(shape, blocks);
    else
        for (index3 at : blocks)
            if (r.error.empty()) run_blocks(shape, {at});
    run = nullptr;
    if (!r.error.empty()) throw fault{r.error};
}

} // namespace cusim
