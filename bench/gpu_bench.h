/* bench/gpu_bench.h: the parts of gpu_bench. */
#ifndef TPD_BENCH_GPU_BENCH_H
#define TPD_BENCH_GPU_BENCH_H

#include "kernels/kernels.h"

#include <cuda_runtime.h>

enum { GPUS_MAX = 16 };

/* Prints what is wrong and ends the program unless code is 0. */
void bench_check(int code, const struct error *e);
void bench_check_cuda(cudaError_t rc, const char *what);

/* gpu_bench_layer.cu: products as models have them, on one device. copy_rate: bytes a second (read and
 * written); product_rate: FLOP a second of a large bf16 product of cuBLAS. */
void bench_layers(int device, double copy_rate, double product_rate);
/* gpu_bench_comm.cu: all-reduce between n ranks on these devices, beside NCCL where it is there. */
void bench_all_reduce(const int *gpus, int n);

#ifdef TPD_CUSIM
enum { RUNS = 1 };
#else
enum { RUNS = 5 };
#endif
/* The shortest of some runs of fn, in seconds; fn returns when its work is done. */
template <class F> double bench_best(F fn) {
    double best = 1e30;
    fn(); /* the first one only warms up */
    for (int i = 0; i < RUNS; i++) {
        int64_t start = clock_ns();
        fn();
        double seconds = (double)(clock_ns() - start) / 1e9;
        if (seconds < best) best = seconds;
    }
    return best;
}

#endif
