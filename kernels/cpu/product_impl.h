/* Dense products on blocks copied into the caches: K_CHUNK columns of a, as rows; K_CHUNK rows of
 * b, as panels of 32 columns, whatever form they had. The inner loop holds MATMUL_ROWS x 32 sums in
 * registers. Order of summation as in linear_impl.h: chunks of k, each a chain from 0, added in
 * turn; so an output is the same in whatever part and beside whatever neighbours. */

enum { PANEL = 2 * LANES };

/* 16 x 16 turned: to[c * to_stride + r] = s * from[r * stride + c] for n_cols (up to 16) columns.
 * Rows beyond n_rows are zeros, all 16 are written. Each round of zipping rows i and i + 8 turns
 * one bit of the index over. */
INLINE void turn(float *to, size_t to_stride, const float *from, size_t stride, int n_rows,
                 int n_cols, float s) {
    vf x[LANES], y[LANES];
    UNROLL for (int r = 0; r < LANES; r++)
        x[r] = r >= n_rows    ? v_zero()
               : n_cols < LANES ? v_load_n(from + (size_t)r * stride, n_cols)
                                : v_load(from + (size_t)r * stride);
    for (int round = 0; round < 2; round++) {
        UNROLL for (int i = 0; i < LANES / 2; i++) {
            y[2 * i] = v_zip_low(x[i], x[i + LANES / 2]);
            y[2 * i + 1] = v_zip_high(x[i], x[i + LANES / 2]);
        }
        UNROLL for (int i = 0; i < LANES / 2; i++) {
            x[2 * i] = v_zip_low(y[i], y[i + LANES / 2]);
            x[2 * i + 1] = v_zip_high(y[i], y[i + LANES / 2]);
        }
    }
    for (int c = 0; c < n_cols; c++) v_store(to + (size_t)c * to_stride, v_mul(x[c], v_set1(s)));
}

/* to[c * to_stride + r] = s * from[r * stride + c]; rows up to a multiple of 16 are zeros. */
static void turn_all(float *to, size_t to_stride, const float *from, size_t stride, int32_t n_rows,
                     int32_t n_cols, float s) {
    for (int32_t r = 0; r < n_rows; r += LANES)
        for (int32_t c = 0; c < n_cols; c += LANES) {
            int rows = n_rows - r < LANES ? n_rows - r : LANES;
            int cols = n_cols - c < LANES ? n_cols - c : LANES;
            turn(to + (size_t)c * to_stride + r, to_stride, from + (size_t)r * stride + c, stride,
                 rows, cols, s);
        }
}

/* n elements and zeros up to `whole`, a multiple of 16. */
INLINE void copy_row(float *to, const float *from, int32_t n, int32_t whole, float s) {
    int32_t i = 0;
    for (; i + LANES <= n; i += LANES) v_store(to + i, v_mul(v_load(from + i), v_set1(s)));
    if (i < n) {
        v_store(to + i, v_mul(v_load_n(from + i, n - i), v_set1(s)));
        i += LANES;
    }
    for (; i < whole; i += LANES) v_store(to + i, v_zero());
}

/* MATMUL_ROWS x 32 sums over n_k: c (+)= a b. Element (r, k) of a is at r * a_row + k * a_k; row k
 * of b at k * b_k. a_row and a_k are constants for the compiler. */
INLINE void sums(const float *a, size_t a_row, size_t a_k, const float *b, size_t b_k, int32_t n_k,
                 float *c, size_t c_row, bool add) {
    vf sum[MATMUL_ROWS][2];
    UNROLL for (int r = 0; r < MATMUL_ROWS; r++) sum[r][0] = sum[r][1] = v_zero();
    for (int32_t k = 0; k < n_k; k++, a += a_k, b += b_k) {
        vf b0 = v_load(b), b1 = v_load(b + LANES);
        UNROLL for (int r = 0; r < MATMUL_ROWS; r++) {
            vf x = v_set1(a[(size_t)r * a_row]);
            sum[r][0] = v_fma(b0, x, sum[r][0]);
            sum[r][1] = v_fma(b1, x, sum[r][1]);
        }
    }
    UNROLL for (int r = 0; r < MATMUL_ROWS; r++) {
        float *to = c + (size_t)r * c_row;
        v_store(to, add ? v_add(v_load(to), sum[r][0]) : sum[r][0]);
        v_store(to + LANES, add ? v_add(v_load(to + LANES), sum[r][1]) : sum[r][1]);
    }
}

