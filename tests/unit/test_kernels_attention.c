/* Attention against a plain softmax in double, over uneven heads, blocks, windows and sequences; and with
 * operands in bf16, where the CPU multiplies those. */
#include "base/dtype.h"
#include "tests/unit/kernels_fixture.h"

struct attention_case {
    enum dtype type;
    int32_t H, K, e, block_size, window, out_stride;
    int32_t n_seqs, max_blocks, T;
    int32_t pos[64], seq[64], kv_of_head[16], blocks[3 * 128];
    float *q;
    uint8_t *keys, *values;
    size_t cache_bytes;
    int32_t n_blocks;
    bool narrow; /* operands are rounded to bf16 */
};

static double operand(const struct attention_case *a, float x) {
    return (double)(a->narrow ? bf16_to_f32(f32_to_bf16(x)) : x);
}

/* x[e]: what the cache holds of position p. */
static void cache_at(const struct attention_case *a, const uint8_t *cache, int32_t seq,
                     int32_t head, int32_t p, float *x) {
    int32_t block = a->blocks[seq * a->max_blocks + p / a->block_size];
    size_t at = (size_t)((block * a->K + head) * a->block_size + p % a->block_size);
    dtype_row_to_f32(a->type, cache + at * dtype_row_bytes(a->type, a->e), x, a->e);
}

/* size[i]: what out[i] would be if no value were negative. */
static void reference(const struct attention_case *a, int32_t t, int32_t h, float scale,
                      double *out, double *size) {
    const float log2_e = 0x1.715476p+0f; /* rounded are the powers of two that scores are */
    const float *q = a->q + (t * a->H + h) * a->e;
    int32_t head = a->kv_of_head[h], seq = a->seq[t], last = a->pos[t];
    int32_t first = a->window > 0 && last >= a->window ? last - a->window + 1 : 0;
    double max = -INFINITY, total = 0, *score = malloc((size_t)(last + 1) * sizeof *score);
    float x[256];
    for (int32_t p = first; p <= last; p++) {
        score[p] = 0;
        cache_at(a, a->keys, seq, head, p, x);
        for (int32_t i = 0; i < a->e; i++)
            score[p] += operand(a, q[i] * (scale * log2_e)) / 1.4426950408889634 * operand(a, x[i]);
        if (score[p] > max) max = score[p];
    }
    for (int32_t i = 0; i < a->e; i++) out[i] = size[i] = 0;
    for (int32_t p = first; p <= last; p++) {
        double w = exp(score[p] - max);
        total += w;
        cache_at(a, a->values, seq, head, p, x);
        for (int32_t i = 0; i < a->e; i++) {
            out[i] += w * operand(a, x[i]);
            size[i] += w * fabs((double)x[i]);
        }
    }
    for (int32_t i = 0; i < a->e; i++) out[i] /= total, size[i] /= total;
    free(score);
}

/* Sequences of random lengths, the last rows of each in the step; blocks dealt at random. */
static void case_fill(struct attention_case *a, int32_t longest) {
    a->max_blocks = longest / a->block_size + 1;
    a->n_blocks = a->n_seqs * a->max_blocks;
    int32_t rest = a->T, t = 0;
    for (int32_t s = 0; s < a->n_seqs; s++) {
        int32_t rows = s == a->n_seqs - 1 ? rest : random_int(1, rest - (a->n_seqs - 1 - s));
        int32_t first = random_int(0, longest - rows);
        for (int32_t i = 0; i < rows; i++, t++) a->pos[t] = first + i, a->seq[t] = s;
        rest -= rows;
        for (int32_t b = 0; b < a->max_blocks; b++)
            a->blocks[s * a->max_blocks + b] = (b * a->n_seqs + s + 3) % a->n_blocks;
    }
    a->q = random_floats((size_t)(a->T * a->H * a->e));
    for (int32_t i = 0; i < a->T * a->H * a->e; i++) a->q[i] *= 4;
    int32_t vectors = a->n_blocks * a->K * a->block_size;
    a->cache_bytes = (size_t)vectors * dtype_row_bytes(a->type, a->e);
    a->keys = malloc(a->cache_bytes);
    a->values = malloc(a->cache_bytes);
    for (int32_t i = 0; i < vectors; i++) {
        random_row(a->type, a->e, a->keys + (size_t)i * dtype_row_bytes(a->type, a->e));
        random_row(a->type, a->e, a->values + (size_t)i * dtype_row_bytes(a->type, a->e));
    }
}

