/* base/file.h: files mapped or read whole, and paths. Any thread. */
#ifndef TPD_BASE_FILE_H
#define TPD_BASE_FILE_H

#include "base/error.h"

/* A read-only map of a whole file. data is NULL when size is 0. */
struct file_map {
    const uint8_t *data;
    size_t size;
};

int file_map_open(struct file_map *map, const char *path, struct error *e);
void file_map_close(struct file_map *map);
/* From now on a read of what is no longer in the file (somebody cut it short, or the disk fails) gives
 * zeros instead of ending the process. Whoever reads asks file_map_torn, with any address in the map,
 * when it has read: true if that happened anywhere in the map. file_map_close ends it. */
void file_map_guard(const struct file_map *map);
void file_map_unguard(const struct file_map *map);
bool file_map_torn(const void *at);
/* Tells the kernel that [offset, offset + bytes) was read and may leave memory, with what it mapped around
 * it. Reading it again brings it back. */
void file_map_drop(const struct file_map *map, size_t offset, size_t bytes);
/* Tells the kernel that they will be read soon: it begins to read the file, and nobody waits. */
void file_map_want(const struct file_map *map, size_t offset, size_t bytes);

/* Reads a regular file of at most max bytes; *out is NUL-terminated (not counted in *size) and is
 * the caller's to free(). A larger file is ERR_BAD_FILE naming the limit. */
int file_read(const char *path, size_t max, char **out, size_t *size, struct error *e);

/* A new file that appears under its name whole or not at all: written as PATH.part, then fsynced,
 * renamed and its directory fsynced by file_writer_commit. Errors stick: check the commit. */
struct file_writer {
    int fd;
    char *path, *part;
    char *buffer;
    size_t n;
    int errnum;
};
int file_writer_open(struct file_writer *w, const char *path, struct error *e);
void file_writer_add(struct file_writer *w, const void *data, size_t size);
int file_writer_commit(struct file_writer *w, struct error *e);
void file_writer_abandon(struct file_writer *w);

/* mkdir -p (mode 0700 for what is new). */
int dir_make(const char *path, struct error *e);
int dir_sync(const char *path, struct error *e);
/* Renames a directory that is whole to where nothing is yet (ERR_CONFLICT), and syncs. */
int dir_move(const char *from, const char *to, struct error *e);
/* Removes a directory and all in it; one that is not there is no error. */
int dir_remove(const char *path, struct error *e);

/* Whether path is a regular file whose first bytes are text. Never waits, whatever path is. */
bool file_begins_with(const char *path, const char *text);
bool path_is_dir(const char *path);
bool path_exists(const char *path);
/* dir + "/" + name, to be freed by the caller. */
char *path_join(const char *dir, const char *name);
bool path_has_suffix(const char *path, const char *suffix);
/* The part after the last slash. */
const char *path_base(const char *path);

#endif
