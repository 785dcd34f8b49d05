/* text/merges.c: see merges.h. */
#include "text/merges.h"

#include <stdlib.h>

bool merge_list_add(struct merge_list *list, struct merge_ids ids) {
    if (list->n == UINT32_MAX) return false;
    if (list->n == list->capacity) {
        size_t capacity = list->capacity ? list->capacity * 2 : 4096;
        struct merge_ids *grown = realloc(list->at, capacity * sizeof *grown);
        if (!grown) return false;
        list->at = grown;
        list->capacity = capacity;
    }
    list->at[list->n++] = ids;
    return true;
}

/* counts[i + 1] has how many there are of i: now counts[i] is where they begin. */
static void begin_at(uint32_t *counts, int32_t n_tokens) {
    for (int32_t i = 0; i < n_tokens; i++) counts[i + 1] += counts[i];
}

/* The ranks of the list in the order of right ids, equal ones by rank. */
static bool order_by_right(uint32_t *order, const struct merge_ids *list, size_t n, int32_t n_tokens) {
    uint32_t *next = calloc((size_t)n_tokens + 1, sizeof *next);
    if (!next) return false;
    for (size_t i = 0; i < n; i++) next[list[i].right + 1]++;
    begin_at(next, n_tokens);
    for (size_t i = 0; i < n; i++) order[next[list[i].right]++] = (uint32_t)i;
    free(next);
    return true;
}

/* One merge of each pair stays. */
static void drop_doubles(struct merges *m, bool last_counts) {
    uint32_t kept = 0;
    for (int32_t left = 0; left < m->n_left; left++) {
        uint32_t from = m->first[left], to = m->first[left + 1];
        m->first[left] = kept;
        for (uint32_t i = from; i < to; i++) {
            bool again = kept > m->first[left] && m->at[kept - 1].right == m->at[i].right;
            if (!again) m->at[kept++] = m->at[i];
            else if (last_counts) m->at[kept - 1] = m->at[i];
        }
    }
    m->first[m->n_left] = kept;
}

bool merges_make(struct merges *m, const struct merge_ids *list, size_t n, int32_t n_tokens, bool last_counts) {
    uint32_t *order = malloc((n + 1) * sizeof *order);
    *m = (struct merges){.at = malloc((n + 1) * sizeof *m->at),
                         .first = calloc((size_t)n_tokens + 2, sizeof *m->first),
                         .n_left = n_tokens};
    if (!order || !m->at || !m->first || !order_by_right(order, list, n, n_tokens)) {
        free(order);
        merges_free(m);
        return false;
    }
    /* Counted two places on: while they are put, first[left + 1] is where the next of left goes, and at the end
     * where those of left end. */
    for (size_t i = 0; i < n; i++) m->first[list[i].left + 2]++;
    begin_at(m->first + 1, n_tokens);
    for (size_t i = 0; i < n; i++) {
        const struct merge_ids *ids = &list[order[i]];
        m->at[m->first[ids->left + 1]++] = (struct merge){ids->right, ids->whole, order[i]};
    }
    free(order);
    drop_doubles(m, last_counts);
    return true;
}

void merges_free(struct merges *m) {
    free(m->at);
    free(m->first);
    *m = (struct merges){0};
}

const struct merge *merges_find(const struct merges *m, token_id left, token_id right) {
    if (left < 0 || left >= m->n_left) return NULL;
    uint32_t low = m->first[left], high = m->first[left + 1];
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (m->at[middle].right == right) return &m->at[middle];
        if (m->at[middle].right < right) low = middle + 1;
        else high = middle;
    }
    return NULL;
}
