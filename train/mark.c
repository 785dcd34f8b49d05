#include "train/mark.h"

#include "train/example.h"

#include <stdlib.h>
#include <string.h>

/* A text on its way to tokens. */
struct marking {
    const struct tokenizer *t;
    const struct rendered *r;
    struct token_ids *out;
    size_t from;           /* where the tokens of the text proper begin in out */
    size_t before, behind; /* how many the tokenizer puts around a text */
    struct error *e;
};

static int no_memory(struct error *e) {
    return error_set(e, ERR_MEMORY, "no memory for a record");
}

size_t mark_common(const struct token_ids *a, const struct token_ids *b, size_t from) {
    size_t n = 0;
    while (from + n < a->n && n < b->n && token_of(a->ids[from + n]) == b->ids[n]) n++;
    return n;
}

static int append(struct token_ids *out, const token_id *ids, size_t n, struct error *e) {
    if (out->n + n > out->capacity) {
        token_id *grown = realloc(out->ids, (2 * out->n + n) * sizeof *grown);
        if (!grown) return no_memory(e);
        out->ids = grown;
        out->capacity = 2 * out->n + n;
    }
    if (n > 0) memcpy(out->ids + out->n, ids, n * sizeof *ids);
    out->n += n;
    return 0;
}

/* --- what the tokenizer puts around --------------------------------------------------------------- */

/* Learnt from a text of one letter, with and without. */
static int find_around(struct marking *m) {
    struct token_ids bare = {0}, dressed = {0};
    int err = tokenizer_encode(m->t, "a", 1, false, &bare, m->e);
    if (!err) err = tokenizer_encode(m->t, "a", 1, true, &dressed, m->e);
    size_t extra = !err && dressed.n > bare.n ? dressed.n - bare.n : 0;
    m->before = 0;
    while (m->before < extra && mark_common(&dressed, &bare, m->before) < bare.n) m->before++;
    m->behind = extra - m->before;
    token_ids_free(&bare);
    token_ids_free(&dressed);
    return err;
}

/* --- the tokens of a text that follows another ---------------------------------------------------- */

static size_t leading_spaces(const char *text, size_t size) {
    size_t n = 0;
    while (n < size && text[n] == ' ') n++;
    return n;
}

/* Whether the tokens begin with as many spaces as the text: some tokenizers put one in front. */
static bool same_spaces(const struct tokenizer *t, const token_id *ids, size_t n, const char *text,
                        size_t size) {
    uint8_t bytes[64];
    size_t spaces = 0, got = 0, lead = 0;
    for (size_t i = 0; i < n && got == lead; i++) { /* until one has more than spaces */
        got = tokenizer_bytes(t, ids[i], bytes, sizeof bytes);
        lead = leading_spaces((const char *)bytes, got);
        spaces += lead;
    }
    return spaces == leading_spaces(text, size);
}

/* The tokens of text as it stands behind run_up, where nothing goes over their border. */
static int encode_behind(const struct tokenizer *t, const char *run_up, const char *text, size_t size,
                         bool *good, struct token_ids *out, struct error *e) {
    struct token_ids head = {0}, both = {0};
    size_t n = strlen(run_up);
    char *joined = malloc(n + size + 1);
    if (!joined) return no_memory(e);
    memcpy(joined, run_up, n);
    memcpy(joined + n, text, size);
    int err = tokenizer_encode(t, run_up, n, false, &head, e);
    if (!err) err = tokenizer_encode(t, joined, n + size, false, &both, e);
    *good = !err && mark_common(&both, &head, 0) == head.n &&
            same_spaces(t, both.ids + head.n, both.n - head.n, text, size);
    if (*good) err = append(out, both.ids + head.n, both.n - head.n, e);
    token_ids_free(&head);
    token_ids_free(&both);
    free(joined);
    return err;
}

static int encode_continuation(const struct tokenizer *t, const char *text, size_t size,
                               struct token_ids *out, struct error *e) {
    static const char *const run_ups[] = {"", "\n", ":", "a"};
    bool good = false;
    int err = 0;
    for (size_t i = 0; i < sizeof run_ups / sizeof *run_ups && !good && !err; i++)
        err = encode_behind(t, run_ups[i], text, size, &good, out, e);
    return err || good ? err : tokenizer_encode(t, text, size, false, out, e);
}

