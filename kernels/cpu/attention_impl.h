/* Attention of a few query rows and heads over their sequence's cache, with an online softmax.
 *
 * Keys and values come in tiles: runs of at most ATTENTION_TILE positions in one block, cut at
 * multiples of ATTENTION_TILE of the position's place in its block. The cuts depend on absolute
 * positions alone, so that a row's sums are the same whichever rows are beside it. */

/* A unit's scratch, each vector [lane_e]: head size rounded up to lanes, the rest zeros. */
struct attention_room {
    int32_t e, lane_e;
    float *keys, *values; /* [tile][lane_e] */
    float *q, *sum;       /* [row][head][lane_e] */
    float *weight;        /* [tile] */
    float *max, *total;   /* [row][head] */
};

struct kv_tile {
    int32_t from, to; /* positions */
    const float *keys, *values;
};

static struct attention_room attention_layout(int32_t e, int32_t n_heads, float *scratch) {
    struct attention_room a = {.e = e, .lane_e = round_up(e, LANES)};
    size_t vectors = (size_t)ATTENTION_ROWS * (size_t)n_heads, size = (size_t)a.lane_e;
    a.keys = scratch;
    a.values = a.keys + ATTENTION_TILE * size;
    a.q = a.values + ATTENTION_TILE * size;
    a.sum = a.q + vectors * size;
    a.weight = a.sum + vectors * size;
    a.max = a.weight + ATTENTION_TILE;
    a.total = a.max + vectors;
    return a;
}

/* n vectors of e elements, dense, to fp32 with lane_e apart. */
static void widen(enum dtype type, const void *from, int32_t n, int32_t e, float *to,
                  int32_t lane_e) {
    const float *f = from;
    const uint16_t *h = from;
    for (int32_t i = 0; i < n; i++, to += lane_e, f += e, h += e) {
        int32_t j = 0;
        if (type == DTYPE_F32) {
            memcpy(to, f, (size_t)e * sizeof *to);
        } else if (type == DTYPE_F16) {
            for (; j + LANES <= e; j += LANES) v_store(to + j, v_f16(h + j));
            for (; j < e; j++) to[j] = f16_to_f32(h[j]);
        } else {
            for (; j + LANES <= e; j += LANES) v_store(to + j, v_bf16(h + j));
            for (; j < e; j++) to[j] = bf16_to_f32(h[j]);
        }
        for (j = e; j < lane_e; j++) to[j] = 0;
    }
}

static const float *tile_vectors(const struct attention_room *a, enum dtype type,
                                 const void *cache, int64_t at, int32_t n, float *room) {
    const uint8_t *from = (const uint8_t *)cache + at * a->e * (type == DTYPE_F32 ? 4 : 2);
    if (type == DTYPE_F32 && a->e == a->lane_e) return (const float *)(const void *)from;
    widen(type, from, n, a->e, room, a->lane_e);
    return room;
}

/* The tile that begins at position from, at most to last. */
static struct kv_tile tile_at(const struct attention_job *job, const struct attention_unit *u,
                              const struct attention_room *a, int32_t from, int32_t last) {
    const struct kv_view *kv = job->kv;
    const int32_t *table = job->blocks + (int64_t)job->seq[u->row] * job->max_blocks;
    int32_t in_block = from % kv->block_size;
    int32_t n = ATTENTION_TILE - in_block % ATTENTION_TILE;
    if (n > kv->block_size - in_block) n = kv->block_size - in_block;
    if (n > last + 1 - from) n = last + 1 - from;
    int64_t head = (int64_t)table[from / kv->block_size] * kv->n_heads + u->kv_head;
    int64_t at = head * kv->block_size + in_block;
    return (struct kv_tile){from, from + n, tile_vectors(a, kv->type, job->k, at, n, a->keys),
                            tile_vectors(a, kv->type, job->v, at, n, a->values)};
}

INLINE float dot(const float *x, const float *y, int32_t n) {
    vf sum = v_zero();
    for (int32_t i = 0; i < n; i += LANES) sum = v_fma(v_load(x + i), v_load(y + i), sum);
    return v_sum(sum);
}

/* Scores become weights e^(score - max); returns their sum. What the tile lacks of whole lanes
 * counts for nothing. */
