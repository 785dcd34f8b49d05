/* Products of a few rows in int8: codes are unpacked in registers, anew for each group of rows, so that memory
 * is read on while sums are made. (int8_impl.h unpacks for many rows at once, into the cache.) */

/* Groups up to which this is faster: codes of 16 k a scale take more instructions to unpack. */
INLINE bool is_few8(const struct panels *w, const struct narrow_rows *x) {
    static const int8_t run_of[DTYPE_COUNT] = {
#define ENTRY(TYPE, name, RUN, BLOCK, BYTES, ZERO) [TYPE] = RUN,
        INT8_TYPES(ENTRY)
#undef ENTRY
    };
    int groups = run_of[w->type] == X8_BLOCK ? INT8_FEW_GROUPS : INT8_FEW_GROUPS / 2;
    return x->n_rows <= groups * x->group_rows;
}

enum {
    FEW8_CHUNK = 512,  /* k that all groups take before the next: a multiple of each block */
    FEW8_AHEAD = 4096, /* bytes that are asked for ahead of those in use */
    FEW8_SCALES = FEW8_CHUNK / 16 * INT8_PANELS * LANES,
};

/* Two panels from some column on. */
struct few8 {
    const uint8_t *at[INT8_PANELS];
    const uint8_t *next[INT8_PANELS]; /* what is fetched meanwhile */
    int32_t n_k, next_lines;          /* cache lines of it for 32 k */
    bool first;
    float *scale, *offset; /* of blocks of 256 alone: [run][panel][LANES] */
};

/* The scales of blocks of 256, which take as many instructions as some rows: once for all groups. */
#define FEW8_SCALES_OF(TYPE, name, RUN, BLOCK, BYTES, ZERO)                                        \
    INLINE void scales8_##name(const struct few8 *t) {                                         \
        float *scale = t->scale, *offset = t->offset;                                          \
        for (int32_t k = 0; k < t->n_k; k += BLOCK)                                            \
            UNROLL for (int i = 0; i < BLOCK / RUN; i++)                                       \
                UNROLL for (int p = 0; p < INT8_PANELS; p++, scale += LANES) {                 \
                    size_t block = (size_t)(k / BLOCK) * (LANES * BYTES);                      \
                    struct run r = run_##name(t->at[p] + block, i * RUN);                      \
                    v_store(scale, r.scale);                                                   \
                    if (ZERO == MIN) v_store(offset, r.offset), offset += LANES;               \
                }                                                                              \
    }
INT8_TYPES(FEW8_SCALES_OF)

/* By a group of n rows. */
#define FEW8(TYPE, name, RUN, BLOCK, BYTES, ZERO, n)                                           \
    static void few8_##name##_##n(const struct few8 *t, const uint32_t *x, float *sums) {      \
        const uint8_t *at[INT8_PANELS], *next[INT8_PANELS];                                    \
        const float *scale = t->scale, *offset = t->offset;                                    \
        vf total[INT8_ROWS][INT8_PANELS];                                                      \
        UNROLL for (int p = 0; p < INT8_PANELS; p++) at[p] = t->at[p], next[p] = t->next[p];   \
        totals_load(total, n, INT8_PANELS, t->first, sums);                                    \
        for (int32_t k = 0; k < t->n_k; k += BLOCK) {                                          \
            for (int i = 0; i < BLOCK; i += X8_BLOCK, x += X8_WORDS * n) {                     \
                for (int l = 0; l < t->next_lines; l++)                                        \
                    UNROLL for (int p = 0; p < INT8_PANELS; p++, next[p - 1] += 64)            \
                        __builtin_prefetch(next[p], 0, 3);                                     \
                for (int h = 0; h < X8_BLOCK / RUN; h++) {                                     \
                    vi sum[INT8_ROWS][INT8_PANELS];                                            \
                    vf scales[INT8_PANELS], offsets[INT8_PANELS];                              \
                    struct run r[INT8_PANELS];                                                 \
                    sums_begin(sum, n, INT8_PANELS, RUN, ZERO, x, h);                          \
                    UNROLL for (int p = 0; p < INT8_PANELS; p++) {                             \
                        r[p] = run_##name(at[p], i + h * RUN);                                 \
                        scales[p] = r[p].scale;                                                \
                        if (ZERO == MIN) offsets[p] = r[p].offset;                             \
                    }                                                                          \
                    UNROLL for (int j = 0; j < RUN / 4; j++) {                                 \
                        vi w[INT8_PANELS];                                                     \
                        UNROLL for (int p = 0; p < INT8_PANELS; p++)                           \
                            w[p] = bytes_##name(&r[p], j);                                     \
                        sums_add(sum, n, INT8_PANELS, RUN, ZERO, x, h, j, w);                  \
                    }                                                                          \
                    if (BLOCK > X8_BLOCK)                                                      \
                        UNROLL for (int p = 0; p < INT8_PANELS; p++) {                         \
                            scales[p] = v_load(scale), scale += LANES;                         \
                            if (ZERO == MIN) offsets[p] = v_load(offset), offset += LANES;     \
                        }                                                                      \
                    totals_add(total, sum, n, INT8_PANELS, RUN, ZERO, x, h, scales, offsets);  \
                }                                                                              \
            }                                                                                  \
            UNROLL for (int p = 0; p < INT8_PANELS; p++) at[p] += LANES * BYTES;               \
        }                                                                                      \
        totals_store(total, n, INT8_PANELS, sums);                                             \
    }

