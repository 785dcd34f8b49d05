/* serve/sampler_private.h: what a sampler is made of; for sampler.c, which has the steps from a row of logits
 * to a token, and candidates.c, which goes them on the row's candidates alone. */
#ifndef TPD_SERVE_SAMPLER_PRIVATE_H
#define TPD_SERVE_SAMPLER_PRIVATE_H

#include "serve/logits.h"
#include "serve/sampler.h"

struct sampler {
    const struct sampling *sampling;
    const struct logit_loops *loops;
    int32_t vocab;
    /* Only with penalties: occurrences of each id in history[window_from, window_to). */
    struct count {
        int32_t seen, made; /* in all; of those that were generated */
    } *count;
    size_t window_from, window_to;
    /* Candidates, in the order of their ids; only with temperature and top_k, top_p or min_p. */
    token_id *ids;
    float *weights;
    /* Work space of find_cut: the candidates of one bucket. */
    int32_t *bucket;
    /* Only with logprobs: the row as the model made it. */
    float *raw;
    /* Only with a draft model: its row, in this vocabulary. */
    float *draft;
    /* Only with a grammar. */
    struct grammar_run *run;
    const token_id *ends;
    size_t n_ends;
    uint64_t *allowed; /* [vocab bits] of this row */
    int whole_rows; /* that are asked for before candidates are tried again */
};

/* Moves the window to the end of n tokens, forward or back. history[n_prompt …] was generated. */
void sampler_slide_window(struct sampler *s, const token_id *history, size_t n, size_t n_prompt);
/* What the penalties make of the logit of an id in the window; what a bias makes of one. */
float sampler_penalised(const struct sampler *s, token_id id, float logit);
float sampler_biased(float logit, double bias);
/* Whether some of the row may be left out of a draw: else it is of the whole vocabulary. */
bool sampler_filters(const struct sampling *p);
/* 1 / temperature, as weights are made with it. */
float sampler_cold(const struct sampler *s);
/* Of n candidates (ids, and logits, by ascending ids) those that top_k, temperature, this top_p (1: off) and
 * min_p leave: ids and weights. Returns how many. */
int32_t sampler_filter(struct sampler *s, float *logits, int32_t n, double top_p);
/* The one of n candidates (ids, and logits) that is drawn at a position. ids NULL: of tokens 0 to n - 1, where a logit
 * of -INFINITY is never drawn. */
token_id sampler_draw(const struct sampler *s, const token_id *ids, const float *logits, int32_t n, uint64_t position);
float sampler_floored(double logprob);

#endif
