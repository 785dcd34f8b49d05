/* The race of serve/logits.h, part of logits_impl.h.
 *
 * Who arrives first is settled by arrival() alone, in double. But a token whose u is too far from 1 for its weight
 * cannot be the first, and that is seen from integers: 1 - u <= -log(u) must be below weight * (the best time so
 * far). 1 - u comes from the high words of the hash, whose last step would change nothing in them; the weight is not
 * computed either: 2^x is below the number whose float has the bits (x + 127) * 2^23. Of a vocabulary a few dozen
 * are left to look at. */
#include "kernels/race.h"

typedef uint32_t words __attribute__((vector_size(WIDTH * sizeof(uint32_t))));
typedef uint64_t longs __attribute__((vector_size(WIDTH * sizeof(uint32_t)))); /* half as many */

/* Later than any token of weight 1 arrives, whose u is 2^-53 at least. */
#define LATEST 37

struct race {
    uint64_t bits;
    const float *logits;
    float max, cold;
    double first; /* when the winner arrives */
    int32_t winner;
    float shift; /* of contenders(): the later the first arrives, the higher */
};

static double arrival(uint64_t bits, int32_t id, float weight) {
    uint64_t x = RACE_BEGIN(bits, id);
    RACE_MIX(x);
    return -log((double)(RACE_END(x) + 1) * 0x1p-53) / weight;
}

/* The bits of an upper bound of 2^31 * weight * before are scale_of_bits(cold) * (l - max) + this. What rounding takes
 * off it is below 2^-14 of a power of 2, a quarter of what is added. */
static float shift_of(double before) {
    return (float)((log2(before) + 31 + 127 + 0x1p-12) * 0x1p23);
}

static void look_at(struct race *r, int32_t at, int32_t id) {
    floats weight = {(r->logits[at] - r->max) * r->cold};
    exp_not_above_0(&weight);
    double time = weight[0] > 0 ? arrival(r->bits, id, weight[0]) : INFINITY;
    if (time >= r->first) return;
    r->first = time;
    r->winner = at;
    if (time < LATEST) r->shift = shift_of(time);
}

/* Which of WIDTH logits could be the first. Their own bits are in order, those of even lanes and those of odd ones. */
static inline ints contenders(const struct race *r, longs even, longs odd, const float *logits) {
    RACE_MIX(even);
    RACE_MIX(odd);
    words high = (words)(even >> 32) | (words)(odd & 0xFFFFFFFF00000000u);
    floats rest = __builtin_convertvector((ints)(~high >> 1), floats); /* at most (1 - u) * 2^31 */
    floats bits = (load(logits) - r->max) * r->cold * 1.44269504f * 0x1p23f + r->shift;
    bits = (floats)((ints)bits & (bits > 0));
    return rest <= (floats)__builtin_convertvector(bits, ints);
}

static int32_t race(uint64_t bits, const int32_t *ids, const float *logits, int32_t n, float max, float cold) {
    struct race r = {bits, logits, max, cold, INFINITY, 0, shift_of(LATEST)};
    longs even, odd;
    int32_t i = 0;
    for (int k = 0; k < WIDTH / 2; k++) {
        even[k] = RACE_BEGIN(bits, 2 * k);
        odd[k] = RACE_BEGIN(bits, 2 * k + 1);
    }
    for (; i + WIDTH <= n; i += WIDTH) {
        if (ids) {
            longs pairs;
            memcpy(&pairs, ids + i, sizeof pairs);
            even = ((pairs & 0xFFFFFFFFu) + 1) * RACE_STEP + bits;
            odd = ((pairs >> 32) + 1) * RACE_STEP + bits;
        }
        ints may = contenders(&r, even, odd, logits + i);
        even += WIDTH * RACE_STEP;
        odd += WIDTH * RACE_STEP;
        if (!ANY(may)) continue;
        for (int k = 0; k < WIDTH; k++)
            if (may[k]) look_at(&r, i + k, ids ? ids[i + k] : i + k);
    }
    for (; i < n; i++) look_at(&r, i, ids ? ids[i] : i);
    return r.winner;
}
