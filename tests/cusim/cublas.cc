/* cuBLAS by plain loops: fp32 sums, the documented layouts, every access checked. */
#include "include/cublas_v2.h"

#include "include/cuda_bf16.h"
#include "include/cuda_fp16.h"
#include "state.h"

struct cublasContext {
    cudaStream_t on;
};

static size_t size_of(cudaDataType type) { return type == CUDA_R_32F ? 4 : 2; }

static float load(uint64_t address, cudaDataType type) {
    const void *at = cusim::check_read(address, size_of(type));
    if (type == CUDA_R_32F) return *static_cast<const float *>(at);
    if (type == CUDA_R_16F) return __half2float(*static_cast<const __half *>(at));
    return __bfloat162float(*static_cast<const __nv_bfloat16 *>(at));
}

static void store(uint64_t address, cudaDataType type, float x) {
    void *at = cusim::check_write(address, size_of(type));
    if (type == CUDA_R_32F) *static_cast<float *>(at) = x;
    else if (type == CUDA_R_16F) *static_cast<__half *>(at) = __float2half(x);
    else *static_cast<__nv_bfloat16 *>(at) = __float2bfloat16(x);
}

struct product {
    bool ta, tb;
    int m, n, k;
    float alpha, beta;
    uint64_t a, b, c;
    cudaDataType a_type, b_type, c_type;
    int lda, ldb, ldc;
};

static void multiply(const product &p) {
    std::vector<float> a((size_t)p.m * p.k), b((size_t)p.k * p.n);
    for (int l = 0; l < p.k; l++) {
        for (int i = 0; i < p.m; i++) {
            int64_t at = p.ta ? l + (int64_t)i * p.lda : i + (int64_t)l * p.lda;
            a[(size_t)i * p.k + l] = load(p.a + (uint64_t)at * size_of(p.a_type), p.a_type);
        }
        for (int j = 0; j < p.n; j++) {
            int64_t at = p.tb ? j + (int64_t)l * p.ldb : l + (int64_t)j * p.ldb;
            b[(size_t)j * p.k + l] = load(p.b + (uint64_t)at * size_of(p.b_type), p.b_type);
        }
    }
    for (int j = 0; j < p.n; j++)
        for (int i = 0; i < p.m; i++) {
            float sum = 0;
            for (int l = 0; l < p.k; l++) sum += a[(size_t)i * p.k + l] * b[(size_t)j * p.k + l];
            uint64_t at = p.c + (uint64_t)(i + (int64_t)j * p.ldc) * size_of(p.c_type);
            float old = p.beta == 0 ? 0 : p.beta * load(at, p.c_type);
            store(at, p.c_type, p.alpha * sum + old);
        }
}

static bool good_type(cudaDataType t) {
    return t == CUDA_R_32F || t == CUDA_R_16F || t == CUDA_R_16BF;
}

cublasStatus_t cublasCreate(cublasHandle_t *out) {
    *out = new cublasContext{nullptr};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy(cublasHandle_t h) {
    delete h;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream(cublasHandle_t h, cudaStream_t on) {
    h->on = on;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t) { return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasSetWorkspace(cublasHandle_t, void *, size_t) { return CUBLAS_STATUS_SUCCESS; }
const char *cublasGetStatusString(cublasStatus_t status) {
    return status == CUBLAS_STATUS_SUCCESS ? "success" : "invalid value";
}

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb,
                                          int m, int n, int k, const void *alpha, const void *a,
                                          cudaDataType a_type, int lda, long long stride_a,
                                          const void *b, cudaDataType b_type, int ldb,
                                          long long stride_b, const void *beta, void *c,
                                          cudaDataType c_type, int ldc, long long stride_c, int count,
                                          cublasComputeType_t, cublasGemmAlgo_t) {
    int rows_a = ta == CUBLAS_OP_N ? m : k, rows_b = tb == CUBLAS_OP_N ? k : n;
    if (m < 0 || n < 0 || k < 0 || lda < std::max(1, rows_a) || ldb < std::max(1, rows_b) ||
        ldc < std::max(1, m))
        return CUBLAS_STATUS_INVALID_VALUE;
    /* The combinations that cuBLAS documents for fp32 sums. */
    bool mixed = a_type != b_type || (a_type == CUDA_R_32F && c_type != CUDA_R_32F) ||
                 (a_type != CUDA_R_32F && c_type != a_type && c_type != CUDA_R_32F);
    if (!good_type(a_type) || !good_type(c_type) || mixed) return CUBLAS_STATUS_NOT_SUPPORTED;
    product p{ta == CUBLAS_OP_T, tb == CUBLAS_OP_T, m, n, k,
              *static_cast<const float *>(alpha), *static_cast<const float *>(beta),
              (uint64_t)a, (uint64_t)b, (uint64_t)c, a_type, b_type, c_type, lda, ldb, ldc};
    cusim::enqueue(reinterpret_cast<cusim::stream *>(h->on), "cublasGemm", [=] {
        for (int i = 0; i < count; i++) {
            product one = p;
            one.a += (uint64_t)(stride_a * i) * size_of(a_type);
            one.b += (uint64_t)(stride_b * i) * size_of(b_type);
            one.c += (uint64_t)(stride_c * i) * size_of(c_type);
            multiply(one);
        }
    });
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGemmEx(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n,
                            int k, const void *alpha, const void *a, cudaDataType a_type, int lda,
                            const void *b, cudaDataType b_type, int ldb, const void *beta, void *c,
                            cudaDataType c_type, int ldc, cublasComputeType_t compute,
                            cublasGemmAlgo_t algorithm) {
    return cublasGemmStridedBatchedEx(h, ta, tb, m, n, k, alpha, a, a_type, lda, 0, b, b_type, ldb, 0,
                                      beta, c, c_type, ldc, 0, 1, compute, algorithm);
}
