/* text/decode.h: the decoder of a tokenizer file, as a chain of steps through which tokens flow one
 * by one; decoding a whole list and decoding a stream are the same code.
 *
 * A step sees items (one a token at first). Fuse and ByteLevel make all items one; behind them flow
 * fragments of that one item. A step that needs whole items there waits for the end (DECODE_COLLECT
 * is put before it). */
#ifndef TPD_TEXT_DECODE_H
#define TPD_TEXT_DECODE_H

#include "text/buffer.h"
#include "text/pattern.h"

#include <stdint.h>

enum decode_kind {
    DECODE_REPLACE,       /* pattern by text, in each item */
    DECODE_BYTE_FALLBACK, /* a run of "<0xE2>" items: its characters if all of it is UTF-8, else
                             one U+FFFD a byte */
    DECODE_STRIP,         /* up to start, stop of the character text from each item's ends */
    DECODE_METASPACE,     /* text becomes a space; gone in the first item when start is 1 */
    DECODE_BPE_SUFFIX,    /* text becomes a space; nothing in the last item */
    DECODE_JOIN,          /* a space between items: a file without decoder */
    DECODE_BYTE_LEVEL, /* the bytes that the characters stand for; U+FFFD where they are not UTF-8
                        */
    DECODE_FUSE,
    DECODE_COLLECT
};

struct decode_step {
    enum decode_kind kind;
    bool fused; /* fragments of one item come in */
    struct pattern pattern;
    struct buf text;
    size_t start, stop;
};

enum { DECODE_MAX_STEPS = 32 };

struct decoder {
    struct decode_step *steps; /* DECODE_MAX_STEPS */
    size_t n;
};

/* json is null, or the decoder object. Errors are ERR_BAD_FILE without path. */
int decoder_parse(struct decoder *d, const json_t *json, struct error *e);
int decoder_byte_level(struct decoder *d, struct error *e);
int decoder_sentencepiece(struct decoder *d, bool strip_prefix, struct error *e);
void decoder_free(struct decoder *d);

struct decode_state {
    struct buf held, work;
    size_t count; /* items, or characters taken off the front */
};

/* Zeroed at first. */
struct decoding {
    const struct decoder *decoder;
    bool after_prompt;
    size_t taken; /* bytes of pieces so far */
    struct decode_state states[DECODE_MAX_STEPS];
    struct buf out; /* the caller empties it */
    struct regex_scratch *scratch;
};

/* The piece of one token; raw: it is text already, not in the vocabulary's spelling. */
int decoding_push(struct decoding *d, const char *piece, size_t size, bool raw, struct error *e);
int decoding_end(struct decoding *d, struct error *e);
void decoding_free(struct decoding *d);

/* The bytes that one token stands for, whatever is around it; at most max are written. */
size_t decoder_bytes(const struct decoder *d, const char *piece, size_t size, bool raw,
                     uint8_t *out, size_t max);

/* The byte of "<0x41>", or -1. */
int byte_token(const char *piece, size_t size);

#endif
