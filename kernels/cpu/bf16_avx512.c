/* Products of bf16 by AVX512-BF16, on weights as they stand in memory: see bf16.h. */
#include "kernels/cpu/bf16.h"
#include "kernels/cpu/vec.h"

#include "kernels/cpu/vec_avx512.h"

#include "kernels/cpu/weights_impl.h"

/* --- x ---------------------------------------------------------------------------------------- */

INLINE vf load_up_to(const float *p, int32_t n) {
    return n >= LANES ? v_load(p) : n > 0 ? v_load_n(p, n) : v_zero();
}

/* A group has word i of each of its n rows side by side, so that a product reads on in one direction. */
BF16 static void prepare_row(uint32_t *to, size_t n, const float *x, int32_t cols) {
    for (int32_t k = 0; k < cols; k += 2 * LANES, to += LANES * n) {
        vi words = i_bf16_joined(load_up_to(x + k, cols - k), load_up_to(x + k + LANES, cols - k - LANES));
        if (n == 1) {
            i_store(to, words);
            continue;
        }
        uint32_t word[LANES];
        i_store(word, words);
        UNROLL for (size_t i = 0; i < LANES; i++) to[i * n] = word[i];
    }
}

static void prepare(const struct narrow_rows *to, const float *x, const struct narrow_part *part) {
    for (int32_t r = part->row; r < part->row_end; r++) {
        int32_t first = group_first(to, r);
        prepare_row(group16_at(to, first, part->col) + (r - first), (size_t)group_size(to, first),
                    x + (size_t)r * (size_t)to->cols + part->col, part->col_end - part->col);
    }
}

INLINE vf x_pair(const uint32_t *x) { return v_cast(i_set1((int)*x)); }
INLINE vf w_pairs(const uint8_t *panel, int32_t pair) { return v_cast(i_load(panel + (size_t)pair * WORD)); }

/* --- one row ---------------------------------------------------------------------------------- */

BF16 static void sums_of_streams(const uint8_t *const *panel, int32_t cols, const void *row, vf *total) {
    const uint32_t *x = row;
    vf sum[MATVEC_STREAMS];
    UNROLL for (int s = 0; s < MATVEC_STREAMS; s++) sum[s] = v_zero();
    for (int32_t i = 0; i < (cols + 1) / 2; i++) {
        vf xi = x_pair(x + i);
        UNROLL for (int s = 0; s < MATVEC_STREAMS; s++)
            sum[s] = v_add_bf16_products(sum[s], w_pairs(panel[s], i), xi);
    }
    UNROLL for (int s = 0; s < MATVEC_STREAMS; s++) total[s] = sum[s];
}

static void matvec16(const struct panels *w, int32_t from, int32_t to, const struct narrow_rows *x,
                     const float *bias, float *y) {
    panels_by_streams(w, from, to, sums_of_streams, x->words, bias, y);
}

/* --- many rows -------------------------------------------------------------------------------- */

/* Registers hold the sums of ROWS rows and BF16_PANELS panels; a chunk of the panels stays in the
 * first-level cache while all rows pass by. */
enum { ROWS = 6, CHUNK = 128 /* pairs of k */ };

/* Up to so many rows are one group, which takes fewer panels at once: each weight is then read once and straight
 * on from memory, AHEAD bytes of which are on their way. */
enum { FEW_BY_TWO = 12, FEW = 24, AHEAD = 8192 };

struct tile16 {
    const uint8_t *w; /* a chunk of the first panel; what follows it is needed next */
    size_t step;      /* bytes from there to that of the next panel */
    int32_t n_pairs;  /* of each panel */
    bool first;
    size_t ahead;             /* what is fetched meanwhile: so many bytes on, */
    int fetch_from, fetch_to; /* of the panels from … to-1 */
};

/* rows and n_panels are constants for the compiler. x: a group's words of the chunk; sums [row][panel]
 * [LANES], the outputs so far. */
BF16 INLINE void tile16_rows(const struct tile16 *t, int rows, int n_panels, const uint32_t *x, float *sums) {
    vf sum[FEW][BF16_PANELS];
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int p = 0; p < n_panels; p++)
            sum[r][p] = t->first ? v_zero() : v_load(sums + (r * BF16_PANELS + p) * LANES);
    const uint8_t *next = t->w + (size_t)t->fetch_from * t->step + t->ahead;
    int n_fetched = t->fetch_to - t->fetch_from;
    for (int32_t i = 0; i < t->n_pairs; i++, x += rows) {
        vf w[BF16_PANELS];
        UNROLL for (int p = 0; p < n_panels; p++) w[p] = w_pairs(t->w + (size_t)p * t->step, i);
        for (int p = 0; p < n_fetched; p++)
            __builtin_prefetch(next + (size_t)p * t->step + (size_t)i * WORD, 0, 3);
        UNROLL for (int r = 0; r < rows; r++) {
            vf xi = x_pair(x + r);
            UNROLL for (int p = 0; p < n_panels; p++)
                sum[r][p] = v_add_bf16_products(sum[r][p], w[p], xi);
        }
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int p = 0; p < n_panels; p++)
            v_store(sums + (r * BF16_PANELS + p) * LANES, sum[r][p]);
}