/* MATMUL_ROWS rows of a copied block of a, by a panel of one of b. */
typedef void sums_fn(const float *a, const float *b, int32_t n_k, float *c, size_t c_row, bool add);

static void sums_chunk(const float *a, const float *b, int32_t n_k, float *c, size_t c_row,
                       bool add) {
    sums(a, K_CHUNK, 1, b, PANEL, n_k, c, c_row, add);
}

/* --- blocks ---------------------------------------------------------------------------------- */

struct product_room {
    float *a; /* [row][K_CHUNK] */
    float *b; /* [panel][k][32] */
    float *w; /* [column][16] */
};

static void copy_a(float *to, const struct product_term *t, int32_t row, int32_t n_rows, int32_t k,
                   int32_t n_k, float alpha) {
    if (t->a_turned) {
        turn_all(to, K_CHUNK, t->a + (size_t)k * t->a_stride + row, t->a_stride, n_k, n_rows,
                 alpha);
    } else {
        for (int32_t i = 0; i < n_rows; i++)
            copy_row(to + i * K_CHUNK, t->a + (size_t)(row + i) * t->a_stride + k, n_k, n_k, alpha);
    }
    for (int32_t i = n_rows; i < round_up(n_rows, MATMUL_ROWS); i++)
        memset(to + i * K_CHUNK, 0, (size_t)round_up(n_k, LANES) * sizeof *to);
}

/* Where the panel of a column begins; each has n_rows rows. */
static float *panel_of(float *b, int32_t col, int32_t n_rows) {
    return b + (size_t)(col / PANEL) * (size_t)n_rows * PANEL;
}

static void copy_b_dense(float *to, const struct product_term *t, int32_t k, int32_t n_k,
                         int32_t col, int32_t n_cols) {
    for (int32_t c = 0; c < n_cols; c += PANEL) {
        int32_t n = n_cols - c < PANEL ? n_cols - c : PANEL;
        float *panel = panel_of(to, c, n_k);
        if (t->b_turned) {
            turn_all(panel, PANEL, t->b + (size_t)(col + c) * t->b_stride + k, t->b_stride, n, n_k,
                     1);
            if (n <= LANES)
                for (int32_t i = 0; i < n_k; i++) v_store(panel + i * PANEL + LANES, v_zero());
        } else {
            const float *from = t->b + (size_t)k * t->b_stride + col + c;
            for (int32_t i = 0; i < n_k; i++)
                copy_row(panel + i * PANEL, from + (size_t)i * t->b_stride, n, PANEL, 1);
        }
    }
}

/* Weights come as [column][16 rows]: each panel's columns are turned into rows. */
static void copy_b_weights(float *to, const struct panels *w, int32_t k, int32_t n_k, int32_t col,
                           int32_t n_cols, float *room) {
    for (int32_t i = 0; i < n_k; i += LANES) {
        int32_t rows = n_k - i < LANES ? n_k - i : LANES;
        dequant(w, (k + i) / LANES, col, col + n_cols, room);
        for (int32_t c = 0; c < round_up(n_cols, PANEL); c += LANES) {
            int32_t n = n_cols - c < LANES ? n_cols - c : LANES;
            turn(panel_of(to, c, n_k) + i * PANEL + c % PANEL, PANEL, room + c * LANES, LANES, n,
                 rows, 1);
        }
    }
}

static void copy_b(const struct product_room *room, const struct product_term *t, int32_t k,
                   int32_t n_k, int32_t col, int32_t n_cols) {
    if (t->b) copy_b_dense(room->b, t, k, n_k, col, n_cols);
    else copy_b_weights(room->b, &t->w, k, n_k, col, n_cols, room->w);
}

#include "kernels/cpu/product_bf16_impl.h"

