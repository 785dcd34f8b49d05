/* serve/scheduler.h: what the next step holds.
 *
 * Sequences wait, become live (a slot and all KV blocks they may ever need, so that nothing runs
 * out in the middle), and leave. A step is the work of one live sequence: a chunk of its prompt or
 * one generated token; the live ones take turns. Chunks begin at multiples of chunk_rows from the
 * prompt's start, whoever else is there, so that a request's numbers never depend on its company.
 *
 * Who becomes live: first come, first served within a group, and groups in turn. The next one waits
 * for its blocks and is not overtaken; else a large request might wait for ever. Held ones are
 * skipped.
 *
 * It knows nothing of models, tokens or threads: the driver alone calls it. */
#ifndef TPD_SERVE_SCHEDULER_H
#define TPD_SERVE_SCHEDULER_H

#include "serve/kv_blocks.h"

/* A sequence as the scheduler sees it; it stands inside the owner's own struct. */
struct sched_entry {
    /* set by the owner before scheduler_add */
    int32_t n_prompt;    /* positions of the prompt, at least 1 */
    int32_t n_positions; /* positions it may ever take in the cache, prompt included */
    int32_t chunk_rows;  /* rows of the largest prompt chunk */
    uint64_t group;
    /* set by the owner at any time */
    bool held;
    /* kept by the scheduler */
    bool live;
    int32_t n_done; /* positions whose step was handed out */
    struct kv_table table;
    uint64_t turn; /* virtual time at which its group is served */
    struct sched_entry *next;
};

/* Rows n_done … n_done + n_rows - 1 of a sequence. */
struct sched_step {
    struct sched_entry *entry;
    int32_t first, n_rows;
};

struct scheduler;

int scheduler_new(struct scheduler **out, int32_t slots, int32_t n_blocks, int32_t block_size,
                  struct error *e);
/* Entries must have been removed. */
void scheduler_free(struct scheduler *s);

/* ERR_MEMORY when it needs more blocks than there are in all; then it is not added. */
int scheduler_add(struct scheduler *s, struct sched_entry *entry, struct error *e);
/* Waiting or live: gives slot and blocks back. */
void scheduler_remove(struct scheduler *s, struct sched_entry *entry);
/* Admits what can be admitted and hands out the next step; false when nobody can go on. The entry
 * must be removed, or its next token chosen, before it is handed out again. */
bool scheduler_next(struct scheduler *s, struct sched_step *step);

struct sched_stats {
    int32_t waiting, live, blocks, blocks_used;
};
void scheduler_stats(const struct scheduler *s, struct sched_stats *out);

#endif
