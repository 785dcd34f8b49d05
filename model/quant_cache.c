/* Quantised weights kept on disk: DIR/SOURCE-QUANT-CONTENT.gguf, where SOURCE is the hash of the model's path
 * and CONTENT that of what its files are (size, mtime, inode, first bytes) and of the recipe.
 *
 * A file under its name is whole (written as .part, synced, renamed). Who makes one holds DIR/lock, so two
 * daemons that start at once make it once. */
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "model/quant_private.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

enum {
    KEEP = 4,               /* results of all models together; the longest unused go first */
    HEADER_BYTES = 64 << 10 /* of each source file that are part of its identity */
};

struct cache {
    const char *dir;
    char prefix[48], name[80]; /* "SOURCE-q4-", and the whole name */
    char *path;
};

/* --- who is who ------------------------------------------------------------------------------------ */

static int hash_file(uint64_t *h, const char *path, struct error *e) {
    struct file_map map;
    struct stat st;
    if (stat(path, &st) != 0) return error_errno(e, errno, path, "stat");
    int64_t facts[] = {st.st_size, st.st_mtim.tv_sec, st.st_mtim.tv_nsec, (int64_t)st.st_ino};
    *h = hash_bytes(*h, facts, sizeof facts);
    int err = file_map_open(&map, path, e);
    if (err) return err;
    *h = hash_bytes(*h, map.data, map.size < HEADER_BYTES ? map.size : HEADER_BYTES);
    file_map_close(&map);
    return 0;
}

/* Files and tensors of the source, and what is to become of them. */
static int hash_content(uint64_t *out, const struct quant_piece *pieces, size_t n, struct error *e) {
    const int32_t recipe = QUANT_RECIPE;
    const char *last = "";
    int err = 0;
    *out = hash_bytes(0, &recipe, sizeof recipe);
    for (size_t i = 0; i < n && !err; i++) {
        const struct store_tensor *t = pieces[i].from;
        const int64_t facts[] = {t->type, pieces[i].type, t->n_dims, t->dims[0], t->dims[1]};
        *out = hash_bytes(*out, t->name, strlen(t->name) + 1);
        *out = hash_bytes(*out, facts, sizeof facts);
        if (strcmp(t->file, last) != 0) err = hash_file(out, t->file, e); /* pieces stand file by file */
        last = t->file;
    }
    return err;
}

static int cache_name(struct cache *c, const struct model *m, enum quant quant,
                      const struct quant_piece *pieces, size_t n, struct error *e) {
    uint64_t content;
    int err = hash_content(&content, pieces, n, e);
    if (err) return err;
    char *real = realpath(m->path, NULL);
    const char *path = real ? real : m->path;
    snprintf(c->prefix, sizeof c->prefix, "%016llx-%s-",
             (unsigned long long)hash_bytes(0, path, strlen(path)), quant_name(quant));
    snprintf(c->name, sizeof c->name, "%s%016llx.gguf", c->prefix, (unsigned long long)content);
    free(real);
    c->path = path_join(c->dir, c->name);
    return c->path ? 0 : error_set(e, ERR_MEMORY, "no memory for a path");
}

/* --- what is kept ---------------------------------------------------------------------------------- */

/* Whether the store has what is wanted. */
static int check(const struct store *store, const struct quant_piece *pieces, size_t n,
                 struct error *e) {
    for (size_t i = 0; i < n; i++) {
        const struct store_tensor *want = pieces[i].from;
        const struct store_tensor *have = store_find(store, want->name);
        if (have && have->type == (int)pieces[i].type && have->n_dims == want->n_dims &&
            memcmp(have->dims, want->dims, sizeof have->dims) == 0)
            continue;
        return error_set(e, ERR_BAD_FILE, "tensor %s is not what it should be", want->name);
    }
    return 0;
}

static int open_kept(struct store **out, const struct cache *c, const struct quant_piece *pieces,
                     size_t n, struct error *e) {
    struct store *store;
    int err = store_open(&store, c->path, e);
    if (err) return err;
    err = check(store, pieces, n, e);
    if (err) {
        store_close(store);
        return err;
    }
    utimensat(AT_FDCWD, c->path, NULL, 0); /* used now: for trim */
    *out = store;
    return 0;
}

struct kept {
    char name[256];
    struct timespec used;
};

static int latest_first(const void *a, const void *b) {
    const struct timespec *x = &((const struct kept *)a)->used, *y = &((const struct kept *)b)->used;
    if (x->tv_sec != y->tv_sec) return x->tv_sec < y->tv_sec ? 1 : -1;
    return (x->tv_nsec < y->tv_nsec) - (x->tv_nsec > y->tv_nsec);
}

