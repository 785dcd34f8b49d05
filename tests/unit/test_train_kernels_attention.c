/* Attention of training against double arithmetic: forward, lse, and gradients, which are held to
 * central differences of the double forward too. */
#include "tests/unit/kernels_fixture.h"

struct shape {
    int32_t T, H, K, e, window, gap; /* gap: floats between the rows of out */
    float scale;
    int32_t kv_of_head[9];
    int32_t n_starts, starts[4]; /* rows where packed sequences begin, after row 0 */
};

static const struct shape shapes[] = {
    {1, 1, 1, 64, 0, 0, 0.125f, {0}, 0, {0}},
    {40, 3, 1, 20, 0, 4, 0.2f, {0, 0, 0}, 2, {7, 30}},
    {97, 2, 2, 16, 0, 0, 0.25f, {1, 0}, 0, {0}},
    {230, 3, 2, 36, 0, 8, 0.3f, {0, 0, 1}, 3, {1, 95, 150}},
    {300, 2, 1, 64, 0, 0, 0.125f, {0, 0}, 0, {0}},
    {300, 2, 2, 48, 70, 0, 0.15f, {0, 1}, 1, {130}},
    {200, 1, 2, 8, 1, 0, 0.5f, {1}, 0, {0}}, /* a KV head that nobody reads; only oneself seen */
    {290, 2, 2, 130, 200, 2, 0.09f, {0, 1}, 1, {288}},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

/* Everything of one call, on the host. */
struct arrays {
    const struct shape *s;
    int32_t *first;
    float *q, *k, *v, *dout; /* dout has the stride of out */
    size_t n_q, n_kv, stride, n_out;
};

static struct arrays random_arrays(const struct shape *s) {
    struct arrays a = {.s = s, .first = malloc((size_t)s->T * 4)};
    int32_t start = 0;
    for (int32_t t = 0, i = 0; t < s->T; t++) {
        if (i < s->n_starts && s->starts[i] == t) start = s->starts[i++];
        a.first[t] = start;
    }
    a.stride = (size_t)(s->H * s->e + s->gap);
    a.n_q = (size_t)(s->T * s->H * s->e);
    a.n_kv = (size_t)(s->T * s->K * s->e);
    a.n_out = (size_t)s->T * a.stride;
    a.q = random_floats(a.n_q);
    a.k = random_floats(a.n_kv);
    a.v = random_floats(a.n_kv);
    a.dout = random_floats(a.n_out);
    return a;
}

static void free_arrays(struct arrays *a) {
    void *all[] = {a->first, a->q, a->k, a->v, a->dout};
    for (int i = 0; i < 5; i++) free(all[i]);
}

/* --- the reference --------------------------------------------------------------------------- */

static int32_t first_seen(const struct arrays *a, int32_t t) {
    int32_t w = a->s->window;
    return w > 0 && t - w + 1 > a->first[t] ? t - w + 1 : a->first[t];
}

/* The weights of row t, head h over the keys from first_seen; returns the log of their sum. */
static double weights_of(const struct arrays *a, int32_t t, int32_t h, double *p) {
    const struct shape *s = a->s;
    const float *q = a->q + (t * s->H + h) * s->e;
    int32_t from = first_seen(a, t), kv = s->kv_of_head[h];
    double max = -INFINITY, sum = 0;
    for (int32_t j = from; j <= t; j++) {
        double score = 0;
        for (int32_t i = 0; i < s->e; i++)
            score += (double)q[i] * (double)a->k[(j * s->K + kv) * s->e + i];
        p[j - from] = score * (double)s->scale;
        if (p[j - from] > max) max = p[j - from];
    }
    for (int32_t j = from; j <= t; j++) sum += p[j - from] = exp(p[j - from] - max);
    for (int32_t j = from; j <= t; j++) p[j - from] /= sum;
    return max + log(sum);
}

struct reference {
    double *out, *lse, *dq, *dk, *dv;
};

static void reference_row(const struct arrays *a, int32_t t, int32_t h, double *p,
                          struct reference *r) {
    const struct shape *s = a->s;
    int32_t from = first_seen(a, t), e = s->e, kv = s->kv_of_head[h];
    double *out = r->out + (size_t)t * a->stride + h * e, mean = 0;
    const float *dout = a->dout + (size_t)t * a->stride + h * e;
    r->lse[t * s->H + h] = weights_of(a, t, h, p);
    for (int32_t j = from; j <= t; j++)
        for (int32_t i = 0; i < e; i++)
            out[i] += p[j - from] * (double)a->v[(j * s->K + kv) * e + i];
    for (int32_t i = 0; i < e; i++) mean += out[i] * (double)dout[i];
    for (int32_t j = from; j <= t; j++) {
        int32_t at = (j * s->K + kv) * e, q_at = (t * s->H + h) * e;
        double dp = 0;
        for (int32_t i = 0; i < e; i++) dp += (double)dout[i] * (double)a->v[at + i];
        double ds = p[j - from] * (dp - mean) * (double)s->scale;
        for (int32_t i = 0; i < e; i++) {
            r->dv[at + i] += p[j - from] * (double)dout[i];
            r->dq[q_at + i] += ds * (double)a->k[at + i];
            r->dk[at + i] += ds * (double)a->q[q_at + i];
        }
    }
}

static struct reference reference_of(const struct arrays *a) {
    struct reference r = {calloc(a->n_out, sizeof(double)),
                          calloc((size_t)(a->s->T * a->s->H), sizeof(double)),
                          calloc(a->n_q, sizeof(double)), calloc(a->n_kv, sizeof(double)),
                          calloc(a->n_kv, sizeof(double))};
    double *p = malloc((size_t)a->s->T * sizeof *p);
    for (int32_t t = 0; t < a->s->T; t++)
        for (int32_t h = 0; h < a->s->H; h++) reference_row(a, t, h, p, &r);
    free(p);
    return r;
}

static void free_reference(struct reference *r) {
    double *all[] = {r->out, r->lse, r->dq, r->dk, r->dv};
    for (int i = 0; i < 5; i++) free(all[i]);
}

/* --- what the kernels say -------------------------------------------------------------------- */

struct answer {
    float *out, *lse, *dq, *dk, *dv;
};

static struct answer answer_of(struct kctx *c, const struct arrays *a) {
    const struct shape *s = a->s;
    size_t q_bytes = a->n_q * 4, kv_bytes = a->n_kv * 4, lse_bytes = (size_t)(s->T * s->H) * 4;
    float *dirt = random_floats(a->n_q > a->n_kv ? a->n_q : a->n_kv);
    dev_addr q = to_device(c, a->q, q_bytes), k = to_device(c, a->k, kv_bytes);
    dev_addr v = to_device(c, a->v, kv_bytes), dout = to_device(c, a->dout, a->n_out * 4);
    dev_addr out = to_device(c, NULL, a->n_out * 4), lse = to_device(c, NULL, lse_bytes);
    dev_addr first = to_device(c, a->first, (size_t)s->T * 4);
    dev_addr dq = to_device(c, dirt, q_bytes), dk = to_device(c, dirt, kv_bytes);
    dev_addr dv = to_device(c, dirt, kv_bytes);
    c->ops->attention_rows(c, out, (int32_t)a->stride, lse, q, s->H, k, v, s->K, s->kv_of_head,
                           s->e, first, s->T, s->scale, s->window);
    c->ops->attention_rows_dx(c, dq, dk, dv, dout, out, (int32_t)a->stride, lse, q, s->H, k, v,
                              s->K, s->kv_of_head, s->e, first, s->T, s->scale, s->window);
    struct answer r = {from_device(c, out, a->n_out * 4), from_device(c, lse, lse_bytes),
                       from_device(c, dq, q_bytes), from_device(c, dk, kv_bytes),
                       from_device(c, dv, kv_bytes)};
    dev_addr all[] = {q, k, v, dout, out, lse, first, dq, dk, dv};
    for (int i = 0; i < 10; i++) c->ops->mem_free(c, all[i]);
    free(dirt);
    return r;
}

static void free_answer(struct answer *r) {
    float *all[] = {r->out, r->lse, r->dq, r->dk, r->dv};
    for (int i = 0; i < 5; i++) free(all[i]);
}

static void all_near(const char *what, const float *got, const double *want, size_t n) {
    for (size_t i = 0; i < n; i++) assert_near(what, got[i], want[i], 1e-5 + 1e-5 * fabs(want[i]));
}

static void attention_matches_doubles(struct kctx *c) {
    for (int i = 0; i < SHAPES; i++) {
        struct arrays a = random_arrays(&shapes[i]);
        struct reference want = reference_of(&a);
        struct answer got = answer_of(c, &a);
        all_near("out", got.out, want.out, a.n_out); /* zeros in the gaps: they are not written */
        all_near("lse", got.lse, want.lse, (size_t)(a.s->T * a.s->H));
        all_near("dq", got.dq, want.dq, a.n_q);
        all_near("dk", got.dk, want.dk, a.n_kv);
        all_near("dv", got.dv, want.dv, a.n_kv);
        free_answer(&got);
        free_reference(&want);
        free_arrays(&a);
    }
}

static void matches_double_arithmetic_at_every_level(void **state) {
    (void)state;
    on_every_level(attention_matches_doubles);
}

/* --- finite differences ---------------------------------------------------------------------- */

/* sum(dout out), in double */
static double objective(const struct arrays *a) {
    double *p = malloc((size_t)a->s->T * sizeof *p), sum = 0;
    for (int32_t t = 0; t < a->s->T; t++)
        for (int32_t h = 0; h < a->s->H; h++) {
            const float *dout = a->dout + (size_t)t * a->stride + h * a->s->e;
            int32_t from = first_seen(a, t);
            weights_of(a, t, h, p);
            for (int32_t j = from; j <= t; j++) {
                const float *v = a->v + (j * a->s->K + a->s->kv_of_head[h]) * a->s->e;
                for (int32_t i = 0; i < a->s->e; i++)
                    sum += p[j - from] * (double)v[i] * (double)dout[i];
            }
        }
    free(p);
    return sum;
}

/* Some elements of x, spread over all of it, and the last one. */
static void slopes_near(const char *what, const struct arrays *a, float *x, const float *dx,
                        size_t n) {
    enum { PLACES = 12 };
    for (size_t i = 0; i < PLACES; i++) {
        size_t at = i + 1 == PLACES ? n - 1 : i * n / PLACES + random_u32() % (n / PLACES);
        float old = x[at], up = old + 0x1p-7f, down = old - 0x1p-7f;
        x[at] = up;
        double more = objective(a);
        x[at] = down;
        double less = objective(a);
        x[at] = old;
        assert_near(what, dx[at], (more - less) / ((double)up - (double)down), 1e-4);
    }
}

static void gradients_are_the_slopes_of_the_forward(void **state) {
    (void)state;
    struct kctx *c = open_ctx(1, 0, false);
    static const int used[] = {3, 5};
    for (int i = 0; i < 2; i++) {
        struct arrays a = random_arrays(&shapes[used[i]]);
        struct answer got = answer_of(c, &a);
        slopes_near("dq", &a, a.q, got.dq, a.n_q);
        slopes_near("dk", &a, a.k, got.dk, a.n_kv);
        slopes_near("dv", &a, a.v, got.dv, a.n_kv);
        free_answer(&got);
        free_arrays(&a);
    }
    c->ops->close(c);
}

/* --- bits ------------------------------------------------------------------------------------ */

/* Teams that divide the KV heads take them in one pass, others in two. */
static void bits_do_not_depend_on_the_team(void **state) {
    (void)state;
    for (int i = 0; i < SHAPES; i++) {
        struct arrays a = random_arrays(&shapes[i]);
        struct kctx *one = open_ctx(1, 0, false);
        struct answer want = answer_of(one, &a);
        for (int n = 2; n <= 3; n++) {
            struct kctx *many = open_ctx(n, 0, false);
            struct answer got = answer_of(many, &a);
            assert_memory_equal(got.out, want.out, a.n_out * 4);
            assert_memory_equal(got.lse, want.lse, (size_t)(a.s->T * a.s->H) * 4);
            assert_memory_equal(got.dq, want.dq, a.n_q * 4);
            assert_memory_equal(got.dk, want.dk, a.n_kv * 4);
            assert_memory_equal(got.dv, want.dv, a.n_kv * 4);
            free_answer(&got);
            many->ops->close(many);
        }
        free_answer(&want);
        one->ops->close(one);
        free_arrays(&a);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matches_double_arithmetic_at_every_level),
        cmocka_unit_test(gradients_are_the_slopes_of_the_forward),
        cmocka_unit_test(bits_do_not_depend_on_the_team),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
