/* kernels/cuda/tile.h: products of 64 x 64 tiles within a block, in fp32.
 *
 * A block has 256 threads; thread (ty, tx) = (t / 16, t % 16) has the 4 x 4 elements at row 4 ty and column
 * 4 tx of a tile. Factors pass through shared memory 16 steps of the sum at a time, [step][64 rows or columns],
 * so that each step of a thread is two loads of 16 bytes and 16 sums. Sums run along the steps in order:
 * an element's bits depend on its row of one factor and its column of the other alone. */
#ifndef TPD_KERNELS_CUDA_TILE_H
#define TPD_KERNELS_CUDA_TILE_H

#include "kernels/cuda/four.h"

/* TILE_STRIDE: floats from step to step (or, of a kept tile, row to row); the 4 more spread rows over the
 * banks and keep fours aligned. */
enum { TILE = 64, TILE_STEPS = 16, TILE_STRIDE = TILE + 4, TILE_THREADS = 256 };
enum { TILE_FACTOR = TILE_STEPS * TILE_STRIDE, TILE_KEPT = TILE * TILE_STRIDE };

/* A matrix in device memory, ld floats from row to row. Behind its ends it counts as zeros. */
struct tile_source {
    uint64_t at;
    int64_t ld;
    int32_t rows, cols;
    bool aligned; /* every row begins at a multiple of 16 bytes */
};

struct tile_sums {
    float at[4][4];
};

static __device__ __forceinline__ int tile_row() { return 4 * ((int)threadIdx.x / 16); }
static __device__ __forceinline__ int tile_col() { return 4 * ((int)threadIdx.x % 16); }

static __device__ __forceinline__ void tile_clear(struct tile_sums &s) {
    UNROLL
    for (int i = 0; i < 4; i++)
        UNROLL
        for (int j = 0; j < 4; j++) s.at[i][j] = 0;
}

static __device__ __forceinline__ float4 tile_four(const struct tile_source &m, int32_t row, int32_t col) {
    if (row >= m.rows || col >= m.cols) return make_float4(0, 0, 0, 0);
    return load_four(ptr<const float>(m.at) + row * m.ld, col, m.cols, m.aligned && col + 4 <= m.cols);
}

/* factor[step][r] = m[row + r, col + step]: rows of m are rows of the tile. */
static __device__ __forceinline__ void tile_load_turned(sptr<float> factor, const struct tile_source &m,
                                                        int32_t row, int32_t col) {
    int r = (int)threadIdx.x / 4, step = 4 * ((int)threadIdx.x % 4);
    float4 v = tile_four(m, row + r, col + step);
    sptr<float> to = factor + (step * TILE_STRIDE + r);
    to[0] = v.x, to[TILE_STRIDE] = v.y, to[2 * TILE_STRIDE] = v.z, to[3 * TILE_STRIDE] = v.w;
}

/* factor[step][r] = m[row + step, col + r]: columns of m are rows (or columns) of the tile. */
static __device__ __forceinline__ void tile_load(sptr<float> factor, const struct tile_source &m, int32_t row,
                                                 int32_t col) {
    int step = (int)threadIdx.x / 16, r = tile_col();
    store4(factor + (step * TILE_STRIDE + r), tile_four(m, row + step, col + r));
}

static __device__ __forceinline__ void tile_add(struct tile_sums &s, const float *a, float4 b) {
    UNROLL
    for (int i = 0; i < 4; i++) {
        s.at[i][0] = fmaf(a[i], b.x, s.at[i][0]);
        s.at[i][1] = fmaf(a[i], b.y, s.at[i][1]);
        s.at[i][2] = fmaf(a[i], b.z, s.at[i][2]);
        s.at[i][3] = fmaf(a[i], b.w, s.at[i][3]);
    }
}

/* s += a^T b over 16 steps, both [step][64]. a may be rows of a kept tile. */
static __device__ __forceinline__ void tile_multiply(struct tile_sums &s, sptr<float> a, sptr<float> b) {
    UNROLL
    for (int step = 0; step < TILE_STEPS; step++) {
        float4 u = load4(a + (step * TILE_STRIDE + tile_row()));
        float rows[4] = {u.x, u.y, u.z, u.w};
        tile_add(s, rows, load4(b + (step * TILE_STRIDE + tile_col())));
    }
}

/* s += a b over 16 steps: a is a kept tile [row][step], from its first step of these on. */
static __device__ __forceinline__ void tile_multiply_kept(struct tile_sums &s, sptr<float> a, sptr<float> b) {
    UNROLL
    for (int step = 0; step < TILE_STEPS; step += 4) {
        float4 u[4];
        UNROLL
        for (int i = 0; i < 4; i++) u[i] = load4(a + ((tile_row() + i) * TILE_STRIDE + step));
        sptr<float> from = b + (step * TILE_STRIDE + tile_col());
        float x[4] = {u[0].x, u[1].x, u[2].x, u[3].x}, y[4] = {u[0].y, u[1].y, u[2].y, u[3].y};
        float z[4] = {u[0].z, u[1].z, u[2].z, u[3].z}, w[4] = {u[0].w, u[1].w, u[2].w, u[3].w};
        tile_add(s, x, load4(from));
        tile_add(s, y, load4(from + TILE_STRIDE));
        tile_add(s, z, load4(from + 2 * TILE_STRIDE));
        tile_add(s, w, load4(from + 3 * TILE_STRIDE));
    }
}

/* The thread's elements into a tile [row][column] in shared memory. */
static __device__ __forceinline__ void tile_keep(sptr<float> kept, const struct tile_sums &s) {
    UNROLL
    for (int i = 0; i < 4; i++)
        store4(kept + ((tile_row() + i) * TILE_STRIDE + tile_col()),
               make_float4(s.at[i][0], s.at[i][1], s.at[i][2], s.at[i][3]));
}

/* s += rows row … row+63 of a times rows other … other+63 of b, turned: sums along their columns. Begins and
 * ends with factors in use by others: whoever writes shared memory next meets them first. */
static __device__ __forceinline__ void tile_rows_by_rows(struct tile_sums &s, const struct tile_source &a,
                                                         int32_t row, const struct tile_source &b,
                                                         int32_t other, sptr<float> of_a, sptr<float> of_b) {
    for (int32_t col = 0; col < a.cols; col += TILE_STEPS) {
        __syncthreads();
        tile_load_turned(of_a, a, row, col);
        tile_load_turned(of_b, b, other, col);
        __syncthreads();
        tile_multiply(s, of_a, of_b);
    }
}

#endif
