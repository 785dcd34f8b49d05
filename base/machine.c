#include "base/machine.h"

#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define CGROUP_ROOT "/sys/fs/cgroup"

bool cgroup_dir(char dir[CGROUP_DIR_MAX]) {
    char line[PATH_MAX];
    dir[0] = '\0';
    FILE *f = fopen("/proc/self/cgroup", "re");
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        if (strncmp(line, "0::", 3) == 0)
            snprintf(dir, CGROUP_DIR_MAX, "%s%s", CGROUP_ROOT, line + 3);
    }
    if (f) fclose(f);
    return dir[0];
}

bool cgroup_parent(char dir[CGROUP_DIR_MAX]) {
    char *slash = strrchr(dir, '/');
    if (!slash || strcmp(dir, CGROUP_ROOT) == 0) return false;
    *slash = '\0';
    return true;
}

/* The number after key at the start of a line ("" takes the first line); false when there is none,
 * or a word like "max". */
static bool read_number(const char *path, const char *key, size_t *out) {
    char line[256];
    bool found = false;
    FILE *f = fopen(path, "re");
    while (f && !found && fgets(line, sizeof line, f))
        found = strncmp(line, key, strlen(key)) == 0 && sscanf(line + strlen(key), "%zu", out) == 1;
    if (f) fclose(f);
    return found;
}

static bool cgroup_number(const char *dir, const char *file, const char *key, size_t *out) {
    char path[CGROUP_DIR_MAX + 32];
    snprintf(path, sizeof path, "%s/%s", dir, file);
    return read_number(path, key, out);
}

/* SIZE_MAX without a limit. */
static size_t cgroup_memory_left(const char *dir) {
    size_t limit, used, droppable;
    if (!cgroup_number(dir, "memory.max", "", &limit) ||
        !cgroup_number(dir, "memory.current", "", &used))
        return SIZE_MAX;
    /* File pages not used lately are dropped before anything is refused. */
    if (cgroup_number(dir, "memory.stat", "inactive_file ", &droppable))
        used = used > droppable ? used - droppable : 0;
    return limit > used ? limit - used : 0;
}

size_t machine_memory_available(void) {
    size_t kib, left;
    if (!read_number("/proc/meminfo", "MemAvailable:", &kib)) return 0;
    left = kib * 1024;
    char dir[CGROUP_DIR_MAX];
    for (bool more = cgroup_dir(dir); more; more = cgroup_parent(dir)) {
        size_t here = cgroup_memory_left(dir);
        if (here < left) left = here;
    }
    return left;
}

size_t machine_memory_total(void) {
    size_t total = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE), limit;
    char dir[CGROUP_DIR_MAX];
    for (bool more = cgroup_dir(dir); more; more = cgroup_parent(dir))
        if (cgroup_number(dir, "memory.max", "", &limit) && limit < total) total = limit;
    return total;
}
