/* kernels/cuda/port.h: what the .cu files are written in, so that nvcc compiles them for devices and a
 * host compiler for the simulated ones of tests/cusim (TPD_CUSIM), which check every access.
 *
 * The rules:
 *   - device memory through ptr<T>, shared memory through sptr<T> (SHARED, SHARED_DYN), never through a
 *     plain pointer; 16 bytes at once by load16 and store16;
 *   - a value that is passed to a template is first put into a variable of its type;
 *   - threads meet by __syncthreads, __syncwarp and the _sync operations alone, blocks not at all, but
 *     in kernels of LAUNCH_RESIDENT: their blocks are all live at once, and may wait for flags;
 *   - block sizes are multiples of 32, and whole warps take part in a warp's operation;
 *   - no recursion, no allocation, no static objects on the device;
 *   - UNROLL before a loop whose arrays should be registers.
 */
#ifndef TPD_KERNELS_CUDA_PORT_H
#define TPD_KERNELS_CUDA_PORT_H

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <stdint.h>

enum { WARP_SIZE = 32 };
#define ALL_LANES 0xFFFFFFFFu

#ifdef TPD_CUSIM

#define UNROLL
using cusim::ptr;
using cusim::sptr;

#define SHARED(type, name, n)                                                                      \
    static const char name##_key = 0;                                                              \
    ::cusim::sptr<type> name { ::cusim::shared_static(&name##_key, sizeof(type), n), 0 }
#define SHARED_DYN(type, name)                                                                     \
    ::cusim::sptr<type> name { ::cusim::shared_dynamic(sizeof(type)), 0 }
#define LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                     \
    cusim_launch(#kernel, grid, block, shared_bytes, stream, false, kernel, __VA_ARGS__)
#define LAUNCH_RESIDENT(kernel, grid, block, shared_bytes, stream, ...)                            \
    cusim_launch(#kernel, grid, block, shared_bytes, stream, true, kernel, __VA_ARGS__)

/* Of a stretch of device memory that is one allocation to the driver: [address, address + bytes) is a piece,
 * an access to which is not one to its neighbours; it is none any more; and, in the order of the stream, it
 * holds nothing and has so many bytes. On hardware nothing needs to be said. */
#define PIECE_NEW(address, bytes) ::cusim::piece_new(address, bytes)
#define PIECE_END(address) ::cusim::piece_end(address)
#define PIECE_AGAIN(on, address, bytes)                                                            \
    ::cusim::piece_again(reinterpret_cast<::cusim::stream *>(on), address, bytes)

/* Arguments are taken at the launch, as the device takes them: what they were made of may be gone when the
 * kernel runs. */
template <class K, class... Args>
static inline void cusim_launch(const char *name, dim3 grid, dim3 block, size_t shared_bytes,
                                cudaStream_t stream, bool resident, K kernel, Args... args) {
    cusim::launch(name,
                  {{grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, shared_bytes, resident},
                  reinterpret_cast<cusim::stream *>(stream), [=] { kernel(args...); });
}

/* The same address as another type. */
template <class T, class U> static inline ptr<T> as(ptr<U> p) { return ptr<T>(p.address); }
/* 16-byte aligned. */
template <class V, class T> static inline V load16(ptr<T> p) {
    static_assert(sizeof(V) == 16, "16 bytes at once");
    return *ptr<const V>(p.address);
}
template <class V, class T> static inline void store16(ptr<T> p, const V &v) {
    static_assert(sizeof(V) == 16, "16 bytes at once");
    *ptr<V>(p.address) = v;
}
/* 16-byte aligned. */
static inline float4 load4(sptr<float> p) { return {p[0], p[1], p[2], p[3]}; }
static inline void store4(sptr<float> p, float4 v) {
    p[0] = v.x, p[1] = v.y, p[2] = v.z, p[3] = v.w;
}
static inline void flag_store_release(ptr<uint32_t> flag, uint32_t value) {
    cusim::flag_release(flag.address, value);
}
static inline uint32_t flag_load_acquire(ptr<uint32_t> flag) {
    return cusim::flag_acquire(flag.address);
}
static inline void spin_pause() { cusim::spin_pause(); }
static inline uint64_t device_nanoseconds() { return cusim::nanoseconds(); }

#else

#define UNROLL _Pragma("unroll")
template <class T> using ptr = T *;
template <class T> using sptr = T *;

#define SHARED(type, name, n) __shared__ type name[n]
#define SHARED_DYN(type, name)                                                                     \
    extern __shared__ __align__(16) unsigned char tpd_shared_memory[];                             \
    type *name = reinterpret_cast<type *>(tpd_shared_memory)
#define LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                     \
    kernel<<<grid, block, shared_bytes, stream>>>(__VA_ARGS__)
/* The launcher sees to it that the grid fits beside nothing else (cuda_resident_blocks). */
#define LAUNCH_RESIDENT(kernel, grid, block, shared_bytes, stream, ...)                            \
    kernel<<<grid, block, shared_bytes, stream>>>(__VA_ARGS__)

#define PIECE_NEW(address, bytes) ((void)0)
#define PIECE_END(address) ((void)0)
#define PIECE_AGAIN(on, address, bytes) ((void)0)

template <class T, class U> __device__ __forceinline__ ptr<T> as(U *p) {
    return reinterpret_cast<T *>(p);
}
template <class V, class T> __device__ __forceinline__ V load16(const T *p) {
    static_assert(sizeof(V) == 16, "16 bytes at once");
    return *reinterpret_cast<const V *>(p);
}
template <class V, class T> __device__ __forceinline__ void store16(T *p, const V &v) {
    static_assert(sizeof(V) == 16, "16 bytes at once");
    *reinterpret_cast<V *>(p) = v;
}
__device__ __forceinline__ float4 load4(const float *shared) {
    return *reinterpret_cast<const float4 *>(shared);
}
__device__ __forceinline__ void store4(float *shared, float4 v) {
    *reinterpret_cast<float4 *>(shared) = v;
}
__device__ __forceinline__ void flag_store_release(uint32_t *flag, uint32_t value) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}
__device__ __forceinline__ uint32_t flag_load_acquire(const uint32_t *flag) {
    uint32_t value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
    return value;
}
__device__ __forceinline__ void spin_pause() { __nanosleep(20); }
__device__ __forceinline__ uint64_t device_nanoseconds() {
    uint64_t t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

#endif

/* --- sums and maxima over a warp or a block; every thread gets the result ------------------------- */

/* T: float, double or int. */
template <class T>
static __device__ __forceinline__ T warp_sum(T x) {
    for (int by = WARP_SIZE / 2; by > 0; by /= 2) x += __shfl_xor_sync(ALL_LANES, x, by);
    return x;
}

static __device__ __forceinline__ float warp_max(float x) {
    for (int by = WARP_SIZE / 2; by > 0; by /= 2) {
        float other = __shfl_xor_sync(ALL_LANES, x, by);
        x = fmaxf(x, other);
    }
    return x;
}

/* scratch: WARP_SIZE of them in shared memory, free before and after. One order, whatever the data. */
template <class T>
static __device__ __forceinline__ T block_sum(T x, sptr<T> scratch) {
    int lane = (int)threadIdx.x % WARP_SIZE, warp = (int)threadIdx.x / WARP_SIZE;
    int warps = (int)blockDim.x / WARP_SIZE;
    x = warp_sum(x);
    if (lane == 0) scratch[warp] = x;
    __syncthreads();
    T mine = 0;
    if (lane < warps) mine = scratch[lane];
    x = warp_sum(mine);
    __syncthreads();
    return x;
}

static __device__ __forceinline__ float block_max(float x, sptr<float> scratch) {
    int lane = (int)threadIdx.x % WARP_SIZE, warp = (int)threadIdx.x / WARP_SIZE;
    int warps = (int)blockDim.x / WARP_SIZE;
    x = warp_max(x);
    if (lane == 0) scratch[warp] = x;
    __syncthreads();
    float mine = -INFINITY;
    if (lane < warps) mine = scratch[lane];
    x = warp_max(mine);
    __syncthreads();
    return x;
}

#endif
