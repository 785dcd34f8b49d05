/* Products, norms, loss and optimizer of training against double arithmetic, gradients against
 * central differences too; attention has its own file. */
#include "tests/unit/kernels_fixture.h"

static void free_all(struct kctx *c, const dev_addr *all, int n) {
    for (int i = 0; i < n; i++) c->ops->mem_free(c, all[i]);
}

/* --- products -------------------------------------------------------------------------------- */

struct product_case {
    int32_t M, N, K;
    bool ta, tb;
    float alpha, beta;
    bool bf16; /* a and b rounded */
};

static double rounded(bool bf16, float x) {
    return (double)(bf16 ? bf16_to_f32(f32_to_bf16(x)) : x);
}

static void product_right(struct kctx *c, const struct product_case *p) {
    int32_t M = p->M, N = p->N, K = p->K;
    size_t n = (size_t)M * (size_t)N;
    float *a = random_floats((size_t)M * (size_t)K), *b = random_floats((size_t)K * (size_t)N);
    float *old = random_floats(n);
    if (p->beta == 0 && n) old[0] = NAN; /* overwritten, whatever it is */
    dev_addr all[] = {to_device(c, a, (size_t)M * (size_t)K * 4 + 4),
                      to_device(c, b, (size_t)K * (size_t)N * 4 + 4), to_device(c, old, n * 4 + 4)};
    c->ops->matmul(c, all[2], M, N, K, all[0], p->ta, all[1], p->tb, p->alpha, p->beta);
    float *got = from_device(c, all[2], n * 4);
    for (int32_t i = 0; i < M; i++)
        for (int32_t j = 0; j < N; j++) {
            double sum = 0;
            for (int32_t k = 0; k < K; k++)
                sum += rounded(p->bf16, a[p->ta ? k * M + i : i * K + k]) *
                       rounded(p->bf16, b[p->tb ? j * K + k : k * N + j]);
            sum *= (double)p->alpha;
            if (p->beta != 0) sum += (double)p->beta * (double)old[i * N + j];
            assert_near("matmul", got[i * N + j], sum, 1e-6 * (K + 2));
        }
    free_all(c, all, 3);
    free(a);
    free(b);
    free(old);
    free(got);
}

static void products_right(struct kctx *c) {
    static const int32_t sizes[][3] = {{1, 1, 1},    {5, 7, 0},     {16, 100, 33},  {13, 33, 257},
                                       {97, 47, 64}, {25, 530, 20}, {120, 64, 512}, {2, 16, 300}};
    for (int form = 0; form < 4; form++)
        for (int i = 0; i < 8; i++) {
            const int32_t *s = sizes[i];
            float beta = (float)(i % 3) / 2; /* 0, 0.5, 1 */
            product_right(c, &(struct product_case){s[0], s[1], s[2], form & 1, form & 2,
                                                    i % 2 ? 1 : -0.75f, beta, false});
        }
}

/* With bf16_products, operands are those rounded to bf16 where the CPU has the instructions, and
 * sums are as good as ever. */
static void bf16_products_sum_in_fp32(void **state) {
    (void)state;
    static const int32_t sizes[][3] = {{1, 1, 1}, {13, 33, 257}, {97, 47, 64}, {25, 530, 21}, {9, 40, 1100}};
    struct kctx *c = open_options(2, &(struct cpu_options){0});
    bool rounds = kernels_cpu_bf16();
    c->ops->bf16_products(c, true);
    if (!rounds) print_message("[  NOTE    ] this CPU does not multiply bf16: fp32 is tested\n");
    for (int form = 0; form < 4; form++)
        for (int i = 0; i < 5; i++) {
            const int32_t *s = sizes[i];
            product_right(c, &(struct product_case){s[0], s[1], s[2], form & 1, form & 2, 1,
                                                    (float)(i % 2), rounds});
        }
    c->ops->close(c);
}

