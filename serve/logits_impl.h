/* The loops of serve/logits.h, compiled once for each instruction set: a file defines LOOPS, their name,
 * WIDTH, how many floats its registers hold (a divisor of 16), and ANY(m), whether some lane of m (ints, all
 * bits or none of a lane) is set, and includes this. */
#include "serve/logits.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { LANES = 16, PARTS = LANES / WIDTH };
typedef float floats __attribute__((vector_size(WIDTH * sizeof(float))));
typedef int32_t ints __attribute__((vector_size(WIDTH * sizeof(int32_t))));
typedef double doubles __attribute__((vector_size(WIDTH * sizeof(double))));

#define load(x)                                                                                         \
    ({                                                                                                  \
        floats loaded;                                                                                  \
        memcpy(&loaded, (x), sizeof loaded);                                                            \
        loaded;                                                                                         \
    })

static bool all_finite(const float *x, int32_t n) {
    int32_t i = 0, finite = -1;
    ints all = {0};
    all = ~all;
    for (; i + WIDTH <= n; i += WIDTH) {
        floats v = load(x + i);
        all &= (v <= FLT_MAX) & (v >= -FLT_MAX);
    }
    for (int k = 0; k < WIDTH; k++) finite &= all[k];
    for (; i < n; i++) finite &= -(x[i] <= FLT_MAX && x[i] >= -FLT_MAX);
    return finite != 0;
}

static float max_of(const float *x, int32_t n) {
    float most = x[0];
    int32_t i = 0;
    if (n >= LANES) {
        floats max[PARTS];
        for (int p = 0; p < PARTS; p++) max[p] = load(x + p * WIDTH);
        for (i = LANES; i + LANES <= n; i += LANES)
            for (int p = 0; p < PARTS; p++) {
                floats v = load(x + i + p * WIDTH);
                ints more = v > max[p];
                max[p] = (floats)(((ints)v & more) | ((ints)max[p] & ~more));
            }
        for (int p = 0; p < PARTS; p++)
            for (int k = 0; k < WIDTH; k++) most = max[p][k] > most ? max[p][k] : most;
    }
    for (; i < n; i++) most = x[i] > most ? x[i] : most;
    return most;
}

static double sum_of(const float *x, int32_t n) {
    doubles sums[PARTS] = {0};
    double sum = 0;
    int32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int p = 0; p < PARTS; p++)
            sums[p] += __builtin_convertvector(load(x + i + p * WIDTH), doubles);
    for (; i < n; i++) sum += x[i];
    for (int p = 0; p < PARTS; p++)
        for (int k = 0; k < WIDTH; k++) sum += sums[p][k];
    return sum;
}

/* *x = exp(*x) of numbers that are at most 0. */
static inline void exp_not_above_0(floats *x) {
    const float log2_e = 1.44269504f, ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
    ints normal = *x > -87.0f;
    floats v = (floats)((ints)*x & normal); /* the others are 0 until the end */
    ints power = __builtin_convertvector(v * log2_e - 0.5f, ints);
    floats whole = __builtin_convertvector(power, floats);
    floats r = v - whole * ln2_high - whole * ln2_low;
    floats p = 1.9875691500e-4f * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    floats y = (p * r * r + r + 1.0f) * (floats)((power + 127) << 23);
    *x = (floats)((ints)y & normal);
}

static void weigh(const float *logits, int32_t n, float max, float cold, float *weights) {
    int32_t i = 0;
    for (; i + WIDTH <= n; i += WIDTH) {
        floats w = (load(logits + i) - max) * cold;
        exp_not_above_0(&w);
        memcpy(weights + i, &w, sizeof w);
    }
    for (; i < n; i++) {
        floats w = {(logits[i] - max) * cold};
        exp_not_above_0(&w);
        weights[i] = w[0];
    }
}

#include "serve/race_impl.h"

const struct logit_loops LOOPS = {all_finite, max_of, sum_of, weigh, race};
