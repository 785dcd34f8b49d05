/* Causal attention over packed sequences, forward and backward. The unit of work is a pair: TILE_Q
 * query rows of one head against TILE_K key rows, all of it small products on copies in the caches.
 * Blocks of keys begin at multiples of TILE_K, tiles of queries at multiples of TILE_Q.
 *
 * Copies named …_t are turned, [e][rows]; the others are [rows][lanes], e filled up with zeros to
 * whole panels. What the scratch holds of rows beyond the tile's or the block's end is never read
 * into a result. */

#include <math.h>

struct pair_room {
    int32_t e, lanes;
    float *q_t, *dout_t;         /* [e][TILE_Q]; q_t is multiplied by scale */
    float *q, *dout, *sum;       /* [TILE_Q][lanes]; sum: the output, or dq */
    float *k_t, *v_t;            /* [e][TILE_K] */
    float *k, *v, *dv;           /* [TILE_K][lanes] */
    float *p, *ds;               /* [TILE_Q][TILE_K] */
    float *max, *total, *lse, *d; /* [TILE_Q] */
};

/* A tile and a head, or a block and a KV head, in the arrays of the call. */
struct span {
    int32_t row, n_rows, head;
};

static struct pair_room pair_layout(int32_t e, float *scratch) {
    struct pair_room r = {.e = e, .lanes = round_up(e, PANEL)};
    size_t of_q = (size_t)r.lanes * TILE_Q, of_k = (size_t)r.lanes * TILE_K;
    float **q_sized[] = {&r.q_t, &r.dout_t, &r.q, &r.dout, &r.sum};
    float **k_sized[] = {&r.k_t, &r.v_t, &r.k, &r.v, &r.dv};
    float **rows[] = {&r.max, &r.total, &r.lse, &r.d};
    for (int i = 0; i < 5; i++, scratch += of_q) *q_sized[i] = scratch;
    for (int i = 0; i < 5; i++, scratch += of_k) *k_sized[i] = scratch;
    r.p = scratch;
    r.ds = r.p + TILE_Q * TILE_K;
    scratch = r.ds + TILE_Q * TILE_K;
    for (int i = 0; i < 4; i++, scratch += TILE_Q) *rows[i] = scratch;
    return r;
}

/* --- the six products ------------------------------------------------------------------------ */

/* c[TILE_Q][TILE_K] = a_t^T b, a_t [e][TILE_Q], b [e][TILE_K]. */
static void pair_scores(float *c, const float *a_t, const float *b, int32_t e, int32_t rows,
                        int32_t cols) {
    for (int32_t j = 0; j < cols; j += PANEL)
        for (int32_t r = 0; r < rows; r += MATMUL_ROWS)
            sums(a_t + r, 1, TILE_Q, b + j, TILE_K, e, c + r * TILE_K + j, TILE_K, false);
}

/* c[rows][lanes] += a b, a [TILE_Q][TILE_K], b [n_k][lanes]. */
static void mix(float *c, const float *a, const float *b, int32_t lanes, int32_t rows,
                int32_t n_k) {
    for (int32_t j = 0; j < lanes; j += PANEL)
        for (int32_t r = 0; r < rows; r += MATMUL_ROWS)
            sums(a + r * TILE_K, TILE_K, 1, b + j, (size_t)lanes, n_k, c + r * lanes + j,
                 (size_t)lanes, true);
}

/* c[rows][lanes] += a^T b, a [n_q][TILE_K], b [n_q][lanes]. */
static void mix_turned(float *c, const float *a, const float *b, int32_t lanes, int32_t rows,
                       int32_t n_q) {
    for (int32_t j = 0; j < lanes; j += PANEL)
        for (int32_t r = 0; r < rows; r += MATMUL_ROWS)
            sums(a + r, 1, TILE_K, b + j, (size_t)lanes, n_q, c + r * lanes + j, (size_t)lanes,
                 true);
}

/* --- what rows see --------------------------------------------------------------------------- */

static int32_t first_key(const struct rows_attention *a, int32_t row) {
    int32_t first = a->first[row];
    return a->window > 0 && row - a->window >= first ? row - a->window + 1 : first;
}

