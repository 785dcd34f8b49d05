#include "daemon/job_paths.h"

#include "base/file.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int no_memory(struct error *e) {
    return error_set(e, ERR_MEMORY, "no memory for a path");
}

/* What of path (without links) lies below dir (the same), without a leading slash; NULL when it
 * lies elsewhere, "" for dir itself. */
static const char *below(const char *dir, const char *path) {
    size_t n = strlen(dir);
    while (n > 0 && dir[n - 1] == '/') n--;
    if (strncmp(dir, path, n) != 0 || (path[n] != '/' && path[n] != '\0')) return NULL;
    return path + n + (path[n] == '/');
}

static int outside(struct error *e, const char *field, const char *path, const char *dir_key,
                   const char *dir, const char *way_out) {
    error_set(e, ERR_NOT_PERMITTED, "%s: %.160s is outside %s (%.200s): %s", field, path, dir_key, dir,
              way_out);
    error_note(e, "field", field);
    return -(int)ERR_NOT_PERMITTED;
}

/* path as it stands, or under dir when it is relative. */
static char *place(const char *dir, const char *path) {
    return *path == '/' ? strdup(path) : path_join(dir, path);
}

static int real_dir(char **out, const char *dir, struct error *e) {
    *out = realpath(dir, NULL);
    return *out ? 0 : error_errno(e, errno, dir, "open");
}

static int check_file(const char *field, const char *path, struct error *e) {
    struct stat st;
    if (stat(path, &st) != 0) return error_errno(e, errno, path, "open");
    if (S_ISREG(st.st_mode)) return 0;
    error_set(e, ERR_PARAMS, "%s must be a file, and %s is none", field, path);
    error_note(e, "field", field);
    error_note(e, "expected", "a file");
    error_note(e, "got", path);
    return -(int)ERR_PARAMS;
}

int job_data_path(char **out, const char *data_dir, const char *path, const char *field,
                  struct error *e) {
    char *root = NULL, *whole = place(data_dir, path), *real = NULL;
    int rc = whole ? real_dir(&root, data_dir, e) : no_memory(e);
    if (rc == 0 && !(real = realpath(whole, NULL))) {
        rc = error_errno(e, errno, whole, "open");
        error_note(e, "field", field);
    }
    if (rc == 0) {
        const char *rest = below(root, real);
        if (!rest || !*rest)
            rc = outside(e, field, path, "data_dir", data_dir, "copy it there, or start tpd with another --data-dir");
    }
    if (rc == 0) rc = check_file(field, real, e);
    free(root);
    free(whole);
    if (rc == 0) *out = real;
    else free(real);
    return rc;
}

/* The real path of what does not exist as a whole: that of its nearest directory that does, and the
 * rest as it is. Cuts path. */
static char *real_of_new(char *path) {
    char rest[PATH_MAX] = "", *real;
    while (!(real = realpath(path, NULL))) {
        char *slash = strrchr(path, '/');
        if (errno != ENOENT || !slash || slash == path) return NULL;
        const char *name = slash + 1;
        size_t n = strlen(name), m = strlen(rest);
        if (strcmp(name, "..") == 0 || n + m + 2 > sizeof rest) return NULL;
        if (n > 0 && strcmp(name, ".") != 0) {
            memmove(rest + n + 1, rest, m + 1);
            rest[0] = '/';
            memcpy(rest + 1, name, n);
        }
        *slash = '\0';
    }
    char *whole = malloc(strlen(real) + strlen(rest) + 1);
    if (whole) strcat(strcpy(whole, real), rest);
    free(real);
    return whole;
}

/* What the daemon keeps there for itself is no place for results. */
static bool is_own(const char *rest) {
    static const char *const own[] = {"jobs", "cache", "data", "tpd.db", "tpd.lock"};
    size_t n = strcspn(rest, "/");
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (strlen(own[i]) == n && strncmp(own[i], rest, n) == 0) return true;
    return n == 0 || strncmp(rest, "tpd.db-", 7) == 0;
}

int job_out_path(char **out, const char *state_dir, const char *path, struct error *e) {
    struct stat st;
    char *root = NULL, *whole = place(state_dir, path), *real = NULL;
    int rc = whole ? real_dir(&root, state_dir, e) : no_memory(e);
    const char *rest = NULL;
    if (rc == 0 && (real = real_of_new(whole))) rest = below(root, real);
    if (rc == 0 && (!rest || is_own(rest)))
        rc = outside(e, "out", path, "state_dir", state_dir, "name a directory of its own below that");
    if (rc == 0 && lstat(real, &st) == 0 && !S_ISDIR(st.st_mode))
        rc = error_set(e, ERR_CONFLICT, "out: %s is there and no directory", path);
    free(root);
    free(whole);
    if (rc == 0) *out = real;
    else free(real);
    return rc;
}
