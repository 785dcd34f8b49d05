/* Attention with queries, keys, values and weights in bf16, sums in fp32, by AVX512-BF16: attention_impl.h
 * for caches that are narrow already, where activations may be rounded.
 *
 * Keys and values are gathered in tiles that begin at multiples of ATTENTION_TILE positions, in words of
 * two bf16: a key's words are pairs of its elements, with 16 positions to a vector; a value's words are
 * pairs of positions, with 16 elements to a vector. So both scores = q k^T and sums += weights v add two
 * products to each lane at once (struct block). Scores are powers of two: log2(e) is in the query.
 *
 * A query's sums are one chain over all pairs of positions that it sees; a pair that it sees half has
 * nothing in the other half, whatever the cache has there. What a query gets is therefore the same in any
 * company, bit by bit. */
#include "kernels/cpu/bf16.h"
#include "kernels/cpu/vec.h"

#include "kernels/cpu/vec_avx512.h"

#include <string.h>

#include "kernels/cpu/attention_tiles_impl.h"

/* Registers hold the sums of so many queries, by 4 vectors. */
enum { QUERIES = 6, PAIR = 2, VECTOR_PAIRS = 2 * LANES, TILE_PAIRS = ATTENTION_TILE / PAIR };

/* A unit's scratch. Query i is head i % n_heads of row i / n_heads; e is filled up with zeros to whole
 * vectors of pairs. */
struct room {
    int32_t e, full_e, n_heads;
    uint32_t *keys;    /* [full_e / 2][tile] */
    uint32_t *values;  /* [tile / 2][full_e] */
    uint32_t *half;    /* [full_e]: a pair of values without one of the two */
    uint32_t *q;       /* [query][full_e / 2], scaled */
    float *sum;        /* [query][full_e] */
    float *total;      /* [query][LANES], of the weights */
    float *max;        /* [query] */
    float *score;      /* [QUERIES][tile] */
    uint32_t *weight;  /* [QUERIES][tile / 2] */
};

static struct room room_layout(int32_t e, int32_t n_heads, void *scratch) {
    struct room a = {.e = e, .full_e = round_up(e, VECTOR_PAIRS), .n_heads = n_heads};
    a.keys = scratch;
    a.values = a.keys + a.full_e / PAIR * ATTENTION_TILE;
    a.half = a.values + TILE_PAIRS * a.full_e;
    a.q = a.half + a.full_e;
    a.sum = (float *)(a.q + ATTENTION16_QUERIES * (a.full_e / PAIR));
    a.total = a.sum + ATTENTION16_QUERIES * a.full_e;
    a.max = a.total + ATTENTION16_QUERIES * LANES;
    a.score = a.max + ATTENTION16_QUERIES;
    a.weight = (uint32_t *)(a.score + QUERIES * ATTENTION_TILE);
    return a;
}

/* --- tiles ------------------------------------------------------------------------------------ */

/* 32 elements of a cached vector, of which n are left, in their order; those beyond are 0. */
BF16 INLINE vi words_of(enum dtype type, const void *cache, int64_t at, int32_t n) {
    if (type == DTYPE_BF16 && n >= VECTOR_PAIRS) return i_load((const uint16_t *)cache + at);
    vf a = widen(type, cache, at, n);
    return i_bf16_joined(a, n > LANES ? widen(type, cache, at + LANES, n - LANES) : v_zero());
}

/* Positions beyond the tile's are 0. */
BF16 INLINE void load_keys(enum dtype type, const struct room *a, const void *cache,
                           const struct kv_tile *tile) {
    int32_t from = tile->from % ATTENTION_TILE, to = from + tile->to - tile->from;
    for (int32_t p = from / LANES * LANES; p < to; p += LANES)
        for (int32_t i = 0; i < a->full_e; i += VECTOR_PAIRS) {
            vf square[LANES];
            for (int32_t j = p; j < p + LANES; j++)
                square[j - p] = j >= from && j < to
                                    ? v_cast(words_of(type, cache, tile->at[j - from] + i, a->e - i))
                                    : v_zero();
            v_transpose(square);
            uint32_t *words = a->keys + i / PAIR * ATTENTION_TILE + p;
            UNROLL for (int j = 0; j < LANES; j++) i_store(words + j * ATTENTION_TILE, i_cast(square[j]));
        }
}

