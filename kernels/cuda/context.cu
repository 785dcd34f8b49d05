/* Opens a CUDA context: device, stream, cuBLAS, memory; and the table of operations. */
#include "kernels/cuda/comm.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/table.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

/* --- errors ------------------------------------------------------------------------------------- */

static int device_error(struct error *e, const char *where, const char *what, cudaError_t rc) {
    return error_set(e, ERR_DEVICE, "%s: %s failed: %s", where, what, cudaGetErrorString(rc));
}

bool cuda_begin(struct kctx *base) {
    if (kctx_failed(base)) return false;
    struct cuda_context *c = cuda_of(base);
    return cuda_check(c, cudaSetDevice(c->device), "choosing the device");
}

bool cuda_check(struct cuda_context *c, cudaError_t rc, const char *what) {
    if (rc == cudaSuccess) return true;
    struct error e;
    device_error(&e, c->name, what, rc);
    error_note_number(&e, "rank", c->base.rank);
    kctx_fail(&c->base, &e);
    return false;
}

bool cuda_check_blas(struct cuda_context *c, cublasStatus_t rc, const char *what) {
    if (rc == CUBLAS_STATUS_SUCCESS) return true;
    struct error e;
    error_set(&e, ERR_DEVICE, "%s: %s failed in cuBLAS: %s", c->name, what, cublasGetStatusString(rc));
    error_note_number(&e, "rank", c->base.rank);
    kctx_fail(&c->base, &e);
    return false;
}

void cuda_refuse(struct cuda_context *c, const char *format, ...) {
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    struct error e;
    error_set(&e, ERR_INTERNAL, "%s: %s", c->name, text);
    kctx_fail(&c->base, &e);
}

/* --- the table ------------------------------------------------------------------------------------ */

static void cuda_close(struct kctx *base) {
    struct cuda_context *c = cuda_of(base);
    if (!c) return;
    cudaSetDevice(c->device);
    if (c->stream) cudaStreamSynchronize(c->stream);
    cuda_graphs_forget(c);
    if (c->blas) cublasDestroy(c->blas);
    cuda_memory_close(c);
    cuda_bus_close(c);
    if (c->stream) cudaStreamDestroy(c->stream);
    free(c);
}

static void cuda_figures(const struct kctx *base, struct device_figures *out) {
    const struct cuda_context *c = cuda_of(const_cast<struct kctx *>(base));
    *out = {};
    out->kind = DEVICE_CUDA;
    out->bf16 = !c->same_bits;
    out->n_sms = c->n_sms;
    out->same_bits = c->same_bits;
    out->converted_tile = CONVERTED_TILE;
    out->blas_bytes = BLAS_WORKSPACE_BYTES;
    out->scratch_grain = SCRATCH_GRAIN;
}

static struct kernels make_kernels() {
    struct kernels k = {};
    k.name = "cuda";
    k.mem_alloc = cuda_mem_alloc;
    k.mem_free = cuda_mem_free;
    k.mem_reserve = cuda_mem_reserve;
    k.mem_use = cuda_mem_use;
    k.figures = cuda_figures;
    k.mem_export = cuda_mem_export;
    k.upload = cuda_upload;
    k.download = cuda_download;
    k.wait = cuda_wait;
    k.weight_new = cuda_weight_new;
    k.weight_put = cuda_weight_put;
    k.weight_free = cuda_weight_free;
    k.weight_layout = cuda_weight_layout;
    k.embed = cuda_embed;
    k.rmsnorm = cuda_rmsnorm;
    k.add_rmsnorm = cuda_add_rmsnorm;
    k.linear = cuda_linear;
    k.head_norm = cuda_head_norm;
    k.rope_table = cuda_rope_table;
    k.rope_kv = cuda_rope_kv;
    k.attention = cuda_attention;
    k.silu_mul = cuda_silu_mul;
    k.gather_rows = cuda_gather_rows;
    k.scale = cuda_scale;
    k.candidates = cuda_candidates;
    k.copy = cuda_copy;
    k.replay_state = cuda_replay_state;
    k.replay_begin = cuda_replay_begin;
    k.replay_end = cuda_replay_end;
    k.replay_run = cuda_replay_run;
    k.close = cuda_close;
    cuda_train_table(&k);
    return k;
}

static const struct kernels cuda_kernels = make_kernels();