/* dx of some jobs whose rows and columns are no multiples of anything where the type allows. */
static void linear_dx_right(struct kctx *c, enum dtype type, int32_t T, bool accumulate, bool bf16) {
    int32_t block = dtype_info(type)->block, cols = block == 1 ? 101 : block == 32 ? 608 : 768;
    static const int32_t rows[] = {35, 300};
    struct weight w[2];
    struct linear_job jobs[2];
    size_t n = (size_t)T * (size_t)cols, row_bytes = dtype_row_bytes(type, cols);
    float *old = random_floats(n), *row = malloc((size_t)cols * 4);
    double *want = calloc(n, sizeof *want);
    dev_addr dx = to_device(c, old, n * 4);
    for (size_t i = 0; accumulate && i < n; i++) want[i] = (double)old[i];
    for (int j = 0; j < 2; j++) {
        struct error e;
        uint8_t *data = malloc((size_t)rows[j] * row_bytes);
        float *y = random_floats((size_t)(T * rows[j]));
        for (int32_t r = 0; r < rows[j]; r++) random_row(type, cols, data + (size_t)r * row_bytes);
        assert_int_equal(c->ops->weight_new(c, type, rows[j], cols, &w[j], &e), 0);
        c->ops->weight_put(c, &w[j], 0, rows[j], data, row_bytes);
        jobs[j] = (struct linear_job){&w[j], 0, to_device(c, y, (size_t)(T * rows[j]) * 4)};
        for (int32_t r = 0; r < rows[j]; r++) {
            dtype_row_to_f32(type, data + (size_t)r * row_bytes, row, cols);
            for (int32_t t = 0; t < T; t++)
                for (int32_t i = 0; i < cols; i++)
                    want[t * cols + i] += rounded(bf16, y[t * rows[j] + r]) * rounded(bf16, row[i]);
        }
        free(data);
        free(y);
    }
    c->ops->linear_dx(c, jobs, 2, dx, T, accumulate);
    float *got = from_device(c, dx, n * 4);
    for (size_t i = 0; i < n; i++)
        assert_near(dtype_info(type)->name, got[i], want[i], 2e-5 + 2e-5 * fabs(want[i]));
    for (int j = 0; j < 2; j++) {
        c->ops->mem_free(c, jobs[j].y);
        c->ops->weight_free(c, &w[j]);
    }
    c->ops->mem_free(c, dx);
    free(old);
    free(row);
    free(want);
    free(got);
}

static void linear_dx_of_every_type(struct kctx *c) {
    for (int type = 0; type < DTYPE_COUNT; type++)
        linear_dx_right(c, (enum dtype)type, type % 2 ? 1 : 29, type % 3 == 0, false);
}

/* y of a matrix with a bias, and of one without, that read the same x. */
static void linear_bf16_right(struct kctx *c, enum dtype type, int32_t T, bool bf16) {
    int32_t block = dtype_info(type)->block, cols = block == 1 ? 101 : block == 32 ? 608 : 768;
    static const int32_t rows[] = {35, 600};
    if (type == DTYPE_BF16 && T > 1) cols = 600;
    struct weight w[2];
    struct linear_job jobs[2];
    float *x = random_floats((size_t)(T * cols)), *bias = random_floats(35), *row = malloc((size_t)cols * 4);
    double *want[2];
    size_t row_bytes = dtype_row_bytes(type, cols);
    dev_addr x_at = to_device(c, x, (size_t)(T * cols) * 4);
    for (int j = 0; j < 2; j++) {
        struct error e;
        uint8_t *data = malloc((size_t)rows[j] * row_bytes);
        want[j] = calloc((size_t)(T * rows[j]), sizeof **want);
        for (int32_t r = 0; r < rows[j]; r++) random_row(type, cols, data + (size_t)r * row_bytes);
        assert_int_equal(c->ops->weight_new(c, type, rows[j], cols, &w[j], &e), 0);
        c->ops->weight_put(c, &w[j], 0, rows[j], data, row_bytes);
        jobs[j] = (struct linear_job){&w[j], j ? 0 : to_device(c, bias, sizeof *bias * 35),
                                      to_device(c, NULL, (size_t)(T * rows[j]) * 4)};
        for (int32_t r = 0; r < rows[j]; r++) {
            dtype_row_to_f32(type, data + (size_t)r * row_bytes, row, cols);
            for (int32_t t = 0; t < T; t++) {
                double *y = &want[j][t * rows[j] + r];
                if (j == 0) *y = (double)bias[r];
                for (int32_t i = 0; i < cols; i++)
                    *y += rounded(bf16, x[t * cols + i]) * rounded(bf16, row[i]);
            }
        }
        free(data);
    }
    c->ops->linear(c, jobs, 2, x_at, T);
    for (int j = 0; j < 2; j++) {
        float *got = from_device(c, jobs[j].y, (size_t)(T * rows[j]) * 4);
        for (int32_t i = 0; i < T * rows[j]; i++)
            assert_near(dtype_info(type)->name, got[i], want[j][i], 2e-5 + 2e-5 * fabs(want[j][i]));
        free(got);
        free(want[j]);
        c->ops->mem_free(c, jobs[j].y);
        if (jobs[j].bias) c->ops->mem_free(c, jobs[j].bias);
        c->ops->weight_free(c, &w[j]);
    }
    c->ops->mem_free(c, x_at);
    free(x);
    free(bias);
    free(row);
}

