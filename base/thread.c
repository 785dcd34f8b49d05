#include "base/thread.h"

#include "base/machine.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* --- core sets ------------------------------------------------------------------------------- */

/* Cores that the quota in dir/cpu.max allows, rounded up; INT_MAX without one. */
static int quota_of(const char *dir) {
    char path[CGROUP_DIR_MAX + 16];
    snprintf(path, sizeof path, "%s/cpu.max", dir);
    FILE *f = fopen(path, "re");
    if (!f) return INT_MAX;
    long long quota, period;
    int n = fscanf(f, "%lld %lld", &quota, &period); /* "max 100000" has no first number */
    fclose(f);
    if (n != 2 || quota <= 0 || period <= 0) return INT_MAX;
    long long cores = (quota + period - 1) / period;
    return cores < INT_MAX ? (int)cores : INT_MAX;
}

/* The smallest quota of this process' cgroup (v2) and those above it. */
static int quota_cores(void) {
    char dir[CGROUP_DIR_MAX];
    int cores = INT_MAX;
    for (bool more = cgroup_dir(dir); more; more = cgroup_parent(dir)) {
        int here = quota_of(dir);
        if (here < cores) cores = here;
    }
    return cores;
}

/* The affinity mask; core 0 when the kernel does not tell. */
static void core_set_affinity(struct core_set *set) {
    set->n = 0;
    size_t size = CPU_ALLOC_SIZE(CORE_SET_MAX);
    cpu_set_t *mask = CPU_ALLOC(CORE_SET_MAX);
    if (mask && sched_getaffinity(0, size, mask) == 0)
        for (int i = 0; i < CORE_SET_MAX; i++)
            if (CPU_ISSET_S(i, size, mask)) set->cpus[set->n++] = i;
    CPU_FREE(mask);
    if (set->n == 0) set->cpus[set->n++] = 0;
}

void core_set_allowed(struct core_set *set) {
    core_set_affinity(set);
    int quota = quota_cores();
    if (set->n > quota) set->n = quota;
}

static const char *read_cpu(const char *s, int *cpu) {
    if (*s < '0' || *s > '9') return NULL;
    for (*cpu = 0; *s >= '0' && *s <= '9'; s++) {
        *cpu = *cpu * 10 + (*s - '0');
        if (*cpu >= CORE_SET_MAX) return NULL;
    }
    return s;
}

int core_set_parse(struct core_set *set, const char *text, struct error *e) {
    bool in[CORE_SET_MAX] = {false};
    const char *s = text;
    do {
        int from, to;
        s = read_cpu(s, &from);
        to = from;
        if (s && *s == '-') s = read_cpu(s + 1, &to);
        if (!s || to < from || (*s && *s != ','))
            return error_set(e, ERR_CONFIG,
                             "\"%s\" is not a list of cores: write numbers below %d and ranges, "
                             "like 0-3,8",
                             text, CORE_SET_MAX);
        for (int i = from; i <= to; i++) in[i] = true;
    } while (*s++ == ',');
    set->n = 0;
    for (int i = 0; i < CORE_SET_MAX; i++)
        if (in[i]) set->cpus[set->n++] = i;
    return 0;
}

int core_set_check(const struct core_set *set, struct error *e) {
    struct core_set have;
    core_set_affinity(&have);
    for (int i = 0, h = 0; i < set->n; i++) {
        while (h < have.n && have.cpus[h] < set->cpus[i]) h++;
        if (h < have.n && have.cpus[h] == set->cpus[i]) continue;
        char text[64];
        core_set_format(&have, text, sizeof text);
        return error_set(e, ERR_CONFIG, "core %d is not among those that tpd may use: %s",
                         set->cpus[i], text);
    }
    return 0;
}

void core_set_part(const struct core_set *all, int n_parts, int part, struct core_set *out) {
    int from = (int)((int64_t)all->n * part / n_parts);
    int to = (int)((int64_t)all->n * (part + 1) / n_parts);
    if (all->n < n_parts) {
        from = part % all->n;
        to = from + 1;
    }
    out->n = to - from;
    memcpy(out->cpus, all->cpus + from, (size_t)out->n * sizeof *out->cpus);
}

