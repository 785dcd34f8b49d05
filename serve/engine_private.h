/* serve/engine_private.h: what an engine is made of; for engine.c (all threads) and driver.c (rank
 * 0's thread) alone. */
#ifndef TPD_SERVE_ENGINE_PRIVATE_H
#define TPD_SERVE_ENGINE_PRIVATE_H

#include "serve/draft.h"
#include "serve/pace.h"
#include "serve/scheduler.h"
#include "serve/sequence.h"
#include "serve/sizes.h"

#include <pthread.h>

/* The books are checked after each step in builds with sanitizers, and with debug_alias. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { DEBUG_CHECKS = 1 };
#elif defined(__has_feature)
enum { DEBUG_CHECKS = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) };
#else
enum { DEBUG_CHECKS = 0 };
#endif

/* Tokens a second over the last RATE_WINDOW seconds of work of a kind. */
enum { RATE_WINDOW = 10 };

struct rate {
    double seconds[RATE_WINDOW], tokens[RATE_WINDOW]; /* a ring; a part is a second or a bit more */
    int now;
};

/* What engine_change and engine_visit were asked, oldest first. */
struct change {
    engine_change_fn *fn;
    engine_changed_fn *done;
    void *arg;
    bool visit;
    struct change *next;
};

/* A row more of a step is not free: where it was not measured, about this part of a step of one row. */
#define ROW_COST 0.15

struct engine {
    struct runner *runner; /* owned */
    struct engine_options options;
    struct engine_sizes sizes; /* settled before engine_start returns */
    struct sequence_limits limits;
    token_id eos[CONFIG_MAX_EOS + 1];

    /* Shared by all threads, under lock. */
    pthread_mutex_t lock;
    pthread_cond_t bell; /* for the driver: something below has changed */
    bool rung;
    enum { KEEP_RUNNING, DRAIN, STOP_NOW } stopping;
    struct sequence *inbox, **inbox_end; /* submitted, not yet seen by the driver */
    int32_t n_inbox, n_requests;         /* n_requests: submitted and not ended */
    struct change *changes, **changes_end;
    enum engine_state state;
    struct error failure; /* of ENGINE_FAILED */
    struct engine_stats counters;
    struct rate prefill, decode;
    pthread_cond_t settled; /* for engine_start */
    bool is_settled;
    _Atomic bool abandon; /* a load that is under way has lost its purpose */

    /* The driver's own. */
    struct scheduler *scheduler;
    struct draft *draft;        /* NULL: there is no draft model */
    struct sequence *sequences; /* all that the scheduler has */
    uint64_t epoch;             /* changes made to what the ranks hold */
    bool check_books;           /* after each step; in debugging */
    struct pace pace;           /* of steps that hold no prompts */
    struct guess_market market; /* what guesses cost by that, and what became of them */
    double background_credit;   /* seconds that background work may take while requests are live */
    struct step_buffers {
        int32_t *ids, *pos, *len, *seq, *out_rows; /* [max_rows] */
        int32_t *adapter;                          /* [max_seqs] */
        int32_t *blocks;                           /* [max_seqs, max_blocks] */
        struct sched_part *parts;                  /* [max_seqs] */
        float *logits;                             /* [max_out, vocab] */
        float *states;                             /* [max_out, hidden] */
        struct logits_wish *wishes;                /* [max_out] */
        struct candidates *few;                    /* [max_out] */
    } buffers;
};

/* The driver: settles the sizes, loads the model, serves until the engine is stopped. arg: the
 * engine. */
void engine_drive(void *arg);

#endif
