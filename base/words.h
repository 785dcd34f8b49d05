/* base/words.h: words that people type: is one among the allowed, and "did you mean …" when it is
 * not. Any thread. */
#ifndef TPD_BASE_WORDS_H
#define TPD_BASE_WORDS_H

#include <stdbool.h>
#include <stddef.h>

/* choices: "auto|f32|f16" */
bool word_among(const char *choices, const char *word);

struct suggestion {
    const char *word; /* what was typed */
    const char *best; /* borrowed from the candidates; NULL when none is near */
    int distance;
};

void suggest_start(struct suggestion *s, const char *word);
void suggest_offer(struct suggestion *s, const char *candidate);
/* " (did you mean X?)" or "": the end of an error message. Writes into buf and returns it. */
const char *suggest_text(const struct suggestion *s, char *buf, size_t size);

#endif
