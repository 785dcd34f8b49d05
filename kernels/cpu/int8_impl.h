/* Products of weights' codes with activations in int8: see int8.h for what is summed in what order,
 * layout.h for the panels. A panel's word has 4 codes of each of 16 rows, a word of x 4 codes of one
 * row: one i_dot is 64 products. */
#include "kernels/cpu/int8_codes_impl.h"

#include <float.h>

/* --- x ---------------------------------------------------------------------------------------- */

/* Blocks that are rounded together: as many as a vector has lanes for their scales. */
struct stretch8 {
    int32_t most[LANES]; /* the largest magnitude's bits */
    float times[LANES], scale[LANES];
    _Alignas(64) int8_t codes[LANES * X8_BLOCK];
    int32_t sums[LANES][8]; /* of 4 codes each */
};

/* A number that is none makes its block none: the scale says so, and the outputs. */
INLINE void stretch8_round(struct stretch8 *s, const float *x, int n_blocks) {
    const vi size_bits = i_set1(0x7FFFFFFF);
    memset(s->most, 0, sizeof s->most);
    for (int b = 0; b < n_blocks; b++) {
        vi low = i_load(x + b * X8_BLOCK), high = i_load(x + b * X8_BLOCK + LANES);
        s->most[b] = i_highest(i_max(i_and(low, size_bits), i_and(high, size_bits)));
    }
    vf most = v_cast(i_load(s->most));
    v_store(s->times, v_div(v_set1(127), most));
    v_store(s->scale, v_div(most, v_set1(127)));
    for (int b = 0; b < n_blocks; b++, x += X8_BLOCK) {
        int8_t *codes = s->codes + b * X8_BLOCK;
        float most_here;
        memcpy(&most_here, &s->most[b], 4);
        if (most_here >= 0x1p-100f && most_here <= FLT_MAX) { /* 127 / most is finite */
            vf times = v_set1(s->times[b]);
            i_store_bytes(codes, i_round(v_mul(v_load(x), times)));
            i_store_bytes(codes + LANES, i_round(v_mul(v_load(x + LANES), times)));
        } else { /* nobody misses what is smaller */
            s->scale[b] = most_here < 1 ? 0 : most_here - most_here;
            memset(codes, 0, X8_BLOCK);
        }
    }
    for (int b = 0; b < n_blocks; b += 2)
        i_store(s->sums[b], i_dot(i_set1(0), i_set1(0x01010101), i_load(s->codes + b * X8_BLOCK)));
}

/* Word i of a block goes to to[i * n]. */
INLINE void stretch8_put(const struct stretch8 *s, int n_blocks, uint32_t *to, size_t n) {
    for (int b = 0; b < n_blocks; b++, to += X8_WORDS * n) {
        const int32_t *sums = s->sums[b];
        int32_t low = sums[0] + sums[1] + sums[2] + sums[3];
        int32_t all = low + sums[4] + sums[5] + sums[6] + sums[7];
        uint32_t words[X8_WORDS];
        float scale = s->scale[b], sum = scale * (float)all;
        memcpy(words, s->codes + b * X8_BLOCK, X8_BLOCK);
        memcpy(words + X8_SCALE, &scale, 4);
        memcpy(words + X8_SUM, &sum, 4);
        words[X8_MINUS] = (uint32_t)-all;
        words[X8_MINUS_LOW] = (uint32_t)-low;
        UNROLL for (int i = 0; i < X8_WORDS; i++) to[(size_t)i * n] = words[i];
    }
}

static void quantise(const struct narrow_rows *to, const float *x, const struct narrow_part *part) {
    for (int32_t r = part->row; r < part->row_end; r++) {
        int32_t first = group_first(to, r);
        size_t rows = (size_t)group_size(to, first);
        uint32_t *words = group8_at(to, first, part->col) + (r - first);
        const float *row = x + (size_t)r * (size_t)to->cols;
        struct stretch8 s;
        for (int32_t k = part->col, n; k < part->col_end; k += n * X8_BLOCK) {
            n = (part->col_end - k) / X8_BLOCK < LANES ? (part->col_end - k) / X8_BLOCK : LANES;
            stretch8_round(&s, row + k, n);
            stretch8_put(&s, n, words, rows);
            words += (size_t)n * X8_WORDS * rows;
        }
    }
}

/* --- sums ------------------------------------------------------------------------------------- */

