/* model/merge.h: a model and its adapter become one model: W + scale B A, written as a Hugging Face
 * directory that needs no adapter any more. Any thread; touches no rank. */
#ifndef TPD_MODEL_MERGE_H
#define TPD_MODEL_MERGE_H

#include "model/adapter.h"

struct merge_options {
    size_t file_bytes;           /* tensors go into files of at most so many bytes; 0 = 5e9 */
    bool (*stopped)(void *user); /* asked between pieces of work: true ends with ERR_CANCELLED; or NULL */
    void *user;
};

struct merge_report {
    size_t tensors, merged; /* in all, and those that the adapter changes */
    size_t files, bytes;    /* of tensors */
    enum dtype type;        /* of most tensors */
    bool dequantised;       /* quantised tensors of the base became bf16 */
    bool config_made;       /* from GGUF metadata */
    bool tokenizer;         /* a tokenizer.json came along */
};

/* Writes directory `out`, which must not exist, by the temporary name OUT.part, fsync and a rename. Sums in
 * fp32, rounded once to the tensor's own type; quantised tensors become bf16. A few MiB at a time. */
int model_merge(struct merge_report *report, const struct model *base, const struct adapter *adapter,
                const char *out, const struct merge_options *options, struct error *e);

/* What a user should know of it, a sentence each: at most MERGE_NOTES, *n of them. */
enum { MERGE_NOTES = 3 };
void merge_notes(const struct merge_report *report, const char *notes[MERGE_NOTES], int *n);

#endif
