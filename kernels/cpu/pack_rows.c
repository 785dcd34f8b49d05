/* Puts 16 rows as files have them side by side into a panel (layout.h). Bits move by words: what a plane's
 * word holds comes from whole words of the file, the same ones in each row, so that the loops over rows are
 * vector code. */
#include "base/dequant.h"
#include "kernels/cpu/layout.h"

#include <assert.h>
#include <string.h>

/* --- a block of each of 16 rows --------------------------------------------------------------- */

/* One word of the file, or of a plane, of each row. */
typedef uint32_t lanes[LANES];

/* The n words from byte `at` of every row on. */
static inline void take_words(lanes *out, const uint8_t *const row[LANES], size_t at, int n) {
    for (int lane = 0; lane < LANES; lane++)
        for (int i = 0; i < n; i++) memcpy(&out[i][lane], row[lane] + at + 4 * (size_t)i, 4);
}

static inline void take_halves(uint16_t *out, const uint8_t *const row[LANES], size_t at) {
    for (int lane = 0; lane < LANES; lane++) memcpy(out + lane, row[lane] + at, 2);
}

/* Words of 2 n codes of 4 bits: the file's n bytes hold codes i (low) and i + n (high). */
static inline void put_nibbles(lanes *to, lanes *from, int n) {
    const uint32_t low = 0x0F0F0F0F, high = 0xF0F0F0F0;
    for (int i = 0; i < n / 8; i++)
        for (int lane = 0; lane < LANES; lane++) {
            uint32_t a = from[2 * i][lane], b = from[2 * i + 1][lane];
            to[i][lane] = (a & low) | (b & low) << 4;
            to[n / 8 + i][lane] = (a >> 4 & low) | (b & high);
        }
}

/* Words of 128 codes of 2 bits: the file's 32 bytes hold codes i, i + 32, i + 64 and i + 96. */
static inline void put_crumbs(lanes *to, lanes *from) {
    const uint32_t two = 0x03030303;
    for (int i = 0; i < 8; i++)
        for (int lane = 0; lane < LANES; lane++) {
            uint32_t word = 0;
            for (int k = 0; k < 4; k++)
                word |= (from[i % 2 * 4 + k][lane] >> (i / 2 * 2) & two) << (2 * k);
            to[i][lane] = word;
        }
}

/* Words of 256 single bits: bit g of the file's 32 bytes is of codes 32 g and following. */
static inline void put_bits(lanes *to, lanes *from) {
    const uint32_t one = 0x01010101;
    for (int g = 0; g < 8; g++)
        for (int lane = 0; lane < LANES; lane++) {
            uint32_t word = 0;
            for (int k = 0; k < 8; k++) word |= (from[k][lane] >> g & one) << k;
            to[g][lane] = word;
        }
}

/* Exchanges bits by bits of their positions: those at mask with those `by` above them. */
static inline uint32_t exchange(uint32_t x, uint32_t mask, int by) {
    uint32_t t = (x >> by ^ x) & mask;
    return x ^ t ^ t << by;
}

/* The word of 32 single bits, which the file has one after the other: bit c goes to 8 (c % 4) + c / 4. */
static inline void put_bits_in_order(lanes *to, lanes *from) {
    for (int lane = 0; lane < LANES; lane++) {
        uint32_t x = from[0][lane];
        x = exchange(x, 0x0000CCCC, 14); /* position bits 4 and 1 */
        x = exchange(x, 0x00AA00AA, 7);  /* 3 and 0 */
        x = exchange(x, 0x0A0A0A0A, 3);  /* 2 and 0 */
        x = exchange(x, 0x0C0C0C0C, 2);  /* 2 and 1 */
        to[0][lane] = x;
    }
}

