/* kernels/cuda/sizes.h: what needs no device to be reckoned: how many bytes a matrix takes, and how much
 * scratch memory an operation works in. Operations ask here, and plans count here (kernels/plan), so that
 * what is planned is what is taken. Plain C, too. */
#ifndef TPD_KERNELS_CUDA_SIZES_H
#define TPD_KERNELS_CUDA_SIZES_H

#include "kernels/kernels.h"

#ifdef __cplusplus
#include "kernels/cuda/port.h"
#define SIZES_CONSTANT __host__ __device__ constexpr
#else
#define SIZES_CONSTANT static inline
#endif

static inline size_t align_to(size_t n, size_t to) { return (n + to - 1) / to * to; }
static inline unsigned blocks_for(size_t n, size_t per_block) {
    return (unsigned)((n + per_block - 1) / per_block);
}

/* CONVERTED_TILE: so many elements of a matrix at most are converted at a time in training, so that the product
 * still finds most of them in the second-level cache. */
#ifdef TPD_CUSIM /* small matrices have several tiles, and an access behind the end of scratch is seen */
enum { CONVERTED_TILE = 4 << 10, BLAS_WORKSPACE_BYTES = 256, SCRATCH_GRAIN = 256 };
#else
enum { CONVERTED_TILE = 16 << 20, BLAS_WORKSPACE_BYTES = 32 << 20, SCRATCH_GRAIN = 1 << 20 };
#endif

/* --- matrices -------------------------------------------------------------------------------------- */

struct quant_format {
    int block, block_bytes;  /* of the file */
    int low_bits, high_bits; /* high_bits 0: none */
    int sub_at, sub_bytes;   /* where the file's block has packed sub-scales; 0 bytes: none */
    int d_at, d_bytes;       /* and its f16 scale, with the minimum behind it when 4 bytes */
    int codes;               /* what a code is less than */
};

/* Constants for the compiler in kernels that are templates on the type. */
SIZES_CONSTANT struct quant_format quant_format(enum dtype type) {
    return type == DTYPE_Q8_0   ? (struct quant_format){32, 34, 8, 0, 0, 0, 0, 2, 256}
           : type == DTYPE_Q4_0 ? (struct quant_format){32, 18, 4, 0, 0, 0, 0, 2, 16}
           : type == DTYPE_Q4_1 ? (struct quant_format){32, 20, 4, 0, 0, 0, 0, 4, 16}
           : type == DTYPE_Q5_0 ? (struct quant_format){32, 22, 4, 1, 0, 0, 0, 2, 32}
           : type == DTYPE_Q5_1 ? (struct quant_format){32, 24, 4, 1, 0, 0, 0, 4, 32}
           : type == DTYPE_Q2_K ? (struct quant_format){256, 84, 2, 0, 0, 16, 80, 4, 4}
           : type == DTYPE_Q3_K ? (struct quant_format){256, 110, 2, 1, 96, 12, 108, 2, 8}
           : type == DTYPE_Q4_K ? (struct quant_format){256, 144, 4, 0, 4, 12, 0, 4, 16}
           : type == DTYPE_Q5_K ? (struct quant_format){256, 176, 4, 1, 4, 12, 0, 4, 32}
                                : (struct quant_format){256, 210, 4, 2, 192, 16, 208, 2, 64};
}

static inline size_t plain_size(enum dtype type) { return type == DTYPE_F32 ? 4 : 2; }
/* Elements from row to row of a plain matrix. */
static inline int32_t plain_ld(enum dtype type, int32_t cols) {
    return (int32_t)align_to((size_t)cols, 16 / plain_size(type));
}

/* Where the arrays of a quantised matrix begin (quant.h), and where the last one ends. */
struct matrix_places {
    size_t high, sub, d, end;
};

