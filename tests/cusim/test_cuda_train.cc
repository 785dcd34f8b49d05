/* The operations of training on a simulated device against the CPU backend, over random shapes. */
#include "both.h"

static std::vector<float> nothing(size_t n) { return std::vector<float>(n, NAN); }

static std::vector<int32_t> random_ints(size_t n, int from, int to) {
    std::vector<int32_t> x(n);
    for (int32_t &v : x) v = random_int(from, to);
    return x;
}

/* --- products ------------------------------------------------------------------------------------------- */

/* Of numbers that bf16 holds: then products in bf16 are those in fp32. */
static std::vector<float> random_bf16(size_t n) {
    std::vector<float> x = random_floats(n);
    for (float &v : x) v = bf16_to_f32(f32_to_bf16(v));
    return x;
}

static void multiply(int32_t M, int32_t N, int32_t K, bool ta, bool tb, float alpha, float beta) {
    struct both a = put(random_bf16((size_t)M * K)), b = put(random_bf16((size_t)N * K));
    struct both out = put(beta == 0 ? nothing((size_t)M * N) : random_floats((size_t)M * N));
    run([&](struct kctx *c, const struct kernels *ops) {
        ops->matmul(c, out.on(c), M, N, K, a.on(c), ta, b.on(c), tb, alpha, beta);
    });
    std::string what = "matmul " + std::to_string(M) + " x " + std::to_string(N) + " x " + std::to_string(K);
    same(what.c_str(), out, 1e-5 * std::sqrt((double)K + 1));
    drop({a, b, out});
}

static void matmul_turns_scales_and_adds(void **) {
    each_way([] {
        for (int i = 0; i < 8; i++)
            multiply(random_int(1, 90), random_int(1, 90), random_int(1, 60), i & 1, i & 2,
                     i & 4 ? 1.0f : random_float(), i % 3 ? random_float() : 0);
        multiply(130, 68, 20, false, true, 1, 0);
        multiply(1, 1, 200, true, false, -2, 1);
        multiply(5, 7, 0, false, false, 1, 0.5f);
    });
}

static void linear_dx_of_every_type(void **) {
    each_way([] {
        for (int type = 0; type < DTYPE_COUNT; type++) {
            int block = dtype_info((enum dtype)type)->block, T = random_int(1, 20);
            int32_t cols = block == 1 ? random_int(1, 90) : block == 256 ? 256 : block * random_int(1, 3);
            int32_t n = random_int(1, 70), m = random_int(1, 40);
            struct weights w[3] = {random_weights((enum dtype)type, n, cols),
                                   random_weights((enum dtype)type, 0, cols),
                                   random_weights((enum dtype)type, m, cols)};
            struct both y = put(random_floats((size_t)T * n)), z = put(random_floats((size_t)T * m));
            for (bool accumulate : {false, true}) {
                struct both dx = put(accumulate ? random_floats((size_t)T * cols) : nothing((size_t)T * cols));
                run([&](struct kctx *c, const struct kernels *ops) {
                    bool on = c == gpu;
                    struct linear_job jobs[3] = {{&w[0].on[on], 0, y.on(c)}, {&w[1].on[on], 0, 0},
                                                 {&w[2].on[on], 0, z.on(c)}};
                    ops->linear_dx(c, jobs, 3, dx.on(c), T, accumulate);
                });
                std::string what = std::string("linear_dx of ") + dtype_info((enum dtype)type)->name;
                same(what.c_str(), dx, 1e-4);
                drop({dx});
            }
            drop({y, z});
            for (struct weights &one : w) drop(&one);
        }
        struct weights none = random_weights(DTYPE_F32, 0, 6);
        struct both dx = put(nothing(12));
        run([&](struct kctx *c, const struct kernels *ops) {
            struct linear_job job = {&none.on[c == gpu], 0, 0};
            ops->linear_dx(c, &job, 1, dx.on(c), 2, false);
        });
        same("linear_dx of nothing", dx, 0);
        drop({dx});
        drop(&none);
    });
}

