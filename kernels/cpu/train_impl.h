/* The row loops of training. Sums run in one fixed order, whatever the team. */

#include <math.h>

/* The last vector of a row of n may hold fewer lanes. */
#define FOR_LANES(i, n) for (size_t i = 0; i < (size_t)(n); i += LANES)

INLINE int lanes_left(size_t n, size_t i) { return n - i < LANES ? (int)(n - i) : LANES; }
INLINE vf load_some(const float *p, int n) { return n == LANES ? v_load(p) : v_load_n(p, n); }
INLINE void store_some(float *p, vf x, int n) {
    if (n == LANES) v_store(p, x);
    else v_store_n(p, x, n);
}

/* Columns are summed over runs of 32 rows, and the runs one after another, so that long sums lose
 * little. */
static void col_sum(float *out, const float *x, const float *y, const float *s, int32_t T,
                    size_t stride, int32_t n) {
    enum { RUN = 32 };
    FOR_LANES(i, n) {
        int lanes = lanes_left((size_t)n, i);
        vf total = load_some(out + i, lanes);
        for (int32_t from = 0; from < T; from += RUN) {
            vf sum = v_zero();
            for (int32_t t = from; t < T && t < from + RUN; t++) {
                vf a = load_some(x + (size_t)t * stride + i, lanes);
                if (y) a = v_mul(v_mul(a, load_some(y + (size_t)t * stride + i, lanes)), v_set1(s[t]));
                sum = v_add(sum, a);
            }
            total = v_add(total, sum);
        }
        store_some(out + i, total, lanes);
    }
}

/* dx += r (g dy - x r mean(g dy x) r) */
static float rmsnorm_dx(float *dx, const float *dy, const float *x, const float *g, int32_t d,
                        float eps) {
    float r = 1.0f / __builtin_sqrtf(sum_of_squares(x, d) / (float)d + eps);
    vf dot = v_zero();
    FOR_LANES(i, d) {
        int n = lanes_left((size_t)d, i);
        dot = v_fma(v_mul(load_some(g + i, n), load_some(dy + i, n)), load_some(x + i, n), dot);
    }
    vf back = v_set1(v_sum(dot) / (float)d * r * r), by = v_set1(r);
    FOR_LANES(i, d) {
        int n = lanes_left((size_t)d, i);
        vf a = v_mul(load_some(g + i, n), load_some(dy + i, n));
        a = v_sub(a, v_mul(load_some(x + i, n), back));
        store_some(dx + i, v_add(load_some(dx + i, n), v_mul(a, by)), n);
    }
    return r;
}

static void rotate_heads(float *x, int32_t heads, const float *cos_sin, int32_t e, bool inverse) {
    int32_t half = e / 2;
    float sign = inverse ? -1 : 1;
    for (int32_t h = 0; h < heads; h++, x += e)
        FOR_LANES(i, half) {
            int n = lanes_left((size_t)half, i);
            vf u = load_some(x + i, n), w = load_some(x + half + i, n);
            vf c = load_some(cos_sin + i, n);
            vf s = v_mul(load_some(cos_sin + half + i, n), v_set1(sign));
            store_some(x + i, v_sub(v_mul(u, c), v_mul(w, s)), n);
            store_some(x + half + i, v_add(v_mul(w, c), v_mul(u, s)), n);
        }
}

static void silu_mul_dx(float *dgate, float *dup, const float *dout, const float *gate,
                        const float *up, size_t n) {
    FOR_LANES(i, n) {
        int lanes = lanes_left(n, i);
        vf u = v_max(v_set1(-80.0f), load_some(gate + i, lanes)), w = load_some(up + i, lanes);
        vf dm = load_some(dout + i, lanes), one = v_set1(1);
        vf s = v_div(one, v_add(one, v_exp(v_sub(v_zero(), u))));
        vf slope = v_mul(s, v_add(one, v_mul(u, v_sub(one, s))));
        store_some(dgate + i, v_mul(v_mul(dm, w), slope), lanes);
        store_some(dup + i, v_mul(dm, v_mul(u, s)), lanes);
    }
}

