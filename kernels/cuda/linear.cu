/* linear: y = x w^T. Few rows: a kernel of our own that reads each weight once for up to eight of them.
 * Many rows: cuBLAS, on the weights as they are (f32, f16, bf16) or on tiles dequantised to bf16, with x
 * rounded to the same type and fp32 sums.
 *
 * The promise of a row's own bits holds among calls of up to OWN_ROWS rows, which are a decode step's;
 * cuBLAS chooses by shape, so a row in a larger step (a prompt's chunk) gets that step's bits. With
 * same_bits everything goes through our own kernel, in steps of eight rows: the promise is whole, and
 * prompts take the weights from memory once for each eight rows.
 *
 * In training with bf16_products every product is one of cuBLAS's in bf16. */
#include "kernels/cuda/quant.h"

enum { GROUP_ROWS = 8 };
enum { WARPS = 4, ROWS_PER_WARP = 2, TILE_UNITS = WARP_SIZE, TILE = TILE_UNITS * UNIT };
/* A unit of x in shared memory is followed by 4 floats, so that eight lanes that read 16 bytes each of
 * eight units meet 32 banks. */
enum { PADDED_UNIT = UNIT + 4 };

/* y[t, n] for n_t <= NT rows of x, two rows of w a warp. A lane has the unit of 32 columns with its number
 * in each tile of 1024 columns; its sums run along the tiles, then the lanes are summed as a tree: an
 * order that knows nothing of NT. Bytes: w as stored, 4 * n_t * cols of x a block (from the second-level
 * cache), 4 * n_t * rows out. FLOPs: 2 * n_t * rows * cols, and 4 a weight to dequantise it. */
template <enum dtype type, int NT>
__global__ void k_matvec(ptr<float> y, struct matrix_view w, ptr<const float> x, ptr<const float> bias,
                         int32_t n_t) {
    SHARED(float, tile, NT * TILE_UNITS * PADDED_UNIT);
    int lane = (int)threadIdx.x % WARP_SIZE, warp = (int)threadIdx.x / WARP_SIZE;
    int32_t first = ((int32_t)blockIdx.x * WARPS + warp) * ROWS_PER_WARP;
    int32_t units = (w.cols + UNIT - 1) / UNIT;
    float sum[ROWS_PER_WARP][NT];
    UNROLL
    for (int r = 0; r < ROWS_PER_WARP; r++)
        for (int t = 0; t < NT; t++) sum[r][t] = 0;
    for (int32_t from = 0; from < units; from += TILE_UNITS) {
        __syncthreads();
        for (int32_t i = (int32_t)threadIdx.x; i < NT * TILE; i += (int32_t)blockDim.x) {
            int32_t t = i / TILE, column = from * UNIT + i % TILE;
            float value = 0;
            if (t < n_t && column < w.cols) value = x[(int64_t)t * w.cols + column];
            tile[i / UNIT * PADDED_UNIT + i % UNIT] = value;
        }
        __syncthreads();
        int32_t u = from + lane;
        if (u >= units) continue;
        UNROLL
        for (int r = 0; r < ROWS_PER_WARP; r++) {
            if (first + r >= w.rows) continue;
            float values[UNIT];
            matrix_values<type>(w, first + r, u, values);
            UNROLL
            for (int t = 0; t < NT; t++) {
                float s = sum[r][t];
                UNROLL
                for (int i = 0; i < UNIT; i += 4) {
                    float4 four = load4(tile + ((t * TILE_UNITS + lane) * PADDED_UNIT + i));
                    s = fmaf(values[i], four.x, s);
                    s = fmaf(values[i + 1], four.y, s);
                    s = fmaf(values[i + 2], four.z, s);
                    s = fmaf(values[i + 3], four.w, s);
                }
                sum[r][t] = s;
            }
        }
    }
    UNROLL
    for (int r = 0; r < ROWS_PER_WARP; r++)
        UNROLL
        for (int t = 0; t < NT; t++) {
            float all = warp_sum(sum[r][t]);
            int32_t row = first + r;
            if (lane != 0 || t >= n_t || row >= w.rows) continue;
            float b = 0;
            if (bias) b = bias[row];
            y[(int64_t)t * w.rows + row] = all + b;
        }
}

template <enum dtype type, int NT>
static void matvec(struct cuda_context *c, const struct linear_job *job, int32_t from, dev_addr x,
                   int32_t n_t) {
    struct matrix_view w = matrix_view(job->w);
    auto *kernel = k_matvec<type, NT>;
    LAUNCH(kernel, blocks_for((size_t)w.rows, WARPS * ROWS_PER_WARP), WARPS * WARP_SIZE, 0, c->stream,
           ptr<float>(job->y + (dev_addr)from * (dev_addr)w.rows * 4), w,
           ptr<const float>(x + (dev_addr)from * (dev_addr)w.cols * 4), ptr<const float>(job->bias),
           n_t);
}

template <enum dtype type>
static void matvec_rows(struct cuda_context *c, const struct linear_job *job, dev_addr x, int32_t T) {
    for (int32_t t = 0; t < T; t += GROUP_ROWS) {
        int32_t n = T - t < GROUP_ROWS ? T - t : GROUP_ROWS;
        if (n == 1) matvec<type, 1>(c, job, t, x, n);
        else if (n == 2) matvec<type, 2>(c, job, t, x, n);
        else if (n <= 4) matvec<type, 4>(c, job, t, x, n);
        else matvec<type, GROUP_ROWS>(c, job, t, x, n);
    }
}

