/* Products of training: matmul and linear_dx by cuBLAS, in fp32 or, with bf16_products, on operands rounded to
 * bf16; with same_bits by a kernel of our own, in fp32. Sums are fp32. */
#include "kernels/cuda/quant.h"
#include "kernels/cuda/tile.h"
#include "kernels/cuda/train.h"

/* A factor [rows, cols], ld elements from row to row. */
struct factor {
    dev_addr at;
    int32_t rows, cols, ld;
    bool turned; /* its transpose is meant */
};

/* out[M, N] = alpha * a b + beta * out, rows of out ldo elements apart */
struct train_product {
    dev_addr out;
    int32_t ldo, M, N, K;
    struct factor a, b;
    enum dtype type; /* of both factors: f32 or bf16 */
    float alpha, beta;
};

/* --- our own --------------------------------------------------------------------------------------------- */

/* A block for each 64 x 64 of out. Bytes: 4 * (M * N + (M * N * K) / 32), the factors from the second-level
 * cache. FLOPs: 2 * M * N * K. */
__global__ void __launch_bounds__(TILE_THREADS)
    k_matmul(ptr<float> out, struct tile_source a, bool ta, struct tile_source b, bool tb, int32_t M, int32_t N,
             int32_t K, int32_t ldo, float alpha, float beta, bool aligned) {
    SHARED(float, of_a, TILE_FACTOR);
    SHARED(float, of_b, TILE_FACTOR);
    int32_t row = (int32_t)blockIdx.y * TILE, col = (int32_t)blockIdx.x * TILE;
    struct tile_sums s;
    tile_clear(s);
    for (int32_t k = 0; k < K; k += TILE_STEPS) {
        __syncthreads();
        if (ta) tile_load(of_a, a, k, row);
        else tile_load_turned(of_a, a, row, k);
        if (tb) tile_load_turned(of_b, b, col, k);
        else tile_load(of_b, b, k, col);
        __syncthreads();
        tile_multiply(s, of_a, of_b);
    }
    col += tile_col();
    UNROLL
    for (int i = 0; i < 4; i++) {
        int32_t r = row + tile_row() + i;
        if (r >= M || col >= N) continue;
        ptr<float> to = out + (int64_t)r * ldo;
        bool whole = aligned && col + 4 <= N;
        float4 v = make_float4(alpha * s.at[i][0], alpha * s.at[i][1], alpha * s.at[i][2], alpha * s.at[i][3]);
        if (beta != 0) {
            float4 old = load_four(to, col, N, whole);
            v = each_of([=](float x, float y) { return fmaf(beta, y, x); }, v, old);
        }
        store_four(to, col, N, whole, v);
    }
}

static struct tile_source source(const struct factor &f) {
    return {f.at, f.ld, f.rows, f.cols, f.ld % 4 == 0 && f.at % 16 == 0};
}

static void own_product(struct cuda_context *c, const struct train_product &p) {
    dim3 grid(blocks_for((size_t)p.N, TILE), blocks_for((size_t)p.M, TILE));
    bool aligned = p.ldo % 4 == 0 && p.out % 16 == 0;
    LAUNCH(k_matmul, grid, TILE_THREADS, 0, c->stream, ptr<float>(p.out), source(p.a), p.a.turned, source(p.b),
           p.b.turned, p.M, p.N, p.K, p.ldo, p.alpha, p.beta, aligned);
}

/* --- cuBLAS ---------------------------------------------------------------------------------------------- */

