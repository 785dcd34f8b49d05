#ifndef TPD_CUSIM_PLANTED_H
#define TPD_CUSIM_PLANTED_H

#include <cuda_runtime.h>

enum planted_fault {
    PLANT_NONE,
    PLANT_NO_BARRIER,
    PLANT_OUT_OF_BOUNDS,
    PLANT_LOST_BARRIER,
    PLANT_WRONG_MASK,
    PLANT_LOST_SHUFFLE,
    PLANT_NO_FLAG_WAIT
};

struct planted_peers {
    uint64_t data[8], out[8], flags[8]; /* by rank */
};

void planted_sum_rows(uint64_t out, uint64_t x, int rows, int d, int fault, cudaStream_t on);
void planted_shuffle(uint64_t out, int fault, cudaStream_t on);
void planted_fill(uint64_t out, int n, float value, cudaStream_t on);
void planted_add(uint64_t out, uint64_t x, int n, cudaStream_t on);
void planted_all_reduce(const planted_peers *peers, int rank, int n, int count, uint32_t epoch, int fault,
                        bool resident, cudaStream_t on);

#endif