/* Rows from … from+T-1 of the case; out [T, out_stride], to be freed. */
static float *case_run(struct kctx *c, const struct attention_case *a, int32_t from, int32_t T,
                       float scale) {
    size_t out_bytes = (size_t)(T * a->out_stride) * 4;
    struct kv_view kv = {a->type, a->n_blocks, a->block_size, a->K, a->e,
                         to_device(c, a->keys, a->cache_bytes),
                         to_device(c, a->values, a->cache_bytes)};
    struct step_rows rows = {T, a->n_seqs, a->max_blocks,
                             to_device(c, a->pos + from, (size_t)T * 4),
                             to_device(c, a->seq + from, (size_t)T * 4),
                             to_device(c, a->blocks, sizeof a->blocks)};
    int32_t width = a->H * a->e;
    dev_addr q = to_device(c, a->q + from * width, (size_t)(T * width) * 4);
    dev_addr out = to_device(c, NULL, out_bytes);
    c->ops->attention(c, out, a->out_stride, q, a->H, a->kv_of_head, &kv, &rows, scale, a->window);
    float *got = from_device(c, out, out_bytes);
    dev_addr all[] = {kv.k, kv.v, rows.pos, rows.seq, rows.blocks, q, out};
    for (int i = 0; i < 7; i++) c->ops->mem_free(c, all[i]);
    return got;
}

static void check_case(struct kctx *c, struct attention_case *a, int32_t longest) {
    double want[256], size[256];
    case_fill(a, longest);
    double bound = a->type == DTYPE_Q8_0 ? 1e-4 : 3e-6; /* random codes are large: so are its scores */
    float scale = 1 / sqrtf((float)a->e), *got = case_run(c, a, 0, a->T, scale);
    for (int32_t t = 0; t < a->T; t++) {
        for (int32_t h = 0; h < a->H; h++) {
            reference(a, t, h, scale, want, size);
            for (int32_t i = 0; i < a->e; i++)
                assert_near("attention", got[t * a->out_stride + h * a->e + i], want[i],
                            bound + (a->narrow ? size[i] / 240 : 0)); /* weights have 8 bits */
        }
        for (int32_t i = a->H * a->e; i < a->out_stride; i++)
            assert_true(got[t * a->out_stride + i] == 0);
    }
    for (int i = 0; i < 5; i++) { /* any run of rows alone: the same bits */
        int32_t T = i == 0 ? 1 : random_int(1, a->T), from = random_int(0, a->T - T);
        float *some = case_run(c, a, from, T, scale);
        assert_memory_equal(some, got + from * a->out_stride, (size_t)(T * a->out_stride) * 4);
        free(some);
    }
    free(got);
    free(a->q);
    free(a->keys);
    free(a->values);
}

/* What the cache holds where a row does not look, even if it is no number, leaves the row as it was. */
static void check_unseen(struct kctx *c, struct attention_case *a) {
    case_fill(a, 200);
    float *before = case_run(c, a, 0, a->T, 0.25f);
    for (int32_t t = a->T - 1; t > 0; t -= random_int(1, 7)) { /* rows from t on may see it, or none */
        int32_t at = a->pos[t], block = a->blocks[a->seq[t] * a->max_blocks + at / a->block_size];
        for (int32_t k = 0; k < a->K; k++) {
            size_t vector = (size_t)((block * a->K + k) * a->block_size + at % a->block_size);
            size_t bytes = dtype_row_bytes(a->type, a->e);
            memset(a->keys + vector * bytes, 0xFF, bytes);
            memset(a->values + vector * bytes, 0xFF, bytes);
        }
        float *after = case_run(c, a, 0, a->T, 0.25f);
        for (int32_t r = 0; r < a->T; r++)
            if (a->seq[r] < a->seq[t] || (a->seq[r] == a->seq[t] && a->pos[r] < at))
                assert_memory_equal(before + r * a->out_stride, after + r * a->out_stride,
                                    (size_t)a->out_stride * 4);
        free(after);
    }
    free(before);
    free(a->q);
    free(a->keys);
    free(a->values);
}

