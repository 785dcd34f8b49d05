/* Weights' codes by activations in int8 on tiles: int8.h says what is summed in what order.
 *
 * A panel's codes, unpacked, are the second operand as they stand. A tile of sums is a run of codes (32 or
 * 16 k that share a scale) of 16 outputs by up to 16 rows of x. Four runs are multiplied while the four before
 * them are scaled and added to the outputs.
 *
 * INT8_FEW_ROWS is the level's product without tiles: of so few rows as its registers hold, tiles would be
 * nearly empty. */
#include "kernels/cpu/int8_codes_impl.h"

enum { RUNS = 4, RUN_SUMS = 16 * LANES };

/* --- x ---------------------------------------------------------------------------------------- */

static bool few_rows(const struct narrow_rows *x) { return x->n_rows <= INT8_FEW_ROWS.rows; }

/* Row i of n. A group's block has the 32 codes of each row, then each other word of all rows. */
static void put_blocks(uint32_t *to, size_t n, size_t i, const uint32_t *blocks, int32_t n_blocks) {
    for (int32_t b = 0; b < n_blocks; b++, blocks += X8_WORDS, to += X8_WORDS * n) {
        memcpy(to + i * X8_SCALE, blocks, X8_BLOCK);
        for (size_t word = X8_SCALE; word < X8_WORDS; word++) to[word * n + i] = blocks[word];
    }
}

static void quantise_row(uint32_t *to, size_t n, size_t i, const float *x, int32_t cols) {
    enum { STRETCH = 16 * X8_BLOCK };
    uint32_t blocks[STRETCH / X8_BLOCK * X8_WORDS];
    for (int32_t k = 0; k < cols; k += STRETCH, to += sizeof blocks / sizeof *blocks * n) {
        int32_t some = cols - k < STRETCH ? cols - k : STRETCH;
        struct narrow_rows one = {blocks, 1, 1, some};
        INT8_FEW_ROWS.quantise(&one, x + k, &(struct narrow_part){0, 1, 0, some});
        put_blocks(to, n, i, blocks, some / X8_BLOCK);
    }
}

static void quantise_for_tiles(const struct narrow_rows *to, const float *x, const struct narrow_part *part) {
    if (few_rows(to)) {
        INT8_FEW_ROWS.quantise(to, x, part);
        return;
    }
    for (int32_t r = part->row; r < part->row_end; r++) {
        int32_t first = group_first(to, r);
        quantise_row(group8_at(to, first, part->col), (size_t)group_size(to, first), (size_t)(r - first),
                     x + (size_t)r * (size_t)to->cols + part->col, part->col_end - part->col);
    }
}

/* --- weights ---------------------------------------------------------------------------------- */

/* INT8_CHUNK k of one panel: for each 4 k a word of codes around 0, for each run a scale and perhaps an
 * offset. */
struct chunk8 {
    uint8_t *codes;        /* [k / 4][WORD] */
    float *scale, *offset; /* [run][LANES] */
    int32_t n_k;
    const uint8_t *next; /* what is unpacked next, to be fetched meanwhile */
    int32_t next_lines;  /* cache lines of it for 32 k */
};

/* The bits of a where b has none, and the other way round. */
INLINE vi either(vi a, vi b) { return i_sub(i_or(a, b), i_and(a, b)); }

/* Of each byte the code that 1 << zero stands for, so that this one is 0. Codes have zero + 1 bits, 6 at most, or
 * all 8: there is room to bring 0 to bit 6; turned over, and again above itself, that is the sign. */
INLINE vi around_zero(vi codes, int zero) {
    if (zero == MIN) return codes;
    if (zero == EIGHT_BITS) return either(codes, i_set1((int)0x80808080));
    const vi sign = i_set1(0x40404040);
    vi signs = either(i_add(codes, i_set1((64 - (1 << zero)) * 0x01010101)), sign);
    return i_or(signs, i_sll(i_and(signs, sign), 1));
}

