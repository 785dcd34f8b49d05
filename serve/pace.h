/* serve/pace.h: how long a step of so many rows takes here, as far as it was measured.
 *
 * Moving medians, so that neither a slow moment nor yesterday's context is believed for long. Nothing here
 * knows a clock: the driver says what it measured. Driver only; private to serve/. */
#ifndef TPD_SERVE_PACE_H
#define TPD_SERVE_PACE_H

#include <stdbool.h>
#include <stdint.h>

enum { PACE_SIZES = 40, PACE_KEPT = 5 };

struct pace { /* starts as zeros */
    int64_t steps; /* measured so far, of any size */
    struct pace_size {
        double seconds[PACE_KEPT]; /* a ring of the latest */
        int n;
        int64_t last; /* steps when it was measured last */
    } sizes[PACE_SIZES]; /* of 1 … 16 rows each its own, then of about a fifth more rows each */
};

/* A step of `rows` took so long. */
void pace_add(struct pace *p, int32_t rows, double seconds);
/* The median of steps of as many rows; where there was none, from the sizes beside it, and from `more`, what a
 * row more is taken to cost in parts of a smaller step, where there is but one. 0: nothing is known. */
double pace_seconds(const struct pace *p, int32_t rows, double more);
/* Whether steps of this very size were measured, a few times and not long ago. */
bool pace_is_known(const struct pace *p, int32_t rows);

#endif
