/* The kernels of planted_comm.cu, for a world that has connected and made a call. */
#ifndef TPD_CUSIM_PLANTED_COMM_H
#define TPD_CUSIM_PLANTED_COMM_H

#include "kernels/cuda/comm.h"

void planted_one_shot(struct cuda_comm *comm, const struct cuda_comm_call *call);
void planted_two_shot(struct cuda_comm *comm, const struct cuda_comm_call *call);
void planted_ring(struct cuda_comm *comm, const struct cuda_comm_call *call);

#endif
