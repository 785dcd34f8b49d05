/* The operations of training in the table of the CUDA backend. */
#include "kernels/cuda/cuda.h"

void cuda_train_table(struct kernels *k) { (void)k; }