/* --- marking -------------------------------------------------------------------------------------- */

static void mark(struct marking *m, size_t begin, size_t end) {
    for (size_t k = begin; k < end; k++) m->out->ids[k] |= TOKEN_TRAINED;
}

/* How many of out's tokens from m->from on are those of the text up to byte `at`; *fits: all of them. */
static int tokens_up_to(struct marking *m, size_t at, size_t *n, bool *fits) {
    struct token_ids part = {0};
    int err = tokenizer_encode(m->t, m->r->text.data, at, false, &part, m->e);
    *n = err ? 0 : mark_common(m->out, &part, m->from);
    *fits = *n == part.n;
    token_ids_free(&part);
    return err;
}

/* Marks the spans in the tokens of the whole text; *fits becomes false at one that has no border. */
static int mark_joint(struct marking *m, bool *fits) {
    const struct spans *learnt = &m->r->learnt;
    int err = 0;
    *fits = true;
    for (size_t i = 0; i < learnt->n && *fits && !err; i++) {
        size_t begin = 0, end = m->out->n - m->from;
        bool ignored;
        if (learnt->at[i].from > 0) err = tokens_up_to(m, learnt->at[i].from, &begin, fits);
        if (!err && *fits && learnt->at[i].to < m->r->text.size)
            err = tokens_up_to(m, learnt->at[i].to, &end, &ignored);
        if (!err && *fits) mark(m, m->from + begin, m->from + end);
    }
    return err;
}

/* From one learnt span to the next, or to the text's end. */
static int add_answer(struct marking *m, size_t i) {
    const struct spans *learnt = &m->r->learnt;
    const char *text = m->r->text.data;
    size_t begin = learnt->at[i].from, to = learnt->at[i].to, at = m->out->n;
    size_t end = i + 1 < learnt->n ? learnt->at[i + 1].from : m->r->text.size;
    int err = encode_continuation(m->t, text + begin, end - begin, m->out, m->e);
    size_t n = err ? 0 : m->out->n - at;
    if (!err && to < end) {
        struct token_ids part = {0};
        err = encode_continuation(m->t, text + begin, to - begin, &part, m->e);
        n = err ? 0 : mark_common(m->out, &part, at);
        token_ids_free(&part);
    }
    mark(m, at, at + n);
    return err;
}

/* The same tokens around, and those of each prompt and answer by itself. */
static int encode_apart(struct marking *m) {
    struct token_ids around = {0};
    size_t begin = m->from - m->before;
    int err = append(&around, m->out->ids + m->out->n - m->behind, m->behind, m->e);
    m->out->n = m->from;
    for (size_t k = begin; k < m->from; k++) m->out->ids[k] = token_of(m->out->ids[k]);
    if (!err && m->r->learnt.at[0].from > 0)
        err = tokenizer_encode(m->t, m->r->text.data, m->r->learnt.at[0].from, false, m->out, m->e);
    for (size_t i = 0; i < m->r->learnt.n && !err; i++) err = add_answer(m, i);
    size_t at = m->out->n;
    if (!err) err = append(m->out, around.ids, around.n, m->e);
    const struct span *last = &m->r->learnt.at[m->r->learnt.n - 1];
    if (!err && last->to == m->r->text.size) mark(m, at, m->out->n);
    token_ids_free(&around);
    return err;
}

int mark_encode(const struct tokenizer *t, const struct rendered *r, bool special, bool all,
                struct token_ids *out, struct error *e) {
    struct marking m = {.t = t, .r = r, .out = out, .from = out->n, .e = e};
    size_t begin = out->n;
    bool fits = true;
    int err = special ? find_around(&m) : 0;
    if (!err) err = tokenizer_encode(t, r->text.data, r->text.size, special, out, e);
    if (err) return err;
    m.from += m.before;
    err = mark_joint(&m, &fits);
    if (!err && !fits) err = encode_apart(&m);
    if (!err && all) mark(&m, begin, out->n);
    return err;
}
