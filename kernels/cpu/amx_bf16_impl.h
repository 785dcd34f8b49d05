/* Weights in bf16 by activations in bf16 on tiles: see bf16.h.
 *
 * A step is 32 k: of up to 32 rows of x (two tiles, in halves) and of one or two panels, which are the second
 * operand as they stand in memory. The sums of a chunk of k stay in tiles; a chunk of the panels stays in the
 * first-level cache while all rows pass by. One row is multiplied in the same way.
 *
 * BF16_ROUNDED is the level's bf16.h prepare. */
#include "kernels/cpu/bf16.h"

#include <string.h>

enum {
    STEP_K = 32,
    STEP_BYTES = STEP_K * 2,           /* of a row of x */
    STEP_PANEL = STEP_K * HALF,        /* of a panel */
    CHUNK_STEPS = 16,
    PANELS = 2,                        /* side by side */
    ROW_SUMS = PANELS * LANES
};

/* --- x ---------------------------------------------------------------------------------------- */

/* Row i of n. A group has the 32 columns of a step of all its rows, then those of the next. */
static void round_row(uint32_t *to, size_t n, size_t i, const float *x, int32_t cols) {
    enum { STRETCH = 16 * STEP_K };
    _Alignas(64) uint32_t words[STRETCH / 2];
    for (int32_t k = 0; k < cols; k += STRETCH) {
        int32_t some = cols - k < STRETCH ? cols - k : STRETCH;
        struct narrow_rows one = {words, 1, 1, some};
        BF16_ROUNDED(&one, x + k, &(struct narrow_part){0, 1, 0, some});
        for (int32_t at = 0; at < some; at += STEP_K, to += STEP_K / 2 * n)
            memcpy(to + STEP_K / 2 * i, words + at / 2, STEP_BYTES);
    }
}

static void round_for_tiles(const struct narrow_rows *to, const float *x, const struct narrow_part *part) {
    for (int32_t r = part->row; r < part->row_end; r++) {
        int32_t first = group_first(to, r);
        round_row(group16_at(to, first, part->col), (size_t)group_size(to, first), (size_t)(r - first),
                  x + (size_t)r * (size_t)to->cols + part->col, part->col_end - part->col);
    }
}

/* --- sums ------------------------------------------------------------------------------------- */

/* A chunk of one or two panels. */
struct chunk16 {
    const uint8_t *w[PANELS];
    int n_panels;
    int32_t n_steps;
    const uint8_t *rest[PANELS]; /* the last step's, where it is not whole, else NULL */
    int32_t n_groups, group;     /* each fetches a share of the next chunk */
};

/* The last columns of a panel, where they fill no step, and zeros. */
static const uint8_t *rest_of_panel(const uint8_t *panel, int32_t cols, uint8_t *room) {
    if (cols % STEP_K == 0) return NULL;
    memset(room, 0, STEP_PANEL);
    memcpy(room, panel + (size_t)(cols / STEP_K) * STEP_PANEL, (size_t)round_up(cols % STEP_K, 2) * HALF);
    return room;
}

static int first_half(int n) { return n > 16 ? (n + 1) / 2 : n; }

/* Tiles 0 … 3 are sums (of each half of the rows those of two panels), 4 and 5 rows of x, 6 and 7 panels. */
AMX static void shape_tiles16(int n) {
    struct tile_shapes s = {.palette = 1};
    for (int half = 0; half < 2; half++) {
        int rows = half ? n - first_half(n) : first_half(n);
        for (int p = 0; p < PANELS; p++) tile_shape(&s, 2 * half + p, rows, WORD);
        tile_shape(&s, 4 + half, rows, STEP_BYTES);
        tile_shape(&s, 6 + half, STEP_K / 2, WORD);
    }
    tile_config(&s);
}

INLINE const uint8_t *step_of(const struct chunk16 *t, int p, int32_t step) {
    return step == t->n_steps - 1 && t->rest[p] ? t->rest[p] : t->w[p] + (size_t)step * STEP_PANEL;
}

/* What the same step of the next chunk will read. */
INLINE void fetch_step(const struct chunk16 *t, int p, int32_t step) {
    const uint8_t *next = t->w[p] + (size_t)(CHUNK_STEPS + step) * STEP_PANEL;
    for (int i = 0; i < STEP_PANEL; i += 64) __builtin_prefetch(next + i, 0, 2);
}

/* sums [row][panel][LANES] += n rows of x, from the chunk's first step on. two and halves are constants for the
 * compiler. */
