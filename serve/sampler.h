/* serve/sampler.h: from one row of logits to one token.
 *
 * A sampler belongs to one sequence and is used by one thread at a time. It works in this order:
 * the mask of a grammar, penalties, logit_bias, temperature, top_k, top_p, min_p, then one draw. Nothing is ever sorted
 * whole: cuts are found by radix selection, linear in the vocabulary.
 *
 * Random numbers are counter-based: the draw at a position of a generation is a function of the
 * seed, that position and the distribution alone, so it does not depend on what else runs. Two distributions
 * that are alike give the same token mostly: with d their distance (half the sum of |p - q|) at least in a part
 * (1 - d) / (1 + d) of the positions.
 *
 * Penalties look at the last penalty_last_n tokens, prompt included (-1: all, 0: none). An id in
 * that window has its logit divided (positive) or multiplied (negative) by repetition_penalty,
 * once, however often it occurs. Then, for an id that was generated in that window,
 * presence_penalty and frequency_penalty * occurrences are subtracted: as with OpenAI, these two do
 * not count the prompt, whose length would otherwise decide how hard they bite.
 *
 * Log-probabilities are those of the model's own distribution: before penalties, bias, temperature
 * and filters. They are computed in double and floored at -100, so that they are always finite.
 */
#ifndef TPD_SERVE_SAMPLER_H
#define TPD_SERVE_SAMPLER_H

#include "serve/engine.h"

/* 64 random bits (Philox 4x32-10) of a position, which each token's own number is made of. */
uint64_t sampler_bits(uint64_t seed, uint64_t position);

struct sampler;
struct grammar_run;

/* sampling is borrowed and must have passed sampling_check. */
int sampler_new(struct sampler **out, const struct sampling *sampling, int32_t vocab,
                struct error *e);
void sampler_free(struct sampler *s);

/* From here on only tokens that run allows are chosen (sampling has a grammar), and ends [n_ends] only
 * where the text may end: end tokens and stop_token_ids, whatever their bytes are. run is taken over,
 * ends borrowed. With ignore_eos the ends are stop_token_ids alone. A masked token is out before
 * penalties, bias and filters look at the row; its log-probability is told as if there were no mask. */
int sampler_constrain(struct sampler *s, struct grammar_run *run, const token_id *ends,
                      size_t n_ends, struct error *e);
/* Whether a text under a grammar is whole and nothing may follow; history and position as in
 * sampler_pick. */
bool sampler_must_end(struct sampler *s, const token_id *history, size_t n_history,
                      uint64_t position);

/* Chooses the token at position (0 for the first generated one). logits [vocab] is scratch
 * afterwards. history: all tokens so far, of which the last `position` were generated; from call to
 * call it only grows.
 * Fills report with the token and, when asked for, its log-probability and alternatives. A logit
 * that is not finite is ERR_DEVICE and names its row. */
int sampler_pick(struct sampler *s, float *logits, const token_id *history, size_t n_history,
                 uint64_t position, struct token_report *report, struct error *e);

/* What a draft model says will stand at position: the token that sampler_pick would choose from its logits
 * [n_logits <= vocab, the rest is never proposed]. history: all tokens so far and n_open proposals, of which
 * nothing is kept in mind. ERR_PARAMS: nothing can be proposed under the grammar. */
int sampler_propose(struct sampler *s, const float *logits, int32_t n_logits, const token_id *history,
                    size_t n_history, size_t n_open, uint64_t position, token_id *out, struct error *e);

/* The same two where the best of a row were found on the device (struct candidates): what is wanted of the row that
 * gives the token at position, and the token, or SAMPLER_UNDECIDED where the candidates leave open which one the
 * whole row gives. Then that is to be asked for; nothing has changed. A token is the one that the whole row gives,
 * whichever way it came; serve/candidates.c has the reasons. */
enum { SAMPLER_UNDECIDED = 1 };
void sampler_wish(const struct sampler *s, uint64_t position, struct logits_wish *out);
int sampler_pick_few(struct sampler *s, const struct candidates *few, const token_id *history, size_t n_history,
                     uint64_t position, struct token_report *report);
int sampler_propose_few(struct sampler *s, const struct candidates *few, const token_id *history,
                        size_t n_history, size_t n_open, uint64_t position, token_id *out);

/* Fills report for a token that is given (scoring): logits [vocab] are those of the row before it;
 * n_top alternatives (0 … SAMPLING_MAX_LOGPROBS), best first, the lower id first among equals. */
int logprob_report(const float *logits, int32_t vocab, token_id id, int n_top,
                   struct token_report *report, struct error *e);

#endif
