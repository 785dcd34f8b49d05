/* Writing files that others may trust: whole under their name, or not there. */
#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { WRITE_BUFFER = 1 << 20 };

int file_writer_open(struct file_writer *w, const char *path, struct error *e) {
    *w = (struct file_writer){.fd = -1};
    size_t size = strlen(path) + 6;
    w->path = strdup(path);
    w->part = malloc(size);
    w->buffer = malloc(WRITE_BUFFER);
    if (!w->path || !w->part || !w->buffer) {
        file_writer_abandon(w);
        return error_set(e, ERR_MEMORY, "%s: no memory to write it", path);
    }
    snprintf(w->part, size, "%s.part", path);
    w->fd = open(w->part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (w->fd >= 0) return 0;
    int err = error_errno(e, errno, path, "create");
    file_writer_abandon(w);
    return err;
}

static void write_all(struct file_writer *w, const char *data, size_t size) {
    while (size > 0 && !w->errnum) {
        ssize_t n = write(w->fd, data, size);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) w->errnum = errno;
        else data += n, size -= (size_t)n;
    }
}

static void flush(struct file_writer *w) {
    write_all(w, w->buffer, w->n);
    w->n = 0;
}

void file_writer_add(struct file_writer *w, const void *data, size_t size) {
    if (w->n + size > WRITE_BUFFER) flush(w);
    if (size > WRITE_BUFFER) {
        write_all(w, data, size);
        return;
    }
    memcpy(w->buffer + w->n, data, size);
    w->n += size;
}

static int sync_parent(const char *path, struct error *e) {
    const char *base = path_base(path);
    char *dir = base == path ? strdup(".") : strndup(path, (size_t)(base - path));
    if (!dir) return error_set(e, ERR_MEMORY, "%s: no memory for its directory's name", path);
    int err = dir_sync(dir, e);
    free(dir);
    return err;
}

int file_writer_commit(struct file_writer *w, struct error *e) {
    flush(w);
    if (!w->errnum && fsync(w->fd) != 0) w->errnum = errno;
    if (!w->errnum && rename(w->part, w->path) != 0) w->errnum = errno;
    int err = w->errnum ? error_errno(e, w->errnum, w->path, "write") : sync_parent(w->path, e);
    if (!w->errnum) { /* nothing is left to be unlinked */
        free(w->part);
        w->part = NULL;
    }
    file_writer_abandon(w);
    return err;
}

void file_writer_abandon(struct file_writer *w) {
    if (w->fd >= 0) close(w->fd);
    if (w->fd >= 0 && w->part) unlink(w->part);
    free(w->path);
    free(w->part);
    free(w->buffer);
    *w = (struct file_writer){.fd = -1};
}

int dir_make(const char *path, struct error *e) {
    char *at = strdup(path);
    if (!at) return error_set(e, ERR_MEMORY, "%s: no memory for its name", path);
    int err = 0;
    for (char *slash = at + 1; !err; slash++) {
        if (*slash != '/' && *slash != '\0') continue;
        char end = *slash;
        *slash = '\0';
        if (mkdir(at, 0777) != 0 && errno != EEXIST) err = error_errno(e, errno, at, "create");
        *slash = end;
        if (end == '\0') break;
    }
    free(at);
    if (!err && !path_is_dir(path))
        err = error_set(e, ERR_IO, "%s: is there already and is not a directory", path);
    return err;
}

int dir_sync(const char *path, struct error *e) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return error_errno(e, errno, path, "open");
    int err = fsync(fd) == 0 ? 0 : error_errno(e, errno, path, "sync");
    close(fd);
    return err;
}

int dir_move(const char *from, const char *to, struct error *e) {
    if (rename(from, to) == 0) return sync_parent(to, e);
    return errno == ENOTEMPTY || errno == EEXIST || errno == ENOTDIR
               ? error_set(e, ERR_CONFLICT, "%s appeared meanwhile: choose another name", to)
               : error_errno(e, errno, to, "create");
}

static int remove_at(int parent, const char *name, const char *shown, struct error *e) {
    if (unlinkat(parent, name, 0) == 0 || errno == ENOENT) return 0;
    if (errno != EISDIR && errno != EPERM) return error_errno(e, errno, shown, "remove");
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    if (!dir) {
        int err = error_errno(e, errno, shown, "open");
        if (fd >= 0) close(fd);
        return err;
    }
    int err = 0;
    for (struct dirent *entry; !err && (entry = readdir(dir));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            err = remove_at(fd, entry->d_name, shown, e);
    closedir(dir);
    if (!err && unlinkat(parent, name, AT_REMOVEDIR) != 0)
        err = error_errno(e, errno, shown, "remove");
    return err;
}

int dir_remove(const char *path, struct error *e) { return remove_at(AT_FDCWD, path, path, e); }
