/* gpu_bench [LIST]: what the CUDA side does with the GPUs of LIST ("0,1"; default: all), beside what they can
 * do: a copy within the device for what moves bytes, a large product of cuBLAS for what multiplies.
 *
 * `make gpu-bench` runs it on real devices. On simulated ones (`make test-cusim`) sizes are tiny and the
 * figures mean nothing: that it works is what is tested. --count prints how many devices there are. */
#include "bench/gpu_bench.h"

#include "kernels/cuda/table.h"

#include <cublas_v2.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#ifdef TPD_CUSIM
enum { COPY_BYTES = 4096, PRODUCT = 16 };
#else
enum { COPY_BYTES = 1 << 30, PRODUCT = 8192 };
#endif

void bench_check(int code, const struct error *e) {
    if (code == 0) return;
    fprintf(stderr, "gpu_bench: %s\n", e->message);
    exit(EXIT_FAILED);
}

void bench_check_cuda(cudaError_t rc, const char *what) {
    if (rc == cudaSuccess) return;
    fprintf(stderr, "gpu_bench: %s failed: %s\n", what, cudaGetErrorString(rc));
    exit(EXIT_FAILED);
}

static void *new_memory(size_t bytes) {
    void *at;
    bench_check_cuda(cudaMalloc(&at, bytes), "allocating");
    bench_check_cuda(cudaMemsetAsync(at, 0, bytes, nullptr), "clearing");
    return at;
}

static void wait_for_device() { bench_check_cuda(cudaStreamSynchronize(nullptr), "waiting"); }

static double measure_copy() {
    void *from = new_memory(COPY_BYTES), *to = new_memory(COPY_BYTES);
    double seconds = bench_best([&] {
        cudaMemcpyAsync(to, from, COPY_BYTES, cudaMemcpyDeviceToDevice, nullptr);
        wait_for_device();
    });
    cudaFree(from);
    cudaFree(to);
    return 2.0 * COPY_BYTES / seconds;
}

/* Random bf16 of about 1: a product of zeros would take less power and so less time. */
static void *random_matrix() {
    size_t n = (size_t)PRODUCT * PRODUCT;
    auto *host = static_cast<uint16_t *>(malloc(n * 2));
    uint32_t state = 1;
    for (size_t i = 0; host && i < n; i++) {
        state = state * 1664525u + 1013904223u;
        host[i] = (uint16_t)((state >> 31) << 15 | (0x3F00 + (state >> 24 & 127)));
    }
    void *at = new_memory(n * 2);
    if (host) bench_check_cuda(cudaMemcpy(at, host, n * 2, cudaMemcpyHostToDevice), "uploading");
    free(host);
    return at;
}

static double measure_product() {
    cublasHandle_t blas;
    const float one = 1, zero = 0;
    if (cublasCreate(&blas) != CUBLAS_STATUS_SUCCESS) {
        fprintf(stderr, "gpu_bench: cuBLAS cannot be opened\n");
        exit(EXIT_FAILED);
    }
    void *a = random_matrix(), *b = random_matrix();
    void *c = new_memory((size_t)PRODUCT * PRODUCT * 4);
    double seconds = bench_best([&] {
        cublasGemmEx(blas, CUBLAS_OP_T, CUBLAS_OP_N, PRODUCT, PRODUCT, PRODUCT, &one, a, CUDA_R_16BF,
                     PRODUCT, b, CUDA_R_16BF, PRODUCT, &zero, c, CUDA_R_32F, PRODUCT, CUBLAS_COMPUTE_32F,
                     CUBLAS_GEMM_DEFAULT);
        wait_for_device();
    });
    cudaFree(a);
    cudaFree(b);
    cudaFree(c);
    cublasDestroy(blas);
    return 2.0 * PRODUCT * PRODUCT * PRODUCT / seconds;
}

/* --- one device ------------------------------------------------------------------------------------- */

static void bench_device(const struct cuda_table *table, int device) {
    struct cuda_device card;
    struct error e;
    bench_check(table->describe(device, &card, &e), &e);
    printf("cuda:%d %s, compute capability %d.%d, %.1f GiB (%.1f free)\n", device, card.name, card.major,
           card.minor, (double)card.total / (1 << 30), (double)card.free / (1 << 30));
    bench_check_cuda(cudaSetDevice(device), "choosing the device");
    double copy = measure_copy(), product = measure_product();
    printf("copy of %.1f MB            %10.1f GB/s read and written\n", COPY_BYTES / 1e6, copy / 1e9);
    printf("cuBLAS bf16, %d cubed    %10.2f TFLOP/s\n", PRODUCT, product / 1e12);
    bench_layers(device, copy, product);
}

/* Numbers between commas; how many, or 0 when it is no such list. */
static int read_list(const char *text, int *gpus) {
    int n = 0;
    for (;;) {
        char *end;
        long number = strtol(text, &end, 10);
        if (end == text || number < 0 || n == GPUS_MAX) return 0;
        gpus[n++] = (int)number;
        if (*end == 0) return n;
        if (*end != ',') return 0;
        text = end + 1;
    }
}

int main(int argc, char **argv) {
    int gpus[GPUS_MAX], n = 0, there;
    struct error e;
    const struct cuda_table *table = cuda_table_load(&e);
    bench_check(table ? 0 : -1, &e);
    bench_check(table->count(&there, &e), &e);
    if (argc == 2 && strcmp(argv[1], "--count") == 0) return printf("%d\n", there) > 0 ? 0 : 1;
    if (argc > 2 || (argc == 2 && (n = read_list(argv[1], gpus)) == 0)) {
        fprintf(stderr, "usage: gpu_bench [LIST], such as 0,1\n");
        return EXIT_USAGE;
    }
    if (there == 0) {
        fprintf(stderr, "gpu_bench: there is no CUDA device in this machine\n");
        return EXIT_FAILED;
    }
    for (; argc < 2 && n < there && n < GPUS_MAX; n++) gpus[n] = n;
    for (int i = 0; i < n; i++)
        if (gpus[i] >= there) {
            fprintf(stderr, "gpu_bench: there is no cuda:%d, only %d\n", gpus[i], there);
            return EXIT_USAGE;
        }
    bench_device(table, gpus[0]);
    if (n == 1) gpus[n++] = gpus[0];
    bench_all_reduce(gpus, n);
    return 0;
}