static void weights_of_every_type_multiply_in_bf16(void **state) {
    (void)state;
    struct kctx *c = open_options(2, &(struct cpu_options){0});
    bool rounds = kernels_cpu_bf16();
    c->ops->bf16_products(c, true);
    for (int type = 0; type < DTYPE_COUNT; type++)
        for (int32_t T = 1; T < 30; T += 28) {
            linear_dx_right(c, (enum dtype)type, T, type % 3 == 0, rounds);
            linear_bf16_right(c, (enum dtype)type, T, rounds);
        }
    c->ops->close(c);
}

/* Of every kind of number, at places that no vector ends at. */
static void bf16_and_back_rounds_to_even(struct kctx *c) {
    static const float odd[] = {0, -0.0f, 1, 0x1.01p0f, 0x1.03p0f, -0x1.01p0f, 0x1.010002p0f, 0x1.fffffep127f,
                                INFINITY, -INFINITY, 0x1p-149f, 0x1.8p-134f, NAN};
    enum { N = 1 << 16, ODD = sizeof odd / sizeof *odd };
    float *x = random_floats(N);
    memcpy(x + N - ODD, odd, sizeof odd);
    for (int32_t n = N - 5; n <= N; n += 5) {
        dev_addr from = to_device(c, x, N * 4), to = to_device(c, NULL, N * 2), back = to_device(c, NULL, N * 4);
        c->ops->narrow(c, to, from, (size_t)n);
        c->ops->widen(c, back, to, (size_t)n);
        uint16_t *got = from_device(c, to, N * 2);
        float *wide = from_device(c, back, N * 4);
        for (int32_t i = 0; i < N; i++) {
            assert_int_equal(got[i], i < n ? f32_to_bf16(x[i]) : 0);
            float want = bf16_to_f32(got[i]);
            assert_memory_equal(&wide[i], &want, 4);
        }
        free(got);
        free(wide);
        free_all(c, (dev_addr[]){from, to, back}, 3);
    }
    free(x);
}

static void bias_gradients_right(struct kctx *c) {
    static const int32_t sizes[][2] = {{1, 1}, {70, 33}, {300, 100}};
    for (int s = 0; s < 3; s++) {
        int32_t T = sizes[s][0], n = sizes[s][1];
        float *x = random_floats((size_t)(T * n)), *old = random_floats((size_t)n);
        dev_addr all[] = {to_device(c, x, (size_t)(T * n) * 4), to_device(c, old, (size_t)n * 4)};
        c->ops->col_sum(c, all[1], all[0], T, n);
        float *got = from_device(c, all[1], (size_t)n * 4);
        for (int32_t i = 0; i < n; i++) {
            double sum = (double)old[i];
            for (int32_t t = 0; t < T; t++) sum += (double)x[t * n + i];
            assert_near("col_sum", got[i], sum, 1e-5);
        }
        free_all(c, all, 2);
        free(x);
        free(old);
        free(got);
    }
}

/* --- norms ----------------------------------------------------------------------------------- */

static const double eps = 1e-5f;

/* sum(dy rmsnorm(x)) of one row */
static double norm_objective(const float *x, const float *g, const float *dy, int32_t d) {
    double squares = 0, sum = 0;
    for (int32_t i = 0; i < d; i++) squares += (double)x[i] * (double)x[i];
    for (int32_t i = 0; i < d; i++) sum += (double)dy[i] * (double)x[i] * (double)g[i];
    return sum / sqrt(squares / d + eps);
}

/* How f, a function of all of x, changes with x[i]. */
#define SLOPE(x, i, f)                                                                             \
    ({                                                                                             \
        float old_ = (x)[i], up_ = old_ + 0x1p-8f, down_ = old_ - 0x1p-8f;                         \
        (x)[i] = up_;                                                                              \
        double more_ = (f);                                                                        \
        (x)[i] = down_;                                                                            \
        double less_ = (f);                                                                        \
        (x)[i] = old_;                                                                             \
        (more_ - less_) / ((double)up_ - (double)down_);                                           \
    })