BF16 INLINE void load_values(enum dtype type, const struct room *a, const void *cache,
                             const struct kv_tile *tile) {
    int32_t from = tile->from % ATTENTION_TILE, to = from + tile->to - tile->from;
    for (int32_t p = from / PAIR * PAIR; p < to; p += PAIR)
        for (int32_t i = 0; i < a->full_e; i += VECTOR_PAIRS) {
            vi one = p >= from ? words_of(type, cache, tile->at[p - from] + i, a->e - i) : i_set1(0);
            vi two = p + 1 < to ? words_of(type, cache, tile->at[p + 1 - from] + i, a->e - i) : i_set1(0);
            uint32_t *words = a->values + p / PAIR * a->full_e + i;
            i_store(words, i_bf16_zip_low(one, two));
            i_store(words + LANES, i_bf16_zip_high(one, two));
        }
}

BF16 INLINE void load_type(enum dtype type, const struct room *a, const struct attention_job *job,
                           const struct kv_tile *tile) {
    for (int32_t p = 0; p < tile->n_next; p++) fetch(type, job->k, tile->next[p], a->e);
    load_keys(type, a, job->k, tile);
    for (int32_t p = 0; p < tile->n_next; p++) fetch(type, job->v, tile->next[p], a->e);
    load_values(type, a, job->v, tile);
}

BF16 static void load_tile(const struct attention_job *job, const struct room *a, const struct kv_tile *tile) {
    if (job->kv->type == DTYPE_F16)
        load_type(DTYPE_F16, a, job, tile);
    else if (job->kv->type == DTYPE_BF16)
        load_type(DTYPE_BF16, a, job, tile);
    else
        load_type(DTYPE_Q8_0, a, job, tile);
}

/* --- products ----------------------------------------------------------------------------------- */

/* sum[query][vector of 16 lanes] (+)= over n_pairs: x[query][pair] * w[pair][vector]. */
struct block {
    const uint32_t *x, *w;
    float *sum;
    size_t x_stride, w_stride, sum_stride, n_pairs;
    const float *keep; /* what of each query's sum stays; NULL: they begin at 0 */
};

/* rows and vectors are constants for the compiler. */
BF16 INLINE void block_sums(const struct block *block, int rows, int vectors) {
    const struct block b = *block; /* stores below cannot be to it */
    vf sum[QUERIES][4];
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int v = 0; v < vectors; v++)
            sum[r][v] = b.keep ? v_mul(v_load(b.sum + (size_t)r * b.sum_stride + v * LANES), v_set1(b.keep[r]))
                               : v_zero();
    const uint32_t *w = b.w;
    for (size_t i = 0; i < b.n_pairs; i++, w += b.w_stride) {
        vf wi[4];
        UNROLL for (int v = 0; v < vectors; v++) wi[v] = v_cast(i_load(w + v * LANES));
        UNROLL for (int r = 0; r < rows; r++) {
            vf xi = v_cast(i_set1((int)b.x[(size_t)r * b.x_stride + i]));
            UNROLL for (int v = 0; v < vectors; v++) sum[r][v] = v_add_bf16_products(sum[r][v], wi[v], xi);
        }
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int v = 0; v < vectors; v++) v_store(b.sum + (size_t)r * b.sum_stride + v * LANES, sum[r][v]);
}

#define EACH_ROWS(X, v) X(1, v) X(2, v) X(3, v) X(4, v) X(5, v) X(6, v)
#define BLOCK(r, v) \
    BF16 static void block_##r##_##v(const struct block *b) { block_sums(b, r, v); }
EACH_ROWS(BLOCK, 2)
EACH_ROWS(BLOCK, 4)
#define ENTRY(r, v) block_##r##_##v,
typedef void block_fn(const struct block *b);
static block_fn *const two_vectors[] = {EACH_ROWS(ENTRY, 2)}, *const four_vectors[] = {EACH_ROWS(ENTRY, 4)};

