/* text/pretokenise.c: running the steps; pretokenise_parse.c makes them. */
#include "text/pretokenise.h"

#include "text/unicode.h"

void pieces_free(struct pieces *p) {
    buf_free(&p->text);
    spans_free(&p->spans);
}

/* Collects the parts of one span in turn and joins them as the behavior says. */
struct splitter {
    struct spans *out;
    enum split_behavior behavior;
    bool invert;
    bool open;      /* part is not yet given out */
    bool was_match; /* the last part */
    struct span part;
};

static void give_out(struct splitter *s) {
    if (s->open) spans_add(s->out, s->part.from, s->part.to);
    s->open = false;
}

/* The next part of the span; parts come in order and leave nothing out. */
static void add_part(struct splitter *s, size_t from, size_t to, bool match) {
    match ^= s->invert;
    bool join = false;
    switch (s->behavior) {
    case SPLIT_REMOVED:
        if (!match) spans_add(s->out, from, to);
        return;
    case SPLIT_ISOLATED: spans_add(s->out, from, to); return;
    case SPLIT_CONTIGUOUS: join = match == s->was_match; break;
    case SPLIT_MERGED_WITH_PREVIOUS: join = match && !s->was_match; break;
    case SPLIT_MERGED_WITH_NEXT: join = s->was_match && !match; break;
    }
    if (!join) give_out(s);
    if (!s->open) s->part.from = from;
    s->part.to = to;
    s->open = true;
    s->was_match = match;
}

static int split_span(const struct pre_step *step, const char *text, struct span span,
                      struct spans *out, struct regex_scratch **scratch, struct error *e) {
    struct splitter s = {.out = out, .behavior = step->behavior, .invert = step->invert};
    const char *base = text + span.from;
    size_t size = span.to - span.from, at = 0, done = 0, from, to;
    bool any = false;
    while (at <= size) {
        int found = pattern_find(&step->pattern, scratch, base, size, at, &from, &to, e);
        if (found < 0) return found;
        if (!found) break;
        if (from == to) { /* an empty match cuts, unless the last match ends there */
            uint32_t c;
            at = from < size ? from + utf8_next(base + from, &c) : size + 1;
            if (any && from == done) continue;
        } else at = to;
        if (from > done) add_part(&s, span.from + done, span.from + from, false);
        add_part(&s, span.from + from, span.from + to, true);
        done = to;
        any = true;
    }
    if (done < size) add_part(&s, span.from + done, span.to, false);
    give_out(&s);
    return 0;
}

static void split_length(const struct pre_step *step, const char *text, struct span span,
                         struct spans *out) {
    size_t from = span.from, at = span.from;
    int64_t n = 0;
    uint32_t c;
    while (at < span.to) {
        at += utf8_next(text + at, &c);
        if (++n == step->length || at == span.to) {
            spans_add(out, from, at);
            from = at;
            n = 0;
        }
    }
}

/* One span of in, rewritten to the end of out's text. */
static void rewrite_span(const struct pre_step *step, const char *text, struct span span,
                         bool first, struct buf *out) {
    const char *from = text + span.from;
    size_t size = span.to - span.from;
    switch (step->kind) {
    case PRE_BYTE_LEVEL: bytes_to_chars(out, from, size); return;
    case PRE_PREFIX_SPACE:
        if (*from != ' ') buf_add_char(out, ' ');
        buf_add(out, from, size);
        return;
    case PRE_METASPACE: {
        size_t mark = strlen(step->mark);
        bool marked = *from == ' ' || (size >= mark && memcmp(from, step->mark, mark) == 0);
        bool wanted = step->scheme == PREPEND_ALWAYS || (step->scheme == PREPEND_FIRST && first);
        if (wanted && !marked) buf_add(out, step->mark, mark);
        for (size_t i = 0; i < size; i++) {
            if (from[i] == ' ') buf_add(out, step->mark, mark);
            else buf_add_char(out, from[i]);
        }
        return;
    }
    case PRE_SPLIT:
    case PRE_FIXED_LENGTH: return;
    }
}

int pretokenise(const struct pretokeniser *p, struct pieces *pieces, struct pieces *spare,
                struct regex_scratch **scratch, bool at_start, struct error *e) {
    for (size_t i = 0; i < p->n; i++) {
        const struct pre_step *step = &p->steps[i];
        bool cuts = step->kind == PRE_SPLIT || step->kind == PRE_FIXED_LENGTH;
        spare->text.size = 0;
        spare->spans.n = 0;
        for (size_t j = 0; j < pieces->spans.n; j++) {
            struct span span = pieces->spans.at[j];
            if (step->kind == PRE_SPLIT) {
                int err = split_span(step, pieces->text.data, span, &spare->spans, scratch, e);
                if (err) return err;
            } else if (cuts) split_length(step, pieces->text.data, span, &spare->spans);
            else {
                size_t from = spare->text.size;
                rewrite_span(step, pieces->text.data, span, at_start && span.from == 0,
                             &spare->text);
                spans_add(&spare->spans, from, spare->text.size);
            }
        }
        if (!cuts) buf_swap(&pieces->text, &spare->text);
        struct spans swap = pieces->spans;
        pieces->spans = spare->spans;
        spare->spans = swap;
    }
    if (pieces->text.failed || pieces->spans.failed || spare->text.failed || spare->spans.failed)
        return error_set(e, ERR_MEMORY, "no memory to split text");
    return 0;
}
