#include "serve/stop.h"

#include <stdlib.h>
#include <string.h>

struct pattern {
    const char *text;
    size_t size;
    size_t matched; /* the longest suffix of the text so far that is a prefix of this string */
    size_t *border; /* [size]: of the prefix of length i + 1, the longest proper border */
};

struct stop_matcher {
    int n;
    struct pattern patterns[];
};

static bool pattern_init(struct pattern *p, const char *text) {
    p->text = text;
    p->size = strlen(text);
    p->border = calloc(p->size, sizeof *p->border);
    if (!p->border) return false;
    for (size_t i = 1, k = 0; i < p->size; i++) {
        while (k > 0 && text[i] != text[k]) k = p->border[k - 1];
        if (text[i] == text[k]) k++;
        p->border[i] = k;
    }
    return true;
}

int stop_matcher_new(struct stop_matcher **out, char *const *stops, int n, struct error *e) {
    struct stop_matcher *m = calloc(1, sizeof *m + (size_t)n * sizeof *m->patterns);
    bool ok = m;
    for (int i = 0; i < n && ok; i++) {
        m->n = i + 1;
        ok = pattern_init(&m->patterns[i], stops[i]);
    }
    if (!ok) {
        stop_matcher_free(m);
        return error_set(e, ERR_MEMORY, "no memory for %d stop strings", n);
    }
    *out = m;
    return 0;
}

void stop_matcher_free(struct stop_matcher *m) {
    if (!m) return;
    for (int i = 0; i < m->n; i++) free(m->patterns[i].border);
    free(m);
}

/* True when the pattern is complete with this byte. */
static bool pattern_push(struct pattern *p, char byte) {
    while (p->matched > 0 && p->text[p->matched] != byte) p->matched = p->border[p->matched - 1];
    if (p->text[p->matched] == byte) p->matched++;
    return p->matched == p->size;
}

bool stop_matcher_push(struct stop_matcher *m, const char *text, size_t size, int *which,
                       size_t *used) {
    for (size_t i = 0; i < size && m->n > 0; i++) {
        int found = -1;
        for (int p = 0; p < m->n; p++)
            if (pattern_push(&m->patterns[p], text[i]) &&
                (found < 0 || m->patterns[p].size > m->patterns[found].size))
                found = p;
        if (found < 0) continue;
        *which = found;
        *used = i + 1;
        return true;
    }
    *used = size;
    return false;
}

size_t stop_matcher_held(const struct stop_matcher *m) {
    size_t held = 0;
    for (int i = 0; i < m->n; i++)
        if (m->patterns[i].matched > held) held = m->patterns[i].matched;
    return held;
}