static void norm_gradient_right(struct kctx *c, int32_t T, int32_t d) {
    size_t n = (size_t)(T * d);
    float *x = random_floats(n), *dy = random_floats(n), *g = random_floats((size_t)d);
    float *old = random_floats(n), *old_g = random_floats((size_t)d);
    double *dg = malloc((size_t)d * sizeof *dg);
    dev_addr all[] = {to_device(c, old, n * 4), to_device(c, old_g, (size_t)d * 4),
                      to_device(c, dy, n * 4), to_device(c, x, n * 4),
                      to_device(c, g, (size_t)d * 4)};
    c->ops->rmsnorm_dx(c, all[0], all[1], all[2], all[3], all[4], T, d, (float)eps);
    float *got = from_device(c, all[0], n * 4), *got_g = from_device(c, all[1], (size_t)d * 4);
    for (int32_t i = 0; i < d; i++) dg[i] = (double)old_g[i];
    for (int32_t t = 0; t < T; t++) {
        float *xt = x + t * d, *dyt = dy + t * d;
        for (int32_t i = 0; i < d; i++) {
            double slope = SLOPE(xt, i, norm_objective(xt, g, dyt, d));
            assert_near("rmsnorm_dx", got[t * d + i], (double)old[t * d + i] + slope, 3e-4);
            dg[i] += SLOPE(g, i, norm_objective(xt, g, dyt, d));
        }
    }
    for (int32_t i = 0; i < d; i++) assert_near("dg", got_g[i], dg[i], 2e-5);
    c->ops->upload(c, all[0], old, n * 4);
    c->ops->rmsnorm_dx(c, all[0], 0, all[2], all[3], all[4], T, d, (float)eps); /* without dg */
    float *again = from_device(c, all[0], n * 4);
    assert_memory_equal(again, got, n * 4);
    free_all(c, all, 5);
    void *host[] = {x, dy, g, old, old_g, dg, got, got_g, again};
    for (int i = 0; i < 9; i++) free(host[i]);
}

static void norm_gradients_right(struct kctx *c) {
    norm_gradient_right(c, 75, 16);
    norm_gradient_right(c, 5, 100);
    norm_gradient_right(c, 40, 65);
}

/* --- rotation and activation ----------------------------------------------------------------- */

/* The table may be scaled (yarn): "back" is then the gradient, the transposed map, and no inverse. */
static void rotation_and_back(struct kctx *c) {
    enum { T = 70, HEADS = 3, E = 36, N = T * HEADS * E };
    const double scale = 1.25;
    float *x = random_floats(N), cs[T * E];
    for (int t = 0; t < T; t++)
        for (int i = 0; i < E / 2; i++) {
            double angle = 0.7 * t + 0.3 * i;
            cs[t * E + i] = (float)(scale * cos(angle));
            cs[t * E + E / 2 + i] = (float)(scale * sin(angle));
        }
    dev_addr all[] = {to_device(c, x, N * 4), to_device(c, cs, sizeof cs)};
    c->ops->rope_rows(c, all[0], HEADS, all[1], T, E, false);
    float *got = from_device(c, all[0], N * 4);
    for (int t = 0; t < T; t++)
        for (int h = 0; h < HEADS; h++)
            for (int i = 0; i < E / 2; i++) {
                const float *u = x + (t * HEADS + h) * E + i, *y = got + (t * HEADS + h) * E + i;
                double angle = 0.7 * t + 0.3 * i, k = scale * cos(angle), s = scale * sin(angle);
                assert_near("rope_rows", y[0], (double)u[0] * k - (double)u[E / 2] * s, 1e-6);
                assert_near("rope_rows", y[E / 2], (double)u[E / 2] * k + (double)u[0] * s, 1e-6);
            }
    c->ops->rope_rows(c, all[0], HEADS, all[1], T, E, true);
    float *back = from_device(c, all[0], N * 4);
    for (int i = 0; i < N; i++) assert_near("rotated back", back[i], scale * scale * (double)x[i], 2e-6);
    free_all(c, all, 2);
    free(x);
    free(got);
    free(back);
}

static double silu_mul_of(double gate, double up) {
    return gate / (1 + exp(-gate)) * up;
}

static void activation_gradient_right(struct kctx *c) {
    enum { T = 37, F = 33, N = T * F };
    const double h = 1e-4;
    float *gate = random_floats(N), *up = random_floats(N), *dout = random_floats(N);
    for (int i = 0; i < N; i++) gate[i] *= 12;
    gate[0] = 200; /* far out, either way */
    gate[1] = -200;
    for (int alias = 0; alias < 2; alias++) { /* results over their inputs */
        dev_addr all[] = {to_device(c, gate, N * 4), to_device(c, up, N * 4),
                          to_device(c, dout, N * 4), to_device(c, NULL, N * 4)};
        dev_addr dgate = alias ? all[0] : all[3], dup = alias ? all[1] : all[2];
        c->ops->silu_mul_dx(c, dgate, dup, all[2], all[0], all[1], T, F);
        float *got_g = from_device(c, dgate, N * 4), *got_u = from_device(c, dup, N * 4);
        for (int i = 0; i < N; i++) {
            double g = (double)gate[i], u = (double)up[i], d = (double)dout[i];
            double slope = (silu_mul_of(g + h, u) - silu_mul_of(g - h, u)) / (2 * h);
            assert_near("dgate", got_g[i], d * slope, 2e-6);
            assert_near("dup", got_u[i], d * silu_mul_of(g, 1), 2e-6 + 2e-7 * fabs(g));
        }
        free_all(c, all, 4);
        free(got_g);
        free(got_u);
    }
    free(gate);
    free(up);
    free(dout);
}

