/* The forward operations on a simulated device against the CPU backend, over random shapes. */
#include "both.h"

static void products_of_every_type_and_number_of_rows(void **) {
    static const int rows_of_x[] = {1, 2, 5, 19};
    for (int type = 0; type < DTYPE_COUNT; type++) {
        int block = dtype_info((enum dtype)type)->block;
        int32_t cols = block == 1 ? random_int(1, 150) : block * (block == 256 ? 1 : random_int(1, 5));
        int32_t n = random_int(1, 70), m = random_int(1, 40);
        struct weights a = random_weights((enum dtype)type, n, cols);
        struct weights b = random_weights((enum dtype)type, m, cols);
        struct both bias = put(random_floats((size_t)n));
        for (int T : rows_of_x) {
            struct both x = put(random_floats((size_t)T * cols)), y = room((size_t)T * n),
                        z = room((size_t)T * m);
            run([&](struct kctx *c, const struct kernels *ops) {
                struct linear_job jobs[2] = {{&a.on[c == gpu], bias.on(c), y.on(c)},
                                             {&b.on[c == gpu], 0, z.on(c)}};
                ops->linear(c, jobs, 2, x.on(c), T);
            });
            std::string what = std::string("linear of ") + dtype_info((enum dtype)type)->name +
                               " with " + std::to_string(T) + " rows";
            same(what.c_str(), y, 2e-4 * std::sqrt((double)cols));
            same(what.c_str(), z, 2e-4 * std::sqrt((double)cols));
            drop({x, y, z});
        }
        drop({bias});
        drop(&a);
        drop(&b);
    }
}

/* What a layout says of the block of row r that column c is in: all fields, bytes as the file has them. */
static std::string block_at(const std::vector<uint8_t> &memory, const struct weight_layout &l, int32_t r,
                            int32_t c) {
    std::vector<uint8_t> codes((size_t)l.columns, 0);
    std::string out;
    for (int i = 0; i < l.n_arrays; i++) {
        const struct weight_array &a = l.arrays[i];
        size_t bytes = a.type[0] == 'u' ? (size_t)atoi(a.type + 1) / 8 : strstr(a.type, "32") ? 4 : 2;
        size_t at = a.offset + (size_t)(r / l.lanes) * a.stride[0] + (size_t)(c / l.columns) * a.stride[1] +
                    (size_t)(r % l.lanes) * a.stride[2];
        std::string words;
        for (size_t w = 0; w < a.shape[3]; w++)
            words.append((const char *)&memory.at(at + w * a.stride[3] + bytes - 1) - (bytes - 1), bytes);
        if (!a.bits) {
            bool mine = strcmp(a.name, "values") == 0; /* a block of plain values may have a neighbour's */
            out += mine ? words.substr((size_t)(c % l.columns) * bytes, bytes) : words;
            continue;
        }
        for (int k = 0; k < l.columns; k++) {
            uint32_t word;
            memcpy(&word, words.data() + k * a.bits / 32 * 4, 4);
            int of = k % (32 / a.bits), bit = l.by_bytes ? of % 4 * 8 + of / 4 * a.bits : of * a.bits;
            codes[(size_t)k] |= (uint8_t)((word >> bit & ((1u << a.bits) - 1)) << a.shift);
        }
    }
    if (l.arrays[l.n_arrays - 1].bits) out.append(codes.begin(), codes.end());
    return out;
}

/* Both backends describe what they hold: read by their descriptions it is the same. */
static void layouts_say_where_everything_is(void **) {
    for (int type = 0; type < DTYPE_COUNT; type++) {
        int block = dtype_info((enum dtype)type)->block;
        int32_t rows = random_int(1, 40), cols = block == 1 ? random_int(1, 40) : 2 * block;
        struct weights w = random_weights((enum dtype)type, rows, cols);
        std::vector<uint8_t> memory[2];
        struct weight_layout layout[2];
        struct error e;
        struct kctx *contexts[2] = {cpu, gpu};
        for (int i = 0; i < 2; i++) {
            memory[i].resize(w.on[i].bytes);
            contexts[i]->ops->weight_layout(&w.on[i], &layout[i]);
            contexts[i]->ops->download(contexts[i], memory[i].data(), w.on[i].data, w.on[i].bytes);
            if (contexts[i]->ops->wait(contexts[i], &e)) fail_msg("%s", e.message);
        }
        for (int32_t r = 0; r < rows; r++)
            for (int32_t c = 0; c < cols; c += block)
                assert_true(block_at(memory[0], layout[0], r, c) == block_at(memory[1], layout[1], r, c));
        drop(&w);
    }
}

