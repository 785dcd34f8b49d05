/* Maps of files that others may cut short while we read them.
 *
 * A read behind the file's new end is a SIGBUS. The handler puts zeros in place of what is gone, notes
 * that, and the read goes on, on whichever thread it is; whoever reads asks file_map_torn afterwards. A
 * fault anywhere else ends the process as ever. The table is global because a signal is. */
#include "base/file.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_MAPS = 1024 };

static struct guarded {
    _Atomic uintptr_t from, end; /* from 0: free */
    _Atomic bool torn;
} maps[MAX_MAPS];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uintptr_t page_size(void) { return (uintptr_t)sysconf(_SC_PAGESIZE); }

static struct guarded *find(uintptr_t at) {
    for (int i = 0; i < MAX_MAPS; i++)
        if (at < atomic_load(&maps[i].end) && at >= atomic_load(&maps[i].from) &&
            atomic_load(&maps[i].from) != 0)
            return &maps[i];
    return NULL;
}

static void on_bus_error(int number, siginfo_t *info, void *context) {
    (void)context;
    uintptr_t page = page_size(), at = (uintptr_t)info->si_addr & ~(page - 1);
    struct guarded *map = find((uintptr_t)info->si_addr);
    if (map) {
        atomic_store(&map->torn, true);
        size_t rest = (atomic_load(&map->end) - at + page - 1) & ~(page - 1);
        if (mmap((void *)at, rest, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) !=
            MAP_FAILED)
            return;
    }
    signal(number, SIG_DFL); /* the read is done again, and ends the process */
}

/* Each time: a test's runner or a sanitizer may have put its own there. */
static void install(void) {
    struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, NULL);
}

void file_map_guard(const struct file_map *map) {
    if (!map->data) return;
    pthread_mutex_lock(&lock);
    install();
    for (int i = 0; i < MAX_MAPS; i++)
        if (atomic_load(&maps[i].from) == 0) {
            atomic_store(&maps[i].torn, false);
            atomic_store(&maps[i].end, (uintptr_t)map->data + map->size);
            atomic_store(&maps[i].from, (uintptr_t)map->data);
            break;
        }
    pthread_mutex_unlock(&lock);
}

void file_map_unguard(const struct file_map *map) {
    struct guarded *found = map->data ? find((uintptr_t)map->data) : NULL;
    if (found) atomic_store(&found->from, 0);
}

bool file_map_torn(const void *at) {
    const struct guarded *map = find((uintptr_t)at);
    return map && atomic_load(&map->torn);
}