/* --- cross entropy --------------------------------------------------------------------------- */

enum { CE_ROWS = 40, CE_WORDS = 203 };

static double ce_objective(const float *row, int32_t label) {
    double max = -INFINITY, sum = 0;
    for (int i = 0; i < CE_WORDS; i++) max = (double)row[i] > max ? (double)row[i] : max;
    for (int i = 0; i < CE_WORDS; i++) sum += exp((double)row[i] - max);
    return log(sum) + max - (double)row[label];
}

struct ce_arrays {
    float *logits, weight[CE_ROWS];
    int32_t labels[CE_ROWS];
};

/* The columns of shard r of n; the last of 3 shards has none. */
static void ce_shard(int r, int n, int32_t *first, int32_t *count) {
    static const int32_t ends[4][4] = {
        {0}, {0, CE_WORDS}, {0, 100, CE_WORDS}, {0, 77, CE_WORDS, CE_WORDS}};
    *first = ends[n][r];
    *count = ends[n][r + 1] - ends[n][r];
}

/* One context plays all shards. grad and loss: as a whole. */
static void ce_sharded(struct kctx *c, const struct ce_arrays *a, int n, float *grad, float *loss) {
    float all_stats[CE_ROWS * 3 * 3];
    dev_addr logits[3], labels = to_device(c, a->labels, sizeof a->labels);
    dev_addr weight = to_device(c, a->weight, sizeof a->weight);
    dev_addr stats = to_device(c, NULL, sizeof all_stats), out = to_device(c, NULL, CE_ROWS * 4);
    for (int r = 0; r < n; r++) {
        int32_t first, count;
        ce_shard(r, n, &first, &count);
        float *part = malloc((size_t)(CE_ROWS * count + 1) * 4);
        for (int t = 0; t < CE_ROWS; t++)
            memcpy(part + t * count, a->logits + t * CE_WORDS + first, (size_t)count * 4);
        logits[r] = count ? to_device(c, part, (size_t)(CE_ROWS * count) * 4) : 0;
        c->ops->ce_stats(c, stats, logits[r], labels, CE_ROWS, count, first);
        float *own = from_device(c, stats, CE_ROWS * 3 * 4);
        for (int t = 0; t < CE_ROWS; t++) memcpy(all_stats + (t * n + r) * 3, own + t * 3, 12);
        free(own);
        free(part);
    }
    c->ops->upload(c, stats, all_stats, sizeof all_stats);
    for (int r = 0; r < n; r++) {
        int32_t first, count;
        ce_shard(r, n, &first, &count);
        c->ops->ce_grad(c, out, logits[r], stats, n, labels, weight, CE_ROWS, count, first);
        float *own_loss = from_device(c, out, CE_ROWS * 4);
        if (r > 0) assert_memory_equal(loss, own_loss, CE_ROWS * 4); /* every shard the same */
        memcpy(loss, own_loss, CE_ROWS * 4);
        free(own_loss);
        if (!count) continue;
        float *part = from_device(c, logits[r], (size_t)(CE_ROWS * count) * 4);
        for (int t = 0; t < CE_ROWS; t++)
            memcpy(grad + t * CE_WORDS + first, part + t * count, (size_t)count * 4);
        free(part);
        c->ops->mem_free(c, logits[r]);
    }
    free_all(c, (dev_addr[]){labels, weight, stats, out}, 4);
}

static struct ce_arrays ce_inputs(void) {
    struct ce_arrays a = {.logits = random_floats(CE_ROWS * CE_WORDS)};
    for (int i = 0; i < CE_ROWS * CE_WORDS; i++) a.logits[i] *= 8;
    for (int t = 0; t < CE_ROWS; t++) {
        a.labels[t] = t % 5 == 4 ? -100 : random_int(0, CE_WORDS - 1);
        a.weight[t] = random_float();
    }
    a.labels[0] = CE_WORDS - 1;
    for (int i = 0; i < CE_WORDS; i++) a.logits[CE_WORDS + i] += 500; /* far from 0 */
    a.logits[2 * CE_WORDS + a.labels[2]] = -300;                      /* a label nobody expects */
    return a;
}