AMX INLINE void add_steps(const struct chunk16 *t, bool two, bool halves, const uint8_t *x, size_t n,
                          float *sums) {
    const size_t stride = ROW_SUMS * sizeof *sums, half = (size_t)first_half((int)n);
    float *low = sums + half * ROW_SUMS;
    tile_load(0, sums, stride);
    if (two) tile_load(1, sums + LANES, stride);
    if (halves) tile_load(2, low, stride);
    if (halves && two) tile_load(3, low + LANES, stride);
    for (int32_t i = 0; i < t->n_steps; i++, x += n * STEP_BYTES) {
        if (t->n_groups > 1 && i % t->n_groups == t->group)
            for (int p = 0; p < t->n_panels; p++) fetch_step(t, p, i);
        tile_load(4, x, STEP_BYTES);
        tile_load(6, step_of(t, 0, i), WORD);
        tile_dot_bf16(0, 4, 6);
        if (two) {
            tile_load(7, step_of(t, 1, i), WORD);
            tile_dot_bf16(1, 4, 7);
        }
        if (halves) {
            tile_load(5, x + half * STEP_BYTES, STEP_BYTES);
            tile_dot_bf16(2, 5, 6);
            if (two) tile_dot_bf16(3, 5, 7);
        }
    }
    tile_store(0, sums, stride);
    if (two) tile_store(1, sums + LANES, stride);
    if (halves) tile_store(2, low, stride);
    if (halves && two) tile_store(3, low + LANES, stride);
}

AMX static void add_chunk(const struct chunk16 *t, const uint8_t *x, size_t n, float *sums) {
    bool two = t->n_panels > 1, halves = n > 16;
    if (two && halves) add_steps(t, true, true, x, n, sums);
    else if (two) add_steps(t, true, false, x, n, sums);
    else if (halves) add_steps(t, false, true, x, n, sums);
    else add_steps(t, false, false, x, n, sums);
}

/* --- matrices --------------------------------------------------------------------------------- */

/* All rows of x by a chunk that begins at a step. shaped: the rows that the tiles are shaped for. */
AMX static void all_rows16(struct chunk16 *t, const struct narrow_rows *x, int32_t step, float *sums, int *shaped) {
    t->n_groups = (x->n_rows + x->group_rows - 1) / x->group_rows;
    for (t->group = 0; t->group < t->n_groups; t->group++) {
        int32_t r = t->group * x->group_rows;
        int n = group_size(x, r);
        if (n != *shaped) shape_tiles16(n);
        *shaped = n;
        const uint8_t *group = (const uint8_t *)group16_at(x, r, step * STEP_K);
        add_chunk(t, group, (size_t)n, sums + (size_t)r * ROW_SUMS);
    }
}

/* The outputs of n_panels panels, step panels apart. */
AMX static void some_panels16(const struct panels *w, int32_t first, int32_t step, int n_panels,
                              const struct narrow_rows *x, const float *bias, float *y, float *sums, int *shaped) {
    _Alignas(64) uint8_t room[PANELS][STEP_PANEL];
    const uint8_t *panel[PANELS], *rest[PANELS];
    int32_t n_steps = (w->cols + STEP_K - 1) / STEP_K;
    memset(sums, 0, (size_t)x->n_rows * ROW_SUMS * sizeof *sums);
    for (int p = 0; p < n_panels; p++) {
        panel[p] = w->data + (size_t)(first + p * step) * w->panel_bytes;
        rest[p] = rest_of_panel(panel[p], w->cols, room[p]);
    }
    for (int32_t i = 0; i < n_steps; i += CHUNK_STEPS) {
        bool last = n_steps - i <= CHUNK_STEPS;
        struct chunk16 t = {.n_panels = n_panels, .n_steps = last ? n_steps - i : CHUNK_STEPS};
        for (int p = 0; p < n_panels; p++) {
            t.w[p] = panel[p] + (size_t)i * STEP_PANEL;
            t.rest[p] = last ? rest[p] : NULL;
        }
        all_rows16(&t, x, i, sums, shaped);
    }
    for (int32_t r = 0; r < x->n_rows; r++)
        for (int p = 0; p < n_panels; p++)
            put_outputs(w, first + p * step, v_load(sums + (size_t)r * ROW_SUMS + (size_t)p * LANES), bias,
                        y + (size_t)r * (size_t)w->rows);
}

/* Two runs of panels are read side by side, each straight on. */
AMX static void matmul16_tiles(const struct panels *w, int32_t from, int32_t to, const struct narrow_rows *x,
                               const float *bias, float *y, void *scratch) {
    int32_t run = (to - from) / PANELS;
    int shaped = 0;
    for (int32_t p = from; p < from + run; p++)
        some_panels16(w, p, run, PANELS, x, bias, y, scratch, &shaped);
    if ((to - from) % PANELS) some_panels16(w, to - 1, 1, 1, x, bias, y, scratch, &shaped);
    tile_release();
}

static void matvec16_tiles(const struct panels *w, int32_t from, int32_t to, const struct narrow_rows *x,
                           const float *bias, float *y) {
    _Alignas(64) float sums[ROW_SUMS];
    matmul16_tiles(w, from, to, x, bias, y, sums);
}

const struct cpu_bf16 BF16_TABLE = {
    .rows = 32,
    .prepare = round_for_tiles,
    .matvec = matvec16_tiles,
    .matmul = matmul16_tiles,
};
