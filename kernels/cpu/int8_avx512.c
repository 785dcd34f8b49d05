#define INT8_TABLE cpu_int8_avx512
#include "kernels/cpu/vec.h"

#include "kernels/cpu/vec_avx512.h"

#include "kernels/cpu/weights_impl.h"

#include "kernels/cpu/int8_impl.h"