static double worst_difference(const struct both &b) {
    std::vector<float> want = get<float>(cpu, b), got = get<float>(gpu, b);
    double worst = 0;
    for (size_t i = 0; i < want.size(); i++) {
        double d = std::fabs((double)got[i] - want[i]);
        if (!(d <= worst)) worst = d;
    }
    return worst;
}

static void bf16_products_round_the_factors_alone(void **) {
    enum { T = 11, N = 34, D = 64 };
    gpu->ops->bf16_products(gpu, true);
    for (int i = 0; i < 8; i++) multiply(9, 130, 70, i & 1, i & 2, 0.7f, i & 4 ? -0.5f : 0); /* b in pieces */
    gpu->ops->bf16_products(gpu, false);
    for (bool exact : {true, false})
        for (enum dtype type : {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_Q4_0}) {
            auto random = exact ? random_bf16 : random_floats;
            struct both x = put(random(T * D)), dy = put(random(T * N)), y = room(T * N), dx = room(T * D),
                        dw = room(N * D), bias = put(random_floats(N));
            struct weights w = random_weights(type, N, D);
            gpu->ops->bf16_products(gpu, true);
            run([&](struct kctx *c, const struct kernels *ops) {
                struct linear_job forward = {&w.on[c == gpu], bias.on(c), y.on(c)};
                struct linear_job back = {&w.on[c == gpu], 0, dy.on(c)};
                ops->linear(c, &forward, 1, x.on(c), T);
                ops->linear_dx(c, &back, 1, dx.on(c), T, false);
                ops->matmul(c, dw.on(c), N, D, T, dy.on(c), true, x.on(c), false, 1, 0);
            });
            gpu->ops->bf16_products(gpu, false);
            same("matmul in bf16", dw, exact ? 1e-5 : 2e-2);
            bool weights_too = exact && type == DTYPE_BF16;
            same("linear in bf16", y, weights_too ? 1e-4 : 5e-2);
            same("linear_dx in bf16", dx, weights_too ? 1e-4 : 5e-2);
            if (!exact && worst_difference(dw) < 1e-4) fail_msg("matmul did not round to bf16");
            if (!exact && worst_difference(dx) < 1e-4) fail_msg("linear_dx did not round to bf16");
            drop({x, dy, y, dx, dw, bias});
            drop(&w);
        }
}

/* --- rows ------------------------------------------------------------------------------------------------- */

static void sums_over_rows(void **) {
    static const struct { int32_t T, n; } shapes[] = {{1, 1}, {9, 130}, {40, 33}, {257, 12}, {520, 7}};
    for (auto &s : shapes) {
        size_t n = (size_t)s.T * s.n;
        struct both x = put(random_floats(n)), out = put(random_floats((size_t)s.n));
        run([&](struct kctx *c, const struct kernels *ops) { ops->col_sum(c, out.on(c), x.on(c), s.T, s.n); });
        same("col_sum", out, 1e-5);
        struct both dx = put(random_floats(n)), dy = put(random_floats(n)), g = put(random_floats((size_t)s.n));
        struct both dg = put(random_floats((size_t)s.n));
        run([&](struct kctx *c, const struct kernels *ops) {
            ops->rmsnorm_dx(c, dx.on(c), dg.on(c), dy.on(c), x.on(c), g.on(c), s.T, s.n, 1e-5f);
            ops->rmsnorm_dx(c, dx.on(c), 0, dy.on(c), x.on(c), g.on(c), s.T, s.n, 1e-2f);
        });
        same("rmsnorm_dx, dx", dx, 1e-4);
        same("rmsnorm_dx, dg", dg, 1e-4);
        drop({x, out, dx, dy, g, dg});
    }
}

static void rotations_go_there_and_back(void **) {
    for (int32_t e : {8, 20, 6, 64}) {
        int32_t T = random_int(1, 9), heads = random_int(1, 4);
        std::vector<float> numbers = random_floats((size_t)T * heads * e);
        struct both x = put(numbers), angles = put(random_floats((size_t)T * e));
        for (bool inverse : {false, true}) {
            run([&](struct kctx *c, const struct kernels *ops) {
                ops->rope_rows(c, x.on(c), heads, angles.on(c), T, e, inverse);
            });
            same("rope_rows", x, 0);
        }
        drop({x, angles});
    }
}

