/* serve/engine.h: takes generation requests, decides what each step holds, samples, makes text.
 *
 * engine_start makes the ranks and returns; the model loads on the ranks' threads meanwhile. The
 * engine's own thread is rank 0 (the driver). submit, cancel, hold and stats may be called from any
 * thread; callbacks come on rank 0's thread and must only hand over (a mailbox), never block.
 */
#ifndef TPD_SERVE_ENGINE_H
#define TPD_SERVE_ENGINE_H

#include "base/dtype.h"
#include "kernels/kernels.h"
#include "model/model.h"
#include "serve/grammar.h"
#include "text/tokenizer.h"

#include <stdatomic.h>

enum {
    SAMPLING_MAX_STOP = 16,
    STOP_MAX_BYTES = 1024,
    SAMPLING_MAX_IDS = 4096, /* of logit_bias, and of stop_token_ids: each is gone through a token */
    SAMPLING_MAX_LOGPROBS = 20
};

/* Where guesses of what comes next are taken from (serve/guess.h). Tokens are the same with all of them. AUTO:
 * whatever pays best of what there is, if anything does; UNSAID: AUTO where there is a draft model, else OFF. */
enum speculative { SPECULATIVE_UNSAID, SPECULATIVE_OFF, SPECULATIVE_NGRAM, SPECULATIVE_DRAFT, SPECULATIVE_AUTO };

struct logit_bias {
    token_id id;
    float bias;
};

/* How tokens are chosen. sampling_default gives the values of the protocol. Order: penalties, bias,
 * temperature, top_k, top_p, min_p (serve/sampler.h says exactly how).
 *
 * Where a generation ends: at an end token (the model config's and the tokenizer's; not with
 * ignore_eos, then they are tokens without text), at a stop_token_id (always), at the first stop
 * string to be complete (of those complete at the same byte, the longest), after max_tokens, at the
 * context's end. The text never has the stop string or the text of the token that ended it; tokens
 * and n_completion count every token that was sampled, that one included. Special tokens have no
 * text. */
struct sampling {
    int64_t max_tokens; /* -1: to the context's end */
    double temperature; /* 0 = greedy */
    int64_t top_k;      /* <= 0 = off */
    double top_p;       /* 1 = off; 0 keeps the best token */
    double min_p;       /* 0 = off */
    double repetition_penalty, presence_penalty, frequency_penalty;
    int64_t penalty_last_n; /* how many of the last tokens penalties look at, prompt included; -1
                               all (default), 0 none */
    struct logit_bias *logit_bias; /* owned by the request */
    size_t n_logit_bias;
    uint64_t seed;                 /* always set: the daemon draws one when the client gave none */
    char *stop[SAMPLING_MAX_STOP]; /* owned, NUL-terminated, not empty */
    int n_stop;
    token_id *stop_token_ids; /* owned */
    size_t n_stop_token_ids;
    bool ignore_eos;
    enum speculative speculative;
    int logprobs; /* -1 = none; 0 … 20 alternatives beside the chosen token */
    bool echo;    /* the prompt's text (and logprobs) come first: its ids decoded, special tokens
                     included, but for a BOS that it begins with */
    struct grammar *grammar; /* what the answer is held to (serve/grammar.h), shared; or NULL */
};

void sampling_default(struct sampling *s);
/* Frees what it owns and leaves it with nothing to free. */
void sampling_clear(struct sampling *s);
/* Every number in its range and every id below vocab, else ERR_PARAMS with notes field, expected,
 * got. engine_submit calls it. */
int sampling_check(const struct sampling *s, int32_t vocab, struct error *e);

struct token_logprob {
    token_id id;
    float logprob; /* finite: floored at -100 */
};

/* One chosen (or scored) token with its alternatives, best first. */
struct token_report {
    token_id id;
    bool has_logprob; /* false for the first token of a prompt and when none were asked for */
    float logprob;
    int n_top;
    struct token_logprob top[SAMPLING_MAX_LOGPROBS];
};

enum finish_reason { FINISH_STOP, FINISH_LENGTH, FINISH_CANCELLED, FINISH_ERROR, FINISH_COUNT };
/* "stop", "length", "cancelled", "error" */
const char *finish_reason_name(enum finish_reason reason);

/* queue: until the first step; prefill: from there to the first token; decode: from there to the
 * end; tokens_per_s: of decode, the first token not counted; 0 below two tokens. */
struct gen_timings {
    double queue_ms, prefill_ms, decode_ms, tokens_per_s;
    int64_t n_guessed, n_accepted; /* tokens that were guessed ahead, and those that came true */
};

/* What the engine tells of a request. PIECE events come while it runs (only when stream was asked
 * for), then exactly one END. Heap-allocated; whoever gets it frees it with gen_event_free.
 * The pieces put together are END's text and END's tokens. A piece holds the tokens whose text ends
 * in it; tokens whose text is held back (it may become a stop string, or a character is not whole)
 * come with the piece that has the text, tokens of a stop string with the last piece. */
