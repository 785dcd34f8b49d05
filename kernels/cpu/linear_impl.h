/* y = x w^T on panels. One order of summation everywhere (see K_CHUNK in cpu.h): a lane is one
 * output, each chunk of k one chain of fused sums from 0, chunks added in turn, the bias last. */

#include <string.h>

INLINE int32_t chunk_end(int32_t k, int32_t cols) {
    return k + K_CHUNK < cols ? k + K_CHUNK : cols;
}

/* --- one row ---------------------------------------------------------------------------------- */

#define MATVEC(TYPE, name, RUN)                                                               \
    static void matvec_##name(const uint8_t *const *panel, int32_t cols, const void *row,     \
                              vf *total) {                                                    \
        const float *x = row;                                                                 \
        vf all[MATVEC_STREAMS];                                                               \
        UNROLL for (int s = 0; s < MATVEC_STREAMS; s++) all[s] = v_zero();                    \
        for (int32_t k = 0; k < cols;) {                                                      \
            int32_t end = chunk_end(k, cols);                                                 \
            vf sum[MATVEC_STREAMS];                                                           \
            UNROLL for (int s = 0; s < MATVEC_STREAMS; s++) sum[s] = v_zero();                \
            for (; k + RUN <= end; k += RUN) {                                                \
                struct run r[MATVEC_STREAMS];                                                 \
                UNROLL for (int s = 0; s < MATVEC_STREAMS; s++)                               \
                    r[s] = run_##name(panel[s], k);                                           \
                UNROLL for (int j = 0; j < RUN; j++) {                                        \
                    vf xj = v_set1(x[k + j]);                                                 \
                    UNROLL for (int s = 0; s < MATVEC_STREAMS; s++)                           \
                        sum[s] = v_fma(weight_##name(&r[s], j), xj, sum[s]);                  \
                }                                                                             \
            }                                                                                 \
            if (!RUNS_WHOLE(RUN)) {                                                           \
                struct run r[MATVEC_STREAMS];                                                 \
                for (int s = 0; s < MATVEC_STREAMS; s++) r[s] = run_##name(panel[s], k);      \
                for (int j = 0; k < end; k++, j++)                                            \
                    for (int s = 0; s < MATVEC_STREAMS; s++)                                  \
                        sum[s] = v_fma(weight_##name(&r[s], j), v_set1(x[k]), sum[s]);        \
            }                                                                                 \
            UNROLL for (int s = 0; s < MATVEC_STREAMS; s++) all[s] = v_add(all[s], sum[s]);   \
        }                                                                                     \
        UNROLL for (int s = 0; s < MATVEC_STREAMS; s++) total[s] = all[s];                    \
    }
/* Blocks divide the columns of quantised types; their runs leave no rest. */
#define RUNS_WHOLE(RUN) ((RUN) >= 16)

WEIGHT_TYPES(MATVEC)

static void matvec(const struct panels *w, int32_t from, int32_t to, const float *x,
                   const float *bias, float *y) {
#define ENTRY(TYPE, name, RUN) [TYPE] = matvec_##name,
    static streams_fn *const of_type[DTYPE_COUNT] = {WEIGHT_TYPES(ENTRY)};
#undef ENTRY
    panels_by_streams(w, from, to, of_type[w->type], x, bias, y);
}

/* --- weights of a panel ----------------------------------------------------------------------- */

#define DEQUANT(TYPE, name, RUN)                                                              \
    static void dequant_##name(const uint8_t *panel, int32_t from, int32_t to, float *out) {  \
        int32_t k = from;                                                                     \
        for (; k + RUN <= to; k += RUN, out += RUN * LANES) {                                 \
            struct run r = run_##name(panel, k);                                              \
            UNROLL for (int j = 0; j < RUN; j++) v_store(out + j * LANES, weight_##name(&r, j)); \
        }                                                                                     \
        if (!RUNS_WHOLE(RUN)) {                                                               \
            struct run r = run_##name(panel, k);                                              \
            for (int j = 0; k < to; k++, j++) v_store(out + j * LANES, weight_##name(&r, j)); \
        }                                                                                     \
    }

WEIGHT_TYPES(DEQUANT)

typedef void dequant_fn(const uint8_t *panel, int32_t from, int32_t to, float *out);

static void dequant(const struct panels *w, int32_t panel, int32_t k_from, int32_t k_to,
                    float *out) {
#define ENTRY(TYPE, name, RUN) [TYPE] = dequant_##name,
    static dequant_fn *const of_type[DTYPE_COUNT] = {WEIGHT_TYPES(ENTRY)};
#undef ENTRY
    of_type[w->type](w->data + (size_t)panel * w->panel_bytes, k_from, k_to, out);
}

/* --- many rows -------------------------------------------------------------------------------- */

/* Two times 16 columns of a matrix, [n_k][16] each, rows w_stride floats apart: two panels' weights
 * of one chunk, in the first-level cache. */
struct tile {
    const float *w[2];
    size_t w_stride;
    int32_t n_k, n_outputs;
    bool first;
    const float *bias; /* of the tile's outputs; NULL but in the last chunk */
    const uint8_t *next[2]; /* what will be needed next, to be fetched meanwhile */
    int32_t n_lines;        /* cache lines of each; at most n_k */
};

INLINE void put_sum(float *y, vf sum, const float *bias, int32_t n, bool first) {
    if (n <= 0) return;
    if (n >= LANES) {
        if (!first) sum = v_add(v_load(y), sum);
        v_store(y, bias ? v_add(sum, v_load(bias)) : sum);
    } else {
        if (!first) sum = v_add(v_load_n(y, n), sum);
        v_store_n(y, bias ? v_add(sum, v_load_n(bias, n)) : sum, n);
    }
}

/* rows (a constant for the compiler) rows of x, K_CHUNK floats apart. */
INLINE void tile_rows(const struct tile *t, int rows, const float *x, float *y, size_t y_stride) {
    vf sum[MATMUL_ROWS][2];
    UNROLL for (int r = 0; r < rows; r++) sum[r][0] = sum[r][1] = v_zero();
    for (int32_t k = 0; k < t->n_k; k++) {
        size_t at = (size_t)k * t->w_stride;
        vf a = v_load(t->w[0] + at), b = v_load(t->w[1] + at);
        if (k < t->n_lines) {
            __builtin_prefetch(t->next[0] + 64 * k, 0, 2);
            __builtin_prefetch(t->next[1] + 64 * k, 0, 2);
        }
        UNROLL for (int r = 0; r < rows; r++) {
            vf xk = v_set1(x[r * K_CHUNK + k]);
            sum[r][0] = v_fma(a, xk, sum[r][0]);
            sum[r][1] = v_fma(b, xk, sum[r][1]);
        }
    }
    for (int r = 0; r < rows; r++) {
        float *to = y + (size_t)r * y_stride;
        put_sum(to, sum[r][0], t->bias, t->n_outputs, t->first);
        put_sum(to + LANES, sum[r][1], t->bias ? t->bias + LANES : NULL, t->n_outputs - LANES,
                t->first);
    }
}

#define TILE_ROWS(n) \
    static void tile_rows_##n(const struct tile *t, const float *x, float *y, size_t stride) { \
        tile_rows(t, n, x, y, stride);                                                         \
    }
typedef void tile_fn(const struct tile *t, const float *x, float *y, size_t stride);
TILE_ROWS(1)
TILE_ROWS(2)
#if MATMUL_ROWS > 2
TILE_ROWS(3)
#endif
#if MATMUL_ROWS > 3
TILE_ROWS(4)
TILE_ROWS(5)
TILE_ROWS(6)
TILE_ROWS(7)
TILE_ROWS(8)
TILE_ROWS(9)
TILE_ROWS(10)
TILE_ROWS(11)
TILE_ROWS(12)
#endif
static tile_fn *const tile_of_rows[MATMUL_ROWS + 1] = {
    NULL, tile_rows_1, tile_rows_2,
#if MATMUL_ROWS > 2
    tile_rows_3,
#endif
#if MATMUL_ROWS > 3
    tile_rows_4, tile_rows_5, tile_rows_6, tile_rows_7, tile_rows_8, tile_rows_9, tile_rows_10,
    tile_rows_11, tile_rows_12,
#endif
};

/* y[n_rows] = (first) or += x of the tile's columns. */
static void product(struct tile *t, const float *x, int32_t n_rows, float *y, size_t y_stride) {
    for (int32_t r = 0; r < n_rows; r += MATMUL_ROWS, t->n_lines = 0) {
        int32_t rows = n_rows - r < MATMUL_ROWS ? n_rows - r : MATMUL_ROWS;
        tile_of_rows[rows](t, x + r * K_CHUNK, y + (size_t)r * y_stride, y_stride);
    }
}

/* The rows and the stretch of k whose x is kept in the second-level cache, [chunk][row][K_CHUNK]:
 * few rows take all of k, so that each panel is read in one go; many take one chunk. */
struct x_part {
    const float *x;
    int32_t n_rows, k_from, k_to;
};

static void copy_x(float *to, const float *x, int32_t cols, const struct x_part *part) {
    for (int32_t k = part->k_from; k < part->k_to; k += K_CHUNK)
        for (int32_t r = 0; r < part->n_rows; r++, to += K_CHUNK)
            memcpy(to, x + (size_t)r * (size_t)cols + k,
                   (size_t)(chunk_end(k, part->k_to) - k) * sizeof *to);
}

/* Where the panel has chunk k: blocks do not straddle chunks. */
static const uint8_t *chunk_at(const struct panels *w, int32_t panel, int32_t k) {
    size_t chunk_bytes = LANES * dtype_row_bytes(w->type, K_CHUNK);
    return w->data + (size_t)panel * w->panel_bytes + (size_t)(k / K_CHUNK) * chunk_bytes;
}

static const float *chunk_of_weights(const struct panels *w, int32_t panel, int32_t k, int32_t end,
                                     float *room) {
    if (w->type == DTYPE_F32) return (const float *)(const void *)chunk_at(w, panel, k);
    dequant(w, panel, k, end, room);
    return room;
}

/* Panels p and q (which is p for a last one alone), all rows and chunks of the part. next: the
 * panel after them. y: of the part's first row. */
static void two_panels(const struct panels *w, int32_t p, int32_t q, int32_t next,
                       const struct x_part *part, const float *bias, float *y, float *room) {
    const float *x = part->x;
    int32_t n_outputs = w->rows - p * LANES;
    if (q == p && n_outputs > LANES) n_outputs = LANES;
    struct tile t = {.w_stride = LANES, .n_outputs = n_outputs};
    for (int32_t k = part->k_from; k < part->k_to; k += K_CHUNK) {
        int32_t end = chunk_end(k, part->k_to), after = end < part->k_to ? end : part->k_from;
        t.w[0] = chunk_of_weights(w, p, k, end, room);
        t.w[1] = chunk_of_weights(w, q, k, end, room + K_CHUNK * LANES);
        t.next[0] = chunk_at(w, end < part->k_to ? p : next, after);
        t.next[1] = chunk_at(w, end < part->k_to ? q : next + (q - p), after);
        t.n_k = end - k;
        t.n_lines = (int32_t)((size_t)t.n_k * w->panel_bytes / (size_t)w->cols / 64);
        t.first = k == 0;
        t.bias = bias && end == w->cols ? bias + p * LANES : NULL;
        product(&t, x, part->n_rows, y + p * LANES, (size_t)w->rows);
        x += part->n_rows * K_CHUNK;
    }
}

static void matmul(const struct panels *w, int32_t from, int32_t to, const float *x, int32_t T,
                   const float *bias, float *y, void *scratch) {
    float *room = scratch, *copy = room + MATMUL_W_FLOATS;
    enum { MAX_ROWS = MATMUL_X_FLOATS / K_CHUNK };
    for (int32_t t = 0; t < T; t += MAX_ROWS) {
        int32_t n_rows = T - t < MAX_ROWS ? T - t : MAX_ROWS;
        int32_t stretch = MAX_ROWS / n_rows * K_CHUNK;
        for (int32_t k = 0; k < w->cols; k += stretch) {
            int32_t k_to = stretch < w->cols - k ? k + stretch : w->cols;
            struct x_part part = {copy, n_rows, k, k_to};
            copy_x(copy, x + (size_t)t * (size_t)w->cols, w->cols, &part);
            for (int32_t p = from; p < to; p += 2)
                two_panels(w, p, p + 1 < to ? p + 1 : p, p + 2 < to ? p + 2 : from, &part, bias,
                           y + (size_t)t * (size_t)w->rows, room);
        }
    }
}
