/* Norms, rotary positions, activations and copies against plain double arithmetic. */
#include "tests/unit/kernels_fixture.h"

/* --- norms ------------------------------------------------------------------------------------ */

static void check_norm(const char *what, const float *got, const double *x, const float *g,
                       int32_t T, int32_t d) {
    for (int32_t t = 0; t < T; t++) {
        double sum = 0;
        for (int32_t i = 0; i < d; i++) sum += x[t * d + i] * x[t * d + i];
        double r = 1 / sqrt(sum / d + 1e-5);
        for (int32_t i = 0; i < d; i++)
            assert_near(what, got[t * d + i], x[t * d + i] * r * (double)g[i], 3e-6);
    }
}

static void norms_of_size(struct kctx *c, int32_t T, int32_t d) {
    size_t n = (size_t)(T * d), bytes = n * 4;
    float *x = random_floats(n), *y = random_floats(n), *g = random_floats((size_t)d);
    double *sum = malloc(n * sizeof *sum);
    dev_addr dx = to_device(c, x, bytes), dy = to_device(c, y, bytes);
    dev_addr out = to_device(c, NULL, bytes), dg = to_device(c, g, (size_t)d * 4);

    for (size_t i = 0; i < n; i++) sum[i] = (double)x[i];
    c->ops->rmsnorm(c, out, dx, dg, T, d, 1e-5f);
    float *got = from_device(c, out, bytes);
    check_norm("rmsnorm", got, sum, g, T, d);
    free(got);

    for (size_t i = 0; i < n; i++) sum[i] = (double)x[i] + 0.25 * (double)y[i];
    c->ops->add_rmsnorm(c, out, dx, dy, 0.25f, dg, T, d, 1e-5f);
    got = from_device(c, out, bytes);
    check_norm("add_rmsnorm", got, sum, g, T, d);
    float *left = from_device(c, dx, bytes);
    for (size_t i = 0; i < n; i++) assert_near("residual", left[i], sum[i], 2e-7);

    c->ops->upload(c, dy, y, bytes);
    for (size_t i = 0; i < n; i++) sum[i] = (double)y[i];
    c->ops->head_norm(c, dy, dg, 1, T, d, 1e-5f);
    free(got);
    got = from_device(c, dy, bytes);
    check_norm("head_norm", got, sum, g, T, d);
    dev_addr all[] = {dx, dy, out, dg};
    for (int i = 0; i < 4; i++) c->ops->mem_free(c, all[i]);
    free(got);
    free(left);
    free(sum);
    free(x);
    free(y);
    free(g);
}

static void norms_right(struct kctx *c) {
    static const int32_t sizes[] = {1, 15, 16, 64, 65, 100, 576, 2049};
    for (int i = 0; i < 8; i++) norms_of_size(c, random_int(1, 30), sizes[i]);
}

/* --- rotary positions ------------------------------------------------------------------------- */

static double frequency(const struct rope_freqs *f, const float *inv, int32_t len, int32_t i) {
    if (f->ntk_factor <= 0 || len <= f->original_len) return (double)inv[i];
    double e = f->head_dim, k = (double)f->ntk_factor;
    return pow((double)f->base * pow(k * len / f->original_len - (k - 1), e / (e - 2)), -2 * i / e);
}

static void table_right(struct kctx *c, float ntk_factor) {
    enum { T = 9, E = 20 };
    int32_t pos[T], len[T];
    float inv[E / 2];
    for (int t = 0; t < T; t++) {
        pos[t] = random_int(0, 300);
        len[t] = random_int(1, 600);
    }
    for (int i = 0; i < E / 2; i++) inv[i] = powf(10000, -2.0f * (float)i / E);
    struct rope_freqs f = {.head_dim = E, .scale = 1.25f, .base = 10000, .ntk_factor = ntk_factor,
                           .original_len = 256, .inv_freq = to_device(c, inv, sizeof inv)};
    dev_addr out = to_device(c, NULL, T * E * 4);
    c->ops->rope_table(c, out, &f, to_device(c, pos, sizeof pos), to_device(c, len, sizeof len), T);
    float *got = from_device(c, out, T * E * 4);
    for (int t = 0; t < T; t++)
        for (int i = 0; i < E / 2; i++) {
            double angle = pos[t] * frequency(&f, inv, len[t], i);
            assert_near("cos", got[t * E + i], 1.25 * cos(angle), 1e-4);
            assert_near("sin", got[t * E + E / 2 + i], 1.25 * sin(angle), 1e-4);
        }
    free(got);
}

