/* tests/cusim/state.h: what the simulator's own files share: streams, clocks, the thread that runs. */
#ifndef TPD_CUSIM_STATE_H
#define TPD_CUSIM_STATE_H

#include "sim.h"

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace cusim {

/* Happens-before, by vector clocks: actor 0 is the host, each stream is another. An actor's own entry
 * ticks whenever others may learn of what it did (an event, a flag, a synchronisation). */
enum { MAX_ACTORS = 256 };
struct vector_clock {
    uint32_t at[MAX_ACTORS] = {};
    void join(const vector_clock &other) {
        for (int i = 0; i < MAX_ACTORS; i++)
            if (other.at[i] > at[i]) at[i] = other.at[i];
    }
};

/* Who acts on the calling OS thread: its device, and what it knows of the others. */
struct actor {
    int number = 0;  /* 0: the host */
    int device = -1; /* -1: the host, which may follow no device address */
    vector_clock clock;
};
actor &current_actor();
void set_current_actor(actor *a); /* nullptr: the host again */
/* What the actor did so far may be learnt by joining the result. */
vector_clock publish(actor &a);

struct operation {
    std::string name;
    std::function<void()> run;
    vector_clock host; /* what the host knew when it enqueued it */
};

struct stream {
    int device;
    actor who;
    std::thread worker;
    std::mutex lock;
    std::condition_variable changed;
    std::deque<operation> queue;
    bool busy = false, ending = false;
    bool capturing = false;
    std::vector<operation> captured;
};

struct event {
    std::mutex lock;
    std::condition_variable changed;
    uint64_t recorded = 0, reached = 0; /* of cudaEventRecord calls */
    vector_clock clock;
    uint64_t time_ns = 0;
};

/* --- memory.cc --- */
uint64_t memory_new(int device /* -1: pinned */, size_t bytes);
bool memory_delete(uint64_t address, int device);
bool memory_knows(uint64_t address);
int memory_device(uint64_t address);
void peer_enable(int from, int to, bool on);
bool peer_enabled(int from, int to);
bool peer_possible();
/* Host bytes of pinned memory; nullptr for another address. */
void *memory_pinned(uint64_t address);

/* --- block.cc --- */
void run_kernel(const char *name, const launch_shape &shape, const std::function<void()> &kernel);

/* --- stream.cc --- */
void note_fault(const std::string &message);
/* A fault was noted: what waits for others gives up. */
bool has_failed();
uint64_t next_random(uint64_t &state);
uint64_t seed_of(uint64_t salt);

} // namespace cusim

#endif