static inline struct matrix_places matrix_places(enum dtype type, int32_t rows, int32_t cols) {
    struct quant_format f = quant_format(type);
    size_t n = (size_t)rows * (size_t)cols, blocks = n / (size_t)f.block;
    struct matrix_places p;
    p.high = align_to(n * (size_t)f.low_bits / 8, 256);
    p.sub = p.high + align_to(n * (size_t)f.high_bits / 8, 256);
    p.d = p.sub + align_to(blocks * (size_t)f.sub_bytes, 256);
    p.end = p.d + blocks * (size_t)f.d_bytes;
    return p;
}

static inline size_t matrix_bytes(enum dtype type, int32_t rows, int32_t cols) {
    if (dtype_is_quantised(type)) return matrix_places(type, rows, cols).end;
    return (size_t)rows * (size_t)plain_ld(type, cols) * plain_size(type);
}

/* Rows of a quantised matrix that are put at a time; their file bytes pass through scratch memory. */
static inline int32_t put_rows(enum dtype type, int32_t cols, int32_t n) {
    enum { PIECE = 8 << 20 };
    size_t bytes = dtype_row_bytes(type, cols), most = bytes < PIECE ? PIECE / bytes : 1;
    return (size_t)n < most ? n : (int32_t)most;
}
static inline size_t cuda_put_scratch(enum dtype type, int32_t cols, int32_t n) {
    if (!dtype_is_quantised(type) || cols == 0) return 0;
    return (size_t)put_rows(type, cols, n) * dtype_row_bytes(type, cols);
}

/* --- products --------------------------------------------------------------------------------------- */

enum { OWN_ROWS = 32 }; /* up to so many rows linear is a kernel of our own (linear.cu) */

static inline bool linear_by_own(bool same_bits, bool bf16, int32_t cols, int32_t T) {
    return same_bits || (T <= OWN_ROWS && !bf16) || cols == 0;
}

/* Both factors of a product in scratch memory, one behind the other; 0: it is taken where it lies. */
struct factor_bytes {
    size_t first, second;
};

/* At most so many elements of a quantised matrix are dequantised at a time: 64 MB, some of which the
 * product still finds in the second-level cache. */
enum { DEQUANT_TILE = 32 << 20 };

static inline int32_t rows_at_once(size_t elements, int32_t rows, int32_t cols) {
    size_t n = elements / (size_t)(cols > 0 ? cols : 1);
    return n < 1 ? 1 : n < (size_t)rows ? (int32_t)n : rows;
}

/* The type that a product of many rows takes. */
static inline enum dtype linear_type(enum dtype w, bool bf16) {
    return bf16 || dtype_is_quantised(w) ? DTYPE_BF16 : w;
}
/* x as narrow as the product takes it, and a tile of the weights where they are of another type. */
static inline struct factor_bytes linear_bytes(enum dtype w, int32_t rows, int32_t cols, int32_t T,
                                               bool bf16) {
    struct factor_bytes b = {0, 0};
    enum dtype type = linear_type(w, bf16);
    if (type == DTYPE_F32) return b;
    b.first = align_to((size_t)T * (size_t)cols * 2, 256);
    if (type != w) b.second = (size_t)rows_at_once(DEQUANT_TILE, rows, cols) * (size_t)cols * 2;
    return b;
}

/* matmul with factors rounded to bf16: all of a [M, K], and a tile of b, which is [b_rows, b_cols] as it lies. */
static inline struct factor_bytes matmul_bytes(size_t tile, int32_t M, int32_t K, int32_t b_rows,
                                               int32_t b_cols) {
    struct factor_bytes b;
    b.first = align_to(2 * (size_t)M * (size_t)K, 256);
    b.second = 2 * (size_t)rows_at_once(tile, b_rows, b_cols) * (size_t)b_cols;
    return b;
}

/* linear_dx of one job: the gradient of y, and a tile of the weights. */
static inline struct factor_bytes linear_dx_bytes(size_t tile, enum dtype w, int32_t rows, int32_t cols,
                                                  int32_t T, bool bf16) {
    struct factor_bytes b = {0, 0};
    enum dtype type = bf16 ? DTYPE_BF16 : DTYPE_F32;
    if (bf16) b.first = align_to(2 * (size_t)T * (size_t)rows, 256);
    if (type != w) b.second = (bf16 ? 2u : 4u) * (size_t)rows_at_once(tile, rows, cols) * (size_t)cols;
    return b;
}

