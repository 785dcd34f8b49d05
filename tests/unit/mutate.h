/* tests/unit/mutate.h: spoils small files, the same way for the same seed: bits flipped, numbers
 * replaced, pieces cut out or said twice. */
#ifndef TPD_TESTS_MUTATE_H
#define TPD_TESTS_MUTATE_H

#include "tests/unit/tiny_files.h"

static uint64_t seed = 20240229;

UNUSED static uint64_t rnd(uint64_t n) {
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    return seed % n;
}

static const char json_bytes[] = "[]{}\",:0-9e.";

UNUSED static void mutate_once(struct bytes *b) {
    /* clang-format off */
    static const uint64_t extremes[] = {0, 1, 7, 9, 32, 255, 1u << 31, UINT32_MAX, 1ull << 32,
                                        1ull << 62, 1ull << 63, UINT64_MAX, UINT64_MAX - 31};
    /* clang-format on */
    size_t at = b->n ? rnd(b->n) : 0, width;
    switch (rnd(6)) {
    case 0: /* a bit */
        if (b->n) b->data[at] ^= (uint8_t)(1u << rnd(8));
        break;
    case 1: /* a byte, often one that means something in JSON */
        if (b->n) b->data[at] = rnd(2) ? (uint8_t)rnd(256) : (uint8_t)json_bytes[rnd(13)];
        break;
    case 2: /* a number */
        width = rnd(2) ? 8 : 4;
        if (b->n >= width) memcpy(b->data + rnd(b->n - width + 1), &extremes[rnd(13)], width);
        break;
    case 3: /* cut short */ b->n = at; break;
    case 4: /* a piece taken out */
        width = rnd(b->n - at + 1);
        memmove(b->data + at, b->data + at + width, b->n - at - width);
        b->n -= width;
        break;
    case 5: /* a piece said twice */
        width = rnd(64);
        if (at + width > b->n || b->n + width > sizeof b->data) break;
        memmove(b->data + at + width, b->data + at, b->n - at);
        b->n += width;
        break;
    }
}

UNUSED static void mutate(struct bytes *out, const struct bytes *from) {
    memcpy(out->data, from->data, from->n);
    out->n = from->n;
    for (uint64_t i = 1 + rnd(3); i > 0; i--) mutate_once(out);
}

#endif
