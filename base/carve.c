#include "base/carve.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static bool room_for_runs(struct carve_stretch *s, int n) {
    if (n <= s->max_runs) return true;
    int max = 2 * n;
    struct carve_run *grown = realloc(s->runs, (size_t)max * sizeof *grown);
    if (!grown) return false;
    s->runs = grown;
    s->max_runs = max;
    return true;
}

bool carve_add(struct carve *c, uint64_t at, size_t bytes, int tag) {
    assert(bytes > 0 && bytes % CARVE_ALIGN == 0 && at % CARVE_ALIGN == 0);
    if (c->n == c->max) {
        int max = c->max ? 2 * c->max : 8;
        struct carve_stretch *grown = realloc(c->stretches, (size_t)max * sizeof *grown);
        if (!grown) return false;
        c->stretches = grown;
        c->max = max;
    }
    struct carve_stretch s = {.at = at, .bytes = bytes, .free = bytes, .tag = tag};
    if (!room_for_runs(&s, 1)) return false;
    s.runs[s.n_runs++] = (struct carve_run){at, bytes};
    c->stretches[c->n++] = s;
    return true;
}

bool carve_take(struct carve *c, size_t bytes, int tag, uint64_t *out) {
    struct carve_stretch *from = NULL;
    struct carve_run *best = NULL;
    assert(bytes > 0 && bytes % CARVE_ALIGN == 0);
    for (int i = 0; i < c->n; i++) {
        struct carve_stretch *s = &c->stretches[i];
        for (int j = 0; j < s->n_runs && s->tag == tag; j++) {
            struct carve_run *run = &s->runs[j];
            bool better = !best || run->bytes < best->bytes ||
                          (run->bytes == best->bytes && run->at < best->at);
            if (run->bytes < bytes || !better) continue;
            best = run;
            from = s;
        }
    }
    if (!best) return false;
    int which = (int)(best - from->runs);
    if (!room_for_runs(from, from->n_pieces + 2)) return false;
    best = &from->runs[which];
    *out = best->at;
    best->at += bytes;
    best->bytes -= bytes;
    if (best->bytes == 0) {
        from->n_runs--;
        memmove(best, best + 1, (size_t)(from->n_runs - which) * sizeof *best);
    }
    from->free -= bytes;
    from->n_pieces++;
    return true;
}

static struct carve_stretch *find(const struct carve *c, uint64_t at) {
    for (int i = 0; i < c->n; i++) {
        struct carve_stretch *s = &c->stretches[i];
        if (at >= s->at && at - s->at < s->bytes) return s;
    }
    return NULL;
}

const struct carve_stretch *carve_find(const struct carve *c, uint64_t at) { return find(c, at); }

const struct carve_stretch *carve_give(struct carve *c, uint64_t at, size_t bytes) {
    struct carve_stretch *s = find(c, at);
    assert(s && s->n_pieces > 0 && bytes <= s->bytes - s->free);
    int i = 0; /* the first run behind the piece */
    while (i < s->n_runs && s->runs[i].at < at) i++;
    assert(i == s->n_runs || s->runs[i].at >= at + bytes);
    assert(i == 0 || s->runs[i - 1].at + s->runs[i - 1].bytes <= at);
    bool before = i > 0 && s->runs[i - 1].at + s->runs[i - 1].bytes == at;
    bool behind = i < s->n_runs && s->runs[i].at == at + bytes;
    struct carve_run *run = &s->runs[i];
    if (before && behind) {
        run[-1].bytes += bytes + run->bytes;
        s->n_runs--;
        memmove(run, run + 1, (size_t)(s->n_runs - i) * sizeof *run);
    } else if (before) {
        run[-1].bytes += bytes;
    } else if (behind) {
        run->at = at;
        run->bytes += bytes;
    } else {
        memmove(run + 1, run, (size_t)(s->n_runs - i) * sizeof *run);
        *run = (struct carve_run){at, bytes};
        s->n_runs++;
    }
    s->free += bytes;
    s->n_pieces--;
    return s->n_pieces == 0 ? s : NULL;
}

void carve_drop(struct carve *c, const struct carve_stretch *stretch) {
    ptrdiff_t i = stretch - c->stretches;
    assert(i >= 0 && i < c->n && stretch->n_pieces == 0);
    free(stretch->runs);
    c->stretches[i] = c->stretches[--c->n];
}

size_t carve_held(const struct carve *c) {
    size_t bytes = 0;
    for (int i = 0; i < c->n; i++) bytes += c->stretches[i].bytes;
    return bytes;
}

size_t carve_free_bytes(const struct carve *c) {
    size_t bytes = 0;
    for (int i = 0; i < c->n; i++) bytes += c->stretches[i].free;
    return bytes;
}

size_t carve_longest(const struct carve *c, int tag) {
    size_t longest = 0;
    for (int i = 0; i < c->n; i++) {
        const struct carve_stretch *s = &c->stretches[i];
        for (int j = 0; j < s->n_runs && s->tag == tag; j++)
            if (s->runs[j].bytes > longest) longest = s->runs[j].bytes;
    }
    return longest;
}

void carve_close(struct carve *c) {
    for (int i = 0; i < c->n; i++) free(c->stretches[i].runs);
    free(c->stretches);
    *c = (struct carve){0};
}