static void cross_entropy_right(struct kctx *c) {
    struct ce_arrays a = ce_inputs();
    float *grad = malloc(CE_ROWS * CE_WORDS * 4), loss[CE_ROWS];
    for (int n = 1; n <= 3; n++) {
        ce_sharded(c, &a, n, grad, loss);
        for (int t = 0; t < CE_ROWS; t++) {
            float *row = a.logits + t * CE_WORDS;
            int32_t label = a.labels[t];
            double want = label < 0 ? 0 : ce_objective(row, label);
            assert_near("loss", loss[t], want, 1e-5 + 1e-6 * fabs(want));
            for (int i = 0; i < CE_WORDS; i++) {
                if (label < 0) assert_true(grad[t * CE_WORDS + i] == 0);
                else if (i == label || i % 16 == t % 16)
                    assert_near("dlogits", grad[t * CE_WORDS + i],
                                (double)a.weight[t] * SLOPE(row, i, ce_objective(row, label)),
                                2e-5);
            }
        }
    }
    free(grad);
    free(a.logits);
}

/* A model that has gone astray must not look well: one NaN anywhere is a NaN loss. */
static void nan_is_not_lost(struct kctx *c) {
    struct ce_arrays a = ce_inputs();
    float *grad = malloc(CE_ROWS * CE_WORDS * 4), loss[CE_ROWS];
    static const int where[] = {0, 80, 160, 201, CE_WORDS - 1};
    for (int i = 0; i < 5; i++) {
        float old = a.logits[where[i]];
        a.logits[where[i]] = NAN;
        for (int n = 1; n <= 3; n++) {
            ce_sharded(c, &a, n, grad, loss);
            assert_true(isnan(loss[0]));
            assert_false(isnan(loss[1]));
        }
        a.logits[where[i]] = old;
    }
    free(grad);
    free(a.logits);
}

/* --- embedding ------------------------------------------------------------------------------- */

static void embedding_right(struct kctx *c) {
    enum { T = 90, D = 69, V = 11, FIRST = 5 };
    int32_t ids[T];
    float *dx = random_floats(T * D), *table = random_floats(V * D);
    double want[V * D];
    for (int t = 0; t < T; t++) ids[t] = random_int(0, 20); /* many twice, some of other shards */
    for (int i = 0; i < V * D; i++) want[i] = (double)table[i];
    for (int t = 0; t < T; t++)
        for (int i = 0; i < D; i++)
            if (ids[t] >= FIRST && ids[t] < FIRST + V)
                want[(ids[t] - FIRST) * D + i] += 1.5 * (double)dx[t * D + i];
    dev_addr all[] = {to_device(c, table, V * D * 4), to_device(c, dx, T * D * 4),
                      to_device(c, ids, sizeof ids)};
    c->ops->embed_rows(c, all[1], all[0], all[2], T, D, V, FIRST, 0.5f);
    float *rows = from_device(c, all[1], T * D * 4);
    for (int t = 0; t < T; t++)
        for (int i = 0; i < D; i++) {
            bool here = ids[t] >= FIRST && ids[t] < FIRST + V;
            assert_true(rows[t * D + i] == (here ? 0.5f * table[(ids[t] - FIRST) * D + i] : 0));
        }
    c->ops->upload(c, all[1], dx, T * D * 4);
    c->ops->embed_grad(c, all[0], all[1], all[2], T, D, V, FIRST, 1.5f);
    float *got = from_device(c, all[0], V * D * 4);
    for (int i = 0; i < V * D; i++) assert_near("embed_grad", got[i], want[i], 1e-5);
    free_all(c, all, 3);
    free(dx);
    free(table);
    free(rows);
    free(got);
}

/* --- flat arrays ----------------------------------------------------------------------------- */

static void sums_right(struct kctx *c) {
    static const size_t sizes[] = {1, 31, 70001};
    for (int s = 0; s < 3; s++) {
        size_t n = sizes[s];
        float *x = random_floats(n), *y = random_floats(n), sum = 0.25f;
        double want = 0.25;
        dev_addr all[] = {to_device(c, x, n * 4), to_device(c, y, n * 4), to_device(c, &sum, 4),
                          to_device(c, NULL, n * 4)};
        c->ops->axpy(c, all[1], all[0], n, -2.5f);
        float *got = from_device(c, all[1], n * 4);
        for (size_t i = 0; i < n; i++) {
            assert_near("axpy", got[i], (double)y[i] - 2.5 * (double)x[i], 1e-6);
            want += (double)x[i] * (double)x[i];
        }
        c->ops->sum_squares(c, all[2], all[0], n);
        float *squares = from_device(c, all[2], 4);
        assert_near("sum_squares", *squares, want, 1e-7 * want);
        c->ops->copy(c, all[3], all[0], n * 4);
        float *copy = from_device(c, all[3], n * 4);
        assert_memory_equal(copy, x, n * 4);
        free_all(c, all, 4);
        void *host[] = {x, y, got, squares, copy};
        for (int i = 0; i < 5; i++) free(host[i]);
    }
}