/* The keys of a block that a row sees, from … to-1, counted from the block's start. */
static void keys_seen(const struct rows_attention *a, int32_t row, int32_t block, int32_t *from,
                      int32_t *to) {
    *from = first_key(a, row) - block;
    *to = row + 1 - block;
    if (*from < 0) *from = 0;
    if (*to > TILE_K) *to = TILE_K;
    if (*from > *to) *from = *to;
}

INLINE void fill(float *x, int32_t from, int32_t to, float value) {
    for (int32_t i = from; i < to; i++) x[i] = value;
}

static struct span tile_at_row(const struct rows_attention *a, int32_t row, int32_t size,
                               int32_t head) {
    return (struct span){row, a->T - row < size ? a->T - row : size, head};
}

/* Columns of scores that a tile and a block have in common. */
static int32_t cols_of(const struct span *q, const struct span *k) {
    int32_t n = q->row + q->n_rows - k->row;
    return round_up(n < k->n_rows ? n : k->n_rows, PANEL);
}

static void copy_rows(float *to, const float *from, size_t stride, int32_t n, int32_t e,
                      int32_t lanes) {
    for (int32_t i = 0; i < n; i++)
        copy_row(to + i * lanes, from + (size_t)i * stride, e, lanes, 1);
}

/* --- forward --------------------------------------------------------------------------------- */

/* One row of scores becomes weights; what the row has gathered shrinks to the new maximum. */
static void softmax_row(const struct pair_room *room, int32_t r, int32_t from, int32_t to,
                        int32_t cols) {
    float *s = room->p + r * TILE_K, old = room->max[r], max = old, lane[LANES];
    fill(s, 0, from, -__builtin_inff());
    fill(s, to, cols, -__builtin_inff());
    vf most = v_set1(old), sum = v_zero();
    for (int32_t i = 0; i < cols; i += LANES) most = v_max(most, v_load(s + i));
    v_store(lane, most);
    for (int i = 0; i < LANES; i++) max = lane[i] > max ? lane[i] : max;
    for (int32_t i = 0; i < cols; i += LANES)
        v_store(s + i, v_exp(v_sub(v_load(s + i), v_set1(max))));
    fill(s, 0, from, 0);
    fill(s, to, cols, 0);
    for (int32_t i = 0; i < cols; i += LANES) sum = v_add(sum, v_load(s + i));
    if (max > old) {
        float shrink = expf(old - max);
        scale_all(room->sum + r * room->lanes, (size_t)room->lanes, shrink);
        room->total[r] *= shrink;
        room->max[r] = max;
    }
    room->total[r] += v_sum(sum);
}

static void softmax_rows(const struct rows_attention *a, const struct pair_room *room,
                         const struct span *q, const struct span *k, int32_t cols) {
    for (int32_t r = 0; r < q->n_rows; r++) {
        int32_t from, to;
        keys_seen(a, q->row + r, k->row, &from, &to);
        if (from < to)
            softmax_row(room, r, from, to, cols);
        else
            fill(room->p + r * TILE_K, 0, cols, 0);
    }
}

static void attention_tile(const struct rows_attention *a, int32_t tile, int32_t head,
                           void *scratch) {
    struct pair_room room = pair_layout(a->e, scratch);
    struct span q = tile_at_row(a, tile * TILE_Q, TILE_Q, head);
    size_t q_stride = (size_t)(a->H * a->e), kv_stride = (size_t)(a->K * a->e);
    int32_t rows = round_up(q.n_rows, MATMUL_ROWS), end = q.row + q.n_rows;
    size_t of_head = (size_t)(a->kv_of_head[head] * a->e);
    turn_all(room.q_t, TILE_Q, a->q + (size_t)q.row * q_stride + head * a->e, q_stride, q.n_rows,
             a->e, a->scale);
    memset(room.sum, 0, (size_t)(TILE_Q * room.lanes) * sizeof *room.sum);
    for (int32_t r = 0; r < q.n_rows; r++) {
        room.max[r] = -__builtin_inff();
        room.total[r] = 0;
    }
    for (int32_t at = first_key(a, q.row) / TILE_K * TILE_K; at < end; at += TILE_K) {
        struct span k = tile_at_row(a, at, TILE_K, a->kv_of_head[head]);
        int32_t cols = cols_of(&q, &k), n = k.n_rows < cols ? k.n_rows : cols;
        size_t from = (size_t)at * kv_stride + of_head;
        turn_all(room.k_t, TILE_K, a->k + from, kv_stride, n, a->e, 1);
        copy_rows(room.v, a->v + from, kv_stride, n, a->e, room.lanes);
        pair_scores(room.p, room.q_t, room.k_t, a->e, rows, cols);
        softmax_rows(a, &room, &q, &k, cols);
        mix(room.sum, room.p, room.v, room.lanes, rows, n);
    }
    for (int32_t r = 0; r < q.n_rows; r++) {
        float *out = a->out + (size_t)(q.row + r) * a->out_stride + head * a->e;
        for (int32_t i = 0; i < a->e; i++) out[i] = room.sum[r * room.lanes + i] / room.total[r];
        a->lse[(size_t)(q.row + r) * (size_t)a->H + (size_t)head] =
            (float)((double)room.max[r] + log((double)room.total[r]));
    }
}

