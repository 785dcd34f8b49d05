/* Quantised weights kept on disk: DIR/SOURCE-QUANT-CONTENT-SUM.gguf, where SOURCE is the hash of the model's
 * path, CONTENT that of what its files are (size, mtime, inode, first bytes) and of the recipe, and SUM that of
 * the file itself.
 *
 * A file is written under another name, synced, and gets its own when its sum is known; it is believed as long
 * as it has that sum. Who makes one holds DIR/lock, so two daemons that start at once make it once. */
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
    char source[48], content[80]; /* what names begin with: "SOURCE-q4-", and "SOURCE-q4-CONTENT-" */
};

/* Ends of names: a whole result's, behind its sum; of what is being made. */
#define RESULT ".gguf"
#define NEW    "new.gguf"

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
    snprintf(c->source, sizeof c->source, "%016llx-%s-",
             (unsigned long long)hash_bytes(0, path, strlen(path)), quant_name(quant));
    snprintf(c->content, sizeof c->content, "%s%016llx-", c->source, (unsigned long long)content);
    free(real);
    return 0;
}

static bool begins_with(const char *text, const char *start) {
    return strncmp(text, start, strlen(start)) == 0;
}

/* "DIR/CONTENT" and what follows; NULL where there is no memory for it. */
static char *path_of(const struct cache *c, const char *rest) {
    char name[128];
    snprintf(name, sizeof name, "%s%s", c->content, rest);
    return path_join(c->dir, name);
}

/* The path of what is kept of this content, and the sum in its name; NULL: nothing is. */
static char *find_kept(const struct cache *c, uint64_t *sum) {
    DIR *dir = opendir(c->dir);
    char *path = NULL;
    for (struct dirent *entry; !path && dir && (entry = readdir(dir));) {
        unsigned long long number;
        int end = 0;
        const char *name = entry->d_name;
        if (!begins_with(name, c->content)) continue;
        name += strlen(c->content);
        if (sscanf(name, "%16llx%n", &number, &end) != 1 || end != 16 || strcmp(name + end, RESULT) != 0)
            continue;
        *sum = number;
        path = path_join(c->dir, entry->d_name);
    }
    if (dir) closedir(dir);
    return path;
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

static int open_result(struct store **out, const char *path, const struct quant_piece *pieces, size_t n,
                       struct error *e) {
    struct store *store;
    int err = store_open(&store, path, e);
    if (err) return err;
    err = check(store, pieces, n, e);
    if (err) {
        store_close(store);
        return err;
    }
    utimensat(AT_FDCWD, path, NULL, 0); /* used now: for trim */
    *out = store;
    return 0;
}

/* *out stays NULL, with 0, where nothing is kept. */
static int open_kept(struct store **out, const struct cache *c, const struct quant_piece *pieces, size_t n,
                     int threads, struct error *e) {
    uint64_t said, sum;
    char *path = find_kept(c, &said);
    if (!path) return 0;
    int err = quant_file_sum(&sum, path, threads, e);
    if (!err && sum != said)
        err = error_bad_file(e, path, NULL, NULL, "is not as it was written: its sum is another");
    if (!err) err = open_result(out, path, pieces, n, e);
    free(path);
    return err;
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
        bool result = path_has_suffix(name, RESULT);
        if (path_has_suffix(name, ".part") || path_has_suffix(name, NEW) ||
            (result && begins_with(name, c->source)))
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

/* Gives what was made the name that says so. */
static int name_result(const struct cache *c, const char *made, int threads, char **out, struct error *e) {
    char rest[40];
    uint64_t sum;
    int err = quant_file_sum(&sum, made, threads, e);
    if (err) return err;
    snprintf(rest, sizeof rest, "%016llx" RESULT, (unsigned long long)sum);
    if (!(*out = path_of(c, rest))) return error_set(e, ERR_MEMORY, "no memory for a path");
    if (rename(made, *out) != 0) return error_errno(e, errno, *out, "create");
    return dir_sync(c->dir, e);
}

/* The lock is held. */
static int make(struct store **out, const struct cache *c, const struct model *m, enum quant quant,
                const struct quant_piece *pieces, size_t n, const struct quant_options *options,
                struct quant_report *report, struct error *e) {
    char *made = path_of(c, NEW), *path = NULL;
    if (!made) return error_set(e, ERR_MEMORY, "no memory for a path");
    int err = open_kept(out, c, pieces, n, options->threads, e);
    if (err) log_warn("the kept quantised weights are of no use and are made again: %s", e->message);
    report->cached = !err && *out;
    err = 0;
    if (!report->cached) {
        trim(c);
        err = check_room(c, report->bytes, e);
        if (!err) err = quant_write(m, quant, pieces, n, made, options, e);
        if (!err) err = name_result(c, made, options->threads, &path, e);
        if (!err) err = open_result(out, path, pieces, n, e);
    }
    free(made);
    free(path);
    return err;
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
    open_kept(out, &c, pieces, n, options->threads, NULL); /* what is wrong with it make() tells */
    report->cached = *out;
    if (*out) return 0;
    err = dir_make(c.dir, &why);
    int fd = err ? -1 : lock(&c, options, &why);
    if (!err && fd < 0) err = -(int)why.kind;
    if (!err) err = make(out, &c, model, quant, pieces, n, options, report, &why);
    if (fd >= 0) close(fd);
    if (!err) return 0;
    if (!is_of_the_disk(err)) {
        if (e) *e = why;
        return err;
    }
    log_warn("the quantised weights cannot be kept, so each start makes them again: %s", why.message);
    return 0;
}