/* --- many rows ----------------------------------------------------------------------------------------- */

void cuda_product(struct cuda_context *c, dev_addr out, int32_t ldo, dev_addr x, dev_addr w, int32_t ldw,
                  enum dtype type, int32_t T, int32_t rows, int32_t cols, float beta) {
    float one = 1;
    if (!cuda_blas_ready(c)) return;
    cudaDataType number = type == DTYPE_F32   ? CUDA_R_32F
                          : type == DTYPE_F16 ? CUDA_R_16F
                                              : CUDA_R_16BF;
    /* Column-major: out^T [rows, T] = w^T^T x^T. */
    cublasStatus_t rc =
        cublasGemmEx(c->blas, CUBLAS_OP_T, CUBLAS_OP_N, rows, T, cols, &one,
                     reinterpret_cast<const void *>(w), number, ldw, reinterpret_cast<const void *>(x),
                     number, cols, &beta, reinterpret_cast<void *>(out), CUDA_R_32F, ldo,
                     CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    cuda_check_blas(c, rc, "a matrix product");
}

/* Bytes: 6 * n. */
template <class T> __global__ void k_narrow(ptr<T> out, ptr<const float> x, size_t n) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float value = x[(int64_t)i];
    if constexpr (sizeof(T) == 2 && std::is_same<T, __half>::value)
        out[(int64_t)i] = __float2half_rn(fminf(fmaxf(value, -65504.0f), 65504.0f));
    else out[(int64_t)i] = __float2bfloat16_rn(value);
}

void cuda_narrow(struct cuda_context *c, dev_addr out, enum dtype type, dev_addr x, size_t n) {
    if (n == 0) return;
    unsigned blocks = blocks_for(n, 256);
    if (type == DTYPE_F16)
        LAUNCH(k_narrow<__half>, blocks, 256, 0, c->stream, ptr<__half>(out), ptr<const float>(x), n);
    else
        LAUNCH(k_narrow<__nv_bfloat16>, blocks, 256, 0, c->stream, ptr<__nv_bfloat16>(out),
               ptr<const float>(x), n);
    cuda_launched(c, "narrowing");
}

/* Bytes: 8 * T * rows. */
__global__ void k_add_bias(ptr<float> y, ptr<const float> bias, int32_t rows, size_t n) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float b = bias[(int64_t)(i % (size_t)rows)];
    y[(int64_t)i] += b;
}

/* x in the type that the product takes: as it is, or narrowed at the start of scratch. */
static void product_rows(struct cuda_context *c, const struct linear_job *job, dev_addr x, int32_t T) {
    const struct weight *w = job->w;
    enum dtype type = linear_type(w->type, c->bf16);
    if (type == DTYPE_F32) {
        cuda_product(c, job->y, w->rows, x, w->data, plain_ld(type, w->cols), type, T, w->rows, w->cols,
                     0);
        return;
    }
    struct factor_bytes bytes = linear_bytes(w->type, w->rows, w->cols, T, c->bf16);
    dev_addr narrow = cuda_scratch(c, bytes.first + bytes.second), tile = narrow + bytes.first;
    if (!narrow) return;
    cuda_narrow(c, narrow, type, x, (size_t)T * (size_t)w->cols);
    if (type == w->type) {
        cuda_product(c, job->y, w->rows, narrow, w->data, plain_ld(type, w->cols), type, T, w->rows,
                     w->cols, 0);
        return;
    }
    int32_t at_once = rows_at_once(DEQUANT_TILE, w->rows, w->cols);
    for (int32_t row = 0; row < w->rows; row += at_once) {
        int32_t n = w->rows - row < at_once ? w->rows - row : at_once;
        cuda_dequantise(c, tile, false, w, row, n);
        cuda_product(c, job->y + (dev_addr)row * 4, w->rows, narrow, tile, w->cols, type, T, n, w->cols,
                     0);
    }
}

static void product_job(struct cuda_context *c, const struct linear_job *job, dev_addr x, int32_t T) {
    product_rows(c, job, x, T);
    if (!job->bias) return;
    int32_t rows = job->w->rows;
    size_t n = (size_t)T * (size_t)rows;
    LAUNCH(k_add_bias, blocks_for(n, 256), 256, 0, c->stream, ptr<float>(job->y),
           ptr<const float>(job->bias), rows, n);
}

void cuda_linear(struct kctx *base, const struct linear_job *jobs, int n_jobs, dev_addr x, int32_t T) {
    if (T <= 0 || !cuda_begin(base)) return;
    struct cuda_context *c = cuda_of(base);
    for (int i = 0; i < n_jobs; i++) {
        const struct linear_job *job = &jobs[i];
        if (job->w->rows <= 0) continue;
        if (linear_by_own(c->same_bits, c->bf16, job->w->cols, T))
            with_type(job->w->type,
                      [&](auto type) { matvec_rows<decltype(type)::value>(c, job, x, T); });
        else product_job(c, job, x, T);
    }
    cuda_launched(c, "linear");
}
