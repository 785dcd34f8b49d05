#define INT8_TABLE cpu_int8_portable
#include "kernels/cpu/vec.h"

#include "kernels/cpu/vec_portable.h"

#include "kernels/cpu/weights_impl.h"

#include "kernels/cpu/int8_impl.h"
