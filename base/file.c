#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Opens a regular file for reading and gives its size. */
static int open_regular(const char *path, size_t *size, struct error *e) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0) return error_errno(e, errno, path, "open");
    struct stat st;
    if (fstat(fd, &st) != 0) {
        int err = error_errno(e, errno, path, "stat");
        close(fd);
        return err;
    }
    if (!S_ISREG(st.st_mode)) {
        close(fd);
        return error_bad_file(e, path, NULL, NULL, "is %s, not a regular file",
                              S_ISDIR(st.st_mode) ? "a directory" : "a special file");
    }
    *size = (size_t)st.st_size;
    return fd;
}

int file_map_open(struct file_map *map, const char *path, struct error *e) {
    *map = (struct file_map){0};
    int fd = open_regular(path, &map->size, e);
    if (fd < 0) return fd;
    int err = 0;
    if (map->size > 0) {
        void *at = mmap(NULL, map->size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (at == MAP_FAILED) err = error_errno(e, errno, path, "map");
        else map->data = at;
    }
    close(fd);
    return err;
}

void file_map_close(struct file_map *map) {
    file_map_unguard(map);
    if (map->data) munmap((void *)map->data, map->size);
    *map = (struct file_map){0};
}

/* The kernel maps what it has cached around a page that is read, up to so much, and would bring back the
 * most of what was dropped before: so the neighbours go too. They come again when they are read. */
enum { DROP_GRAIN = 2 << 20 };

void file_map_drop(const struct file_map *map, size_t offset, size_t bytes) {
    if (bytes == 0) return;
    size_t from = offset / DROP_GRAIN * DROP_GRAIN;
    size_t to = (offset + bytes + DROP_GRAIN - 1) / DROP_GRAIN * DROP_GRAIN;
    if (to > map->size) to = map->size;
    madvise((void *)(map->data + from), to - from, MADV_DONTNEED);
}

void file_map_want(const struct file_map *map, size_t offset, size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), from = offset / page * page;
    madvise((void *)(map->data + from), offset + bytes - from, MADV_WILLNEED);
}

int file_read(const char *path, size_t max, char **out, size_t *size, struct error *e) {
    size_t expected;
    int fd = open_regular(path, &expected, e);
    if (fd < 0) return fd;
    if (expected > max) {
        close(fd);
        return error_bad_file(e, path, NULL, NULL, "has %zu bytes; at most %zu are read", expected,
                              max);
    }
    char *data = malloc(expected + 1);
    if (!data) {
        close(fd);
        return error_set(e, ERR_MEMORY, "%s: no memory for %zu bytes", path, expected);
    }
    size_t have = 0;
    int err = 0;
    while (have < expected) {
        ssize_t got = read(fd, data + have, expected - have);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) err = error_errno(e, errno, path, "read");
        if (got <= 0) break;
        have += (size_t)got;
    }
    close(fd);
    if (err) {
        free(data);
        return err;
    }
    data[have] = '\0';
    *out = data;
    *size = have;
    return 0;
}

bool file_begins_with(const char *path, const char *text) {
    char head[16];
    size_t n = strlen(text), size;
    int fd = n <= sizeof head ? open_regular(path, &size, NULL) : -1;
    if (fd < 0) return false;
    bool same = pread(fd, head, n, 0) == (ssize_t)n && memcmp(head, text, n) == 0;
    close(fd);
    return same;
}

bool path_is_dir(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

bool path_exists(const char *path) {
    struct stat st;
    return stat(path, &st) == 0;
}

char *path_join(const char *dir, const char *name) {
    size_t n = strlen(dir);
    const char *slash = n > 0 && dir[n - 1] == '/' ? "" : "/";
    size_t need = n + strlen(slash) + strlen(name) + 1;
    char *out = malloc(need);
    if (out) snprintf(out, need, "%s%s%s", dir, slash, name);
    return out;
}

bool path_has_suffix(const char *path, const char *suffix) {
    size_t n = strlen(path), m = strlen(suffix);
    return n >= m && strcmp(path + n - m, suffix) == 0;
}

const char *path_base(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}