struct gen_event {
    enum { GEN_PIECE, GEN_END } kind;
    char *text; /* whole UTF-8, NUL-terminated; in END: the whole text (echoed prompt included) */
    size_t text_size;
    struct token_report *tokens; /* in PIECE: those since the last piece; in END: all generated */
    size_t n_tokens;
    struct token_report *prompt_tokens; /* END of a score, and of echo with logprobs */
    size_t n_prompt_tokens;
    /* END only */
    enum finish_reason finish;
    float *embedding; /* [n_embedding], of an embed; else NULL */
    size_t n_embedding;
    char *stop;          /* the stop string met, or NULL */
    token_id stop_token; /* the end token or stop_token_id met, or -1 */
    int64_t n_prompt, n_cached, n_completion;
    struct gen_timings timings;
    struct error error; /* FINISH_ERROR */
};

void gen_event_free(struct gen_event *event);

struct gen_request;
typedef void gen_event_fn(struct gen_request *request, struct gen_event *event);

/* Made by the caller (gen_request_new), lent to the engine by engine_submit until its END event has
 * come, then the caller's again to free. */
struct gen_request {
    token_id *prompt; /* owned; n_prompt >= 1, ids checked by engine_submit */
    size_t n_prompt;
    struct sampling sampling; /* its pointers are owned */
    bool stream;
    /* score: no sampling; END reports a token_report for each prompt token from score_from on, with
     * sampling.logprobs alternatives, and FINISH_LENGTH. */
    bool score;
    size_t score_from;
    /* embed: no sampling; END has the mean of the prompt's states after the last norm, or (embed_last) the
     * last token's, of length 1, and FINISH_LENGTH. */
    bool embed, embed_last;
    bool prompt_untold; /* echo with logprobs: without those of the prompt, which another tells */
    gen_event_fn *on_event;
    void *user;
    int32_t adapter; /* slot of the shards (shard_adapter_set), -1: the base alone */
    uint64_t group; /* fairness: requests of one connection share a group */
    /* set by engine_cancel and engine_hold, looked at between steps */
    _Atomic bool cancelled, held;
    /* the engine's own state while it has the request */
    struct sequence *sequence;
    int64_t submitted_ns;
};

struct gen_request *gen_request_new(void);
void gen_request_free(struct gen_request *request);

enum { ENGINE_SLOTS = 16, ENGINE_MAX_QUEUE = 256, ENGINE_STEP_ROWS = 512 };

enum engine_state { ENGINE_LOADING, ENGINE_READY, ENGINE_FAILED, ENGINE_STOPPED };

struct ranks;

/* Work that fills the time between serving steps, a unit at a time (training). The engine calls both
 * functions on rank 0's thread. */
struct engine_background {
    /* Does one unit on the ranks; false when there is nothing to do (engine_wake tells of more). */
    bool (*unit)(void *arg, struct ranks *ranks);
    /* The engine ends: saves what it has and lets go of the ranks' memory. */
    void (*stop)(void *arg, struct ranks *ranks);
    void *arg;
    /* Of the time when requests are live, the part that units get: 0 … 0.9. A unit is begun only
     * between two steps, so a request waits for one unit at the most. */
    double share;
};

struct engine_options {
    const struct model *model;         /* borrowed, outlives the engine */
    const struct tokenizer *tokenizer; /* borrowed */
    /* A smaller model with the same vocabulary that guesses ahead, on the first draft_tp ranks (0: one); or
     * NULL. Borrowed likewise. */
    const struct model *draft;
    int draft_tp;
    int tp;
    struct core_set cores;
    int n_gpus, gpus[PLAN_MAX_RANKS]; /* of rank 0, 1 …, when the ranks are on GPUs (n_gpus = tp); else 0 */
    const char *tuning_path; /* GPUs: where the choice of all-reduces is kept (comm_world_tuning), or NULL */
    int32_t ctx;   /* longest sequence; 0 = the model's max_len, or less where memory is short */
    int32_t slots; /* live sequences; 0 = ENGINE_SLOTS */
    int32_t max_queue;   /* requests beyond slots + max_queue are ERR_OVERLOADED;
                            0 = ENGINE_MAX_QUEUE */
    int32_t step_rows;   /* rows of the largest step; 0 = ENGINE_STEP_ROWS */
    int kv_type;         /* enum dtype (f32, f16, bf16, Q8_0), or -1: f32 for an f32 model, else f16 */
    bool narrow_activations; /* int8 beside quantised weights, bf16 beside bf16 and in attention (kernels.h) */
    size_t kv_memory;    /* bytes of KV cache on a rank; 0 = what slots and ctx ask for */
    double memory_fraction; /* of a rank's memory, what the model may take: weights, a step's activations
                             * and the KV cache, which gets what they leave; 0 = 0.9 on GPUs, and on
                             * CPUs the weights and at most half of what is left */
    size_t memory_limit; /* bytes a rank may hold; 0 = what the machine has */
    int deadline_ms;
    bool debug_alias;
    struct engine_background background; /* unit == NULL: none */
    /* Called on rank 0's thread at READY and at FAILED (with the error); perhaps before
     * engine_start has returned. */
    void (*on_state)(void *user, enum engine_state state, const struct error *error);
    void *user;
};

