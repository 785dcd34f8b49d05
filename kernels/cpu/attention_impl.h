/* Attention of a few query rows and heads over their sequence's cache, with an online softmax.
 *
 * Keys and values are gathered from their blocks in tiles, cut at positions that are multiples of
 * ATTENTION_TILE. Keys are turned over, so that 16 positions are 16 lanes; then both
 * scores = q k^T and sums += weights v are the product of linear_impl.h. The cuts depend on
 * positions alone and no sum crosses queries, so a row's bits are the same whichever rows are
 * beside it. */

#include "kernels/cpu/attention_tiles_impl.h"

/* A unit's scratch. Query i is head i % n_heads of row i / n_heads. Vectors are e rounded up to
 * lanes, the rest zeros. */
struct attention_room {
    int32_t e, lane_e, n_heads;
    float *keys;        /* [tile / 16][lane_e][16] */
    float *values;      /* [tile][lane_e] */
    float *q;           /* [chunk of e][query][K_CHUNK], scaled */
    float *sum;         /* [query][lane_e] */
    float *weight;      /* [query][K_CHUNK], of which a tile is used */
    float *max, *total; /* [query] */
};

static struct attention_room attention_layout(int32_t e, int32_t n_heads, float *scratch) {
    struct attention_room a = {.e = e, .lane_e = round_up(e, LANES), .n_heads = n_heads};
    a.keys = scratch;
    a.values = a.keys + ATTENTION_TILE * a.lane_e;
    a.q = a.values + ATTENTION_TILE * a.lane_e;
    a.sum = a.q + ATTENTION_QUERIES * round_up(e, K_CHUNK);
    a.weight = a.sum + ATTENTION_QUERIES * a.lane_e;
    a.max = a.weight + ATTENTION_QUERIES * K_CHUNK;
    a.total = a.max + ATTENTION_QUERIES;
    return a;
}

/* --- tiles ------------------------------------------------------------------------------------ */

INLINE void load_keys(enum dtype type, const struct attention_room *a, const void *cache,
                      const int64_t *at, int32_t n) {
    for (int32_t p = 0; p < n; p += LANES)
        for (int32_t i = 0; i < a->lane_e; i += LANES) {
            vf square[LANES];
            if (p + LANES <= n && i + LANES <= a->e) {
                UNROLL for (int j = 0; j < LANES; j++)
                    square[j] = widen_all(type, cache, at[p + j] + i);
            } else {
                for (int j = 0; j < LANES; j++)
                    square[j] = p + j < n ? widen(type, cache, at[p + j] + i, a->e - i) : v_zero();
            }
            v_transpose(square);
            float *to = a->keys + p * a->lane_e + i * LANES;
            UNROLL for (int j = 0; j < LANES; j++) v_store(to + j * LANES, square[j]);
        }
}

INLINE void load_values(enum dtype type, const struct attention_room *a, const void *cache,
                        const int64_t *at, int32_t n) {
    for (int32_t p = 0; p < n; p++) {
        float *to = a->values + p * a->lane_e;
        int32_t i = 0;
        for (; i + LANES <= a->e; i += LANES) v_store(to + i, widen_all(type, cache, at[p] + i));
        if (i < a->e) v_store(to + i, widen(type, cache, at[p] + i, a->e - i));
    }
}

INLINE void load_type(enum dtype type, const struct attention_room *a,
                      const struct attention_job *job, const struct kv_tile *tile) {
    for (int32_t p = 0; p < tile->n_next; p++) fetch(type, job->k, tile->next[p], a->e);
    load_keys(type, a, job->k, tile->at, tile->to - tile->from);
    for (int32_t p = 0; p < tile->n_next; p++) fetch(type, job->v, tile->next[p], a->e);
    load_values(type, a, job->v, tile->at, tile->to - tile->from);
}

/* The tile that begins at position from and ends at `last` at the latest. */
static void load_tile(const struct attention_job *job, const struct attention_unit *u,
                      const struct attention_room *a, struct kv_tile *tile, int32_t from,
                      int32_t last) {
    const struct kv_view *kv = job->kv;
    tile_find(job, u, tile, from, last);
    if (kv->type == DTYPE_F16)
        load_type(DTYPE_F16, a, job, tile);
    else if (kv->type == DTYPE_BF16)
        load_type(DTYPE_BF16, a, job, tile);
    else if (kv->type == DTYPE_Q8_0)
        load_type(DTYPE_Q8_0, a, job, tile);
    else
        load_type(DTYPE_F32, a, job, tile);
}

/* --- queries ---------------------------------------------------------------------------------- */

/* weight[i …][0 … n_keys-1] = q k^T, whole lanes. */
static void scores(const struct attention_room *a, int32_t i, int32_t n, int32_t n_keys) {
    for (int32_t p = 0; p < n_keys; p += 2 * LANES)
        for (int32_t d = 0; d < a->lane_e; d += K_CHUNK) {
            const float *keys = a->keys + p * a->lane_e + d * LANES;
            const float *beside = p + LANES < n_keys ? keys + LANES * a->lane_e : keys;
            struct tile t = {.w = {keys, beside},
                             .w_stride = LANES,
                             .n_k = chunk_end(d, a->lane_e) - d,
                             .n_outputs = round_up(n_keys, LANES) - p,
                             .first = d == 0};
            product(&t, a->q + d * ATTENTION_QUERIES + i * K_CHUNK, n,
                    a->weight + i * K_CHUNK + p, K_CHUNK);
        }
}

