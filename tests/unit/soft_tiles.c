#include "tests/unit/soft_tiles.h"

#include "base/dtype.h"

#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_TILES = 8, MAX_ROWS = 16, MAX_BYTES = 64 };

struct tile {
    int rows, row_bytes;
    uint8_t bytes[MAX_ROWS][MAX_BYTES];
};

static _Thread_local struct tile tiles[N_TILES];
static _Thread_local bool in_use;

static void check(bool right, const char *format, ...) {
    if (right) return;
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    abort();
}

bool soft_tiles_in_use(void) { return in_use; }

void soft_tile_release(void) {
    memset(tiles, 0, sizeof tiles);
    in_use = false;
}

void soft_tile_config(const struct tile_shapes *shapes) {
    soft_tile_release();
    check(shapes->palette == 1 && shapes->start_row == 0, "tiles are shaped by palette 1 from row 0, not by %d from %d",
          shapes->palette, shapes->start_row);
    for (int i = 0; i < 14; i++) check(shapes->zero[i] == 0, "byte %d of the tiles' shapes is not 0", i + 2);
    for (int i = 0; i < 16; i++) {
        int rows = shapes->rows[i], bytes = shapes->row_bytes[i];
        check(i < N_TILES || (rows == 0 && bytes == 0), "tile %d is shaped; there are %d", i, N_TILES);
        check(rows <= MAX_ROWS && bytes <= MAX_BYTES && (rows == 0) == (bytes == 0),
              "tile %d cannot have %d rows of %d bytes", i, rows, bytes);
        if (i < N_TILES) tiles[i] = (struct tile){.rows = rows, .row_bytes = bytes};
    }
    in_use = true;
}

static struct tile *tile_of(int tile) {
    check(in_use, "tile %d is used before the tiles have shapes", tile);
    check(tile >= 0 && tile < N_TILES && tiles[tile].rows > 0, "tile %d is used and has no shape", tile);
    return &tiles[tile];
}

void soft_tile_zero(int tile) { memset(tile_of(tile)->bytes, 0, sizeof tiles[tile].bytes); }

void soft_tile_load(int tile, const void *from, size_t stride) {
    struct tile *t = tile_of(tile);
    memset(t->bytes, 0, sizeof t->bytes);
    for (int r = 0; r < t->rows; r++)
        memcpy(t->bytes[r], (const uint8_t *)from + (size_t)r * stride, (size_t)t->row_bytes);
}

void soft_tile_store(int tile, void *to, size_t stride) {
    const struct tile *t = tile_of(tile);
    for (int r = 0; r < t->rows; r++)
        memcpy((uint8_t *)to + (size_t)r * stride, t->bytes[r], (size_t)t->row_bytes);
}

/* --- products --------------------------------------------------------------------------------- */

static void check_shapes(int c, int a, int b) {
    const struct tile *tc = tile_of(c), *ta = tile_of(a), *tb = tile_of(b);
    check(c != a && c != b && a != b, "a product of tiles %d += %d %d needs three tiles", c, a, b);
    check(ta->row_bytes % 4 == 0 && tb->row_bytes % 4 == 0 && tc->row_bytes % 4 == 0,
          "tiles %d, %d or %d have rows that are no whole words", c, a, b);
    check(tc->rows == ta->rows && tc->row_bytes == tb->row_bytes && ta->row_bytes == 4 * tb->rows,
          "tiles of %d x %d and %d x %d (rows x bytes) have no product of %d x %d", ta->rows, ta->row_bytes,
          tb->rows, tb->row_bytes, tc->rows, tc->row_bytes);
}

void soft_tile_dot_int8(int c, int a, int b) {
    check_shapes(c, a, b);
    for (int m = 0; m < tiles[c].rows; m++)
        for (int n = 0; n < tiles[c].row_bytes; n += 4) {
            int32_t sum;
            memcpy(&sum, tiles[c].bytes[m] + n, 4);
            for (int k = 0; k < tiles[a].row_bytes; k++)
                sum += (int8_t)tiles[a].bytes[m][k] * (int8_t)tiles[b].bytes[k / 4][n + k % 4];
            memcpy(tiles[c].bytes[m] + n, &sum, 4);
        }
}

static float flushed(float x) { return fabsf(x) < FLT_MIN ? copysignf(0, x) : x; }

static float bf16_at(const uint8_t *p) {
    uint16_t half;
    memcpy(&half, p, 2);
    return flushed(bf16_to_f32(half));
}

/* The even columns of a are one chain, the odd ones another. */
void soft_tile_dot_bf16(int c, int a, int b) {
    check_shapes(c, a, b);
    for (int m = 0; m < tiles[c].rows; m++)
        for (int n = 0; n < tiles[c].row_bytes; n += 4) {
            float sum, chain[2] = {0, 0};
            for (int k = 0; k < tiles[a].row_bytes; k += 2) {
                int odd = k / 2 % 2;
                chain[odd] = flushed(fmaf(bf16_at(tiles[a].bytes[m] + k),
                                          bf16_at(tiles[b].bytes[k / 4] + n + 2 * odd), chain[odd]));
            }
            memcpy(&sum, tiles[c].bytes[m] + n, 4);
            sum = flushed(flushed(sum) + flushed(chain[0] + chain[1]));
            memcpy(tiles[c].bytes[m] + n, &sum, 4);
        }
}

void soft_round_row(const struct narrow_rows *to, const float *x, const struct narrow_part *part) {
    check(to->n_rows == 1 && part->col == 0 && part->col_end == to->cols, "one row is rounded at a time, whole");
    uint16_t *halves = (uint16_t *)(void *)to->words;
    memset(halves, 0, x16_row_words(to->cols) * 4);
    for (int32_t k = 0; k < to->cols; k++) halves[k] = f32_to_bf16(x[k]);
}
