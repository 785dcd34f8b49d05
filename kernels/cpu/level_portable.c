#include "kernels/cpu/vec.h"

#include "kernels/cpu/vec_portable.h"

#include "kernels/cpu/level_impl.h"