static void tables_right(struct kctx *c) {
    table_right(c, 0);
    table_right(c, 4);
}

static void turned(const float *x, const float *cs, int32_t e, float *out) {
    for (int32_t i = 0; i < e / 2; i++) {
        out[i] = x[i] * cs[i] - x[i + e / 2] * cs[e / 2 + i];
        out[i + e / 2] = x[i + e / 2] * cs[i] + x[i] * cs[e / 2 + i];
    }
}

/* Element i of the vector that begins at element `at`. */
static float cached(enum dtype type, const void *cache, size_t at, int i, int E) {
    float x[64];
    dtype_row_to_f32(type, (const uint8_t *)cache + dtype_row_bytes(type, (int64_t)at), x, E);
    return x[i];
}

/* What the cache should hold of x[i]. Q8_0: to half a step, of which 127 make the block's largest. */
static bool is_kept(enum dtype type, float got, const float *x, int i) {
    float largest = 0;
    for (int k = i / 32 * 32; type == DTYPE_Q8_0 && k < i / 32 * 32 + 32; k++)
        largest = fmaxf(largest, fabsf(x[k]));
    if (type == DTYPE_Q8_0) return fabsf(got - x[i]) <= largest / 127 * 0.57f;
    float want = type == DTYPE_F16    ? f16_to_f32(f32_to_f16(x[i]))
           : type == DTYPE_BF16 ? bf16_to_f32(f32_to_bf16(x[i]))
                                : x[i];
    return got == want;
}

static void rope_kv_of_type(struct kctx *c, enum dtype type) {
    enum { T = 5, H = 3, K = 2, BLOCK = 4, BLOCKS = 7, MAX = 3 };
    int E = type == DTYPE_Q8_0 ? 64 : 36;
    static const int32_t pos[T] = {3, 4, 5, 0, 11}, seq[T] = {0, 0, 0, 1, 2};
    static const int32_t blocks[3 * MAX] = {5, 2, 0, 1, 0, 0, 6, 4, 3};
    size_t cache_bytes = (size_t)BLOCKS * K * BLOCK * dtype_row_bytes(type, E);
    float *q = random_floats((size_t)(T * H * E)), *k = random_floats((size_t)(T * K * E));
    float *v = random_floats((size_t)(T * K * E)), *cs = random_floats((size_t)(T * E)), want[64];
    struct kv_view kv = {type, BLOCKS, BLOCK, K, E, to_device(c, NULL, cache_bytes),
                         to_device(c, NULL, cache_bytes)};
    struct step_rows rows = {T, 3, MAX, to_device(c, pos, sizeof pos),
                             to_device(c, seq, sizeof seq),
                             to_device(c, blocks, sizeof blocks)};
    size_t q_bytes = (size_t)(T * H * E) * 4, k_bytes = (size_t)(T * K * E) * 4;
    dev_addr dq = to_device(c, q, q_bytes), dk = to_device(c, k, k_bytes);
    c->ops->rope_kv(c, dq, H, dk, to_device(c, v, k_bytes), to_device(c, cs, (size_t)(T * E) * 4), &kv,
                    &rows);
    float *got_q = from_device(c, dq, q_bytes), *got_k = from_device(c, dk, k_bytes);
    void *keys = from_device(c, kv.k, cache_bytes), *values = from_device(c, kv.v, cache_bytes);
    for (int t = 0; t < T; t++) {
        for (int h = 0; h < H; h++) {
            turned(q + (t * H + h) * E, cs + t * E, E, want);
            for (int i = 0; i < E; i++)
                assert_near("q", got_q[(t * H + h) * E + i], (double)want[i], 2e-7);
        }
        for (int h = 0; h < K; h++) {
            int block = blocks[seq[t] * MAX + pos[t] / BLOCK];
            size_t at = (size_t)(((block * K + h) * BLOCK + pos[t] % BLOCK) * E);
            turned(k + (t * K + h) * E, cs + t * E, E, want);
            for (int i = 0; i < E; i++) {
                const float *turned_k = got_k + (t * K + h) * E, *own_v = v + (t * K + h) * E;
                assert_near("k", turned_k[i], (double)want[i], 2e-7);
                assert_true(is_kept(type, cached(type, keys, at, i, E), turned_k, i));
                assert_true(is_kept(type, cached(type, values, at, i, E), own_v, i));
            }
        }
    }
    void *all[] = {q, k, v, cs, got_q, got_k, keys, values};
    for (int i = 0; i < 8; i++) free(all[i]);
}

