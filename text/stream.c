/* text/stream.c: ids to text, at once and one by one. */
#include "text/internal.h"

struct token_stream {
    const struct tokenizer *t;
    bool skip_special;
    struct decoding decoding;
};

/* Holes decode to nothing, as does a special token that is skipped. */
static int push(const struct tokenizer *t, struct decoding *d, token_id id, bool skip_special,
                struct error *e) {
    if (id < 0 || id >= t->vocab.n)
        return error_set(e, ERR_PARAMS, "token id %d is out of range: this tokenizer has 0 to %d",
                         id, t->vocab.n - 1);
    const struct vocab_entry *entry = &t->vocab.entries[id];
    if (!entry->present || (skip_special && (entry->flags & VOCAB_SPECIAL))) return 0;
    return decoding_push(d, t->vocab.arena.data + entry->from, entry->size,
                         entry->flags & VOCAB_RAW, e);
}

int tokenizer_decode(const struct tokenizer *t, const token_id *ids, size_t n, bool skip_special,
                     char **out, size_t *size, struct error *e) {
    struct decoding d = {.decoder = &t->decoder};
    int err = 0;
    for (size_t i = 0; i < n && !err; i++) err = push(t, &d, ids[i], skip_special, e);
    if (!err) err = decoding_end(&d, e);
    buf_add_char(&d.out, '\0');
    if (!err && d.out.failed) err = error_set(e, ERR_MEMORY, "no memory to decode text");
    if (!err) {
        *out = d.out.data;
        *size = d.out.size - 1;
        d.out = (struct buf){0};
    }
    decoding_free(&d);
    return err;
}

int token_stream_new(struct token_stream **out, const struct tokenizer *t, bool skip_special,
                     bool after_prompt, struct error *e) {
    struct token_stream *s = calloc(1, sizeof *s);
    if (!s) return error_set(e, ERR_MEMORY, "no memory for a token stream");
    s->t = t;
    s->skip_special = skip_special;
    s->decoding.decoder = &t->decoder;
    s->decoding.after_prompt = after_prompt;
    *out = s;
    return 0;
}

void token_stream_free(struct token_stream *s) {
    if (!s) return;
    decoding_free(&s->decoding);
    free(s);
}

static int give(struct token_stream *s, int err, const char **out, size_t *size) {
    *out = s->decoding.out.data ? s->decoding.out.data : "";
    *size = err ? 0 : s->decoding.out.size;
    return err;
}

int token_stream_push(struct token_stream *s, token_id id, const char **out, size_t *size,
                      struct error *e) {
    s->decoding.out.size = 0;
    return give(s, push(s->t, &s->decoding, id, s->skip_special, e), out, size);
}

int token_stream_end(struct token_stream *s, const char **out, size_t *size, struct error *e) {
    s->decoding.out.size = 0;
    return give(s, decoding_end(&s->decoding, e), out, size);
}

size_t tokenizer_bytes(const struct tokenizer *t, token_id id, uint8_t *out, size_t max) {
    size_t size;
    const char *piece = tokenizer_piece(t, id, &size);
    return piece ? decoder_bytes(&t->decoder, piece, size, t->vocab.entries[id].flags & VOCAB_RAW,
                                 out, max)
                 : 0;
}
