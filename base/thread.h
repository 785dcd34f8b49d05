/* base/thread.h: core sets, teams of threads, and waiting that spins a little and then sleeps.
 *
 * A team is the cores of one CPU rank: the calling thread is member 0 and the team's own threads are
 * members 1 … n-1, each pinned to its core. team_run is called by member 0 only, never nested. */
#ifndef TPD_BASE_THREAD_H
#define TPD_BASE_THREAD_H

#include "base/error.h"

#include <stdatomic.h>

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
/* Deals the cores of all to n_parts disjoint sets, as evenly as can be and neighbours together;
 * with fewer cores than parts, parts share (part i gets core i mod n). */
void core_set_part(const struct core_set *all, int n_parts, int part, struct core_set *out);
/* Pins the calling thread to one core, or to the whole set when core is -1. */
void thread_pin(const struct core_set *set, int core);
void thread_name(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* How many pause instructions a waiter spins before it sleeps. 0 when the process has more busy
 * threads than cores (then spinning only delays the one that is waited for). Set once at start. */
void wait_spin_set(int spins);
int wait_spin_get(void);

/* Sleeps until *word != seen (spin, then futex). deadline_ns is on CLOCK_MONOTONIC, 0 = never.
 * Returns false at the deadline. */
bool wait_while_equal(const _Atomic uint32_t *word, uint32_t seen, int64_t deadline_ns);
/* Wakes all that sleep on word. Call after the store. */
void wait_wake(const _Atomic uint32_t *word);
int64_t clock_ns(void);

typedef void team_fn(void *arg, int member, int n_members);

struct team;
/* cores->n members (at least 1); member 0 is the caller, who pins itself. */
int team_new(struct team **out, const struct core_set *cores, struct error *e);
void team_free(struct team *team);
int team_size(const struct team *team);
/* Runs fn on every member and returns when all are done. */
void team_run(struct team *team, team_fn *fn, void *arg);
/* A barrier inside fn, for all members. */
void team_barrier(struct team *team, int member);

/* The half-open part of [0, total) that member works on, in multiples of grain. */
void team_slice(int64_t total, int64_t grain, int member, int n_members, int64_t *from,
                int64_t *to);

#endif