static int open_stream(struct cuda_context *c, struct error *e) {
    cudaError_t rc = cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking);
    if (rc != cudaSuccess) return device_error(e, c->name, "making a stream", rc);
    if (cublasCreate(&c->blas) != CUBLAS_STATUS_SUCCESS ||
        cublasSetStream(c->blas, c->stream) != CUBLAS_STATUS_SUCCESS)
        return error_set(e, ERR_DEVICE, "%s: cuBLAS cannot be opened", c->name);
    return 0;
}

static int count_devices(int *n, struct error *e) {
    *n = 0;
    cudaError_t rc = cudaGetDeviceCount(n);
    if (rc == cudaErrorNoDevice) return 0;
    if (rc == cudaErrorInsufficientDriver)
        return error_set(e, ERR_DEVICE, "there is no NVIDIA driver that CUDA can use (%s): install one "
                         "that is new enough, or run on the CPU", cudaGetErrorString(rc));
    return rc == cudaSuccess ? 0 : device_error(e, "cuda", "counting the devices", rc);
}

static int describe_device(int device, struct cuda_device *out, struct error *e) {
    cudaDeviceProp p;
    cudaError_t rc = cudaGetDeviceProperties(&p, device);
    if (rc == cudaSuccess) rc = cudaSetDevice(device);
    if (rc == cudaSuccess) rc = cudaMemGetInfo(&out->free, &out->total);
    if (rc != cudaSuccess) return device_error(e, "cuda", "describing a device", rc);
    snprintf(out->name, sizeof out->name, "%.63s", p.name);
    out->major = p.major;
    out->minor = p.minor;
    return 0;
}

static cudaError_t link_of(int from, int to, uint8_t *out) {
    int access = 0, atomics = 0;
    *out = CUDA_LINK_SAME;
    if (from == to) return cudaSuccess;
    cudaError_t rc = cudaDeviceCanAccessPeer(&access, from, to);
    if (rc == cudaSuccess && access)
        rc = cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, from, to);
    *out = !access ? CUDA_LINK_NONE : atomics ? CUDA_LINK_NVLINK : CUDA_LINK_PCIE;
    return rc;
}

static int link_devices(const int *devices, int n, uint8_t *out, struct error *e) {
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {
            cudaError_t rc = link_of(devices[i], devices[j], &out[i * n + j]);
            if (rc != cudaSuccess) return device_error(e, "cuda", "asking how devices are connected", rc);
        }
    return 0;
}

static int open_device(struct cuda_context *c, const struct cuda_options *options, struct error *e) {
    cudaDeviceProp p;
    int n;
    int code = count_devices(&n, e);
    if (code) return code;
    if (c->device < 0 || c->device >= n)
        return error_set(e, ERR_DEVICE, "there is no cuda:%d: %d CUDA device%s found", c->device, n,
                         n == 1 ? " was" : "s were");
    snprintf(c->name, sizeof c->name, "cuda:%d", c->device);
    cudaError_t rc = cudaSetDevice(c->device);
    if (rc == cudaSuccess) rc = cudaGetDeviceProperties(&p, c->device);
    if (rc != cudaSuccess) return device_error(e, c->name, "opening the device", rc);
    snprintf(c->name, sizeof c->name, "cuda:%d (%.63s)", c->device, p.name);
    c->n_sms = p.multiProcessorCount;
    c->shared_max = p.sharedMemPerBlockOptin;
    code = open_stream(c, e);
    cuda_memory_open(c, options->memory_limit);
    return code ? code : cuda_bus_open(c, e);
}

static int cuda_open(struct kctx **out, int rank, const struct cuda_options *options,
                     struct error *e) {
    *out = nullptr;
    auto *c = static_cast<struct cuda_context *>(calloc(1, sizeof(struct cuda_context)));
    if (!c) return error_set(e, ERR_MEMORY, "no memory for the context of rank %d", rank);
    const char *same = getenv("TPD_CUDA_SAME_BITS");
    c->base.ops = &cuda_kernels;
    c->base.rank = rank;
    c->device = options->device;
    c->same_bits = options->same_bits || (same && *same == '1');
    int code = open_device(c, options, e);
    if (code) {
        cuda_close(&c->base);
        return code;
    }
    *out = &c->base;
    return 0;
}

extern "C" {
extern const struct cuda_table tpd_cuda_table __attribute__((visibility("default")));
const struct cuda_table tpd_cuda_table = {CUDA_TABLE_VERSION, sizeof(struct kernels),
                                          sizeof(struct kctx), cuda_open, count_devices,
                                          describe_device, link_devices, &cuda_comm_table};
}