static void block_of(const struct block *b, int32_t n, bool wide) {
    if (wide) four_vectors[n - 1](b);
    else two_vectors[n - 1](b);
}

/* --- queries -------------------------------------------------------------------------------------- */

/* 2^x to 8e-5, a fiftieth of what rounding to bf16 may cost; 2^-inf is 0. */
INLINE vf power_of_two(vf x) {
    vf r = v_fraction(x);
    vf p = v_fma(v_set1(0x1.3f96a4p-4f), r, v_set1(0x1.cefc4cp-3f));
    p = v_fma(p, r, v_set1(0x1.64444cp-1f));
    p = v_fma(p, r, v_set1(0x1.fff632p-1f));
    return v_times_power(p, x);
}

/* The scores at s of positions from … to-1 of the tile become weights, and *max the highest so far. Gives
 * what the query's sums shrink to. */
BF16 INLINE float weights_of(float *s, uint32_t *weight, int32_t from, int32_t to, float *max, float *total) {
    uint64_t seen = (to < ATTENTION_TILE ? (UINT64_C(1) << to) : 0) - (UINT64_C(1) << from);
    vf x[4], high, shrink = v_set1(1);
    UNROLL for (int v = 0; v < 4; v++) x[v] = v_load_seen(s + v * LANES, (uint16_t)(seen >> (v * LANES)));
    high = v_max(v_max(x[0], x[1]), v_max(x[2], x[3]));
    float highest = v_highest(high);
    if (highest > *max) {
        shrink = power_of_two(v_set1(*max - highest));
        *max = highest;
    }
    vf most = v_set1(*max);
    UNROLL for (int v = 0; v < 4; v++) x[v] = power_of_two(v_sub(x[v], most));
    i_store(weight, i_bf16_joined(x[0], x[1]));
    i_store(weight + LANES, i_bf16_joined(x[2], x[3]));
    vf sum = v_add(v_add(x[0], x[1]), v_add(x[2], x[3]));
    v_store(total, v_fma(v_load(total), shrink, sum));
    return v_first(shrink);
}

/* Sums of n queries from i on += their weights of n_pairs pairs from `pair` on by those values. */
static void mix(const struct room *a, int32_t i, int32_t n, int32_t pair, int32_t n_pairs,
                const uint32_t *values, const float *keep) {
    struct block b = {.x = a->weight + pair, .w = values, .sum = a->sum + i * a->full_e,
                      .x_stride = TILE_PAIRS, .w_stride = (size_t)a->full_e,
                      .sum_stride = (size_t)a->full_e, .n_pairs = (size_t)n_pairs, .keep = keep};
    for (int32_t d = 0; d < a->full_e; d += 4 * LANES, b.w += 4 * LANES, b.sum += 4 * LANES)
        block_of(&b, n, a->full_e - d >= 4 * LANES);
}

/* The same of the one pair of which the queries see the position `at` alone. */
static void mix_half(const struct room *a, int32_t i, int32_t n, int32_t at, const float *keep) {
    const uint32_t *values = a->values + at / PAIR * a->full_e;
    for (int32_t d = 0; d < a->full_e; d++) a->half[d] = values[d] & (at % PAIR ? 0xFFFF0000 : 0xFFFF);
    mix(a, i, n, at / PAIR, 1, a->half, keep);
}

