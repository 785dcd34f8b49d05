/* serve/scheduler.h: what the next step holds.
 *
 * Sequences wait, become live (a slot), and leave. A step holds rows of many live ones: of each, the
 * positions whose tokens are known and whose keys and values are not computed yet, or the first of
 * them. That is one row of a sequence that generates, a chunk of a prompt, and a chunk of both after
 * a sequence had to give its blocks up; all are the same to the scheduler. Those with one row come
 * first, so that a long prompt delays nobody's next token by more than a chunk; beside them chunks
 * are kept short. Whoever was served longest ago comes first. Guesses of what a sequence will generate
 * are computed beside its row where rows, logits and blocks are left over.
 *
 * KV blocks are taken when rows need them. Before a sequence becomes live there must be room for
 * all its known tokens and a block more for each live one. When blocks run out all the same, held
 * ones give theirs up, then the youngest: it waits again, before all newcomers, and computes them
 * anew. An older one is never set back for a younger one, so the oldest always gets to its end.
 *
 * Prompts that begin alike share blocks (kv_blocks.h): what was computed before is taken over when
 * a sequence becomes live and whenever it is about to compute a block, and of two that are about to
 * compute the same block one lets the other go ahead.
 *
 * Who becomes live: first come, first served within a group, and groups in turn. The next one waits
 * for its blocks and is not overtaken; else a large request might wait for ever. Held ones are
 * skipped, and give way when somebody waits for their slot.
 *
 * It knows nothing of models, text or threads: the driver alone calls it. Nothing is allocated after
 * scheduler_new. */
#ifndef TPD_SERVE_SCHEDULER_H
#define TPD_SERVE_SCHEDULER_H

#include "serve/kv_blocks.h"

/* A sequence as the scheduler sees it; it stands inside the owner's own struct. */
struct sched_entry {
    /* set by the owner before scheduler_add */
    int32_t n_positions; /* positions it may ever take in the cache */
    uint64_t root;       /* of its blocks: see kv_blocks.h */
    uint64_t group;
    /* set by the owner before scheduler_add, and whenever they change between steps */
    const int32_t *tokens; /* borrowed */
    int32_t n_known;       /* tokens whose keys and values are wanted: all so far */
    int32_t out_from;      /* rows from this position on give logits; below n_known */
    int32_t n_guessed;     /* tokens behind the known ones that may turn out to follow */
    bool held;
    bool waits;            /* the last known token is not to be computed yet */
    /* kept by the scheduler */
    bool live;
    int32_t n_done;   /* positions in the cache */
    int32_t n_cached; /* of those, positions that were there before it computed any itself */
    struct kv_table table;
    uint64_t turn; /* virtual time at which its group is served */
    uint64_t age;  /* of two the older has the lower one; 0 before it was live */
    uint64_t step; /* number of the last one in which it had its turn */
    bool set_back; /* gave its blocks up once */
    struct sched_entry *next;
};

/* Rows first … first + n_rows - 1 of a sequence; the last of them may be of guessed tokens. */
struct sched_part {
    struct sched_entry *entry;
    int32_t first, n_rows;
};

struct sched_limits {
    int32_t slots;    /* live sequences */
    int32_t rows;     /* of a step */
    int32_t outs;     /* rows of a step that give logits */
    int32_t n_blocks, block_size, max_blocks; /* of the cache; positions; of one sequence */
};

struct scheduler;

int scheduler_new(struct scheduler **out, const struct sched_limits *limits, struct error *e);
/* Entries must have been removed. */
void scheduler_free(struct scheduler *s);

/* ERR_MEMORY when it may need more blocks than there are in all; then it is not added. */
int scheduler_add(struct scheduler *s, struct sched_entry *entry, struct error *e);
/* Waiting or live: gives slot and blocks back. distrust: what they hold may be wrong. */
void scheduler_remove(struct scheduler *s, struct sched_entry *entry, bool distrust);

/* Admits what can be admitted and hands out the next step; returns how many parts it has, 0 when
 * nobody can go on. Parts are valid until the next call, and each must have been seen to
 * (scheduler_done or scheduler_remove) by then. */
int32_t scheduler_next(struct scheduler *s, const struct sched_part **parts);
/* The first n_right rows of a part were computed from entry->tokens as they are now; those behind them
 * from guesses that were wrong. */
void scheduler_done(struct scheduler *s, const struct sched_part *part, int32_t n_right);

/* Between steps: makes room for n positions of a live entry, as for rows of it. False: there is none yet. */
bool scheduler_reserve(struct scheduler *s, struct sched_entry *entry, int32_t n);

/* What a second cache with the same blocks holds of a live entry (kv_blocks.h). */
int32_t scheduler_second(const struct scheduler *s, const struct sched_entry *entry);
void scheduler_second_has(struct scheduler *s, const struct sched_entry *entry, int32_t n);
void scheduler_second_lost(struct scheduler *s, const struct sched_entry *entry, int32_t n);

struct sched_stats {
    int32_t waiting, live, blocks, blocks_used, blocks_cached;
    uint64_t set_back;               /* how often a sequence gave its blocks up */
    uint64_t tokens_asked, tokens_cached; /* at becoming live: known, and found in the cache */
};
void scheduler_stats(const struct scheduler *s, struct sched_stats *out);

/* Whether the books agree. For tests and debugging. */
bool scheduler_sound(const struct scheduler *s);

#endif
