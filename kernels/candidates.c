#include "kernels/kernels.h"
#include "kernels/race.h"

#include <assert.h>
#include <math.h>

enum { PARTS_MAX = 64 };

double race_key(const uint32_t bits[2], int32_t id, double x) {
    uint64_t own = RACE_BEGIN((uint64_t)bits[1] << 32 | bits[0], id);
    RACE_MIX(own);
    return x - log(-log((double)(RACE_END(own) + 1) * 0x1p-53));
}

/* What is next of a part: its number, INT32_MAX of none, and what it is worth. */
struct head {
    int32_t at, id;
    double key;
};

static void look(struct head *h, const struct candidates *part, const struct candidates_wish *wish) {
    bool any = h->at < part->n;
    h->id = any ? part->id[h->at] : INT32_MAX;
    h->key = any ? part->logit[h->at] : -INFINITY;
    if (any && wish->cold > 0) h->key = race_key(wish->bits, h->id, h->key * wish->cold);
}

static bool is_better(const struct head *a, const struct head *b) {
    return a->key > b->key || (a->key == b->key && a->id < b->id);
}

/* The sums of the parts stand on their own maxima. */
static void join_sums(struct candidates *out, const struct candidates *parts, int n,
                      const struct candidates_wish *wish) {
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
            if (wish->factor[i] > 0)
                out->sum[i] += parts[p].sum[i] * exp(((double)parts[p].max - out->max) * wish->factor[i]);
}

void candidates_join(struct candidates *out, const struct candidates *parts, int n,
                     const struct candidates_wish *wish) {
    struct head head[PARTS_MAX] = {{0}};
    assert(n > 0 && n <= PARTS_MAX);
    join_sums(out, parts, n, wish);
    for (int p = 0; p < n; p++) look(&head[p], &parts[p], wish);
    for (out->n = 0; out->n < CANDIDATES; out->n++) {
        int best = 0;
        for (int p = 1; p < n; p++)
            if (is_better(&head[p], &head[best])) best = p;
        if (head[best].id == INT32_MAX) return;
        out->id[out->n] = head[best].id;
        out->logit[out->n] = parts[best].logit[head[best].at++];
        look(&head[best], &parts[best], wish);
    }
}
