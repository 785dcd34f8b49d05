/* base/thread.h: core sets, teams of threads, and waiting that spins a little and then sleeps.
 *
 * A team is the cores of one CPU rank: the calling thread is member 0 and the team's own threads
 * are members 1 … n-1, each pinned to its core. team_run is called by member 0 only, never nested.
 */
#ifndef TPD_BASE_THREAD_H
#define TPD_BASE_THREAD_H

#include "base/error.h"

#include <pthread.h>
#ifndef __cplusplus
#include <stdatomic.h>
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum { CORE_SET_MAX = 1024 };

/* CPU numbers, ascending. */
struct core_set {
    int n;
    int cpus[CORE_SET_MAX];
};

/* The cores this process may run on (affinity mask and cgroup quota, rounded up). */
void core_set_allowed(struct core_set *set);
/* "0-3,8" */
int core_set_parse(struct core_set *set, const char *text, struct error *e);
/* Refuses a set with a core that this process may not run on (or that the machine lacks). */
int core_set_check(const struct core_set *set, struct error *e);
/* The same form; cut when it does not fit. Writes into out. */
void core_set_format(const struct core_set *set, char *out, size_t size);
/* Deals the cores of all to n_parts disjoint sets, as evenly as can be and neighbours together;
 * with fewer cores than parts, parts share (part i gets core i mod n). */
void core_set_part(const struct core_set *all, int n_parts, int part, struct core_set *out);
/* Pins the calling thread to the set's index-th core, or to the whole set when index is -1. A hint:
 * a core that has gone away since is passed over in silence. */
void thread_pin(const struct core_set *set, int index);
/* Linux keeps 15 characters. */
void thread_name(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Starts a joinable thread that takes no signals: those are for the thread that runs the loop. */
int thread_start(pthread_t *thread, void *(*fn)(void *), void *arg, struct error *e);

int64_t clock_ns(void); /* CLOCK_MONOTONIC */

/* How many pause instructions a waiter spins before it sleeps. 0 when the process has more busy
 * threads than cores (then spinning only delays the one that is waited for). One for the process, set once at start. */
enum { WAIT_SPIN_DEFAULT = 4000 }; /* some 150 us */
void wait_spin_set(int spins);
int wait_spin_get(void);
static inline void wait_pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
}

/* C++ has another name for atomics and waits for nothing here. */
#ifndef __cplusplus

/* A number that threads wait on. sleepers counts those that are about to sleep or asleep, so that a
 * change which nobody sleeps for costs no system call. Zeroed memory is a valid word of value 0.
 * A word must outlive the calls that change it, not only the moment they are seen.
 *
 * No wake-up is lost: a waiter raises sleepers before the kernel compares value, a writer changes
 * value before it reads sleepers, and all four accesses are sequentially consistent; so either the
 * kernel sees the new value or the writer sees the sleeper. */
struct wait_word {
    _Atomic uint32_t value;
    _Atomic uint32_t sleepers;
};

uint32_t wait_load(const struct wait_word *word);        /* acquire */
void wait_store(struct wait_word *word, uint32_t value); /* release, wakes */
uint32_t wait_add(struct wait_word *word, uint32_t by);  /* returns the old value; wakes */
/* Returns true as soon as value != seen (spins, then sleeps), false at the deadline (on clock_ns, 0
 * = never). */
bool wait_while_equal(struct wait_word *word, uint32_t seen, int64_t deadline_ns);

/* Sleeping for a condition that is kept elsewhere, with the word as a bell:
 *     ticket = wait_begin(bell);
 *     if (!condition) wait_sleep(bell, ticket, deadline_ns);
 *     wait_end(bell);
 * in a loop; and whoever makes the condition true does so with a sequentially consistent store,
 * then calls wait_notify. wait_sleep may return early; false at the deadline. */
uint32_t wait_begin(struct wait_word *bell);
bool wait_sleep(struct wait_word *bell, uint32_t ticket, int64_t deadline_ns);
void wait_end(struct wait_word *bell);
void wait_notify(struct wait_word *bell);

#endif /* waiting */

typedef void team_fn(void *arg, int member, int n_members);

struct team;
/* cores->n members (at least 1); member 0 is the caller, who pins itself. Threads are called
 * "NAME/1" … after the caller's NAME. */
int team_new(struct team **out, const struct core_set *cores, struct error *e);
void team_free(struct team *team);
int team_size(const struct team *team);
/* Runs fn on every member and returns when all are done. */
void team_run(struct team *team, team_fn *fn, void *arg);
/* A barrier inside fn, for all members. */
void team_barrier(struct team *team);

/* The half-open part of [0, total) that member works on, in multiples of grain. */
void team_slice(int64_t total, int64_t grain, int member, int n_members, int64_t *from,
                int64_t *to);

#ifdef __cplusplus
}
#endif

#endif