/* --- attention ----------------------------------------------------------------------------------------- */

enum { ATTENTION_SPLIT = 256 }; /* positions */

/* Heads that read the same KV head go together, at most so many. */
static inline int32_t attention_heads(int32_t e) {
    enum { WARPS = 4 };
    return (e <= 128 ? 4 : 2) * WARPS;
}
static inline int32_t attention_run(const int32_t *kv_of_head, int32_t H, int32_t h, int32_t most) {
    int32_t n = 1;
    while (h + n < H && n < most && kv_of_head[h + n] == kv_of_head[h]) n++;
    return n;
}
static inline int32_t attention_runs(const int32_t *kv_of_head, int32_t H, int32_t most) {
    int32_t n = 0;
    for (int32_t h = 0; h < H; h += attention_run(kv_of_head, H, h, most)) n++;
    return n;
}
static inline int32_t attention_splits(int32_t max_blocks, int32_t block_size) {
    return (int32_t)blocks_for((size_t)max_blocks * (size_t)block_size, ATTENTION_SPLIT);
}
/* Partial results of T rows of as many sequences; 0 where the rows alone fill the device. */
static inline size_t attention_partial(int n_sms, int32_t T, int32_t H, int32_t e, int32_t n_runs,
                                       int32_t n_splits) {
    enum { PARTIAL_MAX = 128 << 20 };
    size_t bytes = (size_t)T * (size_t)H * (size_t)n_splits * (size_t)(2 + e) * 4;
    return n_splits > 1 && (int64_t)T * n_runs < 4 * (int64_t)n_sms && bytes <= PARTIAL_MAX ? bytes : 0;
}

/* The backward over packed rows: tiles of keys and KV heads alone may leave most of the device without work,
 * so the heads that read one are split. */
enum { ROWS_TILE = 64 };

struct heads_split {
    int32_t heads, n; /* of a split; splits */
};
/* most: heads that read one KV head, at most. */
static inline struct heads_split heads_split(int n_sms, int32_t T, int32_t K, int32_t most) {
    int32_t wanted = (int32_t)(2 * (unsigned)n_sms / (blocks_for((size_t)T, ROWS_TILE) * (unsigned)K));
    struct heads_split s;
    if (wanted < 1) wanted = 1;
    s.heads = (most + wanted - 1) / wanted;
    s.n = (most + s.heads - 1) / s.heads;
    return s;
}
/* The dot products of each row and head; dk and dv of each split. */
static inline struct factor_bytes rows_dx_bytes(int32_t T, int32_t H, int32_t K, int32_t e, int32_t n_splits) {
    struct factor_bytes b;
    b.first = align_to((size_t)T * (size_t)(H > 0 ? H : 1) * sizeof(float), 256);
    b.second = n_splits > 1 ? 2 * (size_t)n_splits * (size_t)T * (size_t)K * (size_t)e * 4 : 0;
    return b;
}

/* --- sums ---------------------------------------------------------------------------------------------- */

enum { CHUNK_ROWS = 256, SQUARES_RUN = 1 << 15 };

/* A sum over rows, in chunks. */
static inline size_t col_sum_bytes(int32_t T, int32_t n) {
    size_t n_chunks = blocks_for((size_t)T, CHUNK_ROWS);
    return n_chunks > 1 ? n_chunks * (size_t)n * sizeof(float) : 0;
}
/* With a gradient of g: 1 / rms of each row, then the chunks of its sum. */
static inline struct factor_bytes rmsnorm_dx_bytes(int32_t T, int32_t d) {
    struct factor_bytes b;
    b.first = align_to((size_t)T * sizeof(float), 256);
    b.second = col_sum_bytes(T, d);
    return b;
}
static inline size_t sum_squares_bytes(size_t n) { return blocks_for(n, SQUARES_RUN) * sizeof(double); }

#endif
