/* text/decode.c: running the chain; decode_parse.c makes it. */
#include "text/decode.h"

#include "text/unicode.h"

#define REPLACEMENT "\xEF\xBF\xBD" /* U+FFFD */

static int emit(struct decoding *d, size_t to, const char *data, size_t size, bool raw,
                struct error *e);

void decoding_free(struct decoding *d) {
    for (size_t i = 0; i < DECODE_MAX_STEPS; i++) {
        buf_free(&d->states[i].held);
        buf_free(&d->states[i].work);
    }
    buf_free(&d->out);
    regex_scratch_free(d->scratch);
    *d = (struct decoding){0};
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

int byte_token(const char *piece, size_t size) {
    if (size != 6 || memcmp(piece, "<0x", 3) != 0 || piece[5] != '>') return -1;
    int high = hex_digit(piece[3]), low = hex_digit(piece[4]);
    return high < 0 || low < 0 ? -1 : high << 4 | low;
}

static int replace(struct decoding *d, size_t at, const char *data, size_t size, struct error *e) {
    const struct decode_step *step = &d->decoder->steps[at];
    struct buf *work = &d->states[at].work;
    work->size = 0;
    int err = pattern_replace(&step->pattern, &d->scratch, data, size, &step->text,
                              pattern_limit(d->taken), work, e);
    return err ? err : emit(d, at + 1, work->data, work->size, false, e);
}

/* A run of bytes has ended. */
static int flush_bytes(struct decoding *d, size_t at, struct error *e) {
    struct buf *held = &d->states[at].held;
    size_t n = held->size;
    int err = 0;
    if (n == 0) return 0;
    held->size = 0;
    if (utf8_check(held->data, n) == n) return emit(d, at + 1, held->data, n, false, e);
    for (size_t i = 0; i < n && !err; i++) err = emit(d, at + 1, REPLACEMENT, 3, false, e);
    return err;
}

static int byte_fallback(struct decoding *d, size_t at, const char *data, size_t size, bool raw,
                         struct error *e) {
    int byte = byte_token(data, size);
    if (byte >= 0) {
        buf_add_char(&d->states[at].held, (char)byte);
        return 0;
    }
    int err = flush_bytes(d, at, e);
    return err ? err : emit(d, at + 1, data, size, raw, e);
}

static bool starts_with(const char *data, size_t size, const struct buf *text) {
    return size >= text->size && text->size > 0 && memcmp(data, text->data, text->size) == 0;
}

static bool ends_with(const char *data, size_t size, const struct buf *text) {
    return size >= text->size && starts_with(data + size - text->size, text->size, text);
}

static int strip_item(struct decoding *d, size_t at, const char *data, size_t size,
                      struct error *e) {
    const struct decode_step *step = &d->decoder->steps[at];
    for (size_t i = 0; i < step->start && starts_with(data, size, &step->text); i++) {
        data += step->text.size;
        size -= step->text.size;
    }
    for (size_t i = 0; i < step->stop && ends_with(data, size, &step->text); i++)
        size -= step->text.size;
    return emit(d, at + 1, data, size, false, e);
}

/* Fragments: what may yet be stripped from the end is held back. state->count is how many
 * characters were taken off the front, or SIZE_MAX once something else has come. */
static int strip_fragment(struct decoding *d, size_t at, const char *data, size_t size,
                          struct error *e) {
    const struct decode_step *step = &d->decoder->steps[at];
    struct decode_state *state = &d->states[at];
    if (d->after_prompt) state->count = SIZE_MAX;
    while (state->count < step->start && starts_with(data, size, &step->text)) {
        data += step->text.size;
        size -= step->text.size;
        state->count++;
    }
    if (size == 0) return 0;
    state->count = SIZE_MAX;
    if (step->stop == 0) return emit(d, at + 1, data, size, false, e);
    state->work.size = 0;
    buf_add(&state->work, state->held.data, state->held.size);
    buf_add(&state->work, data, size);
    size_t keep = state->work.size;
    for (size_t i = 0; i < step->stop && ends_with(state->work.data, keep, &step->text); i++)
        keep -= step->text.size;
    state->held.size = 0;
    buf_add(&state->held, state->work.data + keep, state->work.size - keep);
    return emit(d, at + 1, state->work.data, keep, false, e);
}

static int metaspace(struct decoding *d, size_t at, const char *data, size_t size,
                     struct error *e) {
    const struct decode_step *step = &d->decoder->steps[at];
    struct decode_state *state = &d->states[at];
    bool drop = state->count++ == 0 && step->start && !d->after_prompt;
    state->work.size = 0;
    for (size_t i = 0; i < size;) {
        if (starts_with(data + i, size - i, &step->text)) {
            if (!drop) buf_add_char(&state->work, ' ');
            i += step->text.size;
        } else buf_add_char(&state->work, data[i++]);
    }
    return emit(d, at + 1, state->work.data, state->work.size, false, e);
}

/* Gives the held item out: its suffixes become spaces, or nothing in the last item. */
static int flush_suffixed(struct decoding *d, size_t at, bool last, struct error *e) {
    const struct decode_step *step = &d->decoder->steps[at];
    struct decode_state *state = &d->states[at];
    if (state->count == 0) return 0;
    state->work.size = 0;
    for (size_t i = 0; i < state->held.size;) {
        if (starts_with(state->held.data + i, state->held.size - i, &step->text)) {
            if (!last) buf_add_char(&state->work, ' ');
            i += step->text.size;
        } else buf_add_char(&state->work, state->held.data[i++]);
    }
    return emit(d, at + 1, state->work.data, state->work.size, false, e);
}

static int bpe_suffix(struct decoding *d, size_t at, const char *data, size_t size,
                      struct error *e) {
    struct decode_state *state = &d->states[at];
    int err = flush_suffixed(d, at, false, e);
    state->count = 1;
    state->held.size = 0;
    buf_add(&state->held, data, size);
    return err;
}

static int join(struct decoding *d, size_t at, const char *data, size_t size, struct error *e) {
    int err = 0;
    if (d->states[at].count++ > 0 || d->after_prompt) err = emit(d, at + 1, " ", 1, false, e);
    return err ? err : emit(d, at + 1, data, size, false, e);
}

/* Turns the bytes in held into text as far as they are decided. */
static int flush_utf8(struct decoding *d, size_t at, bool end, struct error *e) {
    struct decode_state *state = &d->states[at];
    size_t from = 0;
    state->work.size = 0;
    while (from < state->held.size) {
        size_t used;
        enum utf8_kind kind = utf8_scan(state->held.data + from, state->held.size - from, &used);
        if (kind == UTF8_CUT && !end) break;
        if (kind == UTF8_WHOLE) buf_add(&state->work, state->held.data + from, used);
        else buf_add(&state->work, REPLACEMENT, 3);
        from += used;
    }
    state->held.size -= from;
    if (from) memmove(state->held.data, state->held.data + from, state->held.size);
    return emit(d, at + 1, state->work.data, state->work.size, false, e);
}

static int byte_level(struct decoding *d, size_t at, const char *data, size_t size, bool raw,
                      struct error *e) {
    struct buf *held = &d->states[at].held;
    size_t before = held->size;
    for (size_t i = 0; i < size && !raw;) { /* one strange character: the item is plain text */
        uint32_t c;
        i += utf8_next(data + i, &c);
        int byte = char_to_byte(c);
        if (byte < 0) raw = true;
        else buf_add_char(held, (char)byte);
    }
    if (raw) {
        held->size = before;
        buf_add(held, data, size);
    }
    return flush_utf8(d, at, false, e);
}

static int emit(struct decoding *d, size_t to, const char *data, size_t size, bool raw,
                struct error *e) {
    if (to == d->decoder->n) {
        buf_add(&d->out, data, size);
        return 0;
    }
    const struct decode_step *step = &d->decoder->steps[to];
    if (step->fused && size == 0) return 0;
    switch (step->kind) {
    case DECODE_REPLACE:
        return raw ? emit(d, to + 1, data, size, true, e) : replace(d, to, data, size, e);
    case DECODE_BYTE_FALLBACK: return byte_fallback(d, to, data, size, raw, e);
    case DECODE_STRIP:
        return step->fused ? strip_fragment(d, to, data, size, e)
                           : strip_item(d, to, data, size, e);
    case DECODE_METASPACE: return metaspace(d, to, data, size, e);
    case DECODE_BPE_SUFFIX: return bpe_suffix(d, to, data, size, e);
    case DECODE_JOIN: return join(d, to, data, size, e);
    case DECODE_BYTE_LEVEL: return byte_level(d, to, data, size, raw, e);
    case DECODE_FUSE: return emit(d, to + 1, data, size, false, e);
    case DECODE_COLLECT: buf_add(&d->states[to].held, data, size); return 0;
    }
    return 0;
}

static int check_memory(const struct decoding *d, struct error *e) {
    bool failed = d->out.failed;
    for (size_t i = 0; i < d->decoder->n; i++)
        failed |= d->states[i].held.failed || d->states[i].work.failed;
    return failed ? error_set(e, ERR_MEMORY, "no memory to decode text") : 0;
}

int decoding_push(struct decoding *d, const char *piece, size_t size, bool raw, struct error *e) {
    d->taken += size;
    int err = emit(d, 0, piece, size, raw, e);
    return err ? err : check_memory(d, e);
}

int decoding_end(struct decoding *d, struct error *e) {
    int err = 0;
    for (size_t i = 0; i < d->decoder->n && !err; i++) {
        struct decode_state *state = &d->states[i];
        switch (d->decoder->steps[i].kind) {
        case DECODE_BYTE_FALLBACK: err = flush_bytes(d, i, e); break;
        case DECODE_BPE_SUFFIX: err = flush_suffixed(d, i, true, e); break;
        case DECODE_BYTE_LEVEL: err = flush_utf8(d, i, true, e); break;
        case DECODE_COLLECT:
            err = emit(d, i + 1, state->held.data, state->held.size, false, e);
            break;
        case DECODE_STRIP: /* what is held is what is stripped */
        case DECODE_REPLACE:
        case DECODE_METASPACE:
        case DECODE_JOIN:
        case DECODE_FUSE: break;
        }
    }
    return err ? err : check_memory(d, e);
}

/* What a token's text becomes in the middle of a text, kept as bytes: ByteLevel and ByteFallback
 * would put U+FFFD for the part of a character. */
size_t decoder_bytes(const struct decoder *d, const char *piece, size_t size, bool raw,
                     uint8_t *out, size_t max) {
    struct decoder chain = {d->steps, 0};
    bool fallback = false, byte_level = false;
    for (size_t i = 0; i < d->n; i++) {
        fallback |= d->steps[i].kind == DECODE_BYTE_FALLBACK;
        byte_level |= d->steps[i].kind == DECODE_BYTE_LEVEL;
        bool per_item = d->steps[i].kind == DECODE_REPLACE ||
                        d->steps[i].kind == DECODE_METASPACE ||
                        d->steps[i].kind == DECODE_BPE_SUFFIX;
        if (chain.n == i && per_item) chain.n = i + 1;
    }
    int byte = fallback ? byte_token(piece, size) : -1;
    if (byte >= 0) {
        if (max > 0) out[0] = (uint8_t)byte;
        return 1;
    }
    struct decoding decoding = {.decoder = &chain, .after_prompt = true, .taken = size};
    struct buf bytes = {0};
    if (emit(&decoding, 0, piece, size, raw, NULL) == 0) decoding_end(&decoding, NULL);
    const struct buf *text = &decoding.out;
    for (size_t i = 0; byte_level && !raw && i < text->size;) {
        uint32_t c;
        i += utf8_next(text->data + i, &c);
        int value = char_to_byte(c);
        if (value < 0) raw = true;
        else buf_add_char(&bytes, (char)value);
    }
    if (byte_level && !raw) text = &bytes;
    size_t n = text->size;
    if (n > 0) memcpy(out, text->data, n < max ? n : max);
    buf_free(&bytes);
    decoding_free(&decoding);
    return n;
}
