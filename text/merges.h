/* text/merges.h: the ranked list of BPE merges: which two tokens that stand side by side become a third, and which
 * pair goes first. Made once, then read by any thread. 12 bytes a merge and 4 a token, in the order of the left one. */
#ifndef TPD_TEXT_MERGES_H
#define TPD_TEXT_MERGES_H

#include "text/tokenizer.h"

/* As files list them: an earlier one has a lower rank. */
struct merge_ids {
    token_id left, right, whole;
};

struct merge {
    token_id right, id; /* id: of the whole */
    uint32_t rank;
};

struct merges {
    struct merge *at;
    uint32_t *first; /* [n_left + 1]: those of left are first[left] … first[left + 1] - 1, by right */
    int32_t n_left;
};

/* Ids are 0 … n_tokens-1. Of two merges of the same ids the earlier one counts, or with last_counts the later. False:
 * no memory. */
bool merges_make(struct merges *m, const struct merge_ids *list, size_t n, int32_t n_tokens, bool last_counts);
void merges_free(struct merges *m);

/* NULL: they do not merge. Ids may be any. */
const struct merge *merges_find(const struct merges *m, token_id left, token_id right);

/* A list while it is read. False: no memory, or more merges than a rank can number. */
struct merge_list {
    struct merge_ids *at;
    size_t n, capacity;
};
bool merge_list_add(struct merge_list *list, struct merge_ids ids);

#endif
