#include "train/records.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

/* The hash goes over blocks of one size, so that it does not depend on how a file was read. */
enum { HASH_BLOCK = 1 << 20, PIECE_BYTES = 1 << 16, CONTEXT_BYTES = 256 };

int record_error(struct error *e, const char *path, int64_t line, const char *format, ...) {
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    error_bad_file(e, path, NULL, NULL, "line %lld: %s", (long long)line, text);
    error_note_number(e, "line", line);
    return -(int)ERR_BAD_FILE;
}

/* --- reading ---------------------------------------------------------------------------------- */

static int open_data(const char *path, struct stat *st, struct error *e) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0) return error_errno(e, errno, path, "open");
    int err = 0;
    if (fstat(fd, st) != 0) err = error_errno(e, errno, path, "stat");
    else if (!S_ISREG(st->st_mode))
        err = error_bad_file(e, path, NULL, NULL, "is not a regular file");
    if (!err) return fd;
    close(fd);
    return err;
}

/* Reads a whole block, or the `most` bytes that are left of it: how many there were, or a negative
 * error. */
static ssize_t read_block(int fd, const char *path, const _Atomic bool *stop, char *to, int64_t most,
                          struct error *e) {
    if (stop && atomic_load_explicit(stop, memory_order_relaxed))
        return error_set(e, ERR_CANCELLED, "%s: reading it was given up", path);
    size_t want = most < HASH_BLOCK ? (size_t)most : HASH_BLOCK, have = 0;
    while (have < want) {
        ssize_t n = read(fd, to + have, want - have);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return error_errno(e, errno, path, "read");
        if (n == 0) break;
        have += (size_t)n;
    }
    return (ssize_t)have;
}

/* The hash of the next bytes of fd, `most` or as many as there are; their number in *n. */
static int hash_fd(int fd, const char *path, int64_t most, const _Atomic bool *stop, uint64_t *hash,
                   int64_t *n, struct error *e) {
    char *block = malloc(HASH_BLOCK);
    if (!block) return error_set(e, ERR_MEMORY, "%s: no memory to read it", path);
    ssize_t got;
    *hash = 0;
    *n = 0;
    while ((got = read_block(fd, path, stop, block, most - *n, e)) > 0) {
        *hash = hash_bytes(*hash, block, (size_t)got);
        *n += got;
    }
    free(block);
    return (int)got;
}

int records_hash_file(const char *path, const _Atomic bool *stop, uint64_t *hash, struct error *e) {
    struct stat st;
    int64_t n;
    int fd = open_data(path, &st, e);
    if (fd < 0) return fd;
    int err = hash_fd(fd, path, INT64_MAX, stop, hash, &n, e);
    close(fd);
    return err;
}

/* --- which part ------------------------------------------------------------------------------- */

/* Whether bytes from … to are an object (or array): no beginning of one is, so its writer has ended. */
static int is_whole_value(const struct records *r, int64_t from, int64_t to, bool *whole,
                           struct error *e) {
    size_t size = (size_t)(to - from);
    char *text = malloc(size + 1);
    if (!text) return error_set(e, ERR_MEMORY, "%s: no memory to read it", r->path);
    ssize_t n = pread(r->fd, text, size, from);
    json_t *json = n == (ssize_t)size ? json_read(text, size, NULL) : NULL;
    *whole = json_is_object(json) || json_is_array(json);
    json_decref(json);
    free(text);
    return n < 0 ? error_errno(e, errno, r->path, "read") : 0;
}

/* Where the last line begins that no newline ends (the file's size when there is none). Lines are not
 * looked for further back than a record may reach. */
static int find_last_line(const struct records *r, int64_t *from, struct error *e) {
    char block[1 << 14];
    int64_t size = r->stat.st_size, least = size - RECORD_MAX_BYTES, at = size;
    while (at > 0 && at > least) {
        size_t want = at < (int64_t)sizeof block ? (size_t)at : sizeof block;
        ssize_t n = pread(r->fd, block, want, at - (int64_t)want);
        if (n < 0) return error_errno(e, errno, r->path, "read");
        const char *newline = n > 0 ? memrchr(block, '\n', (size_t)n) : NULL;
        at -= (int64_t)want;
        if (newline) {
            *from = at + (newline - block) + 1;
            return 0;
        }
    }
    *from = at > 0 ? size : 0; /* too long for a record: reading will say so */
    return 0;
}

/* Where the last whole record ends: behind a newline, or behind an object that is whole without. */
static int find_whole_end(const struct records *r, int64_t *end, struct error *e) {
    int64_t size = r->stat.st_size;
    bool whole = false;
    int err = find_last_line(r, end, e);
    if (!err && *end < size && r->layout != RECORDS_TEXT)
        err = is_whole_value(r, *end, size, &whole, e);
    if (whole) *end = size;
    return err;
}

