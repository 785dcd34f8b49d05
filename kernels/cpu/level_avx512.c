#include "kernels/cpu/vec.h"

#include "kernels/cpu/vec_avx512.h"

#include "kernels/cpu/level_impl.h"