/* n queries from i on, QUERIES at most, attend to positions from … to-1 of the tile. */
BF16 static void attend(const struct room *a, int32_t i, int32_t n, int32_t from, int32_t to) {
    static const float all[QUERIES] = {1, 1, 1, 1, 1, 1};
    struct block b = {.x = a->q + i * (a->full_e / PAIR), .w = a->keys, .sum = a->score,
                      .x_stride = (size_t)a->full_e / PAIR, .w_stride = ATTENTION_TILE,
                      .sum_stride = ATTENTION_TILE, .n_pairs = (size_t)a->full_e / PAIR};
    block_of(&b, n, to > 2 * LANES);
    float shrink[QUERIES];
    for (int32_t j = 0; j < n; j++)
        shrink[j] = weights_of(a->score + j * ATTENTION_TILE, a->weight + j * TILE_PAIRS, from, to,
                               &a->max[i + j], a->total + (i + j) * LANES);
    const float *keep = shrink;
    if (from % PAIR) mix_half(a, i, n, from++, keep), keep = all;
    int32_t pair = from / PAIR, n_pairs = to / PAIR - pair;
    if (n_pairs > 0) mix(a, i, n, pair, n_pairs, a->values + pair * a->full_e, keep), keep = all;
    if (to % PAIR && to > from) mix_half(a, i, n, to - 1, keep);
}

/* As many queries at once as see the whole tile; of other rows each what it sees. */
static void attend_rows(const struct attention_job *job, const struct attention_unit *u,
                        const struct room *a, const struct kv_tile *tile) {
    const int32_t *pos = job->pos + u->row;
    int32_t begin = tile->from / ATTENTION_TILE * ATTENTION_TILE, all = u->n_rows * a->n_heads;
    for (int32_t i = 0, n; i < all; i += n) {
        n = all - i < QUERIES ? all - i : QUERIES;
        int32_t row = i / a->n_heads, last = (i + n - 1) / a->n_heads;
        bool whole = first_position(job, pos[last]) <= tile->from && pos[row] + 1 >= tile->to;
        if (!whole && (row + 1) * a->n_heads - i < n) n = (row + 1) * a->n_heads - i;
        int32_t from = first_position(job, pos[row]), to = pos[row] + 1;
        if (from < tile->from) from = tile->from;
        if (to > tile->to) to = tile->to;
        if (from < to) attend(a, i, n, from - begin, to - begin);
    }
}

/* --- a unit ----------------------------------------------------------------------------------- */

BF16 static void begin(const struct attention_job *job, const struct attention_unit *u, const struct room *a) {
    vf scale = v_set1(job->scale * 0x1.715476p+0f);
    for (int32_t i = 0; i < u->n_rows * u->n_heads; i++) {
        int64_t row = u->row + i / a->n_heads, head = u->head + i % a->n_heads;
        const float *q = job->q + (row * job->H + head) * a->e;
        for (int32_t d = 0; d < a->full_e; d += VECTOR_PAIRS) {
            vf one = widen(DTYPE_F32, q, d, a->e - d);
            vf two = a->e - d > LANES ? widen(DTYPE_F32, q, d + LANES, a->e - d - LANES) : v_zero();
            i_store(a->q + i * (a->full_e / PAIR) + d / PAIR,
                    i_bf16_joined(v_mul(one, scale), v_mul(two, scale)));
        }
        memset(a->sum + i * a->full_e, 0, (size_t)a->full_e * sizeof *a->sum);
        memset(a->total + i * LANES, 0, LANES * sizeof *a->total);
        a->max[i] = -__builtin_inff();
    }
}

static void end(const struct attention_job *job, const struct attention_unit *u, const struct room *a) {
    for (int32_t i = 0; i < u->n_rows * u->n_heads; i++) {
        size_t row = (size_t)(u->row + i / a->n_heads);
        float *out = job->out + row * job->out_stride + (u->head + i % a->n_heads) * a->e;
        float share = 1 / v_sum(v_load(a->total + i * LANES));
        for (int32_t d = 0; d < a->e; d++) out[d] = a->sum[i * a->full_e + d] * share;
    }
}

void attention_bf16(const struct attention_job *job, const struct attention_unit *u, void *scratch) {
    struct room a = room_layout(job->kv->head_dim, u->n_heads, scratch);
    const int32_t *pos = job->pos + u->row;
    int32_t last = pos[u->n_rows - 1];
    struct kv_tile tile;
    begin(job, u, &a);
    for (int32_t at = first_position(job, pos[0]); at <= last; at = tile.to) {
        tile_find(job, u, &tile, at, last);
        load_tile(job, &a, &tile);
        attend_rows(job, u, &a, &tile);
    }
    end(job, u, &a);
}