static int make_room(struct records *r, size_t more, struct error *e) {
    if (r->capacity >= r->size + more) return 0;
    char *data = realloc(r->data, r->size + more);
    if (!data) return error_set(e, ERR_MEMORY, "%s: no memory to read it", r->path);
    r->data = data;
    r->capacity = r->size + more;
    return 0;
}

static int read_on(struct records *r, ssize_t *n, struct error *e) {
    *n = read_block(r->fd, r->path, r->want.stop, r->data + r->size, r->to - r->offset, e);
    if (*n < 0) return (int)*n;
    if (*n > 0) r->hash = hash_bytes(r->hash, r->data + r->size, (size_t)*n);
    r->offset += *n;
    r->at_end = *n < HASH_BLOCK || r->offset == r->to;
    return 0;
}

/* Reads over the bytes 0 … from, counting their lines. *hash becomes theirs; what was read behind them
 * stays in data. The file may turn out to be shorter. */
static int pass_over(struct records *r, int64_t from, uint64_t *hash, struct error *e) {
    ssize_t n = 0;
    *hash = 0;
    int err = make_room(r, HASH_BLOCK, e);
    for (int64_t left = from; !err && left > 0 && !r->at_end; left -= n) {
        uint64_t before = r->hash;
        if ((err = read_on(r, &n, e))) break;
        size_t mine = left < n ? (size_t)left : (size_t)n;
        *hash = mine < (size_t)n ? hash_bytes(before, r->data, mine) : r->hash;
        for (size_t i = 0; i < mine; i++) r->line += r->data[i] == '\n';
        r->size = (size_t)n - mine;
        if (r->size == 0) continue;
        memmove(r->data, r->data + mine, r->size);
        break;
    }
    return err;
}

static int start_over(struct records *r, struct error *e) {
    r->size = 0;
    r->hash = 0;
    r->offset = 0;
    r->line = 1;
    r->at_end = false;
    r->from = 0;
    return lseek(r->fd, 0, SEEK_SET) == 0 ? 0 : error_errno(e, errno, r->path, "read");
}

static int no_longer(const struct records *r, struct error *e) {
    return error_bad_file(e, r->path, NULL, NULL,
                          "is no longer the file that the job began with: its first %lld bytes are "
                          "others; submit the job again",
                          (long long)r->want.pinned.to);
}

/* Sets from and to, and reads up to from. */
static int choose_part(struct records *r, struct error *e) {
    const struct data_want *want = &r->want;
    uint64_t hash;
    int err = 0;
    if (want->pinned.to > 0) {
        r->from = want->pinned.from;
        r->to = want->pinned.to;
        return r->stat.st_size < r->to ? no_longer(r, e) : pass_over(r, r->from, &hash, e);
    }
    r->to = r->stat.st_size;
    if (want->growing) err = find_whole_end(r, &r->to, e);
    if (err || want->known.to <= 0) return err;
    r->from = want->known.to;
    if (r->to < r->from && r->stat.st_size >= r->from) r->to = r->from;
    if (r->to >= r->from) {
        err = pass_over(r, r->from, &hash, e);
        if (err || hash == want->known.hash) return err;
    }
    r->rewritten = true;
    err = start_over(r, e);
    return err || !want->growing ? err : find_whole_end(r, &r->to, e);
}

int records_open(struct records *r, const char *path, const struct data_want *want,
                 struct error *e) {
    *r = (struct records){.fd = -1, .line = 1};
    if (want) r->want = *want;
    size_t n = strlen(path);
    if (n > 4 && !strcasecmp(path + n - 4, ".txt")) r->layout = RECORDS_TEXT;
    r->path = strdup(path);
    if (!r->path) return error_set(e, ERR_MEMORY, "%s: no memory to read it", path);
    r->fd = open_data(path, &r->stat, e);
    int err = r->fd < 0 ? r->fd : choose_part(r, e);
    if (err) {
        records_close(r);
        return err;
    }
    r->at_start = r->from == 0;
    if (!r->at_start && r->layout == RECORDS_UNKNOWN) r->layout = RECORDS_LINES;
    return 0;
}

void records_close(struct records *r) {
    if (r->fd >= 0) close(r->fd);
    free(r->path);
    free(r->data);
    free(r->round);
    *r = (struct records){.fd = -1};
}