static void attention_right_when(struct kctx *c, bool narrow) {
    static const struct attention_case shapes[] = {
        {DTYPE_F32, 9, 3, 64, 16, 0, 600, .n_seqs = 1, .T = 40,
         .kv_of_head = {0, 0, 0, 1, 1, 1, 2, 2, 2}},
        {DTYPE_F16, 9, 3, 64, 32, 0, 576, .n_seqs = 3, .T = 33,
         .kv_of_head = {0, 0, 0, 1, 1, 1, 2, 2, 2}},
        {DTYPE_BF16, 5, 3, 40, 128, 0, 200, .n_seqs = 2, .T = 20, .kv_of_head = {0, 1, 1, 1, 2}},
        {DTYPE_F32, 4, 1, 20, 5, 7, 90, .n_seqs = 2, .T = 25, .kv_of_head = {0, 0, 0, 0}},
        {DTYPE_F16, 2, 2, 18, 100, 33, 36, .n_seqs = 1, .T = 64, .kv_of_head = {0, 1}},
        {DTYPE_BF16, 3, 1, 128, 64, 100, 384, .n_seqs = 3, .T = 3, .kv_of_head = {0, 0, 0}},
        {DTYPE_F32, 1, 1, 2, 1, 0, 2, .n_seqs = 1, .T = 1, .kv_of_head = {0}},
        {DTYPE_Q8_0, 9, 3, 64, 32, 0, 576, .n_seqs = 3, .T = 33,
         .kv_of_head = {0, 0, 0, 1, 1, 1, 2, 2, 2}},
        {DTYPE_Q8_0, 2, 1, 96, 16, 40, 200, .n_seqs = 2, .T = 20, .kv_of_head = {0, 0}},
        {DTYPE_F16, 8, 1, 64, 32, 50, 512, .n_seqs = 2, .T = 64},
        {DTYPE_BF16, 7, 1, 48, 16, 0, 336, .n_seqs = 1, .T = 50},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct attention_case a = shapes[i];
        a.narrow = narrow && a.type != DTYPE_F32 && kernels_cpu_bf16();
        check_case(c, &a, i == 6 ? 100 : 200);
        check_unseen(c, &a);
    }
}

static void attention_right(struct kctx *c) { attention_right_when(c, false); }

/* As in serving: f32 caches, and CPUs without such products, have fp32 sums all the same. */
static void narrow_attention_right(struct kctx *c) {
    c->ops->narrow_activations(c, true);
    attention_right_when(c, true);
}

static void attention_is_right_and_each_rows_own(void **state) {
    (void)state;
    on_every_level(attention_right);
}

static void rounded_attention_is_right_and_each_rows_own(void **state) {
    (void)state;
    on_every_level(narrow_attention_right);
    on_level("avx512bf16", narrow_attention_right);
    on_level("amx", narrow_attention_right);
}

/* Two cores take heads one by one where a single core takes them together. */
static void check_teams(bool narrow) {
    struct attention_case a = {DTYPE_BF16, 9, 3, 64, 16, 0, 576, .n_seqs = 2, .T = 5,
                               .kv_of_head = {0, 0, 0, 1, 1, 1, 2, 2, 2}};
    case_fill(&a, 300);
    float *first = NULL;
    for (int n_cores = 1; n_cores <= 3; n_cores++) {
        struct kctx *c = open_ctx(n_cores, 0, false);
        c->ops->narrow_activations(c, narrow);
        float *out = case_run(c, &a, 0, a.T, 0.125f);
        if (first) assert_memory_equal(first, out, (size_t)(a.T * a.out_stride) * 4);
        if (first) free(out);
        else first = out;
        c->ops->close(c);
    }
    free(first);
    free(a.q);
    free(a.keys);
    free(a.values);
}

static void bits_do_not_depend_on_the_team(void **state) {
    (void)state;
    check_teams(false);
    check_teams(true);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_is_right_and_each_rows_own),
        cmocka_unit_test(rounded_attention_is_right_and_each_rows_own),
        cmocka_unit_test(bits_do_not_depend_on_the_team),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