struct engine;

/* "f32", "f16", "bf16", "q8"; -1 for "auto" and all else. */
int kv_type_from_name(const char *name);

/* Fails at once when the plan is impossible (tp over the heads) or memory cannot suffice. */
int engine_start(struct engine **out, const struct engine_options *options, struct error *e);
/* How large each rank's part would be, memory aside: slots whole contexts. Of options, what has to do with
 * sizes is looked at. Fails as engine_start does. */
int engine_shard_options(struct shard_options *out, const struct engine_options *options,
                         struct error *e);
/* Of a draft model's part, where the model's is so. */
struct shard_options engine_draft_options(const struct model *draft, const struct shard_options *options);
/* drain: ends after all requests; else live ones END with FINISH_CANCELLED. Returns at once; new
 * submits get ERR_SHUTTING_DOWN. Without drain a load under way is given up, which is no failure:
 * on_state is not called. */
void engine_stop(struct engine *engine, bool drain);
/* Waits for the threads and frees. */
void engine_join(struct engine *engine);

/* ERR_CONTEXT when the prompt is longer than the context (a prompt that fills it whole gives no
 * tokens: it is refused too, unless max_tokens is 0 or it is a score), ERR_PARAMS for ids out of
 * range, ERR_OVERLOADED, ERR_SHUTTING_DOWN, ERR_MEMORY for what could never fit. On success the
 * engine has the request until END. */
int engine_submit(struct engine *engine, struct gen_request *request, struct error *e);
/* It ENDs with FINISH_CANCELLED and what it has, within one step. Harmless when the request has
 * ended but was not yet freed. Requests that wait for the model to load are looked at when it
 * has. */
void engine_cancel(struct engine *engine, struct gen_request *request);
/* A held request stays where it is and makes no tokens. */
void engine_hold(struct engine *engine, struct gen_request *request, bool hold);

/* Any thread: fn(arg, ranks) runs on rank 0's thread between two steps, as soon as the model is loaded;
 * then done(arg, error or NULL) on the same thread. For changes of what the ranks hold (adapters): a
 * request submitted after done finds nothing in the prefix cache that was computed before. Live
 * requests must not use what is changed. When the engine ends first, done gets ERR_SHUTTING_DOWN.
 * ERR_MEMORY when it cannot be taken. */
typedef int engine_change_fn(void *arg, struct ranks *ranks, struct error *e);
typedef void engine_changed_fn(void *arg, const struct error *error);
int engine_change(struct engine *engine, engine_change_fn *fn, engine_changed_fn *done, void *arg,
                  struct error *e);
/* The same for what changes nothing that a step computes: the prefix cache stays of use. */
int engine_visit(struct engine *engine, engine_change_fn *fn, engine_changed_fn *done, void *arg,
                 struct error *e);

/* Any thread: the background has work again. */
void engine_wake(struct engine *engine);

struct engine_stats {
    enum engine_state state;
    int tp;
    int32_t ctx, slots, slots_busy, queue;
    /* blocks in use, and blocks that nobody uses but whose content may be of use again */
    int32_t kv_blocks, kv_used, kv_cached, block_size;
    int kv_type;
    uint64_t preemptions; /* times that a request gave its blocks up, to compute them anew later */
    /* prompt tokens that were looked for in the cache, and those that were there */
    uint64_t prefix_queries, prefix_hits;
    uint64_t requests, requests_failed, requests_cancelled, prompt_tokens, completion_tokens;
    uint64_t guessed_tokens, accepted_tokens; /* of requests that have ended */
    double prefill_seconds, decode_seconds;   /* time in steps that did it, drafting included */
    double draft_seconds;                     /* time in steps of the draft model */
    double prefill_tokens_per_s, decode_tokens_per_s; /* over the last 10 s of such work */
    struct {
        char name[96];
        struct mem_use use;
        char loss[256]; /* why the device is lost; "" while it is well */
    } ranks[PLAN_MAX_RANKS];
};
void engine_stats(struct engine *engine, struct engine_stats *out);
/* Adds to the counters of `to` those of an engine that was there before; gauges stay. */
void engine_stats_add(struct engine_stats *to, const struct engine_stats *before);

#endif