int records_check(const struct records *r, struct error *e) {
    struct stat now;
    if (r->want.pinned.to > 0) return r->hash == r->want.pinned.hash ? 0 : no_longer(r, e);
    if (fstat(r->fd, &now) != 0) return error_errno(e, errno, r->path, "stat");
    bool same = now.st_size == r->stat.st_size && now.st_mtim.tv_sec == r->stat.st_mtim.tv_sec &&
                now.st_mtim.tv_nsec == r->stat.st_mtim.tv_nsec;
    if (!same && r->want.growing) { /* what was appended meanwhile is no harm */
        uint64_t hash;
        int64_t n;
        if (lseek(r->fd, 0, SEEK_SET) != 0) return error_errno(e, errno, r->path, "read");
        int err = hash_fd(r->fd, r->path, r->offset, r->want.stop, &hash, &n, e);
        if (err) return err;
        same = n == r->offset && hash == r->hash;
    }
    if (same) return 0;
    return error_bad_file(e, r->path, NULL, NULL,
                          "was changed while it was read: submit the job again");
}

/* Drops what was given out (but for the context of a text) and reads as much again as is left, at
 * least a round. */
static int fill(struct records *r, struct error *e) {
    size_t keep = r->layout == RECORDS_TEXT && r->at > CONTEXT_BYTES ? CONTEXT_BYTES
                  : r->layout == RECORDS_TEXT                        ? r->at
                                                                     : 0;
    size_t from = r->at - keep;
    if (from > 0) memmove(r->data, r->data + from, r->size - from);
    r->size -= from;
    r->at = keep;
    size_t want = r->size > RECORDS_ROUND_BYTES ? r->size : RECORDS_ROUND_BYTES;
    int err = make_room(r, want + HASH_BLOCK, e);
    ssize_t n;
    for (size_t have = 0; !err && have < want && !r->at_end; have += (size_t)n) {
        if ((err = read_on(r, &n, e))) break;
        r->size += (size_t)n;
    }
    return err;
}

/* --- cutting ---------------------------------------------------------------------------------- */

static int add_record(struct records *r, struct record record, struct error *e) {
    if (record.size - record.context > RECORD_MAX_BYTES)
        return record_error(e, r->path, record.line, "a record of more than %d MiB",
                            RECORD_MAX_BYTES >> 20);
    if (r->n_round == r->round_capacity) {
        size_t want = r->round_capacity ? r->round_capacity * 2 : 256;
        struct record *round = realloc(r->round, want * sizeof *round);
        if (!round) return error_set(e, ERR_MEMORY, "%s: no memory to read it", r->path);
        r->round = round;
        r->round_capacity = want;
    }
    r->round[r->n_round++] = record;
    return 0;
}

