/* kernels/cuda/table.h: what tpd-cuda.so offers to the rest, which is plain C and links no CUDA.
 *
 * The library has one public symbol, tpd_cuda_table. `tpd` looks for it in itself first (the tests link
 * the sources for simulated devices), then in tpd-cuda.so beside the program or in its lib folder
 * (TPD_CUDA_LIBRARY names another file). */
#ifndef TPD_KERNELS_CUDA_TABLE_H
#define TPD_KERNELS_CUDA_TABLE_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Raised when anything below, struct kernels or struct kctx changes: a library of another build is
 * refused, not called. */
enum { CUDA_TABLE_VERSION = 4 };

struct cuda_device {
    char name[64]; /* "NVIDIA H100 80GB HBM3" */
    int major, minor;
    size_t total, free;
};

/* How one device reaches another's memory. */
enum cuda_link {
    CUDA_LINK_SAME,   /* it is the same device */
    CUDA_LINK_NVLINK, /* peer access with atomics, which no PCIe bus has */
    CUDA_LINK_PCIE,   /* peer access over the bus */
    CUDA_LINK_NONE    /* through host memory */
};

struct cuda_comm_table;
struct cuda_table {
    int version;
    size_t kernels_size, kctx_size; /* sizeof, as a second guard */
    int (*open)(struct kctx **out, int rank, const struct cuda_options *options, struct error *e);
    /* How many devices there are; ERR_DEVICE when there is no driver. */
    int (*count)(int *n, struct error *e);
    int (*describe)(int device, struct cuda_device *out, struct error *e);
    /* out[i * n + j], an enum cuda_link: how devices[i] reaches devices[j]. */
    int (*links)(const int *devices, int n, uint8_t *out, struct error *e);
    const struct cuda_comm_table *comm; /* kernels/cuda/comm.h */
};

/* Loads the library once; NULL with the reason in e. Any thread. */
const struct cuda_table *cuda_table_load(struct error *e);
/* Whether it may be worth loading: the driver's library is there, or somebody named a library or linked
 * one in. Any thread. */
bool cuda_driver_is_there(void);

#ifdef __cplusplus
}
#endif

#endif
