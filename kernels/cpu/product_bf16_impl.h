/* The products' blocks as pairs of bf16: a word holds k and k + 1 of a row of a, or of a column of b.
 * Operands are rounded on their way into the blocks; sums stay fp32. Where the instruction set has no
 * such product, nobody asks for it (product.bf16).
 *
 * Blocks have the places of product_impl.h, half as many words: rows of a K_CHUNK words apart, panels of
 * b [pair of k][32]. So a chunk is up to twice as long. */

#ifdef VEC_BF16

/* Chunks of about the same length, so that none is too short to pay for its sums. */
static int32_t pair_chunk(int32_t n_k) {
    int32_t n_chunks = (n_k + 2 * K_CHUNK - 1) / (2 * K_CHUNK);
    return n_chunks > 1 ? round_up((n_k + n_chunks - 1) / n_chunks, 2 * LANES) : n_k;
}

/* Rows of a panel. */
static int32_t pair_rows(int32_t n_k) { return (n_k + 1) / 2; }

INLINE vf load_up_to(const float *p, int32_t n) {
    return n >= LANES ? v_load(p) : n > 0 ? v_load_n(p, n) : v_zero();
}

/* to[c * to_stride] = row r's word c in lane r: 16 x 16 words turned. */
INLINE void put_turned(float *to, size_t to_stride, vf x[LANES], int32_t n_words) {
    v_transpose(x);
    for (int32_t c = 0; c < n_words; c++) v_store(to + (size_t)c * to_stride, x[c]);
}

/* --- a ---------------------------------------------------------------------------------------- */

BF16 static void pair_row(float *to, const float *from, int32_t n, vf alpha) {
    for (int32_t k = 0; k < n; k += 2 * LANES)
        i_store(to + k / 2, i_bf16_joined(v_mul(load_up_to(from + k, n - k), alpha),
                                          v_mul(load_up_to(from + k + LANES, n - k - LANES), alpha)));
}

/* Columns of a hold its rows: pairs of k's rows are turned. */
BF16 static void pair_turned_rows(float *to, const float *from, size_t stride, int32_t n_rows,
                                  int32_t n_k, vf alpha) {
    for (int32_t r = 0; r < n_rows; r += LANES)
        for (int32_t k = 0; k < n_k; k += 2 * LANES) {
            vf x[LANES];
            const float *at = from + (size_t)k * stride + r;
            for (int32_t i = 0; i < LANES; i++, at += 2 * stride) {
                int32_t left = n_k - k - 2 * i;
                vf even = left > 0 ? load_up_to(at, n_rows - r) : v_zero();
                vf odd = left > 1 ? load_up_to(at + stride, n_rows - r) : v_zero();
                x[i] = v_cast(i_bf16_pairs(v_mul(even, alpha), v_mul(odd, alpha)));
            }
            put_turned(to + r * K_CHUNK + k / 2, K_CHUNK, x, n_rows - r < LANES ? n_rows - r : LANES);
        }
}

BF16 static void pack_a_pairs(float *to, const struct product_term *t, int32_t row, int32_t n_rows,
                              int32_t k, int32_t n_k, float alpha) {
    vf by = v_set1(alpha);
    if (t->a_turned)
        pair_turned_rows(to, t->a + (size_t)k * t->a_stride + row, t->a_stride, n_rows, n_k, by);
    else
        for (int32_t i = 0; i < n_rows; i++)
            pair_row(to + i * K_CHUNK, t->a + (size_t)(row + i) * t->a_stride + k, n_k, by);
    for (int32_t i = n_rows; i < round_up(n_rows, MATMUL_ROWS); i++)
        memset(to + i * K_CHUNK, 0, (size_t)round_up(n_k, 2) * 2);
}

/* --- b ---------------------------------------------------------------------------------------- */

/* Rows of b: k and k + 1 side by side. */
BF16 static void pair_panel(float *to, const float *from, size_t stride, int32_t n_k, int32_t n_cols) {
    for (int32_t k = 0; k < n_k; k += 2, to += PANEL)
        for (int32_t i = 0; i < PANEL; i += LANES) {
            const float *at = from + (size_t)k * stride + i;
            vf odd = k + 1 < n_k ? load_up_to(at + stride, n_cols - i) : v_zero();
            i_store(to + i, i_bf16_pairs(load_up_to(at, n_cols - i), odd));
        }
}

/* Rows hold b's columns. */
BF16 static void pair_turned_panel(float *to, const float *from, size_t stride, int32_t n_k,
                                   int32_t n_cols) {
    for (int32_t c = 0; c < PANEL; c += LANES)
        for (int32_t k = 0; k < n_k; k += 2 * LANES) {
            vf x[LANES];
            for (int32_t i = 0; i < LANES; i++) {
                const float *at = from + (size_t)(c + i) * stride + k;
                x[i] = c + i >= n_cols
                           ? v_zero()
                           : v_cast(i_bf16_joined(load_up_to(at, n_k - k),
                                                  load_up_to(at + LANES, n_k - k - LANES)));
            }
            int32_t n_words = (n_k - k + 1) / 2;
            put_turned(to + k / 2 * PANEL + c, PANEL, x, n_words < LANES ? n_words : LANES);
        }
}

