/* Norms, activations, rotary positions, narrowing. */

/* e^x to about 1 ulp for x in [-87, 88]; beyond, the value at the end. */
INLINE vf v_exp(vf x) {
    x = v_max(v_set1(-87.0f), v_min(v_set1(88.0f), x)); /* in this order NaN stays NaN */
    vi n = i_round(v_mul(x, v_set1(0x1.715476p+0f)));
    vf k = v_from_i(n);
    vf r = v_fma(k, v_set1(-0x1.62e4p-1f), x); /* ln 2 in two parts; the first product is exact */
    r = v_fma(k, v_set1(-0x1.7f7d1cp-20f), r);
    vf p = v_set1(0x1.6850e4p-10f);
    p = v_fma(p, r, v_set1(0x1.123bccp-7f));
    p = v_fma(p, r, v_set1(0x1.555b98p-5f));
    p = v_fma(p, r, v_set1(0x1.55548ep-3f));
    p = v_fma(p, r, v_set1(0x1.fffff8p-2f));
    p = v_add(v_fma(p, v_mul(r, r), r), v_set1(1));
    return v_mul(p, v_cast(i_sll(i_add(n, i_set1(127)), 23)));
}

/* Sums of squares run in 4 vectors: enough to keep the adder busy, and a fixed order. */
INLINE float sum_of_squares(const float *x, int32_t d) {
    vf sum[4] = {v_zero(), v_zero(), v_zero(), v_zero()};
    int32_t i = 0;
    for (; i + 4 * LANES <= d; i += 4 * LANES)
        UNROLL for (int j = 0; j < 4; j++) {
            vf a = v_load(x + i + j * LANES);
            sum[j] = v_fma(a, a, sum[j]);
        }
    for (; i < d; i += LANES) {
        vf a = d - i < LANES ? v_load_n(x + i, d - i) : v_load(x + i);
        sum[0] = v_fma(a, a, sum[0]);
    }
    return v_sum(v_add(v_add(sum[0], sum[1]), v_add(sum[2], sum[3])));
}

static void add_scaled(float *x, const float *y, float scale, int32_t d) {
    vf s = v_set1(scale);
    int32_t i = 0;
    for (; i + LANES <= d; i += LANES)
        v_store(x + i, v_add(v_load(x + i), v_mul(s, v_load(y + i))));
    if (i < d)
        v_store_n(x + i, v_add(v_load_n(x + i, d - i), v_mul(s, v_load_n(y + i, d - i))), d - i);
}

static void rmsnorm(float *out, float *x, const float *y, float scale, const float *g, int32_t d,
                    float eps) {
    if (y) add_scaled(x, y, scale, d);
    vf r = v_set1(1.0f / __builtin_sqrtf(sum_of_squares(x, d) / (float)d + eps));
    int32_t i = 0;
    for (; i + LANES <= d; i += LANES)
        v_store(out + i, v_mul(v_mul(v_load(x + i), r), v_load(g + i)));
    if (i < d)
        v_store_n(out + i, v_mul(v_mul(v_load_n(x + i, d - i), r), v_load_n(g + i, d - i)), d - i);
}

INLINE vf v_silu_mul(vf gate, vf up) {
    gate = v_max(v_set1(-100.0f), gate); /* below, the quotient is nothing */
    vf e = v_exp(v_sub(v_zero(), gate));
    return v_mul(v_div(gate, v_add(v_set1(1), e)), up);
}

static void silu_mul(float *out, const float *gate, const float *up, size_t n) {
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        v_store(out + i, v_silu_mul(v_load(gate + i), v_load(up + i)));
    int rest = (int)(n - i);
    if (rest == 0) return;
    v_store_n(out + i, v_silu_mul(v_load_n(gate + i, rest), v_load_n(up + i, rest)), rest);
}

static void scale_all(float *x, size_t n, float s) {
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) v_store(x + i, v_mul(v_load(x + i), v_set1(s)));
    if (i < n) v_store_n(x + i, v_mul(v_load_n(x + i, (int)(n - i)), v_set1(s)), (int)(n - i));
}

/* Half-split pairs. Products are rounded before they are added, as the reference does. */
static void rotate(float *out, const float *x, const float *cos_sin, int32_t e) {
    int32_t half = e / 2;
    for (int32_t i = 0; i < half; i++) {
        float a = x[i], b = x[i + half], c = cos_sin[i], s = cos_sin[half + i];
        out[i] = a * c - b * s;
        out[i + half] = b * c + a * s;
    }
}

/* 32 floats to a block of Q8_0. One that is not finite makes all that is read of the block NaN. */
INLINE void narrow_q8_0(uint8_t *out, const float *x) {
    enum { F16_NAN = 0x7E00 };
    vf a = v_load(x), b = v_load(x + LANES), zero = v_zero();
    bool finite = v_sum(v_add(v_mul(a, zero), v_mul(b, zero))) == 0;
    float largest = v_highest(v_max(v_max(a, v_sub(zero, a)), v_max(b, v_sub(zero, b))));
    uint16_t scale = finite ? f32_to_f16(largest / 127) : F16_NAN;
    float inverse = finite && scale ? 127 / largest : 0;
    memcpy(out, &scale, sizeof scale);
    for (int i = 0; i < 2 * LANES; i++)
        out[2 + i] = inverse > 0 ? (uint8_t)(int8_t)__builtin_rintf(x[i] * inverse) : 0;
}

static void narrow(enum dtype type, void *out, const float *x, int32_t n) {
    uint16_t *halves = out;
    if (type == DTYPE_Q8_0) {
        for (int32_t i = 0; i < n; i += 32) narrow_q8_0((uint8_t *)out + i / 32 * 34, x + i);
    } else if (type == DTYPE_F32) {
        memcpy(out, x, (size_t)n * sizeof *x);
    } else if (type == DTYPE_BF16) {
        for (int32_t i = 0; i < n; i++) halves[i] = f32_to_bf16(x[i]);
    } else {
        int32_t i = 0;
        for (; i + LANES <= n; i += LANES) v_store_f16(halves + i, v_load(x + i));
        for (; i < n; i++) halves[i] = f32_to_f16(x[i]);
    }
}
