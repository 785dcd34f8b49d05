/* The products' blocks as pairs of bf16: two k in one lane's word, narrowed in place after they have
 * been copied as floats; sums stay fp32. Where the instruction set has no such product, nobody asks
 * for it (product_bf16). */

#ifdef VEC_BF16

/* Each row's k, K_CHUNK words apart as before. */
BF16 static void narrow_rows(float *a, int32_t n_rows, int32_t n_k) {
    for (int32_t r = 0; r < n_rows; r++, a += K_CHUNK)
        for (int32_t k = 0; k < n_k; k += 2 * LANES) {
            vf second = k + LANES < n_k ? v_load(a + k + LANES) : v_zero();
            i_store(a + k / 2, i_bf16_joined(v_load(a + k), second));
        }
}

/* Rows k and k + 1 of a panel become one row of pairs; an odd last one is paired with zeros. */
BF16 static void narrow_panels(float *b, int32_t n_k, int32_t n_cols) {
    for (int32_t c = 0; c < n_cols; c += PANEL, b += n_k * PANEL)
        for (int32_t k = 0; k < n_k; k += 2)
            for (int32_t i = 0; i < PANEL; i += LANES) {
                const float *row = b + k * PANEL + i;
                vf second = k + 1 < n_k ? v_load(row + PANEL) : v_zero();
                i_store(b + k / 2 * PANEL + i, i_bf16_pairs(v_load(row), second));
            }
}

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

static bool product_bf16(void) { return __builtin_cpu_supports("avx512bf16"); }

#else

#define narrow_rows(a, n_rows, n_k) (void)0
#define narrow_panels(b, n_k, n_cols) (void)0
static sums_fn *const sums_pairs = sums_chunk;
static bool product_bf16(void) { return false; }

#endif
