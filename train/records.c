#include "train/records.h"

#include "base/file.h"
#include "text/vocab.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
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

/* Reads a whole block, or what is left of the file: the number of bytes, or a negative error. */
static ssize_t read_block(int fd, const char *path, char *to, struct error *e) {
    size_t have = 0;
    while (have < HASH_BLOCK) {
        ssize_t n = read(fd, to + have, HASH_BLOCK - have);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return error_errno(e, errno, path, "read");
        if (n == 0) break;
        have += (size_t)n;
    }
    return (ssize_t)have;
}

int records_hash_file(const char *path, uint64_t *hash, struct error *e) {
    struct stat st;
    int fd = open_data(path, &st, e);
    if (fd < 0) return fd;
    char *block = malloc(HASH_BLOCK);
    ssize_t n = block ? 0 : error_set(e, ERR_MEMORY, "%s: no memory to read it", path);
    *hash = 0;
    while (block && (n = read_block(fd, path, block, e)) > 0)
        *hash = hash_bytes(*hash, block, (size_t)n);
    free(block);
    close(fd);
    return (int)n;
}

int records_open(struct records *r, const char *path, struct error *e) {
    *r = (struct records){.fd = -1, .line = 1};
    size_t n = strlen(path);
    if (n > 4 && !strcasecmp(path + n - 4, ".txt")) r->layout = RECORDS_TEXT;
    r->path = strdup(path);
    if (!r->path) return error_set(e, ERR_MEMORY, "%s: no memory to read it", path);
    r->fd = open_data(path, &r->stat, e);
    if (r->fd >= 0) return 0;
    int err = r->fd;
    records_close(r);
    return err;
}

void records_close(struct records *r) {
    if (r->fd >= 0) close(r->fd);
    free(r->path);
    free(r->data);
    free(r->round);
    *r = (struct records){.fd = -1};
}

int records_unchanged(const struct records *r, struct error *e) {
    struct stat now;
    if (fstat(r->fd, &now) != 0) return error_errno(e, errno, r->path, "stat");
    if (now.st_size == r->stat.st_size && now.st_mtim.tv_sec == r->stat.st_mtim.tv_sec &&
        now.st_mtim.tv_nsec == r->stat.st_mtim.tv_nsec)
        return 0;
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
    if (r->capacity < r->size + want + HASH_BLOCK) {
        char *data = realloc(r->data, r->size + want + HASH_BLOCK);
        if (!data) return error_set(e, ERR_MEMORY, "%s: no memory to read it", r->path);
        r->data = data;
        r->capacity = r->size + want + HASH_BLOCK;
    }
    for (size_t have = 0; have < want && !r->at_end;) {
        ssize_t n = read_block(r->fd, r->path, r->data + r->size, e);
        if (n < 0) return (int)n;
        if (n > 0) r->hash = hash_bytes(r->hash, r->data + r->size, (size_t)n);
        r->at_end = n < HASH_BLOCK;
        r->size += (size_t)n;
        have += (size_t)n;
    }
    return 0;
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

static void find_layout(struct records *r) {
    if (r->layout != RECORDS_UNKNOWN || !skip_space(r)) return;
    r->layout = r->data[r->at] == '[' ? RECORDS_ARRAY : RECORDS_LINES;
    if (r->layout == RECORDS_ARRAY) r->at++;
}

int records_next(struct records *r, const struct record **out, size_t *n, struct error *e) {
    bool begin = !r->data;
    r->n_round = 0;
    int err = 0;
    while (!err && r->n_round == 0 && !(r->at_end && r->at == r->size)) {
        if (!r->at_end) err = fill(r, e);
        if (!err && begin) err = check_encoding(r, e);
        if (err) break;
        if (begin) drop_mark(r);
        begin = false;
        find_layout(r);
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
