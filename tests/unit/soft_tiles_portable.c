/* The loops on AMX tiles, with tiles in C and the portable level's vectors. */
#define INT8_TABLE soft_int8_portable
#define INT8_FEW_ROWS cpu_int8_portable
#define BF16_TABLE soft_bf16_portable
#define BF16_ROUNDED soft_round_row
#include "tests/unit/soft_tiles.h"

#include "kernels/cpu/vec.h"

#include "kernels/cpu/vec_portable.h"

#include "kernels/cpu/weights_impl.h"

#include "kernels/cpu/amx_int8_impl.h"

#include "kernels/cpu/amx_bf16_impl.h"
