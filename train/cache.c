#include "train/cache.h"

#include "base/hash.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char magic[8] = "tpdtok2";

static int64_t in_ns(struct timespec t) {
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

struct file_state file_state_of(const struct stat *st) {
    return (struct file_state){.size = st->st_size,
                               .mtime_ns = in_ns(st->st_mtim),
                               .ctime_ns = in_ns(st->st_ctim),
                               .device = st->st_dev,
                               .inode = st->st_ino};
}

static uint64_t footer_check(const struct cache_footer *f) {
    return hash_bytes(0, f, offsetof(struct cache_footer, check));
}

/* --- writing ---------------------------------------------------------------------------------- */

int cache_writer_open(struct cache_writer *w, const char *path, struct error *e) {
    *w = (struct cache_writer){0};
    return file_writer_open(&w->file, path, e);
}

int cache_writer_add(struct cache_writer *w, const token_id *marked, size_t n, struct error *e) {
    struct cache_footer *f = &w->footer;
    if ((size_t)f->n_examples == w->capacity) {
        size_t want = w->capacity ? w->capacity * 2 : 1024;
        uint64_t *ends = want <= INT32_MAX ? realloc(w->ends, want * sizeof *ends) : NULL;
        if (!ends) return error_set(e, ERR_MEMORY, "no memory for the examples of a data file");
        w->ends = ends;
        w->capacity = want;
    }
    file_writer_add(&w->file, marked, n * sizeof *marked);
    f->n_tokens += (int64_t)n;
    w->ends[f->n_examples++] = (uint64_t)f->n_tokens;
    return 0;
}

int cache_writer_commit(struct cache_writer *w, struct error *e) {
    struct cache_footer *f = &w->footer;
    memcpy(f->magic, magic, sizeof magic);
    f->check = footer_check(f);
    if (f->n_tokens % 2) file_writer_add(&w->file, &(token_id){0}, sizeof(token_id));
    if (f->n_examples > 0)
        file_writer_add(&w->file, w->ends, (size_t)f->n_examples * sizeof *w->ends);
    file_writer_add(&w->file, f, sizeof *f);
    int err = file_writer_commit(&w->file, e);
    free(w->ends);
    w->ends = NULL;
    return err;
}

void cache_writer_abandon(struct cache_writer *w) {
    file_writer_abandon(&w->file);
    free(w->ends);
    *w = (struct cache_writer){.file.fd = -1};
}

/* --- reading ---------------------------------------------------------------------------------- */

/* Counts are held against the file's size before they are used. */
static bool find_parts(struct cache *c, uint64_t options, uint64_t max_tokens) {
    struct cache_footer *f = &c->footer;
    size_t size = c->map.size;
    if (size < sizeof *f) return false;
    size -= sizeof *f;
    memcpy(f, c->map.data + size, sizeof *f);
    if (memcmp(f->magic, magic, sizeof magic) != 0 || f->check != footer_check(f) ||
        f->options != options)
        return false;
    uint64_t n_tokens = (uint64_t)f->n_tokens, n = (uint64_t)f->n_examples;
    if (n_tokens > size / sizeof(token_id) || n > size / sizeof(uint64_t)) return false;
    size_t tokens_bytes = (n_tokens + n_tokens % 2) * sizeof(token_id);
    if (tokens_bytes + n * sizeof(uint64_t) != size) return false;
    c->tokens = (const token_id *)c->map.data;
    c->ends = (const uint64_t *)(c->map.data + tokens_bytes);
    uint64_t before = 0;
    for (uint64_t i = 0; i < n; before = c->ends[i], i++)
        if (c->ends[i] > n_tokens || c->ends[i] < before + 2 || c->ends[i] - before > max_tokens)
            return false;
    return n == 0 || before == n_tokens;
}

bool cache_open(struct cache *c, const char *path, uint64_t options, int64_t max_tokens) {
    struct error ignored;
    if (file_map_open(&c->map, path, &ignored) != 0) return false;
    if (find_parts(c, options, (uint64_t)max_tokens)) {
        utimensat(AT_FDCWD, path, NULL, 0); /* used now: for cache_trim */
        return true;
    }
    cache_close(c);
    return false;
}

void cache_close(struct cache *c) {
    file_map_close(&c->map);
    *c = (struct cache){0};
}

/* --- bounds ------------------------------------------------------------------------------------ */

/* The longest unused cache and the bytes of all; what is half written is removed on the way. *oldest is
 * empty when there is none to remove. */
static int64_t look_through(int dir_fd, DIR *dir, int64_t since_ns, char oldest[256]) {
    int64_t bytes = 0, oldest_ns = INT64_MAX;
    *oldest = '\0';
    rewinddir(dir);
    for (struct dirent *entry; (entry = readdir(dir));) {
        struct stat st;
        if (path_has_suffix(entry->d_name, ".tokens.part")) unlinkat(dir_fd, entry->d_name, 0);
        if (!path_has_suffix(entry->d_name, ".tokens") || fstatat(dir_fd, entry->d_name, &st, 0) != 0)
            continue;
        int64_t used_ns = in_ns(st.st_mtim);
        bytes += st.st_size;
        if (used_ns >= since_ns || used_ns >= oldest_ns) continue;
        oldest_ns = used_ns;
        snprintf(oldest, 256, "%s", entry->d_name);
    }
    return bytes;
}

void cache_trim(const char *path, int64_t most, struct timespec since) {
    char oldest[256];
    DIR *dir = opendir(path);
    if (!dir) return;
    while (look_through(dirfd(dir), dir, in_ns(since), oldest) > most && *oldest)
        if (unlinkat(dirfd(dir), oldest, 0) != 0) break;
    closedir(dir);
}