/* Column-major, what stands here is its transpose: out^T = op(b)^T op(a)^T. */
static void library_product(struct cuda_context *c, const struct train_product &p) {
    if (!cuda_blas_ready(c)) return;
    cudaDataType number = p.type == DTYPE_F32 ? CUDA_R_32F : CUDA_R_16BF;
    cublasStatus_t rc = cublasGemmEx(
        c->blas, p.b.turned ? CUBLAS_OP_T : CUBLAS_OP_N, p.a.turned ? CUBLAS_OP_T : CUBLAS_OP_N, p.N, p.M, p.K,
        &p.alpha, reinterpret_cast<const void *>(p.b.at), number, p.b.ld,
        reinterpret_cast<const void *>(p.a.at), number, p.a.ld, &p.beta, reinterpret_cast<void *>(p.out),
        CUDA_R_32F, p.ldo, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    cuda_check_blas(c, rc, "a matrix product of training");
}

static void multiply(struct cuda_context *c, const struct train_product &p) {
    if (c->same_bits) own_product(c, p);
    else library_product(c, p);
}

/* --- operations ------------------------------------------------------------------------------------------ */

void cuda_bf16_products(struct kctx *base, bool on) {
    struct cuda_context *c = cuda_of(base);
    c->bf16 = on && !c->same_bits;
}

/* p, of f32 factors, with both rounded to bf16: a as a whole (it is of a step's rows), b, which may be a matrix
 * of the model, piece by piece. Its pieces are columns of out, or steps of the sum. */
static void multiply_rounded(struct cuda_context *c, struct train_product p) {
    struct factor all = p.b;
    struct factor_bytes bytes = matmul_bytes(CONVERTED_TILE, p.M, p.K, all.rows, all.cols);
    int32_t at_once = rows_at_once(CONVERTED_TILE, all.rows, all.cols);
    dev_addr narrow = cuda_scratch(c, bytes.first + bytes.second), out = p.out;
    if (!narrow) return;
    cuda_train_narrow(&c->base, narrow, p.a.at, (size_t)p.M * (size_t)p.K);
    p.type = DTYPE_BF16;
    p.a.at = narrow;
    p.b.at = narrow + bytes.first;
    for (int32_t row = 0; row < all.rows; row += at_once) {
        p.b.rows = all.rows - row < at_once ? all.rows - row : at_once;
        size_t before = (size_t)row * (size_t)all.cols;
        cuda_train_narrow(&c->base, p.b.at, all.at + 4 * before, (size_t)p.b.rows * (size_t)all.cols);
        if (all.turned) {
            p.N = p.b.rows;
            p.out = out + 4 * (dev_addr)row;
        } else {
            p.K = p.b.rows;
            p.a.at = narrow + 2 * (p.a.turned ? (dev_addr)row * (dev_addr)p.M : (dev_addr)row);
            if (row > 0) p.beta = 1;
        }
        library_product(c, p);
    }
}

void cuda_matmul(struct kctx *base, dev_addr out, int32_t M, int32_t N, int32_t K, dev_addr a, bool ta,
                 dev_addr b, bool tb, float alpha, float beta) {
    if (M <= 0 || N <= 0 || !cuda_begin(base)) return;
    struct cuda_context *c = cuda_of(base);
    if (K <= 0) {
        cuda_scale(base, out, (size_t)M * (size_t)N, beta);
        return;
    }
    struct train_product p = {out, N, M, N, K, {a, ta ? K : M, ta ? M : K, ta ? M : K, ta},
                              {b, tb ? N : K, tb ? K : N, tb ? K : N, tb}, DTYPE_F32, alpha, beta};
    if (c->bf16) multiply_rounded(c, p);
    else multiply(c, p);
    cuda_launched(c, "matmul");
}

/* dx[T, cols] = y[T, rows] w + beta * dx. Columns of y and rows of w are the steps of the sum, so a matrix that
 * is converted piece by piece adds up piece by piece. */
static void job_dx(struct cuda_context *c, const struct linear_job *job, dev_addr dx, int32_t T, float beta) {
    const struct weight *w = job->w;
    enum dtype type = c->bf16 ? DTYPE_BF16 : DTYPE_F32;
    bool converted = w->type != type;
    size_t size = type == DTYPE_BF16 ? 2 : 4;
    struct factor_bytes bytes = linear_dx_bytes(CONVERTED_TILE, w->type, w->rows, w->cols, T, c->bf16);
    size_t needed = bytes.first + bytes.second;
    int32_t at_once = converted ? rows_at_once(CONVERTED_TILE, w->rows, w->cols) : w->rows;
    dev_addr scratch = needed ? cuda_scratch(c, needed) : 0, y = job->y;
    if (needed && !scratch) return;
    if (bytes.first) {
        cuda_train_narrow(&c->base, scratch, y, (size_t)T * (size_t)w->rows);
        y = scratch;
    }
    for (int32_t row = 0; row < w->rows; row += at_once, beta = 1) {
        int32_t n = w->rows - row < at_once ? w->rows - row : at_once;
        struct factor b = {w->data, n, w->cols, plain_ld(type, w->cols), false};
        if (converted) {
            b.at = scratch + bytes.first;
            b.ld = w->cols;
            cuda_dequantise(c, b.at, type == DTYPE_F32, w, row, n);
        }
        struct factor a = {y + size * (dev_addr)row, T, n, w->rows, false};
        multiply(c, {dx, w->cols, T, w->cols, n, a, b, type, 1, beta});
    }
}

void cuda_linear_dx(struct kctx *base, const struct linear_job *jobs, int n_jobs, dev_addr dx, int32_t T,
                    bool accumulate) {
    int32_t cols = jobs[0].w->cols;
    if (T <= 0 || cols <= 0 || !cuda_begin(base)) return;
    struct cuda_context *c = cuda_of(base);
    float beta = accumulate ? 1 : 0;
    for (int i = 0; i < n_jobs; i++) {
        if (jobs[i].w->rows <= 0) continue;
        job_dx(c, &jobs[i], dx, T, beta);
        beta = 1;
    }
    if (beta == 0) cuda_scale(base, dx, (size_t)T * (size_t)cols, 0);
    cuda_launched(c, "linear_dx");
}