#define EACH_ROWS(X, p) X(1, p) X(2, p) X(3, p) X(4, p) X(5, p) X(6, p)
#define EACH_FEW_BY_TWO(X, p) X(7, p) X(8, p) X(9, p) X(10, p) X(11, p) X(12, p)
#define EACH_FEW(X, p)                                                                             \
    EACH_FEW_BY_TWO(X, p) X(13, p) X(14, p) X(15, p) X(16, p) X(17, p) X(18, p) X(19, p) X(20, p)  \
    X(21, p) X(22, p) X(23, p) X(24, p)
#define EACH_TILE(X)                                                                               \
    EACH_ROWS(X, 1) EACH_ROWS(X, 2) EACH_ROWS(X, 3) EACH_ROWS(X, 4) EACH_FEW_BY_TWO(X, 2) EACH_FEW(X, 1)
#define TILE16(r, p)                                                                               \
    BF16 static void tile16_##r##_##p(const struct tile16 *t, const uint32_t *x, float *sums) {    \
        tile16_rows(t, r, p, x, sums);                                                             \
    }
EACH_TILE(TILE16)

typedef void tile16_fn(const struct tile16 *t, const uint32_t *x, float *sums);
#define ENTRY(r, p) [p][r] = tile16_##r##_##p,
static tile16_fn *const tiles16[BF16_PANELS + 1][FEW + 1] = {EACH_TILE(ENTRY)};
#undef ENTRY

/* All rows of x by the tile's chunk, which begins at pair i. Each group has a share in fetching, so that
 * memory is read all the while; what one alone reads of four panels the core foresees by itself. */
static void all_rows(struct tile16 *t, int n_panels, const struct narrow_rows *x, int32_t i, float *sums) {
    int32_t n_groups = (x->n_rows + x->group_rows - 1) / x->group_rows;
    for (int32_t g = 0; g < n_groups; g++) {
        int32_t r = g * x->group_rows;
        int32_t rows = group_size(x, r);
        t->fetch_from = g * n_panels / n_groups;
        t->fetch_to = n_groups == 1 && n_panels == BF16_PANELS ? 0 : (g + 1) * n_panels / n_groups;
        tiles16[n_panels][rows](t, group16_at(x, r, 2 * i), sums + (size_t)r * (BF16_PANELS * LANES));
    }
}

/* The outputs of n_panels panels, the first one and those step panels apart from there on. */
static void some_panels(const struct panels *w, int32_t first, int32_t step, int n_panels,
                        const struct narrow_rows *x, const float *bias, float *y, float *sums) {
    int32_t pairs = (w->cols + 1) / 2;
    bool few = x->n_rows <= x->group_rows;
    int32_t chunk = few ? pairs : CHUNK;
    struct tile16 t = {.w = w->data + (size_t)first * w->panel_bytes,
                       .step = (size_t)step * w->panel_bytes,
                       .ahead = few ? AHEAD : CHUNK * WORD};
    for (int32_t i = 0; i < pairs; i += chunk, t.w += (size_t)chunk * WORD) {
        t.n_pairs = pairs - i < chunk ? pairs - i : chunk;
        t.first = i == 0;
        all_rows(&t, n_panels, x, i, sums);
    }
    for (int32_t r = 0; r < x->n_rows; r++)
        for (int i = 0; i < n_panels; i++)
            put_outputs(w, first + i * step, v_load(sums + ((size_t)r * BF16_PANELS + (size_t)i) * LANES),
                        bias, y + (size_t)r * (size_t)w->rows);
}

/* As in panels_by_streams, each of the panels side by side is part of a run that is read straight on. */
static void matmul16(const struct panels *w, int32_t from, int32_t to, const struct narrow_rows *x,
                     const float *bias, float *y, void *scratch) {
    int at_once = x->group_rows <= ROWS ? BF16_PANELS : x->group_rows <= FEW_BY_TWO ? 2 : 1;
    int32_t run = (to - from) / at_once, rest = (to - from) % at_once;
    for (int32_t p = from; p < from + run; p++)
        some_panels(w, p, run, at_once, x, bias, y, scratch);
    if (rest) some_panels(w, to - rest, 1, rest, x, bias, y, scratch);
}

const struct cpu_bf16 cpu_bf16_avx512 = {
    .rows = ROWS,
    .few = FEW,
    .prepare = prepare,
    .matvec = matvec16,
    .matmul = matmul16,
};
