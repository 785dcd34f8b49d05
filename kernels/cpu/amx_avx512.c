/* Products on AMX tiles, the rest in AVX-512: see amx.h. */
#define INT8_TABLE cpu_int8_amx
#define INT8_FEW_ROWS cpu_int8_avx512
#define BF16_TABLE cpu_bf16_amx
#define BF16_ROUNDED cpu_bf16_avx512.prepare
#include "kernels/cpu/amx.h"
#include "kernels/cpu/amx_tiles.h"
#include "kernels/cpu/vec.h"

#include "kernels/cpu/vec_avx512.h"

#include "kernels/cpu/weights_impl.h"

#include "kernels/cpu/amx_int8_impl.h"

#include "kernels/cpu/amx_bf16_impl.h"