static float softmax_weights(float *weight, int32_t n, float max) {
    vf sum = v_zero();
    for (int32_t i = 0; i < n; i += LANES) {
        int rest = n - i < LANES ? n - i : LANES;
        vf w = v_exp(v_sub(v_load_n(weight + i, rest), v_set1(max)));
        v_store_n(weight + i, w, rest);
        sum = v_add(sum, v_load_n(weight + i, rest));
    }
    return v_sum(sum);
}

INLINE void scale_vector(float *x, int32_t n, float s) {
    for (int32_t i = 0; i < n; i += LANES) v_store(x + i, v_mul(v_load(x + i), v_set1(s)));
}

/* One query vector and the tile's positions from … to-1. i: its number in the room. */
static void attend(const struct attention_room *a, const struct kv_tile *tile, size_t i,
                   int32_t from, int32_t to) {
    const float *keys = tile->keys + (from - tile->from) * a->lane_e;
    const float *values = tile->values + (from - tile->from) * a->lane_e;
    const float *q = a->q + i * (size_t)a->lane_e;
    float *sum = a->sum + i * (size_t)a->lane_e, max = a->max[i];
    int32_t n = to - from;
    for (int32_t p = 0; p < n; p++) {
        a->weight[p] = dot(q, keys + p * a->lane_e, a->lane_e);
        if (a->weight[p] > max) max = a->weight[p];
    }
    if (max > a->max[i]) {
        float shrink = __builtin_expf(a->max[i] - max);
        scale_vector(sum, a->lane_e, shrink);
        a->total[i] *= shrink;
        a->max[i] = max;
    }
    a->total[i] += softmax_weights(a->weight, n, max);
    for (int32_t d = 0; d < a->lane_e; d += LANES) {
        vf s = v_load(sum + d);
        for (int32_t p = 0; p < n; p++)
            s = v_fma(v_set1(a->weight[p]), v_load(values + p * a->lane_e + d), s);
        v_store(sum + d, s);
    }
}

static int32_t first_position(const struct attention_job *job, int32_t pos) {
    return job->window > 0 && pos >= job->window ? pos - job->window + 1 : 0;
}

static void attention_start(const struct attention_job *job, const struct attention_unit *u,
                            const struct attention_room *a) {
    size_t i = 0;
    for (int32_t r = 0; r < u->n_rows; r++)
        for (int32_t h = 0; h < u->n_heads; h++, i++) {
            const float *q = job->q + ((int64_t)(u->row + r) * job->H + u->head + h) * a->e;
            float *to = a->q + i * (size_t)a->lane_e;
            for (int32_t d = 0; d < a->lane_e; d++) to[d] = d < a->e ? q[d] * job->scale : 0;
            memset(a->sum + i * (size_t)a->lane_e, 0, (size_t)a->lane_e * sizeof *a->sum);
            a->max[i] = -__builtin_inff();
            a->total[i] = 0;
        }
}

static void attention_end(const struct attention_job *job, const struct attention_unit *u,
                          const struct attention_room *a) {
    size_t i = 0;
    for (int32_t r = 0; r < u->n_rows; r++)
        for (int32_t h = 0; h < u->n_heads; h++, i++) {
            float *out = job->out + (size_t)(u->row + r) * job->out_stride + (u->head + h) * a->e;
            const float *sum = a->sum + i * (size_t)a->lane_e;
            for (int32_t d = 0; d < a->e; d++) out[d] = sum[d] / a->total[i];
        }
}

static void attention(const struct attention_job *job, const struct attention_unit *u,
                      void *scratch) {
    struct attention_room a = attention_layout(job->kv->head_dim, u->n_heads, scratch);
    const int32_t *pos = job->pos + u->row;
    int32_t last = pos[u->n_rows - 1];
    attention_start(job, u, &a);
    for (int32_t at = first_position(job, pos[0]); at <= last;) {
        struct kv_tile tile = tile_at(job, u, &a, at, last);
        size_t i = 0;
        for (int32_t r = 0; r < u->n_rows; r++) {
            int32_t from = first_position(job, pos[r]), to = pos[r] + 1;
            if (from < tile.from) from = tile.from;
            if (to > tile.to) to = tile.to;
            for (int32_t h = 0; h < u->n_heads; h++, i++)
                if (from < to) attend(&a, &tile, i, from, to);
        }
        at = tile.to;
    }
    attention_end(job, u, &a);
}