/* Query i's n scores at s become weights e^(score - max); what it has so far shrinks to the new
 * maximum. s has room for whole lanes: those beyond count e^-87. */
static void softmax_weights(const struct attention_room *a, int32_t i, float *s, int32_t n) {
    float *sum = a->sum + i * a->lane_e;
    for (int32_t p = n; p < round_up(n, LANES); p++) s[p] = -__builtin_inff();
    vf high = v_load(s), total = v_zero();
    for (int32_t p = LANES; p < n; p += LANES) high = v_max(high, v_load(s + p));
    float max = v_highest(high);
    if (max > a->max[i]) {
        float shrink = __builtin_expf(a->max[i] - max);
        for (int32_t d = 0; d < a->lane_e; d += LANES)
            v_store(sum + d, v_mul(v_load(sum + d), v_set1(shrink)));
        a->total[i] *= shrink;
        a->max[i] = max;
    }
    for (int32_t p = 0; p < n; p += LANES) {
        vf w = v_exp(v_sub(v_load(s + p), v_set1(a->max[i])));
        v_store(s + p, w);
        total = v_add(total, w);
    }
    a->total[i] += v_sum(total);
}

/* Queries i … i+n-1 attend to positions from … to-1 of the tile. */
static void attend(const struct attention_room *a, const struct kv_tile *tile, int32_t i, int32_t n,
                   int32_t from, int32_t to) {
    int32_t skip = from - tile->from;
    scores(a, i, n, to - tile->from);
    for (int32_t j = i; j < i + n; j++)
        softmax_weights(a, j, a->weight + j * K_CHUNK + skip, to - from);
    for (int32_t d = 0; d < a->lane_e; d += 2 * LANES) {
        const float *values = a->values + skip * a->lane_e + d;
        struct tile t = {.w = {values, d + LANES < a->lane_e ? values + LANES : values},
                         .w_stride = (size_t)a->lane_e,
                         .n_k = to - from,
                         .n_outputs = a->lane_e - d};
        product(&t, a->weight + i * K_CHUNK + skip, n, a->sum + i * a->lane_e + d,
                (size_t)a->lane_e);
    }
}

/* All queries at once where all see the whole tile; else row by row, each what it sees. */
static void attend_rows(const struct attention_job *job, const struct attention_unit *u,
                        const struct attention_room *a, const struct kv_tile *tile) {
    const int32_t *pos = job->pos + u->row;
    if (first_position(job, pos[u->n_rows - 1]) <= tile->from && pos[0] + 1 >= tile->to) {
        attend(a, tile, 0, u->n_rows * u->n_heads, tile->from, tile->to);
        return;
    }
    for (int32_t r = 0; r < u->n_rows; r++) {
        int32_t from = first_position(job, pos[r]), to = pos[r] + 1;
        if (from < tile->from) from = tile->from;
        if (to > tile->to) to = tile->to;
        if (from < to) attend(a, tile, r * u->n_heads, u->n_heads, from, to);
    }
}

/* --- a unit ----------------------------------------------------------------------------------- */

static void attention_start(const struct attention_job *job, const struct attention_unit *u,
                            const struct attention_room *a) {
    for (int32_t i = 0; i < u->n_rows * u->n_heads; i++) {
        int64_t row = u->row + i / a->n_heads, head = u->head + i % a->n_heads;
        const float *q = job->q + (row * job->H + head) * a->e;
        for (int32_t d = 0; d < a->lane_e; d++)
            a->q[d / K_CHUNK * K_CHUNK * ATTENTION_QUERIES + i * K_CHUNK + d % K_CHUNK] =
                d < a->e ? q[d] * job->scale : 0;
        memset(a->sum + i * a->lane_e, 0, (size_t)a->lane_e * sizeof *a->sum);
        a->max[i] = -__builtin_inff();
        a->total[i] = 0;
    }
}

static void attention_end(const struct attention_job *job, const struct attention_unit *u,
                          const struct attention_room *a) {
    for (int32_t i = 0; i < u->n_rows * u->n_heads; i++) {
        size_t row = (size_t)(u->row + i / a->n_heads);
        float *out = job->out + row * job->out_stride + (u->head + i % a->n_heads) * a->e;
        for (int32_t d = 0; d < a->e; d++) out[d] = a->sum[i * a->lane_e + d] / a->total[i];
    }
}

static void attention(const struct attention_job *job, const struct attention_unit *u,
                      void *scratch) {
    struct attention_room a = attention_layout(job->kv->head_dim, u->n_heads, scratch);
    const int32_t *pos = job->pos + u->row;
    int32_t last = pos[u->n_rows - 1];
    struct kv_tile tile;
    attention_start(job, u, &a);
    for (int32_t at = first_position(job, pos[0]); at <= last;) {
        load_tile(job, u, &a, &tile, at, last);
        attend_rows(job, u, &a, &tile);
        at = tile.to;
    }
    attention_end(job, u, &a);
}
