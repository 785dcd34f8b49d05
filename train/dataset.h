/* train/dataset.h: a file of examples becomes micro-batches of token rows.
 *
 * dataset_open checks the whole file first (every record, with line numbers), tokenises it in
 * parallel and keeps the result in a cache file of token ids, which is mapped; so data may be
 * larger than memory (a number an example is kept while it is read) and a resumed job opens in
 * milliseconds. Read-only afterwards; any thread. Two calls of dataset_open for one file must not
 * overlap.
 *
 * Forms, found from the first record and the same throughout: JSON lines (or one JSON array) of
 * {"text"}, {"prompt","completion"}, {"messages":[…]}, {"instruction","input","output"},
 * {"input_ids","labels"}; or a .txt file, cut at seq_len. CRLF, BOM and blank lines are taken. */
#ifndef TPD_TRAIN_DATASET_H
#define TPD_TRAIN_DATASET_H

#include "base/error.h"
#include "text/tokenizer.h"
#include "train/part.h"

struct chat;
struct dataset;

struct dataset_options {
    const struct tokenizer *tokenizer;
    const struct chat *chat; /* how messages are written; NULL: they are refused */
    const char *cache_dir; /* must exist */
    int32_t vocab;         /* ids of input_ids records must be below it */
    int32_t eos;           /* appended to examples; -1 = none */
    int32_t seq_len;       /* rows; longer examples are cut (and counted) */
    bool on_completion;    /* loss on completions and assistant turns only */
    bool skip_bad;         /* count broken records instead of failing */
    int threads;
    struct data_want want; /* which bytes of the file; zeroed: all */
};

struct dataset_report {
    int64_t examples;               /* records (or parts of a text) taken */
    int64_t skipped;                /* broken ones passed over */
    int64_t first_skipped_line;     /* 0 = none was skipped */
    int64_t cut;                    /* those that were longer than seq_len */
    int64_t untrained;              /* left out: no token of them would be learnt */
    int64_t tokens, trained_tokens; /* rows of one epoch, and those with a label */
    const char *form;               /* "text", "completion", "messages" … */
    bool cached;                    /* opened from the cache */
    struct data_part part;          /* what was read: pin it, and the same comes again */
    bool rewritten;                 /* the file no longer begins with want.known: all was read */
};

/* ERR_NOT_FOUND, or ERR_BAD_FILE with path and line. A file without a usable example is one, but in
 * a growing file there may be none yet: then the report says 0 examples. ERR_IO when the cache cannot
 * be written. */
int dataset_open(struct dataset **out, const char *path, const struct dataset_options *options,
                 struct error *e);
void dataset_close(struct dataset *d);
/* Whether a growing file has a record behind what is known of it, or is another; true when that cannot
 * be found out. Reads all of it. */
bool dataset_has_news(const char *path, const struct data_part *known);
void dataset_report(const struct dataset *d, struct dataset_report *out);

/* Which examples a pass goes over: all but (or only) the eval part, in an order that seed and epoch
 * give. The eval part is chosen by seed alone. */
struct dataset_view {
    const struct dataset *data;
    double eval_fraction; /* 0 = no part is held out */
    bool eval;            /* the held-out part, in file order; all of it with eval_fraction 1 */
    uint64_t seed;
    /* A micro-batch has rows / seq_len bins of up to seq_len rows. rows is at least seq_len, and
     * that at least the dataset's. */
    int32_t seq_len, rows;
    bool packing; /* several examples share a bin, attention kept inside each; else one a bin */
};

/* The micro-batches of one epoch, made once for it: examples dealt first-fit into bins. Every
 * example is in exactly one. The view is copied; its dataset must outlive the epoch. */
struct dataset_epoch;
/* An eval part may be empty (then it has no batches); a training part is not: ERR_PARAMS. */
int dataset_epoch_new(struct dataset_epoch **out, const struct dataset_view *view, int64_t epoch,
                      struct error *e);
void dataset_epoch_free(struct dataset_epoch *e);
int64_t dataset_epoch_batches(const struct dataset_epoch *e);

/* Arrays of at least view.rows entries, the caller's. An example of n tokens has n - 1 rows:
 * nothing is asked of its last token. labels[t]: the token that should follow row t, -1 where
 * nothing is trained. first[t]: the row where the row's example begins; pos[t] = t - first[t];
 * len[t]: rows of its example. */
struct dataset_rows {
    int32_t n_rows, n_trained;
    int32_t *ids, *labels, *pos, *first, *len;
};
/* Micro-batch i of the epoch: the same for the same view, epoch and i. */
void dataset_epoch_rows(const struct dataset_epoch *e, int64_t i, struct dataset_rows *out);

#endif
