/* serve/logits.h: loops over a row of logits, at the best instruction set of the machine.
 *
 * A row is as long as the vocabulary, and each token that is drawn takes several looks at it, on one
 * thread while the other ranks wait. Every set gives the same bits: sums go by 16 lanes, and nothing is
 * fused. Any thread. */
#ifndef TPD_SERVE_LOGITS_H
#define TPD_SERVE_LOGITS_H

#include <stdbool.h>
#include <stdint.h>

struct logit_loops {
    bool (*all_finite)(const float *x, int32_t n);
    float (*max)(const float *x, int32_t n); /* n > 0 */
    double (*sum)(const float *x, int32_t n);
    /* weights[i] = exp((logits[i] - max) * cold), max being the greatest of them: exactly 1 there, within
     * 2e-7 of it elsewhere, 0 where that is no normal number. weights may be logits. cold is finite. */
    void (*weigh)(const float *logits, int32_t n, float max, float cold, float *weights);
    /* A race: each of ids (NULL: 0 to n - 1) arrives after a time that is exponential with its weight, as above, as
     * rate, made of bits, id and weight alone. Which of the list is the first, and so each with probability weight /
     * sum; those of weight 0 never arrive. -INFINITY is a weight of 0, too. */
    int32_t (*race)(uint64_t bits, const int32_t *ids, const float *logits, int32_t n, float max, float cold);
};

const struct logit_loops *logit_loops(void);

/* logits_SET.c */
extern const struct logit_loops logit_loops_portable, logit_loops_avx2, logit_loops_avx512;

#endif
