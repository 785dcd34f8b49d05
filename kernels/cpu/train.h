/* kernels/cpu/train.h: what training adds to the CPU backend.
 *
 * Files in reading order: product.c (matmul, linear_dx), attention_rows.c, train_rows.c (norms,
 * rotation, activations, sums over rows), loss.c (cross entropy, embedding), optimizer.c (copies,
 * dropout, sums of squares, AdamW): they cut the work for the team; and the loops of each
 * instruction set, product_impl.h, attention_rows_impl.h and train_impl.h, which train_level_impl.h
 * puts together.
 *
 * Bits do not depend on the team: work is cut over outputs alone, and every output is summed in one
 * order by one member. */
#ifndef TPD_KERNELS_CPU_TRAIN_H
#define TPD_KERNELS_CPU_TRAIN_H

#include "kernels/cpu/cpu.h"

/* --- matrix products ------------------------------------------------------------------------- */

/* One term of a sum of products, op(a) b. */
struct product_term {
    int32_t n_k;
    const float *a; /* row i at a + i * a_stride, or, turned, its k at a + k * a_stride */
    size_t a_stride;
    bool a_turned;
    const float *b; /* k's row at b + k * b_stride, or, turned, column j at b + j * b_stride */
    size_t b_stride;
    bool b_turned;
    struct panels w; /* stands for b where b is NULL: [rows = k, cols], or turned (in bf16 alone)
                      * [rows = columns of b, cols = k] */
};

/* out[rows, cols] = alpha * the sum of all terms + beta * out. */
struct product {
    const struct product_term *terms;
    int n_terms;
    float *out;
    size_t out_stride;
    float alpha, beta;
    const float *bias; /* NULL, or of each column: stands for beta * out */
    bool bf16; /* a and b are rounded to bf16; only where the CPU can (struct cpu_ctx) */
};
struct product_part {
    int32_t row, n_rows, col, n_cols; /* col is a multiple of 32 */
};

/* A block of a, a block of b, and the weights of one panel. */
enum { PRODUCT_ROWS = 96, PRODUCT_COLS = 512 };
enum { PRODUCT_SCRATCH = 4 * (K_CHUNK * (PRODUCT_ROWS + PRODUCT_COLS) + PRODUCT_COLS * LANES) };

/* --- attention ------------------------------------------------------------------------------- */

/* Tiles of query rows and blocks of key rows: multiples of what registers hold of either. */
enum { TILE_Q = 48, TILE_K = 96 };

struct rows_attention {
    const float *q, *k, *v;
    float *out, *lse;  /* the forward's results; read by the backward */
    const float *dout; /* strides as out */
    float *dq, *dk, *dv;
    size_t out_stride;
    int32_t T, H, K, e, window;
    const int32_t *kv_of_head, *first;
    float scale;
};

static inline size_t rows_attention_scratch(int32_t e) {
    size_t lanes = (size_t)round_up(e, 2 * LANES);
    return 4 * (lanes * (5 * TILE_Q + 5 * TILE_K) + 2 * TILE_Q * TILE_K + 4 * TILE_Q);
}

/* --- dropout --------------------------------------------------------------------------------- */

/* SplitMix64 (Steele, Lea and Flood), entered anywhere: draw i of a key is the finaliser of
 * key + (i + 1) * gamma. */