static void slopes_of_the_activation(void **) {
    for (int way = 0; way < 3; way++) {
        int32_t T = random_int(1, 9), F = random_int(1, 300);
        size_t n = (size_t)T * F;
        std::vector<float> numbers = random_floats(n);
        for (float &v : numbers) v *= 10;
        numbers[0] = -200;
        struct both gate = put(numbers), up = put(random_floats(n)), dout = put(random_floats(n));
        struct both dgate = way ? gate : room(n), dup = way == 1 ? up : way == 2 ? dout : room(n);
        run([&](struct kctx *c, const struct kernels *ops) {
            ops->silu_mul_dx(c, dgate.on(c), dup.on(c), dout.on(c), gate.on(c), up.on(c), T, F);
        });
        same("silu_mul_dx, gate", dgate, 1e-5);
        same("silu_mul_dx, up", dup, 1e-5);
        if (!way) drop({dgate, dup});
        drop({gate, up, dout});
    }
}

/* --- loss --------------------------------------------------------------------------------------------------- */

/* A vocabulary in shards, one after the other on the one device; the last shard may be empty. */
static void cross_entropy(int32_t T, const std::vector<int32_t> &sizes) {
    int32_t n = (int32_t)sizes.size(), whole = 0;
    for (int32_t size : sizes) whole += size;
    struct both labels = put(random_ints((size_t)T, -1, whole - 1)), weight = put(random_floats((size_t)T));
    struct both loss = put(nothing((size_t)T)), stats = room((size_t)T * n * 3);
    std::vector<struct both> logits;
    std::vector<float> all((size_t)T * n * 3);
    for (int32_t i = 0, from = 0; i < n; from += sizes[(size_t)i++]) {
        std::vector<float> numbers = random_floats((size_t)T * sizes[(size_t)i]);
        for (float &v : numbers) v *= 20;
        logits.push_back(put(numbers));
        struct both mine = room((size_t)T * 3);
        run([&](struct kctx *c, const struct kernels *ops) {
            ops->ce_stats(c, mine.on(c), logits.back().on(c), labels.on(c), T, sizes[(size_t)i], from);
        });
        std::vector<float> want = get<float>(cpu, mine), got = get<float>(gpu, mine);
        for (size_t t = 0; t < (size_t)T; t++) {
            if (sizes[(size_t)i] == 0) assert_memory_equal(&want[3 * t], &got[3 * t], 12);
            for (size_t j = 0; j < 3; j++) all[(t * n + i) * 3 + j] = want[3 * t + j];
        }
        if (sizes[(size_t)i]) same("ce_stats", mine, 1e-5);
        drop({mine});
    }
    cpu->ops->upload(cpu, stats.at[0], all.data(), stats.bytes);
    gpu->ops->upload(gpu, stats.at[1], all.data(), stats.bytes);
    for (int32_t i = 0, from = 0; i < n; from += sizes[(size_t)i++]) {
        run([&](struct kctx *c, const struct kernels *ops) {
            ops->ce_grad(c, loss.on(c), logits[(size_t)i].on(c), stats.on(c), n, labels.on(c), weight.on(c), T,
                         sizes[(size_t)i], from);
        });
        same("ce_grad, loss", loss, 1e-5);
        if (sizes[(size_t)i]) same("ce_grad", logits[(size_t)i], 1e-5);
        drop({logits[(size_t)i]});
    }
    drop({labels, weight, loss, stats});
}

static void cross_entropy_over_any_shards(void **) {
    cross_entropy(7, {96});
    cross_entropy(5, {33, 33, 31});
    cross_entropy(4, {1100, 20, 0});
}

static void embeddings_and_their_gradient(void **) {
    for (int32_t d : {1, 30, 64, 2100}) {
        int32_t T = d > 100 ? 40 : random_int(1, 90), V = random_int(1, 12), first_row = 5;
        std::vector<int32_t> numbers = random_ints((size_t)T, 0, V + 9);
        numbers[0] = numbers[(size_t)T / 2] = numbers[(size_t)T - 1] = first_row; /* near and far */
        if (T > 1) numbers[1] = first_row;
        struct both ids = put(numbers), out = put(nothing((size_t)T * d));
        struct both table = put(random_floats((size_t)V * d)), dx = put(random_floats((size_t)T * d));
        run([&](struct kctx *c, const struct kernels *ops) {
            ops->embed_rows(c, out.on(c), table.on(c), ids.on(c), T, d, V, first_row, 1.5f);
            ops->embed_grad(c, table.on(c), dx.on(c), ids.on(c), T, d, V, first_row, -0.7f);
        });
        same("embed_rows", out, 0);
        same("embed_grad", table, 1e-6);
        drop({ids, out, table, dx});
    }
}

