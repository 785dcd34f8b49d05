#include "serve/pace.h"

#include <stdlib.h>
#include <string.h>

enum {
    FEW = 3,         /* measurements that make a size known */
    LONG_AGO = 512,  /* steps: a size that was not measured since is not known any more */
    EXACT = 16,      /* sizes up to here have a place each */
    PART_OF_16 = 3   /* places beyond are this many sixteenths of their size apart */
};

/* The least size of a place. */
static int32_t rows_of(int place) {
    int32_t rows = place + 1;
    if (place < EXACT) return rows;
    rows = EXACT + 1;
    for (; place > EXACT; place--) rows += rows * PART_OF_16 / 16;
    return rows;
}

static int place_of(int32_t rows) {
    int place = rows <= EXACT ? (rows < 1 ? 0 : rows - 1) : EXACT;
    while (rows > EXACT && place + 1 < PACE_SIZES && rows_of(place + 1) <= rows) place++;
    return place;
}

void pace_add(struct pace *p, int32_t rows, double seconds) {
    struct pace_size *s = &p->sizes[place_of(rows)];
    p->steps++;
    if (p->steps - s->last > LONG_AGO) s->n = 0;
    s->seconds[s->n++ % PACE_KEPT] = seconds;
    if (s->n == 2 * PACE_KEPT) s->n = PACE_KEPT; /* the same place of the ring, and full */
    s->last = p->steps;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_of(const struct pace_size *s) {
    double sorted[PACE_KEPT];
    size_t n = s->n < PACE_KEPT ? (size_t)s->n : PACE_KEPT;
    memcpy(sorted, s->seconds, sizeof sorted);
    qsort(sorted, n, sizeof *sorted, compare);
    return sorted[(n - 1) / 2];
}

/* The nearest place with measurements from `place` on in steps of `by`; -1: there is none. */
static int nearest(const struct pace *p, int place, int by) {
    while (place >= 0 && place < PACE_SIZES && p->sizes[place].n == 0) place += by;
    return place < PACE_SIZES ? place : -1;
}

double pace_seconds(const struct pace *p, int32_t rows, double more) {
    int place = place_of(rows), below = nearest(p, place, -1), above = nearest(p, place, 1);
    if (below == place) return median_of(&p->sizes[place]);
    if (below < 0) return above < 0 ? 0 : median_of(&p->sizes[above]);
    double known = median_of(&p->sizes[below]), a_row = known * more;
    int32_t from = rows_of(below);
    int other = above >= 0 ? above : nearest(p, below - 1, -1);
    if (other >= 0) {
        a_row = (median_of(&p->sizes[other]) - known) / (rows_of(other) - from);
        if (a_row < 0) a_row = 0;
    }
    return known + a_row * (rows - from);
}

bool pace_is_known(const struct pace *p, int32_t rows) {
    const struct pace_size *s = &p->sizes[place_of(rows)];
    return s->n >= FEW && p->steps - s->last <= LONG_AGO;
}