/* A panel's columns col and col + 1 (even, odd) as bf16 weights have them: see layout.h. */
INLINE const uint8_t *words_at(const struct panels *w, int32_t panel, int32_t col) {
    return w->data + (size_t)panel * w->panel_bytes + (size_t)col * LANES * sizeof(uint16_t);
}

/* The rows of columns col and col + 1 in pairs: 8 words each. room: the columns as floats. */
BF16 INLINE vi weight_words(const struct panels *w, int32_t panel, int32_t col, const float *room) {
    return w->type == DTYPE_BF16 ? i_halves_apart(i_load(words_at(w, panel, col)))
                                 : i_bf16_joined(v_load(room), v_load(room + LANES));
}

/* Columns of weights are b's columns, their rows k: col … col + n_cols - 1. Of a turned block the even
 * columns' words come first, then the odd ones'. */
BF16 static void pair_weight_rows(float *b, const struct panels *w, int32_t k, int32_t n_k, int32_t col,
                                  int32_t n_cols, float *room) {
    for (int32_t i = 0; i < n_k; i += LANES) {
        int32_t p = (k + i) / LANES, n_words = (n_k - i + 1) / 2;
        if (w->type != DTYPE_BF16) dequant(w, p, col, col + n_cols, room);
        if (n_words > LANES / 2) n_words = LANES / 2;
        for (int32_t c = 0; c < n_cols; c += PANEL) {
            vf x[LANES];
            for (int32_t j = 0; j < LANES; j++)
                x[j] = c + 2 * j < n_cols ? v_cast(weight_words(w, p, col + c + 2 * j,
                                                                room + (c + 2 * j) * LANES))
                                          : v_zero();
            v_transpose(x);
            float *to = panel_of(b, c, pair_rows(n_k)) + i / 2 * PANEL;
            for (int32_t j = 0; j < n_words; j++, to += PANEL) {
                v_store(to, v_zip_low(x[j], x[j + LANES / 2]));
                v_store(to + LANES, v_zip_high(x[j], x[j + LANES / 2]));
            }
        }
    }
}

/* Rows of weights are b's columns, col … (a multiple of 32), their columns k. */
BF16 static void pair_weight_cols(float *b, const struct panels *w, int32_t k, int32_t n_k, int32_t col,
                                  int32_t n_cols, float *room) {
    for (int32_t c = 0; c < round_up(n_cols, PANEL); c += LANES) {
        float *to = panel_of(b, c, pair_rows(n_k)) + c % PANEL;
        int32_t p = (col + c) / LANES;
        if (c >= n_cols) {
            for (int32_t i = 0; i < n_k; i += 2, to += PANEL) v_store(to, v_zero());
            continue;
        }
        if (w->type != DTYPE_BF16) dequant(w, p, k, k + n_k, room);
        for (int32_t i = 0; i < n_k; i += 2, to += PANEL) {
            const float *at = room + i * LANES;
            vf odd = i + 1 < n_k ? v_load(at + LANES) : v_zero();
            i_store(to, w->type == DTYPE_BF16 ? i_load(words_at(w, p, k + i))
                                              : i_bf16_pairs(v_load(at), odd));
        }
    }
}

static void pack_b_pairs(const struct product_room *room, const struct product_term *t, int32_t k,
                         int32_t n_k, int32_t col, int32_t n_cols) {
    if (!t->b && t->b_turned) pair_weight_cols(room->b, &t->w, k, n_k, col, n_cols, room->w);
    else if (!t->b) pair_weight_rows(room->b, &t->w, k, n_k, col, n_cols, room->w);
    else
        for (int32_t c = 0; c < n_cols; c += PANEL) {
            float *to = panel_of(room->b, c, pair_rows(n_k));
            if (t->b_turned)
                pair_turned_panel(to, t->b + (size_t)(col + c) * t->b_stride + k, t->b_stride, n_k,
                                  n_cols - c);
            else
                pair_panel(to, t->b + (size_t)k * t->b_stride + col + c, t->b_stride, n_k, n_cols - c);
        }
}

/* --- sums ------------------------------------------------------------------------------------- */

BF16 static void sums_pairs(const float *a, const float *b, int32_t n_k, float *c, size_t c_row,
                            bool add) {
    vf sum[MATMUL_ROWS][2];
    UNROLL for (int r = 0; r < MATMUL_ROWS; r++) sum[r][0] = sum[r][1] = v_zero();
    for (int32_t k = 0; k < n_k; k += 2, a++, b += PANEL) {
        vf b0 = v_load(b), b1 = v_load(b + LANES);
        UNROLL for (int r = 0; r < MATMUL_ROWS; r++) {
            vf x = v_set1(a[r * K_CHUNK]);
            sum[r][0] = v_add_bf16_products(sum[r][0], b0, x);
            sum[r][1] = v_add_bf16_products(sum[r][1], b1, x);
        }
    }
    UNROLL for (int r = 0; r < MATMUL_ROWS; r++) {
        float *to = c + (size_t)r * c_row;
        v_store(to, add ? v_add(v_load(to), sum[r][0]) : sum[r][0]);
        v_store(to + LANES, add ? v_add(v_load(to + LANES), sum[r][1]) : sum[r][1]);
    }
}

#else

#define pair_chunk(n_k) K_CHUNK
#define pair_rows(n_k) (n_k)
#define pack_a_pairs copy_a
#define pack_b_pairs copy_b
static sums_fn *const sums_pairs = sums_chunk;

#endif