static float *dropped(struct kctx *c, const float *x, int32_t T, int32_t cols, int32_t stride,
                      int32_t col, float p, uint64_t seed, uint64_t first) {
    size_t bytes = (size_t)(T * cols) * 4;
    dev_addr all[] = {to_device(c, x, bytes), to_device(c, NULL, bytes)};
    c->ops->dropout(c, all[1], all[0], T, cols, stride, col, p, seed, first);
    float *got = from_device(c, all[1], bytes);
    free_all(c, all, 2);
    return got;
}

/* A rank that holds some columns draws what the whole would have drawn for them. */
static void dropout_is_the_same_for_a_part(struct kctx *c) {
    enum { T = 60, COLS = 500, COL = 123, PART = 77 };
    float *ones = malloc(T * COLS * 4);
    for (int i = 0; i < T * COLS; i++) ones[i] = 1;
    float *whole = dropped(c, ones, T, COLS, COLS, 0, 0.3f, 7, 1000);
    float *part = dropped(c, ones, T, PART, COLS, COL, 0.3f, 7, 1000);
    float *other = dropped(c, ones, T, COLS, COLS, 0, 0.3f, 8, 1000);
    float *next = dropped(c, ones, T, COLS, COLS, 0, 0.3f, 7, 1000 + T * COLS);
    double sum = 0, agree = 0, follow = 0;
    for (int t = 0; t < T; t++)
        assert_memory_equal(part + t * PART, whole + t * COLS + COL, PART * 4);
    for (int i = 0; i < T * COLS; i++) {
        assert_true(whole[i] == 0 || whole[i] == 1 / (1 - 0.3f));
        sum += (double)whole[i];
        agree += (whole[i] == 0) == (other[i] == 0);
        follow += (whole[i] == 0) == (next[i] == 0);
    }
    assert_near("mean", (float)(sum / (T * COLS)), 1, 0.02);
    assert_near("seeds", (float)(agree / (T * COLS)), 0.58, 0.02); /* 0.7^2 + 0.3^2 */
    assert_near("ranges", (float)(follow / (T * COLS)), 0.58, 0.02);
    float *all = dropped(c, ones, 1, COLS, COLS, 0, 0, 7, 0),
          *none = dropped(c, ones, 1, COLS, COLS, 0, 1, 7, 0);
    for (int i = 0; i < COLS; i++) assert_true(all[i] == 1 && none[i] == 0);
    void *host[] = {ones, whole, part, other, next, all, none};
    for (int i = 0; i < 7; i++) free(host[i]);
}

static void adamw_right(struct kctx *c) {
    enum { N = 9001, STEPS = 3 };
    struct adamw_params a = {0.01f, 0.9f, 0.95f, 1e-8f, 0.1f, 0, 0};
    float *p = random_floats(N), *g = random_floats(N);
    double *q = malloc(N * sizeof *q), *m = calloc(N, sizeof *m), *v = calloc(N, sizeof *v);
    dev_addr all[] = {to_device(c, p, N * 4), to_device(c, g, N * 4), to_device(c, NULL, N * 4),
                      to_device(c, NULL, N * 4)};
    for (int i = 0; i < N; i++) q[i] = (double)p[i];
    for (int step = 1; step <= STEPS; step++) {
        double c1 = 1 - pow((double)a.beta1, step), c2 = 1 - pow((double)a.beta2, step);
        a.c1 = (float)c1;
        a.c2 = (float)c2;
        c->ops->adamw(c, all[0], all[1], all[2], all[3], N, &a, 0.5f);
        for (int i = 0; i < N; i++) {
            double grad = 0.5 * (double)g[i];
            m[i] = (double)a.beta1 * m[i] + (1 - (double)a.beta1) * grad;
            v[i] = (double)a.beta2 * v[i] + (1 - (double)a.beta2) * grad * grad;
            q[i] -= (double)a.lr *
                    (m[i] / c1 / (sqrt(v[i] / c2) + (double)a.eps) + (double)a.weight_decay * q[i]);
        }
    }
    float *got = from_device(c, all[0], N * 4);
    for (int i = 0; i < N; i++) assert_near("adamw", got[i], q[i], 1e-6);
    free_all(c, all, 4);
    void *host[] = {p, g, q, m, v, got};
    for (int i = 0; i < 6; i++) free(host[i]);
}

/* --- bits ------------------------------------------------------------------------------------ */

/* Results of every operation that sums over what members might share. */
struct results {
    float *all;
    size_t n;
};

static void keep(struct kctx *c, struct results *r, dev_addr at, size_t n) {
    float *x = from_device(c, at, n * 4);
    r->all = realloc(r->all, (r->n + n) * 4);
    memcpy(r->all + r->n, x, n * 4);
    r->n += n;
    free(x);
}