static void rope_kv_right(struct kctx *c) {
    for (int type = DTYPE_F32; type <= DTYPE_BF16; type++) rope_kv_of_type(c, (enum dtype)type);
    rope_kv_of_type(c, DTYPE_Q8_0);
}

/* --- elements --------------------------------------------------------------------------------- */

static void silu_right(struct kctx *c) {
    enum { N = 3 * 61 };
    static const float edges[] = {0, -0.0f, 1e-20f, 60, -60, 89, -89, 1000, -1000, 3e38f, -3e38f};
    float *gate = random_floats(N), *up = random_floats(N);
    for (size_t i = 0; i < N; i++) gate[i] *= 20;
    memcpy(gate, edges, sizeof edges);
    dev_addr dg = to_device(c, gate, N * 4), du = to_device(c, up, N * 4);
    c->ops->silu_mul(c, dg, dg, du, 3, 61);
    float *got = from_device(c, dg, N * 4);
    for (size_t i = 0; i < N; i++) {
        double want = (double)gate[i] / (1 + exp(-(double)gate[i])) * (double)up[i];
        assert_near("silu_mul", got[i], want, 1e-6 * fabs(want) + 1e-30);
    }
    free(got);
    free(gate);
    free(up);
}

static void copies_right(struct kctx *c) {
    enum { T = 7, D = 19 };
    static const int32_t index[3] = {6, 0, 6};
    float *x = random_floats(T * D);
    dev_addr dx = to_device(c, x, T * D * 4), out = to_device(c, NULL, 3 * D * 4);
    c->ops->gather_rows(c, out, dx, to_device(c, index, sizeof index), 3, D);
    c->ops->scale(c, dx, 2 * D, 0.5f);
    float nan = NAN;
    c->ops->upload(c, dx + 2 * D * 4, &nan, 4);
    c->ops->scale(c, dx + 2 * D * 4, 1, 0);
    float *rows = from_device(c, out, 3 * D * 4), *scaled = from_device(c, dx, T * D * 4);
    for (int i = 0; i < 3; i++) assert_memory_equal(rows + i * D, x + index[i] * D, D * 4);
    for (int i = 0; i < T * D; i++)
        assert_true(scaled[i] == (i < 2 * D ? 0.5f * x[i] : i == 2 * D ? 0 : x[i]));
    free(rows);
    free(scaled);
    free(x);
}

#define AT_EVERY_LEVEL(name, body)    \
    static void name(void **state) {  \
        (void)state;                  \
        on_every_level(body);         \
    }
AT_EVERY_LEVEL(norms_are_right, norms_right)
AT_EVERY_LEVEL(rope_table_is_right_with_and_without_dynamic_scaling, tables_right)
AT_EVERY_LEVEL(rope_kv_turns_and_stores_in_the_rows_block, rope_kv_right)
AT_EVERY_LEVEL(silu_is_right_to_the_ends_of_the_range, silu_right)
AT_EVERY_LEVEL(gather_and_scale_are_right, copies_right)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norms_are_right),
        cmocka_unit_test(rope_table_is_right_with_and_without_dynamic_scaling),
        cmocka_unit_test(rope_kv_turns_and_stores_in_the_rows_block),
        cmocka_unit_test(silu_is_right_to_the_ends_of_the_range),
        cmocka_unit_test(gather_and_scale_are_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