/* --- elements ------------------------------------------------------------------------------------------------- */

static void elements_one_by_one(void **) {
    for (size_t n : {1, 7, 64, 1021, 70001}) {
        struct both x = put(random_floats(n)), y = put(random_floats(n)), half = room((n + 1) / 2),
                    back = put(nothing(n)), copied = put(nothing(n)), sum = put(std::vector<float>{0.5f, 0});
        run([&](struct kctx *c, const struct kernels *ops) {
            ops->narrow(c, half.on(c), x.on(c), n);
            ops->widen(c, back.on(c), half.on(c), n);
            ops->axpy(c, y.on(c), x.on(c), n, -0.3f);
            ops->copy(c, copied.on(c), y.on(c), n * 4);
            ops->sum_squares(c, sum.on(c), x.on(c), n);
        });
        same("narrow and widen", back, 0);
        same("axpy", y, 1e-7);
        same("copy", copied, 1e-7);
        same("sum_squares", sum, 1e-6);
        drop({x, y, half, back, copied, sum});
    }
}

static void an_unaligned_array_is_no_other_array(void **) {
    enum { N = 130 };
    struct both x = put(random_floats(N + 1)), y = put(random_floats(N + 1));
    run([&](struct kctx *c, const struct kernels *ops) {
        ops->axpy(c, y.on(c) + 4, x.on(c) + 4, N, 0.9f);
        ops->narrow(c, x.on(c) + 2, y.on(c) + 4, N / 2);
        ops->widen(c, y.on(c) + 4, x.on(c) + 2, N / 2);
    });
    same("unaligned", y, 1e-7);
    drop({x, y});
}

static void dropout_draws_the_same_bits(void **) {
    for (float p : {0.0f, 0.3f, 1.0f})
        for (int32_t cols : {1, 37, 600}) {
            int32_t T = 3;
            struct both x = put(random_floats((size_t)T * cols)), out = put(nothing((size_t)T * cols));
            run([&](struct kctx *c, const struct kernels *ops) {
                ops->dropout(c, out.on(c), x.on(c), T, cols, 1000, 17, p, 0x123456789ABCDEFu, (uint64_t)5 << 40);
            });
            same("dropout", out, 0);
            drop({x, out});
        }
}

static void adamw_steps(void **) {
    for (size_t n : {3, 1000}) {
        struct both p = put(random_floats(n)), m = put(random_floats(n)), g = put(random_floats(n));
        std::vector<float> squares = random_floats(n);
        for (float &v : squares) v *= v;
        struct both v = put(squares);
        struct adamw_params params = {1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.19f, 0.0975f};
        run([&](struct kctx *c, const struct kernels *ops) {
            ops->adamw(c, p.on(c), g.on(c), m.on(c), v.on(c), n, &params, 0.5f);
        });
        same("adamw, p", p, 1e-6);
        same("adamw, m", m, 1e-6);
        same("adamw, v", v, 1e-6);
        drop({p, m, g, v});
    }
}

/* --- attention -------------------------------------------------------------------------------------------------- */

struct packed {
    int32_t T, H, K, e, window, gap; /* gap: floats between the rows of out */
    std::vector<int32_t> kv_of_head, starts;
};

struct attended {
    struct both out, lse, dq, dk, dv;
};