static void drop(const struct cache *c, const char *name) {
    char *path = path_join(c->dir, name);
    if (path) unlink(path); /* who has it mapped keeps it */
    free(path);
}

/* Makes room: what was made of this model when its files were others, what a killed run left, and all but the
 * latest few of the rest. The lock is held. */
static void trim(const struct cache *c) {
    enum { MOST = 256 };
    struct kept *kept = calloc(MOST, sizeof *kept);
    DIR *dir = kept ? opendir(c->dir) : NULL;
    size_t n = 0;
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        struct stat st;
        const char *name = entry->d_name;
        bool result = path_has_suffix(name, ".gguf");
        if (path_has_suffix(name, ".gguf.part") ||
            (result && strncmp(name, c->prefix, strlen(c->prefix)) == 0))
            drop(c, name);
        else if (result && n < MOST && fstatat(dirfd(dir), name, &st, 0) == 0) {
            kept[n].used = st.st_mtim;
            snprintf(kept[n++].name, sizeof kept->name, "%s", name);
        }
    }
    if (dir) closedir(dir);
    if (n) qsort(kept, n, sizeof *kept, latest_first);
    for (size_t i = KEEP - 1; i < n; i++) drop(c, kept[i].name);
    free(kept);
}

/* --- making ---------------------------------------------------------------------------------------- */

/* -1: the disk does not let us (said in e); else the descriptor that holds the lock. */
static int lock(const struct cache *c, const struct quant_options *options, struct error *e) {
    char *path = path_join(c->dir, "lock");
    int fd = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600) : -1;
    if (fd < 0) error_errno(e, path ? errno : ENOMEM, path ? path : c->dir, "open");
    while (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno == EWOULDBLOCK && !(options->stopped && options->stopped(options->user))) {
            nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
            continue;
        }
        if (errno == EWOULDBLOCK) error_set(e, ERR_CANCELLED, "quantising was given up");
        else error_errno(e, errno, path, "lock");
        close(fd);
        fd = -1;
    }
    free(path);
    return fd;
}

static int check_room(const struct cache *c, size_t bytes, struct error *e) {
    struct statvfs fs;
    if (statvfs(c->dir, &fs) != 0 || (uint64_t)fs.f_bavail * fs.f_frsize > bytes + (1 << 20)) return 0;
    return error_set(e, ERR_IO, "%s: %.1f MB are free, the quantised weights take %.1f MB", c->dir,
                     (double)fs.f_bavail * (double)fs.f_frsize / 1e6, (double)bytes / 1e6);
}

/* The lock is held. */
static int make(struct store **out, const struct cache *c, const struct model *m, enum quant quant,
                const struct quant_piece *pieces, size_t n, const struct quant_options *options,
                struct quant_report *report, struct error *e) {
    if (path_exists(c->path)) {
        int err = open_kept(out, c, pieces, n, e);
        report->cached = !err;
        if (!err) return 0;
        log_warn("the kept quantised weights are of no use and are made again: %s",
                 e ? e->message : c->path);
    }
    trim(c);
    int err = check_room(c, report->bytes, e);
    if (!err) err = quant_write(m, quant, pieces, n, c->path, options, e);
    return err ? err : open_kept(out, c, pieces, n, e);
}

static bool is_of_the_disk(int err) {
    return err != -(int)ERR_CANCELLED && err != -(int)ERR_BAD_FILE && err != -(int)ERR_MEMORY;
}

int quant_cache_open(struct store **out, const struct model *model, enum quant quant,
                     const struct quant_piece *pieces, size_t n, const struct quant_options *options,
                     struct quant_report *report, struct error *e) {
    struct cache c = {.dir = options->cache_dir};
    struct error why;
    *out = NULL;
    int err = cache_name(&c, model, quant, pieces, n, e);
    if (err) return err;
    if (open_kept(out, &c, pieces, n, NULL) == 0) {
        report->cached = true;
        free(c.path);
        return 0;
    }
    err = dir_make(c.dir, &why);
    int fd = err ? -1 : lock(&c, options, &why);
    if (!err && fd < 0) err = -(int)why.kind;
    if (!err) err = make(out, &c, model, quant, pieces, n, options, report, &why);
    if (fd >= 0) close(fd);
    free(c.path);
    if (!err) return 0;
    if (!is_of_the_disk(err)) {
        if (e) *e = why;
        return err;
    }
    log_warn("the quantised weights cannot be kept, so each start makes them again: %s", why.message);
    return 0;
}