/* --- backward -------------------------------------------------------------------------------- */

static void load_queries(const struct rows_attention *a, const struct pair_room *room,
                         const struct span *q) {
    size_t stride = (size_t)(a->H * a->e), at = (size_t)q->row * stride + (size_t)(q->head * a->e);
    size_t out_at = (size_t)q->row * a->out_stride + (size_t)(q->head * a->e);
    turn_all(room->q_t, TILE_Q, a->q + at, stride, q->n_rows, a->e, a->scale);
    turn_all(room->dout_t, TILE_Q, a->dout + out_at, a->out_stride, q->n_rows, a->e, 1);
    copy_rows(room->q, a->q + at, stride, q->n_rows, a->e, room->lanes);
    copy_rows(room->dout, a->dout + out_at, a->out_stride, q->n_rows, a->e, room->lanes);
    for (int32_t r = 0; r < q->n_rows; r++) {
        const float *out = a->out + out_at + (size_t)r * a->out_stride;
        vf sum = v_zero();
        for (int32_t i = 0; i < a->e; i += LANES) {
            int n = a->e - i < LANES ? a->e - i : LANES;
            sum = v_fma(v_load_n(out + i, n), v_load(room->dout + r * room->lanes + i), sum);
        }
        room->d[r] = v_sum(sum);
        room->lse[r] = a->lse[(size_t)(q->row + r) * (size_t)a->H + (size_t)q->head];
    }
}

static void load_block(const struct rows_attention *a, const struct pair_room *room,
                       const struct span *k) {
    size_t stride = (size_t)(a->K * a->e), at = (size_t)k->row * stride + (size_t)(k->head * a->e);
    turn_all(room->k_t, TILE_K, a->k + at, stride, k->n_rows, a->e, 1);
    turn_all(room->v_t, TILE_K, a->v + at, stride, k->n_rows, a->e, 1);
    copy_rows(room->k, a->k + at, stride, k->n_rows, a->e, room->lanes);
}

/* p and ds of a loaded tile and block; zeros where a row does not see a key. */
static void pair_gradient(const struct rows_attention *a, const struct pair_room *room,
                          const struct span *q, const struct span *k) {
    int32_t rows = round_up(q->n_rows, MATMUL_ROWS), cols = cols_of(q, k);
    pair_scores(room->p, room->q_t, room->k_t, a->e, rows, cols);
    pair_scores(room->ds, room->dout_t, room->v_t, a->e, rows, cols);
    for (int32_t r = 0; r < q->n_rows; r++) {
        float *p = room->p + r * TILE_K, *ds = room->ds + r * TILE_K;
        vf lse = v_set1(room->lse[r]), d = v_set1(room->d[r]), scale = v_set1(a->scale);
        int32_t from, to;
        keys_seen(a, q->row + r, k->row, &from, &to);
        for (int32_t i = from / LANES * LANES; i < to; i += LANES) {
            vf x = v_exp(v_sub(v_load(p + i), lse));
            v_store(p + i, x);
            v_store(ds + i, v_mul(v_mul(x, v_sub(v_load(ds + i), d)), scale));
        }
        fill(p, 0, from, 0);
        fill(p, to, TILE_K, 0);
        fill(ds, 0, from, 0);
        fill(ds, to, TILE_K, 0);
    }
}