#define FEW8_OF_ROWS(...) EACH_ROWS(FEW8, __VA_ARGS__)
INT8_TYPES(FEW8_OF_ROWS)

typedef void few8_fn(const struct few8 *t, const uint32_t *x, float *sums);
struct few8_loops {
    void (*scales)(const struct few8 *t); /* NULL: each run has its own beside it */
    few8_fn *of_rows[INT8_ROWS + 1];
};

static const struct few8_loops *few8_of(enum dtype type) {
#define ROWS(name, n) [n] = few8_##name##_##n,
#define ENTRY(TYPE, name, RUN, BLOCK, BYTES, ZERO)                                             \
    [TYPE] = {BLOCK > X8_BLOCK ? scales8_##name : NULL, {EACH_ROWS(ROWS, name)}},
    static const struct few8_loops of_type[DTYPE_COUNT] = {INT8_TYPES(ENTRY)};
#undef ENTRY
#undef ROWS
    return &of_type[type];
}

/* Panels p and q (which is p for a last one alone) by all groups; each fetches a part of what comes next. */
static void two_panels8_few(const struct panels *w, int32_t p, int32_t q, const struct narrow_rows *x,
                            struct few8 *t, float *sums) {
    const struct few8_loops *loops = few8_of(w->type);
    int32_t n_groups = (x->n_rows + x->group_rows - 1) / x->group_rows;
    int32_t lines = panel8_lines(w);
    bool at_once = !loops->scales && (n_groups == 1 || w->cols <= INT8_CHUNK);
    int32_t most = at_once ? w->cols : FEW8_CHUNK;
    t->next_lines = (lines + n_groups - 1) / n_groups;
    for (int32_t k = 0; k < w->cols; k += most) {
        t->n_k = w->cols - k < most ? w->cols - k : most;
        t->first = k == 0;
        t->at[0] = panel8_at(w, p, k);
        t->at[1] = panel8_at(w, q, k);
        if (loops->scales) loops->scales(t);
        size_t bytes = LANES * dtype_row_bytes(w->type, t->n_k);
        size_t ahead = n_groups == 1 ? FEW8_AHEAD : bytes, part = bytes / (size_t)n_groups;
        for (int32_t r = 0; r < x->n_rows; r += x->group_rows, ahead += part) {
            for (int i = 0; i < INT8_PANELS; i++) t->next[i] = t->at[i] + ahead;
            loops->of_rows[group_size(x, r)](t, group8_at(x, r, k), sums + (size_t)r * (INT8_PANELS * LANES));
        }
    }
}

/* Two runs of panels side by side: each goes straight on in memory. scratch: INT8_SCRATCH bytes. */
static void matmul8_few(const struct panels *w, int32_t from, int32_t to, const struct narrow_rows *x,
                        const float *bias, float *y, float *scratch) {
    struct few8 t = {.scale = scratch, .offset = scratch + FEW8_SCALES};
    float *sums = scratch + 2 * FEW8_SCALES;
    int32_t stride = (to - from + 1) / 2;
    for (int32_t p = from; p < from + stride; p++) {
        int32_t q = p + stride < to ? p + stride : p;
        two_panels8_few(w, p, q, x, &t, sums);
        put_totals(w, p, q, x->n_rows, sums, bias, y);
    }
}
