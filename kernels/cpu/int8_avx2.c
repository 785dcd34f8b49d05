#define INT8_TABLE cpu_int8_avx2
#include "kernels/cpu/vec.h"

#include "kernels/cpu/vec_avx2.h"

#include "kernels/cpu/weights_impl.h"

#include "kernels/cpu/int8_impl.h"
