#include "base/words.h"

#include <stdio.h>
#include <string.h>

enum { MAX_WORD = 40 };

bool word_among(const char *choices, const char *word) {
    size_t n = strlen(word);
    for (const char *at = choices;; at++) {
        size_t len = strcspn(at, "|");
        if (len == n && memcmp(at, word, n) == 0) return true;
        at += len;
        if (*at == '\0') return false;
    }
}

static int min3(int a, int b, int c) {
    int m = a < b ? a : b;
    return m < c ? m : c;
}

/* Levenshtein distance of two words of at most MAX_WORD bytes. */
static int edit_distance(const char *a, const char *b) {
    size_t n = strlen(b);
    int row[MAX_WORD + 1];
    for (size_t j = 0; j <= n; j++) row[j] = (int)j;
    for (size_t i = 0; a[i]; i++) {
        int diagonal = row[0];
        row[0] = (int)i + 1;
        for (size_t j = 0; j < n; j++) {
            int above = row[j + 1];
            row[j + 1] = min3(above + 1, row[j] + 1, diagonal + (a[i] != b[j]));
            diagonal = above;
        }
    }
    return row[n];
}

void suggest_start(struct suggestion *s, const char *word) {
    *s = (struct suggestion){.word = word, .distance = MAX_WORD};
}

void suggest_offer(struct suggestion *s, const char *candidate) {
    size_t n = strlen(s->word);
    if (n > MAX_WORD || strlen(candidate) > MAX_WORD) return;
    int distance = edit_distance(s->word, candidate);
    /* More than a third of the word wrong is another word. */
    if (distance > 1 + (int)n / 3 || distance >= s->distance) return;
    s->distance = distance;
    s->best = candidate;
}

const char *suggest_text(const struct suggestion *s, char *buf, size_t size) {
    buf[0] = '\0';
    if (s->best) snprintf(buf, size, " (did you mean %s?)", s->best);
    return buf;
}
