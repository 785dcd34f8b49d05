/* ipc/cuda.h: the world's CUDA side. Private to ipc/. */
#ifndef TPD_IPC_CUDA_H
#define TPD_IPC_CUDA_H

#include "ipc/world.h"

extern const struct comm_ops comm_cuda_ops;

/* The rank's end on its device; the first one of the world makes what they share. */
int comm_cuda_open(struct comm *comm, struct error *e);
void comm_cuda_close(struct comm *comm);
void comm_cuda_world_free(struct comm_world *world);
/* Ends the waits of the kernels. */
void comm_cuda_world_abort(struct comm_world *world);
int comm_cuda_world_reset(struct comm_world *world, struct error *e);

/* Reads what the world's tuning file says, or measures and writes it. All ranks, when connected. */
bool comm_cuda_tune(struct comm *comm);
/* comm_replay, for more than one rank. */
enum replay comm_cuda_replay(struct comm *comm, enum replay mine);
/* A barrier of the ranks' threads that is no call; step: the same on all. */
bool comm_cuda_meet_on_host(struct comm *comm, int step);

#endif
