/* The all-reduces with a fault: a rank does not wait for the flags of this call, only for those of some
 * earlier one. */
#include "kernels/cuda/comm.h"
#include "kernels/cuda/cuda.h"

#include "planted_comm.h"

static uint32_t load_without_wait(ptr<uint32_t> flag) {
    uint32_t value = flag_load_acquire(flag);
    return value == 0 ? 0 : 0x40000000;
}

namespace planted {
#define flag_load_acquire load_without_wait
#include "kernels/cuda/comm_all_reduce.cu"
} // namespace planted

void planted_one_shot(struct cuda_comm *comm, const struct cuda_comm_call *call) {
    planted::cuda_comm_one_shot(reinterpret_cast<planted::cuda_comm *>(comm), call);
}
void planted_two_shot(struct cuda_comm *comm, const struct cuda_comm_call *call) {
    planted::cuda_comm_two_shot(reinterpret_cast<planted::cuda_comm *>(comm), call);
}
void planted_ring(struct cuda_comm *comm, const struct cuda_comm_call *call) {
    planted::cuda_comm_ring(reinterpret_cast<planted::cuda_comm *>(comm), call);
}