static void axpy(float *y, const float *x, size_t n, float a) {
    FOR_LANES(i, n) {
        int lanes = lanes_left(n, i);
        vf sum = v_fma(load_some(x + i, lanes), v_set1(a), load_some(y + i, lanes));
        store_some(y + i, sum, lanes);
    }
}

/* As f32_to_bf16, in plain C that compilers turn into vectors. */
static void narrow_rows(uint16_t *to, const float *from, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, from + i, sizeof bits);
        uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1), quiet = bits | 0x400000;
        to[i] = (uint16_t)(((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded) >> 16);
    }
}

static void widen_rows(float *to, const uint16_t *from, size_t n) {
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) v_store(to + i, v_bf16(from + i));
    for (; i < n; i++) to[i] = bf16_to_f32(from[i]);
}

static float row_max(const float *x, int32_t n) {
    float max = -__builtin_inff(), lane[LANES];
    vf most = v_set1(max);
    int32_t i = 0;
    for (; i + LANES <= n; i += LANES) most = v_max(most, v_load(x + i));
    v_store(lane, most);
    for (int k = 0; k < LANES; k++) max = lane[k] > max ? lane[k] : max;
    for (; i < n; i++) max = x[i] > max ? x[i] : max;
    return max;
}

static double sum_exp(const float *x, int32_t n, float max) {
    double total = 0;
    vf m = v_set1(max);
    for (int32_t from = 0; from < n; from += K_CHUNK) { /* runs, so that long rows lose little */
        int32_t to = n - from < K_CHUNK ? n : from + K_CHUNK;
        vf sum = v_zero();
        for (int32_t i = from; i < to; i += LANES) {
            int lanes = lanes_left((size_t)to, (size_t)i);
            float part[LANES];
            v_store(part, v_exp(v_sub(load_some(x + i, lanes), m)));
            for (int k = lanes; k < LANES; k++) part[k] = 0;
            sum = v_add(sum, v_load(part));
        }
        total += (double)v_sum(sum);
    }
    return total;
}

static void softmax_grad(float *x, int32_t n, float max, float by) {
    FOR_LANES(i, n) {
        int lanes = lanes_left((size_t)n, i);
        vf p = v_exp(v_sub(load_some(x + i, lanes), v_set1(max)));
        store_some(x + i, v_mul(p, v_set1(by)), lanes);
    }
}

/* Draws and sums in double, in plain C that compilers turn into vectors. */

static void dropout(float *out, const float *x, int32_t n, uint64_t key, uint64_t index,
                    uint64_t below, float by) {
    for (int32_t i = 0; i < n; i++) {
        uint64_t draw = counter_draw(key, index + (uint64_t)i) >> 32;
        out[i] = draw < below ? 0 : x[i] * by;
    }
}

static double sum_squares(const float *x, size_t n) {
    double sum[LANES] = {0}, total = 0;
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (size_t j = 0; j < LANES; j++) sum[j] += (double)x[i + j] * (double)x[i + j];
    for (size_t j = 0; j < LANES; j++) total += sum[j];
    for (; i < n; i++) total += (double)x[i] * (double)x[i];
    return total;
}

static void adamw(float *p, const float *g, float *m, float *v, size_t n,
                  const struct adamw_params *a, float grad_scale) {
    vf b1 = v_set1(a->beta1), b2 = v_set1(a->beta2), keep = v_set1(1 - a->lr * a->weight_decay);
    vf new1 = v_set1(1 - a->beta1), new2 = v_set1(1 - a->beta2), lr = v_set1(a->lr / a->c1);
    vf by2 = v_set1(1 / a->c2), eps = v_set1(a->eps), by = v_set1(grad_scale);
    FOR_LANES(i, n) {
        int k = lanes_left(n, i);
        vf grad = v_mul(load_some(g + i, k), by);
        vf mean = v_fma(load_some(m + i, k), b1, v_mul(grad, new1));
        vf square = v_fma(load_some(v + i, k), b2, v_mul(v_mul(grad, grad), new2));
        vf step = v_div(v_mul(lr, mean), v_add(v_sqrt(v_mul(square, by2)), eps));
        store_some(m + i, mean, k);
        store_some(v + i, square, k);
        store_some(p + i, v_sub(v_mul(load_some(p + i, k), keep), step), k);
    }
}

#undef FOR_LANES
