/* Device memory of a CPU context: maps of its own, counted by kind.
 *
 * Debug mode reserves two stretches of address space of the same size. Addresses handed out lie in
 * the first, which is never readable; the bytes are at the same offset of the second. Allocations
 * end at a page that nobody may touch and are never handed out twice, so overruns and use after
 * free fault too. */
#include "kernels/cpu/cpu.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { ALIGN = 256, PAGE = 4096, HUGE_PAGE = 2 << 20, POOL_BYTES = 64 << 20 };

struct region {
    dev_addr addr;
    size_t bytes;
    enum mem_kind kind;
    void *map;
    size_t map_bytes;
    char *shared; /* the name that cpu_mem_export gave it; or NULL */
};

static size_t align_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

static uint8_t *reserve(size_t bytes) {
    void *p = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

int cpu_memory_open(struct cpu_ctx *c, size_t limit, bool debug_alias, struct error *e) {
    struct cpu_memory *m = &c->memory;
    m->limit = limit ? limit : (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    if (!debug_alias) return 0;
    m->reserved = 4 * align_up(m->limit, PAGE) + ((size_t)1 << 30);
    m->alias = reserve(m->reserved);
    m->real = reserve(m->reserved);
    if (!m->alias || !m->real)
        return error_set(e, ERR_MEMORY, "cannot reserve %zu bytes of addresses for the debug alias",
                         2 * m->reserved);
    c->to_real = (uint64_t)(uintptr_t)m->real - (uint64_t)(uintptr_t)m->alias;
    return 0;
}

/* Whoever has it mapped keeps it; nobody else finds it any more. */
static void hide(struct region *r) {
    if (!r->shared) return;
    shm_unlink(r->shared);
    free(r->shared);
    r->shared = NULL;
}

void cpu_memory_close(struct cpu_ctx *c) {
    struct cpu_memory *m = &c->memory;
    for (int i = 0; i < m->n_regions; i++) hide(&m->regions[i]);
    for (int i = 0; i < m->n_regions && !m->real; i++)
        munmap(m->regions[i].map, m->regions[i].map_bytes);
    if (m->pool.end > m->pool.next) munmap(m->pool.next, (size_t)(m->pool.end - m->pool.next));
    free(m->regions);
    if (m->alias) munmap(m->alias, m->reserved);
    if (m->real) munmap(m->real, m->reserved);
}

/* A map on a huge page's boundary: what the mapping has too much on both sides is given back. */
static uint8_t *map_huge(size_t bytes) {
    uint8_t *p = mmap(NULL, bytes + HUGE_PAGE, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return NULL;
    size_t before = align_up((uintptr_t)p, HUGE_PAGE) - (uintptr_t)p;
    if (before) munmap(p, before);
    if (before < HUGE_PAGE) munmap(p + before + bytes, HUGE_PAGE - before);
    return p + before;
}

/* bytes (whole pages) that stand behind those taken before, so that matrices smaller than a huge page share
 * some. The last page is a huge one only when it is full: what is not taken costs no memory. */
static uint8_t *pool_take(struct cpu_pool *pool, size_t bytes) {
    if (bytes > (size_t)(pool->end - pool->next)) {
        size_t size = bytes < POOL_BYTES / 2 ? POOL_BYTES : align_up(bytes, HUGE_PAGE);
        uint8_t *fresh = map_huge(size);
        if (!fresh) return NULL;
        if (pool->end > pool->next) munmap(pool->next, (size_t)(pool->end - pool->next));
        *pool = (struct cpu_pool){.next = fresh, .huge = fresh, .end = fresh + size};
    }
    uint8_t *p = pool->next;
    pool->next += bytes;
    size_t full = (size_t)(pool->next - pool->huge) / HUGE_PAGE * HUGE_PAGE;
    if (full) madvise(pool->huge, full, MADV_HUGEPAGE);
    pool->huge += full;
    return p;
}

static bool map_plain(struct cpu_memory *m, struct region *r) {
    r->map_bytes = align_up(r->bytes, PAGE);
    /* Weights are read whole at every step: huge pages save TLB misses, and faults while they are put. The
     * KV cache is touched in small blocks all over, where a huge page would be zeroed for each. */
    if (r->kind == MEM_WEIGHTS || r->kind == MEM_PARAMETERS) {
        r->map = pool_take(&m->pool, r->map_bytes);
    } else {
        void *p = mmap(NULL, r->map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                       0);
        r->map = p == MAP_FAILED ? NULL : p;
    }
    r->addr = (uintptr_t)r->map;
    return r->map != NULL;
}

/* The allocation ends (to 256 bytes) at an untouchable page. */
static bool map_aliased(struct cpu_memory *m, struct region *r) {
    r->map_bytes = align_up(r->bytes, PAGE);
    if (r->map_bytes + PAGE > m->reserved - m->next) return false;
    r->map = m->real + m->next;
    if (mprotect(r->map, r->map_bytes, PROT_READ | PROT_WRITE) != 0) return false;
    r->addr = (uintptr_t)m->alias + m->next + (r->map_bytes - r->bytes);
    m->next += r->map_bytes + PAGE;
    return true;
}

static size_t memory_used(const struct cpu_memory *m) {
    size_t used = 0;
    for (int kind = 0; kind < MEM_KIND_COUNT; kind++) used += m->used[kind];
    return used;
}

static int memory_short(struct error *e, int rank, size_t needed, size_t left) {
    error_set(e, ERR_MEMORY, "rank %d is out of memory: %zu bytes needed, %zu free", rank, needed,
              left);
    error_note_number(e, "needed", (int64_t)needed);
    error_note_number(e, "free", (int64_t)left);
    return -(int)ERR_MEMORY;
}

static bool regions_grow(struct cpu_memory *m) {
    if (m->n_regions < m->max_regions) return true;
    int max = m->max_regions ? 2 * m->max_regions : 64;
    struct region *grown = realloc(m->regions, (size_t)max * sizeof *grown);
    if (!grown) return false;
    m->regions = grown;
    m->max_regions = max;
    return true;
}

int cpu_mem_alloc(struct kctx *base, enum mem_kind kind, size_t bytes, dev_addr *out,
                  struct error *e) {
    struct cpu_memory *m = &cpu_of(base)->memory;
    size_t left = m->limit - memory_used(m);
    *out = 0;
    if (bytes > left) return memory_short(e, base->rank, bytes, left);
    struct region r = {.bytes = align_up(bytes ? bytes : 1, ALIGN), .kind = kind};
    if (r.bytes > left || !regions_grow(m) || !(m->real ? map_aliased(m, &r) : map_plain(m, &r)))
        return memory_short(e, base->rank, bytes, left);
    m->regions[m->n_regions++] = r;
    m->used[kind] += r.bytes;
    *out = r.addr;
    return 0;
}

void cpu_mem_free(struct kctx *base, dev_addr addr) {
    struct cpu_memory *m = &cpu_of(base)->memory;
    if (!addr) return;
    int i = 0;
    while (i < m->n_regions && m->regions[i].addr != addr) i++;
    if (i == m->n_regions) {
        struct error e;
        error_set(&e, ERR_INTERNAL, "rank %d frees device memory that it does not have",
                  base->rank);
        kctx_fail(base, &e);
        return;
    }
    struct region r = m->regions[i];
    hide(&r);
    m->used[r.kind] -= r.bytes;
    m->regions[i] = m->regions[--m->n_regions];
    if (!m->real) {
        munmap(r.map, r.map_bytes);
    } else { /* a fresh untouchable map gives the pages back and keeps the place */
        mmap(r.map, r.map_bytes, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    }
}

bool cpu_memory_scratch(struct cpu_ctx *c, size_t was, size_t bytes) {
    struct cpu_memory *m = &c->memory;
    size_t others = memory_used(m) - was;
    if (bytes > was && (others > m->limit || bytes > m->limit - others)) return false;
    m->used[MEM_SCRATCH] += bytes - was;
    return true;
}

void cpu_mem_use(struct kctx *base, struct mem_use *use) {
    const struct cpu_memory *m = &cpu_of(base)->memory;
    for (int kind = 0; kind < MEM_KIND_COUNT; kind++) use->bytes[kind] = m->used[kind];
    use->total = m->limit;
    use->free = m->limit - memory_used(m);
}

/* --- for other processes ---------------------------------------------------------------------- */

static int share_failed(const char *name, int number, size_t needed, struct error *e) {
    struct statvfs fs;
    if (number != ENOSPC && number != ENOMEM) {
        error_set(e, ERR_IO, "shared memory %s: %s", name, strerror(number));
        return -(int)ERR_IO;
    }
    size_t left = statvfs("/dev/shm", &fs) == 0 ? (size_t)fs.f_bavail * fs.f_bsize : 0;
    error_set(e, ERR_MEMORY,
              "/dev/shm has no room for %zu bytes (%zu are free): make it larger (mount -o "
              "remount,size=…, or --shm-size of a container)",
              needed, left);
    error_note_number(e, "needed", (int64_t)needed);
    error_note_number(e, "free", (int64_t)left);
    return -(int)ERR_MEMORY;
}

/* Writes the region into fd and maps that in its place; 0 or an errno, and then all is as it was. */
static int move_pages(const struct region *r, int fd) {
    int rc = posix_fallocate(fd, 0, (off_t)r->map_bytes);
    if (rc) return rc;
    for (size_t done = 0; done < r->map_bytes;) {
        ssize_t n = pwrite(fd, (uint8_t *)r->map + done, r->map_bytes - done, (off_t)done);
        if (n < 0 && errno != EINTR) return errno;
        if (n > 0) done += (size_t)n;
    }
    if (mmap(r->map, r->map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) ==
        MAP_FAILED)
        return errno;
    if (r->map_bytes >= HUGE_PAGE) madvise(r->map, r->map_bytes, MADV_HUGEPAGE);
    return 0;
}

static int share_region(struct region *r, const struct mem_share *share, struct error *e) {
    char *name = strdup(share->name);
    int fd = name ? shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600) : -1;
    if (fd < 0) {
        int number = name ? errno : ENOMEM;
        free(name);
        return share_failed(share->name, number, r->map_bytes, e);
    }
    int rc = move_pages(r, fd);
    if (!rc && fchown(fd, (uid_t)-1, share->gid) != 0) rc = errno;
    if (!rc && fchmod(fd, share->mode) != 0) rc = errno; /* from here on others may open it */
    close(fd);
    if (rc) {
        shm_unlink(name);
        free(name);
        return share_failed(share->name, rc, r->map_bytes, e);
    }
    r->shared = name;
    return 0;
}

int cpu_mem_export(struct kctx *base, dev_addr addr, const struct mem_share *share,
                   struct mem_handle *out, struct error *e) {
    struct cpu_memory *m = &cpu_of(base)->memory;
    int i = 0;
    while (i < m->n_regions && m->regions[i].addr != addr) i++;
    if (i == m->n_regions)
        return error_set(e, ERR_INTERNAL, "rank %d exports memory that it does not have",
                         base->rank);
    struct region *r = &m->regions[i];
    int rc = r->shared ? 0 : share_region(r, share, e);
    if (rc) return rc;
    *out = (struct mem_handle){
        .kind = MEM_HANDLE_SHM,
        .device = -1,
        .bytes = r->bytes,
        .offset = m->real ? r->map_bytes - r->bytes : 0, /* map_aliased */
    };
    snprintf(out->name, sizeof out->name, "%s", r->shared);
    return 0;
}
