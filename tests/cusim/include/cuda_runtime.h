/* The part of CUDA's runtime that tpd uses, for simulated devices (tests/cusim/sim.h). */
#ifndef TPD_CUSIM_CUDA_RUNTIME_H
#define TPD_CUSIM_CUDA_RUNTIME_H

#include "../sim.h"

#include <algorithm>
#include <cmath>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __restrict__
#define __launch_bounds__(...)
#define __constant__ static const

enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorInsufficientDriver = 35,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorPeerAccessUnsupported = 217,
    cudaErrorNotReady = 600,
    cudaErrorPeerAccessAlreadyEnabled = 704,
    cudaErrorLaunchFailure = 719
};
enum cudaMemcpyKind {
    cudaMemcpyHostToHost,
    cudaMemcpyHostToDevice,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice,
    cudaMemcpyDefault
};
enum cudaDeviceP2PAttr { cudaDevP2PAttrNativeAtomicSupported = 3 };
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal };
enum { cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2, cudaEventDefault = 0 };
enum { cudaHostAllocDefault = 0, cudaHostAllocPortable = 1, cudaHostAllocMapped = 2 };

typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
typedef struct CUgraph_st *cudaGraph_t;
typedef struct CUgraphExec_st *cudaGraphExec_t;
typedef void (*cudaHostFn_t)(void *);

struct cudaDeviceProp {
    char name[256];
    size_t totalGlobalMem, sharedMemPerBlockOptin;
    int multiProcessorCount, major, minor, cooperativeLaunch;
    int pciBusID, pciDeviceID, pciDomainID;
};

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
#define CUSIM_VECTOR(name, type, n, align)                                                         \
    struct alignas(align) name {                                                                   \
        type x, y, z, w;                                                                           \
    };
struct alignas(8) float2 {
    float x, y;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(8) int2 {
    int x, y;
};
CUSIM_VECTOR(float4, float, 4, 16)
CUSIM_VECTOR(uint4, unsigned, 4, 16)
CUSIM_VECTOR(int4, int, 4, 16)
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
    return {x, y, z, w};
}

cudaError_t cudaGetDeviceCount(int *n);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device);
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total);
cudaError_t cudaMalloc(void **out, size_t bytes);
cudaError_t cudaFree(void *at);
/* The handle holds the address in its first bytes; nobody opens one here. */
struct cudaIpcMemHandle_t {
    char reserved[64];
};
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *at);
cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags);
cudaError_t cudaHostGetDevicePointer(void **out, void *host, unsigned flags);
cudaError_t cudaFreeHost(void *host);
cudaError_t cudaMemcpy(void *to, const void *from, size_t n, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, cudaMemcpyKind kind,
                            cudaStream_t on);
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind kind, cudaStream_t on);
cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t n,
                                cudaStream_t on);
cudaError_t cudaMemsetAsync(void *to, int value, size_t n, cudaStream_t on);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t on);
cudaError_t cudaStreamSynchronize(cudaStream_t on);
cudaError_t cudaStreamQuery(cudaStream_t on);
cudaError_t cudaStreamWaitEvent(cudaStream_t on, cudaEvent_t event, unsigned flags);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaGetLastError();
cudaError_t cudaPeekAtLastError();
const char *cudaGetErrorString(cudaError_t error);
cudaError_t cudaDeviceCanAccessPeer(int *can, int from, int to);
cudaError_t cudaDeviceGetP2PAttribute(int *value, cudaDeviceP2PAttr which, int from, int to);
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags);
cudaError_t cudaDeviceDisablePeerAccess(int peer);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t on);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to);
cudaError_t cudaLaunchHostFunc(cudaStream_t on, cudaHostFn_t fn, void *arg);
cudaError_t cudaStreamBeginCapture(cudaStream_t on, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t on, cudaGraph_t *out);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t from, unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t which, cudaStream_t on);
cudaError_t cudaGraphDestroy(cudaGraph_t g);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t g);

/* --- inside kernels ------------------------------------------------------------------------------ */

#define threadIdx (::cusim::thread_index())
#define blockIdx (::cusim::block_index())
#define blockDim (::cusim::block_size())
#define gridDim (::cusim::grid_size())
enum { warpSize = 32 };

static inline void __syncthreads() { cusim::sync_threads(); }
static inline void __syncwarp(unsigned mask = 0xFFFFFFFFu) { cusim::sync_warp(mask); }
template <class T> static inline T cusim_shuffle(unsigned mask, T value, int from) {
    static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    bits = cusim::shuffle(mask, bits, from);
    std::memcpy(&value, &bits, sizeof value);
    return value;
}
static inline int cusim_lane() {
    const cusim::index3 &t = threadIdx, &b = blockDim;
    return (int)((t.x + b.x * (t.y + b.y * t.z)) % 32);
}
template <class T> T __shfl_sync(unsigned mask, T value, int from) {
    return cusim_shuffle(mask, value, from & 31);
}
template <class T> T __shfl_xor_sync(unsigned mask, T value, int bits) {
    return cusim_shuffle(mask, value, cusim_lane() ^ bits);
}
template <class T> T __shfl_down_sync(unsigned mask, T value, unsigned by) {
    int from = cusim_lane() + (int)by;
    return cusim_shuffle(mask, value, from > 31 ? -1 : from);
}
template <class T> T __shfl_up_sync(unsigned mask, T value, unsigned by) {
    return cusim_shuffle(mask, value, cusim_lane() - (int)by);
}
static inline unsigned __ballot_sync(unsigned mask, int p) { return cusim::ballot(mask, p != 0); }
static inline int __any_sync(unsigned mask, int p) { return cusim::ballot(mask, p != 0) != 0; }

static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
/* The C library has functions of these names of its own. */
#define __expf(x) (std::exp(static_cast<float>(x)))
#define __logf(x) (std::log(static_cast<float>(x)))
static inline float __fdividef(float a, float b) { return a / b; }
static inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
static inline float __frcp_rn(float x) { return 1.0f / x; }
static inline int __float_as_int(float x) {
    int i;
    std::memcpy(&i, &x, 4);
    return i;
}
static inline float __int_as_float(int i) {
    float x;
    std::memcpy(&x, &i, 4);
    return x;
}
static inline unsigned __float_as_uint(float x) { return (unsigned)__float_as_int(x); }
static inline float __uint_as_float(unsigned i) { return __int_as_float((int)i); }
static inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; i++) c += (int)(int8_t)(a >> 8 * i) * (int)(int8_t)(b >> 8 * i);
    return c;
}
static inline uint64_t __umul64hi(uint64_t a, uint64_t b) {
    return (uint64_t)((unsigned __int128)a * b >> 64);
}
using std::max;
using std::min;

#endif