INLINE vi sum_begin(int zero, const uint32_t *x, size_t n, int run, int half) {
    if (zero == MIN) return i_set1(0);
    vi minus = minus_sum(x, n, run, half);
    return zero == EIGHT_BITS ? i_dot8_begin(minus) : i_sll(minus, zero);
}
INLINE vi sum_add(int zero, vi sum, vi codes, vi x) {
    return zero == EIGHT_BITS ? i_dot8(sum, codes, x) : i_dot(sum, codes, x);
}

/* --- one row ---------------------------------------------------------------------------------- */

/* Part i, of so many bytes, of the block that is read next. A block of 256 has its scales and planes
 * far apart; they are read by turns, which the CPU foresees worse than one straight run. */
INLINE void fetch_ahead(const uint8_t *next, int bytes, int i) {
    UNROLL for (int at = 0; at < bytes; at += 64) __builtin_prefetch(next + i * bytes + at, 0, 3);
}

/* Panels side by side. The scales of a block come first, where the places of
 * their bits are constants; then its codes, 32 k after another. */
#define MATVEC8(TYPE, name, RUN, BLOCK, BYTES, ZERO)                                           \
    static void matvec8_##name(const uint8_t *const *panel, int32_t cols, const void *row,     \
                               vf *total) {                                                    \
        const uint32_t *x = row;                                                               \
        enum { RUNS = BLOCK / RUN, HALVES = X8_BLOCK / RUN };                                  \
        const uint8_t *at[MATVEC_STREAMS];                                                     \
        vf all[MATVEC_STREAMS], scale[MATVEC_STREAMS][RUNS], offset[MATVEC_STREAMS][RUNS];     \
        UNROLL for (int s = 0; s < MATVEC_STREAMS; s++) all[s] = v_zero(), at[s] = panel[s];   \
        for (int32_t k = 0; k < cols; k += BLOCK) {                                            \
            UNROLL for (int i = 0; i < RUNS; i++)                                              \
                UNROLL for (int s = 0; s < MATVEC_STREAMS; s++) {                              \
                    struct run r = run_##name(at[s], i * RUN);                                 \
                    scale[s][i] = r.scale;                                                     \
                    if (ZERO == MIN) offset[s][i] = r.offset;                                  \
                }                                                                              \
            for (int i = 0; i < RUNS; i += HALVES, x += X8_WORDS) {                            \
                if (BLOCK == 256)                                                              \
                    UNROLL for (int s = 0; s < MATVEC_STREAMS; s++)                            \
                        fetch_ahead(at[s] + LANES * BYTES, LANES * BYTES / 8, i / HALVES);     \
                vf x_scale = x_float(x + X8_SCALE);                                            \
                UNROLL for (int h = 0; h < HALVES; h++) {                                      \
                    vi sum[MATVEC_STREAMS], begin = sum_begin(ZERO, x, 1, RUN, h);             \
                    struct run r[MATVEC_STREAMS];                                              \
                    UNROLL for (int s = 0; s < MATVEC_STREAMS; s++) {                          \
                        r[s] = run_##name(at[s], (i + h) * RUN);                               \
                        sum[s] = begin;                                                        \
                    }                                                                          \
                    UNROLL for (int j = 0; j < RUN / 4; j++) {                                 \
                        vi xj = x_word(x + h * (RUN / 4) + j);                                 \
                        UNROLL for (int s = 0; s < MATVEC_STREAMS; s++)                        \
                            sum[s] = sum_add(ZERO, sum[s], bytes_##name(&r[s], j), xj);        \
                    }                                                                          \
                    UNROLL for (int s = 0; s < MATVEC_STREAMS; s++) {                          \
                        all[s] = total_add(all[s], sum[s], scale[s][i + h], x_scale);          \
                        if (ZERO == MIN)                                                       \
                            all[s] = v_fma(offset[s][i + h], scaled_sum(x, 1, RUN, h), all[s]); \
                    }                                                                          \
                }                                                                              \
            }                                                                                  \
            UNROLL for (int s = 0; s < MATVEC_STREAMS; s++) at[s] += LANES * BYTES;            \
        }                                                                                      \
        UNROLL for (int s = 0; s < MATVEC_STREAMS; s++) total[s] = all[s];                     \
    }

INT8_TYPES(MATVEC8)

static void matvec8(const struct panels *w, int32_t from, int32_t to, const struct narrow_rows *x,
                    const float *bias, float *y) {
#define ENTRY(TYPE, name, RUN, BLOCK, BYTES, ZERO) [TYPE] = matvec8_##name,
    static streams_fn *const of_type[DTYPE_COUNT] = {INT8_TYPES(ENTRY)};
#undef ENTRY
    panels_by_streams(w, from, to, of_type[w->type], x->words, bias, y);
}

/* --- rows side by side ---------------------------------------------------------------------------- */

/* X(…, n) for each number of rows that a group may have. */
#if INT8_ROWS == 6
#define EACH_ROWS(X, ...)                                                                      \
    X(__VA_ARGS__, 1) X(__VA_ARGS__, 2) X(__VA_ARGS__, 3) X(__VA_ARGS__, 4) X(__VA_ARGS__, 5)  \
    X(__VA_ARGS__, 6)
#elif INT8_ROWS == 3
#define EACH_ROWS(X, ...) X(__VA_ARGS__, 1) X(__VA_ARGS__, 2) X(__VA_ARGS__, 3)
#else
#define EACH_ROWS(X, ...) X(__VA_ARGS__, 1) X(__VA_ARGS__, 2)
#endif

/* In these, rows, n_panels, run and zero are constants for the compiler; x points at the words of a block of a
 * group of `rows` rows, h is which run of the block. */

INLINE void sums_begin(vi (*sum)[INT8_PANELS], int rows, int n_panels, int run, int zero, const uint32_t *x,
                       int h) {
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int p = 0; p < n_panels; p++)
            sum[r][p] = sum_begin(zero, x + r, (size_t)rows, run, h);
}

