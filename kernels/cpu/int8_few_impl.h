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
    FEW8_AHEAD = 3072, /* bytes that are asked for ahead of those in use */
};

/* Two panels from some column on. */
struct few8 {
    const uint8_t *at[INT8_PANELS];
    const uint8_t *next[INT8_PANELS]; /* what is fetched meanwhile */
    int32_t n_k, next_lines;          /* cache lines of it for 32 k */
    bool first;
};

/* By a group of n rows. The scales of a block come first, where the places of their bits are constants; then
 * its codes, 32 k after another. */
#define FEW8(TYPE, name, RUN, BLOCK, BYTES, ZERO, n)                                           \
    static void few8_##name##_##n(const struct few8 *t, const uint32_t *x, float *sums) {      \
        enum { RUNS = BLOCK / RUN, HALVES = X8_BLOCK / RUN };                                  \
        const uint8_t *at[INT8_PANELS], *next[INT8_PANELS];                                    \
        vf total[INT8_ROWS][INT8_PANELS], scale[RUNS][INT8_PANELS], offset[RUNS][INT8_PANELS]; \
        UNROLL for (int p = 0; p < INT8_PANELS; p++) at[p] = t->at[p], next[p] = t->next[p];   \
        totals_load(total, n, INT8_PANELS, t->first, sums);                                    \
        for (int32_t k = 0; k < t->n_k; k += BLOCK) {                                          \
            UNROLL for (int i = 0; i < RUNS; i++)                                              \
                UNROLL for (int p = 0; p < INT8_PANELS; p++) {                                 \
                    struct run r = run_##name(at[p], i * RUN);                                 \
                    scale[i][p] = r.scale;                                                     \
                    if (ZERO == MIN) offset[i][p] = r.offset;                                  \
                }                                                                              \
            for (int i = 0; i < RUNS; i += HALVES, x += X8_WORDS * n) {                        \
                for (int l = 0; l < t->next_lines; l++)                                        \
                    UNROLL for (int p = 0; p < INT8_PANELS; p++, next[p - 1] += 64)            \
                        __builtin_prefetch(next[p], 0, 3);                                     \
                for (int h = 0; h < HALVES; h++) {                                             \
                    vi sum[INT8_ROWS][INT8_PANELS];                                            \
                    struct run r[INT8_PANELS];                                                 \
                    sums_begin(sum, n, INT8_PANELS, RUN, ZERO, x, h);                          \
                    UNROLL for (int p = 0; p < INT8_PANELS; p++)                               \
                        r[p] = run_##name(at[p], (i + h) * RUN);                               \
                    UNROLL for (int j = 0; j < RUN / 4; j++) {                                 \
                        vi w[INT8_PANELS];                                                     \
                        UNROLL for (int p = 0; p < INT8_PANELS; p++)                           \
                            w[p] = bytes_##name(&r[p], j);                                     \
                        sums_add(sum, n, INT8_PANELS, RUN, ZERO, x, h, j, w);                  \
                    }                                                                          \
                    totals_add(total, sum, n, INT8_PANELS, RUN, ZERO, x, h, scale[i + h],      \
                               offset[i + h]);                                                 \
                }                                                                              \
            }                                                                                  \
            UNROLL for (int p = 0; p < INT8_PANELS; p++) at[p] += LANES * BYTES;               \
        }                                                                                      \
        totals_store(total, n, INT8_PANELS, sums);                                             \
    }

#define FEW8_OF_ROWS(...) EACH_ROWS(FEW8, __VA_ARGS__)
INT8_TYPES(FEW8_OF_ROWS)

typedef void few8_fn(const struct few8 *t, const uint32_t *x, float *sums);

/* [rows] */
static few8_fn *const *few8_of(enum dtype type) {
#define ROWS(name, n) [n] = few8_##name##_##n,
#define ENTRY(TYPE, name, RUN, BLOCK, BYTES, ZERO) [TYPE] = {EACH_ROWS(ROWS, name)},
    static few8_fn *const of_type[DTYPE_COUNT][INT8_ROWS + 1] = {INT8_TYPES(ENTRY)};
#undef ENTRY
#undef ROWS
    return of_type[type];
}

/* Panels p and q (which is p for a last one alone) by all groups; each fetches a part of what comes next. */
static void two_panels8_few(const struct panels *w, int32_t p, int32_t q, const struct narrow_rows *x, float *sums) {
    few8_fn *const *of_rows = few8_of(w->type);
    int32_t n_groups = (x->n_rows + x->group_rows - 1) / x->group_rows;
    int32_t lines = (int32_t)(w->panel_bytes / (size_t)(w->cols / X8_BLOCK) / 64) + 1;
    int32_t most = n_groups == 1 || w->cols <= INT8_CHUNK ? w->cols : FEW8_CHUNK;
    struct few8 t = {.next_lines = (lines + n_groups - 1) / n_groups};
    for (int32_t k = 0; k < w->cols; k += most) {
        t.n_k = w->cols - k < most ? w->cols - k : most;
        t.first = k == 0;
        t.at[0] = panel8_at(w, p, k);
        t.at[1] = panel8_at(w, q, k);
        size_t bytes = LANES * dtype_row_bytes(w->type, t.n_k);
        size_t ahead = n_groups == 1 ? FEW8_AHEAD : bytes, part = bytes / (size_t)n_groups;
        for (int32_t r = 0; r < x->n_rows; r += x->group_rows, ahead += part) {
            int32_t rows = group_size(x, r);
            for (int i = 0; i < INT8_PANELS; i++) t.next[i] = t.at[i] + ahead;
            of_rows[rows](&t, group8_at(x, r, k), sums + (size_t)r * (INT8_PANELS * LANES));
        }
    }
}

/* Two runs of panels side by side: each goes straight on in memory. sums: as many rows as x has. */
static void matmul8_few(const struct panels *w, int32_t from, int32_t to, const struct narrow_rows *x,
                        const float *bias, float *y, float *sums) {
    int32_t stride = (to - from + 1) / 2;
    for (int32_t p = from; p < from + stride; p++) {
        int32_t q = p + stride < to ? p + stride : p;
        two_panels8_few(w, p, q, x, sums);
        put_totals(w, p, q, x->n_rows, sums, bias, y);
    }
}
