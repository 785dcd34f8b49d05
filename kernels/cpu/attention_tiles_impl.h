/* Tiles of cached keys and values, as attention reads them on each instruction set: where they lie, and 16
 * lanes of them as floats. */

/* Positions from … to-1, each `at` elements into the caches; then n_next that are wanted afterwards. */
struct kv_tile {
    int32_t from, to, n_next;
    int64_t at[ATTENTION_TILE], next[ATTENTION_TILE];
};

static int32_t first_position(const struct attention_job *job, int32_t pos) {
    return job->window > 0 && pos >= job->window ? pos - job->window + 1 : 0;
}

/* Where n positions of the unit's KV head from `from` on lie in the caches. */
static void place(const struct attention_job *job, const struct attention_unit *u, int32_t from,
                  int32_t n, int64_t *at) {
    const struct kv_view *kv = job->kv;
    const int32_t *table = job->blocks + (int64_t)job->seq[u->row] * job->max_blocks;
    for (int32_t i = 0; i < n;) { /* block by block: divisions take long */
        int32_t block = (from + i) / kv->block_size, inside = (from + i) % kv->block_size;
        int64_t head = (int64_t)table[block] * kv->n_heads + u->kv_head;
        for (; i < n && inside < kv->block_size; i++, inside++)
            at[i] = (head * kv->block_size + inside) * kv->head_dim;
    }
}

/* The tile that begins at position from and ends at `last` at the latest, and what follows it. */
static void tile_find(const struct attention_job *job, const struct attention_unit *u,
                      struct kv_tile *tile, int32_t from, int32_t last) {
    int32_t cut = (from / ATTENTION_TILE + 1) * ATTENTION_TILE, ahead = cut + ATTENTION_TILE;
    tile->from = from;
    tile->to = cut <= last ? cut : last + 1;
    tile->n_next = (ahead <= last ? ahead : last + 1) - tile->to;
    place(job, u, from, tile->to - from, tile->at);
    place(job, u, tile->to, tile->n_next, tile->next);
}

/* 16 whole lanes. Heads are whole blocks of Q8_0, so `at` is at a block's begin or middle. */
INLINE vf widen_all(enum dtype type, const void *cache, int64_t at) {
    if (type == DTYPE_Q8_0) {
        const uint8_t *block = (const uint8_t *)cache + at / 32 * 34;
        uint16_t scale;
        memcpy(&scale, block, sizeof scale);
        return v_mul(v_from_i(i_bytes(block + 2 + at % 32)), v_set1(one_f16(scale)));
    }
    return type == DTYPE_F32   ? v_load((const float *)cache + at)
           : type == DTYPE_F16 ? v_f16((const uint16_t *)cache + at)
                               : v_bf16((const uint16_t *)cache + at);
}

/* 16 lanes of a cached vector that may have less than 16 left; those beyond are 0. */
INLINE vf widen(enum dtype type, const void *cache, int64_t at, int32_t n) {
    if (n >= LANES) return widen_all(type, cache, at);
    if (type == DTYPE_F32) return v_load_n((const float *)cache + at, n);
    uint16_t some[LANES] = {0};
    memcpy(some, (const uint16_t *)cache + at, (size_t)n * sizeof *some);
    return widen_all(type, some, 0);
}

/* Asks for a vector that the next tile wants: blocks lie anywhere, so the hardware does not foresee it. */
INLINE void fetch(enum dtype type, const void *cache, int64_t at, int32_t e) {
    int64_t size = type == DTYPE_F32 ? 4 : 2;
    const char *from = (const char *)cache + (type == DTYPE_Q8_0 ? at / 32 * 34 : at * size);
    int64_t bytes = type == DTYPE_Q8_0 ? e / 32 * 34 : e * size;
    for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(from + b);
}