static void attend(const struct packed &s, const char *what) {
    int32_t stride = s.H * s.e + s.gap, start = 0;
    size_t n_q = (size_t)s.T * s.H * s.e, n_kv = (size_t)s.T * s.K * s.e, n_out = (size_t)s.T * stride;
    std::vector<int32_t> first;
    for (int32_t t = 0; t < s.T; t++) {
        for (int32_t at : s.starts)
            if (at == t) start = t;
        first.push_back(start);
    }
    float scale = 1 / std::sqrt((float)s.e);
    struct both q = put(random_floats(n_q)), k = put(random_floats(n_kv)), v = put(random_floats(n_kv));
    struct both dout = put(random_floats(n_out)), firsts = put(first);
    struct both out = put(std::vector<float>(n_out, 7)), lse = put(nothing((size_t)s.T * s.H));
    struct both dq = put(nothing(n_q)), dk = put(nothing(n_kv)), dv = put(nothing(n_kv));
    auto backward = [&](struct kctx *c, const struct kernels *ops) {
        ops->attention_rows_dx(c, dq.on(c), dk.on(c), dv.on(c), dout.on(c), out.on(c), stride, lse.on(c), q.on(c),
                               s.H, k.on(c), v.on(c), s.K, s.kv_of_head.data(), s.e, firsts.on(c), s.T, scale,
                               s.window);
    };
    run([&](struct kctx *c, const struct kernels *ops) {
        ops->attention_rows(c, out.on(c), stride, lse.on(c), q.on(c), s.H, k.on(c), v.on(c), s.K,
                            s.kv_of_head.data(), s.e, firsts.on(c), s.T, scale, s.window);
    });
    same(what, out, 1e-5);
    same(what, lse, 1e-5);
    run(backward);
    same("attention_rows_dx, dq", dq, 2e-5);
    same("attention_rows_dx, dk", dk, 2e-5);
    same("attention_rows_dx, dv", dv, 2e-5);
    std::vector<float> once = get<float>(gpu, dk);
    backward(gpu, gpu->ops); /* threads and blocks in another order */
    assert_memory_equal(once.data(), get<float>(gpu, dk).data(), n_kv * 4);
    drop({q, k, v, dout, firsts, out, lse, dq, dk, dv});
}

static void attention_of_packed_sequences_and_its_slopes(void **) {
    attend({1, 1, 1, 8, 0, 0, {0}, {}}, "one row");
    attend({70, 3, 1, 20, 0, 4, {0, 0, 0}, {7, 30}}, "heads that share keys");
    attend({97, 2, 2, 16, 9, 0, {1, 0}, {40}}, "a window");
    attend({130, 3, 1, 12, 0, 0, {0, 0, 0}, {95}}, "some of the heads that share keys at a time");
    attend({200, 3, 2, 8, 0, 0, {0, 0, 1}, {50, 150}}, "all of them at a time");
    attend({40, 1, 2, 8, 1, 0, {1}, {}}, "keys that nobody reads");
    attend({66, 1, 1, 130, 0, 2, {0}, {64}}, "wide heads");
    attend({65, 2, 1, 66, 0, 0, {0, 0}, {}}, "heads wider than a tile");
    for (int i = 0; i < 2; i++) {
        int32_t T = random_int(1, 140), H = random_int(1, 3), K = random_int(1, H);
        struct packed s = {T, H, K, 2 * random_int(1, 20), random_int(-20, 30), random_int(0, 3), {}, {}};
        for (int32_t h = 0; h < H; h++) s.kv_of_head.push_back(h * K / H);
        s.starts = random_ints(2, 0, T);
        attend(s, "a shape of chance");
    }
}

int main() {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matmul_turns_scales_and_adds),
        cmocka_unit_test(linear_dx_of_every_type),
        cmocka_unit_test(bf16_products_round_the_factors_alone),
        cmocka_unit_test(sums_over_rows),
        cmocka_unit_test(rotations_go_there_and_back),
        cmocka_unit_test(slopes_of_the_activation),
        cmocka_unit_test(cross_entropy_over_any_shards),
        cmocka_unit_test(embeddings_and_their_gradient),
        cmocka_unit_test(elements_one_by_one),
        cmocka_unit_test(an_unaligned_array_is_no_other_array),
        cmocka_unit_test(dropout_draws_the_same_bits),
        cmocka_unit_test(adamw_steps),
        cmocka_unit_test(attention_of_packed_sequences_and_its_slopes),
    };
    return cmocka_run_group_tests(tests, open_both, close_both);
}