/* dq of the tile += what the sum has. */
static void add_dq(const struct rows_attention *a, const struct pair_room *room,
                   const struct span *q) {
    for (int32_t r = 0; r < q->n_rows; r++) {
        float *dq = a->dq + ((size_t)(q->row + r) * (size_t)a->H + (size_t)q->head) * (size_t)a->e;
        for (int32_t i = 0; i < a->e; i++) dq[i] += room->sum[r * room->lanes + i];
    }
}

static void pair_dq(const struct rows_attention *a, const struct pair_room *room,
                    const struct span *q, const struct span *k) {
    memset(room->sum, 0, (size_t)(TILE_Q * room->lanes) * sizeof *room->sum);
    int32_t cols = cols_of(q, k), n = k->n_rows < cols ? k->n_rows : cols;
    mix(room->sum, room->ds, room->k, room->lanes, round_up(q->n_rows, MATMUL_ROWS), n);
    add_dq(a, room, q);
}

static void clear_dq(const struct rows_attention *a, int32_t row, int32_t n, int32_t head) {
    for (int32_t r = row; r < row + n; r++)
        memset(a->dq + ((size_t)r * (size_t)a->H + (size_t)head) * (size_t)a->e, 0,
               (size_t)a->e * sizeof *a->dq);
}

static void attention_dq(const struct rows_attention *a, int32_t tile, int32_t head,
                         void *scratch) {
    struct pair_room room = pair_layout(a->e, scratch);
    struct span q = tile_at_row(a, tile * TILE_Q, TILE_Q, head);
    clear_dq(a, q.row, q.n_rows, head);
    load_queries(a, &room, &q);
    for (int32_t at = first_key(a, q.row) / TILE_K * TILE_K; at < q.row + q.n_rows; at += TILE_K) {
        struct span k = tile_at_row(a, at, TILE_K, a->kv_of_head[head]);
        load_block(a, &room, &k);
        pair_gradient(a, &room, &q, &k);
        pair_dq(a, &room, &q, &k);
    }
}

/* All pairs of a block with the tiles of one head, in ascending order. */
static void block_with_head(const struct rows_attention *a, const struct pair_room *room,
                            const struct span *k, int32_t head, bool with_dq, float *dk) {
    for (int32_t at = k->row / TILE_Q * TILE_Q; at < a->T; at += TILE_Q) {
        struct span q = tile_at_row(a, at, TILE_Q, head);
        int32_t rows = round_up(cols_of(&q, k), MATMUL_ROWS);
        if (first_key(a, at) >= k->row + k->n_rows) break; /* and all rows after it */
        load_queries(a, room, &q);
        pair_gradient(a, room, &q, k);
        mix_turned(room->dv, room->p, room->dout, room->lanes, rows, q.n_rows);
        mix_turned(dk, room->ds, room->q, room->lanes, rows, q.n_rows);
        if (with_dq) pair_dq(a, room, &q, k);
    }
}

static void attention_dkv(const struct rows_attention *a, int32_t block, int32_t kv_head,
                          bool with_dq, void *scratch) {
    struct pair_room room = pair_layout(a->e, scratch);
    struct span k = tile_at_row(a, block * TILE_K, TILE_K, kv_head);
    float *dk = room.v; /* the backward has no use for v as rows */
    size_t stride = (size_t)(a->K * a->e), at = (size_t)k.row * stride + (size_t)(kv_head * a->e);
    load_block(a, &room, &k);
    memset(room.dv, 0, (size_t)(TILE_K * room.lanes) * sizeof *room.dv);
    memset(dk, 0, (size_t)(TILE_K * room.lanes) * sizeof *dk);
    for (int32_t head = 0; head < a->H; head++) {
        if (a->kv_of_head[head] != kv_head) continue;
        if (with_dq && block == 0) clear_dq(a, 0, a->T, head);
        block_with_head(a, &room, &k, head, with_dq, dk);
    }
    for (int32_t r = 0; r < k.n_rows; r++) {
        memcpy(a->dk + at + (size_t)r * stride, dk + r * room.lanes, (size_t)a->e * sizeof *dk);
        memcpy(a->dv + at + (size_t)r * stride, room.dv + r * room.lanes,
               (size_t)a->e * sizeof *dk);
    }
}
