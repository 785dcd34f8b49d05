/* train/records.h: cuts a data file, or a part of it, into records, a round of some megabytes at a
 * time, so that memory does not follow the file. One thread.
 *
 * The file is read, not mapped: somebody may cut it short meanwhile. It is always read (and hashed)
 * from its beginning, so that lines have their numbers and a part can be known again. */
#ifndef TPD_TRAIN_RECORDS_H
#define TPD_TRAIN_RECORDS_H

#include "base/error.h"
#include "train/part.h"

#include <sys/stat.h>

enum records_layout {
    RECORDS_UNKNOWN, /* not read yet */
    RECORDS_LINES,   /* a JSON value a line */
    RECORDS_ARRAY,   /* the elements of one JSON array */
    RECORDS_TEXT     /* one text, in pieces that end with a line where they can */
};

enum { RECORD_MAX_BYTES = 64 << 20, RECORDS_ROUND_BYTES = 4 << 20 };

struct record {
    const char *text; /* borrowed until the next round */
    size_t size;
    size_t context; /* RECORDS_TEXT: this many bytes at the front were in the piece before, too */
    int64_t line;   /* where it begins (its context not counted), from 1 */
};

struct records {
    char *path;
    int fd;
    struct stat stat; /* at opening */
    struct data_want want;
    bool rewritten;       /* the file did not begin with want.known: all of it is read */
    int64_t from, to;     /* the part that is cut into records */
    int64_t offset;       /* bytes read so far, from 0 */
    enum records_layout layout;
    char *data;
    size_t size, capacity;
    size_t at; /* what is before it has been given out */
    int64_t line;
    bool at_start;    /* nothing was cut yet, and the part begins with the file */
    bool at_end;      /* the whole part is in data or was */
    bool array_ended; /* RECORDS_ARRAY: only white space may follow */
    bool array_begun; /* RECORDS_ARRAY: an element was given out */
    uint64_t hash;    /* of the bytes read so far, from 0 */
    struct record *round;
    size_t n_round, round_capacity;
};

/* A .txt file is one text; of any other the first byte says what it is. Reads over what comes before
 * the part that is wanted. want NULL: the whole file. */
int records_open(struct records *r, const char *path, const struct data_want *want,
                 struct error *e);
void records_close(struct records *r);

/* The next records, at least one; *n = 0 at the end. ERR_BAD_FILE with path and line where the file
 * cannot be cut any further. */
int records_next(struct records *r, const struct record **out, size_t *n, struct error *e);
/* At the end: ERR_BAD_FILE when what was read is not what stands there, or not what was pinned. */
int records_check(const struct records *r, struct error *e);

/* The hash that a struct records has at the end of the file. */
int records_hash_file(const char *path, const _Atomic bool *stop, uint64_t *hash, struct error *e);

/* ERR_BAD_FILE "PATH: line N: …" with notes path and line. */
int record_error(struct error *e, const char *path, int64_t line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#endif