/* One block of a times one of b, whose panels have b_rows rows. Where a tile runs over an edge its sums go through a buffer. */
static void add_block(const struct product_room *room, sums_fn *sum, int32_t n_k, int32_t b_rows,
                      float *out, size_t stride, int32_t n_rows, int32_t n_cols, bool add) {
    float edge[MATMUL_ROWS * PANEL];
    for (int32_t c = 0; c < n_cols; c += PANEL)
        for (int32_t r = 0; r < n_rows; r += MATMUL_ROWS) {
            const float *a = room->a + r * K_CHUNK, *b = panel_of(room->b, c, b_rows);
            float *to = out + (size_t)r * stride + c;
            int32_t rows = n_rows - r, cols = n_cols - c;
            if (rows >= MATMUL_ROWS && cols >= PANEL) {
                sum(a, b, n_k, to, stride, add);
                continue;
            }
            sum(a, b, n_k, edge, PANEL, false);
            if (rows > MATMUL_ROWS) rows = MATMUL_ROWS;
            if (cols > PANEL) cols = PANEL;
            for (int32_t i = 0; i < rows; i++)
                for (int32_t j = 0; j < cols; j++) {
                    float *y = to + (size_t)i * stride + j;
                    *y = add ? *y + edge[i * PANEL + j] : edge[i * PANEL + j];
                }
        }
}

/* Columns col … of a part; beta has been seen to, but for 0. */
static void product_cols(const struct product *p, const struct product_part *part,
                         const struct product_room *room) {
    bool add = p->beta != 0 || p->bias;
    sums_fn *sum = p->bf16 ? sums_pairs : sums_chunk;
    float *out = p->out + (size_t)part->row * p->out_stride + part->col;
    for (const struct product_term *t = p->terms; t < p->terms + p->n_terms; t++) {
        int32_t chunk = p->bf16 ? pair_chunk(t->n_k) : K_CHUNK;
        for (int32_t k = 0; k < t->n_k; k += chunk) {
            int32_t n_k = t->n_k - k < chunk ? t->n_k - k : chunk;
            (p->bf16 ? pack_b_pairs : copy_b)(room, t, k, n_k, part->col, part->n_cols);
            for (int32_t r = 0; r < part->n_rows; r += PRODUCT_ROWS) {
                int32_t n = part->n_rows - r < PRODUCT_ROWS ? part->n_rows - r : PRODUCT_ROWS;
                (p->bf16 ? pack_a_pairs : copy_a)(room->a, t, part->row + r, n, k, n_k, p->alpha);
                add_block(room, sum, n_k, p->bf16 ? pair_rows(n_k) : n_k,
                          out + (size_t)r * p->out_stride, p->out_stride, n, part->n_cols, add);
            }
            add = true;
        }
    }
    if (add) return;
    for (int32_t r = 0; r < part->n_rows; r++)
        memset(out + (size_t)r * p->out_stride, 0, (size_t)part->n_cols * sizeof *out);
}

static void begin_rows(const struct product *p, const struct product_part *part) {
    for (int32_t r = 0; r < part->n_rows; r++) {
        float *out = p->out + (size_t)(part->row + r) * p->out_stride + part->col;
        if (p->bias) memcpy(out, p->bias + part->col, (size_t)part->n_cols * sizeof *out);
        else scale_all(out, (size_t)part->n_cols, p->beta);
    }
}

static void block_product(const struct product *p, const struct product_part *part, void *scratch) {
    struct product_room room = {.a = scratch};
    room.b = room.a + PRODUCT_ROWS * K_CHUNK;
    room.w = room.b + PRODUCT_COLS * K_CHUNK;
    if (p->bias || (p->beta != 0 && p->beta != 1)) begin_rows(p, part);
    for (int32_t c = 0; c < part->n_cols; c += PRODUCT_COLS) {
        struct product_part cols = *part;
        cols.col += c;
        cols.n_cols = part->n_cols - c < PRODUCT_COLS ? part->n_cols - c : PRODUCT_COLS;
        product_cols(p, &cols, &room);
    }
}