/* Word j of the run, of each panel. */
INLINE void sums_add(vi (*sum)[INT8_PANELS], int rows, int n_panels, int run, int zero, const uint32_t *x,
                     int h, int j, const vi *w) {
    UNROLL for (int r = 0; r < rows; r++) {
        vi xj = x_word(x + (size_t)(h * (run / 4) + j) * (size_t)rows + r);
        UNROLL for (int p = 0; p < n_panels; p++) sum[r][p] = sum_add(zero, sum[r][p], w[p], xj);
    }
}

INLINE void totals_add(vf (*total)[INT8_PANELS], vi (*sum)[INT8_PANELS], int rows, int n_panels, int run,
                       int zero, const uint32_t *x, int h, const vf *scale, const vf *offset) {
    size_t n = (size_t)rows;
    UNROLL for (int r = 0; r < rows; r++) {
        vf x_scale = x_float(x + X8_SCALE * n + r);
        UNROLL for (int p = 0; p < n_panels; p++)
            total[r][p] = total_add(total[r][p], sum[r][p], scale[p], x_scale);
    }
    if (zero == MIN)
        UNROLL for (int r = 0; r < rows; r++) {
            vf x_sum = scaled_sum(x + r, n, run, h);
            UNROLL for (int p = 0; p < n_panels; p++) total[r][p] = v_fma(offset[p], x_sum, total[r][p]);
        }
}

/* sums: [row][INT8_PANELS][LANES], the outputs so far. */
INLINE void totals_load(vf (*total)[INT8_PANELS], int rows, int n_panels, bool first, const float *sums) {
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int p = 0; p < n_panels; p++)
            total[r][p] = first ? v_zero() : v_load(sums + (r * INT8_PANELS + p) * LANES);
}
INLINE void totals_store(vf (*total)[INT8_PANELS], int rows, int n_panels, float *sums) {
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int p = 0; p < n_panels; p++)
            v_store(sums + (r * INT8_PANELS + p) * LANES, total[r][p]);
}

/* The totals of panels p and q (which is p for a last one alone) to y. */
INLINE void put_totals(const struct panels *w, int32_t p, int32_t q, int32_t n_rows, const float *sums,
                       const float *bias, float *y) {
    size_t ahead = 12 * (size_t)w->rows; /* rows of y lie far apart: their lines are asked for before */
    for (int32_t r = 0; r < n_rows; r++, sums += INT8_PANELS * LANES, y += w->rows) {
        __builtin_prefetch(y + ahead + p * LANES, 1, 3);
        __builtin_prefetch(y + ahead + q * LANES, 1, 3);
        put_outputs(w, p, v_load(sums), bias, y);
        if (q != p) put_outputs(w, q, v_load(sums + LANES), bias, y);
    }
}