/* The planes of one block of every row, in the order of the type's layout. */
static inline __attribute__((always_inline)) void put_planes(enum dtype type, lanes *to,
                                                             const uint8_t *const row[LANES],
                                                             size_t at) {
    lanes from[QUANT_BLOCK_MAX / 8];
    switch (type) {
    case DTYPE_Q8_0:
        take_words(from, row, at + 2, 8);
        for (int i = 0; i < 8; i++)
            for (int lane = 0; lane < LANES; lane++) to[i][lane] = from[i][lane] ^ 0x80808080;
        return;
    case DTYPE_Q4_0:
        take_words(from, row, at + 2, 4);
        put_nibbles(to, from, 16);
        return;
    case DTYPE_Q4_1:
        take_words(from, row, at + 4, 4);
        put_nibbles(to, from, 16);
        return;
    case DTYPE_Q5_0:
        take_words(from, row, at + 2, 5);
        put_bits_in_order(to, from);
        put_nibbles(to + 1, from + 1, 16);
        return;
    case DTYPE_Q5_1:
        take_words(from, row, at + 4, 5);
        put_bits_in_order(to, from);
        put_nibbles(to + 1, from + 1, 16);
        return;
    case DTYPE_Q2_K:
        take_words(from, row, at + 16, 16);
        for (int half = 0; half < 2; half++) put_crumbs(to + 8 * half, from + 8 * half);
        return;
    case DTYPE_Q3_K:
        take_words(from, row, at, 24);
        put_bits(to, from);
        for (int half = 0; half < 2; half++) put_crumbs(to + 8 + 8 * half, from + 8 + 8 * half);
        return;
    case DTYPE_Q4_K:
        take_words(from, row, at + 16, 32);
        for (int i = 0; i < 4; i++) put_nibbles(to + 8 * i, from + 8 * i, 32);
        return;
    case DTYPE_Q5_K:
        take_words(from, row, at + 16, 8);
        put_bits(to, from);
        take_words(from, row, at + 48, 32);
        for (int i = 0; i < 4; i++) put_nibbles(to + 8 + 8 * i, from + 8 * i, 32);
        return;
    case DTYPE_Q6_K:
        take_words(from, row, at + 128, 16);
        for (int half = 0; half < 2; half++) put_crumbs(to + 8 * half, from + 8 * half);
        take_words(from, row, at, 32);
        for (int half = 0; half < 2; half++) put_nibbles(to + 16 + 16 * half, from + 16 * half, 64);
        return;
    case DTYPE_F32:
    case DTYPE_F16:
    case DTYPE_BF16:
    case DTYPE_COUNT: break;
    }
    assert(!"a quantised type");
}

/* --- rows ------------------------------------------------------------------------------------- */

/* What is put at once: a block, or so many elements (even) of a plain type; and their bytes in 16 rows. */
enum { PLAIN_PIECE = 64, PIECE_BYTES = 4096 };

static int n_halves(enum dtype type) {
    return !dtype_is_quantised(type) ? 0 : layouts[type].min < 0 ? 1 : 2;
}

static void put_block(enum dtype type, uint8_t *to, const uint8_t *const row[LANES], size_t at) {
    const struct layout *l = &layouts[type];
    const int half[] = {l->d, l->min};
    for (int i = 0; i < n_halves(type); i++, to += 2 * LANES)
        take_halves((uint16_t *)(void *)to, row, at + (size_t)half[i]);
    lanes *words = (lanes *)(void *)to;
    take_words(words, row, at + (size_t)l->scales, l->scale_words);
    put_planes(type, words + l->scale_words, row, at);
}

/* n elements of a plain type. */
static void put_plain(enum dtype type, uint8_t *to, const uint8_t *const row[LANES], size_t at, int n) {
    lanes *words = (lanes *)(void *)to;
    if (type == DTYPE_F16) {
        for (int i = 0; i < n; i++) take_halves((uint16_t *)(void *)(to + 2 * LANES * i), row, at + 2 * (size_t)i);
        return;
    }
    int whole = type == DTYPE_F32 ? n : n / 2; /* words; of bf16 each has two elements */
    take_words(words, row, at, whole);
    if (type == DTYPE_F32 || n % 2 == 0) return;
    uint16_t last[LANES];
    take_halves(last, row, at + 4 * (size_t)whole);
    for (int lane = 0; lane < LANES; lane++) words[whole][lane] = last[lane];
}

/* Lanes first … first+n-1 of fields of `size` bytes a lane. */
static void copy_lanes(uint8_t *to, const uint8_t *from, size_t bytes, size_t size, int first, int n) {
    for (size_t at = size * (size_t)first; at < bytes; at += size * LANES) memcpy(to + at, from + at, size * (size_t)n);
}

static void copy_piece(enum dtype type, uint8_t *to, const uint8_t *from, size_t bytes, int first, int n) {
    size_t halves = type == DTYPE_F16 ? bytes : (size_t)(2 * LANES * n_halves(type));
    copy_lanes(to, from, halves, 2, first, n);
    copy_lanes(to + halves, from + halves, bytes - halves, 4, first, n);
}

void pack_rows(const struct panels *w, uint8_t *panel, const uint8_t *const row[LANES], int first, int n) {
    _Alignas(64) uint8_t apart[PIECE_BYTES];
    bool quantised = dtype_is_quantised(w->type);
    int32_t piece = quantised ? dtype_info(w->type)->block : PLAIN_PIECE;
    for (int32_t k = 0; k < w->cols; k += piece) {
        int32_t end = w->cols - k < piece ? w->cols : k + piece;
        size_t at = dtype_row_bytes(w->type, k);
        uint8_t *there = panel + LANES * at, *to = n == LANES ? there : apart;
        if (quantised) put_block(w->type, to, row, at);
        else put_plain(w->type, to, row, at, end - k);
        if (to == apart)
            copy_piece(w->type, there, apart, layout_panel_bytes(w->type, end) - LANES * at, first, n);
    }
}
