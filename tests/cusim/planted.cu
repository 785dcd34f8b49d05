/* Kernels with and without a planted fault: the simulator must let the right ones pass, find each of the
 * wrong ones, and say what is wrong. */
#include "kernels/cuda/port.h"

#include "planted.h"

__global__ void k_sum_rows(ptr<float> out, ptr<const float> x, int d, int fault) {
    SHARED(float, part, 64);
    int row = (int)blockIdx.x, lane = (int)threadIdx.x;
    float sum = 0;
    for (int i = lane; i < d; i += (int)blockDim.x) sum += x[(int64_t)row * d + i];
    part[lane] = sum;
    if (fault != PLANT_NO_BARRIER) __syncthreads();
    if (lane == 0) {
        float all = 0;
        for (int i = 0; i < (int)blockDim.x; i++) all += part[i];
        out[row + (fault == PLANT_OUT_OF_BOUNDS ? 1 : 0)] = all;
    }
    if (fault == PLANT_LOST_BARRIER && lane > 3) __syncthreads();
}

__global__ void k_shuffle(ptr<float> out, int fault) {
    int lane = (int)threadIdx.x;
    float x = (float)lane;
    unsigned mask = fault == PLANT_WRONG_MASK ? 0xFFFFu : ALL_LANES;
    if (fault == PLANT_LOST_SHUFFLE && lane == 5) return;
    float other = __shfl_xor_sync(mask, x, 1);
    out[lane] = other;
}

__global__ void k_fill(ptr<float> out, int n, float value) {
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) out[i] = value;
}

__global__ void k_add(ptr<float> out, ptr<const float> x, int n) {
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= n) return;
    float y = x[i];
    out[i] += y;
}

/* One-shot all-reduce: one block; each rank says by a flag that its data is there. */
__global__ void k_all_reduce(struct planted_peers p, int rank, int n, int count, uint32_t epoch,
                             int fault) {
    int lane = (int)threadIdx.x;
    for (int r = 0; r < n; r++)
        if (lane == 0) flag_store_release(ptr<uint32_t>(p.flags[r]) + rank, epoch);
    if (fault != PLANT_NO_FLAG_WAIT && lane < n)
        while (flag_load_acquire(ptr<uint32_t>(p.flags[rank]) + lane) < epoch) spin_pause();
    __syncthreads();
    for (int i = lane; i < count; i += (int)blockDim.x) {
        float sum = 0;
        for (int r = 0; r < n; r++) sum += ptr<const float>(p.data[r])[i];
        ptr<float>(p.out[rank])[i] = sum;
    }
}

void planted_sum_rows(uint64_t out, uint64_t x, int rows, int d, int fault, cudaStream_t on) {
    LAUNCH(k_sum_rows, rows, 64, 0, on, ptr<float>(out), ptr<const float>(x), d, fault);
}
void planted_shuffle(uint64_t out, int fault, cudaStream_t on) {
    LAUNCH(k_shuffle, 1, 32, 0, on, ptr<float>(out), fault);
}
void planted_fill(uint64_t out, int n, float value, cudaStream_t on) {
    LAUNCH(k_fill, (n + 63) / 64, 64, 0, on, ptr<float>(out), n, value);
}
void planted_add(uint64_t out, uint64_t x, int n, cudaStream_t on) {
    LAUNCH(k_add, (n + 63) / 64, 64, 0, on, ptr<float>(out), ptr<const float>(x), n);
}
void planted_all_reduce(const struct planted_peers *peers, int rank, int n, int count, uint32_t epoch,
                        int fault, bool resident, cudaStream_t on) {
    planted_peers p = *peers;
    if (resident) LAUNCH_RESIDENT(k_all_reduce, 1, 64, 0, on, p, rank, n, count, epoch, fault);
    else LAUNCH(k_all_reduce, 1, 64, 0, on, p, rank, n, count, epoch, fault);
}