static void embeddings_of_every_type(void **) {
    for (int type = 0; type < DTYPE_COUNT; type++) {
        int block = dtype_info((enum dtype)type)->block;
        int32_t d = block == 1 ? random_int(1, 90) : block;
        struct weights table = random_weights((enum dtype)type, 9, d);
        struct both ids = put(std::vector<int32_t>{5, 8, 13, 4, 14, 0}), out = room(6 * (size_t)d);
        run([&](struct kctx *c, const struct kernels *ops) {
            ops->embed(c, out.on(c), &table.on[c == gpu], ids.on(c), 6, 5, 1.5f);
        });
        same("embed", out, 1e-6);
        drop({ids, out});
        drop(&table);
    }
}

static void norms_sums_and_activations(void **) {
    for (int i = 0; i < 6; i++) {
        int32_t T = random_int(1, 9), d = random_int(1, 300), heads = random_int(1, 5);
        size_t n = (size_t)T * d;
        struct both x = put(random_floats(n)), y = put(random_floats(n)), g = put(random_floats((size_t)d));
        struct both out = room(n), gate = put(random_floats(n));
        struct both h = put(random_floats((size_t)T * heads * 32)), hg = put(random_floats(32));
        run([&](struct kctx *c, const struct kernels *ops) {
            ops->rmsnorm(c, out.on(c), x.on(c), g.on(c), T, d, 1e-5f);
        });
        same("rmsnorm", out, 1e-5);
        run([&](struct kctx *c, const struct kernels *ops) {
            ops->add_rmsnorm(c, out.on(c), x.on(c), y.on(c), 0.7f, g.on(c), T, d, 1e-5f);
            ops->silu_mul(c, gate.on(c), gate.on(c), y.on(c), T, d);
            ops->head_norm(c, h.on(c), hg.on(c), T, heads, 32, 1e-6f);
            ops->scale(c, y.on(c), n, -0.25f);
        });
        same("add_rmsnorm", out, 1e-5);
        same("add_rmsnorm's sum", x, 1e-6);
        same("silu_mul", gate, 1e-5);
        same("head_norm", h, 1e-5);
        same("scale", y, 1e-6);
        drop({x, y, g, out, gate, h, hg});
    }
}

static void rows_are_gathered(void **) {
    struct both x = put(random_floats(7 * 13)), index = put(std::vector<int32_t>{6, 0, 3, 3}), out = room(4 * 13);
    run([&](struct kctx *c, const struct kernels *ops) {
        ops->gather_rows(c, out.on(c), x.on(c), index.on(c), 4, 13);
    });
    same("gather_rows", out, 0);
    drop({x, index, out});
}

/* --- attention with its cache ------------------------------------------------------------------------- */

struct scene {
    int32_t H, K, e, block_size, window;
    enum dtype type;
    float ntk;
};

