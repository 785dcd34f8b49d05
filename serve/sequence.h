/* serve/sequence.h: one request being worked on: its tokens, its text, its place in the schedule.
 *
 * Private to serve/; the driver's alone. The engine feeds it rows of logits; it chooses or scores
 * tokens, sends PIECE events, and knows when it is over. */
#ifndef TPD_SERVE_SEQUENCE_H
#define TPD_SERVE_SEQUENCE_H

#include "serve/guess.h"
#include "serve/output.h"
#include "serve/sampler.h"
#include "serve/scheduler.h"

/* What all sequences of an engine share. */
struct sequence_limits {
    const struct tokenizer *tokenizer;
    int32_t vocab, hidden, ctx;
    /* Beyond this length dynamic rope scaling makes keys depend on the prompt's length; 0 = never. */
    int32_t fixed_len;
    const token_id *eos;
    size_t n_eos;
    struct guess_terms guess[GUESS_SOURCES]; /* allowed: where there is such a source */
    struct guess_market *market;             /* the driver's alone */
    struct grammar_vocab *grammar_vocab; /* for requests with a grammar */
};

/* What came out of a row. */
struct outcome {
    float *values;                /* logits [n], scratch once they were taken; of an embed the state */
    int32_t n;
    const struct candidates *few; /* in their place where it has some, n > 0; or NULL */
};

struct sequence {
    struct sched_entry entry; /* the first member: the scheduler hands it out */
    struct gen_request *request;
    const struct sequence_limits *limits;
    struct gen_event *end; /* made at the start, so that it can always be sent */
    size_t max_tokens;     /* how many it may get */
    /* The prompt tokens from score_from on are scored; none when it is n_prompt. */
    size_t score_from;
    bool scheduled; /* the scheduler has it */
    bool started, over;
    bool has_room; /* for a draft model's guesses; the driver's draft_run knows */
    enum finish_reason finish;          /* when over */
    int64_t started_ns, first_token_ns; /* 0 = not yet */
    /* from sequence_start on */
    token_id *tokens; /* prompt and generated */
    size_t n_tokens, token_capacity;
    struct token_report *reports; /* of the generated tokens */
    size_t n_reports, report_capacity;
    struct token_report *prompt_reports;
    size_t n_prompt_reports;
    double *state_sum;           /* [hidden], of an embed */
    struct guesser guesser;      /* what speculation has learnt */
    token_id proposals[GUESS_MOST]; /* a draft model's, of the open round */
    struct sampler *sampler;     /* NULL when max_tokens is 0 */
    struct token_stream *stream; /* likewise */
    struct output *output;
    struct sequence *next; /* in a list of the engine's */
};

/* A waiting sequence: little memory, its entry ready for scheduler_add but for its root. On failure
 * the request is untouched. */
int sequence_new(struct sequence **out, struct gen_request *request,
                 const struct sequence_limits *limits, struct error *e);
/* The root of its blocks: all that keys and values depend on beside the tokens. epoch: how often
 * what the ranks hold was changed. */
uint64_t sequence_root(const struct sequence *s, uint64_t epoch);
/* Frees one that was not started, without END. */
void sequence_drop(struct sequence *s);
/* False for one that asks for nothing that the model computes: start it, then end it. */
bool sequence_needs_steps(const struct sequence *s);
/* Before its first step: takes what it needs to sample and to make text, sends an echoed prompt.
 * Sets over when there is nothing to compute. On failure it must be ended with the error. */
int sequence_start(struct sequence *s, struct error *e);

/* Between steps: guesses what it generates next, into entry.tokens behind those that are known
 * (entry.n_guessed). Where a draft model shall guess, the last token waits (entry.waits), until
 * sequence_guessed says that the first n of proposals are its answer. lacks: tokens that a draft model has not
 * read yet. */
void sequence_guess(struct sequence *s, size_t lacks);
void sequence_guessed(struct sequence *s, int n);
/* Fills proposals[number] from a draft model's row, those before it being there. Fails where nothing can be
 * proposed; SAMPLER_UNDECIDED as in sequence_take_row. */
int sequence_propose(struct sequence *s, int number, const struct outcome *row, struct error *e);
/* Whether it ends with this token. */
bool sequence_ends_at(const struct sequence *s, token_id id);

/* What is wanted of the logits of the row at a position, from entry.out_from on; in a draft model's step, too. */
void sequence_wish(const struct sequence *s, int32_t position, struct logits_wish *out);

/* Takes the outcome of the row at entry.out_from, which moves on: scores the prompt token after it, or chooses the
 * next token. Sets over when that was the last. SAMPLER_UNDECIDED: nothing was done, the row's candidates do not
 * suffice. On failure it must be ended with the error. */
int sequence_take_row(struct sequence *s, const struct outcome *row, struct error *e);

/* Sends the last PIECE and END, frees the sequence; the request is the caller's again. For one that
 * is over, finish is not looked at. error is copied (FINISH_ERROR), else NULL. */
void sequence_end(struct sequence *s, enum finish_reason finish, const struct error *error);

#endif
