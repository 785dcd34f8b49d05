#include "kernels/kernels.h"

#include <assert.h>
#include <math.h>

enum { PARTS_MAX = 64 };

static bool is_better(const struct candidates *a, int32_t i, const struct candidates *b, int32_t j) {
    return a->logit[i] > b->logit[j] || (a->logit[i] == b->logit[j] && a->id[i] < b->id[j]);
}

/* The sums of the parts stand on their own maxima. */
static void join_sums(struct candidates *out, const struct candidates *parts, int n, const float factor[2]) {
    out->max = -INFINITY;
    out->strange = out->of = 0;
    out->sum[0] = out->sum[1] = 0;
    for (int p = 0; p < n; p++) {
        out->of += parts[p].of;
        out->strange |= parts[p].strange;
        if (parts[p].max > out->max) out->max = parts[p].max;
    }
    for (int p = 0; p < n; p++)
        for (int i = 0; i < 2 && parts[p].of > 0; i++)
            if (factor[i] > 0)
                out->sum[i] += parts[p].sum[i] * exp(((double)parts[p].max - out->max) * factor[i]);
}

void candidates_join(struct candidates *out, const struct candidates *parts, int n, const float factor[2]) {
    int32_t at[PARTS_MAX] = {0};
    assert(n <= PARTS_MAX);
    join_sums(out, parts, n, factor);
    for (out->n = 0; out->n < CANDIDATES; out->n++) {
        int best = -1;
        for (int p = 0; p < n; p++)
            if (at[p] < parts[p].n && (best < 0 || is_better(&parts[p], at[p], &parts[best], at[best])))
                best = p;
        if (best < 0) return;
        out->id[out->n] = parts[best].id[at[best]];
        out->logit[out->n] = parts[best].logit[at[best]++];
    }
}