static inline uint64_t counter_draw(uint64_t key, uint64_t i) {
    uint64_t x = key + (i + 1) * 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

/* --- the loops ------------------------------------------------------------------------------- */

/* One instruction set's loops. All pointers are host pointers. */
struct cpu_train {
    /* scratch: PRODUCT_SCRATCH bytes. */
    void (*product)(const struct product *p, const struct product_part *part, void *scratch);

    /* Scratch of all three: rows_attention_scratch(e) bytes. Rows TILE_Q * tile … of head. */
    void (*attention_tile)(const struct rows_attention *a, int32_t tile, int32_t head,
                           void *scratch);
    /* dq of such a tile. */
    void (*attention_dq)(const struct rows_attention *a, int32_t tile, int32_t head, void *scratch);
    /* dk and dv of rows TILE_K * block … of a KV head. with_dq: adds what the block gives to dq of
     * every row and head that reads it, the same sums as attention_dq makes when blocks come in
     * ascending order. */
    void (*attention_dkv)(const struct rows_attention *a, int32_t block, int32_t kv_head,
                          bool with_dq, void *scratch);

    /* out[n] += the sum over rows of x, stride floats apart; rows are summed in runs. With y: of
     * x * y * s[row]. */
    void (*col_sum)(float *out, const float *x, const float *y, const float *s, int32_t T,
                    size_t stride, int32_t n);
    /* One row's dx; returns r, see kernels.h. */
    float (*rmsnorm_dx)(float *dx, const float *dy, const float *x, const float *g, int32_t d,
                        float eps);
    void (*rotate_heads)(float *x, int32_t heads, const float *cos_sin, int32_t e, bool inverse);
    void (*silu_mul_dx)(float *dgate, float *dup, const float *dout, const float *gate,
                        const float *up, size_t n);
    void (*axpy)(float *y, const float *x, size_t n, float a);

    float (*row_max)(const float *x, int32_t n); /* -inf for none */
    double (*sum_exp)(const float *x, int32_t n, float max);
    /* x = e^(x - max) * by */
    void (*softmax_grad)(float *x, int32_t n, float max, float by);

    /* Draws index … index + n - 1 of key: an element is dropped where the upper half of its draw is
     * below `below`, else multiplied by `by`. */
    void (*dropout)(float *out, const float *x, int32_t n, uint64_t key, uint64_t index,
                    uint64_t below, float by);
    void (*narrow)(uint16_t *to, const float *from, size_t n);
    void (*widen)(float *to, const uint16_t *from, size_t n);
    double (*sum_squares)(const float *x, size_t n);
    void (*adamw)(float *p, const float *g, float *m, float *v, size_t n,
                  const struct adamw_params *params, float grad_scale);
};

/* --- operations: as in kernels.h ------------------------------------------------------------- */

void cpu_matmul(struct kctx *c, dev_addr out, int32_t M, int32_t N, int32_t K, dev_addr a, bool ta,
                dev_addr b, bool tb, float alpha, float beta);
/* linear by the products of training, in bf16. */
void cpu_linear_bf16(struct kctx *c, const struct linear_job *jobs, int n_jobs, dev_addr x, int32_t T);
void cpu_linear_dx(struct kctx *c, const struct linear_job *jobs, int n_jobs, dev_addr dx,
                   int32_t T, bool accumulate);
void cpu_col_sum(struct kctx *c, dev_addr out, dev_addr x, int32_t T, int32_t n);
void cpu_rmsnorm_dx(struct kctx *c, dev_addr dx, dev_addr dg, dev_addr dy, dev_addr x, dev_addr g,
                    int32_t T, int32_t d, float eps);
void cpu_rope_rows(struct kctx *c, dev_addr x, int32_t heads, dev_addr cos_sin, int32_t T,
                   int32_t e, bool inverse);
void cpu_attention_rows(struct kctx *c, dev_addr out, int32_t out_stride, dev_addr lse, dev_addr q,
                        int32_t H, dev_addr k, dev_addr v, int32_t K, const int32_t *kv_of_head,
                        int32_t e, dev_addr first, int32_t T, float scale, int32_t window);
void cpu_attention_rows_dx(struct kctx *c, dev_addr dq, dev_addr dk, dev_addr dv, dev_addr dout,
                           dev_addr out, int32_t out_stride, dev_addr lse, dev_addr q, int32_t H,
                           dev_addr k, dev_addr v, int32_t K, const int32_t *kv_of_head, int32_t e,
                           dev_addr first, int32_t T, float scale, int32_t window);
void cpu_silu_mul_dx(struct kctx *c, dev_addr dgate, dev_addr dup, dev_addr dout, dev_addr gate,
                     dev_addr up, int32_t T, int32_t F);
void cpu_ce_stats(struct kctx *c, dev_addr stats, dev_addr logits, dev_addr labels, int32_t T,
                  int32_t V, int32_t first_row);
void cpu_ce_grad(struct kctx *c, dev_addr loss, dev_addr logits, dev_addr stats, int32_t n,
                 dev_addr labels, dev_addr weight, int32_t T, int32_t V, int32_t first_row);
void cpu_embed_grad(struct kctx *c, dev_addr grad, dev_addr dx, dev_addr ids, int32_t T, int32_t d,
                    int32_t V, int32_t first_row, float scale);
void cpu_embed_rows(struct kctx *c, dev_addr out, dev_addr table, dev_addr ids, int32_t T,
                    int32_t d, int32_t V, int32_t first_row, float scale);
void cpu_bf16_products(struct kctx *c, bool on);
void cpu_narrow(struct kctx *c, dev_addr to, dev_addr from, size_t n);
void cpu_widen(struct kctx *c, dev_addr to, dev_addr from, size_t n);
void cpu_copy(struct kctx *c, dev_addr to, dev_addr from, size_t bytes);
void cpu_axpy(struct kctx *c, dev_addr y, dev_addr x, size_t n, float a);
void cpu_dropout(struct kctx *c, dev_addr out, dev_addr x, int32_t T, int32_t cols,
                 int32_t row_stride, int32_t col, float p, uint64_t seed, uint64_t first);
void cpu_sum_squares(struct kctx *c, dev_addr out, dev_addr x, size_t n);
void cpu_adamw(struct kctx *c, dev_addr p, dev_addr g, dev_addr m, dev_addr v, size_t n,
               const struct adamw_params *params, float grad_scale);

#endif