/* Where the panel has column k, the first of a block. */
static const uint8_t *panel8_at(const struct panels *w, int32_t panel, int32_t k) {
    return w->data + (size_t)panel * w->panel_bytes + LANES * dtype_row_bytes(w->type, k);
}

#ifdef INT8_FEW_GROUPS
#include "kernels/cpu/int8_few_impl.h"
#endif

/* --- many rows -------------------------------------------------------------------------------- */

/* INT8_CHUNK k of INT8_PANELS panels, unpacked: for each panel, of each 4 k a word of codes, of each
 * run a scale and perhaps an offset. */
struct tile8 {
    uint8_t *codes;        /* [panel][INT8_CHUNK / 4][WORD] */
    float *scale, *offset; /* [panel][INT8_CHUNK / 16][LANES] */
    float *sums;           /* [row][panel][LANES]: the outputs so far */
    int32_t n_k;
    bool first;
    const uint8_t *next[INT8_PANELS]; /* what is unpacked next, to be fetched meanwhile */
    int32_t next_lines;               /* cache lines of each for 32 k */
};
enum { TILE8_CODES = INT8_CHUNK * LANES, TILE8_SCALES = INT8_CHUNK / 16 * LANES };

#define UNPACK(TYPE, name, RUN, BLOCK, BYTES, ZERO)                                            \
    static void unpack_##name(const uint8_t *from, int32_t n_k, uint8_t *codes, float *scale,  \
                              float *offset) {                                                 \
        for (int32_t k = 0; k < n_k; k += BLOCK, from += LANES * BYTES) {                      \
            UNROLL for (int i = 0; i < BLOCK; i += RUN) {                                      \
                struct run r = run_##name(from, i);                                            \
                v_store(scale, r.scale), scale += LANES;                                       \
                if (ZERO == MIN) v_store(offset, r.offset), offset += LANES;                   \
            }                                                                                  \
            for (int i = 0; i < BLOCK; i += RUN) {                                             \
                struct run r = run_##name(from, i);                                            \
                UNROLL for (int j = 0; j < RUN / 4; j++, codes += WORD)                        \
                    i_store(codes, bytes_##name(&r, j));                                       \
            }                                                                                  \
        }                                                                                      \
    }

INT8_TYPES(UNPACK)

/* x: a group's. */
INLINE void tile8_rows(const struct tile8 *t, int panel, int rows, int n_panels, int run, int zero,
                       const uint32_t *x, float *sums) {
    vf total[INT8_ROWS][INT8_PANELS];
    const uint8_t *codes = t->codes + panel * TILE8_CODES;
    const float *scale = t->scale + panel * TILE8_SCALES, *offset = t->offset + panel * TILE8_SCALES;
    sums += panel * LANES;
    totals_load(total, rows, n_panels, t->first, sums);
    for (int32_t k = 0; k < t->n_k; k += X8_BLOCK, x += X8_WORDS * rows) {
        for (int32_t i = 0; i < t->next_lines; i++)
            for (int p = panel; p < panel + n_panels; p++)
                __builtin_prefetch(t->next[p] + 64 * (k / X8_BLOCK * t->next_lines + i), 0, 2);
        /* One or two rounds: gcc unrolls them, and would warn of a wish to. */
        for (int h = 0; h < X8_BLOCK / run; h++, scale += LANES, offset += LANES) {
            vi sum[INT8_ROWS][INT8_PANELS];
            vf scales[INT8_PANELS], offsets[INT8_PANELS];
            sums_begin(sum, rows, n_panels, run, zero, x, h);
            UNROLL for (int j = 0; j < run / 4; j++, codes += WORD) {
                vi w[INT8_PANELS];
                UNROLL for (int p = 0; p < n_panels; p++) w[p] = i_load(codes + p * TILE8_CODES);
                sums_add(sum, rows, n_panels, run, zero, x, h, j, w);
            }
            UNROLL for (int p = 0; p < n_panels; p++) {
                scales[p] = v_load(scale + p * TILE8_SCALES);
                if (zero == MIN) offsets[p] = v_load(offset + p * TILE8_SCALES);
            }
            totals_add(total, sum, rows, n_panels, run, zero, x, h, scales, offsets);
        }
    }
    totals_store(total, rows, n_panels, sums);
}

/* The inner loop knows a type by its runs and its zero. */
#define TILE8(RUN, ZERO, n)                                                                    \
    static void tile8_##RUN##_##ZERO##_##n(const struct tile8 *t, const uint32_t *x,           \
                                           float *sums) {                                      \
        UNROLL for (int p = 0; p < INT8_PANELS; p += INT8_SIDE)                                \
            tile8_rows(t, p, n, INT8_SIDE, RUN, ZERO, x, sums);                                \
    }