void core_set_format(const struct core_set *set, char *out, size_t size) {
    size_t n = 0;
    out[0] = '\0';
    for (int i = 0; i < set->n && n < size;) {
        int last = i;
        while (last + 1 < set->n && set->cpus[last + 1] == set->cpus[last] + 1) last++;
        n += (size_t)snprintf(out + n, size - n, i ? ",%d" : "%d", set->cpus[i]);
        if (last > i && n < size) n += (size_t)snprintf(out + n, size - n, "-%d", set->cpus[last]);
        i = last + 1;
    }
}

/* --- threads --------------------------------------------------------------------------------- */

void thread_pin(const struct core_set *set, int index) {
    size_t size = CPU_ALLOC_SIZE(CORE_SET_MAX);
    cpu_set_t *mask = CPU_ALLOC(CORE_SET_MAX);
    if (!mask) return;
    CPU_ZERO_S(size, mask);
    for (int i = 0; i < set->n; i++)
        if (index < 0 || i == index) CPU_SET_S(set->cpus[i], size, mask);
    pthread_setaffinity_np(pthread_self(), size, mask);
    CPU_FREE(mask);
}

void thread_name(const char *format, ...) {
    char name[16];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    pthread_setname_np(pthread_self(), name);
}

int thread_start(pthread_t *thread, void *(*fn)(void *), void *arg, struct error *e) {
    sigset_t all, old;
    sigfillset(&all);
    sigdelset(&all, SIGBUS); /* one's own faults cannot wait: base/file_guard.c */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(thread, NULL, fn, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc ? error_set(e, ERR_MEMORY, "cannot start a thread: %s", strerror(rc)) : 0;
}

int64_t clock_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* --- waiting --------------------------------------------------------------------------------- */

static _Atomic int spin_budget = WAIT_SPIN_DEFAULT;

void wait_spin_set(int spins) {
    atomic_store_explicit(&spin_budget, spins, memory_order_relaxed);
}

int wait_spin_get(void) {
    return atomic_load_explicit(&spin_budget, memory_order_relaxed);
}

uint32_t wait_begin(struct wait_word *bell) {
    atomic_fetch_add(&bell->sleepers, 1);
    return atomic_load(&bell->value);
}

bool wait_sleep(struct wait_word *bell, uint32_t ticket, int64_t deadline_ns) {
    struct timespec t = {deadline_ns / 1000000000, deadline_ns % 1000000000};
    long rc = syscall(SYS_futex, &bell->value, FUTEX_WAIT_BITSET_PRIVATE, ticket,
                      deadline_ns ? &t : NULL, NULL, FUTEX_BITSET_MATCH_ANY);
    return !(rc < 0 && errno == ETIMEDOUT);
}

void wait_end(struct wait_word *bell) {
    atomic_fetch_sub(&bell->sleepers, 1);
}

static void wake_sleepers(struct wait_word *word) {
    syscall(SYS_futex, &word->value, FUTEX_WAKE_PRIVATE, INT_MAX);
}

void wait_notify(struct wait_word *bell) {
    if (atomic_load(&bell->sleepers) == 0) return;
    atomic_fetch_add(&bell->value, 1);
    wake_sleepers(bell);
}

uint32_t wait_load(const struct wait_word *word) {
    return atomic_load_explicit(&word->value, memory_order_acquire);
}

void wait_store(struct wait_word *word, uint32_t value) {
    atomic_store(&word->value, value);
    if (atomic_load(&word->sleepers)) wake_sleepers(word);
}

uint32_t wait_add(struct wait_word *word, uint32_t by) {
    uint32_t old = atomic_fetch_add(&word->value, by);
    if (atomic_load(&word->sleepers)) wake_sleepers(word);
    return old;
}

bool wait_while_equal(struct wait_word *word, uint32_t seen, int64_t deadline_ns) {
    for (int spins = wait_spin_get(); spins > 0; spins--) {
        if (wait_load(word) != seen) return true;
        wait_pause();
    }
    bool in_time = true;
    while (in_time && wait_load(word) == seen) {
        wait_begin(word);
        in_time = wait_sleep(word, seen, deadline_ns);
        wait_end(word);
    }
    return wait_load(word) != seen;
}

/* --- teams ----------------------------------------------------------------------------------- */

struct team_member {
    struct team *team;
    int index;
    pthread_t thread;
};

struct team {
    struct core_set cores;
    struct team_member *members; /* [cores.n]; members[0] is the caller */
    int n_started;               /* threads to join: members 1 … n_started */

    /* What member 0 hands out, published by job. fn == NULL ends the thread. */
    team_fn *fn;
    void *arg;

    /* Each on its own cache line: job is read by all, the others are written by all. */
    _Alignas(64) struct wait_word job;     /* the number of the job that is handed out */
    _Alignas(64) _Atomic int running;      /* members that have not finished it */
    _Alignas(64) struct wait_word done;    /* the number of the job that is finished */
    _Alignas(64) _Atomic int arrived;      /* at the barrier */
    _Alignas(64) struct wait_word barrier; /* how often it opened */
};

static void *member_main(void *arg) {
    struct team_member *me = arg;
    struct team *team = me->team;
    char leader[16]; /* a new thread has its maker's name */
    if (pthread_getname_np(pthread_self(), leader, sizeof leader) == 0)
        thread_name("%.11s/%d", leader, me->index);
    thread_pin(&team->cores, me->index);
    for (uint32_t job = 0;;) {
        wait_while_equal(&team->job, job, 0);
        job = wait_load(&team->job);
        team_fn *fn = team->fn;
        if (!fn) return NULL;
        fn(team->arg, me->index, team->cores.n);
        if (atomic_fetch_sub(&team->running, 1) == 1) wait_store(&team->done, job);
    }
}

int team_new(struct team **out, const struct core_set *cores, struct error *e) {
    *out = NULL;
    int n = cores->n > 0 ? cores->n : 1;
    struct team *team = aligned_alloc(64, sizeof *team);
    struct team_member *members = calloc((size_t)n, sizeof *members);
    if (!team || !members) {
        free(team);
        free(members);
        return error_set(e, ERR_MEMORY, "no memory for a team of %d threads", n);
    }
    memset(team, 0, sizeof *team);
    team->cores = *cores;
    team->cores.n = n;
    team->members = members;
    if (cores->n > 0) thread_pin(cores, 0);
    for (int i = 1; i < n; i++) {
        members[i] = (struct team_member){.team = team, .index = i};
        int rc = thread_start(&members[i].thread, member_main, &members[i], e);
        if (rc) {
            team_free(team);
            return rc;
        }
        team->n_started = i;
    }
    *out = team;
    return 0;
}

void team_free(struct team *team) {
    if (!team) return;
    team->fn = NULL;
    wait_add(&team->job, 1);
    for (int i = 1; i <= team->n_started; i++) pthread_join(team->members[i].thread, NULL);
    free(team->members);
    free(team);
}

int team_size(const struct team *team) {
    return team->cores.n;
}

void team_run(struct team *team, team_fn *fn, void *arg) {
    int n = team->cores.n;
    if (n == 1) {
        fn(arg, 0, 1);
        return;
    }
    team->fn = fn;
    team->arg = arg;
    atomic_store_explicit(&team->running, n, memory_order_relaxed);
    uint32_t job = wait_add(&team->job, 1) + 1;
    fn(arg, 0, n);
    if (atomic_fetch_sub(&team->running, 1) == 1) return;
    /* done stays behind by more than one where member 0 itself was the last. */
    for (uint32_t done; (done = wait_load(&team->done)) != job;)
        wait_while_equal(&team->done, done, 0);
}

void team_barrier(struct team *team) {
    int n = team->cores.n;
    if (n == 1) return;
    uint32_t seen = wait_load(&team->barrier);
    if (atomic_fetch_add(&team->arrived, 1) + 1 < n) {
        wait_while_equal(&team->barrier, seen, 0);
        return;
    }
    atomic_store_explicit(&team->arrived, 0, memory_order_relaxed);
    wait_add(&team->barrier, 1);
}

void team_slice(int64_t total, int64_t grain, int member, int n_members, int64_t *from,
                int64_t *to) {
    int64_t grains = (total + grain - 1) / grain;
    *from = grains * member / n_members * grain;
    *to = grains * (member + 1) / n_members * grain;
    if (*from > total) *from = total;
    if (*to > total) *to = total;
}