#define UNPACK_SIGNED(TYPE, name, RUN, BLOCK, BYTES, ZERO)                                         \
    static void unpack_signed_##name(const uint8_t *from, const struct chunk8 *to) {               \
        uint8_t *codes = to->codes;                                                                \
        float *scale = to->scale, *offset = to->offset;                                            \
        for (int32_t k = 0; k < to->n_k; k += BLOCK, from += LANES * BYTES)                        \
            UNROLL for (int i = 0; i < BLOCK; i += RUN) {                                          \
                struct run r = run_##name(from, i);                                                \
                v_store(scale, r.scale), scale += LANES;                                           \
                if (ZERO == MIN) v_store(offset, r.offset), offset += LANES;                       \
                UNROLL for (int j = 0; j < RUN / 4; j++, codes += WORD)                            \
                    i_store(codes, around_zero(bytes_##name(&r, j), ZERO));                        \
            }                                                                                      \
    }

INT8_TYPES(UNPACK_SIGNED)

struct type8 {
    void (*unpack)(const uint8_t *from, const struct chunk8 *to);
    int run;
    bool min;
};

static const struct type8 *type8_of(enum dtype type) {
#define ENTRY(TYPE, name, RUN, BLOCK, BYTES, ZERO) [TYPE] = {unpack_signed_##name, RUN, ZERO == MIN},
    static const struct type8 of_type[DTYPE_COUNT] = {INT8_TYPES(ENTRY)};
#undef ENTRY
    return &of_type[type];
}

/* --- sums ------------------------------------------------------------------------------------- */

/* Tiles 0 … 3 are sums of n rows of x, 4 and 5 codes of x, 6 and 7 codes of weights. */
AMX static void shape_tiles8(int n, int run) {
    struct tile_shapes s = {.palette = 1};
    for (int i = 0; i < RUNS; i++) tile_shape(&s, i, n, 4 * LANES);
    for (int i = 4; i < 6; i++) tile_shape(&s, i, n, run);
    for (int i = 6; i < 8; i++) tile_shape(&s, i, run / 4, WORD);
    tile_config(&s);
}

/* Where a group of n rows has column k. */
INLINE const uint32_t *block_of(const uint32_t *x, size_t n, int32_t k) {
    return x + (size_t)(k / X8_BLOCK * X8_WORDS) * n;
}

/* sums [run][row][LANES] of n_runs runs from column k of the chunk. */
AMX INLINE void multiply_runs(const struct chunk8 *w, int32_t k, int n_runs, int run, const uint32_t *x,
                              size_t n, int32_t *sums) {
#define MULTIPLY(i, a, b)                                                                          \
    if (i < n_runs) {                                                                              \
        int32_t at = k + i * run;                                                                  \
        tile_load(a, (const uint8_t *)block_of(x, n, at) + at % X8_BLOCK, X8_BLOCK);               \
        tile_load(b, w->codes + (size_t)at * LANES, WORD);                                         \
        tile_zero(i);                                                                              \
        tile_dot_int8(i, a, b);                                                                    \
    }
    MULTIPLY(0, 4, 6)
    MULTIPLY(1, 5, 7)
    MULTIPLY(2, 4, 6)
    MULTIPLY(3, 5, 7)
#undef MULTIPLY
    tile_store(0, sums, WORD);
    if (n_runs > 1) tile_store(1, sums + RUN_SUMS, WORD);
    if (n_runs > 2) tile_store(2, sums + 2 * RUN_SUMS, WORD);
    if (n_runs > 3) tile_store(3, sums + 3 * RUN_SUMS, WORD);
}

/* The same runs to the outputs so far: total [row][INT8_PANELS][LANES]. */
INLINE void add_runs(const struct chunk8 *w, int32_t k, int n_runs, int run, bool min, const uint32_t *x,
                     size_t n, const int32_t *sums, float *total) {
    vf scale[RUNS], offset[RUNS];
    UNROLL for (int i = 0; i < n_runs; i++) {
        scale[i] = v_load(w->scale + (k / run + i) * LANES);
        if (min) offset[i] = v_load(w->offset + (k / run + i) * LANES);
    }
    for (size_t r = 0; r < n; r++, sums += LANES, total += INT8_PANELS * LANES) {
        vf so_far = v_load(total);
        UNROLL for (int i = 0; i < n_runs; i++) {
            int32_t at = k + i * run;
            const uint32_t *block = block_of(x, n, at) + r;
            so_far = total_add(so_far, i_load(sums + i * RUN_SUMS), scale[i], x_float(block + X8_SCALE * n));
            if (min)
                so_far = v_fma(offset[i], scaled_sum(block, n, run, at % X8_BLOCK / run), so_far);
        }
        v_store(total, so_far);
    }
}

INLINE void add_some_runs(const struct chunk8 *w, int32_t k, int run, bool min, const uint32_t *x, size_t n,
                          const int32_t *sums, float *total) {
    int n_runs = (w->n_k - k) / run;
    if (n_runs >= RUNS) add_runs(w, k, RUNS, run, min, x, n, sums, total);
    else add_runs(w, k, n_runs, run, min, x, n, sums, total);
}

/* A group by a chunk. run and min are constants for the compiler. */
AMX INLINE void group_by_chunk(const struct chunk8 *w, int run, bool min, const uint32_t *x, size_t n,
                               float *total) {
    _Alignas(64) int32_t sums[2][RUNS * RUN_SUMS];
    int step = RUNS * run, turn = 0;
    for (int32_t k = 0; k < w->n_k; k += step, turn = !turn) {
        for (int32_t i = 0; i < step / X8_BLOCK * w->next_lines; i++)
            __builtin_prefetch(w->next + 64 * (k / X8_BLOCK * w->next_lines + i), 0, 2);
        int n_runs = (w->n_k - k) / run;
        if (n_runs >= RUNS) multiply_runs(w, k, RUNS, run, x, n, sums[turn]);
        else multiply_runs(w, k, n_runs, run, x, n, sums[turn]);
        if (k > 0) add_some_runs(w, k - step, run, min, x, n, sums[!turn], total);
    }
    add_some_runs(w, (w->n_k - 1) / step * step, run, min, x, n, sums[!turn], total);
}

AMX static void group_by_chunk_of(const struct type8 *type, const struct chunk8 *w, const uint32_t *x,
                                  size_t n, float *total) {
    if (type->run == 32 && type->min) group_by_chunk(w, 32, true, x, n, total);
    else if (type->run == 32) group_by_chunk(w, 32, false, x, n, total);
    else if (type->min) group_by_chunk(w, 16, true, x, n, total);
    else group_by_chunk(w, 16, false, x, n, total);
}

/* --- matrices --------------------------------------------------------------------------------- */

/* Where the panel has column k, the first of a chunk. */
static const uint8_t *chunk_of_codes(const struct panels *w, int32_t panel, int32_t k) {
    return w->data + (size_t)panel * w->panel_bytes + LANES * dtype_row_bytes(w->type, k);
}

struct product8 {
    const struct panels *w;
    const struct type8 *type;
    const struct narrow_rows *x;
    struct chunk8 chunk[INT8_PANELS];
    float *sums;    /* [row][panel][LANES]: the outputs so far */
    int32_t shaped; /* rows that the tiles are shaped for */
};

static void next_chunk(const struct product8 *p, struct chunk8 *chunk, int32_t panel, int32_t k, int32_t after) {
    const struct panels *w = p->w;
    bool last = w->cols - k <= INT8_CHUNK;
    chunk->n_k = last ? w->cols - k : INT8_CHUNK;
    chunk->next = last ? chunk_of_codes(w, after, 0) : chunk_of_codes(w, panel, k + INT8_CHUNK);
    chunk->next_lines = panel8_lines(w);
    p->type->unpack(chunk_of_codes(w, panel, k), chunk);
}

/* Panels from first on; after: the one that comes after them. */
AMX static void some_panels8(struct product8 *p, int32_t first, int n_panels, int32_t after) {
    const struct narrow_rows *x = p->x;
    memset(p->sums, 0, (size_t)x->n_rows * INT8_PANELS * WORD);
    for (int32_t k = 0; k < p->w->cols; k += INT8_CHUNK) {
        for (int i = 0; i < n_panels; i++) next_chunk(p, &p->chunk[i], first + i, k, after + i);
        for (int32_t r = 0; r < x->n_rows; r += x->group_rows) {
            int32_t n = group_size(x, r);
            if (n != p->shaped) shape_tiles8(n, p->type->run);
            p->shaped = n;
            const uint32_t *group = group8_at(x, r, k);
            for (int i = 0; i < n_panels; i++) {
                group_by_chunk_of(p->type, &p->chunk[i], group, (size_t)n,
                                  p->sums + (r * INT8_PANELS + i) * LANES);
                p->chunk[i].next_lines = 0;
            }
        }
    }
}

AMX static void matmul8_tiles(const struct panels *w, int32_t from, int32_t to, const struct narrow_rows *x,
                              const float *bias, float *y, void *scratch) {
    if (few_rows(x)) {
        INT8_FEW_ROWS.matmul(w, from, to, x, bias, y, scratch);
        return;
    }
    enum { CODES = INT8_CHUNK * LANES, SCALES = INT8_CHUNK / 16 * LANES };
    struct product8 p = {.w = w, .type = type8_of(w->type), .x = x};
    float *scales = (float *)(void *)((uint8_t *)scratch + INT8_PANELS * CODES);
    for (int i = 0; i < INT8_PANELS; i++)
        p.chunk[i] = (struct chunk8){.codes = (uint8_t *)scratch + i * CODES,
                                     .scale = scales + 2 * i * SCALES,
                                     .offset = scales + (2 * i + 1) * SCALES};
    p.sums = scales + 2 * INT8_PANELS * SCALES;
    for (int32_t panel = from; panel < to; panel += INT8_PANELS) {
        int n = to - panel < INT8_PANELS ? to - panel : INT8_PANELS;
        some_panels8(&p, panel, n, panel + INT8_PANELS < to ? panel + INT8_PANELS : from);
        for (int32_t r = 0; r < x->n_rows; r++)
            for (int i = 0; i < n; i++)
                put_outputs(w, panel + i, v_load(p.sums + (r * INT8_PANELS + i) * LANES), bias,
                            y + (size_t)r * (size_t)w->rows);
    }
    tile_release();
}

static void matvec8_no_tiles(const struct panels *w, int32_t from, int32_t to, const struct narrow_rows *x,
                             const float *bias, float *y) {
    INT8_FEW_ROWS.matvec(w, from, to, x, bias, y);
}

const struct cpu_int8 INT8_TABLE = {
    .rows = 16,
    .quantise = quantise_for_tiles,
    .matvec = matvec8_no_tiles,
    .matmul = matmul8_tiles,
};