/* Sequences with what each has in the cache already and how many rows it has in this step. */
static void attend(const struct scene &s, const std::vector<std::pair<int, int>> &sequences) {
    int32_t T = 0, max_blocks = 0, n_blocks = 0, n_seqs = (int32_t)sequences.size();
    for (auto &q : sequences) {
        int32_t blocks = (q.first + q.second + s.block_size - 1) / s.block_size;
        max_blocks = blocks > max_blocks ? blocks : max_blocks;
        n_blocks += blocks;
    }
    std::vector<int32_t> table((size_t)(n_seqs * max_blocks)), kv_of_head((size_t)s.H);
    for (int32_t h = 0; h < s.H; h++) kv_of_head[(size_t)h] = h * s.K / s.H;
    int32_t next = n_blocks - 1;
    for (int32_t q = 0; q < n_seqs; q++) {
        int32_t blocks = (sequences[q].first + sequences[q].second + s.block_size - 1) / s.block_size;
        for (int32_t b = 0; b < blocks; b++) table[(size_t)(q * max_blocks + b)] = next--;
    }
    size_t half = (size_t)n_blocks * s.K * s.block_size * dtype_row_bytes(s.type, s.e);
    struct both cache = put(nullptr, 2 * half), blocks = put(table);
    std::vector<float> frequencies((size_t)s.e / 2);
    for (int32_t i = 0; i < s.e / 2; i++) frequencies[(size_t)i] = std::pow(1e4f, -2.0f * (float)i / (float)s.e);
    struct both inv = put(frequencies);
    /* First what is in the cache, then the step: both by the operations themselves. */
    for (int pass = 0; pass < 2; pass++) {
        std::vector<int32_t> pos, seq, len;
        for (int32_t q = 0; q < n_seqs; q++) {
            int from = pass ? sequences[q].first : 0, to = pass ? from + sequences[q].second : sequences[q].first;
            for (int p = from; p < to; p++) {
                pos.push_back(p);
                seq.push_back(q);
                len.push_back(p + 1);
            }
        }
        T = (int32_t)pos.size();
        if (T == 0) continue;
        int32_t stride = s.H * s.e + 5;
        struct both q = put(random_floats((size_t)T * s.H * s.e)), k = put(random_floats((size_t)T * s.K * s.e)),
                    v = put(random_floats((size_t)T * s.K * s.e)), cs = room((size_t)T * s.e),
                    out = put(std::vector<float>((size_t)T * stride)), dpos = put(pos), dseq = put(seq),
                    dlen = put(len);
        run([&](struct kctx *c, const struct kernels *ops) {
            struct rope_freqs f = {s.e, 1.1f, 1e4f, s.ntk, 8, inv.on(c)};
            struct kv_view kv = {s.type, n_blocks, s.block_size, s.K, s.e, cache.on(c), cache.on(c) + half};
            struct step_rows rows = {T, n_seqs, max_blocks, dpos.on(c), dseq.on(c), blocks.on(c)};
            ops->rope_table(c, cs.on(c), &f, dpos.on(c), dlen.on(c), T);
            ops->rope_kv(c, q.on(c), s.H, k.on(c), v.on(c), cs.on(c), &kv, &rows);
            ops->attention(c, out.on(c), stride, q.on(c), s.H, kv_of_head.data(), &kv, &rows,
                           1 / std::sqrt((float)s.e), s.window);
        });
        same("rope_table", cs, 1e-4);
        same("rope_kv, q", q, 1e-4);
        same("rope_kv, k", k, 1e-4);
        same("attention", out, s.type == DTYPE_F32 ? 1e-4 : 2e-3);
        drop({q, k, v, cs, out, dpos, dseq, dlen});
    }
    drop({cache, blocks, inv});
}

static void attention_reads_what_was_written_whatever_the_mix(void **) {
    for (enum dtype type : {DTYPE_F32, DTYPE_F16, DTYPE_BF16}) {
        attend({4, 2, 16, 4, 0, type, 0}, {{0, 11}});
        attend({3, 3, 8, 8, 0, type, 0}, {{9, 1}, {30, 1}, {0, 7}});
        attend({6, 1, 32, 16, 5, type, 2.0f}, {{40, 1}, {3, 12}});
    }
    attend({4, 2, 32, 4, 0, DTYPE_Q8_0, 0}, {{0, 11}});
    attend({3, 3, 96, 16, 6, DTYPE_Q8_0, 0}, {{9, 1}, {30, 1}, {0, 7}});
    attend({4, 1, 64, 16, 0, DTYPE_Q8_0, 0}, {{300, 1}, {3, 12}});
}