EACH_ROWS(TILE8, 32, EIGHT_BITS)
EACH_ROWS(TILE8, 32, 3)
EACH_ROWS(TILE8, 32, 4)
EACH_ROWS(TILE8, 32, MIN)
EACH_ROWS(TILE8, 16, 2)
EACH_ROWS(TILE8, 16, 5)
EACH_ROWS(TILE8, 16, MIN)

typedef void tile8_fn(const struct tile8 *t, const uint32_t *x, float *sums);
typedef void unpack_fn(const uint8_t *from, int32_t n_k, uint8_t *codes, float *scale,
                       float *offset);
struct loops8 {
    unpack_fn *unpack;
    tile8_fn *of_rows[INT8_ROWS + 1];
};

static const struct loops8 *loops8_of(enum dtype type) {
#define ROWS(RUN, ZERO, n) [n] = tile8_##RUN##_##ZERO##_##n,
#define ENTRY(TYPE, name, RUN, BLOCK, BYTES, ZERO) \
    [TYPE] = {unpack_##name, {EACH_ROWS(ROWS, RUN, ZERO)}},
    static const struct loops8 of_type[DTYPE_COUNT] = {INT8_TYPES(ENTRY)};
#undef ENTRY
#undef ROWS
    return &of_type[type];
}

/* Panels p and q (which is p for a last one alone); next: the panel after them. */
static void two_panels8(const struct panels *w, int32_t p, int32_t q, int32_t next,
                        const struct narrow_rows *x, struct tile8 *t) {
    const struct loops8 *loops = loops8_of(w->type);
    for (int32_t k = 0; k < w->cols; k += INT8_CHUNK) {
        bool last = w->cols - k <= INT8_CHUNK;
        t->n_k = last ? w->cols - k : INT8_CHUNK;
        t->first = k == 0;
        loops->unpack(panel8_at(w, p, k), t->n_k, t->codes, t->scale, t->offset);
        loops->unpack(panel8_at(w, q, k), t->n_k, t->codes + TILE8_CODES, t->scale + TILE8_SCALES,
                      t->offset + TILE8_SCALES);
        t->next[0] = panel8_at(w, last ? next : p, last ? 0 : k + INT8_CHUNK);
        t->next[1] = panel8_at(w, last ? next + (q - p) : q, last ? 0 : k + INT8_CHUNK);
        t->next_lines = panel8_lines(w);
        for (int32_t r = 0; r < x->n_rows; r += x->group_rows, t->next_lines = 0) {
            int32_t rows = group_size(x, r);
            loops->of_rows[rows](t, group8_at(x, r, k), t->sums + (size_t)r * (INT8_PANELS * LANES));
        }
    }
}

static void matmul8(const struct panels *w, int32_t from, int32_t to, const struct narrow_rows *x,
                    const float *bias, float *y, void *scratch) {
#ifdef INT8_FEW_GROUPS
    if (is_few8(w, x)) {
        matmul8_few(w, from, to, x, bias, y, scratch);
        return;
    }
#endif
    struct tile8 t = {.codes = scratch};
    t.scale = (float *)(void *)(t.codes + INT8_PANELS * TILE8_CODES);
    t.offset = t.scale + INT8_PANELS * TILE8_SCALES;
    t.sums = t.offset + INT8_PANELS * TILE8_SCALES;
    for (int32_t p = from; p < to; p += 2) {
        bool alone = p + 1 == to;
        two_panels8(w, p, alone ? p : p + 1, p + 2 < to ? p + 2 : from, x, &t);
        put_totals(w, p, alone ? p : p + 1, x->n_rows, t.sums, bias, y);
    }
}

const struct cpu_int8 INT8_TABLE = {
    .rows = INT8_ROWS,
    .quantise = quantise,
    .matvec = matvec8,
    .matmul = matmul8,
};
