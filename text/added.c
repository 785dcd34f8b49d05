/* text/added.c: see added.h. */
#include "text/added.h"

#include "text/buffer.h"
#include "text/unicode.h"

static uint32_t *find_child(struct added *a, uint32_t *link, uint8_t byte) {
    while (*link && a->nodes[*link].byte != byte) link = &a->nodes[*link].sibling;
    return link;
}

bool added_put(struct added *a, const char *content, size_t size, struct added_token token) {
    if (a->n_nodes + size + 1 > a->capacity) {
        size_t want = (a->n_nodes + size + 1) * 2;
        struct added_node *nodes = realloc(a->nodes, want * sizeof *nodes);
        if (!nodes) return false;
        a->nodes = nodes;
        a->capacity = want;
    }
    if ((a->n_tokens & (a->n_tokens - 1)) == 0) { /* full at each power of two */
        size_t want = a->n_tokens ? a->n_tokens * 2 : 1;
        struct added_token *tokens = realloc(a->tokens, want * sizeof *tokens);
        if (!tokens) return false;
        a->tokens = tokens;
    }
    static const char word[] = "[" REGEX_WORD "]";
    struct error ignored;
    if (token.single_word && !a->word && regex_new(&a->word, word, sizeof word - 1, &ignored) != 0)
        return false;
    if (a->n_nodes == 0) a->n_nodes = 1;

    uint32_t *link = &a->roots[(uint8_t)content[0]], node = 0;
    for (size_t i = 0; i < size; i++) {
        link = find_child(a, link, (uint8_t)content[i]);
        if (!*link) {
            a->nodes[a->n_nodes] = (struct added_node){0, 0, -1, (uint8_t)content[i]};
            *link = (uint32_t)a->n_nodes++;
        }
        node = *link;
        link = &a->nodes[node].child;
    }
    a->tokens[a->n_tokens] = token;
    a->nodes[node].token = (int32_t)a->n_tokens++;
    return true;
}

void added_free(struct added *a) {
    free(a->tokens);
    free(a->nodes);
    regex_free(a->word);
    *a = (struct added){0};
}

/* The longest token at text[at], or NULL; its size in *size. */
static const struct added_token *longest(const struct added *a, const char *text, size_t n,
                                         size_t *size) {
    int32_t best = -1;
    uint32_t node = a->roots[(uint8_t)text[0]];
    for (size_t i = 0; node; i++) {
        if (a->nodes[node].token >= 0) {
            best = a->nodes[node].token;
            *size = i + 1;
        }
        if (i + 1 == n) break;
        node = a->nodes[node].child;
        while (node && a->nodes[node].byte != (uint8_t)text[i + 1]) node = a->nodes[node].sibling;
    }
    return best < 0 ? NULL : &a->tokens[best];
}

/* 1 when a word character stands at text[at], 0 when not. */
static int word_at(const struct added *a, struct regex_scratch **scratch, const char *text,
                   size_t at, struct error *e) {
    if (!*scratch && !(*scratch = regex_scratch_new()))
        return error_set(e, ERR_MEMORY, "no memory to match a regular expression");
    uint32_t c;
    size_t from, to, n = utf8_next(text + at, &c);
    return regex_find(a->word, *scratch, text + at, n, 0, &from, &to, e);
}

static int beside_word(const struct added *a, const struct added_walk *w,
                       struct regex_scratch **scratch, size_t from, size_t to, struct error *e) {
    int beside = 0;
    if (from > 0) beside = word_at(a, scratch, w->text, utf8_before(w->text, from), e);
    if (beside == 0 && to < w->size) beside = word_at(a, scratch, w->text, to, e);
    return beside;
}

static size_t space_before(const char *text, size_t at) {
    uint32_t c;
    while (at > 0) {
        size_t before = utf8_before(text, at);
        utf8_next(text + before, &c);
        if (!char_is_space(c)) break;
        at = before;
    }
    return at;
}

static size_t space_behind(const char *text, size_t size, size_t at) {
    uint32_t c;
    while (at < size) {
        size_t n = utf8_next(text + at, &c);
        if (!char_is_space(c)) break;
        at += n;
    }
    return at;
}

int added_next(const struct added *a, struct added_walk *w, struct regex_scratch **scratch,
               struct added_match *match, struct error *e) {
    if (a->n_tokens == 0) return 0;
    while (w->at < w->size) {
        size_t size = 0, from = w->at;
        const struct added_token *token = NULL;
        if (a->roots[(uint8_t)w->text[from]])
            token = longest(a, w->text + from, w->size - from, &size);
        if (!token) {
            w->at++;
            continue;
        }
        size_t to = from + size;
        w->at = to;
        if (token->single_word) {
            int beside = beside_word(a, w, scratch, from, to, e);
            if (beside < 0) return beside;
            if (beside) continue;
        }
        if (token->lstrip) from = space_before(w->text, from);
        if (from < w->covered) from = w->covered; /* the last match took that white space */
        if (token->rstrip) to = space_behind(w->text, w->size, to);
        if (to < from) to = from;
        w->covered = to;
        *match = (struct added_match){token->id, from, to};
        return 1;
    }
    return 0;
}
