/* ipc/cpu.h: the parts of the CPU collectives. Private to ipc/. */
#ifndef TPD_IPC_CPU_H
#define TPD_IPC_CPU_H

#include "ipc/world.h"

/* Bytes of an element: f32 or bf16. */
static inline size_t comm_size_of(enum dtype type) {
    return type == DTYPE_F32 ? 4 : 2;
}

void comm_cpu_all_reduce(struct comm *comm, dev_addr x, int32_t rows, int32_t cols,
                         enum dtype type);

#endif