static struct results results_of_team(int n_cores, bool bf16, const float *x, int n) {
    enum { T = 200, D = 176, V = 50 };
    struct kctx *c = open_options(n_cores, &(struct cpu_options){0});
    struct results r = {0};
    struct weight w;
    struct error e;
    int32_t ids[T];
    for (int t = 0; t < T; t++) ids[t] = t * 7 % V;
    dev_addr a = to_device(c, x, (size_t)n * 4), b = to_device(c, x + 1000, (size_t)(n - 1000) * 4);
    dev_addr out = to_device(c, NULL, T * 200 * 4), small = to_device(c, NULL, V * D * 4);
    dev_addr at = to_device(c, ids, sizeof ids);
    c->ops->bf16_products(c, bf16);
    c->ops->matmul(c, out, D, 200, T, a, true, b, false, 1, 0);
    keep(c, &r, out, D * 200);
    c->ops->matmul(c, out, 30, 170, 500, a, false, b, true, 1, 0);
    keep(c, &r, out, 30 * 170);
    assert_int_equal(c->ops->weight_new(c, DTYPE_F32, 90, D, &w, &e), 0);
    c->ops->weight_put(c, &w, 0, 90, x, D * 4);
    c->ops->linear_dx(c, &(struct linear_job){&w, 0, b}, 1, out, T, false);
    keep(c, &r, out, T * D);
    c->ops->col_sum(c, small, b, T, D);
    keep(c, &r, small, D);
    c->ops->rmsnorm_dx(c, out, small, a, b, a, T, D, 1e-5f);
    keep(c, &r, small, D);
    c->ops->embed_grad(c, small, b, at, T, D, V, 0, 1);
    keep(c, &r, small, V * D);
    c->ops->sum_squares(c, small, a, (size_t)n);
    keep(c, &r, small, 1);
    c->ops->close(c);
    return r;
}

static void bits_do_not_depend_on_the_team(void **state) {
    (void)state;
    enum { N = 100000 };
    float *x = random_floats(N);
    for (int bf16 = 0; bf16 < 2; bf16++) {
        struct results want = results_of_team(1, bf16, x, N);
        for (int n = 2; n <= 5; n++) {
            struct results got = results_of_team(n, bf16, x, N);
            assert_memory_equal(got.all, want.all, want.n * 4);
            free(got.all);
        }
        free(want.all);
    }
    free(x);
}

#define AT_EVERY_LEVEL(name, body)                                                                 \
    static void name(void **state) {                                                               \
        (void)state;                                                                               \
        on_every_level(body);                                                                      \
    }
AT_EVERY_LEVEL(products_in_every_form, products_right)
AT_EVERY_LEVEL(linear_dx_dequantises_every_type, linear_dx_of_every_type)
AT_EVERY_LEVEL(bf16_is_rounded_to_even, bf16_and_back_rounds_to_even)
AT_EVERY_LEVEL(bias_gradients_sum_rows, bias_gradients_right)
AT_EVERY_LEVEL(norm_gradients_are_slopes, norm_gradients_right)
AT_EVERY_LEVEL(rotation_turns_back, rotation_and_back)
AT_EVERY_LEVEL(activation_gradients_are_slopes, activation_gradient_right)
AT_EVERY_LEVEL(cross_entropy_over_shards, cross_entropy_right)
AT_EVERY_LEVEL(nan_logits_give_nan_loss, nan_is_not_lost)
AT_EVERY_LEVEL(embedding_rows_and_gradients, embedding_right)
AT_EVERY_LEVEL(sums_and_copies, sums_right)
AT_EVERY_LEVEL(dropout_draws_by_place, dropout_is_the_same_for_a_part)
AT_EVERY_LEVEL(adamw_steps, adamw_right)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_in_every_form),
        cmocka_unit_test(bf16_products_sum_in_fp32),
        cmocka_unit_test(weights_of_every_type_multiply_in_bf16),
        cmocka_unit_test(bf16_is_rounded_to_even),
        cmocka_unit_test(linear_dx_dequantises_every_type),
        cmocka_unit_test(bias_gradients_sum_rows),
        cmocka_unit_test(norm_gradients_are_slopes),
        cmocka_unit_test(rotation_turns_back),
        cmocka_unit_test(activation_gradients_are_slopes),
        cmocka_unit_test(cross_entropy_over_shards),
        cmocka_unit_test(nan_logits_give_nan_loss),
        cmocka_unit_test(embedding_rows_and_gradients),
        cmocka_unit_test(sums_and_copies),
        cmocka_unit_test(dropout_draws_by_place),
        cmocka_unit_test(adamw_steps),
        cmocka_unit_test(bits_do_not_depend_on_the_team),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