/* Rows with numbers of every size, among them such as q8 cannot hold, by angles that both have to the bit. */
static void blocks_of_q8_are_the_cpus_byte_for_byte(void **) {
    enum { T = 12, H = 2, K = 2, E = 64, BLOCK = 4 };
    std::vector<float> numbers = random_floats(2 * T * K * E);
    for (size_t i = 0; i < numbers.size(); i++) numbers[i] *= std::pow(10.0f, (float)(i / E % 11) - 7);
    for (size_t i = 5 * E; i < 6 * E; i++) numbers[i] = 0;
    numbers[7 * E + 40] = NAN;
    numbers[2 * T * K * E - 3] = INFINITY;
    std::vector<int32_t> pos, seq(T, 0);
    for (int32_t t = 0; t < T; t++) pos.push_back(t);
    size_t half = (size_t)T * K * dtype_row_bytes(DTYPE_Q8_0, E);
    struct both q = put(random_floats(T * H * E)), kv_rows = put(numbers), angles = put(random_floats(T * E));
    struct both blocks = put(std::vector<int32_t>{2, 0, 1}), dpos = put(pos), dseq = put(seq);
    struct both cache = put(nullptr, 2 * half);
    run([&](struct kctx *c, const struct kernels *ops) {
        struct kv_view kv = {DTYPE_Q8_0, T / BLOCK, BLOCK, K, E, cache.on(c), cache.on(c) + half};
        struct step_rows rows = {T, 1, T / BLOCK, dpos.on(c), dseq.on(c), blocks.on(c)};
        ops->rope_kv(c, q.on(c), H, kv_rows.on(c), kv_rows.on(c) + T * K * E * 4, angles.on(c), &kv, &rows);
    });
    std::vector<uint8_t> want = get<uint8_t>(cpu, cache), got = get<uint8_t>(gpu, cache);
    assert_memory_equal(want.data(), got.data(), want.size());
    drop({q, kv_rows, angles, blocks, dpos, dseq, cache});
}

static void a_row_does_not_depend_on_those_beside_it(void **) {
    int32_t cols = 96, n = 40;
    struct weights w = random_weights(DTYPE_Q8_0, n, cols);
    std::vector<float> rows = random_floats(6 * (size_t)cols);
    struct both all = put(rows), y = room(6 * (size_t)n), one = room((size_t)n);
    struct linear_job job = {&w.on[1], 0, y.at[1]};
    gpu->ops->linear(gpu, &job, 1, all.at[1], 6);
    std::vector<float> together = get<float>(gpu, y);
    for (int t = 0; t < 6; t++) {
        struct linear_job alone = {&w.on[1], 0, one.at[1]};
        gpu->ops->linear(gpu, &alone, 1, all.at[1] + (size_t)t * cols * 4, 1);
        assert_memory_equal(get<float>(gpu, one).data(), &together[(size_t)t * n], (size_t)n * 4);
    }
    drop({all, y, one});
    drop(&w);
}

/* How often y was doubled tells whether a step ran once, whichever way it ran. */
static enum replay double_it(dev_addr y, uint64_t key) {
    enum replay how = gpu->ops->replay_state(gpu, key);
    if (how == REPLAY_RECORD) {
        gpu->ops->replay_begin(gpu, key);
        gpu->ops->scale(gpu, y, 64, 2);
        gpu->ops->replay_end(gpu);
        assert_int_equal(gpu->ops->replay_state(gpu, key), REPLAY_RUN);
    }
    if (how == REPLAY_PLAIN) gpu->ops->scale(gpu, y, 64, 2);
    else gpu->ops->replay_run(gpu, key);
    return how;
}

static void a_step_that_comes_again_is_recorded_once_and_run_from_then_on(void **) {
    struct both y = put(std::vector<float>(64, 1)), other = room(8);
    uint64_t key = y.at[1] + 1;
    static const enum replay ways[] = {REPLAY_PLAIN, REPLAY_RECORD, REPLAY_RUN, REPLAY_RUN};
    float want = 1;
    for (int round = 0; round < 2; round++) {
        for (enum replay way : ways) {
            assert_int_equal(double_it(y.at[1], key), way);
            want *= 2;
            for (float got : get<float>(gpu, y)) assert_true(got == want);
        }
        assert_int_equal(gpu->ops->replay_state(gpu, key + 1), REPLAY_PLAIN); /* another step */
        /* Recorded addresses do not outlive any memory. */
        if (round == 0) drop({other});
    }
    drop({y});
}

int main() {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norms_sums_and_activations),
        cmocka_unit_test(rows_are_gathered),
        cmocka_unit_test(embeddings_of_every_type),
        cmocka_unit_test(layouts_say_where_everything_is),
        cmocka_unit_test(products_of_every_type_and_number_of_rows),
        cmocka_unit_test(attention_reads_what_was_written_whatever_the_mix),
        cmocka_unit_test(blocks_of_q8_are_the_cpus_byte_for_byte),
        cmocka_unit_test(a_row_does_not_depend_on_those_beside_it),
        cmocka_unit_test(a_step_that_comes_again_is_recorded_once_and_run_from_then_on),
    };
    return cmocka_run_group_tests(tests, open_both, close_both);
}
