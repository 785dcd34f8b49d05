/* train/cache.h: the file that keeps a data file's tokens: written once in one pass, then mapped.
 *
 *     tokens   int32 [n_tokens], marked as in example.h, example after example
 *     ends     uint64 [n_examples]: number of tokens up to and with example i (8-byte aligned)
 *     footer   struct cache_footer
 *
 * In the machine's own byte order: a cache does not travel. It appears whole or not at all. */
#ifndef TPD_TRAIN_CACHE_H
#define TPD_TRAIN_CACHE_H

#include "base/file.h"
#include "text/tokenizer.h"
#include "train/part.h"

#include <sys/stat.h>
#include <time.h>

/* What tells one state of a data file from another without reading it. */
struct file_state {
    int64_t size, mtime_ns, ctime_ns;
    uint64_t device, inode;
};
struct file_state file_state_of(const struct stat *st);

struct cache_footer {
    char magic[8];
    uint64_t options;         /* hash of all that tokens depend on beside the data */
    struct data_part part;    /* the bytes that became tokens */
    struct file_state source; /* the data file when it was read */
    int64_t made_ns;          /* wall clock, when reading began */
    int64_t n_examples, n_tokens, skipped, first_skipped_line, cut, untrained, trained_tokens;
    int64_t form;
    uint64_t check; /* hash of the footer up to here */
};

struct cache_writer {
    struct file_writer file;
    uint64_t *ends;
    size_t capacity;
    struct cache_footer footer; /* counts; the caller fills in the rest */
};
int cache_writer_open(struct cache_writer *w, const char *path, struct error *e);
/* Adds an example of n tokens. */
int cache_writer_add(struct cache_writer *w, const token_id *marked, size_t n, struct error *e);
int cache_writer_commit(struct cache_writer *w, struct error *e);
void cache_writer_abandon(struct cache_writer *w);

struct cache {
    struct file_map map;
    struct cache_footer footer;
    const token_id *tokens;
    const uint64_t *ends;
};
/* False when there is no whole cache with these options at path, or an example in it has other than 2
 * to max_tokens tokens. */
bool cache_open(struct cache *c, const char *path, uint64_t options, int64_t max_tokens);
void cache_close(struct cache *c);

/* Removes the caches of dir that were unused the longest until all take at most `most` bytes; not those
 * that were opened since `since` (CLOCK_REALTIME_COARSE). Nobody writes one meanwhile: what was left half
 * written goes, too. */
void cache_trim(const char *dir, int64_t most, struct timespec since);

#endif