static bool is_space(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static int cut_lines(struct records *r, struct error *e) {
    int err = 0;
    while (r->at < r->size && !err) {
        const char *from = r->data + r->at, *last = r->data + r->size;
        const char *newline = memchr(from, '\n', (size_t)(last - from));
        if (!newline && !r->at_end) break;
        const char *to = newline ? newline : last;
        r->at = (size_t)(to - r->data) + (newline != NULL);
        while (to > from && is_space(to[-1])) to--;
        while (from < to && is_space(*from)) from++;
        if (from < to)
            err = add_record(r, (struct record){from, (size_t)(to - from), 0, r->line}, e);
        r->line += newline != NULL;
    }
    return err;
}

/* Skips white space, counting lines; false at the end of data. */
static bool skip_space(struct records *r) {
    for (; r->at < r->size && is_space(r->data[r->at]); r->at++) r->line += r->data[r->at] == '\n';
    return r->at < r->size;
}

/* Where the JSON value at `from` ends: before a , or ] that is not its own. Its inside is not
 * checked here. Returns size when data ends first. */
static size_t element_end(const struct records *r, size_t from) {
    int64_t depth = 0;
    bool in_string = false;
    for (size_t i = from; i < r->size; i++) {
        char c = r->data[i];
        if (in_string) {
            if (c == '\\') i++;
            else if (c == '"') in_string = false;
        } else if (c == '"') in_string = true;
        else if (c == '{' || c == '[') depth++;
        else if (depth == 0 && (c == ',' || c == ']')) return i;
        else if ((c == '}' || c == ']') && depth > 0) depth--;
    }
    return r->size;
}

/* After an element: its comma, or the bracket that ends the array. */
static int cut_separator(struct records *r, struct error *e) {
    char c = r->data[r->at];
    if (c == ']') r->array_ended = true;
    r->at++;
    if (c == ',' && skip_space(r) && r->data[r->at] == ']')
        return record_error(e, r->path, r->line, "a comma and no record behind it");
    return 0;
}

static int cut_array(struct records *r, struct error *e) {
    int err = 0;
    while (!err && skip_space(r)) {
        if (r->array_ended)
            return record_error(e, r->path, r->line, "something stands after the array's end");
        if (r->data[r->at] == ']' && !r->array_begun) {
            r->array_ended = true;
            r->at++;
            continue;
        }
        size_t end = element_end(r, r->at);
        if (end == r->size) break;
        struct record record = {r->data + r->at, end - r->at, 0, r->line};
        while (record.size > 0 && is_space(record.text[record.size - 1])) record.size--;
        if (record.size == 0)
            return record_error(e, r->path, r->line, "a comma and no record before it");
        err = add_record(r, record, e);
        for (; r->at < end; r->at++) r->line += r->data[r->at] == '\n';
        r->array_begun = true;
        if (!err) err = cut_separator(r, e);
    }
    if (!err && r->at_end && !r->array_ended)
        err = record_error(e, r->path, r->line,
                           "the file ends before the array does: a ] is missing");
    return err;
}

/* The size of a piece of text: up to the last line end in PIECE_BYTES that no white space follows
 * (a tokenizer sees the same there as in the whole), else up to any whole character. */
static size_t piece_size(const char *text, size_t size) {
    if (size <= PIECE_BYTES) return size;
    for (size_t n = PIECE_BYTES; n > 0; n--)
        if (text[n - 1] == '\n' && !is_space(text[n])) return n;
    size_t n = PIECE_BYTES;
    while (n > PIECE_BYTES - 4 && ((unsigned char)text[n] & 0xC0) == 0x80) n--;
    return n;
}

/* Bytes before `at` that the next piece is seen with: whole lines if there are any, else whole
 * characters. */
static size_t context_size(const struct records *r) {
    size_t most = r->at < CONTEXT_BYTES ? r->at : CONTEXT_BYTES, from = r->at - most;
    for (size_t i = from; i + 1 < r->at; i++)
        if (i > 0 && r->data[i - 1] == '\n') return r->at - i;
    while (from < r->at && ((unsigned char)r->data[from] & 0xC0) == 0x80) from++;
    return r->at - from;
}

static int cut_text(struct records *r, struct error *e) {
    int err = 0;
    while (!err && (r->size - r->at > PIECE_BYTES || (r->at_end && r->at < r->size))) {
        size_t n = piece_size(r->data + r->at, r->size - r->at), context = context_size(r);
        struct record piece = {r->data + r->at - context, n + context, context, r->line};
        err = add_record(r, piece, e);
        for (size_t i = 0; i < n; i++) r->line += r->data[r->at + i] == '\n';
        r->at += n;
    }
    return err;
}

/* The byte order mark is taken out, so that no context has it. */
static void drop_mark(struct records *r) {
    if (r->size < 3 || memcmp(r->data, "\xEF\xBB\xBF", 3) != 0) return;
    memmove(r->data, r->data + 3, r->size - 3);
    r->size -= 3;
}

/* Files that would only be called broken JSON. */
static int check_encoding(const struct records *r, struct error *e) {
    if (r->size < 2) return 0;
    if (memcmp(r->data, "\x1f\x8b", 2) == 0)
        return record_error(e, r->path, 1, "the file is packed with gzip: unpack it first");
    if (memcmp(r->data, "\xff\xfe", 2) == 0 || memcmp(r->data, "\xfe\xff", 2) == 0)
        return record_error(e, r->path, 1, "the file is UTF-16: save it as UTF-8");
    return 0;
}

static int find_layout(struct records *r, struct error *e) {
    if (r->layout != RECORDS_UNKNOWN || !skip_space(r)) return 0;
    r->layout = r->data[r->at] == '[' ? RECORDS_ARRAY : RECORDS_LINES;
    if (r->layout == RECORDS_LINES) return 0;
    if (r->want.growing)
        return record_error(e, r->path, r->line,
                            "the file is one JSON array, to which nothing can be appended: "
                            "since_last wants a record a line");
    r->at++;
    return 0;
}

int records_next(struct records *r, const struct record **out, size_t *n, struct error *e) {
    r->n_round = 0;
    int err = 0;
    while (!err && r->n_round == 0 && !(r->at_end && r->at == r->size)) {
        if (!r->at_end) err = fill(r, e);
        if (!err && r->at_start) err = check_encoding(r, e);
        if (err) break;
        if (r->at_start) drop_mark(r);
        r->at_start = false;
        if ((err = find_layout(r, e))) break;
        switch (r->layout) {
        case RECORDS_UNKNOWN: break; /* white space so far */
        case RECORDS_LINES: err = cut_lines(r, e); break;
        case RECORDS_ARRAY: err = cut_array(r, e); break;
        case RECORDS_TEXT: err = cut_text(r, e); break;
        }
        if (!err && r->n_round == 0 && r->size - r->at > RECORD_MAX_BYTES)
            err = record_error(e, r->path, r->line, "a record of more than %d MiB",
                               RECORD_MAX_BYTES >> 20);
    }
    *out = r->round;
    *n = r->n_round;
    return err;
}
